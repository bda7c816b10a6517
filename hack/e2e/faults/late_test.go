package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A taint that comes after the node has joined, while the agent waits for it, and one that comes
// after that: the agent is holding by then and looks once a minute.
func TestFaultLateTaint(t *testing.T) {
	t.Parallel()
	put := func(s *suite, name string) {
		s.require.NoError(s.Patch(s.ctx, name, fmt.Sprintf(
			`{"spec":{"taints":[{"key":"foreign/front","effect":"NoSchedule"},{"key":%q,"value":"true","effect":"NoSchedule"}]}}`, harness.Taint)))
	}
	bare := func(s *suite, name string) {
		node := gated(name)
		node.Spec.Taints = nil
		s.create(node)
	}
	wanted := map[string]string{
		"label foreign/label": "kept", "annotation foreign/annotation": "kept", "taint foreign/front NoSchedule": ""}

	t.Run("inside the window", func(t *testing.T) {
		t.Parallel()
		s, name := start(t), "faults-late-inside"
		row := Begin(t, "taint added late, inside the window", "waited for; it comes off with the label")
		bare(s, name)
		p := s.agent(name).start()
		// It reads the node once before the checks; the second read is that of the wait.
		s.require.NoError(harness.Until(s.ctx, func() (bool, error) { return len(s.proxy.Asked(Read(name))) > 1, nil }))
		now, err := s.Node(s.ctx, name)
		s.require.NoError(err)
		s.require.NotContains(now.Labels, harness.Label, "labelled before the window was over")
		began := time.Now()
		put(s, name)
		now = s.verified(name)
		row.Recovered(time.Since(began))
		row.keeps(now, wanted)
		p.awaitMessage("node verified")
		s.require.Equal(1, s.proxy.Applied(name))
		p.stop()
	})
	t.Run("killed while it waits", func(t *testing.T) {
		t.Parallel()
		s, name := start(t), "faults-late-killed"
		row := Begin(t, "killed while it waits for a late taint", "untouched; started again it waits and is verified, once")
		bare(s, name)
		a := s.agent(name)
		p := a.start()
		s.require.NoError(harness.Until(s.ctx, func() (bool, error) { return len(s.proxy.Asked(Read(name))) > 1, nil }))
		p.kill()
		s.require.Empty(s.proxy.Asked(Patch(name)))
		began := time.Now()
		p = a.start()
		put(s, name)
		now := s.verified(name)
		row.Recovered(time.Since(began))
		row.keeps(now, wanted)
		p.awaitMessage("node verified")
		s.require.Equal(1, s.proxy.Applied(name))
		p.stop()
	})
	t.Run("outside the window", func(t *testing.T) {
		t.Parallel()
		s, name := start(t), "faults-late-outside"
		row := Begin(t, "taint added late, outside the window", "found within a minute by the agent that holds, and taken off")
		bare(s, name)
		p := s.agent(name).with("LATE_TAINT_WINDOW=0s").start()
		s.verified(name)
		p.awaitMessage("node verified")
		began := time.Now()
		put(s, name)
		p.awaitMessage("node is not verified any more")
		now := s.verified(name)
		row.Recovered(time.Since(began))
		row.keeps(now, wanted)
		p.stop()
	})
}
