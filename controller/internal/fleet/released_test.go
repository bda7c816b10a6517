package fleet

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// rechecked is a story with a verified node whose agent runs and is ready. An agent takes 36 s at most to find that it fails.
func rechecked(t *testing.T) *story {
	s := newStory(t)
	s.settings.Rechecks = Rechecks{Interval: 10 * time.Second, FailureThreshold: 3, RecoveryThreshold: 3}
	s.settings.NoAgentFor, s.settings.FailedTaintValue = 10*time.Minute, "knr"
	node := s.node("n1")
	node.Labels[verified], node.Spec.Taints = "true", nil
	node.Annotations = map[string]string{nodepatch.Annotation: `{"removed":["node-ready/unverified=true:NoSchedule"]}`}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s.pod("n1", running())
	s.ready(true)
	s.after(time.Minute)
	require.Equal(t, Verified, s.only().State)
	return s
}

func (s *story) ready(is bool) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	s.objects.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
}

// say writes the condition as an agent does, or the controller.
func (s *story) say(status corev1.ConditionStatus, reason condition.Reasons) {
	node := &s.objects.Nodes[0]
	node.Status.Conditions = append(node.Status.Conditions[:1], corev1.NodeCondition{Type: conditionType, Status: status,
		Reason: reason.String(), Message: "as written", LastHeartbeatTime: metav1.NewTime(s.now)})
}

// write returns what the plan wants to be written on the only node, and writes it.
func (s *story) write() *Condition {
	if len(s.plan.Conditions) == 0 {
		return nil
	}
	require.Len(s.t, s.plan.Conditions, 1)
	wanted := s.plan.Conditions[0]
	s.say(wanted.Status, wanted.Reason)
	s.decide()
	return &wanted
}

// An agent without a path to the API server cannot write that its node fails.
func TestAgentThatIsNotReady(t *testing.T) {
	s := rechecked(t)
	s.ready(false)
	s.after(70 * time.Second)
	assert.Empty(t, s.plan.Conditions, "not for a moment")
	s.after(10 * time.Second)
	wanted := s.write()
	require.NotNil(t, wanted)
	assert.Equal(t, corev1.ConditionFalse, wanted.Status)
	assert.Equal(t, condition.Silent, wanted.Reason)
	assert.True(t, wanted.Event && wanted.Rechecked)
	assert.Contains(t, wanted.Message, "pod kube-system/agent-n1 runs but is not ready")
	assert.True(t, s.only().Recheck.IsFresh(s.moment()))
	assert.True(t, s.only().ChangesWithTime())

	s.after(4*time.Minute + 50*time.Second)
	assert.Empty(t, s.plan.Conditions)
	s.after(20 * time.Second)
	wanted = s.write()
	require.NotNil(t, wanted, "it is refreshed")
	assert.False(t, wanted.Event, "once")

	s.ready(true)
	s.after(time.Hour)
	assert.Empty(t, s.plan.Conditions, "the agent proves that the node has recovered, and says it")
	assert.False(t, s.only().Recheck.IsFresh(s.moment()))
}

func TestAgentThatIsNotReadyForAnotherReason(t *testing.T) {
	for name, change := range map[string]func(*story){
		"its node is not ready either": func(s *story) { s.objects.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown },
		"its node is cordoned":         func(s *story) { s.objects.Nodes[0].Spec.Unschedulable = true },
		"it does not run":              func(s *story) { s.objects.Pods[0].Status.ContainerStatuses[0].State = waiting("CrashLoopBackOff") },
		"it is being deleted":          func(s *story) { s.objects.Pods[0].DeletionTimestamp = &metav1.Time{Time: s.now} },
		"it has said why":              func(s *story) { s.say(corev1.ConditionFalse, condition.DNSFailed) },
		"its node was never gated":     func(s *story) { s.objects.Nodes[0].Annotations = nil },
		"rechecks are off":             func(s *story) { s.settings.Rechecks = Rechecks{} },
	} {
		t.Run(name, func(t *testing.T) {
			s := rechecked(t)
			s.ready(false)
			change(s)
			s.after(6 * time.Minute)
			assert.Empty(t, s.plan.Conditions)
		})
	}
}

// Kubelet's probes do not reach the agent, whose rounds pass: it says True again and again.
func TestAgentWhoseProbesAreBlocked(t *testing.T) {
	s := rechecked(t)
	s.ready(false)
	events := 0
	for range 6 * 60 {
		s.after(10 * time.Second)
		if wanted := s.write(); wanted != nil && wanted.Event {
			events++
		}
		if s.only().Recheck.Failed && s.moment().Since(s.only().Recheck.FailedAt) >= 30*time.Second {
			s.say(corev1.ConditionTrue, condition.Verified)
		}
	}
	assert.Equal(t, 1, events, "in an hour")
}

// One that crashes at once, again and again, is no agent: its node must not keep the failed taint for it.
func TestAgentThatCrashes(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.NetworkFailed)
	s.ready(false)
	var unknown bool
	for i := range 5 {
		s.objects.Pods[0].Status.ContainerStatuses[0] = corev1.ContainerStatus{State: running(), ContainerID: fmt.Sprint("containerd://", i)}
		s.after(5 * time.Second)
		s.objects.Pods[0].Status.ContainerStatuses[0].State = waiting("CrashLoopBackOff")
		s.after(5 * time.Minute)
		wanted := s.write()
		unknown = unknown || wanted != nil && wanted.Status == corev1.ConditionUnknown
	}
	assert.GreaterOrEqual(t, s.only().Absence.Lasted, 20*time.Minute)
	assert.True(t, unknown)
}

// Each restart lasts a moment, and the agent checks the node for nearly all of the time.
func TestRestartsAreNotNoAgent(t *testing.T) {
	for name, every := range map[string]time.Duration{"twice within five minutes": 4*time.Minute + 50*time.Second, "each minute": time.Minute} {
		t.Run(name, func(t *testing.T) {
			s := rechecked(t)
			s.settings.Rechecks.Interval = 5 * time.Minute // until a node has recovered, it takes longer than that
			s.say(corev1.ConditionFalse, condition.NetworkFailed)
			for i := range int(25 * time.Minute / every) {
				s.objects.Pods[0].Status.ContainerStatuses[0] = corev1.ContainerStatus{State: waiting("")}
				s.after(10 * time.Second)
				s.objects.Pods[0].Status.ContainerStatuses[0] = corev1.ContainerStatus{State: running(), ContainerID: fmt.Sprint("containerd://", i)}
				s.after(every - 10*time.Second)
				require.Empty(t, s.plan.Conditions)
				require.Less(t, s.only().Absence.Lasted, s.settings.NoAgentFor)
			}
		})
	}
}

// An agent that is back and has written what fails checks the node, although it has not had the time to recover.
func TestAgentThatIsBackAndFails(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.DNSFailed)
	pods := s.objects.Pods
	s.objects.Pods = nil
	s.after(11 * time.Minute)
	require.NotNil(t, s.write(), "Unknown")
	pods[0].Status.ContainerStatuses[0].ContainerID = "containerd://another"
	s.objects.Pods = pods
	s.ready(false)
	s.after(10 * time.Second)
	s.after(10 * time.Second)
	s.say(corev1.ConditionFalse, condition.DNSFailed)
	s.after(time.Second)
	assert.Empty(t, s.plan.Conditions)
	assert.Zero(t, s.only().Absence, "the failed taint stays")
}

func TestFreshFalse(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.DNSFailed)
	s.decide()
	assert.True(t, s.only().Recheck.IsFresh(s.moment()))
	assert.Equal(t, condition.DNSFailed, s.only().Recheck.Reason)
	failedAt := s.only().Recheck.FailedAt
	s.after(7 * time.Minute)
	assert.False(t, s.only().Recheck.IsFresh(s.moment()), "nobody has written it again")
	s.say(corev1.ConditionFalse, condition.DNSFailed)
	s.decide()
	assert.True(t, s.only().Recheck.IsFresh(s.moment()))
	assert.Equal(t, failedAt, s.only().Recheck.FailedAt)
	s.objects.Seen = Memory{} // another leader: the clock of the client that wrote the False proves nothing
	s.after(time.Minute)
	assert.True(t, s.only().Recheck.Failed)
	assert.False(t, s.only().Recheck.IsFresh(s.moment()))
	assert.Zero(t, s.only().Recheck.FailedAt)
	s.say(corev1.ConditionTrue, condition.Verified)
	s.decide()
	assert.False(t, s.only().Recheck.IsFresh(s.moment()))
	assert.Zero(t, s.only().Recheck.FailedAt)
}

// The rules may have changed since a node was re-tainted: it must lose the taint all the same.
func TestRetaintedNodeThatIsNotSelected(t *testing.T) {
	s := rechecked(t)
	s.objects.Nodes[0].Labels["pool"] = "excluded"
	s.decide()
	assert.Empty(t, s.plan.Statuses)
	failed := corev1.Taint{Key: "node-ready/failed", Value: "another-release", Effect: corev1.TaintEffectNoSchedule}
	s.objects.Nodes[0].Spec.Taints = []corev1.Taint{failed}
	s.decide()
	assert.Empty(t, s.plan.Statuses)
	s.objects.Nodes[0].Spec.Taints[0].Value = "knr"
	s.decide()
	assert.True(t, s.only().Retainted)
}

// A taint evicts the agent of a node that fails its rechecks. The node keeps counting as failing for NoAgentFor.
func TestFailingNodeWhoseAgentIsKeptAway(t *testing.T) {
	s := rechecked(t)
	s.settings.Rules = NewRules(new(corev1.PodTemplateSpec), s.settings.Keys)
	s.say(corev1.ConditionFalse, condition.NetworkFailed)
	s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "example.com/evict", Effect: corev1.TaintEffectNoExecute}}
	s.objects.Pods = nil
	s.decide()
	assert.True(t, s.only().Recheck.Failed)
	s.after(s.settings.NoAgentFor + time.Minute)
	wanted := s.write()
	require.NotNil(t, wanted)
	assert.Equal(t, condition.NotRechecked, wanted.Reason)
	assert.Empty(t, s.plan.Statuses)

	s.say(corev1.ConditionFalse, condition.NetworkFailed)
	s.objects.Nodes[0].Labels[verified] = "preexisting"
	s.decide()
	assert.Empty(t, s.plan.Statuses, "it was left out")
}

// The False of a verification, or of the time before it, says nothing about a node that is verified now.
func TestFalseFromBeforeTheRelease(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.DNSFailed)
	s.decide()
	delete(s.objects.Nodes[0].Labels, verified)
	s.after(time.Minute)
	s.objects.Nodes[0].Labels[verified] = "true"
	s.decide()
	assert.Equal(t, Verified, s.only().State)
	assert.False(t, s.only().Recheck.IsFresh(s.moment()))
}

// Rechecks are switched off while a node is silent and re-tainted: that is no node which lost its startup taint too early.
func TestSwitchedOffWhileRetainted(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.Silent)
	s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: "knr", Effect: corev1.TaintEffectNoSchedule}}
	s.settings.Rechecks, s.objects.Seen, s.objects.Pods = Rechecks{}, Memory{}, nil
	s.decide()
	assert.Empty(t, s.plan.Conditions)
	s.objects.Nodes[0].Spec.Taints = nil
	s.decide()
	wanted := s.write()
	require.NotNil(t, wanted)
	assert.Equal(t, corev1.ConditionTrue, wanted.Status)

	s.say(corev1.ConditionUnknown, condition.NotRechecked)
	s.decide()
	assert.NotNil(t, s.write(), "nobody else corrects it either")
}

// A container that is started again and again is not ready for a moment each time.
func TestAgentThatHasJustStarted(t *testing.T) {
	s := rechecked(t)
	s.ready(false)
	for i := range 10 {
		s.objects.Pods[0].Status.ContainerStatuses[0].ContainerID = "containerd://" + string(rune('a'+i))
		s.after(30 * time.Second)
		assert.Empty(t, s.plan.Conditions)
	}
}

// The agent of a rolling update runs for longer than a node may be without one before it has proven anything.
func TestAgentThatReplacesAnother(t *testing.T) {
	s := rechecked(t)
	s.settings.Rechecks.Interval = time.Hour
	s.say(corev1.ConditionFalse, condition.NetworkFailed)
	pods := s.objects.Pods
	s.objects.Pods = nil
	s.after(10 * time.Second)
	s.objects.Pods = pods
	for range 30 {
		s.after(time.Minute)
		assert.Empty(t, s.plan.Conditions)
	}
	assert.Zero(t, s.only().Absence)
}

// An agent that has said False and loses the API server cannot say it again.
func TestStaleFalseOfAnAgentThatIsNotReady(t *testing.T) {
	s := rechecked(t)
	s.say(corev1.ConditionFalse, condition.NetworkFailed)
	s.ready(false)
	s.after(7*time.Minute + 30*time.Second)
	assert.Empty(t, s.plan.Conditions)
	s.after(30 * time.Second)
	wanted := s.write()
	require.NotNil(t, wanted)
	assert.Equal(t, condition.Silent, wanted.Reason)
	assert.True(t, wanted.Event)
}
