package renewal

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// Nothing is done to a node until its second agent has failed too, and re-taint and remediation come before a third one.
func TestDoubtWhileAnAgentIsRenewed(t *testing.T) {
	for _, reason := range []condition.Reasons{condition.DNSFailed, condition.Silent} {
		t.Run(reason.String(), func(t *testing.T) {
			s := gatedAndFailed(t, reason)
			assert.True(t, s.renewable())
			assert.True(t, s.inDoubt(), "only one agent has failed")
			stays := func(renewable bool) {
				t.Helper()
				assert.True(t, s.inDoubt())
				assert.Equal(t, renewable, s.renewable())
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
			assert.True(t, s.inDoubt())
			s.after(4*time.Minute + 50*time.Second)
			assert.True(t, s.inDoubt())
			s.after(10 * time.Second)
			assert.False(t, s.inDoubt(), "the second agent has failed too")
			assert.False(t, s.renewable(), "re-taint and remediation come first")
			s.after(4 * time.Minute)
			assert.True(t, s.renewable())
			assert.False(t, s.inDoubt())
			s.renew(running()).Status.ContainerStatuses[0].ContainerID = "third"
			s.after(10 * time.Second)
			assert.False(t, s.inDoubt(), "once for each failure")
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
			assert.False(t, s.renewable())
			assert.False(t, s.inDoubt(), "nobody waits for a renewal that does not come")
		})
	}
}

// A verified node is in doubt until an agent that was started after the failure has failed too.
func TestSandboxOfAVerifiedNode(t *testing.T) {
	s := rechecked(t)
	s.fails(condition.DNSFailed | condition.PeersFailed)
	s.after(10 * time.Second)
	assert.True(t, s.renewable())
	assert.True(t, s.inDoubt())
	s.objects.Pods = nil
	s.after(10 * time.Second)
	assert.False(t, s.renewable())
	assert.True(t, s.inDoubt(), "between two pods")
	s.renew(running())
	s.after(time.Minute)
	assert.True(t, s.inDoubt(), "the new agent has not said anything")
	s.repeats()
	assert.False(t, s.inDoubt())
	assert.False(t, s.renewable())
	s.after(5 * time.Minute)
	assert.True(t, s.renewable())

	s.renew(running()).Status.ContainerStatuses[0].ContainerID = "another"
	s.decide()
	s.repeats()
	assert.False(t, s.inDoubt(), "once for each failure")
	assert.False(t, s.renewable())

	s.say(corev1.ConditionTrue, condition.Verified)
	s.after(10 * time.Minute)
	s.fails(condition.DNSFailed)
	s.after(10 * time.Second)
	assert.True(t, s.inDoubt(), "another failure")
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
		assert.True(t, s.inDoubt())
		assert.False(t, s.renewable())
	}
	s.after(time.Minute)
	s.repeats()
	assert.False(t, s.inDoubt())
	assert.False(t, s.renewable())
	s.after(5 * time.Minute)
	assert.False(t, s.inDoubt())
	assert.True(t, s.renewable())
}
