package checklist

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
)

func parse(t *testing.T, args ...string) config.Config {
	env := map[string]string{"NODE_NAME": "node1", "KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
	lookup := func(key string) (string, bool) { value, ok := env[key]; return value, ok }
	cfg, err := config.Parse(args, lookup, io.Discard)
	require.NoError(t, err)
	return cfg
}

// Another process in a pod runs the agent's round, and writes nothing.
func TestForAnotherProcess(t *testing.T) {
	t.Parallel()
	var requests, connections []string
	var endpoints discoveryv1.EndpointSlice
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests = append(requests, r.Method+" "+r.URL.Path)
		if r.URL.Path != "/api/v1/nodes/node1" {
			apitest.Answer(w, http.StatusOK, discoveryv1.EndpointSliceList{Items: []discoveryv1.EndpointSlice{endpoints}})
			return
		}
		connections = append(connections, r.RemoteAddr)
		apitest.Answer(w, http.StatusOK, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "uid-1"}})
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // the network check hangs up
	server.Start()
	t.Cleanup(server.Close)
	address := server.Listener.Addr().(*net.TCPAddr)
	name, port, protocol := "metrics", int32(address.Port), corev1.ProtocolTCP
	endpoints = discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4,
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.IP.String()}}}}
	e := kube.Environment{Service: address.String(), REST: &rest.Config{Host: server.URL}}
	e.Client, e.Err = kube.NewClient(e.REST)
	require.NoError(t, e.Err)

	list, runner := ForAnotherProcess(parse(t, "--max-retries=0"), e)
	assert.Equal(t, address.String(), list[0].(checks.DNS).Kubernetes, "the answer is compared with it")
	assert.Same(t, list[0].(checks.DNS).ClusterIPs, list[2].(checks.Network).Targets[1].Addresses, "what dns finds, network connects to")
	for range 2 {
		results, err := runner.Round(t.Context(), list[1:]) // without dns, which asks the real servers
		require.NoError(t, err)
		require.Len(t, results, 3)
		for i, result := range results {
			assert.Equal(t, checks.Names()[i+1], result.Check)
			require.NoError(t, result.Err)
			assert.Empty(t, result.Report.Skipped)
		}
	}
	const getNode, getSlices = "GET /api/v1/nodes/node1", "GET /apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"
	assert.Equal(t, []string{getNode, getSlices, getNode, getSlices}, requests)
	require.Len(t, connections, 2)
	assert.NotEqual(t, connections[0], connections[1], "each round proves the path from TCP on")
}

// The api check compares the clocks: more than 10 s is a warning, more than MAX_CLOCK_SKEW a failure. It sends no request for it.
func TestClocks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		ahead      time.Duration // this node's clock, a second more or less
		args       []string
		warn, fail bool
	}{
		"equal":            {args: []string{"--max-clock-skew=1s"}},
		"8 s":              {ahead: 8 * time.Second},
		"a minute":         {ahead: time.Minute, warn: true},
		"a minute behind":  {ahead: -time.Minute, warn: true},
		"more is allowed":  {ahead: time.Minute, args: []string{"--max-clock-skew=2m"}, warn: true},
		"less is allowed":  {ahead: time.Minute, args: []string{"--max-clock-skew=50s"}, fail: true},
		"behind, and less": {ahead: -8 * time.Second, args: []string{"--max-clock-skew=5s"}, fail: true},
	} {
		t.Run(name, func(t *testing.T) {
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests++
				w.Header().Set("Date", time.Now().Add(-test.ahead).UTC().Format(http.TimeFormat))
				apitest.Answer(w, http.StatusOK, metav1.APIVersions{})
			}))
			t.Cleanup(server.Close)
			e := kube.Environment{REST: &rest.Config{Host: server.URL}}
			e.Client, e.Err = kube.NewClient(e.REST)
			require.NoError(t, e.Err)
			api := New(parse(t, test.args...), e)(checks.API{Get: func(ctx context.Context) (checks.Report, error) {
				return checks.Report{Detail: "authenticated"}, e.Client.Versions(ctx)
			}}, Options{})[1]
			report, err := api.Try(t.Context())
			assert.Equal(t, 1, requests)
			const differs = `^this node's clock differs from the API server's \(20.*T.*Z, not 20.*T.*Z\)$`
			if test.fail {
				require.Error(t, err)
				assert.Regexp(t, differs, err.Error())
				assert.Contains(t, checks.Remedy(err), "synchronize")
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "authenticated", report.Detail)
			if !test.warn {
				assert.Empty(t, report.Warnings)
				return
			}
			require.Len(t, report.Warnings, 1)
			assert.Regexp(t, differs, report.Warnings[0])
		})
	}
}

// A pod without a token is broken; a desk without a kubeconfig is not.
func TestChecksWithoutAPI(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		err      error
		asked    bool
		api, dns string // why they are skipped
	}{
		"no token": {err: errors.New("no token"), asked: true, dns: "the endpoints of kube-system/kube-dns cannot be listed without the API"},
		"a desk":   {err: kube.ErrNoKubeconfig, api: "no kubeconfig", dns: "the endpoints of kube-system/kube-dns cannot be listed without the API"},
	} {
		t.Run(name, func(t *testing.T) {
			asked := false
			list := New(parse(t), kube.Environment{Err: test.err, Service: "10.96.0.1:443"})(checks.API{Get: func(context.Context) (checks.Report, error) {
				asked = true
				return checks.Report{}, test.err
			}}, Options{})
			require.Len(t, list, 4)
			report, err := list[1].Try(t.Context())
			assert.Equal(t, test.asked, asked)
			assert.Equal(t, test.api, report.Skipped)
			if test.asked {
				require.EqualError(t, err, test.err.Error())
			} else {
				require.NoError(t, err)
			}
			report, err = list[3].Try(t.Context())
			require.NoError(t, err)
			assert.Equal(t, checks.Report{Skipped: test.dns}, report)
		})
	}
}

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
	names := Names(config.Config{ChecksPeers: true})
	assert.True(t, slices.Equal(append(checks.Names(), "peers"), names))
}
