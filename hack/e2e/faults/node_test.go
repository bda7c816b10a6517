package faults

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// nodeCase is a Node that is not as usual, or is changed by somebody else between the agent's read
// and its patch.
type nodeCase struct {
	name, outcome string
	node          string // "" for one of its own
	make          func(*corev1.Node)
	settings      []string
	between       func(s *suite, node string) // while the first patch is held
	foreign       map[string]string           // what it adds that is foreign
	patches       int                         // that reach the API server
	says          string                      // a part of the log
}

func nodeCases() []nodeCase {
	merge := func(patch string) func(*suite, string) {
		return func(s *suite, node string) { s.Patch(node, patch) }
	}
	startup := corev1.Taint{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}
	const again = harness.MsgPatchAgain
	return []nodeCase{
		{
			name: "labels map created between read and patch", outcome: "refused by its test, built again",
			make:    func(n *corev1.Node) { n.Labels = nil },
			between: merge(`{"metadata":{"labels":{"foreign/new":"1"}}}`), foreign: map[string]string{"label foreign/new": "1"},
			patches: 2, says: again,
		},
		{
			name: "annotations map created between read and patch", outcome: "refused by its test, built again",
			make:    func(n *corev1.Node) { n.Annotations = nil },
			between: merge(`{"metadata":{"annotations":{"foreign/new":"1"}}}`), foreign: map[string]string{"annotation foreign/new": "1"},
			patches: 2, says: again,
		},
		{
			name: "taint list created between read and patch", outcome: "applied; the others' list stays",
			make: func(n *corev1.Node) { n.Spec.Taints = nil }, settings: []string{"LATE_TAINT_WINDOW=0s"},
			between: merge(`{"spec":{"taints":[{"key":"foreign/new","effect":"NoSchedule"}]}}`),
			foreign: map[string]string{"taint foreign/new NoSchedule": ""}, patches: 1,
		},
		{
			name: "another taint put in front between read and patch", outcome: "refused by its test, built again",
			between: func(s *suite, node string) {
				now := s.Node(node)
				now.Spec.Taints = append([]corev1.Taint{{Key: "foreign/new", Effect: corev1.TaintEffectNoSchedule}}, now.Spec.Taints...)
				_, err := s.Cluster.Kube.CoreV1().Nodes().Update(s.Ctx, now, metav1.UpdateOptions{})
				s.NoError(err)
			},
			foreign: map[string]string{"taint foreign/new NoSchedule": ""}, patches: 2, says: again,
		},
		{
			name: "taint taken off by somebody else between read and patch", outcome: "built again; labelled",
			make: func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{startup} }, settings: []string{"LATE_TAINT_WINDOW=0s"},
			between: merge(`{"spec":{"taints":null}}`), patches: 2, says: again,
		},
		{
			name: "deleted and created again between read and patch", outcome: "refused by its uid; the new one is verified in the next round",
			between: func(s *suite, node string) {
				s.NoError(s.Cluster.Kube.CoreV1().Nodes().Delete(s.Ctx, node, metav1.DeleteOptions{}))
				_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, gated(node), metav1.CreateOptions{})
				s.NoError(err)
			},
			patches: 2, says: "node was deleted and created again",
		},
		{
			name: "taint twice, with two effects", outcome: "both come off", patches: 1,
			make: func(n *corev1.Node) {
				second := startup
				second.Effect = corev1.TaintEffectNoExecute
				n.Spec.Taints = append(n.Spec.Taints, second)
			},
			says: harness.MsgTaintEffect,
		},
		{
			name: "label already there, taint still on", outcome: "checked, and the taint comes off", patches: 1,
			make: func(n *corev1.Node) { n.Labels[harness.Label] = "true" },
		},
		{
			name: "no labels map", outcome: "made, behind a test", patches: 1,
			make: func(n *corev1.Node) { n.Labels = nil },
		},
		{
			name: "no annotations map", outcome: "made, behind a test", patches: 1,
			make: func(n *corev1.Node) { n.Annotations = nil },
		},
		{
			name: "100 foreign taints around the startup taint", outcome: "all stay", patches: 1,
			make: func(n *corev1.Node) {
				n.Spec.Taints = nil
				for i := range 100 {
					if i == 50 {
						n.Spec.Taints = append(n.Spec.Taints, startup)
					}
					n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
						Key: fmt.Sprintf("foreign/%d", i), Value: "v", Effect: corev1.TaintEffectNoSchedule})
				}
			},
		},
		{
			name: "a node name with dots", node: "faults-node.eu-west-1.compute.internal", outcome: "verified", patches: 1,
		},
	}
}

func TestFaultNode(t *testing.T) {
	// Without the controllers, which put an annotation and taints on every Node: some of these have none.
	harness.Start(t).Pause("kube-controller-manager")
	for i, test := range nodeCases() {
		t.Run(test.name, func(t *testing.T) {
			row := harness.BeginRow(t, test.name, test.outcome)
			for round := range harness.Pick(1, 20) {
				name := fmt.Sprintf("faults-node-%d-%d", i, round)
				if test.node != "" {
					name = test.node
				}
				start(t, row).node(name, test)
			}
		})
	}
}

func (s *suite) node(name string, test nodeCase) {
	node := gated(name)
	if test.make != nil {
		test.make(node)
	}
	made := s.create(node)
	defer func() { s.NoError(s.remove(s.Ctx, name)) }()
	a := s.agent(name).with(append(test.settings, patient)...)
	gate := NewGate()
	s.proxy.On(Patch(name), gate.Hold)

	p := a.start()
	s.await("the patch", gate.Arrived)
	if test.between != nil {
		test.between(s, name)
	}
	began := time.Now()
	gate.Open()
	now := s.verified(name)
	s.row.Recovered(time.Since(began))
	p.awaitMessage(harness.MsgVerified)
	p.stop()

	s.True(fullyVerified(now))
	wanted := harness.Foreign(made)
	for what, value := range test.foreign {
		wanted[what] = value
	}
	s.row.Keeps(now, wanted)
	s.Len(s.proxy.Asked(Patch(name)), test.patches)
	s.Equal(1, s.proxy.Applied(name))
	s.Contains(p.output(), test.says)
}
