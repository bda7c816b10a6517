package charttest

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// formerJob is what the controller of 0.3 to 0.5 creates for a node. It is not Helm's.
const formerJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: node-ready-worker-node1-1770000000, namespace: kube-system, labels: &labels {app: kube-node-ready, component: worker, node: node1}}
spec:
  backoffLimit: 2
  completions: 1
  template:
    metadata: {labels: *labels}
    spec:
      restartPolicy: Never
      serviceAccountName: kube-node-ready-worker
      nodeSelector: {kubernetes.io/hostname: node1}
      tolerations: [{operator: Exists}]
      containers:
        - name: worker
          image: localhost/kube-node-ready:dev
          imagePullPolicy: Never
          args: [--once]
          env: [{name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}, {name: ENABLE_METRICS, value: "false"}]
`

// Whoever waits when a former release is upgraded is verified by the new one, once, and by one generation at a time. The node fails
// until the upgrade is over: the former generation is in the midst of its checks.
func TestUpgradeFromFormerCharts(t *testing.T) {
	for _, former := range []struct{ chart, block, refusal, job string }{
		{chart: "0.2"},
		{chart: "0.3", block: "upgrade-daemonset", refusal: "delete daemonset"},
		{chart: "0.5", block: "upgrade-controller", refusal: "delete deployment", job: formerJob},
	} {
		t.Run(former.chart, func(t *testing.T) {
			s := start(t)
			s.addForeignTaint()
			s.undoRelease()
			s.Break("meta l4proto { tcp, udp } th dport 53 drop")
			s.Gate(node)
			// As who has copied the chart's values: the upgrade carries them.
			values := "chart/tests/former/" + former.chart + ".yaml"
			s.helm(append([]string{"install", harness.Name, s.formerChart(former.chart), "--values", values}, harness.Set()...)...)
			if former.job != "" {
				s.apply(former.job)
			}
			generations := s.watchGenerations()
			for _, pod := range s.awaitFormerPods(former.job != "") {
				s.AwaitLog(pod, harness.FailedCheck("dns"))
			}
			began, before := time.Now(), s.daemonSetUID()

			upgrade := append([]string{"upgrade", harness.Name, "chart", "--namespace", harness.Namespace, "--wait", harness.Wait},
				harness.Set("config.checkTimeout=1s", "config.maxRetries=0")...)
			refused := func(mode, part string) {
				_, err := s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("helm"), append(upgrade, mode)...)
				s.ErrorContains(err, part)
				s.Equal(before, s.daemonSetUID())
			}
			refused("--reuse-values", "missing properties")
			if former.block != "" {
				refused("--reset-then-reuse-values", former.refusal)
				s.Bash(s.Block("chart/README.md", former.block, "sh"))
			}
			s.helm(append(upgrade, "--reset-then-reuse-values")...)
			s.AwaitLog(s.AgentPod(node), harness.FailedCheck("dns"))
			s.Unverified(node)
			if former.chart == "0.2" {
				s.Equal(before, s.daemonSetUID(), "upgraded in place")
			}

			s.Repair()
			now, _ := s.AwaitVerified(node)
			s.Contains(now.Spec.Taints, foreignTaint)
			s.NoError(s.Cluster.NoAgents(s.Ctx))
			s.Empty(generations.stop(), "pods of two generations at once")
			s.Equal(1, s.releases(began), "patches that set the label")
			for _, object := range s.inventory() {
				s.NotRegexp(`^Job |kube-node-ready-(controller|worker)`, object, "of the former release")
			}
		})
	}
}

var foreignTaint = corev1.Taint{Key: "example.com/foreign", Value: "kept", Effect: corev1.TaintEffectPreferNoSchedule}

// addForeignTaint puts a taint that keeps no pod away on the node, in front of the startup taint.
func (s *suite) addForeignTaint() {
	s.T.Helper()
	s.Kubectl("", "taint", "node", node, foreignTaint.ToString())
}

// formerChart is the stand-in for a chart before 1.0.
func (s *suite) formerChart(version string) string {
	return filepath.Join(s.Cluster.Root, "hack/e2e/charttest/testdata/former", version)
}

// helm runs Helm in the release's namespace.
func (s *suite) helm(args ...string) string {
	s.T.Helper()
	out, err := s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("helm"), append(args, "--namespace", harness.Namespace)...)
	s.NoError(err)
	return out
}

// undoRelease uninstalls the release when the test ends.
func (s *suite) undoRelease() {
	s.Undo(func(ctx context.Context) error {
		_, err := s.Cluster.Run(ctx, "", s.Cluster.Tool("helm"), "uninstall", harness.Name, "--namespace", harness.Namespace, "--ignore-not-found", "--wait")
		return err
	})
}

// daemonSetUID is "" where there is no DaemonSet.
func (s *suite) daemonSetUID() string {
	s.T.Helper()
	return s.Kubectl("", "-n", harness.Namespace, "get", "daemonset", harness.Name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")
}

// releases counts the patches since began that have set the label on a node, whatever account of the release has sent them.
func (s *suite) releases(began time.Time) (count int) {
	s.T.Helper()
	for _, account := range []string{harness.User, harness.User + "-controller", harness.User + "-worker"} {
		requests, err := s.Cluster.Audit(began, account)
		s.NoError(err)
		for _, request := range requests {
			if request.ObjectRef.Resource == "nodes" && request.Verb == "patch" && request.Response.Code == 200 &&
				strings.Contains(string(request.Body), strings.ReplaceAll(harness.Label, "/", "~1")) {
				count++
			}
		}
	}
	return count
}

// isFormer and isNew tell whose pod it is.
func isFormer(pod *corev1.Pod) bool {
	return !isNew(pod) && (pod.Labels["app.kubernetes.io/name"] == harness.Name || pod.Labels["app"] == harness.Name)
}

func isNew(pod *corev1.Pod) bool {
	return pod.Labels["app.kubernetes.io/name"] == harness.Name && pod.Labels["app.kubernetes.io/component"] == "agent"
}

// awaitFormerPods waits until the former generation runs: one pod, and with a Job two.
func (s *suite) awaitFormerPods(job bool) (found []corev1.Pod) {
	s.T.Helper()
	wanted := map[bool]int{false: 1, true: 2}[job]
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.Kube.CoreV1().Pods(harness.Namespace).List(s.Ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		found = nil
		for i := range pods.Items {
			if isFormer(&pods.Items[i]) {
				found = append(found, pods.Items[i])
			}
		}
		return len(found) == wanted, err
	}, "%d running pods of the former release", wanted)
	return found
}

// generations has what a watch has shown of the former and the new generation's pods.
type generations struct {
	live     map[types.UID]*corev1.Pod
	together []string // pods of both on one node at one time
	stop     func() []string
}

// watchGenerations watches the pods until stop, at the latest until the test ends.
func (s *suite) watchGenerations() *generations {
	s.T.Helper()
	g := &generations{live: make(map[types.UID]*corev1.Pod)}
	pods := s.Cluster.Kube.CoreV1().Pods(harness.Namespace)
	list, err := pods.List(s.Ctx, metav1.ListOptions{})
	s.NoError(err)
	for i := range list.Items {
		g.see(watch.Added, &list.Items[i])
	}
	stop := harness.Watch(s.Suite, pods, list.ResourceVersion, "", g.see)
	g.stop = func() []string {
		stop()
		return g.together
	}
	return g
}

func (g *generations) see(event watch.EventType, pod *corev1.Pod) {
	if event == watch.Deleted || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed || pod.Spec.NodeName == "" {
		delete(g.live, pod.UID)
		return
	}
	g.live[pod.UID] = pod
	for _, other := range g.live {
		if other.Spec.NodeName == pod.Spec.NodeName && (isFormer(pod) && isNew(other) || isNew(pod) && isFormer(other)) {
			g.together = append(g.together, fmt.Sprintf("%s and %s on %s", pod.Name, other.Name, pod.Spec.NodeName))
		}
	}
}
