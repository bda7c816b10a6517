package faults

import (
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// serviceNamespace is where the tests make the services that the agent's service check is pointed to.
const serviceNamespace = "default"

func TestMain(m *testing.M) { os.Exit(harness.Main(m, prepare)) }

// prepare gives the agent its rights, as the chart does, but no DaemonSet: the tests run the binary.
func prepare(ctx context.Context, cluster *harness.Cluster) (remove func(context.Context) error, err error) {
	if err := cluster.Undeploy(ctx); err != nil {
		return nil, err
	}
	chart, err := cluster.Render(ctx, "config.dnsService="+serviceNamespace+"/any")
	if err != nil {
		return nil, err
	}
	rights := slices.DeleteFunc(strings.Split(chart, "\n---\n"), func(object string) bool { return strings.Contains(object, "kind: DaemonSet") })
	return cluster.Apply(ctx, strings.Join(rights, "\n---\n"))
}

// suite is one test's access to the cluster and its row of the table. Each has nodes and a proxy of its own, so that they can
// run at the same time.
type suite struct {
	*harness.Suite
	row    *harness.Row
	config *rest.Config
	proxy  *Proxy
	dns    *nameServer
}

// begin starts the test of a fault that has one row of the table.
func begin(t *testing.T, fault, outcome string) *suite {
	t.Helper()
	return start(t, harness.BeginRow(t, fault, outcome))
}

func start(t *testing.T, row *harness.Row) *suite {
	t.Helper()
	s := &suite{Suite: harness.Start(t), row: row, dns: newNameServer(t)}
	var err error
	s.config, err = clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	s.NoError(err)
	s.config.QPS = -1 // a test that waits for its own rate limit measures that
	s.Cluster.Kube, err = kubernetes.NewForConfig(s.config)
	s.NoError(err)
	s.proxy, err = NewProxy(s.config)
	s.NoError(err)
	t.Cleanup(s.proxy.Close)
	return s
}

// gated is a Node as it registers: with the startup taint between two foreign ones, a foreign label
// and a foreign annotation.
func gated(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Labels:      map[string]string{"foreign/label": "kept"},
			Annotations: map[string]string{"foreign/annotation": "kept"},
		},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{
			{Key: "foreign/front", Value: "1", Effect: corev1.TaintEffectNoSchedule},
			{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule},
			{Key: "foreign/behind", Value: "2", Effect: corev1.TaintEffectNoExecute},
		}},
	}
}

// create makes a Node, with the API server's own API and no kubelet behind it.
func (s *suite) create(node *corev1.Node) *corev1.Node {
	s.T.Helper()
	made, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, node, metav1.CreateOptions{})
	s.NoError(err)
	s.Undo(func(ctx context.Context) error { return s.remove(ctx, node.Name) })
	return made
}

func (s *suite) remove(ctx context.Context, node string) error {
	now := int64(0)
	_ = s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, podOf(node), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err := s.Cluster.Kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil && !strings.Contains(err.Error(), "not found") {
		return err
	}
	return nil
}

// podOf is the name of the pod that the agent's token on a node is bound to. Dots are no fault of a
// pod's name, but of a host name's.
func podOf(node string) string { return "faults-" + strings.ReplaceAll(node, ".", "-") }

// boundToken gets a token as kubelet does: of the agent's service account, bound to a pod on the node.
func (s *suite) boundToken(node string) string {
	s.T.Helper()
	return s.boundTokenOf(harness.Name, node)
}

func (s *suite) boundTokenOf(account, node string) string {
	s.T.Helper()
	pod, err := s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Create(s.Ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podOf(node)},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: account,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "agent", Image: harness.Image}},
		},
	}, metav1.CreateOptions{})
	s.NoError(err)
	token, err := s.Cluster.Token(s.Ctx, harness.Namespace, account, pod)
	s.NoError(err)
	return token
}

// access writes what the agent reaches the API with, and returns the kubeconfig's path; the token is beside it.
func (s *suite) access(server string, ca []byte, token string) string {
	s.T.Helper()
	path, err := harness.WriteKubeconfig(s.T.TempDir(), server, ca, token)
	s.NoError(err)
	return path
}

// await waits for one of the channels of a gate or a name server.
func (s *suite) await(what string, c <-chan struct{}) {
	s.T.Helper()
	select {
	case <-c:
	case <-s.Ctx.Done():
		s.T.Fatalf("waited in vain for %s", what)
	}
}

func (s *suite) verified(node string) *corev1.Node {
	s.T.Helper()
	now, _ := s.AwaitVerified(node)
	return now
}

// untouched reports whether a Node is as it was made, for all that an agent can do to it.
func untouched(now, made *corev1.Node) bool {
	_, label := now.Labels[harness.Label]
	_, annotation := now.Annotations[harness.Annotation]
	return !label && !annotation && harness.HasTaint(now, harness.Taint) == harness.HasTaint(made, harness.Taint) &&
		maps.Equal(harness.Foreign(now), harness.Foreign(made))
}

// fullyVerified reports whether a Node is verified and has the annotation.
func fullyVerified(now *corev1.Node) bool {
	_, annotation := now.Annotations[harness.Annotation]
	return harness.Verified(now) && annotation
}
