package doctor

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// nameServer answers over TCP with the address 192.0.2.1 or a response code, and returns where it listens. It denies other names.
func nameServer(t *testing.T, names map[string]dnsmessage.RCode) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	answer := func(conn net.Conn) {
		defer func() { _ = conn.Close() }()
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		_, _ = io.ReadFull(conn, query)
		var message dnsmessage.Message
		_ = message.Unpack(query)
		question := message.Questions[0]
		code, known := names[question.Name.String()]
		if !known {
			code = dnsmessage.RCodeNameError
		}
		message.Response, message.RecursionAvailable, message.RCode, message.Additionals = true, true, code, nil
		if code == dnsmessage.RCodeSuccess && question.Type == dnsmessage.TypeA {
			message.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 1},
				Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 1}}}}
		}
		reply, _ := message.Pack()
		_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...))
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go answer(conn)
		}
	}()
	return listener.Addr().String()
}

// withDNSPods adds two DNS pods, of which the second is ready, behind a Service.
func withDNSPods(c *Cluster, target intstr.IntOrString) {
	ready := readyPodOn("old", tolerate(startup, failed)...)
	ready.Name = "ready"
	ready.Spec.Containers = []corev1.Container{{Name: "sidecar"}, {Name: "coredns", Ports: []corev1.ContainerPort{
		{Name: "dns-tcp", ContainerPort: 1053, Protocol: corev1.ProtocolUDP}, {Name: "dns-tcp", ContainerPort: 5353, Protocol: corev1.ProtocolTCP}}}}
	c.DNS.Value = Backend{Pods: []corev1.Pod{podOn("new", tolerate(startup, failed)...), ready}, Ports: []corev1.ServicePort{
		{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 9153, Protocol: corev1.ProtocolTCP}, {Port: 53, Protocol: corev1.ProtocolTCP, TargetPort: target}}}
}

// --ask-dns judges the names by what a ready DNS pod answers. Only a denial is a warning, and nothing is a trap.
func TestAskDNS(t *testing.T) {
	const (
		unclear = ".:53 {\n  kubernetes cluster.local\n  hosts {\n    fallthrough\n  }\n}\n"
		nothing = ".:53 {\n  kubernetes cluster.local\n}\n"
		foreign = "SKIP cluster-domain not checked: a DNS pod resolves kubernetes.default.svc.other.example, but the cluster's domain is cluster.local"
	)
	cluster := map[string]dnsmessage.RCode{"kubernetes.default.svc.cluster.local.": 0, "api.kube-system.svc.cluster.local.": 0}
	with := func(name string, code dnsmessage.RCode) map[string]dnsmessage.RCode {
		return map[string]dnsmessage.RCode{"kubernetes.default.svc.cluster.local.": 0, "api.kube-system.svc.cluster.local.": 0, name: code}
	}
	for name, test := range map[string]struct {
		corefile string
		domains  []string
		answers  map[string]dnsmessage.RCode
		want     string // the lines of the two traps
	}{
		"resolves": {unclear, []string{"google.com"}, with("google.com.", 0), "PASS external-names a DNS pod resolves google.com; PASS cluster-domain"},
		"resolves what no Corefile shows": {"", []string{"google.com", "kubernetes.default.svc"}, with("google.com.", 0),
			"PASS external-names a DNS pod resolves google.com; PASS cluster-domain"},
		"resolves, whatever the Corefile shows": {nothing, []string{"google.com"}, with("google.com.", 0), "PASS external-names; PASS cluster-domain"},
		"denied, and the Corefile forwards": {clean(t).Corefile.Value, []string{"google.com"}, cluster,
			"WARN external-names google.com: NXDOMAIN; PASS cluster-domain"},
		"denied, as the Corefile shows": {nothing, []string{"google.com"}, cluster, "TRAP external-names; PASS cluster-domain"},
		"refused": {unclear, []string{"google.com"}, with("google.com.", dnsmessage.RCodeRefused),
			"SKIP external-names not checked: whether google.com resolves: google.com: REFUSED; PASS cluster-domain"},
		"no address":                {unclear, []string{"google.com"}, with("google.com.", dnsmessage.RCodeServerFailure), "SKIP external-names; PASS cluster-domain"},
		"short names are completed": {unclear, []string{"api", "kubernetes.default", "kubernetes.default.svc"}, cluster, "PASS external-names; PASS cluster-domain"},
		"a Service that is gone": {unclear, []string{"gone.shop.svc.cluster.local"}, cluster,
			"PASS external-names; WARN cluster-domain gone.shop.svc.cluster.local: NXDOMAIN"},
		"this API under a foreign domain": {nothing + "shop:53 {\n  forward . 192.0.2.1\n}\n", []string{"kubernetes.default.svc.other.example"},
			with("kubernetes.default.svc.other.example.", 0), foreign},
		"this API under a foreign domain, forwarded": {clean(t).Corefile.Value, []string{"kubernetes.default.svc.other.example"},
			with("kubernetes.default.svc.other.example.", 0), foreign},
		"this API under a stub zone": {nothing + "example:53 {\n  forward . 192.0.2.1\n}\n", []string{"kubernetes.default.svc.other.example"},
			with("kubernetes.default.svc.other.example.", 0), foreign},
		"an unknown domain": {"", []string{"kubernetes.default.svc", "api", "google.com"}, map[string]dnsmessage.RCode{"google.com.": 0},
			"SKIP cluster-domain whether api resolves: the cluster's domain is unknown; PASS external-names"},
		"short names in an unknown domain":  {"", []string{"api", "kubernetes.default.svc"}, nil, "SKIP cluster-domain whether kubernetes.default.svc resolves: the cluster's domain is unknown"},
		"an unknown domain does not matter": {"", []string{"kubernetes.default.svc"}, cluster, "PASS cluster-domain a DNS pod resolves the Service names (the cluster's domain is unknown)"},
		"a Service of another cluster":      {unclear, []string{"api.shop.svc.other.example"}, with("api.shop.svc.other.example.", 0), "PASS external-names; PASS cluster-domain"},
		"addresses and what only warns":     {unclear, []string{"192.0.2.53", "2001:db8::53", "warn+google.com"}, cluster, "PASS external-names; PASS cluster-domain"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			withDNSPods(c, intstr.FromString("dns-tcp"))
			c.Corefile.Value, c.Release.Agent.DNSTestDomains = test.corefile, test.domains
			c.AskDNS(t.Context(), func(_ context.Context, pod *corev1.Pod, port int32) (string, error) {
				assert.Equal(t, "ready", pod.Name)
				assert.EqualValues(t, 5353, port)
				return nameServer(t, test.answers), nil
			})
			var out strings.Builder
			Report(&out, *c, nil)
			for want := range strings.SplitSeq(test.want, "; ") {
				words := strings.SplitN(want, " ", 3)
				found := false
				for line := range strings.Lines(out.String()) {
					fields := strings.Fields(line)
					found = found || fields[0] == words[0] && fields[1] == words[1] && strings.Contains(line, strings.Join(words[2:], " "))
				}
				assert.True(t, found, "%s\n%s", want, out.String())
			}
			for _, name := range []string{"192.0.2.53", "2001:db8::53", "warn+google.com"} {
				assert.NotContains(t, c.Answers, name)
			}
		})
	}
}

// What prevents the question is no answer.
func TestAskDNSWithoutAnAnswer(t *testing.T) {
	forbidden := errors.New("forbidden to you")
	for name, test := range map[string]struct {
		edit func(*Cluster)
		text string
	}{
		"no right":      {func(*Cluster) {}, "forbidden to you"},
		"no ready pod":  {func(c *Cluster) { c.DNS.Value.Pods = c.DNS.Value.Pods[:1] }, "config.dnsService has no ready pod, or no TCP port 53"},
		"only UDP":      {func(c *Cluster) { c.DNS.Value.Ports = c.DNS.Value.Ports[:1] }, "config.dnsService has no ready pod, or no TCP port 53"},
		"unread pods":   {func(c *Cluster) { c.DNS = Part[Backend]{Err: errors.New("no pods for you")} }, "no pods for you"},
		"no dnsService": {func(c *Cluster) { c.DNS = Part[Backend]{} }, "config.dnsService has no ready pod"},
	} {
		t.Run(name, func(t *testing.T) {
			c := clean(t)
			withDNSPods(c, intstr.FromInt32(53))
			test.edit(c)
			c.AskDNS(t.Context(), func(_ context.Context, _ *corev1.Pod, port int32) (string, error) {
				assert.EqualValues(t, 53, port)
				return "", forbidden
			})
			found := set(t, c, "external-names")
			assert.Empty(t, append(found.Findings, found.Warnings...))
			assert.ErrorContains(t, found.Unchecked, test.text)
		})
	}
}
