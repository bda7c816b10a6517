package faults

import (
	"fmt"
	"testing"
	"time"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// A startup taint that is added after the node has joined, while the agent waits for it, and one that is added
// after that: the agent is holding by then and reads the node once a minute.
func TestFaultLateTaint(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, fault, outcome string
		killed               bool // while it waits
		outside              bool // of LATE_TAINT_WINDOW
	}{
		{name: "inside the window", fault: "taint added late, inside the window", outcome: "waited for; it comes off with the label"},
		{name: "killed while it waits", fault: "killed while it waits for a late taint", outcome: "untouched; started again it waits and is verified, once", killed: true},
		{name: "outside the window", fault: "taint added late, outside the window", outcome: "found within a minute by an agent that holds (where no controller evicts it), and removed", outside: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.outside && !harness.Long() {
				t.Skip("takes a minute: E2E=long")
			}
			s, name := begin(t, c.fault, c.outcome), fmt.Sprintf("faults-late-%t-%t", c.killed, c.outside)
			node := gated(name)
			node.Spec.Taints = nil
			s.create(node)
			a := s.agent(name).with("LATE_TAINT_WINDOW=5m") // longer than this test takes
			if c.outside {
				a = a.with("LATE_TAINT_WINDOW=0s")
			}
			p := a.start()
			if c.outside {
				s.verified(name)
				p.awaitMessage(harness.MsgVerified)
			} else {
				// It reads the node once before the checks; the second read is that of the wait.
				s.Until(func() (bool, error) { return len(s.proxy.Asked(Read(name))) > 1, nil })
				s.NotContains(s.Node(name).Labels, harness.Label, "labelled before the window was over")
			}
			if c.killed {
				p.kill()
				s.Empty(s.proxy.Asked(Patch(name)))
			}
			began := time.Now()
			if c.killed {
				p = a.start()
			}
			s.Patch(name, fmt.Sprintf(
				`{"spec":{"taints":[{"key":"foreign/front","effect":"NoSchedule"},{"key":%q,"value":"true","effect":"NoSchedule"}]}}`, harness.Taint))
			if c.outside {
				p.awaitMessage(harness.MsgNoLonger)
			}
			now := s.verified(name)
			s.row.Recovered(time.Since(began))
			s.row.Keeps(now, map[string]string{
				"label foreign/label": "kept", "annotation foreign/annotation": "kept", "taint foreign/front NoSchedule": ""})
			p.awaitMessage(harness.MsgVerified)
			if !c.outside {
				s.Equal(1, s.proxy.Applied(name))
			}
			p.stop()
		})
	}
}
