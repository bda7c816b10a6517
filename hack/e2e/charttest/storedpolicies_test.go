package charttest

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The API server stores each policy and binding as the chart renders it: a GitOps tool that compares them finds no difference.
func TestPoliciesAreStoredAsRendered(t *testing.T) {
	for name, values := range map[string][]string{
		"agents":          {"config.onTimeout=taint\\,condition"},
		"with controller": {"controller.enabled=true", "controller.verifyAfterReboot=true", "controller.remediation.mode=delete", "controller.remediation.deleteNodes=true"},
		"with re-taints":  {"controller.enabled=true", "config.recheckInterval=1m", "controller.retaint.enabled=true"},
		"workers":         {"controller.enabled=true", "deploymentMode=controller", "controller.remediation.mode=delete"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			if s.addsStartupTaint() {
				values = append(values, "startupTaint.add=true")
			}
			manifests, err := s.Cluster.Render(s.Ctx, values...)
			s.NoError(err)
			compared := 0
			for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
				policies := only(manifests, kind)
				if policies == "" {
					continue
				}
				s.apply(policies)
				for policy := range strings.SplitSeq(policies, "\n---\n") {
					var rendered, stored struct {
						Metadata struct{ Name string }
						Spec     map[string]any
					}
					s.NoError(yaml.Unmarshal([]byte(policy), &rendered))
					s.NotEmpty(rendered.Spec, policy)
					s.NoError(yaml.Unmarshal([]byte(s.Kubectl("", "get", kind, rendered.Metadata.Name, "-o", "yaml")), &stored))
					s.Equal(rendered.Spec, stored.Spec, "%s %s", kind, rendered.Metadata.Name)
					compared++
				}
			}
			s.GreaterOrEqual(compared, 4)
		})
	}
}
