package charttest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// However large a Node is, the policies must not exceed CEL's cost limit: the API server would refuse the release. etcd takes 1.5 MiB.
func TestAgentMayReleaseAHugeNode(t *testing.T) {
	s := start(t)
	const huge = "e2e-huge"
	s.bareNode(huge)
	agent, controller := s.accountsFor(huge)
	kubelet, admin := s.patches(s.Cluster.Kube, "kubelet"), s.patches(s.Cluster.Kube, "administrator")
	for i := range 50 { // the API server limits annotations to 256 KiB
		annotation := fmt.Sprintf(`{"metadata":{"annotations":{"example.com/note-%d":%q},"labels":{"example.com/label-%d":"x"}}}`, i, strings.Repeat("x", 5000), i)
		s.NoError(admin(huge, annotation))
	}
	fields := `{"f:metadata":{"f:labels":{".":{}`
	for i := range 1235 {
		fields += fmt.Sprintf(`,"f:example.com/%d-%s":{}`, i, strings.Repeat("y", 970))
	}
	now := metav1.Now()
	entries := append(s.Node(huge).ManagedFields, metav1.ManagedFieldsEntry{Manager: "huge", Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: "v1", Time: &now, FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields + "}}}")})
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": entries}})
	s.NoError(err)
	s.NoError(admin(huge, string(text)))
	whole, err := json.Marshal(s.Node(huge))
	s.NoError(err)
	t.Logf("the Node has %d bytes", len(whole))
	s.Greater(len(whole), 1_450_000)

	const (
		ready     = `{"status":{"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}]}}`
		failing   = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"False","reason":"DNSFailed","message":"m"}}]`
		retaint   = `[{"op":"add","path":"/spec/taints","value":[{"key":"node-ready/failed","value":"kube-node-ready","effect":"NoSchedule"}]}]`
		noTaint   = `[{"op":"remove","path":"/spec/taints"}]`
		untainted = `{"spec":{"taints":null}}`
	)
	s.NoError(kubelet(huge, ready, "status"))
	s.NoError(agent(huge, failing, "status"))
	s.NoError(agent(huge, releasePatch(0, "node-ready~1verified")))
	s.NoError(admin(huge, untainted))
	s.NoError(controller(huge, retaint))
	s.NoError(controller(huge, noTaint))
}

// bareNode makes a Node without a kubelet, with the startup taint. The DaemonSet does not select it.
func (s *suite) bareNode(name string) {
	s.T.Helper()
	remove := func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "node", name, "--ignore-not-found")
		return err
	}
	s.NoError(remove(s.Ctx))
	s.Undo(remove)
	_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "windows"}, Annotations: map[string]string{"example.com/note": "x"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{startup}},
	}, metav1.CreateOptions{})
	s.NoError(err)
}

// accountsFor applies what the chart renders for accounts and their rights. It returns the agent's patches, whose token is bound to a
// pod on the Node, and the controller's patches.
func (s *suite) accountsFor(node string) (agent, controller patchAs) {
	s.T.Helper()
	manifests, err := s.Cluster.Render(s.Ctx, "config.onTimeout=condition", "config.recheckInterval=1m", "controller.enabled=true", "controller.retaint.enabled=true")
	s.NoError(err)
	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		s.apply(only(manifests, kind))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: harness.Namespace}, Spec: corev1.PodSpec{
		ServiceAccountName: harness.Name, NodeName: node, Containers: []corev1.Container{{Name: "c", Image: harness.Image}},
	}}
	remove := func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "pod", "-n", harness.Namespace, node, "--ignore-not-found", "--grace-period=0", "--force")
		return err
	}
	s.NoError(remove(s.Ctx))
	s.Undo(remove)
	pod, err = s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Create(s.Ctx, pod, metav1.CreateOptions{})
	s.NoError(err)
	agent = s.token(harness.Default(), harness.Name, pod)
	controller = s.patches(s.client(harness.Default(), harness.Controller, nil), harness.Controller)
	for _, own := range []patchAs{agent, controller} { // a new policy takes effect when the API server has read it
		attempt := 0
		s.Until(func() (bool, error) {
			attempt++
			err := own(node, fmt.Sprintf(`{"metadata":{"labels":{"example.com/probe":"%d"}}}`, attempt))
			return err != nil && strings.Contains(err.Error(), " may "), nil
		})
	}
	return agent, controller
}
