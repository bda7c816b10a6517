package fleet

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	dnsAndService = `{"verified":false,"node":"n","duration":"1s","attempts":{"dns":6},"failed":["dns","service"],"message":"dns: NXDOMAIN; service: no answer","version":"v"}`
	apiFails      = `{"verified":false,"node":"n","duration":"1s","attempts":{"api":6},"failed":["api"],"message":"api: refused","version":"v"}`
	passes        = `{"verified":true,"node":"n","duration":"240ms","attempts":{"dns":1},"version":"v"}`
)

func ended(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}
}

// newWorkerStory is a cluster in controller mode.
func newWorkerStory(t *testing.T) *story {
	s := newStory(t)
	s.settings.Workers, s.settings.FailedAfter = true, 5*time.Minute
	s.settings.Keys.WaitFor = []string{"cni/"}
	return s
}

// worker replaces the node's worker by one that makes an attempt.
func (s *story) worker(attempt int, state corev1.ContainerState) *corev1.Pod {
	s.objects.Pods = nil
	pod := s.pod("n", state)
	pod.Name += strconv.Itoa(attempt)
	pod.UID = types.UID(pod.Name)
	pod.Annotations = map[string]string{AttemptAnnotation: strconv.Itoa(attempt), NodeUIDAnnotation: "n"}
	return pod
}

func TestWorkerOutcome(t *testing.T) {
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	disrupted := []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}
	for name, test := range map[string]struct {
		state  corev1.ContainerState
		status corev1.PodStatus
		want   Outcome
	}{
		"waiting":               {state: waiting("ContainerCreating"), want: Waiting},
		"running":               {state: running(), want: Running},
		"ready":                 {state: running(), status: corev1.PodStatus{Conditions: ready}, want: Passed},
		"ended after a pass":    {state: ended(0, passes), want: Passed},
		"the message was lost":  {state: ended(0, ""), want: Passed},
		"failed":                {state: ended(1, dnsAndService), want: FailedRound},
		"failed, then evicted":  {state: ended(1, dnsAndService), status: corev1.PodStatus{Conditions: disrupted}, want: FailedRound},
		"usage":                 {state: ended(2, "--dns-service must be ..."), want: Crashed},
		"killed":                {state: ended(137, ""), want: Crashed},
		"a pass that is none":   {state: ended(1, passes), want: Crashed},
		"evicted":               {state: ended(1, ""), status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, want: Interrupted},
		"node shut down":        {state: ended(137, ""), status: corev1.PodStatus{Conditions: disrupted}, want: Interrupted},
		"refused by kubelet":    {status: corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}, want: Interrupted},
		"the phase says little": {state: running(), status: corev1.PodStatus{Phase: corev1.PodFailed}, want: Running},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: test.status}
			if test.state != (corev1.ContainerState{}) {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: test.state}}
			}
			outcome, said := WorkerOutcome(pod)
			assert.Equal(t, test.want, outcome)
			assert.Equal(t, test.want == FailedRound, len(said.Failed) > 0)
		})
	}
}

// An injected sidecar starts before the worker and does not end with it.
func TestSidecar(t *testing.T) {
	sidecar := corev1.ContainerStatus{Name: "istio-proxy", State: running()}
	pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{sidecar, {Name: "worker", State: ended(1, apiFails)}, sidecar}}}
	outcome, _ := WorkerOutcome(pod)
	assert.Equal(t, FailedRound, outcome)
	assert.True(t, HasEnded(pod))
	assert.Empty(t, snapshot{pod: pod, isVerified: true}.activeContainer())
	pod.Status.ContainerStatuses[1].State = waiting("ContainerCreating")
	outcome, _ = WorkerOutcome(pod)
	assert.Equal(t, Waiting, outcome)
	assert.False(t, HasEnded(pod))
}

// A failed round is reported once INITIAL_TIMEOUT has passed, with the agent's reasons; then the state stays while others try.
// What an earlier Node of the name was judged by says nothing about this one.
func TestWorkerOfAnEarlierNode(t *testing.T) {
	s := newWorkerStory(t)
	s.worker(5, ended(1, dnsAndService)).Annotations[FirstAnnotation] = s.now.Add(-time.Hour).Format(time.RFC3339)
	s.node("n").UID = "new"
	s.decide()
	assert.Equal(t, Unverified, s.only().State)
	assert.Empty(t, s.plan.Conditions)
}

func TestFailingWorkers(t *testing.T) {
	s := newWorkerStory(t)
	s.node("n")
	s.worker(1, running())
	s.decide()
	assert.Equal(t, InProgress, s.only().State)
	s.worker(1, ended(1, dnsAndService))
	s.after(4 * time.Minute)
	assert.Equal(t, InProgress, s.only().State)
	assert.Equal(t, condition.DNSFailed, s.only().Reason)
	assert.Empty(t, s.plan.Conditions)

	s.after(time.Minute)
	assert.Equal(t, Failed, s.only().State)
	require.Len(t, s.plan.Conditions, 1)
	written := s.plan.Conditions[0]
	assert.Equal(t, condition.DNSFailed|condition.ServiceFailed, written.Reason)
	assert.Equal(t, "dns: NXDOMAIN; service: no answer", written.Message)
	assert.True(t, written.Event)

	s.objects.Nodes[0].Status.Conditions = falseCondition(written.Reason)
	since := s.only().Since
	for _, state := range []corev1.ContainerState{waiting("ContainerCreating"), running(), ended(1, dnsAndService)} {
		s.worker(2, state)
		s.after(20 * time.Second)
		assert.Empty(t, s.plan.Conditions)
		assert.Equal(t, Failed, s.only().State)
		assert.Equal(t, since, s.only().Since, "without a break")
	}

	s.worker(3, ended(1, apiFails))
	s.after(20 * time.Second)
	require.Len(t, s.plan.Conditions, 1)
	assert.Equal(t, condition.APIFailed, s.plan.Conditions[0].Reason)

	s.objects.Nodes[0].Labels[verified], s.objects.Nodes[0].Spec.Taints = "true", nil
	require.Len(t, s.decide().Conditions, 1)
	assert.Equal(t, corev1.ConditionTrue, s.plan.Conditions[0].Status)
}

// As an agent does, the controller says of each node that was gated and is released that it is verified, and of no other: not of
// those that were there before the release was installed.
func TestVerifiedByAWorker(t *testing.T) {
	s := newWorkerStory(t)
	node := s.node("n")
	node.Spec.Taints, node.Labels[verified] = nil, "true"
	assert.Empty(t, s.decide().Conditions, "labelled by somebody else")
	node.Annotations = map[string]string{nodepatch.Annotation: record.Record{Removed: []string{}}.String()}
	assert.Empty(t, s.decide().Conditions, "labelled by an agent that had nothing else to do")
	node.Annotations[nodepatch.Annotation] = record.Record{Removed: []string{"node-ready/unverified:NoSchedule"}}.String()
	require.Len(t, s.decide().Conditions, 1)
	assert.Equal(t, condition.Verified, s.plan.Conditions[0].Reason)
	assert.False(t, s.plan.Conditions[0].Event)
	node.Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionTrue, Reason: "Verified"}}
	assert.Empty(t, s.decide().Conditions)
}

// A leader that has seen nothing calls a node failed as soon as the one before it: the retry says since when it fails.
func TestFailsForLong(t *testing.T) {
	s := newWorkerStory(t)
	s.settings.FailedAfter = time.Hour
	s.node("n")
	failing := func(attempt int, d time.Duration) {
		pod := s.worker(attempt, ended(1, apiFails))
		pod.Annotations[FirstAnnotation] = pod.CreationTimestamp.Add(-d).UTC().Format(time.RFC3339)
		s.decide()
	}
	failing(9, time.Hour-time.Second)
	assert.Equal(t, InProgress, s.only().State)
	failing(10, time.Hour)
	assert.Equal(t, Failed, s.only().State)
}

func TestWorkerThatDoesNotStart(t *testing.T) {
	for name, test := range map[string]struct {
		set     func(s *story)
		after   time.Duration
		want    condition.Reasons
		message string
	}{
		"image": {func(s *story) { s.worker(1, waiting("ImagePullBackOff")) }, 3 * time.Minute, condition.ImagePull, "kubelet's message"},
		"crash": {func(s *story) { s.worker(1, ended(2, "usage")) }, 3 * time.Minute, condition.CrashLoop, "exit code 2 usage"},
		"no room": {func(s *story) {
			s.worker(1, waiting("")).Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu", Message: "no cpu"}
		}, 3 * time.Minute, condition.Unschedulable, "OutOfcpu: no cpu"},
		"no worker": {func(*story) {}, 3 * time.Minute, condition.NoPod, "MAX_CONCURRENT_WORKERS"},
		"foreign taint": {func(s *story) {
			s.objects.Nodes[0].Spec.Taints = append(s.objects.Nodes[0].Spec.Taints, corev1.Taint{Key: "cni/off", Effect: corev1.TaintEffectNoSchedule})
		}, 5 * time.Minute, condition.TaintsOfOthers, "cni/off:NoSchedule is still on"},
		"passed, no release": {func(s *story) { s.worker(1, ended(0, passes)) }, 5 * time.Minute, condition.NotVerified, "not released"},
		"passed, the node shows too little": {func(s *story) {
			s.worker(1, ended(0, passes))
			s.objects.Unmet = map[string]string{"n": "the node has 0"}
		}, 5 * time.Minute, condition.NodeFailed, "the node has 0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWorkerStory(t)
			s.node("n")
			test.set(s)
			s.decide()
			s.after(test.after - time.Second)
			assert.NotEqual(t, Failed, s.only().State)
			s.after(time.Second)
			assert.Equal(t, Failed, s.only().State)
			require.Len(t, s.plan.Conditions, 1)
			assert.Equal(t, test.want, s.plan.Conditions[0].Reason)
			assert.Contains(t, s.plan.Conditions[0].Message, test.message)
		})
	}
}

// A node that was never gated gets no worker, and that is no failure.
func TestUngatedWithoutWorker(t *testing.T) {
	s := newWorkerStory(t)
	s.node("n").Spec.Taints = nil
	s.decide()
	s.after(time.Hour)
	assert.Equal(t, Unverified, s.only().State)
	assert.Empty(t, s.only().Reason)
	assert.Empty(t, s.plan.Conditions)
}
