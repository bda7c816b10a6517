package remediation

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/baseline"
	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// moment is a fleet in which one node may be replaced.
type moment struct {
	in        Input
	now       time.Time
	serverNow time.Time
	settings  Settings
}

func newMoment() *moment {
	now := time.Now()
	m := &moment{now: now, serverNow: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), settings: testSettings()}
	m.in = Input{ControlGroup: baseline.State{PassedSince: mark(now.Add(-5 * time.Minute)), Ended: mark(now)}}
	m.verified("young", "other", 20*time.Minute)
	bad := m.node("bad", "pool", 30*time.Minute)
	bad.Node.Spec.Taints = []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}
	bad.Gated, bad.State, bad.Reason, bad.Since = true, fleet.Failed, condition.DNSFailed, mark(now.Add(-10*time.Minute))
	return m
}

// clock is the time by both clocks: the API server's is another.
func (m *moment) clock() clock.Now { return clock.At(m.now, m.serverNow) }

// mark is a moment by the process's own clock.
func mark(at time.Time) clock.Mark { return clock.At(at, at).Mark() }

// node adds one of an age.
func (m *moment) node(name, pool string, age time.Duration) *fleet.Status {
	m.in.Statuses = append(m.in.Statuses, fleet.Status{Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(m.serverNow.Add(-age)),
		Labels: map[string]string{nodePoolLabel: pool}, Annotations: map[string]string{}}}})
	return m.last()
}

func (m *moment) verified(name, pool string, age time.Duration) {
	status := m.node(name, pool, age)
	status.State = fleet.Verified
	status.Node.Labels[label], status.Node.Annotations[nodepatch.Annotation] = "true", "{}"
}

func (m *moment) last() *fleet.Status { return &m.in.Statuses[len(m.in.Statuses)-1] }
func (m *moment) bad() *fleet.Status  { return &m.in.Statuses[1] }
func (m *moment) decide() Decision    { return m.settings.Decide(m.in, m.clock()) }

// deleted adds a deletion to the ledger that has ended.
func (m *moment) deleted(pool string, ago time.Duration) *Deletion {
	m.in.Ledger.Deletions = append(m.in.Ledger.Deletions, Deletion{Time: m.serverNow.Add(-ago), Scope: pool, Node: "old", NodeUID: "old", Gone: true})
	return &m.in.Ledger.Deletions[len(m.in.Ledger.Deletions)-1]
}

func (m *moment) guard(scope string, guard Guard) {
	if m.in.Ledger.Guards == nil {
		m.in.Ledger.Guards = make(map[string]Guard)
	}
	m.in.Ledger.Guards[scope] = guard
}

func TestCandidates(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*moment)
		want   bool
	}{
		"one curable reason for long enough": {func(*moment) {}, true},
		"not failed":                         {func(m *moment) { m.bad().State = fleet.Pending }, false},
		"failed for too short":               {func(m *moment) { m.bad().Since = mark(m.now.Add(-10*time.Minute + time.Second)) }, false},
		"too young": {func(m *moment) {
			m.bad().Node.CreationTimestamp = metav1.NewTime(m.serverNow.Add(-30*time.Minute + time.Second))
		}, false},
		"no creation time":          {func(m *moment) { m.bad().Node.CreationTimestamp = metav1.Time{} }, false},
		"verified before":           {func(m *moment) { m.bad().Node.Annotations[nodepatch.Annotation] = "{}" }, false},
		"labelled":                  {func(m *moment) { m.bad().Node.Labels[label] = "false" }, false},
		"without the startup taint": {func(m *moment) { m.bad().Node.Spec.Taints = nil }, false},
		"one sandbox may be what is broken": {func(m *moment) {
			m.bad().Node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue},
				{Type: conditionType, Status: corev1.ConditionFalse, Reason: condition.DNSFailed.String(), LastTransitionTime: metav1.NewTime(m.serverNow)}}
			m.bad().RunningSince = mark(m.now)
			m.bad().Pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}}}
		}, false},
		"cordoned, disrupted, deleted": {func(m *moment) { m.bad().Untouchable = "it is cordoned" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoment()
			test.change(m)
			decision := m.decide()
			assert.Empty(t, decision.Withheld)
			if test.want {
				require.Len(t, decision.Candidates, 1)
				assert.Equal(t, "bad", decision.Candidates[0].Node.Name)
			} else {
				assert.Empty(t, decision.Candidates)
			}
		})
	}
}

// Another machine may not have one of these. UnmetRequirements adds what the check node finds.
func TestCurableReasons(t *testing.T) {
	curable := []condition.Reasons{condition.SandboxFailed, condition.Silent, condition.DNSFailed, condition.APIFailed, condition.NetworkFailed, condition.ServiceFailed,
		condition.PeersFailed}
	for _, known := range condition.Meanings() {
		for _, unmet := range []bool{false, true} {
			m := newMoment()
			m.settings.UnmetRequirements, m.bad().Reason = unmet, known.Reason
			want := slices.Contains(curable, known.Reason) || unmet && known.Reason == condition.NodeFailed
			assert.Equal(t, want, len(m.decide().Candidates) == 1, "%s, %t", known.Reason, unmet)
		}
	}
}

func TestWithheld(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*moment)
		rule   Rule // "": deleted
		text   string
	}{
		"control plane":                     {func(m *moment) { m.bad().Node.Labels["node-role.kubernetes.io/control-plane"] = "" }, Protected, "the node belongs to the control plane or etcd"},
		"do-not-disrupt":                    {func(m *moment) { m.bad().Node.Annotations[DoNotDisrupt] = "true" }, Protected, "the node has karpenter.sh/do-not-disrupt"},
		"do-not-delete":                     {func(m *moment) { m.bad().Node.Annotations[DoNotDelete] = "" }, Protected, "the node has node-ready/do-not-delete"},
		"label do-not-delete":               {func(m *moment) { m.bad().Node.Labels[DoNotDelete] = "" }, Protected, "the node has node-ready/do-not-delete"},
		"no NodePool":                       {func(m *moment) { delete(m.bad().Node.Labels, nodePoolLabel) }, NoNodePool, "the node has no label karpenter.sh/nodepool: nothing would replace it"},
		"no NodePool, Nodes may be deleted": {func(m *moment) { m.ungrouped() }, "", ""},
		"no NodePool, and another label of Karpenter": {func(m *moment) { m.ungrouped(); m.bad().Node.Labels["karpenter.sh/capacity-type"] = "spot" }, NoNodePool,
			"the node has no label karpenter.sh/nodepool: nothing would replace it"},
		"no NodePool, and Karpenter has not registered it yet": {func(m *moment) {
			m.ungrouped()
			m.bad().Node.Spec.Taints = append(m.bad().Node.Spec.Taints, corev1.Taint{Key: "karpenter.sh/unregistered"})
		}, NoNodePool, "the node has no label karpenter.sh/nodepool: nothing would replace it"},
		"Nodes may be deleted, control plane": {func(m *moment) { m.ungrouped(); m.bad().Node.Labels["node-role.kubernetes.io/master"] = "" }, Protected,
			"the node belongs to the control plane or etcd"},
		"Nodes may be deleted, etcd server": {func(m *moment) { m.ungrouped(); m.bad().Node.Labels["node-role.kubernetes.io/etcd"] = "true" }, Protected,
			"the node belongs to the control plane or etcd"},
		"Nodes may be deleted, do-not-delete": {func(m *moment) { m.ungrouped(); m.bad().Node.Annotations[DoNotDelete] = "" }, Protected,
			"the node has node-ready/do-not-delete"},
		"Nodes may be deleted, two failed of two in a group": {func(m *moment) { m.grouped(); m.grouping("b").State = fleet.Failed }, FailedShare,
			"2 of 2 nodes of eks.amazonaws.com/nodegroup=ng have failed: at most 1 may fail"},
		"Nodes may be deleted, two failed of two without a group": {func(m *moment) { m.ungrouped(); m.node("b", "", 0).State = fleet.Failed }, FailedShare,
			"2 of 2 nodes of node-group=none have failed: at most 1 may fail"},
		"Nodes may be deleted, the other failed node is of a group": {func(m *moment) { m.ungrouped(); m.grouping("b").State = fleet.Failed }, "", ""},
		"Nodes may be deleted, one deletion in the group": {func(m *moment) { m.grouped(); m.deleted("eks.amazonaws.com/nodegroup=ng", 29*time.Minute) }, LoopGuard,
			"deletions in eks.amazonaws.com/nodegroup=ng since a new node was last verified: 1; wait until 2026-11-22T12:01:00Z (30m0s after the last)"},
		"Nodes may be deleted, one deletion of a NodePool of that name": {func(m *moment) { m.grouped(); m.deleted("ng", 30*time.Minute) }, "", ""},
		"Nodes may be deleted, one deletion without a group": {func(m *moment) { m.ungrouped(); m.deleted(NoGroup, 29*time.Minute) }, LoopGuard,
			"deletions in node-group=none since a new node was last verified: 1; wait until 2026-11-22T12:01:00Z (30m0s after the last)"},
		"Nodes may be deleted, and a node of no group answers": {func(m *moment) { m.ungrouped(); m.deleted(NoGroup, 29*time.Minute); m.verified("new", "", 0) }, "", ""},
		"no younger node":      {func(m *moment) { m.in.Statuses[0].Node.CreationTimestamp = m.bad().Node.CreationTimestamp }, Proof, "no node that was created after this one (2026-11-22T11:30:00Z) has been verified"},
		"younger, not passed":  {func(m *moment) { m.in.Statuses[0].State = fleet.InProgress }, Proof, "no node that was created after this one (2026-11-22T11:30:00Z) has been verified"},
		"younger, label alone": {func(m *moment) { delete(m.in.Statuses[0].Node.Annotations, nodepatch.Annotation) }, Proof, "no node that was created after this one (2026-11-22T11:30:00Z) has been verified"},
		"younger, opened, and labelled by hand": {func(m *moment) {
			m.in.Statuses[0].Node.Annotations[nodepatch.Annotation] = `{"opened":"2026-11-22T11:59:00Z","removed":["node-ready/unverified=true:NoSchedule"]}`
		}, Proof, "no node that was created after this one (2026-11-22T11:30:00Z) has been verified"},
		"control group has just passed": {func(m *moment) { m.in.ControlGroup.PassedSince = mark(m.now.Add(-299 * time.Second)) }, breaker.ControlGroup,
			"the checks have passed in the controller's pod for 4m59s, but must pass there for 5m0s first"},
		"control group has failed": {func(m *moment) { m.in.ControlGroup = baseline.State{Failure: "dns: timeout", Ended: mark(m.now)} }, breaker.ControlGroup,
			"the checks have passed in the controller's pod for 0s, but must pass there for 5m0s first; the last failure: dns: timeout"},
		"control group does not end": {func(m *moment) { m.in.ControlGroup.Ended = mark(m.now.Add(-61 * time.Second)) }, breaker.ControlGroup,
			"the checks have passed in the controller's pod for 0s, but must pass there for 5m0s first"},
		"control group has failed long ago": {func(m *moment) { m.in.ControlGroup.Failure = "dns: timeout" }, "", ""},
		"controller on a node that has failed": {func(m *moment) { m.node("controller", "", time.Hour).State = fleet.Failed }, breaker.ControlNode,
			"the controller's own node controller is not verified (Failed)"},
		"in flight": {func(m *moment) { m.verified("old", "", time.Hour); m.deleted("other", 29*time.Minute).Gone = false }, InFlight,
			"node old is still being replaced (since 2026-11-22T11:31:00Z)"},
		"in flight, gone now": {func(m *moment) { m.deleted("other", 29*time.Minute).Gone = false; m.verified("new", "other", 0) }, "", ""},
		"three an hour":       {func(m *moment) { m.three(59 * time.Minute); m.verified("new", "pool", 0) }, HourlyBudget, "3 deletions within 1h0m0s, at most 3 are allowed"},
		"three in longer":     {func(m *moment) { m.three(60 * time.Minute); m.verified("new", "pool", 0) }, "", ""},
		"ten a day":           {func(m *moment) { m.ten(23 * time.Hour); m.verified("new", "pool", 0) }, DailyBudget, "10 deletions within 24h0m0s, at most 10 are allowed"},
		"ten in longer":       {func(m *moment) { m.ten(25 * time.Hour); m.verified("new", "pool", 0) }, "", ""},
		"one failed of one":   {func(*moment) {}, "", ""},
		"two failed of two":   {func(m *moment) { m.node("b", "pool", 0).State = fleet.Failed }, FailedShare, "2 of 2 nodes of NodePool pool have failed: at most 1 may fail"},
		"two failed of nine":  {func(m *moment) { m.failedOf(2, 9) }, FailedShare, "2 of 9 nodes of NodePool pool have failed: at most 1 may fail"},
		"two failed of ten":   {func(m *moment) { m.failedOf(2, 10) }, "", ""},
		"three failed of ten": {func(m *moment) { m.failedOf(3, 10) }, FailedShare, "3 of 10 nodes of NodePool pool have failed: at most 2 may fail"},
		"two failed of two, and a new leader has only the condition of one": {func(m *moment) { m.shown(m.node("b", "pool", 0)).Gated = true }, FailedShare,
			"2 of 2 nodes of NodePool pool have failed: at most 1 may fail"},
		"the condition of a node that serves is False": {func(m *moment) { m.shown(m.node("b", "pool", 0)) }, "", ""},
		"one failed, one stuck": {func(m *moment) {
			m.node("old", "pool", time.Hour).State = fleet.Pending
			stuck := m.deleted("pool", 2*time.Hour)
			stuck.Gone, stuck.Stuck = false, true
		}, FailedShare, "2 of 2 nodes of NodePool pool have failed: at most 1 may fail"},
		"one deletion":         {func(m *moment) { m.deleted("pool", 29*time.Minute) }, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:01:00Z (30m0s after the last)"},
		"one deletion, waited": {func(m *moment) { m.deleted("pool", 30*time.Minute) }, "", ""},
		"one deletion, answered": {func(m *moment) {
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "pool", 9*time.Minute)
		}, "", ""},
		"a node that is being deleted is no answer": {func(m *moment) {
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "pool", 9*time.Minute)
			m.last().Node.DeletionTimestamp = new(metav1.NewTime(m.serverNow))
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:20:00Z (30m0s after the last)"},
		"nor is one whose NodeClaim is being deleted": {func(m *moment) {
			m.failedOf(1, 9)
			m.deleted("pool", 40*time.Minute)
			m.verified("new", "pool", 35*time.Minute)
			m.deleted("pool", 31*time.Minute).NodeUID = "new"
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 2; wait until 2026-11-22T12:29:00Z (1h0m0s after the last)"},
		"another pool answers": {func(m *moment) {
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "other", 9*time.Minute)
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:20:00Z (30m0s after the last)"},
		"a label that somebody has written is no answer": {func(m *moment) {
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "pool", 9*time.Minute)
			delete(m.last().Node.Annotations, nodepatch.Annotation)
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:20:00Z (30m0s after the last)"},
		"an older node is no answer": {func(m *moment) {
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "pool", 11*time.Minute)
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:20:00Z (30m0s after the last)"},
		"a node from the future is no answer": {func(m *moment) { // an API server's clock was wrong
			m.deleted("pool", 10*time.Minute)
			m.verified("new", "pool", -31*day)
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 1; wait until 2026-11-22T12:20:00Z (30m0s after the last)"},
		"two deletions": {func(m *moment) { m.deleted("pool", 2*time.Hour); m.deleted("pool", 59*time.Minute) }, LoopGuard,
			"deletions in NodePool pool since a new node was last verified: 2; wait until 2026-11-22T12:01:00Z (1h0m0s after the last)"},
		"the last pause of the loop guard is not over": {func(m *moment) {
			m.deleted("pool", 6*time.Hour)
			m.deleted("pool", 5*time.Hour)
			m.deleted("pool", 4*time.Hour)
			m.deleted("pool", 119*time.Minute)
		}, LoopGuard, "deletions in NodePool pool since a new node was last verified: 4; " +
			"wait until 2026-11-22T12:01:00Z (2h0m0s after the last)"},
		"another pool's deletion holds, too": {func(m *moment) { m.deleted("third", 19*time.Minute) }, LoopGuard,
			"deletions in the cluster since a new node was last verified: 1; wait until 2026-11-22T12:11:00Z (30m0s after the last)"},
		"another pool's, and any pool answers": {func(m *moment) { m.deleted("third", 29*time.Minute); m.verified("new", "other", 0) }, "", ""},
		"a node of no pool is no answer": {func(m *moment) { m.deleted("third", 19*time.Minute); m.verified("new", "", 0) }, LoopGuard,
			"deletions in the cluster since a new node was last verified: 1; wait until 2026-11-22T12:11:00Z (30m0s after the last)"},
		"halted": {func(m *moment) { m.guard("pool", Guard{Halted: m.serverNow}) }, Halted, "halted in NodePool pool since 2026-11-22T12:00:00Z: " +
			"deletions led to no verified node; find out why, then set the annotation node-ready/clear-halt=pool on the ledger's ConfigMap"},
		"cluster halted": {func(m *moment) { m.guard(Cluster, Guard{Halted: m.serverNow}) }, Halted, "halted in the cluster since 2026-11-22T12:00:00Z: " +
			"deletions led to no verified node; find out why, then set the annotation node-ready/clear-halt=* on the ledger's ConfigMap"},
		"another pool halted": {func(m *moment) { m.guard("third", Guard{Halted: m.serverNow}) }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMoment()
			test.change(m)
			decision := m.decide()
			if test.rule == "" {
				assert.Empty(t, decision.Withheld)
				assert.Len(t, decision.Candidates, 1)
				return
			}
			assert.Empty(t, decision.Candidates)
			require.Len(t, decision.Withheld, 1)
			assert.Equal(t, *m.settings.withheld(*m.bad(), test.rule, test.text), decision.Withheld[0])
		})
	}
}

// shown says in the condition of a node that it fails.
func (m *moment) shown(status *fleet.Status) *fleet.Status {
	status.Node.Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionFalse, Reason: condition.CrashLoop.String()}}
	return status
}

// ungrouped makes the bad node one that Karpenter does not manage, and allows to delete the Node.
func (m *moment) ungrouped() {
	m.settings.DeleteNodes = true
	delete(m.bad().Node.Labels, nodePoolLabel)
}

// grouped is ungrouped with a managed node group.
func (m *moment) grouped() {
	m.ungrouped()
	m.bad().Node.Labels["eks.amazonaws.com/nodegroup"] = "ng"
}

// grouping adds another node of that group.
func (m *moment) grouping(name string) *fleet.Status {
	status := m.node(name, "", 0)
	status.Node.Labels["eks.amazonaws.com/nodegroup"] = "ng"
	return status
}

// three adds three deletions, the first of which was some time ago.
func (m *moment) three(ago time.Duration) {
	for _, at := range []time.Duration{ago, 5 * time.Minute, 4 * time.Minute} {
		m.deleted("pool", at)
	}
}

func (m *moment) ten(ago time.Duration) {
	m.deleted("pool", ago)
	for i := range time.Duration(9) {
		m.deleted("pool", (22-2*i)*time.Hour)
	}
}

// failedOf makes the pool one of size nodes, of which some have failed.
func (m *moment) failedOf(failed, size int) {
	for i := 1; i < size; i++ {
		if status := m.node("n", "pool", time.Hour); i < failed {
			status.State = fleet.Failed
		} else {
			status.State = fleet.Verified
		}
	}
}

func TestOldestFirst(t *testing.T) {
	m := newMoment()
	m.verified("another", "pool", time.Minute) // the pool is not too small for three failed nodes
	m.failedOf(1, 20)
	for name, age := range map[string]time.Duration{"younger": 31 * time.Minute, "oldest": 40 * time.Minute} {
		status := m.node(name, "pool", age)
		*status = fleet.Status{Node: status.Node, Finding: fleet.Finding{State: fleet.Failed, Reason: condition.Silent}, Since: mark(m.now.Add(-time.Hour))}
		status.Node.Spec.Taints = m.bad().Node.Spec.Taints
	}
	var names []string
	for _, candidate := range m.decide().Candidates {
		names = append(names, candidate.Node.Name)
	}
	assert.Equal(t, []string{"oldest", "younger", "bad"}, names)
}

// The ledger keeps what it has, however old it looks: the clock may be wrong. It does not grow without end.
func TestLedgerForgets(t *testing.T) {
	m := newMoment()
	m.deleted("pool", 31*day)
	m.deleted("other", 25*time.Hour) // answered by the young node
	m.deleted("pool", 35*time.Minute)
	decision := m.decide()
	assert.Len(t, decision.Ledger.Deletions, 3)
	read, err := parseLedger(decision.Ledger.String())
	require.NoError(t, err)
	assert.Equal(t, decision.Ledger, read)
	_, err = parseLedger("{")
	require.ErrorContains(t, err, "the ledger is not readable")
	_, err = parseLedger(Ledger{}.String())
	require.NoError(t, err, "of a release that has deleted nothing yet")

	for range kept {
		m.deleted("other", 30*time.Hour)
	}
	decision = m.decide()
	assert.True(t, decision.Changed)
	assert.Len(t, decision.Ledger.Deletions, kept)
	m.in.Ledger = decision.Ledger
	assert.False(t, m.decide().Changed, "once")
}

func TestBreakersAreAClosedSet(t *testing.T) {
	m := newMoment()
	m.in.ControlGroup = baseline.State{Failure: "dns: timeout", Ended: mark(m.now)}
	m.node("controller", "", time.Hour).State = fleet.Failed
	m.ten(time.Hour - time.Second)
	for range 3 {
		m.deleted("pool", time.Minute)
	}
	m.guard(Cluster, Guard{Halted: m.serverNow})
	var found []Rule
	for _, rule := range Breakers() {
		if _, held := m.decide().Breakers[rule]; held {
			found = append(found, rule)
		}
	}
	assert.Equal(t, []Rule{breaker.ControlGroup, breaker.ControlNode, HourlyBudget, DailyBudget, Halted}, found)
	assert.Len(t, m.decide().Breakers, len(found))
}
