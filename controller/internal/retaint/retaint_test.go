package retaint

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/act"
	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup       = "node-ready/unverified"
	failed        = "node-ready/failed"
	label         = "node-ready/verified"
	conditionType = "NodeVerified"
	release       = "knr"
	nodePool      = "karpenter.sh/nodepool"
)

func testSettings() Settings {
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: failed, AlsoRemove: []string{failed}, Label: label, LabelValue: "true"}
	return Settings{Enabled: true, CoolDown: 10 * time.Minute, Settings: breaker.Settings{NodeName: "controller", ControlGroupFor: 10 * time.Minute, Fleet: fleet.Settings{Keys: keys,
		Rules: fleet.NewRules(&corev1.PodTemplateSpec{}, keys), ConditionType: conditionType, FailedTaintValue: release, NoAgentFor: 10 * time.Minute,
		Rechecks: fleet.Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}}}}
}

// moment is a cluster of verified nodes at one moment, with a control group that has passed for an hour.
type moment struct {
	settings  Settings
	in        Input
	now       time.Time
	serverNow time.Time
}

func newMoment(nodes int) *moment {
	m := &moment{settings: testSettings(), now: time.Now()}
	m.in.ControlGroup = baseline.State{PassedSince: mark(m.now.Add(-time.Hour)), Began: mark(m.now), Ended: mark(m.now)}
	for i := range nodes {
		name := fmt.Sprintf("n%d", i)
		m.in.Statuses = append(m.in.Statuses, fleet.Status{Finding: fleet.Finding{State: fleet.Verified},
			Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{label: "true"}, Annotations: wasGated()}}})
	}
	return m
}

// wasGated is the annotation of a node that joined with the startup taint.
func wasGated() map[string]string {
	return map[string]string{nodepatch.Annotation: record.Record{Removed: []string{startup + "=true:NoSchedule"}}.String()}
}

// fail makes the first n nodes fail since a minute ago.
func (m *moment) fail(n int) *moment {
	for i := range n {
		m.in.Statuses[i].Recheck = fleet.Recheck{Failed: true, FailedAt: mark(m.now.Add(-time.Minute)), Refreshed: mark(m.now.Add(-time.Minute))}
		m.in.Statuses[i].Node.Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionFalse, Reason: "DNSFailed", Message: "as found"}}
	}
	return m
}

// taint gives a node the failed taint.
func (m *moment) taint(i int, value string) {
	status := &m.in.Statuses[i]
	status.Node.Spec.Taints = append(status.Node.Spec.Taints, corev1.Taint{Key: failed, Value: value, Effect: corev1.TaintEffectNoSchedule})
	status.Retainted = m.settings.Fleet.IsRetainted(fleet.Taints(status.Node))
}

// clock is the time by both clocks: the API server's is another.
func (m *moment) clock() clock.Now { return clock.At(m.now, m.serverNow) }

// mark is a moment by the process's own clock.
func mark(at time.Time) clock.Mark { return clock.At(at, at).Mark() }

func (m *moment) decide() Decision { return m.settings.Decide(m.in, m.clock()) }

func names(statuses []fleet.Status) (found []string) {
	for _, status := range statuses {
		found = append(found, status.Node.Name)
	}
	return found
}

// Each of these is a node that must be left as it is, without a word.
func TestNoCandidate(t *testing.T) {
	for name, change := range map[string]func(*moment, *fleet.Status){
		"retaint is off": func(m *moment, _ *fleet.Status) { m.settings.Enabled = false },
		"not verified":   func(_ *moment, s *fleet.Status) { s.State = fleet.InProgress },
		"going away":     func(_ *moment, s *fleet.Status) { s.Untouchable = "it is cordoned" },
		"control plane":  func(_ *moment, s *fleet.Status) { s.Node.Labels["node-role.kubernetes.io/control-plane"] = "" },
		"control plane taint": func(_ *moment, s *fleet.Status) {
			s.Node.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/master"}}
		},
		"stale":                               func(m *moment, s *fleet.Status) { s.Recheck.Refreshed = mark(m.now.Add(-7 * time.Minute)) },
		"never refreshed":                     func(_ *moment, s *fleet.Status) { s.Recheck.Refreshed = clock.Mark{} },
		"no round of the control group since": func(m *moment, s *fleet.Status) { m.in.ControlGroup.Began = s.Recheck.FailedAt.Add(-time.Second) },
		"one sandbox may be what is broken": func(m *moment, s *fleet.Status) {
			s.Node.Status.Conditions = append(s.Node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue})
			s.Node.Status.Conditions[0].LastTransitionTime, s.RunningSince = metav1.NewTime(m.now), mark(m.now)
			s.Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}}}
		},
		"re-tainted already": func(m *moment, _ *fleet.Status) { m.taint(0, release) },
		"never gated":        func(_ *moment, s *fleet.Status) { s.Node.Annotations[nodepatch.Annotation] = `{"removed":[]}` },
		"tainted by others":  func(m *moment, _ *fleet.Status) { m.taint(0, "dns") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoment(3).fail(1)
			change(m, &m.in.Statuses[0])
			d := m.decide()
			assert.Empty(t, d.Candidates)
			assert.Empty(t, d.Withheld)
		})
	}
}

// A node that has lost a requirement fails like any other. Only its agent knows whether the node has ever met it: an agent that finds
// it has not stops to refresh the False of an earlier agent, and writes True; until then the False is too old to act on.
func TestLostRequirement(t *testing.T) {
	m := newMoment(20).fail(1)
	status := &m.in.Statuses[0]
	status.Node.Annotations[nodepatch.Annotation] = record.Record{Removed: []string{startup + "=true:NoSchedule"}, Required: []string{"label a"}}.String()
	status.Node.Status.Conditions[0].Reason, status.Recheck.Reason = condition.NodeFailed.String(), condition.NodeFailed
	assert.Equal(t, []string{"n0"}, names(m.decide().Candidates))

	status.Recheck.Refreshed = mark(m.now.Add(-8 * time.Minute))
	d := m.decide()
	assert.Empty(t, d.Candidates)
	assert.Empty(t, d.Withheld)
	m.taint(0, release) // it was re-tainted before
	status.Node.Status.Conditions[0].Status = corev1.ConditionTrue
	assert.Equal(t, []string{"n0"}, names(m.decide().RemoveTaint))
}

func TestWithheld(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*moment)
		rule   breaker.Rule
		text   string
	}{
		"control group has just passed": {func(m *moment) { m.in.ControlGroup.PassedSince = mark(m.now.Add(-599 * time.Second)) },
			breaker.ControlGroup, "for 9m59s, but must pass there for 10m0s first"},
		"control group fails": {func(m *moment) {
			m.in.ControlGroup = baseline.State{Failure: "dns: timeout", Began: mark(m.now), Ended: mark(m.now)}
		},
			breaker.ControlGroup, "for 0s, but must pass there for 10m0s first; the last failure: dns: timeout"},
		"failed before the control group passed": {func(m *moment) {
			m.in.ControlGroup.PassedSince = mark(m.now.Add(-12 * time.Minute))
			m.in.Statuses[0].Recheck.FailedAt = mark(m.now.Add(-13 * time.Minute))
		}, breaker.ControlGroup, "for 12m0s, but must pass there for 13m36s first, because the node failed before the checks passed"},
		"failed before the controller started": {func(m *moment) {
			m.in.ControlGroup.PassedSince, m.in.Statuses[0].Recheck.FailedAt = mark(m.now.Add(-12*time.Minute)), clock.Mark{}
		}, breaker.ControlGroup, "because the node failed before the checks passed"},
		"controller's own node fails": {func(m *moment) { m.settings.NodeName = "n0" }, breaker.ControlNode,
			"the controller's own node n0 fails its rechecks"},
		"re-tainted just now": {func(m *moment) { m.in.Retainted = map[types.UID]clock.Mark{"n0": mark(m.now.Add(-9 * time.Minute))} }, CoolDown,
			"the node was re-tainted 9m0s ago: it is not re-tainted again within 10m0s"},
		"the only survivor may be the good one": {func(m *moment) {
			m.in.Statuses = m.in.Statuses[:5]
			m.in.Statuses[0].Node.Status.Conditions[0].Reason = condition.PeersFailed.String()
			m.in.Statuses[1].Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		}, Peers, "no other agent answers; other ready nodes: 1, and blaming this one needs at least 3"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoment(20).fail(1)
			test.change(m)
			d := m.decide()
			assert.Empty(t, d.Candidates)
			require.Len(t, d.Withheld, 1)
			assert.Equal(t, test.rule, d.Withheld[0].Rule)
			assert.Contains(t, d.Withheld[0].Text, test.text)
		})
	}
}

// A time that is ahead of the clock, or that nobody can read, keeps no node from being re-tainted.
func TestOpenedByHand(t *testing.T) {
	for opened, withheld := range map[string]bool{"2026-11-24T11:50:01Z": true, "2026-11-24T11:50:00Z": false,
		"2026-11-24T12:00:59Z": true, "2026-11-24T12:01:00Z": false, "2036-11-24T12:00:00Z": false, "just now": false, "": false} {
		m := newMoment(3).fail(1)
		m.serverNow = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
		m.in.Statuses[0].Node.Annotations[nodepatch.Opened] = opened
		d := m.decide()
		assert.Equal(t, withheld, len(d.Candidates) == 0, opened)
		if withheld {
			assert.Equal(t, CoolDown, d.Withheld[0].Rule)
			assert.Contains(t, d.Withheld[0].Text, "somebody opened it at "+opened+": it is not re-tainted within 10m0s")
		}
		m.serverNow = time.Time{}
		_, err := time.Parse(time.RFC3339, opened)
		assert.Equal(t, err == nil, len(m.decide().Candidates) == 0, "%s, by an unknown clock", opened)
	}
}

// Where that many fail, nothing is re-tainted, however many fail.
func TestTooManyFail(t *testing.T) {
	m := newMoment(40).fail(4)
	m.in.Statuses[0].Recheck.Refreshed = mark(m.now.Add(-time.Hour))
	d := m.decide()
	assert.Empty(t, d.Candidates, "one whose False is not refreshed counts, too")
	assert.Len(t, d.Withheld, 3)
	assert.Equal(t, breaker.FailedRechecks, d.Withheld[0].Rule)
}

// A tenth of a NodePool or node group, or one node.
func TestBudget(t *testing.T) {
	m := newMoment(60).fail(4)
	for i := range m.in.Statuses {
		m.in.Statuses[i].Node.Labels[nodePool] = map[bool]string{true: "small", false: "large"}[i%3 == 0]
	}
	m.taint(1, release)
	m.taint(2, release)
	assert.Equal(t, []string{"n0", "n3"}, names(m.decide().Candidates), "20 nodes: at most 2; 40 nodes: at most 4")
	m.taint(4, "dns")
	m.taint(5, release)
	m.taint(6, "dns")
	m.taint(9, "dns") // an agent's: it counts all the same
	d := m.decide()
	assert.Empty(t, d.Candidates)
	require.NotEmpty(t, d.Withheld)
	assert.Equal(t, act.Withheld{Node: m.in.Statuses[0].Node, Rule: Budget,
		Text: "2 of 20 nodes of karpenter.sh/nodepool=small have the taint node-ready/failed: at most 2 may have it"}, d.Withheld[0])
}

// Of all groups together a tenth of the nodes, or one.
func TestBudgetOfTheCluster(t *testing.T) {
	for _, nodes := range []int{5, 19} {
		m := newMoment(nodes).fail(1)
		for i := range m.in.Statuses {
			m.in.Statuses[i].Node.Labels[nodePool] = fmt.Sprint(i)
		}
		m.taint(nodes-1, "dns") // an agent's, on a node that is not verified yet
		assert.NotEmpty(t, m.decide().Candidates, nodes)
		m.taint(1, release)
		d := m.decide()
		assert.Empty(t, d.Candidates, nodes)
		assert.Equal(t, []act.Withheld{{Node: m.in.Statuses[0].Node, Rule: Budget, Text: fmt.Sprintf(
			"1 of %d nodes of the cluster have the taint node-ready/failed: at most 1 may have it", nodes)}}, d.Withheld)
	}
}

// After an outage the agents need some rounds. What fails for longer fails for another reason.
func TestOldFalseAfterTheAgentsHadTimeToRecover(t *testing.T) {
	m := newMoment(3).fail(1)
	m.in.Statuses[0].Recheck.FailedAt = clock.Mark{}
	m.in.ControlGroup.PassedSince = mark(m.now.Add(-10*time.Minute - 3*72*time.Second))
	assert.Len(t, m.decide().Candidates, 1)
}

func TestOldestFirst(t *testing.T) {
	m := newMoment(100).fail(3)
	m.in.Statuses[1].Recheck.FailedAt = mark(m.now.Add(-2 * time.Minute))
	assert.Equal(t, []string{"n1", "n0", "n2"}, names(m.decide().Candidates))
}

func TestRemoveTaint(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*moment, *fleet.Status)
		removed bool
	}{
		"it fails":       {func(*moment, *fleet.Status) {}, false},
		"retaint is off": {func(m *moment, _ *fleet.Status) { m.settings.Enabled = false }, true},
		"True":           {func(_ *moment, s *fleet.Status) { s.Node.Status.Conditions[0].Status = corev1.ConditionTrue }, true},
		"Unknown":        {func(_ *moment, s *fleet.Status) { s.Node.Status.Conditions[0].Status = corev1.ConditionUnknown }, false},
		"no agent":       {func(_ *moment, s *fleet.Status) { s.Absence = fleet.Absence{Is: true, Lasted: 10 * time.Minute} }, true},
		"rolling update": {func(_ *moment, s *fleet.Status) { s.Absence = fleet.Absence{Is: true, Lasted: 9 * time.Minute} }, false},
		"not selected, retaint is off": {func(m *moment, s *fleet.Status) {
			m.settings.Enabled, s.State = false, fleet.Unverified
		}, true},
		"startup taint": {func(m *moment, s *fleet.Status) {
			m.settings.Enabled = false
			s.Node.Spec.Taints = append(s.Node.Spec.Taints, corev1.Taint{Key: startup})
		}, false},
		"cordoned": {func(_ *moment, s *fleet.Status) {
			s.Untouchable, s.Node.Status.Conditions[0].Status = "it is cordoned", corev1.ConditionTrue
		}, false},
		"cordoned, retaint is off": {func(m *moment, s *fleet.Status) { m.settings.Enabled, s.Untouchable = false, "it is cordoned" }, true},
		"being deleted": {func(m *moment, s *fleet.Status) {
			m.settings.Enabled, s.Node.DeletionTimestamp = false, &metav1.Time{Time: m.now}
		}, false},
		"tainted by others": {func(m *moment, s *fleet.Status) {
			m.settings.Enabled, s.Node.Spec.Taints = false, nil
			m.taint(0, "another-release")
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoment(3).fail(1)
			m.taint(0, release)
			test.change(m, &m.in.Statuses[0])
			d := m.decide()
			assert.Equal(t, test.removed, len(d.RemoveTaint) == 1)
			assert.Empty(t, d.Candidates)
		})
	}
}
