package workers

import (
	"context"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A new node with the startup taint is released, by one worker that has no credential. What waits for the node runs then, and the
// worker is gone. The API server answers requests without a credential with 401, which passes `api`.
func TestNewNode(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.refusesAnonymous()
	workers := s.record()
	const node = "joins"
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: waiting, namespace: default}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 0
  containers: [{name: workload, image: "localhost/workload:1", imagePullPolicy: Never, args: [serve, ":8080"]}]
`, node))
	s.Undo(func(ctx context.Context) error { return s.Cluster.DeleteNodes(ctx, node) })
	s.NoError(s.Cluster.AddNodes(s.Ctx, node))
	last := s.awaitRelease(node, workers) // the first of them failed if kube-proxy was not up yet
	s.AwaitReady("default", "waiting")
	s.noWorkers(workers, node)

	s.NotNil(last.running, "released by a worker that never ran")
	s.hasNoCredential(last.running)
	now, _ := s.AwaitNode(node, func(n *corev1.Node) bool {
		condition := harness.Condition(n, harness.ConditionType)
		return condition != nil && condition.Status == corev1.ConditionTrue
	})
	s.True(harness.Verified(now))
}

// refusesAnonymous asserts that the API server takes no request without a credential (--anonymous-auth=false).
func (s *suite) refusesAnonymous() {
	s.T.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	s.NoError(err)
	anonymous, err := kubernetes.NewForConfig(rest.AnonymousClientConfig(config))
	s.NoError(err)
	_, err = anonymous.CoreV1().Nodes().Get(s.Ctx, harness.RealNode, metav1.GetOptions{})
	s.True(apierrors.IsUnauthorized(err), "%v", err)
}

// hasNoCredential asserts that a running pod has no volume of any kind, and therefore no token, and no secret.
func (s *suite) hasNoCredential(pod *corev1.Pod) {
	s.T.Helper()
	s.Empty(pod.Spec.Volumes)
	s.False(*pod.Spec.AutomountServiceAccountToken)
	s.Empty(pod.Spec.ImagePullSecrets)
	s.Empty(pod.Spec.InitContainers)
	s.Len(pod.Spec.Containers, 1)
	container := pod.Spec.Containers[0]
	s.Empty(container.VolumeMounts)
	for _, from := range container.EnvFrom {
		s.Nil(from.SecretRef)
	}
	for _, env := range container.Env {
		s.True(env.ValueFrom == nil || env.ValueFrom.SecretKeyRef == nil, env.Name)
	}
}

// A node without the label is verified again. The verdict that has released it does not count once more, whatever controller leads:
// here the worker is still there, and ready.
func TestLabelRemoved(t *testing.T) {
	s := start(t)
	workers := s.record()
	node := nodes[0]
	release := s.hold("pods", "DELETE")
	s.Gate(node)
	first := s.awaitVerified(node, workers, 1)
	s.awaitRefused("delete", first.Name)
	s.awaitOther(func(leader corev1.Pod) {
		s.NoError(s.Cluster.Kube.CoreV1().Pods(leader.Namespace).Delete(s.Ctx, leader.Name, metav1.DeleteOptions{}))
	})
	s.Zero(workers.of(node)[0].gone)

	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}}}`, harness.Label))
	second := s.awaitVerified(node, workers, 2)
	s.NotEqual(first.UID, second.UID)
	release()
	s.noWorkers(workers, node)
}

// awaitOther breaks the leader and waits for another one, which may be another process in the same pod.
func (s *suite) awaitOther(breakLeader func(corev1.Pod)) {
	s.T.Helper()
	leader, _ := s.Leader()
	before, _, err := s.Cluster.Leader(s.Ctx)
	s.NoError(err)
	breakLeader(leader)
	s.Until(func() (bool, error) {
		now, _, err := s.Cluster.Leader(s.Ctx)
		return err == nil && now != "" && now != before, nil
	}, "nobody takes over from %s", before)
}

// A worker does not take an API server for that of its cluster whose certificate another CA has signed.
func TestOtherCA(t *testing.T) {
	s := start(t)
	workers := s.record()
	node := nodes[1]
	resume := s.Pause("kube-controller-manager") // it restores the ConfigMap
	configMaps := s.Cluster.Kube.CoreV1().ConfigMaps(harness.Namespace)
	right, err := configMaps.Get(s.Ctx, "kube-root-ca.crt", metav1.GetOptions{})
	s.NoError(err)
	set := func(ctx context.Context, ca string) error {
		now, err := configMaps.Get(ctx, right.Name, metav1.GetOptions{})
		if err == nil {
			now.Data = map[string]string{"ca.crt": ca}
			_, err = configMaps.Update(ctx, now, metav1.UpdateOptions{})
		}
		return err
	}
	other := httptest.NewTLSServer(nil)
	defer other.Close()
	s.Undo(func(ctx context.Context) error { return set(ctx, right.Data["ca.crt"]) })
	s.NoError(set(s.Ctx, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate().Raw}))))
	s.Gate(node)
	failed := s.await(workers, node, (*seen).hasEnded)
	message := failed.Status.ContainerStatuses[0].State.Terminated.Message
	s.Regexp(`"failed":\[.*"api"`, message)
	s.Contains(message, "certificate signed by unknown authority")
	now, _ := s.AwaitNode(node, func(n *corev1.Node) bool {
		condition := harness.Condition(n, harness.ConditionType)
		return condition != nil && condition.Status == corev1.ConditionFalse
	})
	condition := harness.Condition(now, harness.ConditionType)
	s.Contains(condition.Reason, "APIFailed")
	t.Log(strings.TrimSpace(condition.Message))
	s.Unverified(node)

	s.NoError(set(s.Ctx, right.Data["ca.crt"]))
	resume()
	// The next attempt comes at once where the failed worker is deleted.
	err = s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Delete(s.Ctx, failed.Name, metav1.DeleteOptions{})
	s.True(err == nil || apierrors.IsNotFound(err), "%v", err)
	s.NotEqual(failed.UID, s.awaitRelease(node, workers).UID)
	s.noWorkers(workers, node)
}
