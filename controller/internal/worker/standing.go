package worker

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// standing is what a worker says about its node as it is now.
type standing int

const (
	irrelevant standing = iota // nothing
	undated                    // it has passed, but it is unknown when, or what has happened since
	evidence                   // its outcome, or that it has none yet
)

// standing returns the standing of a worker that is not being deleted.
func (s Settings) standing(pod *corev1.Pod, l look) standing {
	last, _ := record.Parse(l.node.Annotations[nodepatch.Annotation])
	state := l.memory.states[pod.Name]
	outcome := state.outcome(pod)
	isForThisBoot := pod.Annotations[fleet.NodeUIDAnnotation] == string(l.node.UID) &&
		pod.Annotations[fleet.BootIDAnnotation] == l.node.Status.NodeInfo.BootID
	// What it waits for may have been corrected in the template.
	isOutdated := outcome == fleet.Waiting && pod.Annotations[fleet.TemplateAnnotation] != s.templateHash()
	switch {
	case !isForThisBoot, isOutdated, pod.UID == last.Worker, state.fate >= voided:
		return irrelevant
	case outcome == fleet.Passed && !state.isProof(s.Round):
		return undated
	}
	return evidence
}

// newest returns the worker on which the next step follows, with its standing, or nil.
func (s Settings) newest(l look, live []*corev1.Pod) (*corev1.Pod, standing) {
	of := make(map[standing][]*corev1.Pod)
	for _, pod := range live {
		standing := s.standing(pod, l)
		of[standing] = append(of[standing], pod)
	}
	if len(of[undated]) > 0 {
		pod := slices.MaxFunc(of[undated], fleet.Newer)
		if !slices.ContainsFunc(of[evidence], l.memory.saysMoreThan(pod)) {
			return pod, undated
		}
	}
	if len(of[evidence]) > 0 { // however new an undated one is: it would be repeated again and again
		return slices.MaxFunc(of[evidence], fleet.Newer), evidence
	}
	return nil, irrelevant
}

// saysMoreThan reports whether evidence says more than an undated worker: it has no outcome yet, it has passed, or its attempt is
// the same or a later one.
func (m memory) saysMoreThan(undated *corev1.Pod) func(evidence *corev1.Pod) bool {
	return func(evidence *corev1.Pod) bool {
		outcome := m.states[evidence.Name].outcome(evidence)
		return !isOver(outcome) || outcome == fleet.Passed || fleet.Attempt(evidence) >= fleet.Attempt(undated)
	}
}
