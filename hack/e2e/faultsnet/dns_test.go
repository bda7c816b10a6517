package faultsnet

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const dnsServer = "faultsnet-dns"

// Ports of the faulty name server's pod, which its service is pointed to.
const (
	faulty     = 5300 // answers each name under "fault." as the name says
	well       = 5301 // has an address for any of them
	closedPort = 5302
)

// corefile answers the names of the faults on port; all is what is written for each of them, and
// others says how to answer other names.
func corefile(port int, all, others string) string {
	var many strings.Builder // more than a UDP answer may hold
	for i := range 120 {
		fmt.Fprintf(&many, "answer \"{{ .Name }} 60 IN A 192.0.2.%d\"\n", i+1)
	}
	rcode := func(code string) string { return "template ANY ANY {\nrcode " + code + "\n}\n" }
	answer := func(family, answer string) string { return "template IN " + family + " {\n" + answer + "}\n" }
	none, one := rcode("NOERROR"), answer("A", "answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n")
	var text strings.Builder
	for zone, plugins := range map[string]string{
		"nxdomain.fault": rcode("NXDOMAIN"),
		"servfail.fault": rcode("SERVFAIL"),
		"refused.fault":  rcode("REFUSED"),
		"none.fault":     none,
		"a.fault":        one + none,
		"aaaa.fault":     answer("AAAA", "answer \"{{ .Name }} 60 IN AAAA 2001:db8::1\"\n") + none,
		"large.fault":    answer("A", many.String()) + none,
		".":              others,
	} {
		fmt.Fprintf(&text, "%s:%d {\n%s\n%s\n}\n", zone, port, all, plugins)
	}
	return text.String()
}

// clusterCorefile is that on the port faulty, and any address for any such name on the port well. It
// asks the cluster's DNS for other names.
func clusterCorefile() string {
	const cluster = "forward . 10.96.0.10"
	return corefile(faulty, "", cluster) + fmt.Sprintf(`
fault:%[1]d {
template IN A {
answer "{{ .Name }} 60 IN A 192.0.2.1"
}
template ANY ANY {
rcode NOERROR
}
}
.:%[1]d {
%[2]s
}
`, well, cluster)
}

// nameServer starts the faulty name server for the rest of the test, and returns the address of its
// service once the node forwards to it.
func nameServer(t *testing.T) string {
	t.Helper()
	s := &suite{Suite: harness.Start(t)}
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: %[1]s, namespace: default}
data: {Corefile: %[2]q}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {app: %[1]s}}
spec:
  nodeName: %[3]s
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers:
  - name: coredns
    image: localhost/coredns:1
    imagePullPolicy: Never
    args: [-conf, /etc/coredns/Corefile]
    readinessProbe: {tcpSocket: {port: %[4]d}, periodSeconds: 1}
    volumeMounts: [{name: config, mountPath: /etc/coredns}]
  volumes: [{name: config, configMap: {name: %[1]s}}]
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec: {selector: {app: %[1]s}, ports: %[5]s}
`, dnsServer, clusterCorefile(), node, faulty, servicePorts(faulty)))
	s.AwaitReady("default", dnsServer)
	s.point(faulty)
	return s.ClusterIP(dnsServer)
}

func servicePorts(target int) string {
	return fmt.Sprintf(`[{"name":"dns","port":53,"protocol":"UDP","targetPort":%[1]d},{"name":"dns-tcp","port":53,"protocol":"TCP","targetPort":%[1]d}]`, target)
}

// point lets the service of the faulty name server lead to another port of its pod, and waits until
// kube-proxy has done so.
func (s *suite) point(target int) {
	s.T.Helper()
	_, err := s.Cluster.Kube.CoreV1().Services("default").Patch(s.Ctx, dnsServer, types.MergePatchType,
		[]byte(`{"spec":{"ports":`+servicePorts(target)+`}}`), metav1.PatchOptions{})
	s.NoError(err)
	s.Until(func() (bool, error) {
		rules, err := s.Cluster.Script(s.Ctx, "enter", node, "nft", "list", "table", "ip", "kube-proxy")
		return strings.Count(rules, fmt.Sprintf(" . %d }", target)) == 2, err // UDP and TCP
	})
}

// asks are quick settings with names to resolve.
func asks(names string) map[string]string { return quick("DNS_TEST_DOMAINS", names) }

func TestFaultDNS(t *testing.T) {
	server := nameServer(t)
	// What kubelet writes for the agent's namespace.
	search := []string{"kube-system.svc.cluster.local", "svc.cluster.local", "cluster.local"}
	resolver := &corev1.PodDNSConfig{Nameservers: []string{server}, Searches: search}
	answers := [][2]string{{"nxdomain", "NXDOMAIN"}, {"servfail", "SERVFAIL"}, {"refused", "REFUSED"}, {"none", "no A or AAAA record"}}

	fault(t, "DNS: NXDOMAIN, SERVFAIL, REFUSED and no address, each for a name", "not verified: dns, each with its server and answer", func(s *suite) {
		s.rounds(func() {
			s.point(faulty)
			agent := s.agent(asks("kubernetes.default.svc.cluster.local,nxdomain.fault,servfail.fault,refused.fault,none.fault"), resolver)
			s.failedRound(agent, func(failed map[string]string) bool {
				return len(failed) == 1 && !strings.Contains(failed["dns"], "kubernetes") &&
					!slices.ContainsFunc(answers, func(answer [2]string) bool {
						return !strings.Contains(failed["dns"], fmt.Sprintf("%s.fault: %s from name server %s:53", answer[0], answer[1], server))
					})
			})
			s.recovers(func() { s.point(well) })
		})
	})
	fault(t, "DNS: A only, AAAA only, truncated with TCP open, with a final dot and without", "verified", func(s *suite) {
		s.point(faulty)
		s.rounds(func() {
			_, details := s.passes(asks("a.fault,aaaa.fault,large.fault,large.fault.,kubernetes.default.svc.cluster.local."), resolver)
			for _, part := range []string{"a.fault is 192.0.2.1", "aaaa.fault is 2001:db8::1", "large.fault is 192.0.2.", "large.fault. is 192.0.2.", "cluster.local. is 10.96.0.1"} {
				s.Contains(details, part)
			}
		})
	})
	type failure struct {
		fault, outcome string
		port           int    // of the name server's pod
		rule           string // for what the agent sends, "" for none: then the port well repairs it
		names, text    string
	}
	failures := []failure{
		{"DNS: truncated, TCP blocked", "not verified: dns", faulty, "tcp dport 53 drop", "large.fault,a.fault",
			"large.fault: UDP answer truncated, TCP query failed: timeout from name server " + server + ":53"},
		{"DNS: name server does not answer", "not verified: dns", faulty, "drop", "a.fault", "a.fault: timeout from name server " + server + ":53"},
		{"DNS: name server's port closed", "not verified: dns", closedPort, "", "a.fault", "a.fault: connection refused from name server " + server + ":53"},
	}
	if harness.Long() {
		for _, answer := range answers {
			failures = append(failures, failure{"DNS: " + answer[1], "not verified: dns", faulty, "", answer[0] + ".fault", answer[1]})
		}
	}
	for _, c := range failures {
		fault(t, c.fault, c.outcome, func(s *suite) {
			out, _ := s.directions()
			s.rounds(func() {
				s.point(c.port)
				repair := func() { s.point(well) }
				if c.rule != "" {
					s.Break(out + "ip daddr " + server + " " + c.rule)
					repair = s.Repair
				}
				s.onlyFails(s.agent(asks(c.names), resolver), map[string]string{"dns": c.text})
				s.recovers(repair)
			})
		})
	}
	fault(t, "DNS: first of two name servers dead", "verified, with a warning that names it", func(s *suite) {
		const dead = "192.0.2.53" // addresses outside lead nowhere
		s.point(well)
		s.rounds(func() {
			warnings, _ := s.passes(asks("a.fault,kubernetes.default.svc.cluster.local"),
				&corev1.PodDNSConfig{Nameservers: []string{dead, server}, Searches: search})
			s.Contains(warnings, "dns: a.fault: timeout from name server "+dead+":53")
		})
	})
	wrong := &corev1.PodDNSConfig{Nameservers: []string{server}, Searches: []string{"kube-system.svc.wrong.domain", "svc.wrong.domain"}}
	fault(t, "DNS: wrong search list, whole names", "verified", func(s *suite) {
		s.point(well)
		s.rounds(func() { s.passes(asks("kubernetes.default.svc.cluster.local.,a.fault"), wrong) })
	})
	fault(t, "DNS: wrong search list, a name that needs it", "not verified: dns", func(s *suite) {
		s.point(well)
		s.rounds(func() {
			s.onlyFails(s.agent(asks("kubernetes.default"), wrong), map[string]string{
				"dns": "kubernetes.default.kube-system.svc.wrong.domain: NXDOMAIN from name server " + server + ":53"})
			s.row.Round()
		})
	})
}
