package retaint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
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
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/livenode"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/manual"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// world is a cluster over time, with agents that say what is true of their nodes, and a controller.
type world struct {
	*testing.T
	client.Client
	settings Settings
	now      time.Time
	group    controlgroup.State
	failing  map[string]string // reason by node, as its agent finds it

	seen     fleet.Memory
	plan     fleet.Plan
	tainter  *Tainter
	events   []string
	breakers map[string]bool
	changes  map[string]int
	reading  func(node string) error // before each live read
	patching func(node string) error // before each patch
}

func newWorld(t *testing.T, nodes int) *world {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	w := &world{T: t, Client: fake.NewClientBuilder().WithScheme(scheme).Build(), settings: testSettings(), now: time.Now(),
		failing: make(map[string]string), changes: make(map[string]int), reading: func(string) error { return nil },
		patching: func(string) error { return nil }}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		require.NoError(t, w.Create(t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{label: "true"}, Annotations: wasGated()},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
		}))
	}
	w.lead()
	return w
}

// lead starts another controller, which has seen nothing.
func (w *world) lead() {
	w.seen, w.plan, w.group, w.breakers = fleet.Memory{}, fleet.Plan{}, controlgroup.State{PassedSince: w.now, Began: w.now, Ended: w.now}, make(map[string]bool)
	w.tainter = &Tainter{Settings: w.settings, RequestTimeout: time.Minute, Count: func(change string) { w.changes[change]++ },
		Node: func(name string) nodepatch.NodeAPI { return nodeAPI{livenode.API{Client: w.Client, Name: name}, w} },
		Actor: breaker.Actor{Plan: func() (fleet.Plan, error) { return w.plan, nil },
			ControlGroup: func() controlgroup.State { return w.group }, Now: func() time.Time { return w.now }, Timeout: time.Minute, Events: w,
			SetBreaker: func(rule string, holds bool) { w.breakers[rule] = holds }, Log: slog.New(slog.DiscardHandler)}}
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
	return n.API.Patch(ctx, patch)
}

func (w *world) node(name string) *corev1.Node {
	node := new(corev1.Node)
	require.NoError(w, w.Get(w.Context(), client.ObjectKey{Name: name}, node))
	return node
}

func (w *world) update(name string, change func(*corev1.Node)) {
	node := w.node(name)
	change(node)
	status := node.Status
	require.NoError(w, w.Update(w.Context(), node))
	node.Status = status
	require.NoError(w, w.Status().Update(w.Context(), node))
}

func (w *world) retainted() (found []string) {
	for _, node := range w.nodes() {
		if w.settings.Fleet.IsRetainted(fleet.Taints(&node)) {
			found = append(found, node.Name)
		}
	}
	return found
}

func (w *world) nodes() []corev1.Node {
	var nodes corev1.NodeList
	require.NoError(w, w.List(w.Context(), &nodes))
	return nodes.Items
}

// agents write the condition as it changes, and a False every 5 minutes; and they remove the failed taint when their node has recovered.
func (w *world) agents() {
	for _, node := range w.nodes() {
		reason, fails := w.failing[node.Name]
		shown := w.settings.Fleet.Condition(&node)
		status := corev1.ConditionTrue
		if fails {
			status = corev1.ConditionFalse
		} else {
			reason = "Verified"
		}
		if shown.Status == status && (!fails || w.now.Sub(shown.LastHeartbeatTime.Time) < 5*time.Minute) {
			continue
		}
		w.update(node.Name, func(n *corev1.Node) {
			n.Status.Conditions = append(n.Status.Conditions[:1], corev1.NodeCondition{Type: condition, Status: status, Reason: reason,
				Message: "as found", LastHeartbeatTime: metav1.NewTime(w.now)})
			if !fails {
				n.Spec.Taints = nil
			}
		})
	}
}

// run lets time pass.
func (w *world) run(d time.Duration) { w.runWith(d, w.nodes) }

// serverNow is the time by the API server's clock, which is not the controller's.
func (w *world) serverNow() time.Time { return w.now.Add(-5 * time.Hour) }

// runWith is run with a cache that shows these nodes.
func (w *world) runWith(d time.Duration, cached func() []corev1.Node) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(10 * time.Second) {
		w.agents()
		if !w.group.PassedSince.IsZero() {
			w.group.Began, w.group.Ended = w.now, w.now
		}
		var pods []corev1.Pod
		nodes := cached()
		for i := range nodes {
			slim, err := fleet.SlimNode(condition, false, nodepatch.Annotation)(&nodes[i])
			require.NoError(w, err)
			nodes[i] = *slim.(*corev1.Node)
		}
		for _, node := range nodes {
			ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node.Name}, Spec: corev1.PodSpec{NodeName: node.Name},
				Status: corev1.PodStatus{Conditions: ready, ContainerStatuses: []corev1.ContainerStatus{{
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}})
		}
		w.plan = w.settings.Fleet.Decide(fleet.Objects{Nodes: nodes, Pods: pods, Seen: w.seen, ServerNow: w.serverNow()}, w.now)
		w.seen = w.plan.Seen
		w.tainter.Once(w.Context(), w.tainter.Settings.Settings, w.tainter.act)
	}
}

// The loop hangs: what it has found may not be so any more.
func TestOldPlan(t *testing.T) {
	w := newWorld(t, 3)
	w.run(10 * time.Minute)
	w.reading = func(string) error { return errors.New("not yet") }
	w.failing["n0"] = "DNSFailed"
	w.run(10 * time.Second)
	w.reading = func(string) error { return nil }
	w.now = w.plan.At.Add(31 * time.Second)
	w.group.Began, w.group.Ended = w.now, w.now
	w.tainter.Once(t.Context(), w.tainter.Settings.Settings, w.tainter.act)
	assert.Empty(t, w.retainted())
	w.now = w.plan.At.Add(30 * time.Second)
	w.tainter.Once(t.Context(), w.tainter.Settings.Settings, w.tainter.act)
	assert.Equal(t, []string{"n0"}, w.retainted())

	w.run(10 * time.Second)
	w.tainter.Settings.Enabled = false
	w.now = w.plan.At.Add(31 * time.Second)
	w.tainter.Once(t.Context(), w.tainter.Settings.Settings, w.tainter.act)
	assert.Empty(t, w.retainted(), "a removal waits for nothing")
}

func TestTheAgentRemovesTheTaint(t *testing.T) {
	w := newWorld(t, 4)
	w.run(9 * time.Minute)
	w.failing["n1"] = "PeersFailed"
	w.run(50 * time.Second)
	assert.Empty(t, w.retainted())
	assert.Equal(t, 1, w.said("n1 TaintWithheld control-group: the checks have passed"))
	w.run(time.Minute)
	assert.Equal(t, []string{"n1"}, w.retainted())
	taint := corev1.Taint{Key: failed, Value: release, Effect: corev1.TaintEffectNoSchedule}
	assert.Equal(t, []corev1.Taint{taint}, w.node("n1").Spec.Taints)
	assert.Equal(t, 1, w.said("n1 FailedTaintAdded PeersFailed: as found"))
	w.run(time.Hour)
	assert.Equal(t, map[string]int{"added": 1}, w.changes)
	assert.Len(t, w.events, 2)
	delete(w.failing, "n1")
	w.run(time.Minute)
	assert.Empty(t, w.retainted())
	assert.Equal(t, map[string]int{"added": 1}, w.changes)
}

// Nobody must lose anything, whatever changes between the cache and the patch.
func TestNodeThatHasChangedSince(t *testing.T) {
	for name, change := range map[string]func(*corev1.Node){
		"recovered":     func(n *corev1.Node) { n.Status.Conditions[1].Status = corev1.ConditionTrue },
		"older":         func(n *corev1.Node) { n.Status.Conditions[1].LastHeartbeatTime.Time = time.Unix(1, 0) },
		"no condition":  func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[:1] },
		"cordoned":      func(n *corev1.Node) { n.Spec.Unschedulable = true },
		"label removed": func(n *corev1.Node) { n.Labels = nil },
		"startup taint": func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: startup}} },
		"tainted":       func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: failed, Value: "by-hand"}} },
		"replaced":      func(n *corev1.Node) { n.UID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.run(10 * time.Minute)
			before := ""
			w.reading = func(node string) error {
				if before == "" {
					w.update(node, change)
					before = w.node(node).ResourceVersion
				}
				return nil
			}
			w.failing["n0"] = "DNSFailed"
			w.run(10 * time.Second)
			assert.NotEmpty(t, before)
			assert.Equal(t, before, w.node("n0").ResourceVersion, "nothing is written")
			assert.Equal(t, 1, w.said("n0 TaintWithheld changed"))
		})
	}
}

func TestNodeThatChangesDuringThePatch(t *testing.T) {
	w := newWorld(t, 3)
	w.run(10 * time.Minute)
	w.patching = func(node string) error {
		w.update(node, func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}
		})
		return nil
	}
	w.failing["n0"] = "DNSFailed"
	w.run(10 * time.Second)
	assert.Empty(t, w.retainted())
	assert.Len(t, w.node("n0").Spec.Taints, 1)
}

func TestForeignTaintsStay(t *testing.T) {
	w := newWorld(t, 3)
	foreign := corev1.Taint{Key: "example.com/gpu", Effect: corev1.TaintEffectNoSchedule}
	w.update("n0", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{foreign} })
	w.settings.Fleet.Rules = fleet.NewRules(&corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}, w.settings.Fleet.Request)
	w.lead()
	w.run(10 * time.Minute)
	w.update("n0", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{foreign} }) // the agents of this test remove all
	w.failing["n0"] = "DNSFailed"
	w.run(time.Minute)
	require.Equal(t, []string{"n0"}, w.retainted())
	assert.Equal(t, foreign, w.node("n0").Spec.Taints[0])
	w.tainter.Settings.Enabled = false
	w.run(10 * time.Second)
	assert.Equal(t, []corev1.Taint{foreign}, w.node("n0").Spec.Taints)
	assert.Equal(t, 1, w.said("n0 FailedTaintRemoved re-tainting is switched off"))
}

// Half of a fleet fails, for whatever reason the control group does not see.
func TestHalfOfTheFleetFails(t *testing.T) {
	w := newWorld(t, 40)
	w.run(10 * time.Minute)
	for i := range 20 {
		w.failing[fmt.Sprintf("n%d", i)] = "NetworkFailed"
	}
	w.run(time.Hour - 10*time.Second)
	assert.Empty(t, w.retainted())
	assert.True(t, w.breakers["failed-rechecks"])
	assert.Len(t, w.events, 1, "one an hour")
	assert.Equal(t, 1, w.said("TaintWithheld failed-rechecks: 20 of 40 nodes fail their rechecks now"))
	w.run(time.Minute)
	assert.Len(t, w.events, 2)
}

// They fail one after the other: the first ones are re-tainted before the breaker knows, no more than the budget.
func TestOneAfterTheOther(t *testing.T) {
	w := newWorld(t, 40)
	w.run(10 * time.Minute)
	for i := range 40 {
		w.failing[fmt.Sprintf("n%d", i)] = "NetworkFailed"
		w.run(20 * time.Second)
	}
	assert.Len(t, w.retainted(), 3)
	w.failing = nil
	w.run(10 * time.Second)
	assert.Empty(t, w.retainted())
	assert.Equal(t, map[string]int{"added": 3}, w.changes)
}

func TestOneNodeAtATime(t *testing.T) {
	w := newWorld(t, 100)
	w.run(10 * time.Minute)
	for _, name := range []string{"n1", "n2", "n3"} {
		w.failing[name] = "DNSFailed"
	}
	for want := range 3 {
		w.run(10 * time.Second)
		assert.Len(t, w.retainted(), want+1)
	}
}

func TestFlappingNode(t *testing.T) {
	w := newWorld(t, 3)
	w.run(10 * time.Minute)
	for range 60 {
		w.failing["n0"] = "DNSFailed"
		w.run(30 * time.Second)
		delete(w.failing, "n0")
		w.run(30 * time.Second)
	}
	assert.LessOrEqual(t, w.changes["added"], 6, "in an hour")
	assert.GreaterOrEqual(t, w.changes["added"], 5)
}

// What a person has opened stays open for coolDown, also where another process leads by then.
func TestOpenedNodeIsNotRetaintedAtOnce(t *testing.T) {
	w := newWorld(t, 20)
	w.run(10 * time.Minute)
	w.failing["n0"] = "DNSFailed"
	w.run(30 * time.Minute)
	require.Equal(t, []string{"n0"}, w.retainted())
	stale := w.nodes()
	require.NoError(t, manual.Patcher{Settings: w.settings.Fleet, Client: w.Client, Now: w.serverNow, Out: io.Discard}.Open(t.Context(), []string{"n0"}))
	w.run(5 * time.Minute)
	w.lead()
	w.group.PassedSince = w.now.Add(-time.Hour)
	w.run(time.Minute)
	for i := range stale {
		stale[i].Spec.Taints = nil
	}
	w.runWith(4*time.Minute-10*time.Second, func() []corev1.Node { return slices.Clone(stale) })
	assert.Empty(t, w.retainted())
	assert.Equal(t, 1, w.said("n0 TaintWithheld cool-down: somebody opened it"))
	w.run(20 * time.Second)
	assert.Equal(t, []string{"n0"}, w.retainted(), "it still fails")
}

// A restart at any point changes nothing but when a node is re-tainted.
func TestRestart(t *testing.T) {
	for _, at := range []time.Duration{0, 10 * time.Second, 20 * time.Second, time.Minute} {
		w := newWorld(t, 3)
		w.run(10 * time.Minute)
		w.failing["n0"] = "DNSFailed"
		w.run(at)
		w.lead()
		w.run(20 * time.Minute)
		assert.Equal(t, []string{"n0"}, w.retainted(), at)
		assert.Equal(t, 1, w.changes["added"], at)
		delete(w.failing, "n0")
		w.run(time.Minute)
		assert.Empty(t, w.retainted(), at)
	}
}

// Where the first candidate cannot be read, the next one is re-tainted.
func TestNodeThatCannotBeRead(t *testing.T) {
	w := newWorld(t, 60)
	w.run(10 * time.Minute)
	w.reading = func(node string) error {
		if node == "n1" {
			return errors.New("no answer")
		}
		return nil
	}
	w.failing["n1"], w.failing["n2"] = "DNSFailed", "DNSFailed"
	w.run(30 * time.Second)
	assert.Equal(t, []string{"n2"}, w.retainted())
	w.reading = func(string) error { return nil }
	w.run(10 * time.Second)
	found := w.retainted()
	slices.Sort(found)
	assert.Equal(t, []string{"n1", "n2"}, found)
}

// While the cache is behind, nobody knows how many nodes are re-tainted.
func TestCacheThatIsBehind(t *testing.T) {
	w := newWorld(t, 100)
	w.run(10 * time.Minute)
	for i := range 6 {
		w.update(fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Labels[nodePool] = "small" })
		w.failing[fmt.Sprintf("n%d", i)] = "DNSFailed"
	}
	w.agents()
	before := w.nodes()
	w.runWith(time.Minute, func() []corev1.Node { return before })
	assert.Len(t, w.retainted(), 1)
	w.run(time.Minute)
	assert.Len(t, w.retainted(), 1, "the budget of the NodePool")
}

// One node whose re-taint fails does not keep the others from being re-tainted, whatever the API server answers.
func TestNodeWhoseRetaintFails(t *testing.T) {
	for name, test := range map[string]struct {
		err     error
		refused int
	}{
		"webhook":      {apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "n1", errors.New("a webhook says no")), 1},
		"policy":       {apierrors.NewInvalid(schema.GroupKind{Kind: "Node"}, "n1", nil), 1},
		"server error": {apierrors.NewInternalError(errors.New("failed calling webhook")), 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 60)
			w.run(10 * time.Minute)
			w.patching = func(node string) error {
				if node == "n1" {
					return test.err
				}
				return nil
			}
			w.failing["n1"] = "DNSFailed"
			w.run(10 * time.Second)
			w.failing["n2"] = "DNSFailed"
			w.run(time.Minute)
			assert.Equal(t, []string{"n2"}, w.retainted())
			assert.Equal(t, test.refused, w.said("n1 TaintWithheld refused"))
		})
	}
}

// The patch is applied, its answer is lost, and the cache is behind: the budget is unknown.
func TestLostAnswer(t *testing.T) {
	w := newWorld(t, 100)
	w.run(10 * time.Minute)
	for i := range 6 {
		w.failing[fmt.Sprintf("n%d", i)] = "DNSFailed"
	}
	w.agents()
	before := w.nodes()
	w.patching = func(node string) error {
		w.update(node, func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: failed, Value: release, Effect: corev1.TaintEffectNoSchedule})
		})
		return errors.New("no answer in time")
	}
	w.runWith(time.Minute, func() []corev1.Node { return before })
	assert.Len(t, w.retainted(), 1)
}

// Its agent removes the taint before the cache has shown it.
func TestTaintAddedAndRemovedAtOnce(t *testing.T) {
	w := newWorld(t, 60)
	w.run(10 * time.Minute)
	w.failing["n1"] = "DNSFailed"
	w.run(10 * time.Second)
	require.Equal(t, []string{"n1"}, w.retainted())
	delete(w.failing, "n1")
	w.failing["n2"] = "DNSFailed"
	w.run(20 * time.Second)
	assert.Equal(t, []string{"n2"}, w.retainted())
}

// Three of four nodes are dead: the one that reaches nobody is the only good one.
func TestOnlySurvivor(t *testing.T) {
	w := newWorld(t, 5)
	w.run(10 * time.Minute)
	for _, name := range []string{"n1", "n2", "n3"} {
		w.update(name, func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionUnknown })
	}
	w.failing["n0"] = "PeersFailed"
	w.run(time.Minute)
	assert.Empty(t, w.retainted())
	assert.Equal(t, 1, w.said("n0 TaintWithheld peers: no other agent answers; other ready nodes: 1"))
	delete(w.failing, "n0")
	w.run(10 * time.Second)
	w.failing["n0"] = "NetworkFailed,PeersFailed"
	w.run(time.Minute)
	assert.Equal(t, []string{"n0"}, w.retainted())
}

// What a drained node showed before is not what fails now.
func TestDrainedNodesAreNotCounted(t *testing.T) {
	w := newWorld(t, 20)
	w.run(10 * time.Minute)
	for i := range 3 {
		w.update(fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Spec.Unschedulable = true })
		w.failing[fmt.Sprintf("n%d", i)] = "DNSFailed"
	}
	w.run(time.Minute)
	w.failing["n9"] = "NetworkFailed"
	w.run(time.Minute)
	assert.Equal(t, []string{"n9"}, w.retainted())
}

func TestControllerThatDoesNotLead(t *testing.T) {
	w := newWorld(t, 3)
	w.run(10 * time.Minute)
	w.tainter.Plan = func() (fleet.Plan, error) { return fleet.Plan{}, nil }
	w.failing["n0"] = "DNSFailed"
	w.run(time.Minute)
	assert.Empty(t, w.retainted())
}

// Re-taint is switched off, and two of four nodes cannot be patched: the other two lose the failed taint all the same.
func TestRemovalsThatHangDelayNoOther(t *testing.T) {
	w := newWorld(t, 4)
	for i := range 4 {
		w.update(fmt.Sprintf("n%d", i), func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: failed, Value: release, Effect: corev1.TaintEffectNoSchedule}}
		})
	}
	w.tainter.Settings.Enabled = false
	w.patching = func(node string) error {
		if node == "n0" || node == "n1" {
			w.now = w.now.Add(40 * time.Second)
			return apierrors.NewForbidden(schema.GroupResource{}, node, nil)
		}
		return nil
	}
	for range 2 {
		w.plan = w.settings.Fleet.Decide(fleet.Objects{Nodes: w.nodes(), Seen: w.seen}, w.now)
		w.seen = w.plan.Seen
		w.tainter.Once(w.Context(), w.tainter.Settings.Settings, w.tainter.act)
	}
	assert.Equal(t, []string{"n0", "n1"}, w.retainted())
}

// Something cordons and drains each re-tainted node: a fault that creeps through one-node groups does not take the fleet.
func TestCreepingFaultWithCordonedNodes(t *testing.T) {
	for name, cordons := range map[string]bool{"cordoned": true, "not cordoned": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 30)
			for i := range 30 {
				w.update(fmt.Sprintf("n%d", i), func(n *corev1.Node) { n.Labels[nodePool] = "pool-" + n.Name })
			}
			w.run(10 * time.Minute)
			for i := range 30 {
				w.failing[fmt.Sprintf("n%d", i)] = "NetworkFailed"
				w.run(20 * time.Second)
				for _, name := range w.retainted() {
					w.update(name, func(n *corev1.Node) { n.Spec.Unschedulable = cordons })
				}
			}
			assert.Len(t, w.retainted(), 2)
			assert.True(t, w.breakers["failed-rechecks"])
		})
	}
}

// A re-taint has failed, and somebody else taints the node with the same key: the others are re-tainted all the same.
func TestForeignValueAfterAFailedRetaint(t *testing.T) {
	for name, taint := range map[string]corev1.Taint{
		"NoSchedule": {Key: failed, Value: "by-hand", Effect: corev1.TaintEffectNoSchedule},
		"no agent":   {Key: failed, Value: "by-hand", Effect: corev1.TaintEffectNoExecute}, // the rules exclude the node
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 60)
			w.run(10 * time.Minute)
			w.patching = func(node string) error {
				if node == "n1" {
					w.update(node, func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{taint} })
					return apierrors.NewInternalError(errors.New("no answer"))
				}
				return nil
			}
			w.failing["n1"] = "DNSFailed"
			w.run(10 * time.Second)
			w.failing["n2"] = "DNSFailed"
			w.run(time.Minute)
			assert.Equal(t, []string{"n2"}, w.retainted())
			assert.Equal(t, []corev1.Taint{taint}, w.node("n1").Spec.Taints)
		})
	}
}
