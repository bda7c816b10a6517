// Package faultsnet breaks the network, the DNS and the API that the agent is there to prove, on a real
// kubelet, and shows that a broken node is never released and a working one always is.
package faultsnet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	node = harness.RealNode
	// foreign is what others have on a node: a taint before the startup taint and one behind it, a label and an annotation.
	foreign = "example.com/foreign"
	// agentLabel is on the agents that the tests start. It is not the DaemonSet's, which would adopt them.
	agentLabel = "faultsnet"
)

// quick are settings with which a failure is distinguished from a success within seconds, with further ones as name, value.
func quick(further ...string) map[string]string {
	settings := map[string]string{"CHECK_TIMEOUT": "1s", "MAX_RETRIES": "0"}
	for i := 0; i < len(further); i += 2 {
		settings[further[i]] = further[i+1]
	}
	return settings
}

// suite is one test's access to the cluster and its row of the table.
type suite struct {
	*harness.Suite
	row *harness.Row
}

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

// prepare deploys the chart onto no node: its rights and its settings are there, and its pod's
// template, from which the tests start agents themselves.
func prepare(ctx context.Context, cluster *harness.Cluster) (func(context.Context) error, error) {
	if err := cluster.Deploy(ctx, "nodeSelector.faultsnet=none"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return errors.Join(cluster.Undeploy(ctx), cluster.Reset(ctx, node), cluster.Patch(ctx, node, fmt.Sprintf(
			`{"metadata":{"labels":{%q:null},"annotations":{%q:null}}}`, foreign, foreign)))
	}, cluster.Reset(ctx, node)
}

// fault runs a test of one fault, with a row of the table for it and no other fault in the cluster.
func fault(t *testing.T, fault, outcome string, test func(s *suite)) {
	t.Helper()
	t.Run(fault, func(t *testing.T) {
		row := harness.BeginRow(t, fault, outcome)
		s := &suite{harness.Start(t), row}
		s.Repair()
		s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, node) })
		test(s)
	})
}

// gate puts the startup taint on the node, and what others have on it.
func (s *suite) gate() {
	s.T.Helper()
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:"kept"},"annotations":{%q:null,%q:"kept"}},"spec":{"taints":[
		{"key":"%s-before","effect":"PreferNoSchedule"},{"key":%q,"value":"true","effect":"NoSchedule"},{"key":"%s-behind","effect":"PreferNoSchedule"}]}}`,
		harness.Label, foreign, harness.Annotation, foreign, foreign, harness.Taint, foreign))
}

// agent gates the node and starts an agent on it: the pod of the chart's DaemonSet, given to kubelet
// without it, so that a test can change its settings and, with dns, its resolv.conf.
func (s *suite) agent(env map[string]string, dns *corev1.PodDNSConfig) corev1.Pod {
	s.T.Helper()
	s.NoError(s.stopAgents(s.Ctx))
	s.gate()
	set, err := s.Cluster.Kube.AppsV1().DaemonSets(harness.Namespace).Get(s.Ctx, harness.Name, metav1.GetOptions{})
	s.NoError(err)
	spec := set.Spec.Template.Spec
	spec.NodeName, spec.NodeSelector, spec.Affinity = node, nil, nil
	if dns != nil {
		spec.DNSPolicy, spec.DNSConfig = corev1.DNSNone, dns
	}
	for name, value := range env {
		spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	}
	pods := s.Cluster.Kube.CoreV1().Pods(harness.Namespace)
	pod, err := pods.Create(s.Ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "faultsnet-", Labels: map[string]string{"app": agentLabel}}, Spec: spec,
	}, metav1.CreateOptions{})
	s.NoError(err)
	s.Undo(s.stopAgents)
	return *pod
}

// stopAgents waits until no agent is left: one that holds would do the work of the next.
func (s *suite) stopAgents(ctx context.Context) error {
	pods, agents, soon := s.Cluster.Kube.CoreV1().Pods(harness.Namespace), metav1.ListOptions{LabelSelector: "app=" + agentLabel}, int64(1)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &soon}, agents); err != nil {
		return err
	}
	return harness.Until(ctx, func() (bool, error) {
		left, err := pods.List(ctx, agents)
		return err == nil && len(left.Items) == 0, err
	})
}

// failedRound waits for a round of an agent that fails as wanted, by the error of each check that failed, and asserts that the node
// is not verified. On a busy machine a check may take too long in one round: a fault that a test makes does not pass in the next.
func (s *suite) failedRound(pod corev1.Pod, wanted func(failed map[string]string) bool) {
	s.T.Helper()
	var all []map[string]string
	s.Until(func() (bool, error) {
		if !harness.HasTaint(s.Node(node), harness.Taint) {
			return false, errors.New("the node was released")
		}
		lines, err := s.Cluster.Logs(s.Ctx, pod)
		if err != nil {
			return false, nil // the container is not there yet
		}
		all, err = failedRounds(lines)
		return slices.ContainsFunc(all, wanted), err
	}, "no round has failed so: %v", &all)
	s.unverified()
	s.T.Log(all)
}

// failedRounds returns the errors of the checks in each round that a log has the end of.
func failedRounds(lines []harness.LogLine) (all []map[string]string, err error) {
	failed := make(map[string]string)
	for _, line := range lines {
		switch {
		case line.Check != "" && line.Error != "":
			if failed[line.Check] = line.Error; line.Remedy == "" {
				return nil, fmt.Errorf("no remedy for: %s", line.Error)
			}
		case line.Msg == harness.MsgNotVerified:
			all, failed = append(all, failed), make(map[string]string)
		}
	}
	return all, nil
}

// fails is a round where a check fails, with a text in the error.
func fails(check, text string) func(failed map[string]string) bool {
	return func(failed map[string]string) bool { return strings.Contains(failed[check], text) }
}

// onlyFails waits for a round where just these checks fail, each with its text in the error.
func (s *suite) onlyFails(pod corev1.Pod, texts map[string]string) {
	s.T.Helper()
	s.failedRound(pod, func(failed map[string]string) bool {
		for check, text := range texts {
			if !strings.Contains(failed[check], text) {
				return false
			}
		}
		return len(failed) == len(texts)
	})
}

// onlyFailsAndCounts is onlyFails where the agent's metrics can be read and say the same as its log.
func (s *suite) onlyFailsAndCounts(pod corev1.Pod, texts map[string]string) {
	s.T.Helper()
	s.onlyFails(pod, texts)
	counted := make(map[string]float64)
	for _, check := range []string{"dns", "api", "network", "service"} {
		counted[check] = s.Metric(pod, fmt.Sprintf(`node_check_failures_total{check=%q}`, check))
	}
	lines, err := s.Cluster.Logs(s.Ctx, pod)
	s.NoError(err)
	for check, n := range counted {
		logged := slices.ContainsFunc(lines, harness.FailedCheck(check))
		s.True(logged || n == 0, "node_check_failures_total of %s, which the log does not show", check)
		s.True(texts[check] == "" || n > 0, "node_check_failures_total of %s", check)
	}
}

func (s *suite) unverified() {
	s.T.Helper()
	s.keeps(s.Unverified(node))
}

// verified waits until the node is verified.
func (s *suite) verified() (at time.Time) {
	s.T.Helper()
	now, at := s.AwaitVerified(node)
	s.keeps(now)
	return at
}

// keeps looks for what others have on the node.
func (s *suite) keeps(now *corev1.Node) {
	s.T.Helper()
	for _, taint := range []string{foreign + "-before", foreign + "-behind"} {
		if !harness.HasTaint(now, taint) {
			s.row.Lose("taint %s", taint)
		}
	}
	if now.Labels[foreign] != "kept" {
		s.row.Lose("label %s", foreign)
	}
	if now.Annotations[foreign] != "kept" {
		s.row.Lose("annotation %s", foreign)
	}
}

// passes starts an agent that verifies the node, and returns the warnings and the details in its log, each behind its check.
func (s *suite) passes(env map[string]string, dns *corev1.PodDNSConfig) (warnings, details string) {
	s.T.Helper()
	pod := s.agent(env, dns)
	s.verified()
	s.row.Round()
	s.AwaitLog(pod, harness.Says(harness.MsgVerified)) // kubelet has no log yet of a container that it has just started
	lines, err := s.Cluster.Logs(s.Ctx, pod)
	s.NoError(err)
	for _, line := range lines {
		if line.Warning != "" {
			warnings += line.Check + ": " + line.Warning + "\n"
		}
		if line.Detail != "" {
			details += line.Check + ": " + line.Detail + "\n"
		}
	}
	return warnings, details
}

// recovers repairs the fault and waits until the agent has verified the node.
func (s *suite) recovers(repair func()) {
	s.T.Helper()
	repair()
	repaired := time.Now()
	s.row.Recovered(s.verified().Sub(repaired))
}

// breakForwarded makes a fault with rules of nft for what the node forwards.
func (s *suite) breakForwarded(rules ...string) {
	s.T.Helper()
	s.NoError(s.Cluster.BreakForwarded(s.Ctx, node, rules...))
}

// directions are nft expressions for the agents' own traffic, what they send and what is sent to
// them: that of all pods but those which are there before any agent is.
func (s *suite) directions() (out, in string) {
	s.T.Helper()
	pods, err := s.Cluster.Kube.CoreV1().Pods("").List(s.Ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	s.NoError(err)
	var others []string
	for _, pod := range pods.Items {
		if pod.Labels["app"] != agentLabel && pod.Status.PodIP != "" {
			others = append(others, pod.Status.PodIP)
		}
	}
	slices.Sort(others)
	set := strings.Join(others, ", ")
	return fmt.Sprintf("ip saddr 10.244.0.0/16 ip saddr != { %s } ", set), fmt.Sprintf("ip daddr 10.244.0.0/16 ip daddr != { %s } ", set)
}

// rounds makes a fault once in the short version, several times in the long one.
func (s *suite) rounds(once func()) {
	s.T.Helper()
	for range harness.Pick(1, 5) {
		once()
	}
}

// broken starts an agent behind rules of nft, for what the node forwards, and asserts that just the
// checks of fails fail; then it takes the rules away, and the agent verifies the node.
func (s *suite) broken(fails map[string]string, rules ...string) {
	s.T.Helper()
	s.rounds(func() {
		s.breakForwarded(rules...)
		s.onlyFails(s.agent(quick(), nil), fails)
		s.recovers(s.Repair)
	})
}
