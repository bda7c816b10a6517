// Package faultsnet breaks the network and the DNS that the agent is there to prove, on a real
// kubelet, and shows that a broken node is never opened and a working one always is.
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

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/faults"
	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	node = "node1"
	// foreign stands for what others have on a node: a taint before ours and one behind, a label
	// and an annotation.
	foreign = "example.com/foreign"
	// agentLabel is on the agents that the tests start. It is not the DaemonSet's, which would
	// adopt them.
	agentLabel = "faultsnet"
)

// quick are settings with which a failure is told apart from a success within seconds.
func quick() map[string]string { return map[string]string{"CHECK_TIMEOUT": "1s", "MAX_RETRIES": "0"} }

// suite is one test's hold on the cluster and on its row of the table.
type suite struct {
	*testing.T
	*harness.Cluster
	*require.Assertions
	ctx context.Context
	row *faults.Row
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	cluster, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1 // not skipped: who runs these tests wants to know
	}
	code := faults.Main(m)
	if err := tidy(cluster); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// prepare deploys the chart onto no node: its rights and its settings are there, and its pod's
// template, from which the tests start agents themselves.
func prepare() (*harness.Cluster, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster, err := harness.Open()
	if err != nil {
		return nil, err
	}
	if err := cluster.Deploy(ctx, "nodeSelector.faultsnet=none"); err != nil {
		return nil, err
	}
	return cluster, cluster.Reset(ctx, node)
}

// tidy leaves the cluster as it was.
func tidy(cluster *harness.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return errors.Join(cluster.Undeploy(ctx), cluster.Reset(ctx, node), cluster.Patch(ctx, node, fmt.Sprintf(
		`{"metadata":{"labels":{%q:null},"annotations":{%q:null}}}`, foreign, foreign)))
}

// fault runs a test of one fault, with a row of the table for it and no other fault in the cluster.
func fault(t *testing.T, fault, outcome string, test func(s *suite)) {
	t.Helper()
	t.Run(fault, func(t *testing.T) {
		s := open(t)
		s.row = faults.Begin(t, fault, outcome)
		s.NoError(s.mend())
		s.cleanup(func(ctx context.Context) error { return s.Mend(ctx, node) })
		test(s)
	})
}

// open is a hold on the cluster without a row.
func open(t *testing.T) *suite {
	t.Helper()
	cluster, err := harness.Open()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(faults.Pick(3, 20))*time.Minute)
	t.Cleanup(cancel)
	return &suite{T: t, Cluster: cluster, Assertions: require.New(t), ctx: ctx}
}

// cleanup undoes something even when the test's own time is over.
func (s *suite) cleanup(undo func(context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(s.T, undo(ctx))
	})
}

// gate closes the node, with what others have on it.
func (s *suite) gate() {
	s.Helper()
	s.NoError(s.Patch(s.ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:"kept"},"annotations":{%q:null,%q:"kept"}},"spec":{"taints":[
		{"key":"%s-before","effect":"PreferNoSchedule"},{"key":%q,"value":"true","effect":"NoSchedule"},{"key":"%s-behind","effect":"PreferNoSchedule"}]}}`,
		harness.Label, foreign, harness.Annotation, foreign, foreign, harness.Taint, foreign)))
}

// agent gates the node and starts an agent on it: the pod of the chart's DaemonSet, given to kubelet
// without it, so that a test can change its settings and, with dns, its resolv.conf.
func (s *suite) agent(env map[string]string, dns *corev1.PodDNSConfig) *corev1.Pod {
	s.Helper()
	s.NoError(s.stopAgents(s.ctx))
	s.gate()
	set, err := s.Kube.AppsV1().DaemonSets(harness.Namespace).Get(s.ctx, harness.Name, metav1.GetOptions{})
	s.NoError(err)
	spec := set.Spec.Template.Spec
	spec.NodeName, spec.NodeSelector, spec.Affinity = node, nil, nil
	if dns != nil {
		spec.DNSPolicy, spec.DNSConfig = corev1.DNSNone, dns
	}
	for name, value := range env {
		spec.Containers[0].Env = append(spec.Containers[0].Env, corev1.EnvVar{Name: name, Value: value})
	}
	pods := s.Kube.CoreV1().Pods(harness.Namespace)
	pod, err := pods.Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "faultsnet-", Labels: map[string]string{"app": agentLabel}}, Spec: spec,
	}, metav1.CreateOptions{})
	s.NoError(err)
	s.cleanup(func(ctx context.Context) error {
		if s.Failed() {
			text, _ := s.Kubectl(ctx, "", "logs", "-n", pod.Namespace, pod.Name)
			s.Logf("%s\n%s", pod.Name, text)
		}
		return s.stopAgents(ctx)
	})
	return pod
}

// stopAgents waits until no agent is left: one that holds would do the work of the next.
func (s *suite) stopAgents(ctx context.Context) error {
	pods, ours, soon := s.Kube.CoreV1().Pods(harness.Namespace), metav1.ListOptions{LabelSelector: "app=" + agentLabel}, int64(1)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &soon}, ours); err != nil {
		return err
	}
	return harness.Until(ctx, func() (bool, error) {
		left, err := pods.List(ctx, ours)
		return err == nil && len(left.Items) == 0, err
	})
}

// failedRound waits for the first round of an agent to fail, asserts that the node is closed, and
// returns the error of each check that failed.
func (s *suite) failedRound(pod *corev1.Pod) map[string]string {
	s.Helper()
	failed := make(map[string]string)
	s.NoError(harness.Until(s.ctx, func() (bool, error) {
		pod, err := s.Kube.CoreV1().Pods(pod.Namespace).Get(s.ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if !harness.HasTaint(s.node(), harness.Taint) {
			return false, fmt.Errorf("the node was opened")
		}
		lines, err := s.Logs(s.ctx, *pod)
		if err != nil {
			return false, nil // the container is not there yet
		}
		clear(failed)
		for _, line := range lines {
			if line.Check != "" && line.Error != "" {
				failed[line.Check] = line.Error
				if line.Remedy == "" {
					return false, fmt.Errorf("no remedy for: %s", line.Error)
				}
			}
			if line.Msg == "node not verified" {
				return true, nil
			}
		}
		return false, nil
	}), "no round has failed")
	s.closed()
	s.Log(failed)
	return failed
}

// onlyFails is failedRound where just these checks may fail, each with its text in the error.
func (s *suite) onlyFails(pod *corev1.Pod, texts map[string]string) {
	s.Helper()
	failed := s.failedRound(pod)
	for check, text := range texts {
		s.Contains(failed[check], text)
	}
	s.Len(failed, len(texts), "%v", failed)
}

func (s *suite) node() *corev1.Node {
	s.Helper()
	now, err := s.Node(s.ctx, node)
	s.NoError(err)
	return now
}

func (s *suite) closed() {
	s.Helper()
	now := s.node()
	s.True(harness.HasTaint(now, harness.Taint), "the taint is off")
	s.NotContains(now.Labels, harness.Label)
	s.keeps(now)
}

// opened waits until the node is open.
func (s *suite) opened() (at time.Time) {
	s.Helper()
	now, at, err := s.AwaitNode(s.ctx, node, harness.Verified)
	s.NoError(err)
	s.keeps(now)
	return at
}

// keeps looks for what others have on the node.
func (s *suite) keeps(now *corev1.Node) {
	s.Helper()
	for _, place := range []string{"-before", "-behind"} {
		if !harness.HasTaint(now, foreign+place) {
			s.row.Lose("taint %s", foreign+place)
		}
	}
	if now.Labels[foreign] != "kept" {
		s.row.Lose("label %s", foreign)
	}
	if now.Annotations[foreign] != "kept" {
		s.row.Lose("annotation %s", foreign)
	}
}

// warnings returns what the agent found wrong although it opened the node.
func (s *suite) warnings(pod *corev1.Pod) string {
	s.Helper()
	lines, err := s.Logs(s.ctx, *pod)
	s.NoError(err)
	var found []string
	for _, line := range lines {
		if line.Warning != "" {
			found = append(found, line.Check+": "+line.Warning)
		}
	}
	return strings.Join(found, "\n")
}

// recovers mends the fault and waits until the agent has opened the node.
func (s *suite) recovers(mend func() error) {
	s.Helper()
	s.NoError(mend())
	mended := time.Now()
	s.row.Recovered(s.opened().Sub(mended))
}

// mend takes the rules away that the test has put into the node's network.
func (s *suite) mend() error { return s.Mend(s.ctx, node) }

// directions are nft expressions for the agents' own traffic, what they send and what is sent to
// them: that of all pods but those which are there before any agent is.
func (s *suite) directions() (out, in string) {
	s.Helper()
	pods, err := s.Kube.CoreV1().Pods("").List(s.ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
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
	s.Helper()
	for range faults.Pick(1, 5) {
		once()
	}
}

// broken starts an agent behind rules of nft, for what the node forwards, and asserts that just the
// checks of fails fail; then it takes the rules away, and the agent opens the node.
func (s *suite) broken(fails map[string]string, rules ...string) {
	s.Helper()
	s.rounds(func() {
		s.NoError(s.BreakForwarded(s.ctx, node, rules...))
		s.onlyFails(s.agent(quick(), nil), fails)
		s.recovers(s.mend)
	})
}
