package charttest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		twice     = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"False"}},
			{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"True"}}]`
		banana    = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"Banana"}}]`
		foreign   = `{"status":{"conditions":[{"type":"NodeVerified","status":"Unknown","reason":"Maintenance"}]}}`
		ours      = `[{"op":"test","path":"/status/conditions/4/type","value":"NodeVerified"},{"op":"replace","path":"/status/conditions/4/status","value":"True"}]`
		last      = `[{"op":"remove","path":"/spec/taints/2"}]`
		addFormer = `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/former","effect":"NoSchedule"}}]`
	)
	long := fmt.Sprintf(`[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"False","message":%q}}]`, strings.Repeat("x", 2049))
	// given is a node's third taint.
	given := func(key string) string {
		return fmt.Sprintf(`{"spec":{"taints":[{"key":"example.com/before","effect":"PreferNoSchedule"},{"key":%q,"effect":"NoSchedule"},{"key":%q,"effect":"NoSchedule"}]}}`, harness.Taint, key)
	}
	const ungated = `{"spec":{"taints":[{"key":"example.com/before","effect":"PreferNoSchedule"}]}}`
	status := []string{"status"}
	type try struct {
		name, patch  string
		subresources []string
		refusal      string // "" where it passes
		given        string // what an administrator changes before
	}
	onlyOurs := who + "add, change, remove or move no taint but node-ready/unverified, node-ready/failed, example.com/former"
	noTaint, onlyFailed := who+"add or change no taint", who+"add or change no taint but node-ready/failed:NoSchedule beside node-ready/unverified"
	onlyOnce := who + "set the condition NodeVerified once, to True, False or Unknown, with at most 2048 characters"
	onlyCondition := who + "change no condition but NodeVerified"
	for policy, tries := range map[string][]try{
		"keep": {
			{name: "the failed taint", patch: addFailed, refusal: noTaint},
			{name: "the condition", patch: condition, subresources: status, refusal: `cannot patch resource "nodes/status"`},
			{name: "a former taint", patch: addFormer, refusal: noTaint},
			{name: "the failed taint off", given: given("node-ready/failed"), patch: last},
			{name: "a former taint off", given: given("example.com/former"), patch: last},
			{name: "a foreign taint off", given: given("example.com/foreign"), patch: last, refusal: onlyOurs},
		},
		"taint": {
			{name: "another taint", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoSchedule"}}]`, refusal: onlyOurs},
			{name: "the failed taint with more effect", patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","effect":"NoExecute"}}]`, refusal: onlyFailed},
			{name: "the failed taint in place of another", patch: `[{"op":"replace","path":"/spec/taints/0/key","value":"node-ready/failed"}]`, refusal: onlyOurs},
			{name: "the startup taint with more effect", patch: `[{"op":"replace","path":"/spec/taints/1/effect","value":"NoExecute"}]`, refusal: onlyFailed},
			{name: "the condition", patch: condition, subresources: status, refusal: `cannot patch resource "nodes/status"`},
			{name: "the failed taint", patch: addFailed},
			{name: "another value of it", patch: `[{"op":"replace","path":"/spec/taints/2/value","value":"api"}]`},
			{name: "both off", patch: `[{"op":"remove","path":"/spec/taints/2"},{"op":"remove","path":"/spec/taints/1"}]`},
			{name: "a former taint", patch: addFormer, refusal: onlyFailed},
			{name: "a former taint off", given: given("example.com/former"), patch: last},
			{name: "the failed taint on a node without the startup taint", given: ungated, patch: addFailed, refusal: onlyFailed},
			{name: "the failed taint in place of the startup taint", given: given("example.com/foreign"),
				patch: `[{"op":"replace","path":"/spec/taints/1/key","value":"node-ready/failed"}]`, refusal: onlyFailed},
		},
		"condition": {
			{name: "the failed taint", patch: addFailed, refusal: noTaint},
			{name: "kubelet's condition", patch: kubelets, subresources: status, refusal: onlyCondition},
			{name: "the condition in place of all others", patch: others, subresources: status, refusal: onlyCondition},
			{name: "capacity", patch: capacity, subresources: status, refusal: who + "change no field of a node's status but conditions"},
			{name: "a foreign label by way of the status", patch: `{"metadata":{"labels":{"example.com/label":"y"}}}`, subresources: status, refusal: who + "change no label of a node but example.com/condition"},
			{name: "a foreign annotation by way of the status", patch: `{"metadata":{"annotations":{"example.com/other":"x"}}}`, subresources: status, refusal: who + "change no annotation of a node but node-ready/verification"},
			{name: "its record by way of the status", patch: fmt.Sprintf(`{"metadata":{"annotations":{%q:"{\"removed\":[]}"}}}`, harness.Annotation), subresources: status},
			{name: "the condition twice", patch: twice, subresources: status, refusal: onlyOnce},
			{name: "another status", patch: banana, subresources: status, refusal: onlyOnce},
			{name: "a long message", patch: long, subresources: status, refusal: onlyOnce},
			{name: "the condition", patch: condition, subresources: status},
			{name: "a field of the condition that another account has written", given: foreign, patch: ours, subresources: status},
			{name: "the failed taint off", given: given("node-ready/failed"), patch: last},
		},
	} {
		t.Run(policy, func(t *testing.T) {
			s := start(t)
			s.Deploy(stuck, "config.initialTimeout=1h", "config.onTimeout="+policy, "config.verifiedLabel=example.com/"+policy, "config.alsoRemoveTaints={example.com/former}")
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
				return err != nil && strings.Contains(err.Error(), "may change no label of a node but example.com/"+policy+";"), nil
			})
			for _, try := range tries {
				t.Run(try.name, func(t *testing.T) {
					s := s.part(t)
					if try.given != "" {
						_, err := s.Cluster.Kube.CoreV1().Nodes().Patch(s.Ctx, node, types.StrategicMergePatchType, []byte(try.given),
							metav1.PatchOptions{FieldManager: "administrator"}, try.subresources...)
						s.NoError(err)
					}
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
