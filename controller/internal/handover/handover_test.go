package handover

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// world is a leader and a replica, on a node each.
type world struct {
	*HandOver
	t           *testing.T
	now         time.Time
	own, second fleet.Status
	left        int
}

// newWorld has a leader whose node is gated, and not verified.
func newWorld(t *testing.T, replica corev1.ConditionStatus) *world {
	labels := map[string]string{"app.kubernetes.io/component": "controller"}
	pods := fake.NewClientBuilder()
	for node, ready := range map[string]corev1.ConditionStatus{"own": corev1.ConditionTrue, "second": replica} {
		pods.WithObjects(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "on-" + node, Namespace: "system", Labels: labels},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}}})
	}
	node := func(name string) fleet.Status {
		return fleet.Status{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, Gated: true,
			Finding: fleet.Finding{State: fleet.InProgress}}
	}
	w := &world{t: t, now: time.Now(), own: node("own"), second: node("second")}
	at := func() clock.Now { return clock.At(w.now, w.now) }
	plan := func() (fleet.Plan, error) {
		return fleet.Plan{At: at(), Statuses: []fleet.Status{w.own, w.second}}, nil
	}
	w.HandOver = &HandOver{Client: pods.Build(), Namespace: "system", Replicas: labels, Leave: func() { w.left++ },
		NodeName: "own",
		Actor:    act.Actor{Plan: plan, Now: at, Timeout: time.Second, Log: slog.New(slog.DiscardHandler)}}
	return w
}

func (w *world) after(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(10 * time.Second)
		w.Once(w.t.Context(), w.act)
	}
}

func TestWhoGetsTheLease(t *testing.T) {
	for name, test := range map[string]struct {
		ready corev1.ConditionStatus
		state fleet.State
		gated bool
		left  int
	}{
		"a replica on a verified node":    {corev1.ConditionTrue, fleet.Verified, true, 1},
		"not on a node that is no better": {corev1.ConditionTrue, fleet.InProgress, true, 0},
		"not a replica that is not ready": {corev1.ConditionFalse, fleet.Verified, true, 0},
		// In controller mode nobody labels a node that never had the startup taint.
		"a replica on a node that was never gated": {corev1.ConditionTrue, fleet.InProgress, false, 1},
	} {
		w := newWorld(t, test.ready)
		w.second.State, w.second.Gated = test.state, test.gated
		w.after(70 * time.Second)
		assert.Equal(t, test.left, w.left, name)
	}
}

func TestDoesNotHandOverForAMoment(t *testing.T) {
	w := newWorld(t, corev1.ConditionTrue)
	w.second.State = fleet.Verified
	for range 10 {
		w.own.State = fleet.InProgress
		w.after(time.Minute)
		w.own.State = fleet.Verified
		w.after(time.Minute)
	}
	assert.Zero(t, w.left)
}
