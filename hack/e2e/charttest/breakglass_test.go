package charttest

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The documented break-glass commands release a node while its agent's checks fail, and the agent does not taint it again.
func TestBreakGlassWhileAnAgentFails(t *testing.T) {
	s := start(t)
	values := []string{stuck, "config.checkTimeout=1s", "config.maxRetries=0"} // a round fails within seconds
	adds := s.addsStartupTaint()
	if adds {
		values = append(values, "startupTaint.add=true")
	}
	s.Deploy(values...)
	s.awaitTaint(startup, adds)
	s.Gate(node)
	agent := s.pod(harness.Default())

	s.Bash(s.Block("docs/break-glass.md", "break-glass", "sh"))
	if adds {
		s.Bash(s.Block("docs/break-glass.md", "stop-startup-taint", "sh"))
	}

	s.awaitTaint(startup, false)

	// The agent goes on with its rounds, and the node stays released.
	before := s.failedRounds(agent)
	s.Until(func() (bool, error) { return s.failedRounds(agent) > before, nil })
	s.False(harness.HasTaint(s.Node(node), harness.Taint))

	s.Deploy(values...)
	s.awaitTaint(startup, adds)
	// A second run, with nothing left to remove, changes nothing.
	s.Bash(s.Block("docs/break-glass.md", "break-glass", "sh"))
}

// The documented CoreDNS patch works with and without existing tolerations, and keeps those.
func TestCoreDNSPatchAddsTolerations(t *testing.T) {
	s := start(t)
	block := s.Block("docs/operations.md", "coredns-tolerations", "sh")
	s.Contains(block, "-n kube-system ")
	block = strings.ReplaceAll(block, "-n kube-system ", "-n default ")
	added := []corev1.Toleration{{Key: "node-ready/unverified", Operator: corev1.TolerationOpExists}, {Key: "node-ready/failed", Operator: corev1.TolerationOpExists}}
	existing := corev1.Toleration{Key: "CriticalAddonsOnly", Operator: corev1.TolerationOpExists}
	for name, try := range map[string]struct {
		tolerations string
		wanted      []corev1.Toleration
	}{
		"none":     {"", added},
		"empty":    {"tolerations: []", added},
		"existing": {"tolerations: [{key: CriticalAddonsOnly, operator: Exists}]", append([]corev1.Toleration{existing}, added...)},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.part(t)
			s.apply(harness.CoreDNS + "      " + try.tolerations)
			s.Bash(block)
			patched, err := s.Cluster.Kube.AppsV1().Deployments("default").Get(s.Ctx, "coredns", metav1.GetOptions{})
			s.NoError(err)
			s.Equal(try.wanted, patched.Spec.Template.Spec.Tolerations)
		})
	}
}

// failedRounds counts the rounds that an agent has logged as failed.
func (s *suite) failedRounds(agent corev1.Pod) (rounds int) {
	s.T.Helper()
	lines, err := s.Cluster.Logs(s.Ctx, agent)
	s.NoError(err)
	for _, line := range lines {
		if line.Msg == harness.MsgNotVerified {
			rounds++
		}
	}
	return rounds
}
