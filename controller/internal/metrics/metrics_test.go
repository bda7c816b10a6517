package metrics

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/controller/internal/breaker"
	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

const (
	startup  = "node-ready/unverified"
	verified = "node-ready/verified"
)

// story is a fleet over time, decided by the real rules, and the Collector that reports about it.
type story struct {
	t         *testing.T
	settings  fleet.Settings
	objects   fleet.Objects
	plan      fleet.Plan
	now       time.Time
	standby   bool
	err       error
	failed    uint64
	collector *Collector
}

func (s *story) clock() clock.Now { return clock.At(s.now, s.now) }

func newStory(t *testing.T) *story {
	keys := nodepatch.Keys{TaintKey: startup, FailedTaintKey: "node-ready/failed", Label: verified, LabelValue: "true"}
	s := &story{t: t, now: time.Now(), objects: fleet.Objects{Events: make(map[types.UID][]corev1.Event)}, settings: fleet.Settings{
		Rules: fleet.NewRules(&corev1.PodTemplateSpec{}, keys), Keys: keys, ConditionType: "NodeVerified",
		NotStartedAfter: 3 * time.Minute, SilentAfter: 6 * time.Minute}}
	s.collector = New(s.last, func() uint64 { return s.failed }, config.Program{Version: "1.2.3", Commit: "abc", BuildDate: "2026-01-02"}, s.clock)
	return s
}

// last is what the loop's Last would be.
func (s *story) last() (fleet.Plan, error) {
	if s.standby {
		return fleet.Plan{}, nil
	}
	return s.plan, s.err
}

// after lets time pass, and decides.
func (s *story) after(d time.Duration) {
	s.t.Helper()
	s.now = s.now.Add(d)
	s.plan = s.settings.Decide(s.objects, s.clock())
	s.objects.Seen = s.plan.Seen
	_, err := s.collector.Act(s.t.Context(), s.plan)
	require.NoError(s.t, err)
}

// join adds nodes with the startup taint.
func (s *story) join(names ...string) {
	for _, name := range names {
		s.objects.Nodes = append(s.objects.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: startup, Effect: corev1.TaintEffectNoSchedule}}},
		})
	}
}

func (s *story) leave(name string) {
	kept := s.objects.Nodes[:0:0]
	for _, node := range s.objects.Nodes {
		if node.Name != name {
			kept = append(kept, node)
		}
	}
	s.objects.Nodes = kept
}

// release does what the agent does after a verification of 1.5 s.
func (s *story) release(name string) {
	for i := range s.objects.Nodes {
		if node := &s.objects.Nodes[i]; node.Name == name {
			node.Spec.Taints = nil
			node.Labels = map[string]string{verified: "true"}
			node.Annotations = map[string]string{nodepatch.Annotation: `{"time":"2026-01-02T03:04:05Z","duration":"1.5s"}`}
		}
	}
}

// pod replaces the pods of a node by one.
func (s *story) pod(node, uid string, restarts int32, state corev1.ContainerState) {
	kept := s.objects.Pods[:0:0]
	for _, pod := range s.objects.Pods {
		if pod.Spec.NodeName != node {
			kept = append(kept, pod)
		}
	}
	phase := corev1.PodPending
	if state.Running != nil {
		phase = corev1.PodRunning
	}
	s.objects.Pods = append(kept, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: uid, Namespace: "kube-system", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{
			{State: state, ContainerID: uid, RestartCount: restarts}}},
	})
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

// series returns what a scrape shows of some names (all: none given), without what is zero, in the order of the names.
func (s *story) series(names ...string) []string {
	s.t.Helper()
	registry := prometheus.NewPedanticRegistry()
	require.NoError(s.t, registry.Register(s.collector))
	families, err := registry.Gather()
	require.NoError(s.t, err)
	var text strings.Builder
	for _, family := range families {
		if len(names) == 0 || slices.Contains(names, strings.TrimPrefix(family.GetName(), "kube_node_ready_")) {
			_, err := expfmt.MetricFamilyToText(&text, family)
			require.NoError(s.t, err)
		}
	}
	lines := []string{}
	for line := range strings.Lines(text.String()) {
		line = strings.TrimSuffix(strings.TrimPrefix(line, "kube_node_ready_"), "\n")
		if !strings.HasPrefix(line, "#") && !strings.HasSuffix(line, " 0") {
			lines = append(lines, line)
		}
	}
	return lines
}

func TestStory(t *testing.T) {
	s := newStory(t)
	s.join("old")
	s.release("old")
	s.after(0) // the leader begins
	ofNodes := []string{"verification_status", "verification_duration_seconds", "retry_attempts_total"}
	assert.Equal(t, []string{`nodes{reason="",state="Verified"} 1`}, s.series("nodes"))
	assert.Empty(t, s.series(ofNodes...), "verified before this leader began: no series of its own")

	s.join("good", "bad")
	s.after(time.Second)
	assert.Equal(t, []string{`nodes{reason="",state="Unverified"} 2`, `nodes{reason="",state="Verified"} 1`}, s.series("nodes"))
	s.pod("good", "p1", 0, running())
	s.pod("bad", "p2", 0, waiting("ImagePullBackOff"))
	s.after(time.Second)
	assert.Equal(t, []string{
		`nodes{reason="",state="InProgress"} 1`, `nodes{reason="",state="Pending"} 1`, `nodes{reason="",state="Verified"} 1`,
		`verification_status{node="bad",status="pending"} 1`, `verification_status{node="good",status="in_progress"} 1`,
		`worker_pods{status="pending"} 1`, `worker_pods{status="running"} 1`,
	}, s.series("nodes", "verification_status", "worker_pods"))

	s.release("good")
	s.after(2 * time.Second)
	assert.Equal(t, []string{
		`verification_duration_seconds{node="good"} 1.5`,
		`verification_status{node="bad",status="pending"} 1`, `verification_status{node="good",status="verified"} 1`,
		`verifications_total{status="success"} 1`,
	}, s.series(append(ofNodes, "verifications_total")...))
	assert.Contains(t, s.series("gate_seconds"), "gate_seconds_sum 3")

	s.after(3 * time.Minute)
	assert.Equal(t, []string{
		`nodes{reason="",state="Verified"} 2`, `nodes{reason="ImagePull",state="Failed"} 1`,
		`verification_status{node="bad",status="failed"} 1`, `verification_status{node="good",status="verified"} 1`,
		`verifications_total{status="failed"} 1`, `verifications_total{status="success"} 1`,
	}, s.series("nodes", "verification_status", "verifications_total"))

	s.now = s.now.Add(time.Hour - 3*time.Minute) // without a decision: a scrape counts time until now
	assert.Equal(t, []string{`verification_status{node="bad",status="failed"} 1`}, s.series(ofNodes...), "an hour later")
	s.leave("bad")
	assert.NotEmpty(t, s.series(ofNodes...), "a scrape decides nothing")
	s.after(time.Second)
	assert.Empty(t, s.series(ofNodes...))
	assert.Equal(t, []string{`nodes{reason="",state="Verified"} 2`}, s.series("nodes"))
}

func TestRetries(t *testing.T) {
	s := newStory(t)
	s.join("a", "b")
	s.pod("b", "b1", 7, running())
	s.after(0)
	assert.Empty(t, s.series("retry_attempts_total"), "what was before this leader is not known")
	s.pod("a", "a1", 0, running())
	s.after(time.Second)
	assert.Empty(t, s.series("retry_attempts_total"), "the first")
	s.pod("a", "a1", 2, waiting("CrashLoopBackOff"))
	s.pod("b", "b1", 8, running())
	s.after(time.Second)
	assert.Equal(t, []string{`retry_attempts_total{node="a"} 2`, `retry_attempts_total{node="b"} 1`}, s.series("retry_attempts_total"))
	s.pod("a", "a2", 0, running())
	s.after(time.Second)
	s.after(time.Second)
	assert.Equal(t, []string{`retry_attempts_total{node="a"} 3`, `retry_attempts_total{node="b"} 1`}, s.series("retry_attempts_total"))

	s.release("a")
	s.after(time.Second)
	s.objects.Nodes[0].Labels = nil // to be verified again, by another agent
	s.pod("a", "a3", 0, running())
	s.after(time.Second)
	assert.Contains(t, s.series("retry_attempts_total"), `retry_attempts_total{node="a"} 3`, "the first of another verification")
	assert.Empty(t, s.series("verification_duration_seconds"), "that of the former verification")
}

func TestOnlyTheLeader(t *testing.T) {
	s := newStory(t)
	s.join("a")
	s.after(0)
	s.hold("remediation", "control-group", "it fails")
	assert.NotEmpty(t, s.series())
	s.standby = true
	assert.Zero(t, testutil.CollectAndCount(s.collector))
	s.standby, s.err = false, errors.New("no cache")
	assert.Equal(t, 1, testutil.CollectAndCount(s.collector))
	require.NoError(t, testutil.CollectAndCompare(s.collector, strings.NewReader(`
		# HELP kube_node_ready_controller_healthy 1 while the leader can read its caches, 0 while it cannot.
		# TYPE kube_node_ready_controller_healthy gauge
		kube_node_ready_controller_healthy 0
	`)))
}

func TestController(t *testing.T) {
	s := newStory(t)
	s.after(0)
	s.failed = 4
	assert.Equal(t, []string{
		`build_info{build_date="2026-01-02",commit_hash="abc",version="1.2.3"} 1`,
		"controller_healthy 1", "controller_reconcile_errors_total 4",
	}, s.series(), "without nodes")
}

// hold tells that a rule keeps the controller from an action, or does not if text is "".
func (s *story) hold(action string, rule breaker.Rule, text string) {
	s.collector.Breakers(action)([]breaker.Rule{rule}, map[breaker.Rule]string{rule: text})
}

func TestBreaker(t *testing.T) {
	s := newStory(t)
	s.after(0)
	assert.Zero(t, testutil.CollectAndCount(s.collector, "kube_node_ready_breaker"))
	s.hold("remediation", "control-group", "it fails")
	s.hold("remediation", "control-node", "it fails")
	s.hold("retaint", "control-node", "")
	assert.Equal(t, []string{`breaker{reason="control-group"} 1`, `breaker{reason="control-node"} 1`}, s.series("breaker"),
		"a rule that keeps it from one of two actions")
	s.hold("remediation", "control-node", "")
	assert.Equal(t, []string{`breaker{reason="control-group"} 1`}, s.series("breaker"))
	assert.Equal(t, 2, testutil.CollectAndCount(s.collector, "kube_node_ready_breaker"))
}

func TestRechecks(t *testing.T) {
	s := newStory(t)
	s.settings.FailedTaintValue, s.settings.Rechecks = "knr", fleet.Rechecks{Interval: time.Minute, FailureThreshold: 3, RecoveryThreshold: 3}
	s.join("a", "b", "c")
	for _, name := range []string{"a", "b", "c"} {
		s.release(name)
	}
	for i, reason := range []string{"NetworkFailed,PeersFailed", "Silent"} {
		s.objects.Nodes[i].Status.Conditions = []corev1.NodeCondition{{Type: "NodeVerified", Status: corev1.ConditionFalse, Reason: reason}}
	}
	s.objects.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: "knr", Effect: corev1.TaintEffectNoSchedule}}
	s.objects.Nodes[1].Spec.Taints = []corev1.Taint{{Key: "node-ready/failed", Value: "another", Effect: corev1.TaintEffectNoSchedule}}
	s.after(0)
	s.collector.CountTaintAdded()
	assert.Equal(t, []string{`failed_taints_total{change="added"} 1`,
		`recheck_failed_nodes{reason="NetworkFailed"} 1`, `recheck_failed_nodes{reason="Silent"} 1`, "retainted_nodes 1"},
		s.series("retainted_nodes", "failed_taints_total", "recheck_failed_nodes"))
	s.settings.Rechecks = fleet.Rechecks{}
	s.after(0)
	assert.Empty(t, s.series("recheck_failed_nodes"))
}

func TestAllStatesAndReasonsAreThere(t *testing.T) {
	s := newStory(t)
	s.after(0)
	var reasons []string
	for _, known := range condition.Meanings() {
		reasons = append(reasons, known.Reason.String())
	}
	assert.Equal(t, len(fleet.States())-1+len(reasons), testutil.CollectAndCount(s.collector, "kube_node_ready_nodes"))
	assert.Equal(t, 4, testutil.CollectAndCount(s.collector, "kube_node_ready_worker_pods"))
	assert.Equal(t, 2, testutil.CollectAndCount(s.collector, "kube_node_ready_verifications_total"))
}

// A fleet that comes and goes leaves nothing behind.
func TestCardinality(t *testing.T) {
	const many = 1000
	s := newStory(t)
	s.after(0)
	atRest := testutil.CollectAndCount(s.collector)
	for generation := range 3 {
		for i := range many {
			s.join(fmt.Sprintf("n%d-%d", generation, i))
		}
		s.after(time.Second)
		assert.Equal(t, atRest+2*many, testutil.CollectAndCount(s.collector), "each its state and its retries")
		for _, node := range s.objects.Nodes {
			s.release(node.Name)
		}
		s.after(time.Second)
		assert.Equal(t, atRest+3*many, testutil.CollectAndCount(s.collector), "and its duration")
		if generation == 0 {
			s.after(time.Hour)
			assert.Equal(t, atRest, testutil.CollectAndCount(s.collector), "an hour after their verification")
		}
		s.objects.Nodes = nil
		s.after(time.Second)
		assert.Equal(t, atRest, testutil.CollectAndCount(s.collector), "gone")
		assert.Empty(t, s.collector.nodes)
	}
}

func TestLint(t *testing.T) {
	s := newStory(t)
	s.join("a")
	s.after(0)
	s.release("a")
	s.after(time.Second)
	s.hold("remediation", "control-group", "it fails")
	problems, err := testutil.CollectAndLint(s.collector)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
