package charttest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// config.onTimeout widens the policy by the one taint or the one condition, and by nothing beside it.
func TestOnTimeoutWidensThePolicy(t *testing.T) {
	const (
		who       = "kube-system/kube-node-ready may "
		addFailed = `[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","value":"dns","effect":"NoSchedule"}}]`
		condition = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"False","reason":"DNSFailed","message":"m"}}]`
		others    = `{"status":{"conditions":[{"type":"NodeVerified","status":"False","reason":"DNSFailed","message":"m"}]}}`
		kubelets  = `[{"op":"replace","path":"/status/conditions/0/message","value":"m"}]`
		capacity  = `{"status":{"capacity":{"example.com/x":"1"}}}`
	)
	status := []string{"status"}
	type try struct {
		name, patch  string
		subresources []string
		refusal      string // "" where it passes
	}
	onlyStartup := who + "take off the taint node-ready/unverified, and change no other taint"
	onlyBoth := who + "take off the taint node-ready/unverified, put on and take off node-ready/failed:NoSchedule, and change no other taint"
	onlyCondition := who + "set the condition NodeVerified, and change nothing else in a node's status"
	for policy, tries := range map[string][]try{
		"keep": {
			{name: "the failed taint", patch: addFailed, refusal: onlyStartup},
			{name: "the condition", patch: condition, subresources: status, refusal: `cannot patch resource "nodes/status"`},
		},
		"taint": {
			{name: "another taint", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoSchedule"}}]`, refusal: onlyBoth},
			{name: "the failed taint with more effect", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","effect":"NoExecute"}}]`, refusal: onlyBoth},
			{name: "the failed taint in place of another", patch: `[{"op":"replace","path":"/spec/taints/0/key","value":"node-ready/failed"}]`, refusal: onlyBoth},
			{name: "the startup taint with more effect", patch: `[{"op":"replace","path":"/spec/taints/1/effect","value":"NoExecute"}]`, refusal: onlyBoth},
			{name: "the condition", patch: condition, subresources: status, refusal: `cannot patch resource "nodes/status"`},
			{name: "the failed taint", patch: addFailed},
			{name: "another value of it", patch: `[{"op":"replace","path":"/spec/taints/2/value","value":"api"}]`},
			{name: "both off", patch: `[{"op":"remove","path":"/spec/taints/2"},{"op":"remove","path":"/spec/taints/1"}]`},
		},
		"condition": {
			{name: "the failed taint", patch: addFailed, refusal: onlyStartup},
			{name: "kubelet's condition", patch: kubelets, subresources: status, refusal: onlyCondition},
			{name: "the condition in place of all others", patch: others, subresources: status, refusal: onlyCondition},
			{name: "capacity", patch: capacity, subresources: status, refusal: onlyCondition},
			{name: "a foreign label by way of the status", patch: `{"metadata":{"labels":{"example.com/label":"y"}}}`, subresources: status, refusal: who + "set the label example.com/condition"},
			{name: "the condition", patch: condition, subresources: status},
		},
	} {
		t.Run(policy, func(t *testing.T) {
			s := start(t)
			s.Deploy(stuck, "config.initialTimeout=1h", "config.onTimeout="+policy, "config.verifiedLabel=example.com/"+policy)
			s.DeleteCondition(node)
			s.Undo(func(ctx context.Context) error {
				return s.Cluster.Patch(ctx, node, `{"metadata":{"labels":{"example.com/probe":null}}}`)
			})
			s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null}},
				"spec":{"taints":[{"key":"example.com/before","effect":"PreferNoSchedule"},{"key":%q,"effect":"NoSchedule","value":"true"}]}}`, harness.Label, harness.Taint))
			// A new policy takes effect when the API server has read it: its label says which one it is. Until the
			// DaemonSet has been rolled out the pod may be the former one, and its token ends with it. Each try has a value of
			// its own: where one passes before the policy is read, the same value again would change nothing, and pass for ever.
			agent := s.pod(harness.Default())
			own := s.token(harness.Default(), harness.Name, &agent)
			attempt := 0
			s.Until(func() (bool, error) {
				attempt++
				if now := s.pod(harness.Default()); now.UID != agent.UID {
					agent, own = now, s.token(harness.Default(), harness.Name, &now)
				}
				err := own(node, fmt.Sprintf(`{"metadata":{"labels":{"example.com/probe":"%d"}}}`, attempt))
				return err != nil && strings.Contains(err.Error(), "may set the label example.com/"+policy+","), nil
			})
			for _, try := range tries {
				t.Run(try.name, func(t *testing.T) {
					s := s.part(t)
					err := own(node, try.patch, try.subresources...)
					if try.refusal != "" {
						s.forbidden(err, try.refusal)
						return
					}
					s.NoError(err)
				})
			}
			s.awaitTypeChecked(harness.Name)
		})
	}
}
