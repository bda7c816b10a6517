package fleet

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup       = "node-ready/unverified"
	verified      = "node-ready/verified"
	conditionType = "NodeVerified"
)

// story is a cluster over time, as one leader sees it.
type story struct {
	t        *testing.T
	settings Settings
	objects  Objects
	now      time.Time
	plan     Plan
}

// storyTemplate is the agent's pod.
func storyTemplate() *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		NodeSelector: map[string]string{"kubernetes.io/os": "linux"},
		Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: verified, Operator: corev1.NodeSelectorOpDoesNotExist},
				{Key: "pool", Operator: corev1.NodeSelectorOpNotIn, Values: []string{"excluded"}},
			}}}}}},
		Tolerations: []corev1.Toleration{{Key: startup, Operator: corev1.TolerationOpExists}, {Key: "node-ready/failed", Operator: corev1.TolerationOpExists}},
	}}
}

func newStory(t *testing.T) *story {
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: verified, LabelValue: "true"}
	return &story{t: t, now: time.Now(), objects: Objects{Events: make(map[types.UID][]corev1.Event)}, settings: Settings{
		Rules: NewRules(storyTemplate(), keys), Keys: keys, ConditionType: conditionType,
		NotStartedAfter: 3 * time.Minute, FailedAfter: 5 * time.Minute, SilentAfter: 6 * time.Minute}}
}

// moment is the time by both clocks, which agree.
func (s *story) moment() clock.Now { return clock.At(s.now, s.now) }

// node adds a gated node.
func (s *story) node(name string) *corev1.Node {
	s.objects.Nodes = append(s.objects.Nodes, corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{"kubernetes.io/os": "linux"}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}},
	})
	return &s.objects.Nodes[len(s.objects.Nodes)-1]
}

// pod adds the agent's pod of a node, which kubelet has seen and whose container is as given.
func (s *story) pod(node string, state corev1.ContainerState) *corev1.Pod {
	status := corev1.ContainerStatus{State: state}
	if state.Running != nil {
		status.ContainerID = "containerd://" + node
	}
	s.objects.Pods = append(s.objects.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node, Namespace: "kube-system", UID: types.UID("agent-" + node)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status},
			Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}},
	})
	return &s.objects.Pods[len(s.objects.Pods)-1]
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "kubelet's message"}}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

// decide decides from what a cache keeps of the objects.
func (s *story) decide() Plan {
	cached := s.objects
	cached.Nodes, cached.Pods = make([]corev1.Node, len(s.objects.Nodes)), make([]corev1.Pod, len(s.objects.Pods))
	for i := range s.objects.Nodes {
		slim, err := SlimNode(conditionType, false, nodepatch.Annotation)(&s.objects.Nodes[i])
		require.NoError(s.t, err)
		cached.Nodes[i] = *slim.(*corev1.Node)
	}
	for i := range s.objects.Pods {
		slim, err := SlimPod(&s.objects.Pods[i])
		require.NoError(s.t, err)
		cached.Pods[i] = *slim.(*corev1.Pod)
	}
	s.plan = s.settings.Decide(cached, s.moment())
	require.Equal(s.t, s.plan, s.settings.Decide(cached, s.moment()), "a decision has no side effect")
	s.objects.Seen = s.plan.Seen
	return s.plan
}

// after lets time pass, with a decision every 10 s.
func (s *story) after(d time.Duration) Plan {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(min(10*time.Second, end.Sub(s.now)))
		s.decide()
	}
	return s.plan
}

func (s *story) only() Status {
	require.Len(s.t, s.plan.Statuses, 1)
	return s.plan.Statuses[0]
}

func falseCondition(reason condition.Reasons) []corev1.NodeCondition {
	return []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionFalse, Reason: reason.String(), Message: "as written"}}
}

func TestReasonOfAnAgentThatDoesNotStart(t *testing.T) {
	event := func(reason, message string) corev1.Event { return corev1.Event{Reason: reason, Message: message} }
	for name, test := range map[string]struct {
		set     func(s *story, node *corev1.Node)
		want    condition.Reasons
		message string
	}{
		"no pod": {func(*story, *corev1.Node) {}, condition.NoPod, "check the DaemonSet"},
		"no pod, a taint": {func(_ *story, node *corev1.Node) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoSchedule})
		}, condition.NoPod, "dedicated=gpu:NoSchedule"},
		"no pod, a label of another value": {func(_ *story, node *corev1.Node) { node.Labels[verified] = "no" }, condition.NoPod, verified + "=no"},
		"not bound": {func(s *story, node *corev1.Node) {
			pod := s.pod("", corev1.ContainerState{})
			pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Values: []string{node.Name}}}}}}}}
			pod.Status.ContainerStatuses = nil
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "Insufficient cpu"}}
		}, condition.Unschedulable, "Insufficient cpu"},
		"image":        {func(s *story, node *corev1.Node) { s.pod(node.Name, waiting("ImagePullBackOff")) }, condition.ImagePull, "kubelet's message"},
		"image name":   {func(s *story, node *corev1.Node) { s.pod(node.Name, waiting("InvalidImageName")) }, condition.ImagePull, "InvalidImageName"},
		"crash":        {func(s *story, node *corev1.Node) { s.pod(node.Name, waiting("CrashLoopBackOff")) }, condition.CrashLoop, "kubelet's message"},
		"no container": {func(s *story, node *corev1.Node) { s.pod(node.Name, waiting("CreateContainerConfigError")) }, condition.CrashLoop, "kubelet's message"},
		"not seen by kubelet": {func(s *story, node *corev1.Node) {
			s.pod(node.Name, corev1.ContainerState{}).Status = corev1.PodStatus{}
		}, condition.Silent, "kubelet has not reported"},
		"not ended by kubelet": {func(s *story, node *corev1.Node) {
			pod := s.pod(node.Name, running())
			pod.DeletionTimestamp = new(metav1.Now())
			s.objects.Events[pod.UID] = []corev1.Event{event("FailedCreatePodSandBox", "long ago")}
		}, condition.Silent, "kubelet does not stop it"},
		"no sandbox": {func(s *story, node *corev1.Node) {
			pod := s.pod(node.Name, waiting("ContainerCreating"))
			s.objects.Events[pod.UID] = []corev1.Event{event("Scheduled", ""), event("FailedCreatePodSandBox", "no CNI")}
		}, condition.SandboxFailed, "no CNI"},
		"a pull that does not end": {func(s *story, node *corev1.Node) {
			pod := s.pod(node.Name, waiting("ContainerCreating"))
			s.objects.Events[pod.UID] = []corev1.Event{event("FailedCreatePodSandBox", "at first"), event("Pulling", "Pulling image")}
		}, condition.ImagePull, "Pulling image"},
		"a volume": {func(s *story, node *corev1.Node) {
			pod := s.pod(node.Name, waiting("ContainerCreating"))
			s.objects.Events[pod.UID] = []corev1.Event{event("FailedMount", "no volume")}
		}, condition.Silent, "no volume"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			test.set(s, s.node("n1"))
			s.decide()
			assert.NotEqual(t, Failed, s.only().State, "not at once")
			assert.Empty(t, s.plan.Conditions)
			s.after(3 * time.Minute)
			status := s.only()
			assert.Equal(t, Failed, status.State)
			assert.Equal(t, test.want, status.Reason)
			assert.Contains(t, status.Message, test.message)
			require.Len(t, s.plan.Conditions, 1)
			assert.Equal(t, corev1.ConditionFalse, s.plan.Conditions[0].Status)
			assert.True(t, s.plan.Conditions[0].Event)

			s.objects.Nodes[0].Status.Conditions = falseCondition(test.want)
			assert.Empty(t, s.after(time.Hour).Conditions, "once")
		})
	}
}

// Only the Events tell a missing sandbox from a slow pull: no verdict before they are read.
func TestEventsAreReadFirst(t *testing.T) {
	s := newStory(t)
	s.node("n1")
	pod := s.pod("n1", waiting("ContainerCreating"))
	s.decide()
	s.after(170 * time.Second)
	assert.False(t, s.only().EventsWanted)
	s.after(10 * time.Second)
	assert.True(t, s.only().EventsWanted)
	assert.Equal(t, pod.Name, s.only().Pod.Name)
	assert.Empty(t, s.plan.Conditions)
	assert.Equal(t, Pending, s.only().State)
	s.objects.Events[pod.UID] = []corev1.Event{}
	s.decide()
	assert.Equal(t, condition.Silent, s.only().Reason)
	assert.False(t, s.only().EventsWanted)
}

func TestRunningAgent(t *testing.T) {
	s := newStory(t)
	s.node("n1")
	s.pod("n1", running())
	s.after(5 * time.Minute)
	assert.Equal(t, InProgress, s.only().State)
	assert.Empty(t, s.plan.Conditions)

	t.Run("speaks", func(t *testing.T) {
		s.objects.Nodes[0].Status.Conditions = falseCondition(condition.DNSFailed | condition.ServiceFailed)
		s.after(time.Hour)
		assert.Equal(t, Failed, s.only().State)
		assert.Equal(t, condition.DNSFailed, s.only().Reason)
		assert.Empty(t, s.plan.Conditions, "the agent speaks for itself")
	})
	t.Run("is silent", func(t *testing.T) {
		s.objects.Nodes[0].Status.Conditions = nil
		s.after(10 * time.Second)
		assert.Equal(t, condition.Silent, s.only().Reason)
		require.Len(t, s.plan.Conditions, 1)
	})
}

// A container that runs for a moment, again and again, is no agent that runs.
func TestCrashLoopIsNotRunning(t *testing.T) {
	s := newStory(t)
	s.node("n1")
	pod := s.pod("n1", waiting("CrashLoopBackOff"))
	for i := range 8 {
		pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{State: running(), ContainerID: fmt.Sprint(i), RestartCount: int32(i + 1)}
		s.after(5 * time.Second)
		pod.Status.ContainerStatuses[0] = corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), RestartCount: int32(i + 1)}
		s.after(30 * time.Second)
	}
	assert.Equal(t, Failed, s.only().State)
	assert.Equal(t, condition.CrashLoop, s.only().Reason)
}

// Such a node gets no condition. One that is not ours is not counted either.
func TestNothingIsDoneTo(t *testing.T) {
	tainted := func(key string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
		}
	}
	for name, test := range map[string]struct {
		set    func(*corev1.Node)
		isOurs bool
	}{
		"another pool":                  {func(n *corev1.Node) { n.Labels["pool"] = "excluded" }, false},
		"Windows":                       {func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "windows" }, false},
		"verified, elsewhere":           {func(n *corev1.Node) { n.Labels["pool"], n.Labels[verified] = "excluded", "true" }, false},
		"left out by the label's value": {func(n *corev1.Node) { n.Labels[verified], n.Spec.Taints = "preexisting", nil }, false},
		"a taint, not gated":            {func(n *corev1.Node) { n.Spec.Taints = nil; tainted("other")(n) }, false},
		"cordoned":                      {func(n *corev1.Node) { n.Spec.Unschedulable = true }, true},
		"being deleted":                 {func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, true},
		"disrupted":                     {tainted("karpenter.sh/disrupted"), true},
		"scaled down":                   {tainted("ToBeDeletedByClusterAutoscaler"), true},
		"never gated":                   {func(n *corev1.Node) { n.Spec.Taints = nil }, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			test.set(s.node("n1"))
			s.after(time.Hour)
			assert.Equal(t, test.isOurs, len(s.plan.Statuses) == 1)
			assert.Empty(t, s.plan.Conditions)
		})
	}
}

// Rechecking agents stay on verified nodes, and come to no node with the value preexisting. Without its label it would get one.
func TestRulesAboutTheLabelDoNotCount(t *testing.T) {
	s := newStory(t)
	terms := []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: verified, Operator: corev1.NodeSelectorOpNotIn, Values: []string{"preexisting"}}}}}
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}}}
	s.settings.Rules = NewRules(template, s.settings.Keys)
	s.settings.Rechecks = Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}
	node := s.node("n1")
	node.Labels[verified], node.Spec.Taints = "preexisting", nil
	assert.True(t, s.settings.Rules.Select(node))
	s.after(time.Hour)
	assert.Empty(t, s.plan.Statuses, "it counts for no budget")

	// Somebody adds the startup taint: nobody removes it, and the controller says why.
	s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}
	s.after(time.Second)
	s.after(time.Hour)
	assert.Equal(t, Failed, s.only().State)
	assert.Equal(t, condition.NoPod, s.only().Reason)
}

// A node that was rebooted has no startup taint, and serves while it waits to be verified again: whatever keeps its agent or worker
// from it, it gets no condition, and does not count as failed. Only a check that fails says something against it.
func TestRebootedNodeWaits(t *testing.T) {
	for name, test := range map[string]struct {
		set     func(*story)
		written int
	}{
		"no pod":                  {func(*story) {}, 0},
		"no room for the agent":   {func(s *story) { s.pod("n1", corev1.ContainerState{}).Spec.NodeName = "" }, 0},
		"the image does not come": {func(s *story) { s.pod("n1", waiting("ImagePullBackOff")) }, 0},
		"the agent is silent":     {func(s *story) { s.pod("n1", running()) }, 0},
		"no slot for a worker":    {func(s *story) { s.settings.Workers = true }, 0},
		"a worker waits for a foreign taint": {func(s *story) {
			s.settings.Workers = true
			s.settings.Keys.WaitFor = []string{""} // any taint
			s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "foreign", Effect: corev1.TaintEffectPreferNoSchedule}}
		}, 0},
		"a worker fails": {func(s *story) {
			s.settings.Workers = true
			pod := s.pod("n1", corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1,
				Message: `{"verified":false,"node":"n1","failed":["dns"],"message":"dns: x","version":"v"}`}})
			pod.Annotations = map[string]string{NodeUIDAnnotation: "n1"}
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory(t)
			s.settings.FailedAfter = 5 * time.Minute
			node := s.node("n1")
			node.Spec.Taints = nil
			node.Annotations = map[string]string{nodepatch.Annotation: record.Record{BootID: "before"}.String()}
			node.Status.NodeInfo.BootID = "now" // and the label was removed
			test.set(s)
			s.after(time.Hour)
			assert.Len(t, s.plan.Conditions, test.written)
			assert.True(t, s.only().Gated, "somebody is to verify it")
			assert.Equal(t, test.written == 1, s.only().State == Failed)

			s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}
			s.after(time.Hour)
			assert.Len(t, s.plan.Conditions, 1, "with the startup taint it does not serve")
		})
	}
}

// Controller mode: a node failed DNS, and somebody has let it in by hand, and left it out by the label: the stale False must go.
func TestStaleFalseOfAnExcludedNode(t *testing.T) {
	s := newWorkerStory(t)
	node := s.node("n1")
	node.Labels[verified], node.Spec.Taints, node.Status.Conditions = "preexisting", nil, falseCondition(condition.DNSFailed)
	require.Len(t, s.decide().Conditions, 1)
	assert.Equal(t, corev1.ConditionUnknown, s.plan.Conditions[0].Status)
}

// The newest Event says how far kubelet has come.
func TestNewestEventDecides(t *testing.T) {
	at := func(second int, reason string) corev1.Event {
		return corev1.Event{Reason: reason, Message: reason, LastTimestamp: metav1.NewTime(time.Unix(int64(second), 0))}
	}
	for name, test := range map[string]struct {
		events []corev1.Event
		want   condition.Reasons
	}{
		"no network at first, then no volume":    {[]corev1.Event{at(1, "NetworkNotReady"), at(9, "FailedMount")}, condition.Silent},
		"no network at first, then a slow pull":  {[]corev1.Event{at(9, "Pulling"), at(1, "FailedCreatePodSandBox")}, condition.ImagePull},
		"no network at first, then no start":     {[]corev1.Event{at(1, "NetworkNotReady"), at(9, "Pulled")}, condition.Silent},
		"pulled, then no network after a reboot": {[]corev1.Event{at(1, "Pulling"), at(2, "Pulled"), at(9, "FailedCreatePodSandBox")}, condition.SandboxFailed},
		"pulled, and a pull that does not end":   {[]corev1.Event{at(1, "Pulling"), at(2, "Pulled"), at(9, "Pulling")}, condition.ImagePull},
		"pulled in the second in which it began": {[]corev1.Event{at(1, "Pulled"), at(1, "Pulling")}, condition.Silent},
		"others only":                            {[]corev1.Event{at(1, "Scheduled")}, condition.Silent},
	} {
		t.Run(name, func(t *testing.T) {
			found, _ := fromEvents(test.events)
			assert.Equal(t, test.want, found)
		})
	}
	t.Run("a container that ran before a reboot", func(t *testing.T) {
		s := newStory(t)
		s.node("n1")
		pod := s.pod("n1", waiting("ContainerCreating"))
		pod.Status.ContainerStatuses[0].RestartCount = 1
		s.objects.Events[pod.UID] = []corev1.Event{at(9, "FailedCreatePodSandBox")}
		s.decide()
		s.after(3 * time.Minute)
		assert.Equal(t, condition.SandboxFailed, s.only().Reason)
		s.objects.Events[pod.UID] = []corev1.Event{}
		s.decide()
		assert.Equal(t, condition.CrashLoop, s.only().Reason)
	})
}

// Code and policies spare the same nodes.
func TestChartHasTheRolesOfTheControlPlane(t *testing.T) {
	text, err := os.ReadFile("../../../chart/templates/_policies.tpl")
	require.NoError(t, err)
	roles := regexp.MustCompile(`node-role\.kubernetes\.io/[a-z-]+`).FindAllString(string(text), -1)
	require.Len(t, roles, 3)
	for _, role := range roles {
		assert.True(t, IsControlPlane(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{role: "true"}}}), role)
	}
}
