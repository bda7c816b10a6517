package remediation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup   = "node-ready/unverified"
	label     = "node-ready/verified"
	condition = "NodeVerified"
	namespace = "kube-system"
	finalizer = "karpenter.sh/termination"
)

func testRequest() nodepatch.Request {
	return nodepatch.Request{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: label, LabelValue: "true", Annotation: nodepatch.Annotation}
}

func testSettings() Settings {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	of := fleet.Settings{Rules: fleet.NewRules(template, testRequest()), Request: testRequest(), ConditionType: condition,
		NotStartedAfter: 3 * time.Minute, SilentAfter: 6 * time.Minute}
	return Settings{Settings: breaker.Settings{Fleet: of, NodeName: "controller", ControlGroupFor: 5 * time.Minute}, PodNamespace: namespace,
		DeleteAfter: 30 * time.Minute, FailedFor: 10 * time.Minute}
}

func claimKind() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: karpenterGroup, Version: "v1", Kind: nodeClaimKind}
}

// sentEvents are the Events that were sent, as "reason note".
type sentEvents []string

func (e *sentEvents) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	*e = append(*e, reason+" "+fmt.Sprintf(note, args...))
}

func (e *sentEvents) count(reason string) (n int) {
	for _, event := range *e {
		if strings.HasPrefix(event, reason) {
			n++
		}
	}
	return n
}

// pool is a NodePool that always wants some nodes. Its n-th node, from 1 on, never passes where fails says so.
type pool struct {
	name    string
	group   bool // a managed node group: no NodePool, and no NodeClaims
	size    int
	fails   func(n int) bool
	renew   time.Duration // how often the oldest verified node is replaced, as by an expiry; zero: never
	made    int
	renewed time.Time
}

// world is a cluster with Karpenter, whose clock the test turns.
type world struct {
	t          *testing.T
	client     client.WithWatch
	now        time.Time
	pools      []*pool
	nodes      map[string]*corev1.Node
	pods       map[string]*corev1.Pod       // of the agents, by node
	events     map[types.UID][]corev1.Event // as they were read for the plan
	gone       map[string]time.Time         // nodes whose NodeClaim is deleted, by when
	deletions  []string                     // nodes whose NodeClaim the controllers have deleted
	group      controlgroup.State
	groupFails bool
	stuck      bool // Karpenter deletes nothing
	removing   bool // the world itself deletes
	leaders    []*leader
}

// leader is one controller process.
type leader struct {
	seen       fleet.Memory
	plan       fleet.Plan
	remediator *Remediator
	events     *sentEvents
	breakers   map[string]bool
}

func newWorld(t *testing.T, pools ...*pool) *world {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	scheme.AddKnownTypeWithName(claimKind(), new(unstructured.Unstructured))
	scheme.AddKnownTypeWithName(claimKind().GroupVersion().WithKind(nodeClaimKind+"List"), new(unstructured.UnstructuredList))
	start := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	w := &world{t: t, now: start, pools: pools, nodes: make(map[string]*corev1.Node), pods: make(map[string]*corev1.Pod), gone: make(map[string]time.Time)}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{claimKind().GroupVersion()})
	mapper.Add(claimKind(), meta.RESTScopeRoot)
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
		WithInterceptorFuncs(interceptor.Funcs{Delete: w.observe}).Build()
	w.group = controlgroup.State{PassedSince: start.Add(-time.Hour), Ended: start}
	w.add("controller", nil)
	w.verify(w.nodes["controller"])
	w.lead()
	return w
}

// observe counts what the controllers delete; the world itself never deletes a NodeClaim through the client.
func (w *world) observe(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
	err := c.Delete(ctx, object, options...)
	if node, isNode := object.(*corev1.Node); err == nil && isNode && !w.removing {
		w.deletions = append(w.deletions, node.Name)
		require.NoError(w.t, w.client.Delete(w.t.Context(), w.pods[node.Name])) // as the garbage collection of pods does
		delete(w.nodes, node.Name)
		delete(w.pods, node.Name)
	}
	if err == nil && object.GetObjectKind().GroupVersionKind().Kind == nodeClaimKind {
		w.deletions = append(w.deletions, strings.TrimPrefix(object.GetName(), "claim-"))
	}
	return err
}

// lead starts another leader.
func (w *world) lead() *leader {
	l := &leader{events: new(sentEvents), breakers: make(map[string]bool)}
	l.remediator = &Remediator{
		Settings: testSettings(), Client: w.client, LedgerName: "kube-node-ready-remediation", Self: &corev1.Pod{},
		ServerTime: func() time.Time { return w.now.Add(5 * time.Hour) }, // which is not the controller's clock
		Actor: breaker.Actor{Plan: func() (fleet.Plan, error) { return l.plan, nil },
			ControlGroup: func() controlgroup.State { return w.group }, Now: func() time.Time { return w.now },
			Timeout: time.Minute, Events: l.events, Log: slog.New(slog.DiscardHandler),
			SetBreaker: func(rule string, holds bool) { l.breakers[rule] = holds }},
	}
	w.leaders = append(w.leaders, l)
	return l
}

// restart replaces all leaders by one that has seen nothing yet.
func (w *world) restart() {
	w.leaders, w.group = nil, controlgroup.State{PassedSince: w.now, Ended: w.now}
	w.lead()
}

// add creates a gated node, with its NodeClaim if it is of a pool.
func (w *world) add(name string, p *pool) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(w.now.Add(5 * time.Hour)),
			Labels: map[string]string{}, Annotations: map[string]string{}},
		Spec: corev1.NodeSpec{ProviderID: "cloud://" + name, Taints: []corev1.Taint{{Key: startup, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
	}
	if p != nil && p.group {
		node.Labels[nodeGroupLabel] = p.name
	} else if p != nil {
		node.Labels[nodePoolLabel] = p.name
		claim := new(unstructured.Unstructured)
		claim.SetGroupVersionKind(claimKind())
		claim.SetName("claim-" + name)
		claim.SetUID(types.UID("uid-claim-" + name))
		claim.SetLabels(map[string]string{nodePoolLabel: p.name})
		claim.SetFinalizers([]string{finalizer})
		claim.Object["status"] = map[string]any{"nodeName": name, "providerID": node.Spec.ProviderID}
		require.NoError(w.t, w.client.Create(w.t.Context(), claim))
	}
	require.NoError(w.t, w.client.Create(w.t.Context(), node))
	w.nodes[name], w.pods[name] = node, agentPod(name)
	require.NoError(w.t, w.client.Create(w.t.Context(), w.pods[name]))
}

func (w *world) update(object client.Object) {
	require.NoError(w.t, w.client.Update(w.t.Context(), object))
}

func (w *world) verify(node *corev1.Node) {
	metav1.SetMetaDataLabel(&node.ObjectMeta, label, "true")
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, nodepatch.Annotation, "{}")
	node.Spec.Taints = nil
	w.update(node)
}

// fail is what the agent writes on a node whose checks fail.
func (w *world) fail(node *corev1.Node) {
	if len(node.Status.Conditions) == 0 {
		node.Status.Conditions = []corev1.NodeCondition{{Type: condition, Status: corev1.ConditionFalse, Reason: "DNSFailed", Message: "dns: timeout"}}
		require.NoError(w.t, w.client.Status().Update(w.t.Context(), node))
	}
}

// karpenter removes what was deleted, and makes what the pools want.
func (w *world) karpenter() {
	for _, name := range slices.Clone(w.deletions) {
		if _, known := w.gone[name]; !known {
			w.gone[name] = w.now.Add(2 * time.Minute)
		}
	}
	for name, at := range w.gone {
		if node := w.nodes[name]; node != nil && !w.now.Before(at) && !w.stuck {
			w.remove(node)
		}
	}
	for _, p := range w.pools {
		var mine []*corev1.Node
		for name, node := range w.nodes {
			if poolOf(node) == p.name && name != "controller" {
				mine = append(mine, node)
			}
		}
		if p.renew > 0 && w.now.Sub(p.renewed) >= p.renew && len(mine) > 0 {
			slices.SortFunc(mine, func(a, b *corev1.Node) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
			p.renewed = w.now
			w.remove(mine[0])
			mine = mine[1:]
		}
		for range p.size - len(mine) {
			p.made++
			w.add(fmt.Sprintf("%s-%d", p.name, p.made), p)
		}
	}
}

const nodeGroupLabel = "eks.amazonaws.com/nodegroup"

func poolOf(node *corev1.Node) string { return cmp.Or(nodePool(node), node.Labels[nodeGroupLabel]) }

func (w *world) remove(node *corev1.Node) {
	w.removing = true
	defer func() { w.removing = false }()
	claim := new(unstructured.Unstructured)
	claim.SetGroupVersionKind(claimKind())
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "claim-" + node.Name}, claim); err == nil {
		claim.SetFinalizers(nil)
		require.NoError(w.t, w.client.Update(w.t.Context(), claim))
	}
	require.NoError(w.t, w.client.Delete(w.t.Context(), node))
	require.NoError(w.t, w.client.Delete(w.t.Context(), w.pods[node.Name]))
	delete(w.nodes, node.Name)
	delete(w.pods, node.Name)
}

// agents verify the good nodes a minute after their creation, and report the bad ones.
func (w *world) agents() {
	for _, node := range w.nodes {
		runs := len(w.pods[node.Name].Status.ContainerStatuses) > 0
		if !runs || len(node.Spec.Taints) == 0 || w.now.Add(5*time.Hour).Sub(node.CreationTimestamp.Time) < time.Minute {
			continue
		}
		var n int
		for _, p := range w.pools {
			if p.name == poolOf(node) {
				_, _ = fmt.Sscanf(strings.TrimPrefix(node.Name, p.name+"-"), "%d", &n)
				if p.fails(n) {
					w.fail(node)
				} else {
					w.verify(node)
				}
			}
		}
	}
}

// tick is half a minute.
func (w *world) tick() {
	w.now = w.now.Add(30 * time.Second)
	w.karpenter()
	w.agents()
	w.group.Ended = w.now
	if w.groupFails {
		w.group.PassedSince, w.group.Failure = time.Time{}, "dns: timeout"
	}
	for _, l := range w.leaders {
		l.turn(w)
	}
}

// turn is one decision of a leader.
func (l *leader) turn(w *world) { l.turnWith(w.t.Context(), w) }

func (l *leader) turnWith(ctx context.Context, w *world) {
	objects := fleet.Objects{Seen: l.seen, Events: w.events, Nodes: make([]corev1.Node, 0, len(w.nodes)), Pods: make([]corev1.Pod, 0, len(w.nodes))}
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		slim, err := fleet.SlimNode(condition, false, nodepatch.Annotation, DoNotDisrupt, DoNotDelete)(w.nodes[name].DeepCopy())
		require.NoError(w.t, err)
		objects.Nodes = append(objects.Nodes, *slim.(*corev1.Node))
		objects.Pods = append(objects.Pods, *w.pods[name].DeepCopy())
	}
	plan := testSettings().Fleet.Decide(objects, w.now)
	l.seen = plan.Seen
	l.plan = plan
	in := Input{Statuses: plan.Statuses, ControlGroup: w.group, ServerNow: l.remediator.ServerTime()}
	for _, candidate := range l.remediator.Settings.Decide(in, w.now).Candidates {
		assert.True(w.t, candidate.ChangesWithTime(), "else no plan would be made again")
	}
	l.remediator.Once(ctx, l.remediator.Settings.Settings, l.remediator.act)
}

func agentPod(node string) *corev1.Pod {
	isController := true
	owner := metav1.OwnerReference{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "agent", UID: "agent", Controller: &isController}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node, Namespace: namespace, UID: types.UID("agent-" + node), OwnerReferences: []metav1.OwnerReference{owner}},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{ContainerID: "containerd://" + node,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

// run lets the clock run for d.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.tick()
	}
}

func (w *world) ledger() Ledger {
	object := new(corev1.ConfigMap)
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: "kube-node-ready-remediation"}, object))
	ledger, err := parseLedger(object.Data[ledgerKey])
	require.NoError(w.t, err)
	return ledger
}

func (w *world) deletedIn(pool string) (n int) {
	for _, name := range w.deletions {
		if strings.HasPrefix(name, pool+"-") {
			n++
		}
	}
	return n
}

// annotate asks to clear halts.
func (w *world) annotate(scopes string) {
	object := new(corev1.ConfigMap)
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: "kube-node-ready-remediation"}, object))
	object.Annotations = map[string]string{ClearHalt: scopes}
	w.update(object)
}

func always(int) bool { return true }
func never(int) bool  { return false }

const day = 24 * time.Hour

// good is a pool whose nodes all pass, and whose oldest node is replaced now and then: there is always a younger verified node.
func good() *pool { return &pool{name: "good", size: 5, fails: never, renew: 20 * time.Minute} }

func TestPoolWhoseEveryNodeFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always}, &pool{name: "half", size: 10, fails: func(n int) bool { return n > 8 }})
	w.run(day)
	assert.Equal(t, 4, w.deletedIn("bad"))
	assert.LessOrEqual(t, w.deletedIn("half"), 4)
	assert.Zero(t, w.deletedIn("good"))
	assert.NotZero(t, w.ledger().Guards["bad"].Halted)
	assert.Zero(t, w.ledger().Guards[Cluster].Halted, "the other pools go on")
	events := w.leaders[0].events
	assert.Equal(t, 1, events.count(RemediationHalted+" halted in NodePool bad"))
	assert.Equal(t, len(w.deletions), events.count("NodeClaimDeleted "))
	assert.True(t, w.leaders[0].breakers["halted"])
	perHour := events.count(RemediationWithheld + " halted: halted in NodePool bad")
	assert.InDelta(t, 17, perHour, 2, "each rule once an hour")

	w.annotate("bad")
	w.run(10 * time.Minute)
	assert.Zero(t, w.ledger().Guards["bad"].Halted)
	assert.Equal(t, 5, w.deletedIn("bad"))
	w.run(day)
	assert.Equal(t, 8, w.deletedIn("bad"), "and halted again")
}

// Nodes outside of the NodePools pass, so that there is always proof that a node can be verified: the cluster's guard holds.
func TestEveryPoolFails(t *testing.T) {
	t.Parallel()
	pools := []*pool{{name: "", size: 2, fails: never, renew: 20 * time.Minute}}
	for i := range 6 {
		pools = append(pools, &pool{name: fmt.Sprintf("bad%d", i), size: 1, fails: always})
	}
	w := newWorld(t, pools...)
	w.run(day)
	assert.Len(t, w.deletions, 4)
	assert.NotZero(t, w.ledger().Guards[Cluster].Halted)

	w.annotate("bad0, bad1")
	w.run(day)
	assert.Len(t, w.deletions, 4, "the cluster is still halted")
	w.annotate(Cluster)
	w.run(day)
	assert.Len(t, w.deletions, 8)
}

func TestOneBadNodeIsReplacedOnce(t *testing.T) {
	t.Parallel()
	mixed := &pool{name: "mixed", size: 5, fails: func(n int) bool { return n == 2 }}
	w := newWorld(t, good(), mixed)
	w.run(day)
	assert.Equal(t, []string{"mixed-2"}, w.deletions)
	for name, node := range w.nodes {
		assert.Empty(t, node.Spec.Taints, name)
	}
	assert.Len(t, w.nodes, 11)
	assert.Equal(t, sentEvents{"NodeClaimDeleted NodeClaim claim-mixed-2: DNSFailed: dns: timeout"}, *w.leaders[0].events, "and nothing else")
	assert.Empty(t, w.ledger().unanswered("mixed"))
}

// Every second node fails, in all pools but one: the budget holds.
func TestManyBadNodes(t *testing.T) {
	t.Parallel()
	fails := func(n int) bool { return n%2 == 0 }
	var pools []*pool
	for i := range 8 {
		pools = append(pools, &pool{name: fmt.Sprintf("pool%d", i), size: 2, fails: fails, renew: 90 * time.Minute})
	}
	w := newWorld(t, append(pools, good())...)
	w.run(day)
	assert.Len(t, w.deletions, 10)
	deletions := w.ledger().Deletions
	for i := range deletions[3:] {
		assert.GreaterOrEqual(t, deletions[i+3].Time.Sub(deletions[i].Time), time.Hour, "three an hour")
	}
	assert.True(t, w.leaders[0].breakers["daily-budget"])
}

func TestDNSIsDeadEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", size: 3, fails: always})
	w.run(20 * time.Minute)
	w.groupFails = true
	for _, p := range w.pools {
		p.fails = always
	}
	w.run(day)
	assert.Empty(t, w.deletions)
	assert.True(t, w.leaders[0].breakers["control-group"])
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationFrozen+" control-group"))
}

// Without the control group there is still no proof that a new node would do better.
func TestNewNodesFailEverywhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t, &pool{name: "a", size: 5, fails: func(n int) bool { return n > 5 }, renew: 2 * time.Hour},
		&pool{name: "b", size: 5, fails: func(n int) bool { return n > 5 }, renew: 2 * time.Hour})
	w.run(day)
	assert.Empty(t, w.deletions)
	assert.NotZero(t, w.leaders[0].events.count(RemediationWithheld+" proof"))
}

func TestControllerIsRestarted(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{10 * time.Minute, 25 * time.Minute} {
		t.Run(every.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always}, &pool{name: "mixed", size: 6, fails: func(n int) bool { return n == 3 }})
			for range day / every {
				w.run(every)
				w.restart()
			}
			assert.LessOrEqual(t, w.deletedIn("bad"), 4)
			assert.LessOrEqual(t, w.deletedIn("mixed"), 1)
			if every > 20*time.Minute {
				assert.Equal(t, 4, w.deletedIn("bad"), "the ledger survives")
				assert.Equal(t, 1, w.deletedIn("mixed"))
			}
		})
	}
}

// Two processes think that they lead: each write of the ledger by one is preceded by a whole decision of the other.
func TestTwoLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always}, &pool{name: "bad2", size: 1, fails: always})
	first, second := w.leaders[0], w.lead()
	overtaken := 0
	first.remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			second.turn(w)
			err := c.Update(ctx, object, options...)
			if err != nil {
				overtaken++
			}
			return err
		},
	})
	w.run(day)
	assert.NotZero(t, overtaken)
	assert.Len(t, w.ledger().Deletions, len(w.deletions))
	assert.Equal(t, 4, w.deletedIn("bad"))
	assert.Equal(t, 4, w.deletedIn("bad2"))
	deletions := w.ledger().Deletions
	for i := range deletions[1:] {
		assert.GreaterOrEqual(t, deletions[i+1].Time.Sub(deletions[i].Time), 2*time.Minute, "one at a time")
	}
}

// The leader dies between the ledger and the delete: the deletion counts, and is not made up for.
func TestCrashBeforeTheDelete(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always})
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			return context.DeadlineExceeded
		},
	})
	w.run(35 * time.Minute)
	assert.Empty(t, w.deletions)
	require.Len(t, w.ledger().Deletions, 1)
	w.restart()
	w.run(20 * time.Minute)
	assert.Empty(t, w.deletions, "in flight")
	w.run(day)
	assert.Len(t, w.ledger().Deletions, 4)
	assert.Len(t, w.deletions, 3)
}

func TestStuckDeletionFreesTheSlot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "a", size: 1, fails: always}, &pool{name: "b", size: 1, fails: always})
	w.stuck = true
	w.run(55 * time.Minute)
	assert.Len(t, w.deletions, 1)
	w.run(30 * time.Minute)
	assert.Equal(t, []string{"a-1", "b-1"}, w.deletions)
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationStuck))
}

// Nodes of a node group have no NodeClaim: the Node itself is deleted, by the same rules.
func TestNodesWithoutNodeClaim(t *testing.T) {
	t.Parallel()
	mixed := &pool{name: "mixed", group: true, size: 5, fails: func(n int) bool { return n == 2 }}
	w := newWorld(t, good(), mixed, &pool{name: "bad", group: true, size: 1, fails: always})
	w.leaders[0].remediator.Settings.DeleteNodes = true
	w.run(day)
	assert.Equal(t, 4, w.deletedIn("bad"))
	assert.Equal(t, 1, w.deletedIn("mixed"))
	assert.Zero(t, w.deletedIn("good"))
	assert.NotZero(t, w.ledger().Guards[nodeGroupLabel+"=bad"].Halted)
	assert.Zero(t, w.ledger().Guards[Cluster].Halted, "the other groups go on")
	events := w.leaders[0].events
	assert.Equal(t, 1, events.count("NodeDeleted Node mixed-2: DNSFailed: dns: timeout"))
	assert.Equal(t, 5, events.count("NodeDeleted "))
	assert.Zero(t, events.count("NodeClaimDeleted "))
	assert.Equal(t, 1, events.count(RemediationHalted+" halted in "+nodeGroupLabel+"=bad since"))
	for _, deletion := range w.ledger().Deletions {
		assert.Empty(t, deletion.NodeClaim)
		assert.True(t, deletion.Gone)
	}

	w.annotate("bad")
	w.run(time.Minute)
	assert.Equal(t, 1, events.count(RemediationHalted+" still halted after node-ready/clear-halt=bad: [\""+nodeGroupLabel+"=bad\"]"))
	w.annotate(nodeGroupLabel + "=bad")
	w.run(10 * time.Minute)
	assert.Equal(t, 5, w.deletedIn("bad"), "the halt is cleared by the group's name")
}

func TestNodesWithoutNodeClaimStayByDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", group: true, size: 1, fails: always})
	w.run(3 * time.Hour)
	assert.Empty(t, w.deletions)
	assert.NotZero(t, w.leaders[0].events.count(RemediationWithheld+" no-nodepool: the node has no label karpenter.sh/nodepool"))
}

// A Node with a finalizer of somebody is deleted only in name: the message says what to look at.
func TestNodeThatStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, good(), &pool{name: "bad", group: true, size: 1, fails: always})
	w.leaders[0].remediator.Settings.DeleteNodes = true
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil },
	})
	w.run(75 * time.Minute)
	assert.Empty(t, w.deletions)
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationStuck+" the deletion of node bad-1 began 30m0s ago, but the node is still there: check the finalizers of the Node"))
}
