package loop

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// lists is a cache with these nodes, or one that fails.
type lists struct {
	client.Reader
	nodes []corev1.Node
	pods  []corev1.Pod
	err   error
}

func (l *lists) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if nodes, ok := list.(*corev1.NodeList); ok {
		nodes.Items = l.nodes
	}
	if pods, ok := list.(*corev1.PodList); ok {
		pods.Items = l.pods
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
	keys := nodepatch.Keys{TaintKey: "startup", Label: "verified", LabelValue: "true"}
	rules := fleet.NewRules(&corev1.PodTemplateSpec{}, keys)
	return &Loop{Settings: fleet.Settings{Rules: rules, Keys: keys}, Cache: cache, Live: cache, Steps: steps, Now: (&clock.Clock{Server: time.Now}).Now,
		Log: slog.New(slog.DiscardHandler)}
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

func TestLast(t *testing.T) {
	cache := new(lists)
	l := newLoop(cache)
	plan, err := l.Last()
	require.NoError(t, err)
	assert.Zero(t, plan, "before the first decision")
	decide := func() error {
		_, err := l.Reconcile(t.Context(), reconcile.Request{})
		return err
	}

	require.NoError(t, decide())
	plan, err = l.Last()
	require.NoError(t, err)
	assert.NotZero(t, plan.At, "of a fleet without nodes, too")

	cache.nodes = []corev1.Node{verifiedNode()}
	plan, err = l.Last()
	require.NoError(t, err)
	assert.Empty(t, plan.Statuses, "nothing is decided by a look at it")
	require.NoError(t, decide())
	plan, err = l.Last()
	require.NoError(t, err)
	require.Len(t, plan.Statuses, 1)
	assert.Equal(t, fleet.Verified, plan.Statuses[0].State)

	failure := errors.New("no cache")
	cache.err = failure
	require.ErrorIs(t, decide(), failure)
	last, err := l.Last()
	require.ErrorIs(t, err, failure)
	assert.Equal(t, plan, last, "it gets older")
	cache.err = nil
	require.NoError(t, decide())
	last, err = l.Last()
	require.NoError(t, err)
	assert.NotEqual(t, plan.At, last.At)
}

func verifiedNode() corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a", Labels: map[string]string{"verified": "true"}}}
}

// published is a step that sees what is published while it acts.
type published struct{ *Loop }

func (p published) Act(_ context.Context, plan fleet.Plan) (time.Duration, error) {
	last, err := p.Last()
	if err != nil || last.At != plan.At {
		return 0, errors.New("the plan is not published")
	}
	return 0, nil
}

func TestPublishedBeforeTheSteps(t *testing.T) {
	l := newLoop(new(lists))
	l.Steps = []Step{published{l}}
	_, err := l.Reconcile(t.Context(), reconcile.Request{})
	require.NoError(t, err)
	assert.Zero(t, l.Errors())
}

// hanging is a step that ends with its context.
type hanging struct{}

func (hanging) Act(ctx context.Context, _ fleet.Plan) (time.Duration, error) {
	<-ctx.Done()
	return 0, ctx.Err()
}

// A plan that is too old to act on is no hang: while there is something to act on, there is always a younger one, whatever the
// steps do and although nothing changes.
func TestPlansStayFresh(t *testing.T) {
	gated, retainted, failing := verifiedNode(), verifiedNode(), verifiedNode()
	gated.Labels, gated.Spec.Taints = nil, []corev1.Taint{{Key: "startup"}}
	retainted.Spec.Taints = []corev1.Taint{{Key: "failed", Value: "ours"}}
	retainted.Status.Conditions = []corev1.NodeCondition{{Type: "Verified", Status: corev1.ConditionTrue}} // nobody has removed its taint
	agent := corev1.Pod{Spec: corev1.PodSpec{NodeName: "a"}, Status: corev1.PodStatus{
		Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}}
	failing.Status.Conditions = []corev1.NodeCondition{{Type: "Verified", Status: corev1.ConditionFalse}}
	for name, node := range map[string]corev1.Node{"gated": gated, "re-tainted": retainted, "fails its rechecks": failing} {
		for steps, step := range map[string]Step{"that hang": hanging{}, "that fail": &step{err: errors.New("refused")}, "that work": new(step)} {
			t.Run(name+", steps "+steps, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLoop(&lists{nodes: []corev1.Node{node}, pods: []corev1.Pod{agent}}, step)
					l.Settings.Rechecks = fleet.Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}
					l.Settings.ConditionType, l.Settings.FailedTaintValue, l.Settings.Keys.FailedTaintKey = "Verified", "ours", "failed"
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					go func() {
						for ctx.Err() == nil { // as controller-runtime does
							result, err := l.Reconcile(ctx, reconcile.Request{})
							assert.NoError(t, err)
							if !assert.NotZero(t, result.RequeueAfter) {
								return
							}
							select {
							case <-ctx.Done():
							case <-time.After(result.RequeueAfter):
							}
						}
					}()
					for range 3500 {
						time.Sleep(time.Second)
						plan, err := l.Last()
						require.NoError(t, err)
						require.True(t, plan.IsFresh(clock.At(time.Now(), time.Now())), "made %s ago", clock.At(time.Now(), time.Now()).Since(plan.At.Mark()))
					}
				})
			})
		}
	}
}

// In a fleet of verified nodes nothing is decided as time passes.
func TestQuietFleet(t *testing.T) {
	l := newLoop(&lists{nodes: []corev1.Node{verifiedNode()}}, new(step))
	result, err := l.Reconcile(t.Context(), reconcile.Request{})
	require.NoError(t, err)
	assert.Zero(t, result)
}

func slim(t *testing.T, node *corev1.Node) *corev1.Node {
	object, err := fleet.SlimNode("NodeVerified", false, "kept")(node)
	require.NoError(t, err)
	return object.(*corev1.Node)
}

// 5,000 kubelets send 17 heartbeats a second: none of them may lead to a decision.
func TestHeartbeatIsNoChange(t *testing.T) {
	node := func(version string, at time.Time, ready corev1.ConditionStatus) *corev1.Node {
		return slim(t, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: version, Annotations: map[string]string{"kept": "a", "other": version}},
			Status: corev1.NodeStatus{
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.NewTime(at)},
					{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(at)}},
				Images: []corev1.ContainerImage{{Names: []string{"image-" + version}}},
			},
		})
	}
	before := node("1", time.Unix(1, 0), corev1.ConditionTrue)
	isChange := func(status corev1.ConditionStatus) bool {
		return Changed().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: node("2", time.Unix(2, 0), status)})
	}
	assert.False(t, isChange(corev1.ConditionTrue))
	assert.True(t, isChange(corev1.ConditionFalse))
	assert.Equal(t, map[string]string{"kept": "a"}, before.Annotations)
	assert.Empty(t, before.Status.Images)
}
