package karpenter

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// kubelet does for the agent's pods on Karpenter's nodes what kwok does not: it runs what is in them. Each agent has its pod's own
// token, the environment that the chart gives it, and the network of a real pod.
type kubelet struct {
	*suite
	home string // the pod that lends its network
	// network chooses another pod for a node.
	network func(node string) string

	mu     sync.Mutex
	agents map[string]*harness.Program // by the pod's uid
	latest map[string]*harness.Program // by the node
}

// said returns what the latest agent on a node has logged.
func (k *kubelet) said(node string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.latest[node] == nil {
		return ""
	}
	text, _ := os.ReadFile(k.latest[node].Log)
	return string(text)
}

func newKubelet(s *suite) *kubelet {
	s.T.Helper()
	k := &kubelet{suite: s, home: s.realPod("home"), agents: map[string]*harness.Program{}, latest: map[string]*harness.Program{}}
	k.network = func(string) string { return k.home }
	ctx, cancel := context.WithCancel(s.Ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		k.follow(ctx)
	}()
	s.T.Cleanup(func() {
		cancel()
		<-followed
		for _, agent := range k.agents {
			agent.Stop()
		}
		for node := range k.latest {
			if said := k.said(node); s.T.Failed() && (len(k.latest) < 5 || !strings.Contains(said, harness.MsgVerified)) {
				s.T.Logf("the agent on %s said:\n%s", node, said)
			}
		}
	})
	return k
}

// realPod makes a pod on the real node, and returns the process id of its sandbox, in whose network others can be run.
func (s *suite) realPod(name string) string {
	s.T.Helper()
	name = "karpenter-" + name
	s.RunPod(name)
	return strings.TrimSpace(s.Script("pod-pid", "default", name))
}

// follow starts an agent when its pod runs, and stops it when the pod is deleted, as kubelet would.
func (k *kubelet) follow(ctx context.Context) {
	_, _ = k.seen.await(ctx, pods, func(s state) bool {
		if s.object.GetLabels()["app.kubernetes.io/name"] != harness.Name {
			return false
		}
		pod := s.pod()
		if pod.Spec.NodeName == "" || pod.Spec.NodeName == realNode {
			return false
		}
		uid := string(pod.UID)
		k.mu.Lock()
		defer k.mu.Unlock()
		agent, known := k.agents[uid]
		switch {
		case !known && !s.deleted && pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil:
			started, err := k.start(ctx, pod)
			if err != nil {
				k.T.Errorf("agent on %s: %v", pod.Spec.NodeName, err)
				break
			}
			k.agents[uid], k.latest[pod.Spec.NodeName] = started, started
		case known && (s.deleted || pod.DeletionTimestamp != nil):
			_ = agent.Process.Signal(syscall.SIGTERM)
		}
		return false
	})
}

// enter is the way from here into the agent's container: a mount namespace with the pod's resolv.conf and service account.
const enter = `set -e
mount --bind "$1/resolv.conf" /etc/resolv.conf
mount -t tmpfs tmpfs /run
mkdir -p /run/secrets/kubernetes.io/serviceaccount
mount --bind "$1" /run/secrets/kubernetes.io/serviceaccount
exec "$2"`

func (k *kubelet) start(ctx context.Context, pod *corev1.Pod) (*harness.Program, error) {
	token, err := k.Cluster.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	if err != nil {
		return nil, err
	}
	ca, err := k.Cluster.Kube.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	settings, err := k.Cluster.Kube.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, pod.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	dir := k.T.TempDir()
	for name, text := range map[string]string{
		"token": token, "ca.crt": ca.Data["ca.crt"],
		"resolv.conf": "nameserver 10.96.0.10\nsearch kube-system.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	args := []string{"-i", "PATH=" + os.Getenv("PATH"), "NODE_NAME=" + pod.Spec.NodeName, "POD_NAMESPACE=" + pod.Namespace,
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"}
	for name, value := range settings.Data {
		args = append(args, name+"="+value)
	}
	return k.Cluster.StartProgram("agent-"+string(pod.UID), nil, "env", append(args, "nsenter", "--target", k.network(pod.Spec.NodeName), "--net", "--",
		"unshare", "--mount", "sh", "-c", enter, "sh", dir, k.Cluster.Root+"/bin/kube-node-ready")...)
}
