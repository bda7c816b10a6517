package checklist

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

// A recheck connects to fewer DNS pods than a verification, and one node proves nothing unless that node must answer.
func TestServiceCheckOfARecheck(t *testing.T) {
	e := kube.Environment{Service: "10.96.0.1:443", REST: &rest.Config{Host: "http://10.96.0.1"}}
	e.Client, e.Err = kube.NewClient(e.REST)
	list := New(parse(t), e)
	type settings struct {
		MaxDials, FewestNodes int
		SmallPackets          bool
	}
	for _, test := range []struct {
		options Options
		want    settings
	}{
		{Options{}, settings{MaxDials: 8}},
		{Options{Recheck: true}, settings{MaxDials: 2, FewestNodes: 2, SmallPackets: true}},
		{Options{Recheck: true, Thorough: true}, settings{MaxDials: 2, FewestNodes: 2}},
		{Options{Recheck: true, DNSMustAnswer: true}, settings{MaxDials: 2, SmallPackets: true}},
		{Options{Recheck: true, NewConnection: true, PeersMustAnswer: true}, settings{MaxDials: 2, FewestNodes: 2, SmallPackets: true}},
	} {
		all := list(checks.API{}, test.options)
		service, _ := all[slices.Index(checks.Names(), checks.ServiceName)].(checks.Service)
		assert.Equal(t, test.want, settings{service.MaxDials, service.FewestNodes, service.SmallPackets}, "%+v", test.options)
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, checks.Names(), Names(config.Config{}))
	names := Names(config.Config{EnableConnectivityMatrix: true})
	assert.True(t, slices.Equal(append(checks.Names(), "peers"), names))
}
