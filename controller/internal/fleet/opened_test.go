package fleet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// A node that its agent has opened waits for its release, as one that somebody wants to be verified again: the controller neither
// counts on it nor takes it for silent, and corrects no condition before the label is there.
func TestOpenedNode(t *testing.T) {
	s := newStory(t)
	node := s.node("n")
	node.Spec.Taints, node.Status.Conditions = nil, falseCondition("DNSFailed")
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
