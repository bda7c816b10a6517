package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What the Node itself must show, and does not, or not for long. The Nodes have no kubelet, which would show it.
func TestFaultRequirement(t *testing.T) {
	t.Parallel()
	for i, c := range []struct {
		fault, outcome string
		require        string
		lost, met      string // patches of the status, or of the Node
		ofNode         bool
		comesAndGoes   int    // how often it is met for a moment before it stays so
		says           string // a part of the log while it is not met
	}{
		{
			fault: "requirement that flaps", outcome: "released once a round has found it met; one patch", require: `[{"condition":"e2e/Disk=False"}]`,
			lost: `{"status":{"conditions":[{"type":"e2e/Disk","status":"True","reason":"Test"}]}}`,
			met:  `{"status":{"conditions":[{"type":"e2e/Disk","status":"False","reason":"Test"}]}}`,
			says: "condition e2e/Disk=False: it is True (Test)", comesAndGoes: 10,
		},
		{
			fault: "Node without the annotation of CSI drivers", outcome: "waited for", require: `[{"csiDriver":"csi.example.com"}]`, ofNode: true,
			met:  `{"metadata":{"annotations":{"csi.volume.kubernetes.io/nodeid":"{\"csi.example.com\":\"i-1\"}"}}}`,
			says: "csiDriver csi.example.com: the node has none",
		},
		{
			fault: "resource that comes and goes", outcome: "released once a round has found enough of it; one patch", require: `[{"allocatable":"example.com/gpu>=2"}]`,
			lost: `{"status":{"allocatable":{"example.com/gpu":"1"},"capacity":{"example.com/gpu":"2"}}}`,
			met:  `{"status":{"allocatable":{"example.com/gpu":"2"},"capacity":{"example.com/gpu":"2"}}}`,
			says: "allocatable example.com/gpu>=2: the node has 1", comesAndGoes: 10,
		},
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			s, name := begin(t, c.fault, c.outcome), fmt.Sprintf("faults-requirement-%d", i)
			s.create(gated(name))
			patch := func(text string) {
				t.Helper()
				if c.ofNode {
					s.Patch(name, text)
					return
				}
				_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(s.Ctx, name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, "status")
				s.NoError(err)
			}
			if c.lost != "" {
				patch(c.lost)
			}
			p := s.agent(name).with("REQUIRE=" + c.require).start()
			p.awaitLine(c.says, func(line harness.LogLine) bool { return strings.Contains(line.Error, c.says) })
			p.awaitMessage(harness.MsgNotVerified)
			s.True(untouched(s.Node(name), gated(name)))
			for range c.comesAndGoes {
				patch(c.met)
				time.Sleep(300 * time.Millisecond)
				patch(c.lost)
				time.Sleep(300 * time.Millisecond)
			}
			began := time.Now()
			patch(c.met)
			now := s.verified(name)
			s.row.Recovered(time.Since(began))
			p.awaitMessage(harness.MsgVerified)
			wanted := harness.Foreign(gated(name))
			if c.ofNode {
				wanted["annotation csi.volume.kubernetes.io/nodeid"] = `{"csi.example.com":"i-1"}`
			}
			s.row.Keeps(now, wanted)
			s.Equal(1, s.proxy.Applied(name))
			p.stop()
		})
	}
}
