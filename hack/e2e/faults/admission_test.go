package faults

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// An admission policy that refuses the patch, with the reason that is a policy's default and with Forbidden.
func TestFaultAdmission(t *testing.T) {
	t.Parallel()
	for _, reason := range []string{"Invalid", "Forbidden"} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			name := "faults-admission-" + strings.ToLower(reason)
			s := begin(t, "admission policy refuses the patch ("+reason+")", "one patch a round, the policy's message in the log; verified when it is gone")
			made := s.create(gated(name))
			policy := fmt.Sprintf(`
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: %[1]s}
spec:
  failurePolicy: Fail
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [nodes], resourceNames: [%[1]s]}]}
  validations: [{expression: "!(has(object.metadata.labels) && '%[2]s' in object.metadata.labels)", message: "no node is released on a Friday", reason: %[3]s}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: %[1]s}
spec: {policyName: %[1]s, validationActions: [Deny]}
`, name, harness.Label, reason)
			remove, err := s.Cluster.Apply(s.Ctx, policy)
			s.Undo(remove)
			s.NoError(err)
			label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, harness.Label)
			try := func() error {
				_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(s.Ctx, name, "application/merge-patch+json", label, metav1.PatchOptions{DryRun: []string{"All"}})
				return err
			}
			s.Until(func() (bool, error) { return try() != nil, nil }, "the policy has no effect")

			p := s.agent(name).start()
			rounds := func() (n int) {
				for _, line := range p.log() {
					if line.Msg == harness.MsgNotVerified {
						require.Contains(s.T, line.Reason, "the API server refuses the patch: ")
						require.Contains(s.T, line.Reason, "no node is released on a Friday")
						n++
					}
				}
				return n
			}
			s.Until(func() (bool, error) { return rounds() >= 3, nil })
			s.LessOrEqual(len(s.proxy.Asked(Patch(name))), rounds()+1, "a retry storm")
			s.True(untouched(s.Node(name), made))
			s.NoError(remove(s.Ctx))
			s.Until(func() (bool, error) { return try() == nil, nil })
			began := time.Now()
			now := s.verified(name)
			s.row.Recovered(time.Since(began))
			s.row.Keeps(now, harness.Foreign(made))
			p.stop()
		})
	}
}
