package renewal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup  = "node-ready/unverified"
	verified = "node-ready/verified"
)

// story is a cluster with one node over time, as one leader sees it.
type story struct {
	t        *testing.T
	settings fleet.Settings
	objects  fleet.Objects
	now      time.Time
	plan     fleet.Plan
}

// decide makes a plan from the objects as they are.
func (s *story) decide() {
	s.plan = s.settings.Decide(s.objects, s.moment())
	s.objects.Seen = s.plan.Seen
}

func (s *story) inDoubt() bool { return InDoubt(s.settings, s.only(), s.moment()) }

func (s *story) renewable() bool { return isRenewable(s.settings, s.only(), s.moment()) }

// newStory has a gated node, n1, which no agent has come to.
func newStory(t *testing.T) *story {
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: verified, LabelValue: "true"}
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Key: startup, Operator: corev1.TolerationOpExists}}}}
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1", Labels: map[string]string{}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}}}
	return &story{t: t, now: time.Now(), objects: fleet.Objects{Nodes: []corev1.Node{node}}, settings: fleet.Settings{
		Rules: fleet.NewRules(template, keys), Keys: keys, ConditionType: conditionType,
		NotStartedAfter: 3 * time.Minute, FailedAfter: 5 * time.Minute, SilentAfter: 6 * time.Minute}}
}

// moment is the time by both clocks, which agree.
func (s *story) moment() clock.Now { return clock.At(s.now, s.now) }

// pod replaces the agent's pod by one that was created now.
func (s *story) pod(uid string, state corev1.ContainerState) *corev1.Pod {
	status := corev1.ContainerStatus{State: state}
	if state.Running != nil {
		status.ContainerID = "containerd://" + uid
	}
	s.objects.Pods = []corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "kube-system", UID: types.UID(uid), CreationTimestamp: metav1.NewTime(s.now),
			OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", Controller: new(true)}}},
		Spec: corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{status}, Conditions: []corev1.PodCondition{
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}}
	return &s.objects.Pods[0]
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "kubelet's message"}}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

// after lets time pass, with a decision every 10 s.
func (s *story) after(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(min(10*time.Second, end.Sub(s.now)))
		s.decide()
	}
}

func (s *story) only() fleet.Status {
	require.Len(s.t, s.plan.Statuses, 1)
	return s.plan.Statuses[0]
}

// rechecked is a story with a verified node whose agent runs and is ready. An agent takes 36 s at most to find that it fails.
func rechecked(t *testing.T) *story {
	s := newStory(t)
	s.settings.Rechecks = fleet.Rechecks{Interval: 10 * time.Second, FailureThreshold: 3, RecoveryThreshold: 3}
	s.settings.NoAgentFor, s.settings.FailedTaintValue = 10*time.Minute, "knr"
	node := &s.objects.Nodes[0]
	node.Labels[verified], node.Spec.Taints = "true", nil
	node.Annotations = map[string]string{nodepatch.Annotation: `{"removed":["node-ready/unverified=true:NoSchedule"]}`}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s.pod("first", running())
	s.after(time.Minute)
	require.Equal(t, fleet.Verified, s.only().State)
	return s
}

// say writes the condition now, as it stays since then.
func (s *story) say(status corev1.ConditionStatus, reason condition.Reasons) {
	s.objects.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
		{Type: conditionType, Status: status, Reason: reason.String(), LastTransitionTime: metav1.NewTime(s.now), LastHeartbeatTime: metav1.NewTime(s.now)}}
}

func (s *story) fails(reason condition.Reasons) { s.say(corev1.ConditionFalse, reason) }

// repeats writes the False again: the agent still finds it.
func (s *story) repeats() {
	s.objects.Nodes[0].Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(s.now)
	s.decide()
}

// renew replaces the pod of the agent by one that is in this state.
func (s *story) renew(state corev1.ContainerState) *corev1.Pod { return s.pod("renewed", state) }

// gatedAndFailed is a node whose agent has failed for a reason since a minute.
func gatedAndFailed(t *testing.T, reason condition.Reasons) *story {
	s := newStory(t)
	s.pod("first", running())
	s.after(7 * time.Minute)
	s.fails(reason)
	s.after(time.Minute)
	return s
}
