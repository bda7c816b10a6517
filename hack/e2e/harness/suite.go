package harness

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RealNode is the node of the test cluster that has a real kubelet.
const RealNode = "node1"

// Wait tells kubectl and Helm how long they may wait for something. As with patience, only a test that fails waits for so long: both
// are far longer than a machine needs that does something else as well.
const Wait = "--timeout=5m"

// patience is how long a test may take, and what comes before the tests of a package and after them.
func patience() time.Duration { return time.Duration(Pick(10, 40)) * time.Minute }

// Suite is one test's access to the test cluster. Its methods take the time that the test has and fail the test on an error;
// Cluster has those of the same names that return the error.
type Suite struct {
	*require.Assertions
	T       *testing.T
	Cluster *Cluster
	Ctx     context.Context
	Began   time.Time // what is older is of another test

	mu     sync.Mutex
	undo   []func(context.Context) error
	dumped *sync.Once
}

// Main runs the tests of a package between prepare, which may be nil, and the function that it returns, and prints the table of the
// faults that were made. It returns the exit code. Without a cluster it fails: who runs these tests wants to know.
func Main(m *testing.M, prepare func(context.Context, *Cluster) (cleanUp func(context.Context) error, err error)) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience())
	defer cancel()
	code := 1
	err := func() error {
		cluster, err := Open()
		if err != nil {
			return err
		}
		cleanUp := func(context.Context) error { return nil }
		if prepare != nil {
			if cleanUp, err = prepare(ctx, cluster); err != nil {
				return err
			}
		}
		code, err = runWithTable(m)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience())
		defer cancel()
		return cleanUp(ctx)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Core reports whether only the tests of make test run (E2E=core): those that need neither kwok nor Prometheus nor a registry.
func Core() bool { return os.Getenv("E2E") == "core" }

// Long reports whether the long version of the tests was asked for (E2E=long).
func Long() bool { return os.Getenv("E2E") == "long" }

// Pick returns how much of something the short and the long version of the tests do.
func Pick(short, long int) int {
	if Long() {
		return long
	}
	return short
}

// Start gives a test access. When the test ends, the state of the cluster is printed if the test failed, and then what Undo was given
// is done.
func Start(t *testing.T) *Suite {
	t.Helper()
	cluster, err := Open()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	t.Cleanup(cancel)
	return (&Suite{Cluster: cluster, Ctx: ctx, Began: time.Now(), dumped: new(sync.Once)}).Part(t)
}

// Part returns the access of a part of the test, which cleans up when that ends.
func (s *Suite) Part(t *testing.T) *Suite {
	t.Helper()
	part := &Suite{T: t, Cluster: s.Cluster, Assertions: require.New(t), Ctx: s.Ctx, Began: s.Began, dumped: s.dumped}
	t.Cleanup(func() {
		if t.Failed() {
			part.dumped.Do(part.dumpState)
		}
		for _, undo := range slices.Backward(part.undo) {
			ctx, cancel := context.WithTimeout(context.Background(), patience())
			if err := undo(ctx); err != nil {
				t.Errorf("cleaning up: %v", err)
			}
			cancel()
		}
	})
	return part
}

// Undo is for what the test has changed: undo runs when it ends, the last first, even when its time is over.
func (s *Suite) Undo(undo func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.undo = append(s.undo, undo)
}

// dumpState prints what a person would look at first after a failure.
func (s *Suite) dumpState() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if now, err := s.Cluster.Node(ctx, RealNode); err == nil {
		s.T.Logf("%s: taints %v labels %v", RealNode, now.Spec.Taints, now.Labels)
	}
	out, _ := s.Cluster.Kubectl(ctx, "", "get", "pods", "-A", "-o", "wide")
	s.T.Log("\n" + out)
	pods, err := s.Cluster.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + RealNode})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		if strings.HasPrefix(pod.Spec.Containers[0].Image, Image) {
			text, _ := s.Cluster.Kubectl(ctx, "", "logs", "-n", pod.Namespace, pod.Name)
			s.T.Logf("pod %s %s\n%s", pod.Name, pod.Status.Phase, text)
		}
	}
}

// Until waits until the answer is true.
func (s *Suite) Until(ask func() (bool, error), otherwise ...any) {
	s.T.Helper()
	s.NoError(Until(s.Ctx, ask), otherwise...)
}

// Kubectl runs kubectl with input.
func (s *Suite) Kubectl(input string, args ...string) string {
	s.T.Helper()
	out, err := s.Cluster.Kubectl(s.Ctx, input, args...)
	s.NoError(err)
	return out
}

// Script runs hack/cluster/cluster.
func (s *Suite) Script(args ...string) string {
	s.T.Helper()
	out, err := s.Cluster.Script(s.Ctx, args...)
	s.NoError(err)
	return out
}

// Apply creates objects and deletes them when the test ends.
func (s *Suite) Apply(manifests string) {
	s.T.Helper()
	remove, err := s.Cluster.Apply(s.Ctx, manifests)
	s.Undo(remove)
	s.NoError(err)
}

// Deploy applies the rendered chart.
func (s *Suite) Deploy(values ...string) {
	s.T.Helper()
	s.NoError(s.Cluster.Deploy(s.Ctx, values...))
}

// Gate makes a node what it is when it registers.
func (s *Suite) Gate(node string) {
	s.T.Helper()
	s.NoError(s.Cluster.Gate(s.Ctx, node))
}

// Patch applies a JSON merge patch to a node.
func (s *Suite) Patch(node, patch string) {
	s.T.Helper()
	s.NoError(s.Cluster.Patch(s.Ctx, node, patch))
}

// DeleteCondition takes the agent's condition off a node when the test ends.
func (s *Suite) DeleteCondition(node string) {
	s.Undo(func(ctx context.Context) error { return s.Cluster.DeleteCondition(ctx, node) })
}

// Node reads a node.
func (s *Suite) Node(name string) *corev1.Node {
	s.T.Helper()
	now, err := s.Cluster.Node(s.Ctx, name)
	s.NoError(err)
	return now
}

// AwaitNode waits until a node is as wanted, and returns it and the time at which it was seen.
func (s *Suite) AwaitNode(name string, wanted func(*corev1.Node) bool) (*corev1.Node, time.Time) {
	s.T.Helper()
	now, at, err := s.Cluster.AwaitNode(s.Ctx, name, wanted)
	s.NoError(err)
	return now, at
}

// AwaitVerified waits until a node is verified.
func (s *Suite) AwaitVerified(name string) (*corev1.Node, time.Time) {
	s.T.Helper()
	return s.AwaitNode(name, Verified)
}

// Unverified asserts that a node is still gated, and returns it.
func (s *Suite) Unverified(name string) *corev1.Node {
	s.T.Helper()
	now := s.Node(name)
	s.True(HasTaint(now, Taint), "the startup taint is off")
	s.NotContains(now.Labels, Label)
	return now
}

// AgentPod waits for the agent's running pod on a node.
func (s *Suite) AgentPod(node string) corev1.Pod {
	s.T.Helper()
	pod, err := s.Cluster.AgentPod(s.Ctx, node)
	s.NoError(err)
	return pod
}

// Metric reads the value of a series of a running pod. The API server may not reach a pod that has just started.
func (s *Suite) Metric(pod corev1.Pod, series string) (value float64) {
	s.T.Helper()
	var failure error
	s.NoError(Until(s.Ctx, func() (bool, error) {
		value, failure = s.Cluster.Metric(s.Ctx, pod, series)
		return failure == nil, nil
	}), failure)
	return value
}

// AwaitMetric waits until a series of a running pod is above a value.
func (s *Suite) AwaitMetric(pod corev1.Pod, series string, above float64) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		value, err := s.Cluster.Metric(s.Ctx, pod, series)
		return err == nil && value > above, nil
	}, "%s stays at or below %v", series, above)
}

// AwaitLog waits for a line of the agent's log.
func (s *Suite) AwaitLog(pod corev1.Pod, wanted func(LogLine) bool) LogLine {
	s.T.Helper()
	line, err := AwaitLine(s.Ctx, func() ([]LogLine, error) { return s.Cluster.Logs(s.Ctx, pod) }, wanted)
	s.NoError(err)
	return line
}

// FailedCheck is a line that says that a check has failed.
func FailedCheck(check string) func(LogLine) bool {
	return func(line LogLine) bool { return line.Check == check && line.Error != "" }
}

// Says is a line whose message begins so.
func Says(message string) func(LogLine) bool {
	return func(line LogLine) bool { return strings.HasPrefix(line.Msg, message) }
}

// Event waits for an Event of this test on the real node, with a reason and a part of its message.
func (s *Suite) Event(reason, part string) (found corev1.Event) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, RealNode, reason)
		for _, event := range events {
			// The times of an Event are whole seconds.
			if !event.CreationTimestamp.Time.Before(s.Began.Truncate(time.Second)) && strings.Contains(event.Message, part) {
				found = event
				return true, nil
			}
		}
		return false, err
	}, "no Event %s with %q", reason, part)
	return found
}

// SameProcess asserts that pod still runs and its container was never started again.
func (s *Suite) SameProcess(pod corev1.Pod) {
	s.T.Helper()
	now, err := s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
	s.NoError(err)
	s.Equal(pod.UID, now.UID)
	s.Zero(now.Status.ContainerStatuses[0].RestartCount)
}

// AwaitGone waits until a pod is deleted, and returns it as it was seen last.
func (s *Suite) AwaitGone(pod corev1.Pod) corev1.Pod {
	s.T.Helper()
	last := pod
	s.Until(func() (bool, error) {
		now, err := s.Cluster.Kube.CoreV1().Pods(pod.Namespace).Get(s.Ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || (err == nil && now.UID != pod.UID) {
			return true, nil
		}
		if err == nil {
			last = *now
		}
		return false, err
	}, "pod %s stays", pod.Name)
	return last
}

// Requests returns what one pod has asked the API server, as the audit log has it.
func (s *Suite) Requests(pod corev1.Pod) []Request {
	s.T.Helper()
	all, err := s.Cluster.Audit(s.Began, User)
	s.NoError(err)
	return slices.DeleteFunc(all, func(r Request) bool { return r.Pod() != pod.Name })
}

// CoreDNSPods lists the pods of the cluster's DNS.
func (s *Suite) CoreDNSPods() []corev1.Pod {
	s.T.Helper()
	pods, err := s.Cluster.Kube.CoreV1().Pods(Namespace).List(s.Ctx, metav1.ListOptions{LabelSelector: "k8s-app=kube-dns"})
	s.NoError(err)
	return pods.Items
}

// ScaleCoreDNS sets the number of DNS pods for the rest of the test.
func (s *Suite) ScaleCoreDNS(replicas int32) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.ScaleCoreDNS(ctx, 2) })
	s.NoError(s.Cluster.ScaleCoreDNS(s.Ctx, replicas))
}

// Pause stops a component, of a node where one is named behind it (SIGSTOP), until the function that it returns is called, at the
// latest when the test ends.
func (s *Suite) Pause(component ...string) (resume func()) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Signal(ctx, "CONT", component...) })
	s.NoError(s.Cluster.Signal(s.Ctx, "STOP", component...))
	return func() { s.NoError(s.Cluster.Signal(s.Ctx, "CONT", component...)) }
}

// Break adds nftables rules for the pods of the real node until Repair is called, at the latest when the test ends.
func (s *Suite) Break(rules ...string) {
	s.T.Helper()
	s.Undo(func(ctx context.Context) error { return s.Cluster.Repair(ctx, RealNode) })
	s.NoError(s.Cluster.Break(s.Ctx, RealNode, rules...))
}

// Repair takes the rules away that were added on the real node.
func (s *Suite) Repair() {
	s.T.Helper()
	s.NoError(s.Cluster.Repair(s.Ctx, RealNode))
}

// RunPod runs the workload image on the real node, in the namespace default, until the test ends, and waits until it is ready.
func (s *Suite) RunPod(name string, args ...string) {
	s.T.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default, labels: {app: %[1]s}}
spec:
  nodeName: %[2]s
  tolerations: [{operator: Exists}]
  terminationGracePeriodSeconds: 0
  containers: [{name: workload, image: "localhost/workload:1", imagePullPolicy: Never, args: [%[3]s]}]
`, name, RealNode, strings.Join(args, ", ")))
	s.AwaitReady("default", name)
}

// AwaitReady waits until a pod is ready.
func (s *Suite) AwaitReady(namespace, pod string) {
	s.T.Helper()
	s.Kubectl("", "wait", "-n", namespace, "--for=condition=Ready", "pod/"+pod, Wait)
}

// Target makes a service with a pod that accepts connections at port 80, and returns its ClusterIP.
func (s *Suite) Target() string {
	s.T.Helper()
	s.RunPod("e2e-target", "serve", `":8080"`)
	s.Apply(`
apiVersion: v1
kind: Service
metadata: {name: e2e-target, namespace: default}
spec: {selector: {app: e2e-target}, ports: [{port: 80, targetPort: 8080}]}
`)
	return s.ClusterIP("e2e-target")
}

// ClusterIP is that of a service in the namespace default.
func (s *Suite) ClusterIP(service string) string {
	s.T.Helper()
	found, err := s.Cluster.Kube.CoreV1().Services("default").Get(s.Ctx, service, metav1.GetOptions{})
	s.NoError(err)
	return found.Spec.ClusterIP
}
