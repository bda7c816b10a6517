package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// fails writes the condition False now, as it stays since then.
func (s *story) fails(reason condition.Reasons) {
	node := &s.objects.Nodes[0]
	node.Status.Conditions = append([]corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		falseCondition(reason)[0])
	node.Status.Conditions[1].LastTransitionTime, node.Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(s.now), metav1.NewTime(s.now)
}

// repeats writes the False again: the agent still finds it.
func (s *story) repeats() {
	s.objects.Nodes[0].Status.Conditions[1].LastHeartbeatTime = metav1.NewTime(s.now)
	s.decide()
}

func ofDaemonSet() []metav1.OwnerReference {
	return []metav1.OwnerReference{{Kind: "DaemonSet", Name: "agent", Controller: new(true)}}
}

// renew replaces the pod of the only agent by one that is in this state.
func (s *story) renew(state corev1.ContainerState) *corev1.Pod {
	s.objects.Pods = nil
	pod := s.pod("n1", state)
	pod.UID, pod.CreationTimestamp, pod.OwnerReferences = "renewed", metav1.NewTime(s.now), ofDaemonSet()
	if state.Running != nil {
		pod.Status.ContainerStatuses[0].ContainerID = "containerd://renewed"
	}
	return pod
}

// gatedAndFailed is a node whose agent has failed for a reason since a minute.
func gatedAndFailed(t *testing.T, reason condition.Reasons) *story {
	s := newStory(t)
	s.node("n1")
	pod := s.pod("n1", running())
	pod.CreationTimestamp, pod.OwnerReferences = metav1.NewTime(s.now), ofDaemonSet()
	s.after(7 * time.Minute)
	s.fails(reason)
	s.after(time.Minute)
	return s
}

// The condition quotes an earlier agent, and the one that runs cannot write: its sandbox is broken.
func TestFalseOfAnEarlierAgent(t *testing.T) {
	for _, writes := range []bool{true, false} {
		s := gatedAndFailed(t, condition.NodeFailed)
		s.renew(running())
		s.after(s.settings.SilentAfter - time.Minute)
		assert.Equal(t, condition.NodeFailed, s.only().Reason)
		if writes {
			s.repeats()
		}
		s.after(2 * time.Minute)
		if writes {
			assert.Equal(t, condition.NodeFailed, s.only().Reason)
			continue
		}
		wanted := s.write()
		require.NotNil(t, wanted)
		assert.Equal(t, condition.Silent, wanted.Reason)
	}
}

// A failure goes on while its agent is renewed: nobody hears of a node in progress, or of a missing agent, and what counts how long
// the node has failed does not begin again. Nothing is done to the node until the second agent has failed too.
func TestFailureGoesOnWhileItsAgentIsRenewed(t *testing.T) {
	for _, reason := range []condition.Reasons{condition.DNSFailed, condition.Silent} {
		t.Run(reason.String(), func(t *testing.T) {
			s := gatedAndFailed(t, reason)
			since := s.only().Since
			assert.True(t, s.only().Renewable)
			assert.True(t, s.only().InDoubt, "only one agent has failed")
			stays := func(renewable bool) {
				t.Helper()
				assert.Equal(t, Failed, s.only().State)
				assert.Equal(t, reason, s.only().Reason)
				assert.Equal(t, since, s.only().Since)
				assert.Empty(t, s.plan.Conditions)
				assert.True(t, s.only().InDoubt)
				assert.Equal(t, renewable, s.only().Renewable)
			}
			s.objects.Pods[0].DeletionTimestamp = &metav1.Time{Time: s.now}
			s.after(10 * time.Second)
			stays(false)
			s.objects.Pods = nil
			s.after(10 * time.Second)
			stays(false)
			s.renew(waiting("ContainerCreating"))
			s.after(10 * time.Second)
			stays(false)
			s.renew(running())
			s.after(10 * time.Second)
			assert.Equal(t, since, s.only().Since)
			assert.True(t, s.only().InDoubt)
			s.after(4*time.Minute + 50*time.Second)
			assert.True(t, s.only().InDoubt)
			s.after(10 * time.Second)
			assert.False(t, s.only().InDoubt, "the second agent has failed too")
			assert.False(t, s.only().Renewable, "re-taint and remediation come first")
			s.after(4 * time.Minute)
			assert.Equal(t, since, s.only().Since)
			assert.True(t, s.only().Renewable)
			assert.False(t, s.only().InDoubt)
			s.renew(running()).Status.ContainerStatuses[0].ContainerID = "third"
			s.after(10 * time.Second)
			assert.Equal(t, since, s.only().Since)
			assert.False(t, s.only().InDoubt, "once for each failure")
		})
	}
}

// These are no failures that a sandbox can cause, or that an agent has reported.
func TestNotRenewable(t *testing.T) {
	for name, change := range map[string]func(*story){
		"an image that does not come": func(s *story) { s.fails(condition.ImagePull) },
		"a foreign taint":             func(s *story) { s.fails(condition.TaintsOfOthers) },
		"peers alone":                 func(s *story) { s.fails(condition.PeersFailed) },
		"a refused patch":             func(s *story) { s.fails(condition.NotVerified) },
		"kubelet does not start it": func(s *story) {
			s.fails(condition.Silent)
			s.objects.Pods[0].Status.ContainerStatuses, s.objects.Pods[0].Status.Conditions = nil, nil
		},
		"kubelet is not ready": func(s *story) { s.objects.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown },
		"workers":              func(s *story) { s.settings.Workers = true },
		"verified":             func(s *story) { s.objects.Nodes[0].Labels[verified], s.objects.Nodes[0].Spec.Taints = "true", nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := gatedAndFailed(t, condition.DNSFailed)
			change(s)
			s.after(5 * time.Minute)
			assert.False(t, s.only().Renewable)
			assert.False(t, s.only().InDoubt, "nobody waits for a renewal that does not come")
		})
	}
}

// A verified node is in doubt until an agent that was started after the failure has failed too.
func TestSandboxOfAVerifiedNode(t *testing.T) {
	s := rechecked(t)
	s.objects.Pods[0].OwnerReferences = ofDaemonSet()
	s.fails(condition.DNSFailed | condition.PeersFailed)
	s.after(10 * time.Second)
	assert.True(t, s.only().Renewable)
	assert.True(t, s.only().InDoubt)
	s.objects.Pods = nil
	s.after(10 * time.Second)
	assert.False(t, s.only().Renewable)
	assert.True(t, s.only().InDoubt, "between two pods")
	s.renew(running())
	s.after(time.Minute)
	assert.True(t, s.only().InDoubt, "the new agent has not said anything")
	s.repeats()
	assert.False(t, s.only().InDoubt)
	assert.False(t, s.only().Renewable)
	s.after(5 * time.Minute)
	assert.True(t, s.only().Renewable)

	s.renew(running()).Status.ContainerStatuses[0].ContainerID = "another"
	s.decide()
	s.repeats()
	assert.False(t, s.only().InDoubt, "once for each failure")
	assert.False(t, s.only().Renewable)

	s.say(corev1.ConditionTrue, condition.Verified)
	s.after(10 * time.Minute)
	s.fails(condition.DNSFailed)
	s.after(10 * time.Second)
	assert.True(t, s.only().InDoubt, "another failure")
}

// With rounds far apart the second agent has all its rounds before a third one comes, and re-taint and remediation come first.
func TestSecondAgentHasItsTime(t *testing.T) {
	s := rechecked(t)
	s.settings.Rechecks.Interval = 10 * time.Minute // four rounds in 48 minutes
	s.fails(condition.NetworkFailed)
	s.renew(running())
	for range 48 {
		s.after(time.Minute)
		s.repeats()
		assert.True(t, s.only().InDoubt)
		assert.False(t, s.only().Renewable)
	}
	s.after(time.Minute)
	s.repeats()
	assert.False(t, s.only().InDoubt)
	assert.False(t, s.only().Renewable)
	s.after(5 * time.Minute)
	assert.False(t, s.only().InDoubt)
	assert.True(t, s.only().Renewable)
}

// The pod of a verified node gets no sandbox: that is no missing agent, after which the node would be taken for a good one.
func TestSandboxFailedOnAVerifiedNode(t *testing.T) {
	s := rechecked(t)
	s.fails(condition.DNSFailed)
	s.after(time.Minute)
	pod := s.renew(waiting("ContainerCreating"))
	s.after(2 * time.Minute)
	assert.Empty(t, s.plan.Conditions)
	s.after(2 * time.Minute)
	require.True(t, s.only().EventsWanted)
	s.objects.Events[pod.UID] = []corev1.Event{{Reason: "FailedCreatePodSandBox", Message: "no network"}}
	s.after(10 * time.Second)
	wanted := s.write()
	require.NotNil(t, wanted)
	assert.Equal(t, corev1.ConditionFalse, wanted.Status)
	assert.Equal(t, condition.SandboxFailed, wanted.Reason)
	assert.Contains(t, wanted.Message, "no network")
	assert.True(t, wanted.Event && wanted.Rechecked)
	assert.Equal(t, Verified, s.only().State)
	assert.True(t, s.only().Recheck.IsFresh(s.moment()))
	assert.False(t, s.only().InDoubt, "kubelet has tried more than one sandbox")

	s.after(5*time.Minute + 10*time.Second)
	wanted = s.write()
	require.NotNil(t, wanted, "it is refreshed")
	assert.False(t, wanted.Event, "once")
	s.after(4 * time.Minute)
	assert.Empty(t, s.plan.Conditions, "not Unknown after noAgentFor")

	s.objects.Pods[0].Status.ContainerStatuses[0].State = running()
	s.after(10 * time.Second)
	assert.Equal(t, condition.Reasons(0), s.only().Reason)
	s.ready(true)
	s.say(corev1.ConditionTrue, condition.Verified)
	s.after(10 * time.Minute)
	assert.Empty(t, s.plan.Conditions)
}

// While the next pod of such a node has not shown what keeps it, or kubelet is away for a moment, the node is still no good one.
func TestMomentWithoutAReason(t *testing.T) {
	for name, change := range map[string]func(*story){
		"its pod is deleted": func(s *story) { s.objects.Pods[0].DeletionTimestamp = &metav1.Time{Time: s.now} },
		"it has no pod":      func(s *story) { s.objects.Pods = nil },
		"another pod":        func(s *story) { s.objects.Pods[0].UID = "another" },
		"kubelet is away":    func(s *story) { s.objects.Nodes[0].Status.Conditions[0].Status = corev1.ConditionUnknown },
	} {
		t.Run(name, func(t *testing.T) {
			s := rechecked(t)
			s.fails(condition.DNSFailed)
			pod := s.renew(waiting("ContainerCreating"))
			s.objects.Events[pod.UID] = []corev1.Event{{Reason: "FailedCreatePodSandBox", Message: "no network"}}
			for range 30 {
				s.after(time.Minute)
				s.write()
			}
			require.Equal(t, condition.SandboxFailed, s.only().Recheck.Reason)
			change(s)
			s.after(2 * time.Minute)
			assert.Empty(t, s.plan.Conditions)
			assert.Less(t, s.moment().Since(s.only().NoAgent), s.settings.NoAgentFor, "the failed taint stays")
			s.after(9 * time.Minute)
			if wanted := s.write(); name != "another pod" { // that has no sandbox either
				require.NotNil(t, wanted)
				assert.Equal(t, "NotRechecked", wanted.Reason.String())
			}
		})
	}
}
