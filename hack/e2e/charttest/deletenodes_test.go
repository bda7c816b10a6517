package charttest

import (
	"cmp"
	"context"
	"maps"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// With deleteNodes the controller may delete a node that was never verified, and no other one.
func TestControllerMayDeleteNodesThatWereNeverVerifiedOnly(t *testing.T) {
	s := start(t)
	s.controller("add, change, remove or move no taint", "controller.remediation.mode=delete", "controller.remediation.deleteNodes=true")
	s.awaitTypeChecked(harness.Name + "-controller-nodes")
	nodes := s.client(harness.Default(), harness.Name+"-controller", nil).CoreV1().Nodes()

	// The node as an agent leaves it whose checks fail, changed; and the controller's attempt.
	attempt := func(change func(*corev1.Node)) error {
		bad := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "never-verified", Labels: map[string]string{}, Annotations: map[string]string{}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{startup}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: harness.ConditionType, Status: corev1.ConditionFalse}}},
		}
		change(bad)
		remove := func(ctx context.Context) error {
			err := s.Cluster.Kube.CoreV1().Nodes().Delete(ctx, bad.Name, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		}
		s.Undo(remove)
		_, err := s.Cluster.Kube.CoreV1().Nodes().Create(s.Ctx, bad, metav1.CreateOptions{})
		s.NoError(err)
		refusal := nodes.Delete(s.Ctx, bad.Name, metav1.DeleteOptions{})
		s.NoError(remove(s.Ctx))
		return refusal
	}
	labelled := func(labels ...string) func(*corev1.Node) {
		return func(n *corev1.Node) {
			for _, label := range labels {
				maps.Copy(n.Labels, map[string]string{label: "true"})
			}
		}
	}
	const never, nobody = "may delete only nodes that have node-ready/unverified, were never verified", "may delete no node of the control plane, of etcd or of Karpenter"
	s.Until(func() (bool, error) { // the API server has read the policy
		err := attempt(labelled(master))
		return err != nil && strings.Contains(err.Error(), nobody), nil
	})
	for name, test := range map[string]struct {
		change  func(*corev1.Node)
		refusal string
	}{
		"gated, and its checks fail":  {labelled(), ""},
		"of a managed node group":     {labelled("eks.amazonaws.com/nodegroup"), ""},
		"protected by its owner":      {func(n *corev1.Node) { n.Annotations["node-ready/do-not-delete"] = "true" }, "may delete no node with karpenter.sh/do-not-disrupt or node-ready/do-not-delete"},
		"protected by a label":        {labelled("node-ready/do-not-delete"), "may delete no node with"},
		"without the startup taint":   {func(n *corev1.Node) { n.Spec.Taints = nil }, never},
		"verified once":               {func(n *corev1.Node) { n.Annotations[harness.Annotation] = "{}" }, never},
		"with the label":              {labelled(harness.Label), never},
		"no verdict":                  {func(n *corev1.Node) { n.Status.Conditions = nil }, never},
		"the verdict is good":         {func(n *corev1.Node) { n.Status.Conditions[0].Status = corev1.ConditionTrue }, never},
		"of the control plane":        {labelled(controlPlane), nobody},
		"of etcd alone":               {labelled(etcd), nobody},
		"of Karpenter":                {labelled("karpenter.sh/nodepool"), nobody},
		"of Karpenter, another label": {labelled("karpenter.sh/registered"), nobody},
		"tainted as the control plane": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: controlPlane, Effect: corev1.TaintEffectNoSchedule})
		}, nobody},
	} {
		s.T.Run(name, func(t *testing.T) {
			s := s.part(t)
			err := attempt(test.change)
			if test.refusal == "" {
				s.NoError(err)
			} else {
				s.forbidden(err, test.refusal)
			}
		})
	}
}

// With remediation the controller may delete a NodeClaim whose node has not become part of the cluster yet, and no other one.
func TestControllerMayDeleteNodeClaimsBeforeTheyAreInitializedOnly(t *testing.T) {
	s := start(t)
	s.apply(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nodeclaims.karpenter.sh}
spec:
  group: karpenter.sh
  scope: Cluster
  names: {kind: NodeClaim, plural: nodeclaims}
  versions:
    - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`)
	s.Kubectl("", "wait", "--for=condition=Established", harness.Wait, "crd/nodeclaims.karpenter.sh")
	s.controller("add, change, remove or move no taint", "controller.remediation.mode=delete")
	s.awaitTypeChecked(harness.Controller + "-nodeclaims")
	client := s.client(harness.Default(), harness.Controller, nil).CoreV1().RESTClient()
	attempt := func(claim string) error {
		s.apply("{apiVersion: karpenter.sh/v1, kind: NodeClaim, " + claim + "}")
		all := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
		return client.Delete().AbsPath("/apis/karpenter.sh/v1/nodeclaims/e2e").Body(&all).Do(s.Ctx).Error()
	}
	const initialized, protected = "may delete no NodeClaim that Karpenter has initialized", "may delete no NodeClaim with karpenter.sh/do-not-disrupt or node-ready/do-not-delete"
	s.Until(func() (bool, error) { // the API server has read the policy
		return attempt(`metadata: {name: e2e, annotations: {node-ready/do-not-delete: ""}}`) != nil, nil
	})
	for claim, refusal := range map[string]string{
		`metadata: {name: e2e}`: "",
		`metadata: {name: e2e, labels: {a: b}}, status: {conditions: [{type: Registered, status: "True"}, {type: Initialized, status: Unknown}]}`: "",
		`metadata: {name: e2e}, status: {conditions: [{type: Registered, status: "True"}, {type: Initialized, status: "True"}]}`:                  initialized,
		`metadata: {name: e2e, annotations: {karpenter.sh/do-not-disrupt: "true"}}`:                                                               protected,
		`metadata: {name: e2e, annotations: {node-ready/do-not-delete: ""}}`:                                                                      protected,
		`metadata: {name: e2e, labels: {node-ready/do-not-delete: "x"}}`:                                                                          protected,
	} {
		s.T.Run(claim, func(t *testing.T) {
			s := s.part(t)
			err := attempt(claim)
			if refusal == "" {
				s.NoError(err)
			} else {
				s.forbidden(err, refusal)
			}
		})
	}
}

// The controller may create its Lease and its ConfigMap, and write Events about nodes and itself.
func TestControllerMayCreateItsOwnObjectsOnly(t *testing.T) {
	s := start(t)
	s.controller("add, change, remove or move no taint", "controller.remediation.mode=dry-run")
	s.awaitTypeChecked(harness.Controller + "-objects")
	client := s.client(harness.Default(), harness.Controller, nil)
	all := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	configMap := func(meta metav1.ObjectMeta) error {
		_, err := client.CoreV1().ConfigMaps(harness.Namespace).Create(s.Ctx, &corev1.ConfigMap{ObjectMeta: meta}, all)
		return err
	}
	lease := func(name string) error {
		_, err := client.CoordinationV1().Leases(harness.Namespace).Create(s.Ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name}}, all)
		return err
	}
	s.Until(func() (bool, error) { return lease("probe") != nil, nil }) // the API server has read the policy
	const maps, leases = "may create no ConfigMap but kube-node-ready-remediation", "may create no Lease but kube-node-ready-controller"
	s.NoError(configMap(metav1.ObjectMeta{Name: "kube-node-ready-remediation"}))
	s.forbidden(configMap(metav1.ObjectMeta{Name: "aws-auth"}), maps)
	s.forbidden(configMap(metav1.ObjectMeta{GenerateName: "kube-node-ready-remediation"}), maps)
	s.NoError(lease("kube-node-ready-controller"))
	s.forbidden(lease("kube-node-ready-remediation"), leases)

	reference := func(version, kind, namespace, name string) corev1.ObjectReference {
		return corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: namespace, Name: name}
	}
	meta := func(about corev1.ObjectReference) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: "e2e", Namespace: cmp.Or(about.Namespace, "default")}
	}
	legacy := func(about corev1.ObjectReference) error {
		_, err := client.CoreV1().Events(meta(about).Namespace).Create(s.Ctx, &corev1.Event{ObjectMeta: meta(about), InvolvedObject: about, Reason: "Test", Type: "Normal",
			FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Source: corev1.EventSource{Component: "x"}}, all)
		return err
	}
	modern := func(about corev1.ObjectReference) error {
		_, err := client.EventsV1().Events(meta(about).Namespace).Create(s.Ctx, &eventsv1.Event{ObjectMeta: meta(about), Regarding: about, Reason: "Test", Action: "Test",
			Type: "Normal", EventTime: metav1.NowMicro(), ReportingController: "x", ReportingInstance: "x"}, all)
		return err
	}
	const about = "may write Events only about nodes, its Deployment and its Lease"
	for _, event := range []func(corev1.ObjectReference) error{legacy, modern} {
		s.NoError(event(reference("v1", "Node", "", "any")))
		s.NoError(event(reference("apps/v1", "Deployment", harness.Namespace, harness.Controller)))
		s.NoError(event(reference("coordination.k8s.io/v1", "Lease", harness.Namespace, harness.Controller)))
		s.forbidden(event(reference("apps/v1", "Deployment", harness.Namespace, "coredns")), about)
		s.forbidden(event(reference("apps/v1", "Deployment", "default", harness.Controller)), about)
		s.forbidden(event(reference("v1", "Pod", harness.Namespace, harness.Controller)), about)
		s.forbidden(event(reference("v1", "Namespace", "", "kube-system")), about)
	}

	foreign, err := s.Cluster.Kube.CoreV1().Events("default").Create(s.Ctx, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e2e-objects"},
		InvolvedObject: reference("v1", "Pod", "default", "x"), Reason: "Test", Type: "Normal"}, metav1.CreateOptions{})
	s.NoError(err)
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Kube.CoreV1().Events("default").Delete(ctx, foreign.Name, metav1.DeleteOptions{})
	})
	patch := `{"involvedObject":{"kind":"Node","name":"x","namespace":""}}`
	_, err = client.CoreV1().Events("default").Patch(s.Ctx, foreign.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.forbidden(err, "may not change what an Event is about")
}
