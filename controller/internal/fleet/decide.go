package fleet

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Decide returns what state each selected node is in, and the conditions to write, at now.
func (s Settings) Decide(objects Objects, now clock.Now) Plan {
	plan := Plan{At: now, Seen: make(Memory, len(objects.Nodes)), Statuses: make([]Status, 0, len(objects.Nodes))}
	pods := podsByNode(objects.Pods)
	for i := range objects.Nodes {
		node := &objects.Nodes[i]
		if (!s.Rules.Select(node) || s.IsExcluded(node)) && !s.isLeftBehind(node) {
			continue
		}
		shown := newSnapshot(&s, node, pods[s.mode().key(node)], objects, now)
		known := evidence{shown, shown.observe(objects.Seen[node.UID])}
		finding := known.judge()
		known.memory = known.after(finding, now)
		plan.Seen[node.UID] = known.memory
		plan.Statuses = append(plan.Statuses, known.status(finding))
		if condition, isNeeded := known.wanted(finding); isNeeded {
			plan.Conditions = append(plan.Conditions, condition)
		}
	}
	return plan
}

// mode is what differs between daemonset mode and controller mode.
type mode interface {
	// key is what podsByNode finds the pod of a node by.
	key(node *corev1.Node) nodeKey
	// expects reports whether a pod should run on a node that is not verified, or is about to.
	expects(shown snapshot) bool
	// judge returns the finding about a node that is not verified.
	judge(known evidence) Finding
	// writes reports whether the controller is the one that writes this reason to the condition.
	writes(reason condition.Reasons) bool
	// verifiesOpened reports whether a node that was opened manually, and never verified, is verified all the same.
	verifiesOpened() bool
}

func (s Settings) mode() mode {
	if s.Workers {
		return workers{}
	}
	return agents{}
}

// snapshot is what the objects show of one node at one moment.
type snapshot struct {
	*Settings
	now       clock.Now
	node      *corev1.Node
	pod       *corev1.Pod    // of its agent or worker, or nil
	podEvents []corev1.Event // nil if they have not been read
	condition corev1.NodeCondition
	unmet     string // what the node does not show of what REQUIRE demands, although its worker has passed

	isVerified bool
	isGated    bool // waits for an agent or worker to release it
	// isRetainted and isRebooted: see Status.
	isRetainted, isRebooted bool
	isExpected              bool // an agent or worker should run, or is about to
	// untouchable is why the controller must not change the node, or "".
	untouchable string
}

func newSnapshot(s *Settings, node *corev1.Node, pod *corev1.Pod, objects Objects, now clock.Now) snapshot {
	shown := snapshot{Settings: s, now: now, node: node, pod: pod, condition: s.Condition(node), unmet: objects.Unmet[node.Name],
		isVerified: s.IsVerified(node), isRetainted: s.IsRetainted(Taints(node)), untouchable: Untouchable(node),
		isRebooted: record.WasRebooted(node.Annotations[nodepatch.Annotation], node.Status.NodeInfo.BootID)}
	if pod != nil {
		shown.podEvents = objects.Events[pod.UID]
	}
	shown.isGated = !shown.isVerified && s.IsGated(node)
	shown.isExpected = shown.isVerified && s.Rechecks.Enabled() || !shown.isVerified && s.mode().expects(shown)
	return shown
}

// isFalseByAgent reports whether the condition is False for a reason that an agent or worker has found.
func (s snapshot) isFalseByAgent() bool {
	return s.condition.Status == corev1.ConditionFalse && !FirstReason(s.condition).Meaning().Controller
}

// fromCondition is the finding that the condition states.
func (s snapshot) fromCondition() Finding {
	return Finding{State: Failed, Reason: FirstReason(s.condition), Reported: condition.Parse(s.condition.Reason),
		Message: s.condition.Message}
}

// evidence is everything that a judgement about a node is based on: its present objects, and the memory of earlier ones.
type evidence struct {
	snapshot
	memory // brought up to date by observe
}

// judge returns the finding about any node.
func (e evidence) judge() Finding {
	if e.isVerified {
		return e.judgeReleased()
	}
	return e.mode().judge(e)
}

func (e evidence) status(finding Finding) Status {
	return Status{Node: e.node, Pod: e.pod, Gated: e.isGated, Untouchable: e.untouchable, Finding: finding, Since: e.since,
		Recheck: e.recheck, Absence: e.absence, RunningSince: e.runningSince, Retainted: e.isRetainted,
		Rebooted: e.isRebooted}
}
