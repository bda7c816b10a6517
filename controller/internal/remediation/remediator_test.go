package remediation

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
)

func TestDryRunDoesAllButTheDelete(t *testing.T) {
	w := newBadWorld(t)
	w.DryRun = true
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error {
			t.Error("a dry run has no right to delete, not even for a trial")
			return nil
		},
	})
	w.run(3 * time.Hour)
	assert.Empty(t, w.deletions)
	assert.Empty(t, w.ledger().Deletions)
	assert.Equal(t, 3, w.events.count(RemediationWithheld+" dry-run: NodeClaim claim-bad-1 would be deleted"), "once an hour")
	assert.Len(t, *w.events, 3, "and nothing else")
}

// A policy refuses what Karpenter has initialized, or the NodeClaim has changed since it was read: that is reported, and uses up no
// budget. A deletion whose answer was lost, and that a proxy or client-go has repeated, is refused as well, and counts.
func TestRefusedDeletion(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{}, "claim-bad-1", nil)
	for name, test := range map[string]struct {
		refusal error
		counts  bool
	}{
		"policy":              {apierrors.NewForbidden(schema.GroupResource{}, "claim-bad-1", nil), false},
		"changed":             {conflict, false},
		"repeated: conflict":  {conflict, true},
		"repeated: not found": {apierrors.NewNotFound(schema.GroupResource{}, "claim-bad-1"), true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newBadWorld(t)
			w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
				Delete: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.DeleteOption) error {
					if test.counts {
						require.NoError(t, c.Delete(ctx, object, options...))
					}
					return test.refusal
				},
			})
			w.run(time.Hour)
			if test.counts {
				assert.Equal(t, []string{"bad-1"}, w.deletions)
				assert.Len(t, w.ledger().Deletions, 1)
				return
			}
			assert.Empty(t, w.ledger().Deletions)
			assert.Equal(t, 1, w.events.count(RemediationWithheld+" refused: NodeClaim claim-bad-1: "), "once an hour")
			w.Client = w.client
			w.run(10 * time.Minute)
			assert.Equal(t, []string{"bad-1"}, w.deletions)
		})
	}
}

// The ledger is written before the delete: without it, nothing is deleted.
func TestLedgerThatCannotBeWritten(t *testing.T) {
	for name, failure := range map[string]error{
		"error":    apierrors.NewInternalError(context.DeadlineExceeded),
		"conflict": apierrors.NewConflict(schema.GroupResource{}, "kube-node-ready-remediation", nil),
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "bad-1", "other-1")
			failing := interceptor.NewClient(w.client, interceptor.Funcs{
				Update: func(context.Context, client.WithWatch, client.Object, ...client.UpdateOption) error { return failure },
			})
			w.Client = failing
			w.run(time.Hour)
			assert.Empty(t, w.deletions)
			w.Client = w.client
			for len(w.deletions) == 0 {
				w.run(30 * time.Second)
			}
			w.Client = failing // it has to say that the node is gone
			w.run(2 * time.Hour)
			assert.Len(t, w.deletions, 1)
			assert.Equal(t, name == "error", w.breakers[LedgerFailed], "a conflict is decided again")
		})
	}
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
			w.edit("bad-1", func(node *corev1.Node) {
				node.OwnerReferences = []metav1.OwnerReference{
					{APIVersion: "karpenter.sh/v1beta1", Kind: nodeClaimKind, Name: "claim-bad-1", UID: test.uid}}
			})
			w.run(35 * time.Minute)
			assert.Equal(t, test.deleted, w.deletions)
		})
	}
}

func TestNoActionWithoutAClockOrAPlan(t *testing.T) {
	w := newBadWorld(t)
	w.Now = func() clock.Now { return clock.At(w.now, time.Time{}) }
	w.run(time.Hour)
	assert.Empty(t, w.deletions)
	assert.True(t, w.breakers[LedgerFailed])
}

func TestEventsFit(t *testing.T) {
	w := newBadWorld(t)
	w.group = baseline.State{Failure: strings.Repeat("dns: timeout; ", 200), Ended: mark(w.now)}
	w.run(time.Hour)
	require.NotEmpty(t, *w.events)
	for _, event := range *w.events {
		_, note, _ := strings.Cut(event, " ")
		assert.LessOrEqual(t, len(note), 1024)
	}
}

// Somebody empties the ConfigMap: that clears neither halts nor budgets.
func TestEmptiedLedger(t *testing.T) {
	for name, empty := range map[string]map[string]string{"no key": nil, "empty": {ledgerKey: ""}, "no JSON": {ledgerKey: "{"},
		"no ledger": {ledgerKey: "{}"}, "null": {ledgerKey: "null"}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "bad-1", "other-1")
			w.run(32 * time.Minute)
			require.Len(t, w.deletions, 1)
			w.setLedger(empty, nil)
			w.run(2 * time.Hour)
			assert.Len(t, w.deletions, 1)
			assert.True(t, w.breakers[LedgerFailed])
			assert.Equal(t, 1, w.events.count(RemediationFrozen+" ledger: ConfigMap kube-system/kube-node-ready-remediation: the ledger is not readable"))
			require.NoError(t, w.client.Delete(t.Context(), w.configMap()))
			w.run(time.Minute)
			assert.Len(t, w.ledger().Deletions, 2, "the first one is known, and the next one follows")
		})
	}
}

// Nodes of a node group have no NodeClaim: the Node itself is deleted. Without Karpenter the API server does not know NodeClaims.
func TestNodesWithoutNodeClaim(t *testing.T) {
	for name, hasKarpenter := range map[string]bool{"with Karpenter": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			w := newNodeWorld(t)
			if !hasKarpenter {
				w.Client = noNodeClaims{w.client}
			}
			w.run(32 * time.Minute)
			assert.Equal(t, []string{"bad-1"}, w.deletions)
			assert.Equal(t, sentEvents{"NodeDeleted Node bad-1: DNSFailed: dns: timeout"}, *w.events)
			assert.Equal(t, nodeGroupLabel+"=bad", w.ledger().Deletions[0].Scope)
			assert.Empty(t, w.ledger().Deletions[0].NodeClaim)
		})
	}
}

type noNodeClaims struct{ client.Client }

func (noNodeClaims) RESTMapper() meta.RESTMapper { return meta.NewDefaultRESTMapper(nil) }

// The loop guard halts the deletions of a node group, until somebody clears that by the group's name.
func TestClearHaltOfANodeGroup(t *testing.T) {
	w := newNodeWorld(t)
	const group = nodeGroupLabel + "=bad"
	ledger := Ledger{}
	for range pauses() {
		ledger.Deletions = append(ledger.Deletions, Deletion{Time: w.clock().Server().Add(-2 * time.Hour), Scope: group, Gone: true})
	}
	w.setLedger(map[string]string{ledgerKey: ledger.String()}, nil)
	w.run(2 * time.Hour)
	assert.Empty(t, w.deletions)
	assert.Equal(t, 1, w.events.count(RemediationHalted+" halted in "+group+" since"))
	assert.Zero(t, w.ledger().Guards[Cluster].Halted, "the other groups go on")

	w.setLedger(w.configMap().Data, map[string]string{ClearHalt: "bad"})
	w.run(time.Minute)
	assert.Equal(t, 1, w.events.count(RemediationHalted+" still halted after node-ready/clear-halt=bad: [\""+group+"\"]"))
	w.setLedger(w.configMap().Data, map[string]string{ClearHalt: group})
	w.run(10 * time.Minute)
	assert.Equal(t, []string{"bad-1"}, w.deletions)
}

// A Node with a finalizer of somebody is deleted only in name: the message says what to look at.
func TestNodeThatStays(t *testing.T) {
	for look, w := range map[string]*world{
		"the finalizers of the Node":                                       newNodeWorld(t),
		"Karpenter's log, and the finalizers of the NodeClaim claim-bad-1": newBadWorld(t),
	} {
		w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
			Delete: func(context.Context, client.WithWatch, client.Object, ...client.DeleteOption) error { return nil },
		})
		w.run(75 * time.Minute)
		assert.Empty(t, w.deletions)
		assert.Equal(t, 1, w.events.count(RemediationStuck+" the deletion of node bad-1 began 30m0s ago, but the node is still there: check "+look))
	}
}

// A candidate whose live objects cannot be read, or withhold its deletion, keeps no other from being replaced.
func TestManyRefusedCandidatesStarveNoOther(t *testing.T) {
	var bad []string
	for i := range 12 {
		bad = append(bad, fmt.Sprintf("p%02d-1", i))
	}
	w := newWorld(t, bad...)
	require.NoError(t, w.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "ns"},
		Spec: corev1.PodSpec{NodeName: "p00-1"}}))
	reads := make(map[time.Time]int)
	w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			of := new(client.ListOptions).ApplyOptions(options).FieldSelector
			if of == nil || of.String() == "spec.nodeName=p00-1" || of.String() == "spec.nodeName=p11-1" {
				return c.List(ctx, list, options...)
			}
			reads[w.now]++
			return apierrors.NewInternalError(context.DeadlineExceeded)
		},
	})
	w.run(31 * time.Minute) // they are sorted by name, and a turn is half a minute
	assert.Equal(t, []string{"p11-1"}, w.deletions)
	assert.Equal(t, 1, w.events.count(RemediationWithheld+" workload: pod ns/pod runs on the node"))
	for _, n := range reads {
		assert.LessOrEqual(t, n, 10, "in one turn")
	}
}

// The write of the ledger takes so long that the plan is too old, or that the time for all requests ends: the entry is taken back.
func TestWriteOfTheLedgerTakesTooLong(t *testing.T) {
	for name, isOld := range map[string]bool{"the plan is too old": true, "the time ends": false} {
		t.Run(name, func(t *testing.T) {
			w := newBadWorld(t)
			now, late, ends := w.Now, time.Duration(0), func() {}
			w.Now = func() clock.Now { return clock.At(w.now.Add(late), now().Server()) }
			w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
				Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					if isOld {
						late = 31*time.Second - late
					} else {
						defer ends()
					}
					return c.Update(ctx, object, options...)
				},
				Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					return c.Get(ctx, key, object, options...)
				},
			})
			w.run(28 * time.Minute)
			for range 4 { // the first may take the clock, or the ledger's creation
				ctx, cancel := context.WithCancel(t.Context())
				ends = cancel
				w.decideOnce(ctx)
				cancel()
			}
			assert.Empty(t, w.deletions)
			assert.Empty(t, w.ledger().Deletions)
		})
	}
}

// A deletion that was not made counts for nothing, although its entry stays in the ledger for a while: the answer to the write of the
// entry was lost, and the API server has applied it, applies it later, or never does; or the entry could not be taken back at once.
func TestEntryOfADeletionThatWasNotMade(t *testing.T) {
	lost := apierrors.NewTimeoutError("lost", 1)
	for name, first := range map[string]func(w *world, write func() error) (late func() error, answer error){
		"applied": func(_ *world, write func() error) (func() error, error) { _ = write(); return nil, lost },
		"late":    func(_ *world, write func() error) (func() error, error) { return write, lost },
		"never":   func(*world, func() error) (func() error, error) { return nil, lost },
		"taken back late": func(w *world, write func() error) (func() error, error) {
			w.edit("bad-1", func(node *corev1.Node) { node.Spec.Unschedulable = true })
			return nil, write()
		},
	} {
		for outcome, recovers := range map[string]bool{"goes on failing": false, "recovers": true} {
			t.Run(name+", and the node "+outcome, func(t *testing.T) {
				w := newBadWorld(t)
				writes, late := 0, func() error { return nil }
				w.Client = interceptor.NewClient(w.client, interceptor.Funcs{
					Update: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.UpdateOption) (err error) {
						copied := object.DeepCopyObject().(client.Object)
						write := func() error { return c.Update(context.WithoutCancel(ctx), copied, options...) }
						isEntry := strings.Contains(object.(*corev1.ConfigMap).Data[ledgerKey], "uid-bad-1")
						if isEntry || writes > 0 {
							writes++
						}
						switch writes {
						case 1:
							late, err = first(w, write)
							object.SetResourceVersion(copied.GetResourceVersion())
							return err
						case 2:
							return lost
						}
						return c.Update(ctx, object, options...)
					},
				})
				for writes == 0 {
					w.decideOnce(t.Context())
				}
				require.Empty(t, w.deletions)
				w.edit("bad-1", func(node *corev1.Node) { node.Spec.Unschedulable = false })
				if recovers {
					w.verify("bad-1")
				}
				w.decideOnce(t.Context())
				if late != nil {
					_ = late()
				}
				w.run(45 * time.Minute)
				assert.Zero(t, w.events.count(RemediationStuck))
				if recovers {
					assert.Empty(t, w.deletions)
					assert.Empty(t, w.ledger().Deletions)
				} else {
					assert.Equal(t, []string{"bad-1"}, w.deletions)
					assert.Len(t, w.ledger().Deletions, 1)
				}
			})
		}
	}
}
