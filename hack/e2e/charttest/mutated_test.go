package charttest

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// bare is a Node without a kubelet.
const bare = "e2e-bare"

// mutating adds an annotation to every Node that is updated, with conditions on who updates it.
const mutating = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: e2e-mutating}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [nodes]}]
  matchConditions: [{name: this-node, expression: "object.metadata.name == '` + bare + `'"}%s]
  mutations:
    - patchType: JSONPatch
      jsonPatch:
        expression: >-
          [JSONPatch{op: "add", path: "/metadata/annotations/example.com~1mutated", value: 'by ' + request.userInfo.username}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: e2e-mutating}
spec: {policyName: e2e-mutating}
`

// A policy cannot tell what the agent has changed from what a webhook has added to its request. It says so, and the remedy of
// docs/security.md works.
func TestMutatedPatchIsRefusedWithTheRemedy(t *testing.T) {
	s := &suite{harness.Start(t)}
	if !s.addsStartupTaint() {
		t.Skip("this Kubernetes serves no MutatingAdmissionPolicy v1")
	}
	s.bareNode(bare)
	agent, _ := s.accountsFor(bare)
	others := func() { // The policies are in force.
		s.Until(func() (bool, error) {
			err := s.patches(s.Cluster.Kube, "administrator")(bare, `{"metadata":{"annotations":{"example.com/mutated":"no"}}}`)
			return err == nil && s.Node(bare).Annotations["example.com/mutated"] != "no", err
		})
	}
	s.apply(fmt.Sprintf(mutating, ""))
	others()
	err := agent(bare, releasePatch(0, "node-ready~1verified"))
	s.forbidden(err, "kube-system/kube-node-ready may change no annotation of a node but node-ready/verification; exempt it from webhooks and policies that do")

	const exempt = `, {name: not-kube-node-ready, expression: "!(request.userInfo.username.startsWith('system:serviceaccount:kube-system:kube-node-ready'))"}`
	s.apply(fmt.Sprintf(mutating, exempt))
	s.Until(func() (bool, error) {
		return agent(bare, releasePatch(0, "node-ready~1verified")) == nil, nil
	}, "refused with the exemption")
	others()
	s.NotContains(s.Node(bare).Spec.Taints, corev1.Taint{Key: harness.Taint, Value: "true", Effect: noSchedule})
}
