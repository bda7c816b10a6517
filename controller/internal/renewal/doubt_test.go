package renewal

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// doubtEnds returns how long after its start a doubt has ended, for good: another day does not bring it back. Each tick is between
// two plans, 10 s apart.
func (s *story) doubtEnds(since time.Time, tick func()) time.Duration {
	s.t.Helper()
	ended := time.Duration(-1)
	for s.now.Sub(since) < 24*time.Hour {
		s.after(10 * time.Second)
		if tick(); s.inDoubt() {
			ended = -1
		} else if ended < 0 {
			ended = s.now.Sub(since)
		}
	}
	return ended
}

// Nothing delays re-taint and remediation for longer than one renewal and the next agent need: no restart of the container, no
// deletion that is refused, and no later renewal.
func TestDoubtEnds(t *testing.T) {
	const gatedFor = 5*time.Minute + 5*time.Minute // INITIAL_TIMEOUT, and what a renewal takes
	t.Run("gated, the pod is never deleted", func(t *testing.T) {
		s := gatedAndFailed(t, condition.DNSFailed)
		ended := s.doubtEnds(s.now, func() {})
		assert.Positive(t, ended)
		assert.LessOrEqual(t, ended, gatedFor)
	})
	t.Run("gated, the container restarts each hour", func(t *testing.T) {
		s := gatedAndFailed(t, condition.DNSFailed)
		s.settings.FailedAfter = 2 * time.Hour
		s.renew(running())
		n := 0
		ended := s.doubtEnds(s.now, func() { s.restartEach(time.Hour, &n) })
		assert.Positive(t, ended)
		assert.LessOrEqual(t, ended, 2*time.Hour+5*time.Minute)
	})
	for _, interval := range []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour} {
		t.Run(fmt.Sprint("rechecked each ", interval), func(t *testing.T) {
			s := rechecked(t)
			s.settings.Rechecks.Interval = interval
			s.fails(condition.Silent)
			failed, n := s.now, 0
			s.renew(running())
			ended := s.doubtEnds(failed, func() {
				s.restartEach(time.Hour, &n)
				s.repeats()
			})
			assert.Positive(t, ended)
			assert.LessOrEqual(t, ended, s.settings.Rechecks.Rounds(4)+5*time.Minute)
		})
	}
}

// restartEach restarts the agent's container so often.
func (s *story) restartEach(interval time.Duration, n *int) {
	if *n++; time.Duration(*n)*10*time.Second%interval == 0 {
		s.objects.Pods[0].Status.ContainerStatuses[0].ContainerID = fmt.Sprint("c", *n)
	}
}

// Nobody waits for a pod that would not come.
func TestNoDoubtWithoutARenewal(t *testing.T) {
	for name, change := range map[string]func(*story){
		"no DaemonSet owns the pod": func(s *story) { s.objects.Pods[0].OwnerReferences = nil },
		"an untolerated taint": func(s *story) {
			s.objects.Nodes[0].Spec.Taints = append(s.objects.Nodes[0].Spec.Taints, corev1.Taint{Key: "foreign", Effect: corev1.TaintEffectNoSchedule})
		},
		"a time to come": func(s *story) {
			s.objects.Nodes[0].Status.Conditions[1].LastTransitionTime = metav1.NewTime(s.now.Add(time.Hour))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := gatedAndFailed(t, condition.DNSFailed)
			assert.True(t, s.inDoubt())
			assert.True(t, s.renewable())
			change(s)
			s.decide()
			assert.False(t, s.renewable())
			assert.Equal(t, name == "an untolerated taint", s.inDoubt()) // kubelet's own come and go
		})
	}
}

// Kubelet misses its heartbeats while the second agent starts: how long the node has failed goes on, and so does the doubt.
func TestDoubtWhileKubeletIsNotReady(t *testing.T) {
	s := gatedAndFailed(t, condition.DNSFailed)
	since := s.only().Since
	s.renew(waiting("ContainerCreating"))
	s.after(20 * time.Second)
	s.objects.Nodes[0].Status.Conditions[0] = corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionUnknown,
		LastTransitionTime: metav1.NewTime(s.now)}
	s.after(time.Minute)
	assert.True(t, s.inDoubt())
	assert.Equal(t, since, s.only().Since)
	assert.False(t, s.renewable())
}
