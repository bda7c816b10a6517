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

// A failure goes on while its agent is renewed: no plan shows a node in progress or a missing agent, and the time for which the
// node has failed does not begin again.
func TestFailureGoesOnWhileItsAgentIsRenewed(t *testing.T) {
	for _, reason := range []condition.Reasons{condition.DNSFailed, condition.Silent} {
		t.Run(reason.String(), func(t *testing.T) {
			s := gatedAndFailed(t, reason)
			since := s.only().Since
			stays := func() {
				t.Helper()
				assert.Equal(t, Failed, s.only().State)
				assert.Equal(t, reason, s.only().Reason)
				assert.Equal(t, since, s.only().Since)
				assert.Empty(t, s.plan.Conditions)
			}
			s.objects.Pods[0].DeletionTimestamp = &metav1.Time{Time: s.now}
			s.after(10 * time.Second)
			stays()
			s.objects.Pods = nil
			s.after(10 * time.Second)
			stays()
			s.renew(waiting("ContainerCreating"))
			s.after(10 * time.Second)
			stays()
			s.renew(running())
			s.after(10 * time.Second)
			assert.Equal(t, since, s.only().Since)
			s.after(10 * time.Minute)
			assert.Equal(t, since, s.only().Since)
		})
	}
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
			assert.Less(t, s.only().Absence.Lasted, s.settings.NoAgentFor, "the failed taint stays")
			s.after(9 * time.Minute)
			if wanted := s.write(); name != "another pod" { // that has no sandbox either
				require.NotNil(t, wanted)
				assert.Equal(t, "NotRechecked", wanted.Reason.String())
			}
		})
	}
}
