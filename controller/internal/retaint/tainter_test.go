package retaint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/livenode"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// world is a moment whose nodes are in an API server, and a controller that acts on its plan.
type world struct {
	*testing.T
	*moment
	client.Client
	tainter      *Tainter
	plannedAt    time.Time
	events       []string
	added        int                     // failed taints
	reading      func(node string) error // before each live read
	patching     func(node string) error // before each patch
	isAnswerLost bool                    // to each patch
}

func newWorld(t *testing.T, m *moment) *world {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	w := &world{T: t, moment: m, Client: fake.NewClientBuilder().WithScheme(scheme).Build(), plannedAt: m.now,
		reading: func(string) error { return nil }, patching: func(string) error { return nil }}
	for _, status := range m.in.Statuses {
		require.NoError(t, w.Create(t.Context(), status.Node.DeepCopy()))
	}
	w.tainter = &Tainter{Settings: m.settings, CountAdded: func() { w.added++ }, CountRemoved: func() {},
		Patcher: func(name string) *nodepatch.Patcher {
			return &nodepatch.Patcher{Node: nodeAPI{livenode.API{Client: w.Client, Name: name}, w}, Timeout: time.Minute,
				Deadline: time.Minute}
		},
		Actor: act.Actor{Plan: func() (fleet.Plan, error) {
			return fleet.Plan{At: clock.At(w.plannedAt, w.plannedAt), Statuses: m.in.Statuses}, nil
		},
			ControlGroup: func() baseline.State { return m.in.ControlGroup }, Now: m.clock, Timeout: time.Minute, Events: w,
			SetBreakers: func([]breaker.Rule, map[breaker.Rule]string) {}, Log: slog.New(slog.DiscardHandler)}}
	return w
}

// act is one decision, 10 s after the last, with the taints that the nodes have by now.
func (w *world) act() {
	w.now = w.now.Add(10 * time.Second)
	for i := range w.in.Statuses {
		status := &w.in.Statuses[i]
		status.Node.Spec.Taints = w.node(status.Node.Name).Spec.Taints
		status.Retainted = w.settings.Fleet.IsRetainted(fleet.Taints(status.Node))
	}
	w.in.ControlGroup.Began, w.in.ControlGroup.Ended = mark(w.now), mark(w.now)
	w.tainter.Once(w.Context(), w.tainter.act)
}

// Eventf implements events.EventRecorder.
func (w *world) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.events = append(w.events, about.(*corev1.Node).Name+" "+reason+" "+fmt.Sprintf(note, args...))
}

func (w *world) said(part string) (n int) {
	for _, event := range w.events {
		if strings.Contains(event, part) {
			n++
		}
	}
	return n
}

// nodeAPI is a node of the world, with what its tests let happen before a request.
type nodeAPI struct {
	livenode.API
	world *world
}

func (n nodeAPI) Get(ctx context.Context) (*nodepatch.Node, error) {
	if err := n.world.reading(n.Name); err != nil {
		return nil, err
	}
	return n.API.Get(ctx)
}

func (n nodeAPI) Patch(ctx context.Context, patch []byte) (*nodepatch.Node, error) {
	if err := n.world.patching(n.Name); err != nil {
		return nil, err
	}
	node, err := n.API.Patch(ctx, patch)
	if n.world.isAnswerLost {
		return nil, errors.New("the answer is lost")
	}
	return node, err
}

func (w *world) node(name string) *corev1.Node {
	node := new(corev1.Node)
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Name: name}, node))
	return node
}

// retainted are the names of the nodes that have the failed taint of the release, by the API server.
func (w *world) retainted() (found []string) {
	for _, status := range w.in.Statuses {
		if w.settings.Fleet.IsRetainted(fleet.Taints(w.node(status.Node.Name))) {
			found = append(found, status.Node.Name)
		}
	}
	return found
}

// A re-taint counts, and the cool-down holds, although the answer to its patch was lost.
func TestRetaintWhoseAnswerIsLost(t *testing.T) {
	w := newWorld(t, newMoment(60).fail(1))
	w.isAnswerLost = true
	w.act()
	w.act()
	w.act()
	assert.Equal(t, []string{"n0"}, w.retainted())
	assert.Equal(t, 1, w.added)
	assert.Equal(t, 1, w.said("n0 FailedTaintAdded"))
	assert.Len(t, w.tainter.retainted, 1)
}

// A re-taint counts once, also where the cool-down is over when the plan shows it.
func TestRetaintCountsOnce(t *testing.T) {
	w := newWorld(t, newMoment(60).fail(1))
	w.tainter.Settings.CoolDown = 5 * time.Second
	for range 3 {
		w.act()
	}
	assert.Equal(t, 1, w.added)
	assert.Equal(t, 1, w.said("n0 FailedTaintAdded"))
}

// The loop hangs: what it has found may not be so any more.
func TestOldPlan(t *testing.T) {
	w := newWorld(t, newMoment(3).fail(1))
	w.plannedAt = w.now.Add(10*time.Second - 31*time.Second)
	w.act()
	assert.Empty(t, w.retainted())
	w.plannedAt = w.now.Add(10*time.Second - 30*time.Second)
	w.act()
	assert.Equal(t, []string{"n0"}, w.retainted())

	w.tainter.Settings.Enabled = false
	w.plannedAt = w.now.Add(-time.Hour)
	w.act()
	assert.Empty(t, w.retainted(), "a removal waits for nothing")
	assert.Equal(t, 1, w.said("n0 FailedTaintRemoved re-tainting is switched off"))
}

func TestRetaint(t *testing.T) {
	w := newWorld(t, newMoment(4).fail(1))
	passed := w.in.ControlGroup.PassedSince
	w.in.ControlGroup.PassedSince = mark(w.now)
	w.act()
	assert.Empty(t, w.retainted())
	assert.Equal(t, 1, w.said("n0 TaintWithheld control-group: the checks have passed"))
	w.in.ControlGroup.PassedSince, w.plannedAt = passed, w.now
	w.act()
	assert.Equal(t, []corev1.Taint{{Key: failed, Value: release, Effect: corev1.TaintEffectNoSchedule}}, w.node("n0").Spec.Taints)
	assert.Equal(t, 1, w.said("n0 FailedTaintAdded DNSFailed: as found"))
	w.act()
	assert.Equal(t, 1, w.added)
	assert.Len(t, w.events, 2)
}

// Nobody must lose anything, whatever has changed since the cache saw the node.
func TestNodeThatHasChangedSince(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"":              func(*corev1.Node) {},
		"recovered":     func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue },
		"older":         func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime.Time = time.Unix(1, 0) },
		"no condition":  func(n *corev1.Node) { n.Status.Conditions = nil },
		"cordoned":      func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"label removed": func(n *corev1.Node) { n.Labels = nil },
		"startup taint": func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: startup}} },
		"tainted":       func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: failed, Value: "by-hand"}} },
		"opened":        func(n *corev1.Node) { n.Annotations[nodepatch.Opened] = "now" },
		"replaced":      func(n *corev1.Node) { n.UID = "another" },
	} {
		m := newMoment(1).fail(1)
		m.in.Statuses[0].Node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(m.now)
		live := m.in.Statuses[0].Node.DeepCopy()
		change(live)
		why := m.settings.changed(m.in.Statuses[0], fleet.PatchNode(live))
		assert.Equal(t, name == "", why == "", "%s: %s", name, why)
	}
}

// A node whose re-taint fails, or that is another one by now, does not keep the others from being re-tainted.
func TestNodeWhoseRetaintFails(t *testing.T) {
	for name, test := range map[string]struct {
		read, patch error
		withheld    string
	}{
		"not read":     {read: errors.New("no answer")},
		"webhook":      {patch: apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n0", errors.New("a webhook says no")), withheld: "refused"},
		"policy":       {patch: apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n0", nil), withheld: "refused"},
		"server error": {patch: apierrors.NewInternalError(errors.New("failed calling webhook"))},
		"changed":      {withheld: "changed: it has lost the label"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, newMoment(60).fail(2))
			fails := func(err error) func(string) error {
				return func(node string) error {
					if node == "n0" {
						return err
					}
					return nil
				}
			}
			w.reading, w.patching = fails(test.read), fails(test.patch)
			if name == "changed" {
				node := w.node("n0")
				node.Labels = nil
				require.NoError(t, w.Update(t.Context(), node))
			}
			w.act()
			w.act()
			assert.Equal(t, []string{"n1"}, w.retainted())
			assert.Len(t, w.events, 1+min(1, len(test.withheld)))
			assert.Equal(t, min(1, len(test.withheld)), w.said("n0 TaintWithheld "+test.withheld))
		})
	}
}
