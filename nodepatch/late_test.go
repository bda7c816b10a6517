package nodepatch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestAwaitTaint(t *testing.T) {
	const window = time.Minute
	without := func(edit ...func(*corev1.Node)) *corev1.Node {
		node := newNode()
		drop(ourKey)(node)
		for _, e := range edit {
			e(node)
		}
		return node
	}
	aged := func(d time.Duration) func(*corev1.Node) {
		return func(n *corev1.Node) { n.CreationTimestamp = metav1.NewTime(time.Now().Add(-d)) }
	}

	for name, test := range map[string]struct {
		node   func() *corev1.Node
		window time.Duration
		comes  time.Duration // when the taint is put on, 0 for never
		fails  bool          // every read fails
		waited time.Duration
		gets   int
		tainted,
		old bool // the Node returned is the one given
	}{
		"taint is there": {
			node: func() *corev1.Node { node := newNode(); aged(time.Second)(node); return node }, window: window,
			old: true, tainted: true,
		},
		"older than the window": {
			node: func() *corev1.Node { return without(aged(window)) }, window: window, comes: time.Second,
			old: true,
		},
		"no window": {
			node: func() *corev1.Node { return without(aged(0)) }, comes: time.Second,
			old: true,
		},
		"bears our annotation": {
			node: func() *corev1.Node {
				return without(aged(time.Second), func(n *corev1.Node) { n.Annotations = map[string]string{request.Annotation: ""} })
			}, window: window, comes: time.Second,
			old: true,
		},
		"taint comes": {
			node: func() *corev1.Node { return without(aged(10 * time.Second)) }, window: window, comes: 20 * time.Second,
			waited: 21 * time.Second, gets: 7, tainted: true,
		},
		"taint comes with the last read": {
			node: func() *corev1.Node { return without(aged(50 * time.Second)) }, window: window, comes: 10 * time.Second,
			waited: 10 * time.Second, gets: 4, tainted: true,
		},
		"taint does not come": {
			node: func() *corev1.Node { return without(aged(50 * time.Second)) }, window: window, comes: 11 * time.Second,
			waited: 10 * time.Second, gets: 4,
		},
		"created in the future": {
			node: func() *corev1.Node { return without(aged(-24 * time.Hour)) }, window: window,
			waited: window, gets: 20,
		},
		"no time of creation": {
			node: func() *corev1.Node { return without() }, window: window,
			waited: window, gets: 20,
		},
		"reads fail": {
			node: func() *corev1.Node { return without(aged(0)) }, window: window, comes: time.Second, fails: true,
			waited: window, gets: 20, old: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, gets, node := time.Now(), 0, test.node()
				first := asRead(node)
				p := &Patcher{Timeout: 3 * time.Second, Node: nodeFuncs{get: func(ctx context.Context) (*corev1.Node, error) {
					gets++
					deadline, _ := ctx.Deadline()
					assert.Equal(t, 3*time.Second, time.Until(deadline))
					if test.fails {
						return nil, errors.New("no route to host")
					}
					again := node.DeepCopy()
					if test.comes > 0 && time.Since(start) >= test.comes {
						again.Spec.Taints = append(again.Spec.Taints, ours(corev1.TaintEffectNoSchedule))
					}
					return again, nil
				}}}

				got, err := p.AwaitTaint(t.Context(), first, request, test.window)

				require.NoError(t, err)
				assert.Equal(t, test.waited, time.Since(start))
				assert.Equal(t, test.gets, gets)
				assert.Equal(t, test.tainted, len(Taints(got, request)) > 0)
				assert.Equal(t, test.old, got == first)
			})
		})
	}
}

func TestAwaitTaintOpenedMeanwhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode()
		drop(ourKey)(node)
		start := time.Now()
		p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: func(context.Context) (*corev1.Node, error) {
			again := node.DeepCopy()
			again.Annotations = map[string]string{request.Annotation: "{}"}
			return again, nil
		}}}
		got, err := p.AwaitTaint(t.Context(), asRead(node), request, time.Minute)
		require.NoError(t, err)
		assert.Equal(t, "{}", got.Annotations[request.Annotation])
		assert.Equal(t, 3*time.Second, time.Since(start))
	})
}

func TestAwaitTaintReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := newNode()
		drop(ourKey)(node)
		p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: func(context.Context) (*corev1.Node, error) {
			again := newNode()
			again.UID = "uid-2"
			return again, nil
		}}}
		_, err := p.AwaitTaint(t.Context(), asRead(node), request, time.Minute)
		require.Equal(t, ErrReplaced, err)
	})
}

func TestAwaitTaintCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		node := newNode()
		drop(ourKey)(node)
		gets, start := 0, time.Now()
		p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: func(context.Context) (*corev1.Node, error) {
			gets++
			return node, nil
		}}}
		_, err := p.AwaitTaint(ctx, asRead(node), request, time.Minute)
		require.Equal(t, context.DeadlineExceeded, err)
		assert.Equal(t, 4*time.Second, time.Since(start))
		assert.Equal(t, 1, gets)
	})
}
