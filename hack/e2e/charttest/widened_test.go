package charttest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// config.onTimeout widens the policy by the one taint or the one condition, and by nothing beside it.
func TestPolicyWidensByWhatWasChosen(t *testing.T) {
	const (
		who       = "kube-system/kube-node-ready may "
		addFailed = `[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","value":"dns","effect":"NoSchedule"}}]`
		condition = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"False","reason":"DNSFailed","message":"m"}}]`
		others    = `{"status":{"conditions":[{"type":"NodeVerified","status":"False","reason":"DNSFailed","message":"m"}]}}`
		kubelets  = `[{"op":"replace","path":"/status/conditions/0/message","value":"m"}]`
		capacity  = `{"status":{"capacity":{"example.com/x":"1"}}}`
		status    = "status"
	)
	type try struct {
		name, patch, subresource string
		refusal                  string // "" where it passes
	}
	onlyStartup := who + "take off the taint node-ready/unverified, and change no other taint"
	onlyBoth := who + "take off the taint node-ready/unverified, put on and take off node-ready/failed:NoSchedule, and change no other taint"
	onlyCondition := who + "set the condition NodeVerified, and change nothing else in a node's status"
	for policy, tries := range map[string][]try{
		"keep": {
			{name: "the failed taint", patch: addFailed, refusal: onlyStartup},
			{name: "the condition", patch: condition, subresource: status, refusal: `cannot patch resource "nodes/status"`},
		},
		"taint": {
			{name: "another taint", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoSchedule"}}]`, refusal: onlyBoth},
			{name: "the failed taint with more effect", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","effect":"NoExecute"}}]`, refusal: onlyBoth},
			{name: "the failed taint in place of another", patch: `[{"op":"replace","path":"/spec/taints/0/key","value":"node-ready/failed"}]`, refusal: onlyBoth},
			{name: "the startup taint with more effect", patch: `[{"op":"replace","path":"/spec/taints/1/effect","value":"NoExecute"}]`, refusal: onlyBoth},
			{name: "the condition", patch: condition, subresource: status, refusal: `cannot patch resource "nodes/status"`},
			{name: "the failed taint", patch: addFailed},
			{name: "another value of it", patch: `[{"op":"replace","path":"/spec/taints/2/value","value":"api"}]`},
			{name: "both off", patch: `[{"op":"remove","path":"/spec/taints/2"},{"op":"remove","path":"/spec/taints/1"}]`},
		},
		"condition": {
			{name: "the failed taint", patch: addFailed, refusal: onlyStartup},
			{name: "kubelet's condition", patch: kubelets, subresource: status, refusal: onlyCondition},
			{name: "the condition in place of all others", patch: others, subresource: status, refusal: onlyCondition},
			{name: "capacity", patch: capacity, subresource: status, refusal: onlyCondition},
			{name: "a foreign label by way of the status", patch: `{"metadata":{"labels":{"example.com/label":"y"}}}`, subresource: status, refusal: who + "set the label example.com/condition"},
			{name: "the condition", patch: condition, subresource: status},
		},
	} {
		t.Run(policy, func(t *testing.T) {
			cluster, ctx := open(t)
			require.NoError(t, cluster.Deploy(ctx, stuck, "config.initialTimeout=1h", "config.onTimeout="+policy, "config.verifiedLabel=example.com/"+policy))
			require.NoError(t, cluster.Patch(ctx, node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}},
				"spec":{"taints":[{"key":"example.com/before","effect":"PreferNoSchedule"},{"key":%q,"effect":"NoSchedule","value":"true"}]}}`, harness.Label, harness.Taint)))
			t.Cleanup(func() {
				require.NoError(t, cluster.Patch(context.Background(), node, `{"metadata":{"labels":{"example.com/probe":null}}}`))
				patch := []byte(`{"status":{"conditions":[{"type":"NodeVerified","$patch":"delete"}]}}`)
				_, err := cluster.Kube.CoreV1().Nodes().Patch(context.Background(), node, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, status)
				require.NoError(t, err)
			})
			// A new policy takes effect when the API server has read it: its label says which one it is. Until the
			// DaemonSet has been rolled out the pod may be the former one, and its token ends with it. Each try has a value of
			// its own: where one passes before the policy is read, the same value again would change nothing, and pass for ever.
			agent := pod(ctx, t, cluster, harness.Ours())
			own := token(ctx, t, cluster, harness.Ours(), harness.Name, &agent)
			attempt := 0
			require.NoError(t, harness.Until(ctx, func() (bool, error) {
				attempt++
				if now := pod(ctx, t, cluster, harness.Ours()); now.UID != agent.UID {
					agent, own = now, token(ctx, t, cluster, harness.Ours(), harness.Name, &now)
				}
				err := own(ctx, node, fmt.Sprintf(`{"metadata":{"labels":{"example.com/probe":"%d"}}}`, attempt))
				return err != nil && strings.Contains(err.Error(), "may set the label example.com/"+policy+","), nil
			}))
			for _, try := range tries {
				t.Run(try.name, func(t *testing.T) {
					send := func() error {
						if try.subresource != "" {
							return own(ctx, node, try.patch, try.subresource)
						}
						return own(ctx, node, try.patch)
					}
					if try.refusal != "" {
						forbidden(t, send(), try.refusal)
						return
					}
					require.NoError(t, send())
				})
			}
			// The API server has no doubts about its expressions.
			require.NoError(t, harness.Until(ctx, func() (bool, error) {
				now, err := cluster.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, harness.Name, metav1.GetOptions{})
				if err != nil || now.Status.TypeChecking == nil {
					return false, err
				}
				require.Empty(t, now.Status.TypeChecking.ExpressionWarnings)
				return true, nil
			}))
		})
	}
}
