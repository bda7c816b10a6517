package replace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// liveMoment is a moment whose one candidate has been read live.
type liveMoment struct {
	*moment
	live Live
}

func newLiveMoment() *liveMoment {
	m := &liveMoment{moment: newMoment()}
	m.live.Node = m.bad().Node.DeepCopy()
	m.live.Node.Spec.ProviderID = "cloud://bad"
	m.live.Claims = []unstructured.Unstructured{m.claim("claim-bad")}
	return m
}

func (m *liveMoment) claim(name string) unstructured.Unstructured {
	claim := unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodeName": "bad", "providerID": "cloud://bad"}}}
	claim.SetName(name)
	claim.SetLabels(map[string]string{nodePoolLabel: "pool"})
	return claim
}

// pod adds one that runs on the node.
func (m *liveMoment) pod(name, owner string) *corev1.Pod {
	m.live.Pods = append(m.live.Pods, ownedPod(name, owner, "bad"))
	return &m.live.Pods[len(m.live.Pods)-1]
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

// dns adds a pod that tolerates the startup taint, and its sibling.
func (m *liveMoment) dns(siblingNode string) (pod, sibling *corev1.Pod) {
	pod = m.pod("dns-1", "ReplicaSet")
	pod.Spec.Tolerations = []corev1.Toleration{{Key: startup, Operator: corev1.TolerationOpExists}}
	m.live.Siblings = []corev1.Pod{*pod, ownedPod("dns-2", "ReplicaSet", siblingNode)}
	return pod, &m.live.Siblings[1]
}

func TestConfirm(t *testing.T) {
	deleting := metav1.Now()
	for name, test := range map[string]struct {
		change func(*liveMoment)
		rule   Rule
		text   string
	}{
		"nothing but the node":        {func(*liveMoment) {}, "", ""},
		"gone":                        {func(m *liveMoment) { m.live.Node = nil }, Changed, "the node is gone"},
		"another node of the name":    {func(m *liveMoment) { m.live.Node.UID = "new" }, Changed, "the node is gone"},
		"released meanwhile":          {func(m *liveMoment) { m.live.Node.Spec.Taints = nil }, Changed, "the node has changed meanwhile"},
		"cordoned meanwhile":          {func(m *liveMoment) { m.live.Node.Spec.Unschedulable = true }, Changed, "the node has changed meanwhile"},
		"protected meanwhile":         {func(m *liveMoment) { m.live.Node.Annotations[DoNotDelete] = "" }, Protected, "the node has node-ready/do-not-delete"},
		"no NodeClaim":                {func(m *liveMoment) { m.live.Claims = nil }, NoNodeClaim, "the node has no NodeClaim: its machine would stay"},
		"two NodeClaims":              {func(m *liveMoment) { m.live.Claims = append(m.live.Claims, m.claim("b")) }, NoNodeClaim, "2 NodeClaims name the node"},
		"NodeClaim of another time":   {func(m *liveMoment) { m.live.Node.Spec.ProviderID = "cloud://2" }, NoNodeClaim, "NodeClaim claim-bad is for another machine"},
		"NodeClaim of another pool":   {func(m *liveMoment) { m.live.Claims[0].SetLabels(nil) }, NoNodeClaim, "NodeClaim claim-bad is of another NodePool"},
		"NodeClaim is being deleted":  {func(m *liveMoment) { m.live.Claims[0].SetDeletionTimestamp(&deleting) }, Changed, "NodeClaim claim-bad is being deleted"},
		"NodeClaim is not to disrupt": {func(m *liveMoment) { m.live.Claims[0].SetAnnotations(map[string]string{DoNotDisrupt: "true"}) }, Protected, "NodeClaim claim-bad has karpenter.sh/do-not-disrupt"},
		"DaemonSet's pod":             {func(m *liveMoment) { m.pod("a", "DaemonSet") }, "", ""},
		"static pod": {func(m *liveMoment) {
			m.pod("a", "Node").Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		}, "", ""},
		"our worker":                           {func(m *liveMoment) { m.pod("a", "Node").Namespace = namespace }, "", ""},
		"a pod that somebody gave to the Node": {func(m *liveMoment) { m.pod("a", "Node") }, Workload, "pod ns/a runs on the node"},
		"a Deployment's pod":                   {func(m *liveMoment) { m.pod("a", "ReplicaSet") }, Workload, "pod ns/a runs on the node"},
		"a pod of nobody":                      {func(m *liveMoment) { m.pod("a", "") }, Workload, "pod ns/a runs on the node"},
		"finished":                             {func(m *liveMoment) { m.pod("a", "").Status.Phase = corev1.PodSucceeded }, "", ""},
		"failed":                               {func(m *liveMoment) { m.pod("a", "").Status.Phase = corev1.PodFailed }, "", ""},
		"being deleted":                        {func(m *liveMoment) { m.pod("a", "").DeletionTimestamp = &deleting }, Workload, "pod ns/a runs on the node"},
		"tolerates, ready sibling elsewhere":   {func(m *liveMoment) { m.dns("young") }, "", ""},
		"tolerates, sibling on the same node":  {func(m *liveMoment) { m.dns("bad") }, Workload, "pod ns/dns-1 runs on the node"},
		"tolerates, sibling not bound":         {func(m *liveMoment) { m.dns("") }, Workload, "pod ns/dns-1 runs on the node"},
		"tolerates, sibling not ready": {func(m *liveMoment) {
			_, sibling := m.dns("young")
			sibling.Status.Conditions[0].Status = corev1.ConditionFalse
		}, Workload, "pod ns/dns-1 runs on the node"},
		"tolerates, sibling is being deleted": {func(m *liveMoment) {
			_, sibling := m.dns("young")
			sibling.DeletionTimestamp = &deleting
		}, Workload, "pod ns/dns-1 runs on the node"},
		"tolerates, of another owner": {func(m *liveMoment) {
			_, sibling := m.dns("young")
			sibling.OwnerReferences[0].UID = "other"
		}, Workload, "pod ns/dns-1 runs on the node"},
		"ready sibling, does not tolerate": {func(m *liveMoment) {
			pod, _ := m.dns("young")
			pod.Spec.Tolerations = nil
		}, Workload, "pod ns/dns-1 runs on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newLiveMoment()
			test.change(m)
			claim, rule, text := m.settings.Confirm(*m.bad(), m.live, m.in.ServerNow, m.now)
			assert.Equal(t, test.rule, rule)
			assert.Equal(t, test.text, text)
			if test.rule == "" {
				require.NotNil(t, claim)
				assert.Equal(t, "claim-bad", claim.GetName())
			} else {
				assert.Nil(t, claim)
			}
		})
	}
}

func TestConfirmMeasuresAgain(t *testing.T) {
	m := newLiveMoment()
	_, rule, _ := m.settings.Confirm(*m.bad(), m.live, m.in.ServerNow.Add(-time.Second), m.now)
	assert.Equal(t, Changed, rule, "the node is a second too young")
}
