package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func TestVerifiesTheNodeAndIsRemoved(t *testing.T) {
	s := start(t)
	untilDeleted := watchPods(s, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name})
	foreign := []corev1.Taint{
		{Key: "example.com/before", Value: "x", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "example.com/behind", Effect: corev1.TaintEffectNoSchedule},
	}
	taints, err := json.Marshal(foreign)
	s.NoError(err)
	s.Patch(node, fmt.Sprintf(
		`{"metadata":{"labels":{%q:null,"example.com/label":"kept"},"annotations":{%q:null,"example.com/note":"kept"}},"spec":{"taints":%s}}`,
		harness.Label, harness.Annotation, taints))
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Patch(ctx, node, `{"metadata":{"labels":{"example.com/label":null},"annotations":{"example.com/note":null}}}`)
	})

	now, _ := s.AwaitVerified(node)
	s.Equal([]corev1.Taint{foreign[0], foreign[2]}, now.Spec.Taints, "other taints")
	s.Equal("kept", now.Labels["example.com/label"])
	s.Equal("kept", now.Annotations["example.com/note"])

	var how struct {
		Time              time.Time
		Duration, Version string
		Attempts          map[string]int
	}
	s.NoError(json.Unmarshal([]byte(now.Annotations[harness.Annotation]), &how))
	s.Equal([]string{"api", "dns", "network", "service"}, slices.Sorted(maps.Keys(how.Attempts)))
	s.NotContains(slices.Collect(maps.Values(how.Attempts)), 0)
	s.NotEmpty(how.Version)
	_, err = time.ParseDuration(how.Duration)
	s.NoError(err)
	s.WithinDuration(time.Now(), how.Time, time.Hour)
	s.Event("NodeVerified", "verified in")

	// The container runs until the pod is deleted, and is never started again.
	last := untilDeleted(func(pod *corev1.Pod) {
		for _, status := range pod.Status.ContainerStatuses {
			s.Zero(status.RestartCount)
			if pod.DeletionTimestamp == nil {
				s.Nil(status.State.Terminated, "exited by itself")
			}
		}
	})
	deletions, err := s.Cluster.Audit(s.Began, "system:serviceaccount:kube-system:daemon-set-controller")
	s.NoError(err)
	s.True(slices.ContainsFunc(deletions, func(r harness.Request) bool {
		return r.Verb == "delete" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Name == last.Name
	}), "the DaemonSet controller did not delete pod %s", last.Name)

	// How many they are is a matter of the bench: a slow answer is asked for again.
	var requests []string
	for _, request := range s.Requests(*last) {
		requests = append(requests, request.Verb+" "+request.ObjectRef.Resource)
	}
	s.T.Log("requests:", requests)
	s.Equal([]string{"create events", "get nodes", "list endpointslices", "patch nodes"}, slices.Compact(slices.Sorted(slices.Values(requests))))
}

func TestVerifiesAgainWhenTheLabelIsRemoved(t *testing.T) {
	s := start(t)
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, harness.Label))
	s.AwaitVerified(node)
	s.Event("NodeVerified", "")
}

// A pod that was started again on a verified node (here: with no controller to take it away) has
// nothing to do.
func TestNothingToDoOnAVerifiedNode(t *testing.T) {
	s := start(t)
	s.Apply(agentPod("e2e-agent", "Never", `[]`))
	s.AwaitReady(harness.Namespace, "e2e-agent")
	pod, err := s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Get(s.Ctx, "e2e-agent", metav1.GetOptions{})
	s.NoError(err)
	lines, err := s.Cluster.Logs(s.Ctx, *pod)
	s.NoError(err)
	s.True(slices.ContainsFunc(lines, harness.Says(harness.MsgAlreadyVerified)), "%v", lines)
	s.False(slices.ContainsFunc(lines, harness.Says(harness.MsgCheckPassed)), "%v", lines)
	requests := s.Requests(*pod)
	s.NotEmpty(requests)
	for _, request := range requests {
		s.Equal("get nodes", request.Verb+" "+request.ObjectRef.Resource)
	}
}

// agentPod is the agent outside its DaemonSet, with the same rights.
func agentPod(name, restart, args string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  nodeName: %s
  serviceAccountName: %s
  automountServiceAccountToken: true
  restartPolicy: %s
  enableServiceLinks: false
  terminationGracePeriodSeconds: 5
  tolerations: [{operator: Exists}]
  containers:
  - name: agent
    image: %s:%s
    imagePullPolicy: Never
    args: %s
    env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
    readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
`, name, harness.Namespace, node, harness.Name, restart, harness.Image, harness.Tag, args)
}

func TestDryRunInTheClusterWritesNothing(t *testing.T) {
	s := start(t)
	s.Apply(agentPod("e2e-dry-run", "Never", `["--dry-run"]`))
	var pod *corev1.Pod
	s.Until(func() (bool, error) {
		var err error
		pod, err = s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Get(s.Ctx, "e2e-dry-run", metav1.GetOptions{})
		return err == nil && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Terminated != nil, err
	})
	report := s.Kubectl("", "logs", "-n", harness.Namespace, "e2e-dry-run")
	s.T.Log("\n" + report)
	s.Contains(report, "PASSED: 4 passed, 0 failed, 0 skipped")
	s.Zero(pod.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	requests := s.Requests(*pod)
	s.NotEmpty(requests)
	for _, request := range requests {
		s.False(request.Write(), "%v", request)
	}
}

func TestDryRunWithoutAnyCluster(t *testing.T) {
	cluster, err := harness.Open()
	require.NoError(t, err)
	run := func(names string) (string, error) {
		return cluster.Run(t.Context(), "", "env", "-i", "HOME="+t.TempDir(), cluster.Root+"/bin/kube-node-ready",
			"--dry-run", "--check-timeout=2s", "--dns-test-domains="+names)
	}
	report, err := run("kubernetes.default.svc.cluster.local")
	require.NoError(t, err, report)
	require.Contains(t, report, "PASSED: 0 passed, 0 failed, 4 skipped")
	require.Contains(t, report, "no kubeconfig")

	report, err = run("does-not-exist.invalid")
	require.ErrorContains(t, err, "exit status 1")
	require.Contains(t, report, "FAILED: 0 passed, 1 failed, 3 skipped")
}
