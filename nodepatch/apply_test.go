package nodepatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// comesBack is a node whose first patches leave it with the startup taint. Each request takes a second.
type comesBack struct {
	node    func() *corev1.Node // as each read shows it
	times   int                 // how often the taint comes back
	after   error               // what later patches are answered with
	patches int
}

func (c *comesBack) Get(ctx context.Context) (*Node, error) {
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	return asRead(c.node()), nil
}

func (c *comesBack) Patch(ctx context.Context, _ []byte) (*Node, error) {
	if err := sleep(ctx, time.Second); err != nil {
		return nil, err
	}
	c.patches++
	node := newNode()
	node.Labels[keys.Label] = keys.LabelValue
	if c.patches > c.times {
		drop(ourKey)(node)
		return asRead(node), c.after
	}
	return asRead(node), nil
}

func labelled() *corev1.Node {
	node := newNode()
	node.Labels[keys.Label] = keys.LabelValue
	return node
}

func TestTaintThatComesBack(t *testing.T) {
	blocked := keys
	blocked.WaitFor = []string{"cni/"}
	for name, test := range map[string]struct {
		api     comesBack
		cancel  bool // with the first patch
		err     string
		patches int
		took    time.Duration // at most
	}{
		"once":                  {api: comesBack{node: labelled, times: 1}, cancel: true, patches: 2, took: 4 * time.Second},
		"twice":                 {api: comesBack{node: labelled, times: 2}, cancel: true, patches: 3, took: 6 * time.Second},
		"always":                {api: comesBack{node: labelled, times: 9}, err: "the taint is back after each of 3 patches", patches: 3, took: 6 * time.Second},
		"a foreign one with it": {api: comesBack{node: func() *corev1.Node { n := labelled(); prepend("cni/off")(n); return n }, times: 1}, cancel: true, patches: 2, took: 4 * time.Second},
		"on another node":       {api: comesBack{node: func() *corev1.Node { n := labelled(); n.UID = "uid-2"; return n }, times: 1}, err: ErrReplaced.Error(), patches: 1, took: 3 * time.Second},
		"and is then removed":   {api: comesBack{node: func() *corev1.Node { n := labelled(); drop(ourKey)(n); return n }, times: 1}, cancel: true, patches: 1, took: 3 * time.Second},
		"retries end after all": {api: comesBack{node: labelled, times: 1, after: errConflict}, cancel: true, err: "deadline exceeded", took: 11 * time.Second, patches: 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if test.cancel {
					time.AfterFunc(500*time.Millisecond, cancel)
				}
				p := &Patcher{Node: &test.api, Timeout: 10 * time.Second, Deadline: time.Minute}
				start := time.Now()
				err := release(ctx, p, asRead(newNode()), blocked)
				if test.err == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, test.err)
				}
				assert.Equal(t, test.patches, test.api.patches)
				assert.LessOrEqual(t, time.Since(start), test.took+500*time.Millisecond)
			})
		})
	}
}

// RemoveAgain is bounded by its caller, also when the taint comes back.
func TestRemoveAgainEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond) // during the read after the first patch
		defer cancel()
		api := &comesBack{node: labelled, times: 1}
		p := &Patcher{Node: api, Timeout: 10 * time.Second, Deadline: time.Minute}
		start := time.Now()
		_, _, err := p.RemoveAgain(ctx, "uid-1", keys)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		assert.Equal(t, 1, api.patches)
		assert.Equal(t, 2500*time.Millisecond, time.Since(start))
	})
}
