package checks

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseResolvConf(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, conf string
		want       Resolver
		domain     string
	}{
		{
			"as kubelet writes it",
			"search kube-system.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n",
			Resolver{Servers: []string{"10.96.0.10:53"}, Search: []string{"kube-system.svc.cluster.local", "svc.cluster.local", "cluster.local"}},
			"cluster.local",
		},
		{
			"in the namespace svc", "search svc.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\n",
			Resolver{Servers: []string{"10.96.0.10:53"}, Search: []string{"svc.svc.cluster.local", "svc.cluster.local", "cluster.local"}},
			"cluster.local",
		},
		{
			"IPv6, two servers, another domain with final dots",
			"nameserver fd00::a\nnameserver fe80::1%eth0\nsearch default.svc.corp.example. svc.corp.example.\n",
			Resolver{Servers: []string{"[fd00::a]:53", "[fe80::1%eth0]:53"}, Search: []string{"default.svc.corp.example", "svc.corp.example"}},
			"corp.example",
		},
		{
			"a desk: comments, tabs, the last list counts",
			"# nameserver 192.0.2.9\n; search old.example\nnameserver\t192.0.2.1 # office\ndomain home.example\n\nsearch office.example .\nnameserver\n",
			Resolver{Servers: []string{"192.0.2.1:53"}, Search: []string{"office.example"}},
			"",
		},
		{"domain after search", "search a.example b.example\ndomain c.example\nnameserver 192.0.2.1", Resolver{Servers: []string{"192.0.2.1:53"}, Search: []string{"c.example"}}, ""},
		{
			"options", "nameserver 192.0.2.1\noptions ndots:5 use-vc\noptions rotate\n",
			Resolver{Servers: []string{"192.0.2.1:53"}, Network: "tcp"}, "",
		},
		{"empty", "", Resolver{Servers: []string{"127.0.0.1:53"}}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := parseResolvConf(test.conf)
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.domain, got.ClusterDomain())
		})
	}
}

func TestSystemResolverReadsTheSystemsFile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		_, got := SystemResolver()
		require.EqualError(t, got, err.Error())
		return
	}
	got, err := SystemResolver()
	require.NoError(t, err)
	assert.Equal(t, parseResolvConf(string(text)), got)
}
