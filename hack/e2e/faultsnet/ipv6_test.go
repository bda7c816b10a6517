package faultsnet

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The test cluster has IPv4 alone. What is asked of IPv6 is asked of the same binary in a
// network of its own with a real name server in it; its only addresses are IPv6, or IPv6 is switched off there. Without nodad
// the kernel lets nobody bind to an address before a worker of its own has looked at it, which comes late on a busy machine.
const island = `
set -e
ip link set lo up
if [ "$AT" = fd00::53 ]; then
ip address add fd00::53/128 dev lo nodad
ip address add fd00::54/128 dev lo nodad
else
sysctl -qw net.ipv6.conf.all.disable_ipv6=1
fi
mount --bind "$DIR/resolv.conf" /etc/resolv.conf
"$TOOLS/coredns" -conf "$DIR/Corefile" >"$DIR/coredns.log" 2>&1 &
trap 'kill $! || true; wait' EXIT
until TIMEOUT=1s "$TOOLS/workload" dial "$DIAL" >/dev/null; do kill -0 $! || { cat "$DIR/coredns.log" >&2; exit 3; }; done
nft -f - <<<"table inet fault {
chain in {
type filter hook input priority filter
$RULES
}
}"
env -i "$BINARY" --dry-run --dns-test-domains="$NAMES" --network-targets="$TARGETS"
`

// bothFamilies answers any name with an address of each.
const bothFamilies = `
template IN A {
answer "{{ .Name }} 60 IN A 127.0.0.1"
}
template IN AAAA {
answer "{{ .Name }} 60 IN AAAA 2001:db8::1"
}
`

// onIsland runs the agent there, beside a name server at an address of that network, and returns its report and whether all passed.
func onIsland(t *testing.T, at, servers, names, target, rules string) (report string, passed bool) {
	t.Helper()
	s := harness.Start(t)
	dir := t.TempDir()
	for name, text := range map[string]string{"resolv.conf": servers, "Corefile": corefile(53, "bind "+at, bothFamilies)} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	report, err := s.Cluster.Run(s.Ctx, "", "env", "AT="+at, "DIAL="+net.JoinHostPort(at, "53"), "DIR="+dir, "TOOLS="+s.Cluster.Tool(""), "BINARY="+filepath.Join(s.Cluster.Root, "bin", harness.Name),
		"NAMES="+names, "TARGETS="+target, "RULES="+rules,
		"unshare", "--net", "--mount", "bash", "-c", island)
	t.Logf("%s", report)
	require.Regexp(t, `(?m)^(PASSED|FAILED): `, report, "the agent has not run: %v", err)
	return report, err == nil
}

func TestFaultIPv6(t *testing.T) {
	const one = "nameserver fd00::53\n"
	for _, c := range []struct {
		fault, outcome                string
		servers, names, target, rules string
		passes                        bool
		says                          []string
	}{
		{"AAAA only, truncated, name server by address; one target", "passes", one, "aaaa.fault,large.fault,fd00::53", "[fd00::53]:53", "", true,
			[]string{"aaaa.fault is 2001:db8::1", "large.fault is 192.0.2.", "by fd00::53: aaaa.fault. is 2001:db8::1", "[fd00::53]:53 accepts"}},
		{"NXDOMAIN, SERVFAIL, REFUSED, no address", "fails: dns, each named", one, "nxdomain.fault,servfail.fault,refused.fault,none.fault", "[fd00::53]:53", "", false,
			[]string{"nxdomain.fault: NXDOMAIN from name server [fd00::53]:53", "servfail.fault: SERVFAIL from", "refused.fault: REFUSED from", "none.fault: no A or AAAA record from"}},
		{"truncated, TCP blocked", "fails: dns", one, "large.fault", "[fd00::53]:5300", "tcp dport 53 drop", false,
			[]string{"large.fault: UDP answer truncated, TCP query failed: timeout from name server [fd00::53]:53"}},
		{"name server does not answer", "fails: dns", one, "a.fault", "[fd00::53]:5300", "udp dport 53 drop", false,
			[]string{"a.fault: timeout from name server [fd00::53]:53"}},
		{"name server's port closed", "fails: dns", "nameserver fd00::54\n", "a.fault", "[fd00::53]:53", "", false,
			[]string{"a.fault: connection refused from name server [fd00::54]:53"}},
		{"first of two name servers dead", "passes, with a warning that names it", "nameserver fd00::54\n" + one, "a.fault", "[fd00::53]:53", "ip6 daddr fd00::54 drop", true,
			[]string{"a.fault is 192.0.2.1", "a.fault: timeout from name server [fd00::54]:53"}},
		// Not at random, because a dry run makes one attempt.
		{"every third DNS question lost", "passes", one, "a.fault", "[fd00::53]:53", "udp dport 53 numgen inc mod 3 == 0 drop", true, []string{"a.fault is 192.0.2.1"}},
		{"target does not answer", "fails: network", one, "a.fault", "[fd00::54]:80", "ip6 daddr fd00::54 drop", false, []string{"TCP [fd00::54]:80: timeout"}},
		{"target refuses", "fails: network", one, "a.fault", "[fd00::54]:80", "", false, []string{"TCP [fd00::54]:80: connection refused"}},
	} {
		t.Run(c.fault, func(t *testing.T) {
			row := harness.BeginRow(t, "IPv6: "+c.fault, c.outcome)
			report, passed := onIsland(t, "fd00::53", c.servers, c.names, c.target, c.rules)
			require.Equal(t, c.passes, passed)
			for _, part := range c.says {
				require.Contains(t, report, part)
			}
			row.Round()
		})
	}
}

// An address of a family that the node has switched off is no fault of the target's.
func TestFaultIPv6Off(t *testing.T) {
	row := harness.BeginRow(t, "IPv6: switched off (net.ipv6.conf.all.disable_ipv6), a target with an address of each family", "passes, no warning")
	report, passed := onIsland(t, "127.0.0.1", "nameserver 127.0.0.1\n", "a.fault", "both.example:53", "")
	require.True(t, passed)
	require.Contains(t, report, "both.example:53 accepts at 127.0.0.1:53")
	require.NotContains(t, report, "warning")
	row.Round()
}
