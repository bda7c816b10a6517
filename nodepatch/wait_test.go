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

func TestWaitForStartupTaint(t *testing.T) {
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
	tainted := func(node *Node) bool { return len(keys.StartupTaints(node.Spec.Taints)) > 0 }

	for name, test := range map[string]struct {
		node    func() *corev1.Node
		clock   time.Duration // how far the API server's clock is ahead of this node's
		unknown bool          // the API server's clock is not known
		window  time.Duration
		comes   time.Duration // when the taint is added, 0 for never
		waited  time.Duration // at least; at most 9.6 s more
		exactly bool
		tainted bool
	}{
		"taint is there": {
			node: func() *corev1.Node { node := newNode(); aged(time.Second)(node); return node }, window: window, exactly: true, tainted: true,
		},
		"older than the window": {
			node: func() *corev1.Node { return without(aged(window)) }, window: window, comes: time.Second, exactly: true,
		},
		"no window": {
			node: func() *corev1.Node { return without(aged(0)) }, comes: time.Second, exactly: true,
		},
		"has our annotation": {
			node: func() *corev1.Node {
				return without(aged(time.Second), func(n *corev1.Node) { n.Annotations = map[string]string{Annotation: ""} })
			}, window: window, comes: time.Second, exactly: true,
		},
		"taint comes": {
			node: func() *corev1.Node { return without(aged(10 * time.Second)) }, window: window, comes: 20 * time.Second,
			waited: 20 * time.Second, tainted: true,
		},
		"taint comes with the last read": {
			node: func() *corev1.Node { return without(aged(50 * time.Second)) }, window: window, comes: 10 * time.Second,
			waited: 10 * time.Second, exactly: true, tainted: true,
		},
		"taint does not come": {
			node: func() *corev1.Node { return without(aged(50 * time.Second)) }, window: window, comes: 11 * time.Second,
			waited: 10 * time.Second, exactly: true,
		},
		"created in the future of the API server": {
			node: func() *corev1.Node { return without(aged(-24 * time.Hour)) }, window: window, waited: window, exactly: true,
		},
		"this node's clock is an hour ahead": {
			node: func() *corev1.Node { return without(aged(time.Hour)) }, clock: -time.Hour, window: window, waited: window, exactly: true,
		},
		"this node's clock is an hour behind": {
			node: func() *corev1.Node { return without(aged(-time.Hour + window)) }, clock: time.Hour, window: window, exactly: true,
		},
		"the API server's clock is not known": {
			node: func() *corev1.Node { return without(aged(time.Hour)) }, unknown: true, window: window, waited: window, exactly: true,
		},
		"no time of creation": {
			node: func() *corev1.Node { return without() }, window: window, waited: window, exactly: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, gets, node := time.Now(), 0, test.node()
				p := &Patcher{Timeout: 3 * time.Second, Node: nodeFuncs{get: func(ctx context.Context) (*corev1.Node, error) {
					gets++
					deadline, _ := ctx.Deadline()
					assert.Equal(t, 3*time.Second, time.Until(deadline))
					again := node.DeepCopy()
					if test.comes > 0 && time.Since(start) >= test.comes {
						again.Spec.Taints = append(again.Spec.Taints, ours(corev1.TaintEffectNoSchedule))
					}
					return again, nil
				}}}
				serverNow := start.Add(test.clock)
				if test.unknown {
					serverNow = time.Time{}
				}

				first := asRead(node)
				got, err := p.Wait(t.Context(), p.Node.Get, first, StartupTaintDue(first, test.window, serverNow), tainted)

				require.NoError(t, err)
				waited := time.Since(start)
				assert.GreaterOrEqual(t, waited, test.waited)
				if test.exactly {
					assert.Equal(t, test.waited, waited)
				}
				assert.LessOrEqual(t, waited, test.waited+9600*time.Millisecond)
				assert.LessOrEqual(t, gets, 1+int(waited/(1600*time.Millisecond)), "at least 1.6 s apart")
				assert.LessOrEqual(t, gets, 7+int(waited/(6*time.Second)), "and less often with the time")
				assert.Equal(t, test.tainted, tainted(got))
			})
		})
	}
}

// Who waits for the Node is released within 3 s in the first 10 s, and within 10 s later.
func TestWaitReadsOftenAtFirst(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			last, reads := start, 0
			p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: func(context.Context) (*corev1.Node, error) {
				limit := 9600 * time.Millisecond
				if last.Sub(start) < 10*time.Second {
					limit = 2400 * time.Millisecond
				}
				assert.LessOrEqual(t, time.Since(last), limit, "after %s", last.Sub(start))
				last = time.Now()
				reads++
				return newNode(), nil
			}}}
			_, err := p.Wait(t.Context(), p.Node.Get, asRead(newNode()), start.Add(10*time.Minute), func(*Node) bool { return false })
			require.NoError(t, err)
			assert.LessOrEqual(t, reads, 7+93, "no two are closer than 6.4 s later")
		})
	}
}

// A change of the taints starts the intervals over: somebody is at work on the node.
func TestWaitReadsOftenAgainAfterAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var reads []time.Duration
		p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: func(context.Context) (*corev1.Node, error) {
			reads = append(reads, time.Since(start))
			node := newNode()
			if time.Since(start) > time.Minute {
				prepend("new")(node)
			}
			return node, nil
		}}}
		_, err := p.Wait(t.Context(), p.Node.Get, asRead(newNode()), start.Add(80*time.Second), func(*Node) bool { return false })
		require.NoError(t, err)
		var changed int
		for changed = range reads {
			if reads[changed] > time.Minute {
				break
			}
		}
		assert.GreaterOrEqual(t, reads[changed]-reads[changed-1], 6400*time.Millisecond)
		assert.LessOrEqual(t, reads[changed+1]-reads[changed], 2400*time.Millisecond)
	})
}

func TestWaitEnds(t *testing.T) {
	broken := errors.New("no route to host")
	for name, test := range map[string]struct {
		get  func(context.Context) (*corev1.Node, error)
		want error
		at   time.Duration // at most
	}{
		"replaced": {get: func(context.Context) (*corev1.Node, error) {
			again := newNode()
			again.UID = "uid-2"
			return again, nil
		}, want: ErrReplaced, at: 2400 * time.Millisecond},
		"read fails": {get: func(context.Context) (*corev1.Node, error) { return nil, broken }, want: broken, at: 2400 * time.Millisecond},
		"cancelled":  {get: func(context.Context) (*corev1.Node, error) { return newNode(), nil }, want: context.DeadlineExceeded, at: 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
				defer cancel()
				start := time.Now()
				p := &Patcher{Timeout: time.Second, Node: nodeFuncs{get: test.get}}
				_, err := p.Wait(ctx, p.Node.Get, asRead(newNode()), time.Time{}, func(*Node) bool { return false })
				require.ErrorIs(t, err, test.want)
				assert.LessOrEqual(t, time.Since(start), test.at)
			})
		})
	}
}
