package main

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The worst of the outages of the same length counts; one that could not be measured fails.
func TestReportOutages(t *testing.T) {
	out, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer func() { _ = out.Close() }()
	b := &bench{report: &report{Live: harness.NewLive(out)}}
	b.reportOutages(agentVerifier(), 20, []*outage{{fault: dns, released: time.Second}, {fault: proxy, released: 2100 * time.Millisecond}})
	b.reportOutages(workerVerifier(), 3, []*outage{{fault: dns, err: errors.New("no answer")}})
	assert.Equal(t, []row{
		{"outage of 20 s, agent: released after, worst", "2.10 s (kube-proxy)", "", ""},
		{"outage of 20 s, agent: released after, compared with the outage", "0.105 times", "0.100 times", "FAIL"},
		{"outage of 3 s, worker: released after, compared with the outage", "DNS: no answer", "", "FAIL"},
	}, b.rows)
}
