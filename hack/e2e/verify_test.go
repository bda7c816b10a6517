package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

func TestVerifiesTheNodeAndLeaves(t *testing.T) {
	s := start(t)
	pods, err := s.Kube.CoreV1().Pods(harness.Namespace).Watch(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name})
	s.require.NoError(err)
	defer pods.Stop()

	foreign := []corev1.Taint{
		{Key: "example.com/before", Value: "x", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule},
		{Key: "example.com/behind", Effect: corev1.TaintEffectNoSchedule},
	}
	taints, err := json.Marshal(foreign)
	s.require.NoError(err)
	s.require.NoError(s.Patch(s.ctx, node, fmt.Sprintf(
		`{"metadata":{"labels":{%q:null,"example.com/label":"kept"},"annotations":{%q:null,"example.com/note":"kept"}},"spec":{"taints":%s}}`,
		harness.Label, harness.Annotation, taints)))
	s.cleanup(func(ctx context.Context) error {
		return s.Patch(ctx, node, `{"metadata":{"labels":{"example.com/label":null},"annotations":{"example.com/note":null}}}`)
	})

	now, _ := s.verified()
	s.require.Equal([]corev1.Taint{foreign[0], foreign[2]}, now.Spec.Taints, "other taints")
	s.require.Equal("kept", now.Labels["example.com/label"])
	s.require.Equal("kept", now.Annotations["example.com/note"])

	var how struct {
		Time              time.Time
		Duration, Version string
		Attempts          map[string]int
	}
	s.require.NoError(json.Unmarshal([]byte(now.Annotations[harness.Annotation]), &how))
	s.require.Equal(map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1}, how.Attempts)
	s.require.NotEmpty(how.Version)
	_, err = time.ParseDuration(how.Duration)
	s.require.NoError(err)
	s.require.WithinDuration(time.Now(), how.Time, time.Hour)
	s.event("NodeVerified", "verified in")

	// The container runs until the pod is deleted, and is never started again.
	var last *corev1.Pod
	for deleted := false; !deleted; {
		select {
		case event := <-pods.ResultChan():
			pod, ok := event.Object.(*corev1.Pod)
			s.require.True(ok, "watch ended: %v", event)
			last = pod
			deleted = event.Type == "DELETED"
			for _, status := range pod.Status.ContainerStatuses {
				s.require.Zero(status.RestartCount)
				if pod.DeletionTimestamp == nil {
					s.require.Nil(status.State.Terminated, "exited by itself")
				}
			}
		case <-s.ctx.Done():
			t.Fatal("the agent's pod is still there")
		}
	}
	deletions, err := s.Audit(s.began, "system:serviceaccount:kube-system:daemon-set-controller")
	s.require.NoError(err)
	s.require.True(slices.ContainsFunc(deletions, func(r harness.Request) bool {
		return r.Verb == "delete" && r.ObjectRef.Resource == "pods" && r.ObjectRef.Name == last.Name
	}), "the DaemonSet controller did not delete pod %s", last.Name)

	requests := s.requests(*last)
	s.Log("requests:", requests)
	s.require.Len(requests, 4)
}

func TestVerifiesAgainWhenTheLabelIsTakenOff(t *testing.T) {
	s := start(t)
	s.require.NoError(s.Patch(s.ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, harness.Label)))
	s.verified()
	s.event("NodeVerified", "")
}

func TestGateLatency(t *testing.T) {
	s := start(t)
	var all []time.Duration
	for range 5 {
		s.gate()
		gated := time.Now()
		_, at := s.verified()
		all = append(all, at.Sub(gated))
		s.require.NoError(s.NoAgents(s.ctx))
	}
	slices.Sort(all)
	s.Logf("gate latency, taint on to taint off: median %s of %v (polled every 50 ms)", all[len(all)/2].Round(time.Millisecond), all)
}

// A pod that was started again on a verified node (here: with no controller to take it away) has
// nothing to do.
func TestNothingToDoOnAVerifiedNode(t *testing.T) {
	s := start(t)
	s.apply(agentPod("e2e-agent", "Never", `[]`))
	_, err := s.Kubectl(s.ctx, "", "wait", "-n", harness.Namespace, "--for=condition=Ready", "pod/e2e-agent", "--timeout=60s")
	s.require.NoError(err)
	pod, err := s.Kube.CoreV1().Pods(harness.Namespace).Get(s.ctx, "e2e-agent", metav1.GetOptions{})
	s.require.NoError(err)
	lines, err := s.Logs(s.ctx, *pod)
	s.require.NoError(err)
	s.require.Len(lines, 1)
	s.require.Equal("node is verified already", lines[0].Msg)
	requests := s.requests(*pod)
	s.require.Len(requests, 1, "%v", requests)
	s.require.Equal("get", requests[0].Verb)
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
	s.apply(agentPod("e2e-dry-run", "Never", `["--dry-run"]`))
	var pod *corev1.Pod
	s.require.NoError(harness.Until(s.ctx, func() (bool, error) {
		var err error
		pod, err = s.Kube.CoreV1().Pods(harness.Namespace).Get(s.ctx, "e2e-dry-run", metav1.GetOptions{})
		return err == nil && len(pod.Status.ContainerStatuses) == 1 && pod.Status.ContainerStatuses[0].State.Terminated != nil, err
	}))
	report, err := s.Kubectl(s.ctx, "", "logs", "-n", harness.Namespace, "e2e-dry-run")
	s.require.NoError(err)
	s.Log("\n" + report)
	s.require.Contains(report, "PASSED: 4 passed, 0 failed, 0 skipped")
	s.require.Zero(pod.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	requests := s.requests(*pod)
	s.require.NotEmpty(requests)
	for _, request := range requests {
		require.False(t, request.Write(), "%v", request)
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
