package worker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The verdict counts while it is young: the node is released once it shows what is required.
func TestReleaseWaitsForRequirements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPassedCluster(t)
		worker, unmet := c.pod().UID, "node: allocatable nvidia.com/gpu: the node has 0 (check it)"
		says := unmet
		c.Require = func(_ context.Context, node *nodepatch.Node) string {
			assert.Equal(t, "n", node.Name)
			return says
		}
		for began := time.Now(); time.Since(began) < time.Minute; {
			result, err := c.reconcile()
			require.NoError(t, err)
			assert.False(t, c.Settings.Fleet.IsVerified(c.node()))
			assert.Equal(t, unmet, c.Unmet()["n"])
			limit := 9600 * time.Millisecond
			if time.Since(began) < 10*time.Second {
				limit = 2400 * time.Millisecond
			}
			require.Positive(t, result.RequeueAfter)
			assert.LessOrEqual(t, result.RequeueAfter, limit)
			time.Sleep(result.RequeueAfter)
		}
		assert.Equal(t, "Warning NodeNotVerified "+unmet, c.event())
		assert.Empty(t, c.events.Events, "one Event")
		says = ""
		c.step()
		c.assertReleased()
		assert.Equal(t, worker, c.record().Worker)
		assert.Empty(t, c.Unmet())
	})
}

// A worker that has passed waits as long as the node lacks a requirement; then the verdict is too old to release the node, and
// another worker repeats the attempt.
func TestHeldWorkerWithAnAgedVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newPassedCluster(t)
		held, says := c.pod(), "node: allocatable nvidia.com/gpu: the node has 0 (check it)"
		c.Require = func(context.Context, *nodepatch.Node) string { return says }
		for began := time.Now(); time.Since(began) < 10*time.Minute; time.Sleep(5 * time.Second) {
			c.step()
			require.Equal(t, held.UID, c.pod().UID, "no other worker could change anything")
			require.False(t, c.Settings.Fleet.IsVerified(c.node()))
		}
		says = ""
		c.step()
		assert.False(t, c.Settings.Fleet.IsVerified(c.node()), "nothing proves the network of now")
		require.Len(t, c.pods(), 2)
		require.NoError(t, c.Client.Delete(t.Context(), held))
		repeated := c.pod()
		assert.Equal(t, 1, fleet.Attempt(repeated), "nothing has failed")
		c.set(ready)
		c.step()
		c.assertReleased()
		assert.Equal(t, repeated.UID, c.record().Worker)
	})
}
