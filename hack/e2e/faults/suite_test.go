package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// serviceNamespace is where the tests make the services that the agent's service check is pointed to.
const serviceNamespace = "default"

func TestMain(m *testing.M) { os.Exit(run(m)) }

// run gives the agent its rights, as the chart does, but no DaemonSet: the tests run the binary.
func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cluster, rights, err := prepare(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1 // not skipped: who runs these tests wants to know
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_, _ = cluster.Kubectl(ctx, rights, "delete", "--ignore-not-found", "-f", "-")
	}()
	return Main(m)
}

func prepare(ctx context.Context) (*harness.Cluster, string, error) {
	cluster, err := harness.Open()
	if err != nil {
		return nil, "", err
	}
	if err := cluster.Undeploy(ctx); err != nil {
		return nil, "", err
	}
	chart, err := cluster.Render(ctx, "config.dnsService="+serviceNamespace+"/any")
	if err != nil {
		return nil, "", err
	}
	var rights []string
	for document := range strings.SplitSeq(chart, "\n---\n") {
		if !strings.Contains(document, "kind: DaemonSet") {
			rights = append(rights, document)
		}
	}
	text := strings.Join(rights, "\n---\n")
	_, err = cluster.Kubectl(ctx, text, "apply", "-f", "-")
	return cluster, text, err
}

// suite is one test's hold on the cluster. Each has nodes and a proxy of its own, so that they can
// run at the same time.
type suite struct {
	*testing.T
	*harness.Cluster
	ctx     context.Context
	require *require.Assertions
	config  *rest.Config
	proxy   *Proxy
	dns     *nameServer
}

func start(t *testing.T) *suite {
	t.Helper()
	cluster, err := harness.Open()
	require.NoError(t, err)
	timeout := 4 * time.Minute // on a noisy machine; nothing waits as long as that
	if Long() {
		timeout = 40 * time.Minute
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	t.Cleanup(cancel)
	s := &suite{T: t, Cluster: cluster, ctx: ctx, require: require.New(t)}
	s.config, err = clientcmd.BuildConfigFromFlags("", cluster.Kubeconfig())
	s.require.NoError(err)
	s.config.QPS = -1 // a test that waits for its own rate limit measures that
	s.Kube, err = kubernetes.NewForConfig(s.config)
	s.require.NoError(err)
	s.proxy, err = NewProxy(s.config)
	s.require.NoError(err)
	t.Cleanup(s.proxy.Close)
	s.dns = newNameServer(t)
	return s
}

// cleanup undoes something even when the test's own time is over.
func (s *suite) cleanup(undo func(ctx context.Context) error) {
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := undo(ctx); err != nil {
			s.Error(err)
		}
	})
}

// gated is a Node as it registers: with the startup taint between two that are not ours, a label
// and an annotation.
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
	s.Helper()
	made, err := s.Kube.CoreV1().Nodes().Create(s.ctx, node, metav1.CreateOptions{})
	s.require.NoError(err)
	s.cleanup(func(ctx context.Context) error { return s.remove(ctx, node.Name) })
	return made
}

func (s *suite) remove(ctx context.Context, node string) error {
	now := int64(0)
	_ = s.Kube.CoreV1().Pods(harness.Namespace).Delete(ctx, podOf(node), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err := s.Kube.CoreV1().Nodes().Delete(ctx, node, metav1.DeleteOptions{}); err != nil && !strings.Contains(err.Error(), "not found") {
		return err
	}
	return nil
}

// podOf is the name of the pod that the agent's token on a node is bound to. Dots are no fault of a
// pod's name, but of a host name's.
func podOf(node string) string { return "faults-" + strings.ReplaceAll(node, ".", "-") }

// token gets a token as kubelet does: of the agent's service account, bound to a pod on the node.
func (s *suite) token(node string) string {
	s.Helper()
	pod, err := s.Kube.CoreV1().Pods(harness.Namespace).Create(s.ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: podOf(node)},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: harness.Name,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "agent", Image: harness.Image}},
		},
	}, metav1.CreateOptions{})
	s.require.NoError(err)
	hour := int64(3600)
	answer, err := s.Kube.CoreV1().ServiceAccounts(harness.Namespace).CreateToken(s.ctx, harness.Name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			ExpirationSeconds: &hour,
			BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID},
		},
	}, metav1.CreateOptions{})
	s.require.NoError(err)
	return answer.Status.Token
}

// access writes what the agent reaches the API with: a kubeconfig that names the server, its CA and
// a file with the token. It returns the kubeconfig's path; the token is beside it.
func (s *suite) access(server string, ca []byte, token string) string {
	s.Helper()
	dir := s.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		s.require.NoError(os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	return write("kubeconfig", fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: faults
contexts: [{name: faults, context: {cluster: faults, user: agent}}]
clusters: [{name: faults, cluster: {server: %q, certificate-authority: %q}}]
users: [{name: agent, user: {tokenFile: %q}}]
`, server, write("ca.crt", string(ca)), write("token", token)))
}

// await waits for one of the channels of a gate or a name server.
func (s *suite) await(what string, c <-chan struct{}) {
	s.Helper()
	select {
	case <-c:
	case <-s.ctx.Done():
		s.Fatalf("waited in vain for %s", what)
	}
}

func (s *suite) verified(node string) *corev1.Node {
	s.Helper()
	now, _, err := s.AwaitNode(s.ctx, node, harness.Verified)
	s.require.NoError(err)
	return now
}
