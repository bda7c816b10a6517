package remediation

import (
	"context"
	"fmt"
	"log/slog"
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

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup        = "node-ready/unverified"
	label          = "node-ready/verified"
	conditionType  = "NodeVerified"
	namespace      = "kube-system"
	finalizer      = "karpenter.sh/termination"
	nodeGroupLabel = "eks.amazonaws.com/nodegroup"
	day            = 24 * time.Hour
)

func testKeys() nodepatch.Keys {
	return nodepatch.Keys{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: label, LabelValue: "true"}
}

func testSettings() Settings {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
	of := fleet.Settings{Rules: fleet.NewRules(template, testKeys()), Keys: testKeys(), ConditionType: conditionType,
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

// world is a cluster of a few nodes and a controller, whose clock the test turns.
type world struct {
	*Remediator
	t         *testing.T
	client    client.WithWatch
	now       time.Time
	group     baseline.State
	deletions []string // nodes that the controller has deleted, or whose NodeClaim it has
	events    *sentEvents
	breakers  map[Rule]bool
	podEvents map[types.UID][]corev1.Event // as they were read for the plan
	seen      fleet.Memory
	plan      fleet.Plan
}

// newWorld has nodes that fail from the beginning, and a younger one that is verified: the proof that a new node passes. The
// NodePool of a node is the part of its name before the dash.
func newWorld(t *testing.T, bad ...string) *world {
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	scheme.AddKnownTypeWithName(claimKind(), new(unstructured.Unstructured))
	scheme.AddKnownTypeWithName(claimKind().GroupVersion().WithKind(nodeClaimKind+"List"), new(unstructured.UnstructuredList))
	start := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	w := &world{t: t, now: start, events: new(sentEvents), breakers: make(map[Rule]bool)}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{claimKind().GroupVersion()})
	mapper.Add(claimKind(), meta.RESTScopeRoot)
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(mapper).
		WithIndex(&corev1.Pod{}, "spec.nodeName", func(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }).
		WithIndex(&corev1.Event{}, "involvedObject.uid", func(o client.Object) []string { return []string{string(o.(*corev1.Event).InvolvedObject.UID)} }).
		WithInterceptorFuncs(interceptor.Funcs{Delete: w.delete}).Build()
	w.group = baseline.State{PassedSince: mark(start.Add(-time.Hour)), Ended: mark(start)}
	w.Remediator = &Remediator{
		Settings: testSettings(), Client: w.client, LedgerName: "kube-node-ready-remediation", Self: &corev1.Pod{},
		Actor: act.Actor{Plan: func() (fleet.Plan, error) { return w.plan, nil },
			ControlGroup: func() baseline.State { return w.group }, Now: w.clock,
			Timeout: time.Minute, Events: w.events, Log: slog.New(slog.DiscardHandler),
			SetBreakers: func(rules []Rule, holding map[Rule]string) {
				for _, rule := range rules {
					w.breakers[rule] = holding[rule] != ""
				}
			}},
	}
	w.add("controller", nodeGroupLabel)
	w.verify("controller")
	for _, name := range bad {
		w.addBad(name, nodePoolLabel)
	}
	w.addGood("good-1")
	return w
}

// newBadWorld has one node that never passes.
func newBadWorld(t *testing.T) *world { return newWorld(t, "bad-1") }

// newNodeWorld is newBadWorld with a node group instead of a NodePool, whose Nodes may be deleted.
func newNodeWorld(t *testing.T) *world {
	w := newWorld(t)
	w.Settings.DeleteNodes = true
	w.addBad("bad-1", nodeGroupLabel)
	w.addGood("good-2")
	return w
}

// delete deletes as the API server does. The Node of a NodeClaim goes with it at once; the NodeClaim itself stays for now.
func (w *world) delete(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
	if asked := new(client.DeleteOptions).ApplyOptions(options).Preconditions; asked != nil { // the controller's: only as it was read
		assert.Equal(w.t, object.GetUID(), *asked.UID)
		assert.Equal(w.t, object.GetResourceVersion(), *asked.ResourceVersion)
	} else if object.GetObjectKind().GroupVersionKind().Kind == nodeClaimKind {
		w.t.Error("a NodeClaim is deleted without preconditions")
	}
	err := c.Delete(ctx, object, options...)
	name := strings.TrimPrefix(object.GetName(), "claim-")
	isClaim := object.GetObjectKind().GroupVersionKind().Kind == nodeClaimKind
	if _, isNode := object.(*corev1.Node); err != nil || !isNode && !isClaim {
		return err
	}
	w.deletions = append(w.deletions, name)
	if isClaim {
		require.NoError(w.t, c.Delete(ctx, w.node(name)))
	}
	return c.Delete(ctx, w.pod(name)) // as the garbage collection of pods does
}

// add creates a gated node of a NodePool, with its NodeClaim, or of a node group, and its agent.
func (w *world) add(name, groupLabel string) {
	pool, _, _ := strings.Cut(name, "-")
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(w.now.Add(5 * time.Hour)),
			Labels: map[string]string{groupLabel: pool}, Annotations: map[string]string{}},
		Spec: corev1.NodeSpec{ProviderID: "cloud://" + name, Taints: []corev1.Taint{{Key: startup, Value: "true", Effect: corev1.TaintEffectNoSchedule}}},
	}
	if groupLabel == nodePoolLabel {
		claim := new(unstructured.Unstructured)
		claim.SetGroupVersionKind(claimKind())
		claim.SetName("claim-" + name)
		claim.SetUID(types.UID("uid-claim-" + name))
		claim.SetLabels(map[string]string{nodePoolLabel: pool})
		claim.SetFinalizers([]string{finalizer})
		claim.Object["status"] = map[string]any{"nodeName": name, "providerID": node.Spec.ProviderID}
		require.NoError(w.t, w.client.Create(w.t.Context(), claim))
	}
	require.NoError(w.t, w.client.Create(w.t.Context(), node))
	require.NoError(w.t, w.client.Create(w.t.Context(), agentPod(name)))
}

// addBad adds a node whose agent reports that its checks fail.
func (w *world) addBad(name, groupLabel string) {
	w.add(name, groupLabel)
	node := w.node(name)
	node.Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionFalse, Reason: "DNSFailed", Message: "dns: timeout"}}
	require.NoError(w.t, w.client.Status().Update(w.t.Context(), node))
}

// addGood adds a node that is younger than the others, and verified.
func (w *world) addGood(name string) {
	w.now = w.now.Add(time.Minute)
	w.add(name, nodePoolLabel)
	w.verify(name)
}

func (w *world) node(name string) *corev1.Node {
	node := new(corev1.Node)
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, node))
	return node
}

func (w *world) edit(name string, change func(*corev1.Node)) {
	node := w.node(name)
	change(node)
	require.NoError(w.t, w.client.Update(w.t.Context(), node))
}

func (w *world) verify(name string) {
	w.edit(name, func(node *corev1.Node) {
		metav1.SetMetaDataLabel(&node.ObjectMeta, label, "true")
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, nodepatch.Annotation, "{}")
		node.Spec.Taints = nil
	})
}

// pod is the agent of a node.
func (w *world) pod(node string) *corev1.Pod {
	pod := new(corev1.Pod)
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: "agent-" + node}, pod))
	return pod
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

// run lets the clock run for d, with a decision each half minute.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.decideOnce(w.t.Context())
	}
}

// clock is the time by both clocks: the API server's is hours ahead.
func (w *world) clock() clock.Now { return clock.At(w.now, w.now.Add(5*time.Hour)) }

// decideOnce makes a plan, and lets the controller act on it.
func (w *world) decideOnce(ctx context.Context) {
	w.now = w.now.Add(30 * time.Second)
	w.group.Ended = mark(w.now)
	var nodes corev1.NodeList
	var pods corev1.PodList
	require.NoError(w.t, w.client.List(w.t.Context(), &nodes))
	require.NoError(w.t, w.client.List(w.t.Context(), &pods, client.InNamespace(namespace)))
	objects := fleet.Objects{Seen: w.seen, Events: w.podEvents, Pods: pods.Items}
	for i := range nodes.Items {
		slim, err := fleet.SlimNode(conditionType, false, nodepatch.Annotation, DoNotDisrupt, DoNotDelete)(&nodes.Items[i])
		require.NoError(w.t, err)
		objects.Nodes = append(objects.Nodes, *slim.(*corev1.Node))
	}
	w.plan = testSettings().Fleet.Decide(objects, w.clock())
	w.seen = w.plan.Seen
	in := Input{Statuses: w.plan.Statuses, ControlGroup: w.group}
	for _, candidate := range w.Settings.Decide(in, w.clock()).Candidates {
		assert.True(w.t, candidate.ChangesWithTime(), "else no plan would be made again")
	}
	w.Once(ctx, w.act)
}

// configMap reads the ledger's object.
func (w *world) configMap() *corev1.ConfigMap {
	object := new(corev1.ConfigMap)
	require.NoError(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: w.LedgerName}, object))
	return object
}

func (w *world) ledger() Ledger {
	ledger, err := parseLedger(w.configMap().Data[ledgerKey])
	require.NoError(w.t, err)
	return ledger
}

// setLedger writes the ledger's object as somebody else does.
func (w *world) setLedger(data, annotations map[string]string) {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: w.LedgerName, Namespace: namespace, Annotations: annotations}, Data: data}
	if err := w.client.Update(w.t.Context(), object); err != nil {
		require.NoError(w.t, w.client.Create(w.t.Context(), object))
	}
}
