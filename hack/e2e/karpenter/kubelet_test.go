package karpenter

import (
	"bytes"
	"context"
	"os"
	"os/exec"
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
	agents map[string]*exec.Cmd // by the pod's uid
	logs   map[string]*log      // by the node
	wait   sync.WaitGroup
}

// log is what one agent says.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// said returns what the agent on a node has logged.
func (k *kubelet) said(node string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if log := k.logs[node]; log != nil {
		return log.String()
	}
	return ""
}

func newKubelet(s *suite) *kubelet {
	s.Helper()
	k := &kubelet{suite: s, home: s.realPod("home"), agents: map[string]*exec.Cmd{}, logs: map[string]*log{}}
	k.network = func(string) string { return k.home }
	ctx, cancel := context.WithCancel(s.Ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		k.follow(ctx)
	}()
	s.Cleanup(func() {
		cancel()
		<-followed
		k.mu.Lock()
		for _, agent := range k.agents {
			_ = agent.Process.Signal(syscall.SIGKILL)
		}
		k.mu.Unlock()
		k.wait.Wait()
		for node, log := range k.logs {
			if said := log.String(); s.Failed() && (len(k.logs) < 5 || !strings.Contains(said, harness.MsgVerified)) {
				s.Logf("the agent on %s said:\n%s", node, said)
			}
		}
	})
	return k
}

// realPod makes a pod on the real node, and returns the process id of its sandbox, in whose network others can be run.
func (s *suite) realPod(name string) string {
	s.Helper()
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
			if started, err := k.start(ctx, pod); err != nil {
				k.T.Errorf("agent on %s: %v", pod.Spec.NodeName, err)
			} else {
				k.agents[uid] = started
			}
		case known && agent != nil && (s.deleted || pod.DeletionTimestamp != nil):
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

func (k *kubelet) start(ctx context.Context, pod *corev1.Pod) (*exec.Cmd, error) {
	token, err := k.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	if err != nil {
		return nil, err
	}
	ca, err := k.Kube.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	settings, err := k.Kube.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, pod.Spec.Containers[0].EnvFrom[0].ConfigMapRef.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	dir := k.TempDir()
	for name, text := range map[string]string{
		"token": token, "ca.crt": ca.Data["ca.crt"],
		"resolv.conf": "nameserver 10.96.0.10\nsearch kube-system.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command("nsenter", "--target", k.network(pod.Spec.NodeName), "--net", "--",
		"unshare", "--mount", "sh", "-c", enter, "sh", dir, k.Root+"/bin/kube-node-ready")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NODE_NAME=" + pod.Spec.NodeName, "POD_NAMESPACE=" + pod.Namespace,
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443"}
	for name, value := range settings.Data {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	said := new(log)
	k.logs[pod.Spec.NodeName] = said
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	k.wait.Add(1)
	go func() {
		defer k.wait.Done()
		_ = cmd.Wait()
	}()
	return cmd, nil
}
