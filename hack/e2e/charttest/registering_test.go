package charttest

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// registering is a label of the Nodes that the tests of the startup taint create.
const registering = "e2e-registering"

// joining is a Node that a test creates, and whether it is to get the startup taint.
type joining struct {
	labels map[string]string
	taints []corev1.Taint
	gated  bool
}

var (
	noSchedule = corev1.TaintEffectNoSchedule
	noExecute  = corev1.TaintEffectNoExecute
	prefer     = corev1.TaintEffectPreferNoSchedule
)

// startup is the taint by default.
var startup = corev1.Taint{Key: harness.Taint, Value: "true", Effect: noSchedule}

func taint(key string, effect corev1.TaintEffect) corev1.Taint {
	return corev1.Taint{Key: key, Effect: effect}
}

// byDefault are nodes that register while the chart has its default rules.
var byDefault = map[string]joining{
	"plain":                     {gated: true},
	"control-plane":             {labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}, gated: true},
	"verified":                  {labels: map[string]string{harness.Label: "true"}},
	"verified-false":            {labels: map[string]string{harness.Label: "false"}},
	"windows":                   {labels: map[string]string{corev1.LabelOSStable: "windows"}},
	"fargate":                   {labels: map[string]string{"eks.amazonaws.com/compute-type": "fargate"}},
	"virtual-kubelet":           {labels: map[string]string{"type": "virtual-kubelet"}},
	"karpenter":                 {taints: []corev1.Taint{taint("karpenter.sh/unregistered", noExecute)}},
	"foreign-no-execute":        {taints: []corev1.Taint{taint("example.com/gpu", noSchedule), taint("example.com/dedicated", noExecute)}},
	"foreign-no-schedule":       {taints: []corev1.Taint{taint("example.com/gpu", noSchedule), taint("example.com/spot", prefer)}, gated: true},
	"kubelet-has-the-taint":     {taints: []corev1.Taint{taint(harness.Taint, noExecute)}},
	"failed-taint":              {taints: []corev1.Taint{taint("node-ready/failed", noExecute)}, gated: true},
	"not-ready":                 {taints: []corev1.Taint{taint(corev1.TaintNodeNotReady, noExecute)}, gated: true},
	"cloud-provider":            {taints: []corev1.Taint{taint("node.cloudprovider.kubernetes.io/uninitialized", noSchedule)}, gated: true},
	"label-that-is-no-rule":     {labels: map[string]string{"pool": "other"}, gated: true},
	"tainted-by-a-former-chart": {taints: []corev1.Taint{taint("example.com/former", noSchedule)}, gated: true},
}

// ownRules are values with every kind of node rule.
const ownRules = `
nodeSelector: {pool: a}
tolerations:
- {key: equal, value: yes-please, effect: NoSchedule}
- {key: empty, operator: Equal}
- {key: exists, operator: Exists, effect: NoExecute}
- {key: node.kubernetes.io/not-ready, operator: Exists} # no kubelet takes them off
- {key: node.kubernetes.io/unreachable, operator: Exists}
config: {waitForTaints: [node.cilium.io/], taintValue: "", taintEffect: PreferNoSchedule}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - {key: gen, operator: Gt, values: ["5"]}
        - {key: gen, operator: Lt, values: ["10"]}
        - {key: tier, operator: NotIn, values: [test, ""]}
        - {key: ungated, operator: DoesNotExist}
        matchFields: [{key: metadata.name, operator: NotIn, values: [own-excluded-by-name]}]
      - matchExpressions: [{key: zone, operator: In, values: [x, "y"]}, {key: rack, operator: Exists}]
      - matchFields: [{key: metadata.name, operator: In, values: [own-included-by-name]}]
`

// byOwnRules are nodes that register while the chart has these.
func byOwnRules() map[string]joining {
	with := func(gated bool, labels string, taints ...corev1.Taint) joining {
		all := map[string]string{"pool": "a"}
		for label := range strings.FieldsSeq(labels) {
			key, value, _ := strings.Cut(label, "=")
			all[key] = value
		}
		return joining{all, taints, gated}
	}
	equal := corev1.Taint{Key: "equal", Value: "yes-please", Effect: noSchedule}
	return map[string]joining{
		"first-term":          with(true, "gen=7"),
		"other-pool":          with(false, "gen=7 pool=b"),
		"no-pool":             {labels: map[string]string{"gen": "7"}},
		"too-old":             with(false, "gen=5"),
		"too-new":             with(false, "gen=10"),
		"no-generation":       with(false, ""),
		"no-number":           with(false, "gen=six"),
		"huge-number":         with(false, "gen=9999999999999999999999"),
		"tier":                with(true, "gen=6 tier=prod"),
		"excluded-tier":       with(false, "gen=6 tier=test"),
		"excluded-by-label":   with(false, "gen=6 ungated="),
		"excluded-by-name":    with(false, "gen=6"),
		"second-term":         with(true, "zone=y rack=1"),
		"second-term-by-half": with(false, "zone=y"),
		"no-number-but-other": with(true, "gen=six zone=x rack="),
		"other-zone":          with(false, "zone=z rack=1"),
		"included-by-name":    with(true, ""),
		"equal":               with(true, "gen=7", equal),
		"equal-other-value":   with(false, "gen=7", taint("equal", noSchedule)),
		"equal-other-effect":  with(false, "gen=7", corev1.Taint{Key: "equal", Value: "yes-please", Effect: noExecute}),
		"equal-empty":         with(true, "gen=7", taint("empty", noExecute)),
		"exists":              with(true, "gen=7", corev1.Taint{Key: "exists", Value: "any", Effect: noExecute}),
		"exists-other-effect": with(false, "gen=7", taint("exists", noSchedule)),
		"one-of-two":          with(false, "gen=7", equal, taint("other", noSchedule)),
		"preferred":           with(true, "gen=7", taint("other", prefer)),
		"cni":                 with(true, "gen=7", taint("node.cilium.io/agent-not-ready", noExecute)),
	}
}

// register creates a Linux Node without the startup taint, changed as wanted, and returns it as the API server has it.
func (s *suite) register(name string, dryRun bool, changes ...func(*corev1.Node)) (*corev1.Node, error) {
	made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelOSStable: "linux", corev1.LabelHostname: name, registering: "",
	}}}
	for _, change := range changes {
		change(made)
	}
	options := metav1.CreateOptions{}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	return s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, made, options)
}

func labels(more map[string]string) func(*corev1.Node) {
	return func(node *corev1.Node) { maps.Copy(node.Labels, more) }
}

func taints(list ...corev1.Taint) func(*corev1.Node) {
	return func(node *corev1.Node) { node.Spec.Taints = slices.Clone(list) }
}

// kwokNode lets kwok play the node's kubelet.
func kwokNode(node *corev1.Node) {
	node.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
	node.Status.Capacity = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}
	node.Status.Allocatable = node.Status.Capacity
}
