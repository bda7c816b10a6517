package loop

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// lists is a cache with these nodes, or one that fails.
type lists struct {
	client.Reader
	nodes []corev1.Node
	err   error
}

func (l *lists) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if nodes, ok := list.(*corev1.NodeList); ok {
		nodes.Items = l.nodes
	}
	return l.err
}

// step notes the plans that it gets.
type step struct {
	plans []fleet.Plan
	err   error
}

func (s *step) Act(_ context.Context, plan fleet.Plan) (time.Duration, error) {
	s.plans = append(s.plans, plan)
	return 0, s.err
}

func newLoop(cache *lists, steps ...Step) *Loop {
	request := nodepatch.Request{TaintKey: "startup", Label: "verified", LabelValue: "true", Annotation: nodepatch.Annotation}
	rules := fleet.NewRules(&corev1.PodTemplateSpec{}, request)
	return &Loop{Settings: fleet.Settings{Rules: rules, Request: request}, Cache: cache, Live: cache, Steps: steps, Log: slog.New(slog.DiscardHandler)}
}

func TestErrorsAreCounted(t *testing.T) {
	cache, broken, good := new(lists), &step{err: errors.New("refused")}, new(step)
	l := newLoop(cache, broken, good)
	decide := func() error {
		_, err := l.Reconcile(t.Context(), reconcile.Request{})
		return err
	}
	require.NoError(t, decide())
	assert.EqualValues(t, 1, l.Errors())
	assert.Len(t, good.plans, 1)

	broken.err = nil
	require.NoError(t, decide())
	assert.EqualValues(t, 1, l.Errors())

	cache.err = errors.New("no cache")
	require.ErrorIs(t, decide(), cache.err)
	assert.EqualValues(t, 2, l.Errors())
	assert.Len(t, good.plans, 2)
}

func TestNow(t *testing.T) {
	cache := new(lists)
	l := newLoop(cache)
	_, isLeader, err := l.Now(t.Context())
	require.NoError(t, err)
	assert.False(t, isLeader, "before the first decision")

	_, err = l.Reconcile(t.Context(), reconcile.Request{})
	require.NoError(t, err)
	_, isLeader, err = l.Now(t.Context())
	require.NoError(t, err)
	assert.True(t, isLeader, "of a fleet without nodes, too")

	cache.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Labels: map[string]string{"verified": "true"}}}}
	for range 2 { // without an effect: the second is as new as the first
		plan, _, err := l.Now(t.Context())
		require.NoError(t, err)
		require.Len(t, plan.Statuses, 1)
		assert.Equal(t, fleet.Verified, plan.Statuses[0].State)
	}

	cache.err = errors.New("no cache")
	_, _, err = l.Now(t.Context())
	require.ErrorIs(t, err, cache.err)
}
