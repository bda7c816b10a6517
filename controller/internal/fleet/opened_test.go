package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// A node that its agent has opened waits for its release, as one that somebody wants to be verified again: the controller neither
// counts on it nor takes it for silent, and corrects no condition before the label is there.
func TestOpenedNode(t *testing.T) {
	s := newStory(t)
	node := s.node("n")
	node.Spec.Taints, node.Status.Conditions = nil, falseCondition(condition.DNSFailed)
	node.Annotations = map[string]string{nodepatch.Annotation: `{"opened":"2026-01-02T03:04:05Z","removed":["node-ready/unverified=true:NoSchedule"]}`}
	s.pod("n", running())
	assert.Empty(t, s.after(time.Hour).Conditions)
	assert.True(t, s.only().Gated)
	assert.Equal(t, Failed, s.only().State)
	assert.True(t, s.settings.WasGated(s.only().Node), "it may be re-tainted once it is verified")

	s.objects.Nodes[0].Status.Conditions = nil
	assert.Empty(t, s.after(time.Hour).Conditions, "the agent alone says what fails")
	assert.Equal(t, InProgress, s.only().State)

	s.objects.Pods = nil
	s.after(time.Hour)
	assert.Equal(t, Failed, s.only().State)
}

// A node that was opened manually before it was verified gets a worker in controller mode. It serves, so its failure writes no
// False, which another tool could repair or drain the node by; the state shows the failure until a worker passes.
func TestNodeOpenedManuallyInControllerMode(t *testing.T) {
	s := newWorkerStory(t)
	node := s.node("n")
	node.Status.Conditions = falseCondition(condition.DNSFailed)
	node.Annotations = map[string]string{nodepatch.Opened: "2026-01-02T03:04:05Z"}
	s.worker(4, ended(1, dnsAndService))
	s.after(5 * time.Minute)
	assert.Equal(t, Failed, s.only().State, "it is still gated")

	s.objects.Nodes[0].Spec.Taints = nil
	require.Len(t, s.decide().Conditions, 1)
	assert.Equal(t, corev1.ConditionUnknown, s.plan.Conditions[0].Status)
	assert.Equal(t, condition.NotGated, s.plan.Conditions[0].Reason)
	s.objects.Nodes[0].Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionUnknown, Reason: "NotGated"}}

	for _, step := range []func(){
		func() { s.worker(5, ended(1, apiFails)) },
		func() { s.worker(6, waiting("ContainerCreating")) },
		func() { s.worker(6, running()) },
		func() { s.worker(6, ended(1, apiFails)) },
	} {
		step()
		assert.Empty(t, s.after(time.Minute).Conditions)
		assert.Equal(t, Failed, s.only().State, "through all attempts")
		assert.Equal(t, condition.APIFailed, s.only().Reason)
	}

	s.worker(7, waiting("ImagePullBackOff"))
	assert.Empty(t, s.after(4*time.Minute).Conditions)
	assert.Equal(t, condition.ImagePull, s.only().Reason, "it does not start")

	s.objects.Pods = nil
	s.objects.Nodes[0].Labels[verified] = "true"
	s.objects.Nodes[0].Annotations[nodepatch.Annotation] = `{"time":"2026-01-02T03:04:05Z"}`
	require.Len(t, s.decide().Conditions, 1)
	assert.Equal(t, corev1.ConditionTrue, s.plan.Conditions[0].Status)

	delete(s.objects.Nodes[0].Labels, verified) // it is verified again
	s.worker(1, ended(1, apiFails))
	require.Len(t, s.after(10*time.Minute).Conditions, 1)
	assert.Equal(t, corev1.ConditionFalse, s.plan.Conditions[0].Status, "as of each node that was released before")
}

// A reason that no worker has reported says nothing about the worker that runs.
func TestOpenedNodeWithoutAFailureOfAWorker(t *testing.T) {
	s := newWorkerStory(t)
	node := s.node("n")
	node.Spec.Taints, node.Annotations = nil, map[string]string{nodepatch.Opened: "2026-01-02T03:04:05Z"}
	s.worker(1, ended(0, passes))
	s.after(10 * time.Minute)
	assert.Equal(t, Failed, s.only().State)
	assert.Equal(t, condition.NotVerified, s.only().Reason)
	s.worker(2, running())
	s.after(time.Second)
	assert.Equal(t, InProgress, s.only().State)
	assert.Empty(t, s.only().Reason)
}

func TestWhoIsGated(t *testing.T) {
	opened, record := map[string]string{nodepatch.Opened: "then"}, map[string]string{nodepatch.Annotation: "{}"}
	for name, test := range map[string]struct {
		daemonSet, tainted bool
		label              string
		annotations        map[string]string
		want               bool
	}{
		"startup taint":                         {tainted: true, want: true},
		"startup taint and label":               {tainted: true, label: "true", want: true},
		"never gated, or the taint was removed": {},
		"opened manually":                       {annotations: opened, want: true},
		"opened manually, daemonset mode":       {annotations: opened, daemonSet: true},
		"opened manually, and excluded":         {annotations: opened, label: "preexisting"},
		"opened manually, then verified":        {annotations: opened, label: "true"},
		"verified before":                       {annotations: record, want: true},
		"verified before, daemonset mode":       {annotations: record, daemonSet: true, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newWorkerStory(t)
			s.settings.Workers = !test.daemonSet
			node := s.node("n")
			node.Annotations = test.annotations
			if !test.tainted {
				node.Spec.Taints = nil
			}
			if test.label != "" {
				node.Labels[verified] = test.label
			}
			assert.Equal(t, test.want, s.settings.IsGated(node))
		})
	}
}
