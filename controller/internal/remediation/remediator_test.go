package remediation

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/controlgroup"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// newBadWorld has one node that never passes, among good ones.
func newBadWorld(t *testing.T) *world {
	return newWorld(t, good(), &pool{name: "bad", size: 1, fails: func(n int) bool { return n == 1 }})
}

func TestDryRunDoesAllButTheDelete(t *testing.T) {
	w := newBadWorld(t)
	w.leaders[0].remediator.DryRun = true
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			t.Error("a dry run has no right to delete, not even for a trial")
			return nil
		},
	})
	w.run(3 * time.Hour)
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.ledger().Deletions)
	assert.Equal(t, 3, w.leaders[0].events.count(RemediationWithheld+" dry-run: NodeClaim claim-bad-1 would be deleted"), "once an hour")
	assert.Len(t, *w.leaders[0].events, 3, "and nothing else")
}

// refusing is a client whose deletions of NodeClaims fail.
func (w *world) refusing(err error) client.Client {
	return interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return err },
	})
}

func TestRefusedDeletionDoesNotCount(t *testing.T) {
	w := newBadWorld(t)
	remediator := w.leaders[0].remediator
	remediator.Client = w.refusing(apierrors.NewForbidden(schema.GroupResource{}, "claim-bad-1", nil))
	w.run(time.Hour)
	assert.Empty(t, w.ledger().Deletions)
	assert.Zero(t, w.leaders[0].events.count("NodeClaimDeleted "))
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationWithheld+" refused: NodeClaim claim-bad-1: "), "once an hour")
	remediator.Client = w.client
	w.run(10 * time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

// The NodeClaim changes between the live read and the delete.
func TestPreconditions(t *testing.T) {
	w := newBadWorld(t)
	changed := 0
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			asked := new(client.DeleteOptions)
			asked.ApplyOptions(options)
			require.NotNil(t, asked.Preconditions.UID)
			assert.Equal(t, object.GetUID(), *asked.Preconditions.UID)
			if changed++; changed == 1 {
				claim := object.DeepCopyObject().(client.Object)
				claim.SetAnnotations(map[string]string{"x": "y"})
				require.NoError(t, c.Update(ctx, claim))
			}
			return c.Delete(ctx, object, options...)
		},
	})
	w.run(31 * time.Minute)
	assert.Equal(t, 1, changed)
	assert.Empty(t, w.deletions)
	w.run(10 * time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

// The loop hangs: what it has found may not be so any more.
func TestOldPlan(t *testing.T) {
	w := newBadWorld(t)
	l := w.leaders[0]
	plan := l.remediator.Plan
	l.remediator.Plan = func() (fleet.Plan, error) {
		old, err := plan()
		old.At = old.At.Add(-31 * time.Second)
		return old, err
	}
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	l.remediator.Plan = func() (fleet.Plan, error) {
		old, err := plan()
		old.At = old.At.Add(-30 * time.Second)
		return old, err
	}
	w.run(time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

// The ledger is written before the delete: without it, nothing is deleted.
func TestLedgerFails(t *testing.T) {
	w := newBadWorld(t)
	failing := true
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if _, ledger := object.(*corev1.ConfigMap); failing && ledger {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return c.Update(ctx, object, options...)
		},
	})
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	failing = false
	w.run(time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

func TestUnreadableLedger(t *testing.T) {
	w := newBadWorld(t)
	require.NoError(t, w.client.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-node-ready-remediation", Namespace: namespace}, Data: map[string]string{ledgerKey: "{"}}))
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	assert.True(t, w.leaders[0].breakers["ledger"])
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationFrozen+" ledger: ConfigMap kube-system/kube-node-ready-remediation: the ledger is not readable"))
}

func TestDeletedLedgerIsMadeAgain(t *testing.T) {
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always})
	w.run(32 * time.Minute)
	require.Len(t, w.ledger().Deletions, 1)
	require.NoError(t, w.client.Delete(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kube-node-ready-remediation", Namespace: namespace}}))
	w.run(40 * time.Minute)
	assert.Len(t, w.ledger().Deletions, 2)
}

// A healthy fleet costs no request.
func TestNothingToDo(t *testing.T) {
	w := newWorld(t, good())
	w.run(10 * time.Minute)
	requests := 0
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			requests++
			return c.Get(ctx, key, object, options...)
		},
	})
	w.run(3 * time.Hour)
	assert.Zero(t, requests)
	assert.Empty(t, *w.leaders[0].events)
	assert.Equal(t, map[string]bool{"control-group": false, "control-node": false, "ledger": false, "hourly-budget": false,
		"daily-budget": false, "halted": false, "failed-rechecks": false}, w.leaders[0].breakers)
}

// A candidate whose live objects withhold its deletion does not keep the others from theirs.
func TestWorkloadHoldsOneNode(t *testing.T) {
	w := newWorld(t, good(), &pool{name: "a", size: 1, fails: always}, &pool{name: "b", size: 1, fails: always})
	w.run(time.Minute)
	require.NoError(t, w.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "ns"},
		Spec: corev1.PodSpec{NodeName: "a-1"}}))
	w.run(31 * time.Minute)
	assert.Equal(t, []string{"b-1"}, w.deletions)
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationWithheld+" workload: pod ns/pod runs on the node"))
}

func TestNodeClaimByOwnerReference(t *testing.T) {
	for name, test := range map[string]struct {
		uid     types.UID
		deleted []string
	}{
		"the node's":              {"uid-claim-bad-1", []string{"bad-1"}},
		"of the same name, later": {"another", nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBadWorld(t)
			w.run(time.Minute)
			w.nodes["bad-1"].OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "karpenter.sh/v1beta1", Kind: nodeClaimKind, Name: "claim-bad-1", UID: test.uid}}
			w.update(w.nodes["bad-1"])
			w.run(35 * time.Minute)
			assert.Equal(t, test.deleted, w.deletions)
		})
	}
}

func TestNoKarpenter(t *testing.T) {
	w := newBadWorld(t)
	w.leaders[0].remediator.Settings.DeleteAfter = time.Minute
	claims := new(unstructured.UnstructuredList)
	claims.SetGroupVersionKind(claimKind().GroupVersion().WithKind(nodeClaimKind + "List"))
	w.run(time.Minute)
	require.NoError(t, w.client.List(t.Context(), claims))
	for i := range claims.Items {
		claims.Items[i].SetFinalizers(nil)
		require.NoError(t, w.client.Update(t.Context(), &claims.Items[i]))
		require.NoError(t, w.client.Delete(t.Context(), &claims.Items[i]))
	}
	w.deletions = nil
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	assert.NotZero(t, w.leaders[0].events.count(RemediationWithheld+" no-nodeclaim"))
}

func TestNoActionWithoutAClockOrAPlan(t *testing.T) {
	w := newBadWorld(t)
	remediator := w.leaders[0].remediator
	remediator.ServerTime = func() time.Time { return time.Time{} }
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.leaders[0].breakers, "it has not decided")
}

// handingOver is a world whose controller runs on a node that is not verified.
func handingOver(t *testing.T) (w *world, left *int) {
	w, left = newWorld(t, good()), new(int)
	labels := map[string]string{"app.kubernetes.io/name": "kube-node-ready", "app.kubernetes.io/instance": "knr", "app.kubernetes.io/component": "controller"}
	w.leaders[0].remediator.HandOver = &breaker.HandOver{Client: w.client, Namespace: namespace, Replicas: labels,
		Leave: func() { *left++ }, Log: slog.New(slog.DiscardHandler)}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for name, node := range map[string]string{"ctl-1": "controller", "ctl-2": "second"} {
		require.NoError(t, w.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: labels},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Conditions: ready}}))
	}
	w.add("second", nil)
	w.run(5 * time.Minute)
	node := w.nodes["controller"]
	delete(node.Labels, label)
	w.update(node)
	return w, left
}

func TestHandOver(t *testing.T) {
	w, left := handingOver(t)
	w.run(10 * time.Minute)
	assert.Zero(t, *left, "the other replica's node is not verified either")
	assert.True(t, w.leaders[0].breakers["control-node"])
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationFrozen+" control-node: the controller's own node controller is not verified"))
	w.verify(w.nodes["second"])
	w.run(2 * time.Minute)
	assert.NotZero(t, *left)
}

// In controller mode nobody labels a node that never had the startup taint.
func TestHandOverToANodeThatWasNeverGated(t *testing.T) {
	w, left := handingOver(t)
	w.nodes["second"].Spec.Taints = nil
	w.update(w.nodes["second"])
	w.run(2 * time.Minute)
	assert.NotZero(t, *left)
}

func TestNoHandOverForAMoment(t *testing.T) {
	w, left := handingOver(t)
	w.verify(w.nodes["second"])
	for range 10 {
		w.run(time.Minute)
		w.verify(w.nodes["controller"])
		w.run(time.Minute)
		delete(w.nodes["controller"].Labels, label)
		w.update(w.nodes["controller"])
	}
	assert.Zero(t, *left)
}

func TestNoHandOverToAReplicaThatIsNotReady(t *testing.T) {
	w, left := handingOver(t)
	w.verify(w.nodes["second"])
	pod := new(corev1.Pod)
	require.NoError(t, w.client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "ctl-2"}, pod))
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	require.NoError(t, w.client.Status().Update(t.Context(), pod))
	w.run(10 * time.Minute)
	assert.Zero(t, *left)
}

func TestEventsFit(t *testing.T) {
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always})
	w.group = controlgroup.State{Failure: strings.Repeat("dns: timeout; ", 200), Ended: w.now}
	w.run(time.Hour)
	require.NotEmpty(t, *w.leaders[0].events)
	for _, event := range *w.leaders[0].events {
		_, note, _ := strings.Cut(event, " ")
		assert.LessOrEqual(t, len(note), 1024)
	}
}

// The live reads may take longer than a plan is good for: then nothing is deleted, and the ledger stays as it is.
func TestNothingIsDeletedOnAnOldPlan(t *testing.T) {
	w := newBadWorld(t)
	remediator := w.leaders[0].remediator
	var slow time.Duration
	now, plan := remediator.Now, remediator.Plan
	remediator.Now = func() time.Time { return now().Add(slow) }
	remediator.Plan = func() (fleet.Plan, error) {
		slow = 0
		return plan()
	}
	remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if _, isPods := list.(*corev1.PodList); isPods {
				slow += 31 * time.Second
			}
			return c.List(ctx, list, options...)
		},
	})
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	remediator.Client = w.client
	w.run(time.Hour)
	assert.NotEmpty(t, w.deletions)
}

// writingLedger is the world's client with what happens while the ledger is written.
func (w *world) writingLedger(during func()) client.Client {
	return interceptor.NewClient(w.client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			err := c.Update(ctx, object, options...)
			if _, isLedger := object.(*corev1.ConfigMap); isLedger {
				during()
			}
			return err
		},
	})
}

// The write of the ledger takes long, most when an API server recovers, and the nodes with it.
func TestNodeThatIsReleasedWhileTheLedgerIsWritten(t *testing.T) {
	w := newBadWorld(t)
	w.leaders[0].remediator.Client = w.writingLedger(func() {
		if node := w.nodes["bad-1"]; node != nil && len(node.Spec.Taints) > 0 {
			w.verify(node)
		}
	})
	w.run(2 * time.Hour)
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.ledger().Deletions, "the entry is taken back")
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationWithheld+" changed: "))
}

// The plan is too old once the ledger is written.
func TestWriteOfTheLedgerTakesTooLong(t *testing.T) {
	w := newBadWorld(t)
	remediator, now := w.leaders[0].remediator, w.leaders[0].remediator.Now
	late := time.Duration(0)
	remediator.Now = func() time.Time { return now().Add(late) }
	remediator.Client = w.writingLedger(func() { late = 31*time.Second - late })
	w.run(40 * time.Minute)
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.ledger().Deletions)
}

// The time for all requests ends while the ledger is written: the entry is taken back all the same.
func TestTimeEndsWhileTheLedgerIsWritten(t *testing.T) {
	w := newBadWorld(t)
	remediator := w.leaders[0].remediator
	ends := func() {}
	remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			defer ends()
			return c.Update(ctx, object, options...)
		},
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return c.Get(ctx, key, object, options...)
		},
	})
	w.run(29 * time.Minute)
	for range 4 { // the first may take the clock, or the ledger's creation
		ctx, cancel := context.WithCancel(t.Context())
		ends = cancel
		w.now = w.now.Add(30 * time.Second)
		w.group.Ended = w.now
		l := w.leaders[0]
		l.turnWith(ctx, w)
		cancel()
	}
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.ledger().Deletions)
}

// A proxy or client-go repeats a DELETE whose answer was lost: the second one says 409, because the NodeClaim is going.
func TestRepeatedDelete(t *testing.T) {
	for name, refusal := range map[string]error{
		"conflict":  apierrors.NewConflict(schema.GroupResource{}, "claim-bad-1", nil),
		"not found": apierrors.NewNotFound(schema.GroupResource{}, "claim-bad-1"),
	} {
		t.Run(name, func(t *testing.T) {
			w := newBadWorld(t)
			w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
				Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
					require.NoError(t, c.Delete(ctx, object, options...))
					return refusal
				},
			})
			w.run(32 * time.Minute)
			assert.Equal(t, []string{"bad-1"}, w.deletions)
			assert.Len(t, w.ledger().Deletions, 1, "it counts")
		})
	}
}

// However many candidates are refused live, the next one is tried in the same turn.
func TestManyRefusedCandidatesStarveNoOther(t *testing.T) {
	bad := &pool{name: "bad", size: 60, fails: func(n int) bool { return n <= 12 }}
	w := newWorld(t, good(), bad)
	reads := make(map[time.Time]int)
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			of := new(client.ListOptions).ApplyOptions(options)
			if _, isPods := list.(*corev1.PodList); isPods && of.FieldSelector != nil && of.FieldSelector.String() != "spec.nodeName=bad-9" {
				reads[w.now]++
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return c.List(ctx, list, options...)
		},
	})
	w.run(31 * time.Minute) // they are sorted by name: bad-9 is the last of twelve, and a turn is half a minute
	assert.Equal(t, []string{"bad-9"}, w.deletions)
	for _, n := range reads {
		assert.LessOrEqual(t, n, 10, "in one turn")
	}
}

// Candidates whose deletion the API server refuses are tried after the others, one in each turn.
func TestManyRefusedDeletionsStarveNoOther(t *testing.T) {
	bad := &pool{name: "bad", size: 60, fails: func(n int) bool { return n <= 12 }}
	w := newWorld(t, good(), bad)
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			if object.GetName() != "claim-bad-9" {
				return apierrors.NewForbidden(schema.GroupResource{}, object.GetName(), nil)
			}
			return c.Delete(ctx, object, options...)
		},
	})
	w.run(45 * time.Minute)
	assert.Equal(t, []string{"bad-9"}, w.deletions)
}

// One answer with a wrong Date must not empty the ledger, nor open a budget.
func TestWrongDate(t *testing.T) {
	w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always})
	w.run(32 * time.Minute)
	require.Len(t, w.ledger().Deletions, 1)
	before := w.ledger()
	l := w.leaders[0]
	right := l.remediator.ServerTime
	l.remediator.ServerTime = func() time.Time { return right().Add(31 * day) }
	w.run(2 * time.Minute)
	assert.True(t, l.breakers["ledger"])
	assert.Equal(t, 1, l.events.count(RemediationFrozen+" ledger: the API server's clock has jumped"))
	l.remediator.ServerTime = right
	w.run(10 * time.Minute)
	assert.False(t, l.breakers["ledger"])
	assert.Equal(t, before.Deletions[0].Time, w.ledger().Deletions[0].Time)
	assert.Len(t, w.deletions, 1)

	l.remediator.ServerTime = func() time.Time { return right().Add(31 * day) }
	w.run(20 * time.Minute) // one of several API servers is wrong for long
	l.remediator.ServerTime = right
	w.run(10 * time.Minute)
	assert.Equal(t, before.Deletions[0].Time, w.ledger().Deletions[0].Time, "nothing is forgotten")
}

// Somebody empties the ConfigMap: that clears neither halts nor budgets.
func TestEmptiedLedger(t *testing.T) {
	for name, empty := range map[string]map[string]string{"no key": nil, "empty": {ledgerKey: ""}, "no ledger": {ledgerKey: "{}"}, "null": {ledgerKey: "null"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, good(), &pool{name: "bad", size: 1, fails: always})
			w.run(32 * time.Minute)
			require.Len(t, w.deletions, 1)
			object := new(corev1.ConfigMap)
			key := client.ObjectKey{Namespace: namespace, Name: "kube-node-ready-remediation"}
			require.NoError(t, w.client.Get(t.Context(), key, object))
			object.Data = empty
			w.update(object)
			w.run(2 * time.Hour)
			assert.Len(t, w.deletions, 1)
			assert.True(t, w.leaders[0].breakers["ledger"])
			assert.Equal(t, 1, w.leaders[0].events.count(RemediationFrozen+" ledger: ConfigMap kube-system/kube-node-ready-remediation: the ledger is not readable"))
			require.NoError(t, w.client.Delete(t.Context(), object))
			w.run(time.Minute)
			assert.Len(t, w.ledger().Deletions, 2, "the first one is known, and the next one follows")
		})
	}
}

// newNodeWorld is newBadWorld with a node group instead of a NodePool, whose Nodes may be deleted.
func newNodeWorld(t *testing.T) *world {
	w := newWorld(t, good(), &pool{name: "bad", group: true, size: 1, fails: func(n int) bool { return n == 1 }})
	w.leaders[0].remediator.Settings.DeleteNodes = true
	return w
}

// The node is released between the live read and the delete: it serves, and must stay.
func TestNodeThatIsReleasedBeforeItsDelete(t *testing.T) {
	w := newNodeWorld(t)
	asked := 0
	w.leaders[0].remediator.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
			asked++
			preconditions := new(client.DeleteOptions).ApplyOptions(options).Preconditions
			require.Equal(t, types.UID("uid-bad-1"), *preconditions.UID)
			w.verify(w.nodes["bad-1"])
			return c.Delete(ctx, object, options...)
		},
	})
	w.run(2 * time.Hour)
	assert.Equal(t, 1, asked)
	assert.Empty(t, w.deletions)
	assert.Contains(t, w.nodes, "bad-1")
	assert.Empty(t, w.ledger().Deletions, "the entry is taken back")
}

func TestDryRunOfANode(t *testing.T) {
	w := newNodeWorld(t)
	w.leaders[0].remediator.DryRun = true
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	assert.Equal(t, 1, w.leaders[0].events.count(RemediationWithheld+" dry-run: Node bad-1 would be deleted"))
}

// Without Karpenter the API server does not know NodeClaims.
func TestNodeInAClusterWithoutKarpenter(t *testing.T) {
	w := newNodeWorld(t)
	w.leaders[0].remediator.Client = noNodeClaims{w.client}
	w.run(time.Hour)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

type noNodeClaims struct{ client.Client }

func (noNodeClaims) RESTMapper() meta.RESTMapper { return meta.NewDefaultRESTMapper(nil) }
