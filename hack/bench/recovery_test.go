package main

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A node may take longer the longer its outage was.
func TestRecoveryLimit(t *testing.T) {
	for seconds, want := range map[time.Duration]float64{0: 1.5, 3: 1.575, 20: 2, 75: 3.375, 600: 16.5} {
		assert.InDelta(t, want, recoveryLimit(agentRecoveryBudget, seconds*time.Second), 1e-9, "%d s", seconds)
	}
	assert.InDelta(t, 10, recoveryLimit(workerRecoveryBudget, 200*time.Second), 1e-9)
}

// Signs come every sixtieth of the outage, at least every 15 s and at most once a second.
func TestBusiestSecond(t *testing.T) {
	for seconds, want := range map[time.Duration]float64{3: 20000, 60: 20000, 600: 2000, 3600: 20000.0 / 15} {
		assert.InDelta(t, want, busiestSecond(4, seconds*time.Second), 1e-9, "%d s", seconds)
	}
}

// Every outage of the issue is there once, with 20 random ones below a minute.
func TestAgentOutages(t *testing.T) {
	planned := map[string][]time.Duration{}
	random := 0
	for _, o := range agentOutages() {
		if o.fault == dnsDropped && o.planned < longestRandom {
			random++
			continue
		}
		planned[o.fault] = append(planned[o.fault], o.planned)
	}
	assert.Equal(t, randomOutages, random)
	three := []time.Duration{3 * time.Second, 20 * time.Second, 75 * time.Second}
	assert.Equal(t, map[string][]time.Duration{dnsDropped: {longOutage}, servicesDropped: append([]time.Duration{longOutage}, three...),
		podsDropped: three, proxyLate: three}, planned)
}

func TestOutageRead(t *testing.T) {
	const pod, user = "agent-a", harness.User
	of := func(name string, r harness.Request) harness.Request {
		r.User.Extra = map[string][]string{"authentication.kubernetes.io/pod-name": {name}}
		return r
	}
	ended := time.Unix(1, 0).Add(500 * time.Millisecond)
	requests := []harness.Request{
		of(pod, audited(user, "get", "nodes", "", "n", 200, 100, 110)),
		of("agent-b", audited(user, "get", "nodes", "", "m", 200, 120, 130)),
		of(pod, audited(user, "patch", "nodes", "status", "n", 200, 400, 410)), // the condition
		of("agent-b", audited(user, "patch", "nodes", "", "m", 200, 600, 610)), // another node
		of(pod, audited(user, "get", "nodes", "", "n", 200, 700, 710)),
		of(pod, audited(user, "patch", "nodes", "", "n", 422, 800, 810)), // refused
		of(pod, audited(user, "patch", "nodes", "", "n", 200, 900, 920)),
		of(pod, audited(user, "create", "events", "", "", 201, 930, 940)),
	}
	var o outage
	require.NoError(t, o.read(requests, "n", pod, ended))
	assert.Equal(t, outage{released: 420 * time.Millisecond, requests: 2, recovery: 4}, o)
	require.ErrorContains(t, new(outage).read(requests[:6], "n", pod, ended), "no patch of n in the audit log")
}

func TestReadPackets(t *testing.T) {
	const text = "\t\ttcp sport 8080 accept\n\t\tudp dport 53 counter packets 420 bytes 9 accept\n\t\toifname \"eth0\" counter packets 180 bytes 7\n"
	got, err := readPackets(text, longOutage)
	require.NoError(t, err)
	assert.Equal(t, packets{dns: 420, other: 180, perSecond: 1}, got)
	_, err = readPackets("table inet knr-count {}", longOutage)
	require.ErrorContains(t, err, "not two counters")
}

// The table has a row for each outage, by fault and length; one that could not be measured fails.
func TestReportOutages(t *testing.T) {
	b := &bench{report: &report{Live: harness.NewLive(devNull(t))}}
	b.reportOutages("", []*outage{
		{fault: proxyLate, lasted: 20 * time.Second, released: 2100 * time.Millisecond},
		{fault: dnsDropped, lasted: 20 * time.Second, released: 1900 * time.Millisecond},
		{fault: dnsDropped, lasted: 4 * time.Second, released: 300 * time.Millisecond},
		{fault: podsDropped, planned: 75 * time.Second, err: assert.AnError},
	}, agentRecoveryBudget)
	assert.Equal(t, []row{
		{"DNS dropped, 4.0 s: released after", "0.30 s", "1.60 s", "PASS"},
		{"DNS dropped, 20.0 s: released after", "1.90 s", "2.00 s", "PASS"},
		{"all pod-to-pod traffic dropped, 75.0 s: " + assert.AnError.Error(), "", "", "FAIL"},
		{"kube-proxy started late, 20.0 s: released after", "2.10 s", "2.00 s", "FAIL"},
	}, b.rows)
}

func devNull(t *testing.T) *os.File {
	t.Helper()
	file, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return file
}
