package remediation

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// liveMoment is a moment whose one candidate has been read live.
type liveMoment struct {
	*moment
	live Live
	seen fleet.Memory
}

// newLiveMoment has a node whose agent says that DNS fails.
func newLiveMoment() *liveMoment {
	m := &liveMoment{moment: newMoment()}
	m.live.Node = m.bad().Node
	m.live.Node.Spec.ProviderID = "cloud://bad"
	m.live.Node.Status.Conditions = []corev1.NodeCondition{{Type: conditionType, Status: corev1.ConditionFalse, Reason: "DNSFailed"}}
	m.live.Claims = []unstructured.Unstructured{m.claim("claim-bad")}
	m.live.Pods = []corev1.Pod{*agentPod("bad")}
	m.see()
	return m
}

// see decides as the leader has done for the last twenty minutes, with the live objects as they are.
func (m *liveMoment) see() {
	m.seen = fleet.Memory{}
	for minutes := range time.Duration(21) {
		plan := m.settings.Fleet.Decide(fleet.Objects{Nodes: []corev1.Node{*m.live.Node}, Pods: m.live.Pods,
			Events: map[types.UID][]corev1.Event{"agent-bad": m.live.Events}, Unmet: map[string]string{"bad": m.live.Unmet}, Seen: m.seen}, clock.At(m.now.Add((minutes-20)*time.Minute), time.Time{}))
		m.seen, *m.bad() = plan.Seen, plan.Statuses[0]
	}
	m.live.Node = m.live.Node.DeepCopy() // the plan's stays as it was
	m.live.Pods = []corev1.Pod{*m.live.Pods[0].DeepCopy()}
}

// confirm also asserts that a deletion is either withheld, about the node, or has an object.
func (m *liveMoment) confirm(t *testing.T) (object client.Object, rule Rule, text string) {
	object, withheld := m.settings.Confirm(*m.bad(), m.live, m.seen, m.clock())
	require.Equal(t, object == nil, withheld != nil)
	if withheld != nil {
		assert.Same(t, m.bad().Node, withheld.Node)
		return nil, withheld.Rule, withheld.Text
	}
	return object, "", ""
}

func (m *liveMoment) claim(name string) unstructured.Unstructured {
	claim := unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodeName": "bad", "providerID": "cloud://bad"}}}
	claim.SetName(name)
	claim.SetLabels(map[string]string{nodePoolLabel: "pool"})
	return claim
}

func ownedPod(name, owner, node string) corev1.Pod {
	isController := true
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	if owner != "" {
		versions := map[string]string{"Node": "v1"}
		version := versions[owner]
		if version == "" {
			version = "apps/v1"
		}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: version, Kind: owner, Name: "owner", UID: types.UID(owner), Controller: &isController}}
	}
	return pod
}

// unmanaged makes the node one that Karpenter does not manage, and allows to delete the Node.
func (m *liveMoment) unmanaged() {
	m.settings.DeleteNodes, m.live.Claims = true, nil
	delete(m.live.Node.Labels, nodePoolLabel)
}

func TestConfirm(t *testing.T) {
	deleting := metav1.Now()
	owner := metav1.OwnerReference{APIVersion: "karpenter.sh/v1", Kind: nodeClaimKind, Name: "gone", UID: "gone"}
	for name, test := range map[string]struct {
		change func(*liveMoment)
		rule   Rule
		text   string
	}{
		"nothing but the node":        {func(*liveMoment) {}, "", ""},
		"gone":                        {func(m *liveMoment) { m.live.Node = nil }, Changed, "the node is gone"},
		"another node of the name":    {func(m *liveMoment) { m.live.Node.UID = "new" }, Changed, "the node is gone"},
		"released since":              {func(m *liveMoment) { m.live.Node.Spec.Taints = nil }, Changed, "the node or its pod has changed since the decision"},
		"cordoned since":              {func(m *liveMoment) { m.live.Node.Spec.Unschedulable = true }, Changed, "the node or its pod has changed since the decision"},
		"protected since":             {func(m *liveMoment) { m.live.Node.Annotations[DoNotDelete] = "" }, Protected, "the node has node-ready/do-not-delete"},
		"no NodeClaim":                {func(m *liveMoment) { m.live.Claims = nil }, NoNodeClaim, "the node has no NodeClaim: its machine would stay"},
		"two NodeClaims":              {func(m *liveMoment) { m.live.Claims = append(m.live.Claims, m.claim("b")) }, NoNodeClaim, "2 NodeClaims name the node"},
		"NodeClaim of another time":   {func(m *liveMoment) { m.live.Node.Spec.ProviderID = "cloud://2" }, NoNodeClaim, "NodeClaim claim-bad is for another machine"},
		"NodeClaim of another pool":   {func(m *liveMoment) { m.live.Claims[0].SetLabels(nil) }, NoNodeClaim, "NodeClaim claim-bad is of another NodePool"},
		"NodeClaim is being deleted":  {func(m *liveMoment) { m.live.Claims[0].SetDeletionTimestamp(&deleting) }, Changed, "NodeClaim claim-bad is being deleted"},
		"NodeClaim is not to disrupt": {func(m *liveMoment) { m.live.Claims[0].SetAnnotations(map[string]string{DoNotDisrupt: "true"}) }, Protected, "NodeClaim claim-bad has karpenter.sh/do-not-disrupt"},
		"NodeClaim is initialized": {func(m *liveMoment) {
			m.live.Claims[0].Object["status"].(map[string]any)["conditions"] = []any{map[string]any{"type": "Initialized", "status": "True"}}
		}, Protected, "Karpenter has initialized NodeClaim claim-bad: declare the startup taint in its NodePool"},
		"NodeClaim is not initialized": {func(m *liveMoment) {
			m.live.Claims[0].Object["status"].(map[string]any)["conditions"] = []any{map[string]any{"type": "Initialized", "status": "Unknown"}}
		}, "", ""},
		"a pod would miss the node": {func(m *liveMoment) { m.live.Workload = "ns/a" }, Workload, "pod ns/a runs on the node"},

		"the Node itself": {func(m *liveMoment) { m.unmanaged() }, "", ""},
		"the Node itself, not allowed": {func(m *liveMoment) { m.unmanaged(); m.settings.DeleteNodes = false }, NoNodePool,
			"the node has no label karpenter.sh/nodepool: nothing would replace it"},
		"the Node itself, of Karpenter": {func(m *liveMoment) { m.unmanaged(); m.live.Node.Labels["karpenter.sh/registered"] = "true" }, NoNodePool,
			"the node has no label karpenter.sh/nodepool: nothing would replace it"},
		"the Node itself, a NodeClaim names it": {func(m *liveMoment) { m.unmanaged(); m.live.Claims = []unstructured.Unstructured{m.claim("a")} }, NoNodeClaim,
			"NodeClaim a is of another NodePool"},
		"the Node itself, owned by a NodeClaim that is gone": {func(m *liveMoment) { m.unmanaged(); m.live.Node.OwnerReferences = []metav1.OwnerReference{owner} },
			NoNodeClaim, "the node has no NodeClaim: its machine would stay"},
		"the Node itself, control plane": {func(m *liveMoment) { m.unmanaged(); m.live.Node.Labels["node-role.kubernetes.io/control-plane"] = "" }, Protected,
			"the node belongs to the control plane or etcd"},
		"the Node itself, a pod would miss it": {func(m *liveMoment) { m.unmanaged(); m.live.Workload = "ns/a" }, Workload, "pod ns/a runs on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newLiveMoment()
			test.change(m)
			object, rule, text := m.confirm(t)
			assert.Equal(t, test.rule, rule)
			assert.Equal(t, test.text, text)
			switch {
			case test.rule != "":
			case m.settings.DeleteNodes:
				assert.Same(t, m.live.Node, object)
			default:
				assert.Equal(t, "claim-bad", object.GetName())
			}
		})
	}
}

func TestConfirmMeasuresAgain(t *testing.T) {
	m := newLiveMoment()
	m.serverNow = m.serverNow.Add(-time.Second)
	_, rule, _ := m.confirm(t)
	assert.Equal(t, Changed, rule, "the node is a second too young")
}

// notStarted makes the node one whose agent's pod has no network.
func (m *liveMoment) notStarted() {
	m.live.Node.Status.Conditions = nil
	m.live.Pods[0].Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{Type: corev1.PodInitialized}}}
	m.live.Events = []corev1.Event{podEvent("FailedCreatePodSandBox", m.serverNow.Add(-time.Minute))}
	m.see()
}

// silent makes the node one whose agent runs and says nothing.
func (m *liveMoment) silent() {
	m.live.Node.Status.Conditions, m.live.Events = nil, []corev1.Event{}
	m.see()
}

func podEvent(reason string, at time.Time) corev1.Event {
	return corev1.Event{Reason: reason, LastTimestamp: metav1.NewTime(at), InvolvedObject: corev1.ObjectReference{UID: "agent-bad"}}
}

// worked makes the node one whose worker has found that DNS fails, in controller mode.
func (m *liveMoment) worked() {
	m.settings.Fleet.Workers = true
	metav1.SetMetaDataAnnotation(&m.live.Pods[0].ObjectMeta, fleet.NodeUIDAnnotation, string(m.live.Node.UID))
	terminated := &corev1.ContainerStateTerminated{ExitCode: 1, Message: `{"verified":false,"node":"bad","duration":"1s","attempts":{"dns":6},"failed":["dns"],"message":"dns: timeout","version":"v"}`}
	m.live.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", State: corev1.ContainerState{Terminated: terminated}}}
	m.see()
}

// passed is a worker that has passed on a node that lacks what REQUIRE demands.
func (m *liveMoment) passed() {
	m.settings.Fleet.Workers, m.settings.UnmetRequirements, m.live.Unmet = true, true, "node: the node has 0 GPUs"
	metav1.SetMetaDataAnnotation(&m.live.Pods[0].ObjectMeta, fleet.NodeUIDAnnotation, string(m.live.Node.UID))
	m.live.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "worker", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
	m.see()
}

// The reason must still hold by the live objects.
func TestConfirmDecidesAgain(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*liveMoment)
		reason condition.Reasons
		rule   Rule
	}{
		"DNSFailed":        {func(*liveMoment) {}, condition.DNSFailed, ""},
		"another check":    {func(m *liveMoment) { m.live.Node.Status.Conditions[0].Reason = "APIFailed" }, condition.DNSFailed, Changed},
		"passes now":       {func(m *liveMoment) { m.live.Node.Status.Conditions[0].Status = corev1.ConditionTrue }, condition.DNSFailed, Changed},
		"pod is gone":      {func(m *liveMoment) { m.live.Pods = nil }, condition.DNSFailed, Changed},
		"another pod":      {func(m *liveMoment) { m.live.Pods[0].UID = "new" }, condition.DNSFailed, Changed},
		"SandboxFailed":    {func(m *liveMoment) { m.notStarted() }, condition.SandboxFailed, ""},
		"pulls now":        {func(m *liveMoment) { m.notStarted(); m.happens("Pulling") }, condition.SandboxFailed, Changed},
		"still no network": {func(m *liveMoment) { m.notStarted(); m.happens("NetworkNotReady") }, condition.SandboxFailed, ""},
		"Events expired":   {func(m *liveMoment) { m.notStarted(); m.live.Events = []corev1.Event{} }, condition.SandboxFailed, Changed},
		"runs now": {func(m *liveMoment) {
			m.notStarted()
			m.live.Pods[0].Status.ContainerStatuses = agentPod("bad").Status.ContainerStatuses
		}, condition.SandboxFailed, Changed},
		"a worker's round": {func(m *liveMoment) { m.worked() }, condition.DNSFailed, ""},
		"the next worker": {func(m *liveMoment) {
			m.worked()
			m.live.Pods[0].Status = corev1.PodStatus{Phase: corev1.PodPending}
		}, condition.DNSFailed, ""},
		"a worker that passes": {func(m *liveMoment) {
			m.worked()
			m.live.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, condition.DNSFailed, Changed},
		"a newer worker that passes": {func(m *liveMoment) {
			m.worked()
			newer := m.live.Pods[0].DeepCopy()
			newer.Name, newer.UID, newer.CreationTimestamp = "newer", "newer", metav1.Now()
			newer.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			m.live.Pods = append(m.live.Pods, *newer)
		}, condition.DNSFailed, Changed},
		"a worker that passes and runs": {func(m *liveMoment) {
			m.worked()
			m.live.Pods[0].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			m.live.Pods[0].Status.ContainerStatuses = agentPod("bad").Status.ContainerStatuses
		}, condition.DNSFailed, Changed},
		"requirements unmet": {func(m *liveMoment) { m.passed() }, condition.NodeFailed, ""},
		"requirements met now, its agent has not seen it": {func(m *liveMoment) {
			m.settings.UnmetRequirements, m.live.Node.Status.Conditions[0].Reason = true, condition.NodeFailed.String()
			m.see()
		}, condition.NodeFailed, Changed},
		"requirements met now": {func(m *liveMoment) { m.passed(); m.live.Unmet = "" }, condition.NodeFailed, Changed},
		"Silent":               {func(m *liveMoment) { m.silent() }, condition.Silent, ""},
		"Silent, not started, and no Event says why": {func(m *liveMoment) { m.notStarted(); m.live.Events = []corev1.Event{}; m.see(); m.live.Events = nil }, condition.Silent, ""},
		"speaks now": {func(m *liveMoment) {
			m.silent()
			m.live.Node.Status.Conditions = newLiveMoment().live.Node.Status.Conditions
		}, condition.Silent, Changed},
		"restarted": {func(m *liveMoment) { m.silent(); m.live.Pods[0].Status.ContainerStatuses[0].ContainerID = "new" }, condition.Silent, Changed},
	} {
		t.Run(name, func(t *testing.T) {
			m := newLiveMoment()
			test.change(m)
			require.Equal(t, test.reason, m.bad().Reason)
			_, rule, text := m.confirm(t)
			assert.Equal(t, test.rule, rule, text)
		})
	}
}

// happens adds an Event of the agent's pod that is the newest.
func (m *liveMoment) happens(reason string) {
	m.live.Events = append(m.live.Events, podEvent(reason, m.serverNow))
}
