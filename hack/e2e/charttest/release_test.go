package charttest

import (
	"slices"
	"strings"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A release is installed as 0.2 was, upgraded with other values and everything optional,
// tried, rolled back and uninstalled. Each step is Helm's own, and nothing is left at the end.
func TestLifeOfARelease(t *testing.T) {
	s := start(t)
	before := s.inventory()
	s.undoRelease()

	s.helm(append([]string{"install", harness.Name, s.formerChart("0.2"), "--wait", harness.Wait}, harness.Set()...)...)
	s.verifies()
	first := s.inventory()

	s.helm(append([]string{"upgrade", harness.Name, "chart", "--wait", harness.Wait},
		harness.Set(append(s.everything(), "config.logLevel=debug", "config.maxRetries=2", "config.metricsLinger=1s")...)...)...)
	second := s.inventory()
	kinds := []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "PodMonitor", "ServiceMonitor", "PrometheusRule", "NetworkPolicy", "Service"}
	if s.addsStartupTaint() {
		kinds = append(kinds, "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
	}
	for _, kind := range kinds {
		s.True(slices.ContainsFunc(second, func(object string) bool { return strings.HasPrefix(object, kind+" ") }), "no %s among %v", kind, second)
	}
	s.verifies()

	out := s.helm("test", harness.Name, harness.Wait)
	s.Contains(out, "Phase:          Succeeded")

	// The break-glass commands of the notes.
	s.Gate(node)
	_, commands, _ := strings.Cut(s.helm("get", "notes", harness.Name), "To release every node now")
	_, commands, _ = strings.Cut(commands, "\n")
	commands, _, _ = strings.Cut(commands, "\n\n")
	s.Bash(commands)
	s.False(harness.HasTaint(s.Node(node), harness.Taint))

	s.helm("rollback", harness.Name, "1", "--wait", harness.Wait)
	s.Equal(first, s.inventory())
	s.verifies()

	s.helm("uninstall", harness.Name, "--wait", harness.Wait)
	s.NoError(s.Cluster.NoAgents(s.Ctx))
	s.Equal(before, s.inventory())
}

// A failing node does not keep the DaemonSet unready: Argo CD, Flux and kubectl rollout status would wait for it. With the readiness
// probe, they do.
func TestRolloutEndsWhileANodeFails(t *testing.T) {
	s := start(t)
	values := []string{stuck, "config.checkTimeout=1s", "config.maxRetries=0"} // a round fails within seconds
	rollout := func(timeout string) error {
		_, err := s.Cluster.Kubectl(s.Ctx, "", "-n", harness.Namespace, "rollout", "status", "daemonset/"+harness.Name, timeout)
		return err
	}
	s.Deploy(values...)
	s.Gate(node)
	agent := s.pod(harness.Default())
	s.Until(func() (bool, error) { return s.failedRounds(agent) > 0, nil })
	s.NoError(rollout(harness.Wait))
	s.Unverified(node)

	s.Deploy(append(values, "readinessProbe.enabled=true")...)
	s.Until(func() (bool, error) { return s.pod(harness.Default()).UID != agent.UID, nil })
	s.ErrorContains(rollout("--timeout=5s"), "timed out")
	s.Unverified(node)
}

// verifies gates the node and waits until the agent has verified it.
func (s *suite) verifies() {
	s.T.Helper()
	s.Gate(node)
	s.AwaitVerified(node)
	s.NoError(s.Cluster.NoAgents(s.Ctx))
}

// inventory lists every object in the cluster of the kinds that a release could leave behind, but
// for Helm's own records and what changes by itself.
func (s *suite) inventory() []string {
	s.T.Helper()
	var kinds []string
	for _, name := range strings.Fields(s.Kubectl("", "api-resources", "--verbs=list", "-o", "name")) {
		if !slices.Contains([]string{"events", "events.events.k8s.io", "leases.coordination.k8s.io", "controllerrevisions.apps"}, name) {
			kinds = append(kinds, name)
		}
	}
	out := s.Kubectl("", "get", strings.Join(kinds, ","), "-A", "--ignore-not-found",
		"-o", `go-template={{range .items}}{{.kind}} {{.metadata.namespace}}/{{.metadata.name}}{{"\n"}}{{end}}`)
	var objects []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if !strings.Contains(line, "sh.helm.release") && !strings.HasPrefix(line, "Pod ") && !strings.HasPrefix(line, "PodMetrics ") {
			objects = append(objects, line)
		}
	}
	slices.Sort(objects)
	return objects
}
