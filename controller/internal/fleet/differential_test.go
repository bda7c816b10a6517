package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet/testdata/before"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

var (
	histories = flag.Int("histories", 60, "random histories of each mode that TestDecidesAsBefore compares")
	firstSeed = flag.Uint64("history", 1, "the first of them")
)

// TestDecidesAsBefore compares Decide with what it was before the controller was taken apart, over random histories of some nodes.
// It is there for the time of that work.
func TestDecidesAsBefore(t *testing.T) {
	for mode := range 3 {
		for n := range *histories {
			seed := *firstSeed + uint64(n)
			if !t.Run(fmt.Sprintf("mode %d, history %d", mode, seed), func(t *testing.T) { newHistory(seed, mode).compare(t) }) {
				return
			}
		}
	}
}

// history is a cluster of a few nodes to which things happen at random.
type history struct {
	*rand.Rand
	settings Settings
	earlier  before.Settings
	objects  Objects
	now      time.Time     // of this process
	skew     time.Duration // of the API server's clock
	count    int           // for names and ids
	calm     int           // things happen in one step of so many
	log      []string
}

func newHistory(seed uint64, mode int) *history {
	h := &history{Rand: rand.New(rand.NewPCG(seed, uint64(mode))), now: time.Now()}
	h.calm = oneOf(h, 1, 4, 10)
	story := newStory(nil)
	h.settings, h.objects = story.settings, story.objects
	h.settings.FailedTaintValue, h.settings.NoAgentFor = "knr", 10*time.Minute
	switch mode {
	case 1:
		h.settings.Rechecks = Rechecks{Interval: 10 * time.Second, FailureThreshold: 3, RecoveryThreshold: 3}
	case 2:
		h.settings.Workers = true
		h.settings.Request.Blocks = func(taint nodepatch.Taint) bool { return taint.Key == "foreign" }
		h.settings.Unmet = func(node string) string { return map[string]string{"n1": "it lacks something"}[node] }
	}
	s := h.settings
	h.earlier = before.Settings{Rules: before.NewRules(storyTemplate(), s.Request), Request: s.Request, ConditionType: s.ConditionType,
		Rechecks: before.Rechecks(s.Rechecks), NoAgentFor: s.NoAgentFor, FailedTaintValue: s.FailedTaintValue,
		NotStartedAfter: s.NotStartedAfter, Workers: s.Workers, Unmet: s.Unmet, FailedAfter: s.FailedAfter, SilentAfter: s.SilentAfter}
	return h
}

func (h *history) tell(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) happens(oneIn int) bool { return h.IntN(oneIn) == 0 }

func oneOf[T any](h *history, of ...T) T { return of[h.IntN(len(of))] }

// server is the time of objects.
func (h *history) server() time.Time { return h.now.Add(h.skew) }

func (h *history) compare(t *testing.T) {
	var memory Memory
	var memoryBefore before.Memory
	for step := range 240 {
		h.now = h.now.Add(oneOf(h, 10*time.Second, 10*time.Second, 10*time.Second, 250*time.Millisecond, 3*time.Second))
		if h.calm == 10 && h.happens(10) {
			h.now = h.now.Add(5 * time.Minute)
		}
		h.tell("%d: %s", step, h.now.Format(time.TimeOnly))
		h.change()
		is := h.decide(memory)
		was := h.earlier.Decide(before.Objects{Nodes: h.objects.Nodes, Pods: h.objects.Pods, Events: h.objects.Events,
			Seen: memoryBefore, ServerNow: h.server()}, h.now)
		memory, memoryBefore = is.Seen, was.Seen
		if a, b := h.describe(is), h.describeBefore(was); a != b {
			t.Fatalf("step %d:\nwas\n%s\nis\n%s\n%s", step, b, a, strings.Join(h.log[max(0, len(h.log)-80):], "\n"))
		}
		h.lookUp(is)
		if !h.happens(5) {
			for _, wanted := range is.Conditions {
				h.write(wanted.Node, wanted.Status, string(wanted.Reason))
			}
		}
	}
}

// decide decides as the present code does.
func (h *history) decide(memory Memory) Plan {
	objects := h.objects
	objects.Seen = memory
	return h.settings.Decide(objects, h.clock())
}

// lookUp reads the Events that the plan asks for, as the loop does.
func (h *history) lookUp(plan Plan) {
	for _, status := range plan.Statuses {
		if status.EventsWanted && h.happens(2) {
			reason := oneOf(h, "", "FailedCreatePodSandBox", "Pulling", "FailedMount")
			h.objects.Events[status.Pod.UID] = []corev1.Event{}
			if reason != "" {
				h.objects.Events[status.Pod.UID] = []corev1.Event{{Reason: reason, Message: "of kubelet"}}
			}
		}
	}
}

func (h *history) describe(plan Plan) string {
	var text strings.Builder
	for _, s := range plan.Statuses {
		_, _ = fmt.Fprintln(&text, s.Node.Name, podName(s.Pod), s.Gated, s.Untouchable, s.State, s.Reason, s.Failing, s.Message,
			h.since(s.Since), s.Retainted, s.Rebooted, s.Renewable, s.InDoubt, s.EventsWanted, s.IsPending(),
			// Explained: in controller mode a node that gets no worker had NoAgent=now in each plan, and so a plan each 10 s.
			s.ChangesWithTime() && (s.IsPending() || !h.settings.Workers))
		r := s.Recheck
		_, _ = fmt.Fprintln(&text, "  ", r.Failed, r.Reason, r.IsFresh(h.clock()), h.since(r.FailedAt), h.since(r.Refreshed), h.since(r.NotReady),
			r.Spoke, h.noAgent(h.since(r.NoAgent)))
	}
	for _, c := range plan.Conditions {
		_, _ = fmt.Fprintln(&text, c.Node.Name, c.Status, c.Reason, c.Message, c.Event, c.Rechecked)
	}
	return text.String()
}

func (h *history) describeBefore(plan before.Plan) string {
	var text strings.Builder
	for _, s := range plan.Statuses {
		_, _ = fmt.Fprintln(&text, s.Node.Name, podName(s.Pod), s.Gated, s.Untouchable, s.State, s.Reason, s.Failing, s.Message,
			h.ago(s.Since), s.Retainted, s.Rebooted, s.Renewable, s.InDoubt, s.EventsWanted, s.IsPending(),
			// Explained: in controller mode a node that gets no worker had NoAgent=now in each plan, and so a plan each 10 s.
			s.ChangesWithTime() && (s.IsPending() || !h.settings.Workers))
		r := s.Recheck
		_, _ = fmt.Fprintln(&text, "  ", r.Failed, r.Reason, r.IsFresh(h.now), h.ago(r.FailedAt), h.ago(r.Refreshed), h.ago(r.NotReady),
			r.Spoke, h.noAgent(h.ago(r.NoAgent)))
	}
	for _, c := range plan.Conditions {
		_, _ = fmt.Fprintln(&text, c.Node.Name, c.Status, c.Reason, c.Message, c.Event, c.Rechecked)
	}
	return text.String()
}

func (h *history) clock() clock.Now { return clock.At(h.now, h.server()) }

func (h *history) since(at clock.Mark) string {
	if at.IsZero() {
		return "never"
	}
	return h.clock().Since(at).String()
}

func (h *history) ago(at time.Time) string {
	if at.IsZero() {
		return "never"
	}
	return h.now.Sub(at).String()
}

// noAgent leaves out what has no meaning in controller mode.
func (h *history) noAgent(since string) string {
	if h.settings.Workers {
		return ""
	}
	return since
}

func podName(pod *corev1.Pod) string {
	if pod == nil {
		return "no pod"
	}
	return pod.Name
}

// change lets some things happen.
func (h *history) change() {
	// The objects of earlier plans stay as they were.
	h.objects.Nodes, h.objects.Pods = copyNodes(h.objects.Nodes), copyPods(h.objects.Pods)
	if len(h.objects.Nodes) < 3 || h.happens(100) && len(h.objects.Nodes) < 5 {
		h.addNode()
	}
	if h.happens(100) {
		// What is more than a minute ahead is stale now at once, and in doubt while the clock is unknown: see clock.Clock.
		h.skew = oneOf(h, 0, 29*time.Second, -29*time.Second)
		h.tell("the API server's clock is ahead by %s", h.skew)
	}
	for i := range h.objects.Nodes {
		if h.happens(h.calm) {
			h.changeNode(&h.objects.Nodes[i])
		}
	}
	if h.happens(150) && len(h.objects.Nodes) > 0 {
		h.tell("%s is gone", h.objects.Nodes[0].Name)
		h.objects.Nodes = h.objects.Nodes[1:]
	}
	var kept []corev1.Pod
	for i := range h.objects.Pods {
		if pod := &h.objects.Pods[i]; !h.happens(h.calm) || h.changePod(pod) {
			kept = append(kept, *pod)
		}
	}
	h.objects.Pods = kept
}

func copyNodes(list []corev1.Node) (copied []corev1.Node) {
	for i := range list {
		copied = append(copied, *list[i].DeepCopy())
	}
	return copied
}

func copyPods(list []corev1.Pod) (copied []corev1.Pod) {
	for i := range list {
		copied = append(copied, *list[i].DeepCopy())
	}
	return copied
}

const releasedBy = `{"time":"2026-01-01T00:00:00Z","removed":["node-ready/unverified=true:NoSchedule"],"bootID":"%s"}`

func (h *history) addNode() {
	h.count++
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", h.count), UID: types.UID(fmt.Sprint("uid", h.count)),
		CreationTimestamp: metav1.NewTime(h.server()), Labels: map[string]string{"kubernetes.io/os": "linux"}, Annotations: map[string]string{}}}
	node.Status.NodeInfo.BootID = "boot1"
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	switch h.IntN(5) {
	case 0: // never gated
	case 1, 2:
		node.Labels[verified], node.Annotations[nodepatch.Annotation] = "true", fmt.Sprintf(releasedBy, "boot1")
	default:
		h.taint(&node, startup, "true")
	}
	h.tell("%s joins: %v %v %v", node.Name, node.Spec.Taints, node.Labels, node.Annotations)
	h.objects.Nodes = append(h.objects.Nodes, node)
}

func (h *history) taint(node *corev1.Node, key, value string) {
	if !HasTaint(node, key) {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule})
	}
}

func (h *history) untaint(node *corev1.Node, keys ...string) {
	var kept []corev1.Taint
	for _, taint := range node.Spec.Taints {
		if !strings.Contains(strings.Join(keys, ","), taint.Key) {
			kept = append(kept, taint)
		}
	}
	node.Spec.Taints = kept
}

func (h *history) write(node *corev1.Node, status corev1.ConditionStatus, reason string) {
	for i := range h.objects.Nodes {
		if current := &h.objects.Nodes[i]; current.UID == node.UID {
			h.setCondition(current, status, reason)
		}
	}
}

func (h *history) setCondition(node *corev1.Node, status corev1.ConditionStatus, reason string) {
	now := metav1.NewTime(h.server())
	is := corev1.NodeCondition{Type: condition, Status: status, Reason: reason, Message: "of " + reason, LastHeartbeatTime: now, LastTransitionTime: now}
	h.tell("%s: condition %s %s", node.Name, status, reason)
	for i, c := range node.Status.Conditions {
		if c.Type == condition {
			if c.Status == status {
				is.LastTransitionTime = c.LastTransitionTime
			}
			node.Status.Conditions[i] = is
			return
		}
	}
	node.Status.Conditions = append(node.Status.Conditions, is)
}

func (h *history) changeNode(node *corev1.Node) {
	say := func(what string) { h.tell("%s: %s", node.Name, what) }
	switch h.IntN(60) {
	case 0, 1:
		say("released")
		h.untaint(node, startup, "node-ready/failed")
		node.Labels[verified], node.Annotations[nodepatch.Annotation] = "true", fmt.Sprintf(releasedBy, node.Status.NodeInfo.BootID)
		if h.happens(2) {
			h.setCondition(node, corev1.ConditionTrue, "Verified")
		}
	case 2:
		say("startup taint")
		h.taint(node, startup, "true")
	case 3:
		say("label off")
		delete(node.Labels, verified)
	case 4:
		say("failed taint")
		h.taint(node, "node-ready/failed", oneOf(h, "knr", "true"))
	case 5:
		say("failed taint off")
		h.untaint(node, "node-ready/failed")
	case 6:
		say("cordon changes")
		node.Spec.Unschedulable = !node.Spec.Unschedulable
	case 7, 8, 9:
		h.setCondition(node, corev1.ConditionFalse, oneOf(h, "DNSFailed", "DNSFailed,ServiceFailed", "PeersFailed", "Silent", "NoPod", "NotVerified", "TaintsOfOthers", "Else"))
	case 10:
		h.setCondition(node, oneOf(h, corev1.ConditionTrue, corev1.ConditionUnknown), oneOf(h, "Verified", "NotRechecked"))
	case 11:
		if h.happens(3) {
			say("condition gone")
			node.Status.Conditions = node.Status.Conditions[:1]
		}
	case 12:
		ready := &node.Status.Conditions[0]
		ready.Status = oneOf(h, corev1.ConditionTrue, corev1.ConditionTrue, corev1.ConditionFalse)
		ready.LastTransitionTime = metav1.NewTime(h.server())
		say("ready " + string(ready.Status))
	case 13:
		if h.happens(3) {
			say("boots")
			node.Status.NodeInfo.BootID += "1"
		}
	case 14:
		if h.happens(4) {
			say("foreign taint, label or pool")
			switch h.IntN(4) {
			case 0:
				h.taint(node, "other", "true")
			case 1:
				h.untaint(node, "other")
			case 2:
				node.Labels[verified] = "excluded"
			case 3:
				node.Labels["pool"] = oneOf(h, "excluded", "")
			}
		}
	case 15:
		if h.happens(10) {
			say("being deleted")
			node.DeletionTimestamp = &metav1.Time{Time: h.server()}
		}
	}
	if h.happens(40) {
		h.taint(node, "foreign", "true")
	} else if h.happens(10) {
		h.untaint(node, "foreign")
	}
	if written := nodeCondition(node, condition); written.Status == corev1.ConditionFalse && h.happens(15) {
		h.setCondition(node, corev1.ConditionFalse, written.Reason) // the heartbeat
	}
	if h.happens(12) && (len(h.objects.Pods) < 2*len(h.objects.Nodes)) {
		h.addPod(node)
	}
}

func (h *history) addPod(node *corev1.Node) {
	h.count++
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", h.count), Namespace: "kube-system", UID: types.UID(fmt.Sprint("pod", h.count)),
		CreationTimestamp: metav1.NewTime(h.server()), Annotations: map[string]string{AttemptAnnotation: fmt.Sprint(h.count)}}}
	if !h.happens(8) {
		pod.OwnerReferences = ofDaemonSet()
	}
	if h.settings.Workers && h.happens(2) {
		pod.Annotations[FirstAnnotation] = h.server().Add(-oneOf(h, time.Minute, 10*time.Minute)).UTC().Format(time.RFC3339)
	}
	pod.Spec.NodeName = node.Name
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "agent", State: waiting("ContainerCreating")}}
	if !h.happens(4) {
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	}
	if h.happens(8) {
		pod.Spec.NodeName, pod.Spec.Affinity = "", forNode(node.Name)
	} else if h.happens(2) {
		h.start(&pod)
	}
	h.tell("%s: pod %s", node.Name, pod.Name)
	h.objects.Pods = append(h.objects.Pods, pod)
}

func forNode(name string) *corev1.Affinity {
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{name}}}}}}}}
}

func (h *history) start(pod *corev1.Pod) {
	h.count++
	status := &pod.Status.ContainerStatuses[0]
	status.State, status.ContainerID, pod.Status.Phase = running(), fmt.Sprint("containerd://", h.count), corev1.PodRunning
}

func (h *history) setReady(pod *corev1.Pod, is corev1.ConditionStatus) {
	kept := []corev1.PodCondition{{Type: corev1.PodReady, Status: is}}
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodReady {
			kept = append(kept, c)
		}
	}
	pod.Status.Conditions = kept
}

// changePod reports whether the pod is still there.
func (h *history) changePod(pod *corev1.Pod) bool {
	say := func(what string) { h.tell("%s: %s: %s", NodeOf(pod), pod.Name, what) }
	if pod.Spec.NodeName == "" && h.happens(3) {
		say("bound")
		pod.Spec.NodeName = NodeOf(pod)
	}
	status := &pod.Status.ContainerStatuses[0]
	switch h.IntN(40) {
	case 0, 1, 2:
		say("runs")
		h.start(pod)
	case 3, 4:
		say("ready")
		h.setReady(pod, corev1.ConditionTrue)
	case 5:
		say("not ready")
		h.setReady(pod, corev1.ConditionFalse)
	case 6:
		say("waits")
		status.State = waiting(oneOf(h, "ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"))
	case 7:
		say("restarts")
		h.start(pod)
		status.RestartCount++
	case 8:
		message := oneOf(h, "", `{"verified":false,"node":"n","failed":["dns"],"message":"m"}`, `{"verified":false,"node":"n","failed":["dns","peers"],"message":"m"}`)
		say("ends " + message)
		h.setReady(pod, corev1.ConditionFalse)
		status.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: oneOf[int32](h, 0, 1, 1), Message: message}}
	case 9:
		say("being deleted")
		pod.DeletionTimestamp = &metav1.Time{Time: h.server()}
	case 10:
		say("gone")
		return false
	case 11:
		if h.happens(4) {
			say("evicted")
			pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
		}
	}
	return pod.DeletionTimestamp == nil || !h.happens(4)
}
