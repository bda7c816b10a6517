package charttest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	// What the controller sends to re-taint a node, and to remove the taint.
	retaint = `{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","value":"kube-node-ready","effect":"NoSchedule"}}`
	removal = `[{"op":"test","path":"/spec/taints/2/key","value":"node-ready/failed"},{"op":"remove","path":"/spec/taints/2"}]`
	foreign = `{"key":"example.com/first","effect":"PreferNoSchedule"},{"key":"example.com/second","effect":"NoSchedule"}`
	failed  = foreign + `,{"key":"node-ready/failed","value":"kube-node-ready","effect":"NoSchedule"}`

	controlPlane = "node-role.kubernetes.io/control-plane"
	master       = "node-role.kubernetes.io/master"
	etcd         = "node-role.kubernetes.io/etcd" // alone: a server of k3s or RKE2 without the control plane
)

// controllerTry is a patch of the controller's account.
type controllerTry struct {
	labels  map[string]any // beside the verified label; nil: none
	taints  string         // "": foreign
	patch   string
	refusal string // "" where it passes
}

// controller applies what the chart renders for the accounts and their rights, without any pod, and returns the controller's patches
// once the API server has read a policy whose message about taints contains this text.
func (s *suite) controller(message string, values ...string) patchAs {
	s.T.Helper()
	manifests, err := s.Cluster.Render(s.Ctx, append([]string{"controller.enabled=true"}, values...)...)
	s.NoError(err)
	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		s.apply(only(manifests, kind))
	}
	const account = harness.Name + "-controller"
	own := s.patches(s.client(harness.Default(), account, nil), account)
	s.gives(controllerTry{})
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Patch(ctx, node, fmt.Sprintf(`{"metadata":{"labels":{"example.com/label":null,%q:null,%q:null,%q:null}}}`, controlPlane, master, etcd))
	})
	// Each attempt has a key of its own: where one passes before the policy is read, the same taint again would change nothing.
	attempt := 0
	s.Until(func() (bool, error) {
		attempt++
		err := own(node, fmt.Sprintf(`[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/probe-%d","effect":"PreferNoSchedule"}}]`, attempt))
		return err != nil && strings.Contains(err.Error(), message), nil
	})
	return own
}

// gives makes the node what it is before a try.
func (s *suite) gives(try controllerTry) {
	s.T.Helper()
	labels := map[string]any{harness.Label: "true", "example.com/label": "x", controlPlane: nil, master: nil, etcd: nil}
	maps.Copy(labels, try.labels)
	text, err := json.Marshal(labels)
	s.NoError(err)
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":%s},"spec":{"unschedulable":null,"taints":[%s]}}`, text, cmp.Or(try.taints, foreign)))
}

// tries asserts of each patch that it passes or is refused.
func (s *suite) tries(own patchAs, tries map[string]controllerTry) {
	for name, try := range tries {
		s.T.Run(name, func(t *testing.T) {
			s := s.part(t)
			s.gives(try)
			err := own(node, try.patch)
			if try.refusal != "" {
				s.forbidden(err, try.refusal)
				return
			}
			s.NoError(err)
		})
	}
}

// With re-taint the controller may re-taint a verified node with its own taint, and remove the failed taint of any node. It may change nothing else.
func TestControllerMayRetaintVerifiedNodesOnly(t *testing.T) {
	s := start(t)
	const (
		who     = "kube-system/kube-node-ready-controller may "
		noTaint = who + `add or change no taint but node-ready/failed=kube-node-ready:NoSchedule where node-ready/verified is "true", without ` +
			"node-ready/unverified, and not on a control plane or etcd server"
		onlyTaints = who + "add, change, remove or move no taint but node-ready/failed"
		noLabel    = who + "change no label of a node"
		startup    = foreign + `,{"key":"node-ready/unverified","value":"true","effect":"NoSchedule"}`
	)
	adding := func(value, effect string) string {
		return fmt.Sprintf(`[{"op":"add","path":"/spec/taints/-","value":{"key":"node-ready/failed","value":%q,"effect":%q}}]`, value, effect)
	}
	own := s.controller("add, change, remove or move no taint but node-ready/failed", "config.recheckInterval=1m", "controller.retaint.enabled=true")
	s.tries(own, map[string]controllerTry{
		"a verified node":                     {patch: "[" + retaint + "]"},
		"a verified node without taints":      {taints: " ", patch: `[{"op":"add","path":"/spec/taints","value":[{"key":"node-ready/failed","value":"kube-node-ready","effect":"NoSchedule"}]}]`},
		"another value":                       {patch: adding("dns", "NoSchedule"), refusal: noTaint},
		"another release's value":             {patch: adding("second-kube-node-ready", "NoSchedule"), refusal: noTaint},
		"no value":                            {patch: adding("", "NoSchedule"), refusal: noTaint},
		"NoExecute":                           {patch: adding("kube-node-ready", "NoExecute"), refusal: noTaint},
		"PreferNoSchedule":                    {patch: adding("kube-node-ready", "PreferNoSchedule"), refusal: noTaint},
		"another key":                         {patch: strings.ReplaceAll("["+retaint+"]", "node-ready/failed", "node-ready/other"), refusal: onlyTaints},
		"the startup taint":                   {patch: strings.ReplaceAll("["+retaint+"]", "node-ready/failed", "node-ready/unverified"), refusal: onlyTaints},
		"a node without the label":            {labels: map[string]any{harness.Label: nil}, patch: "[" + retaint + "]", refusal: noTaint},
		"a node with another value":           {labels: map[string]any{harness.Label: "false"}, patch: "[" + retaint + "]", refusal: noTaint},
		"a node with the startup taint":       {taints: startup, patch: "[" + retaint + "]", refusal: noTaint},
		"in place of the startup taint":       {taints: startup, patch: `[{"op":"remove","path":"/spec/taints/2"},` + retaint + "]", refusal: onlyTaints},
		"a control plane":                     {labels: map[string]any{controlPlane: ""}, patch: "[" + retaint + "]", refusal: noTaint},
		"a master":                            {labels: map[string]any{master: ""}, patch: "[" + retaint + "]", refusal: noTaint},
		"an etcd server":                      {labels: map[string]any{etcd: "true"}, patch: "[" + retaint + "]", refusal: noTaint},
		"a control plane by its taint":        {taints: foreign + `,{"key":"` + controlPlane + `","effect":"PreferNoSchedule"}`, patch: "[" + retaint + "]", refusal: noTaint},
		"a master by its taint":               {taints: foreign + `,{"key":"` + master + `","effect":"PreferNoSchedule"}`, patch: "[" + retaint + "]", refusal: noTaint},
		"a foreign taint too":                 {patch: `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoSchedule"}},` + retaint + "]", refusal: onlyTaints},
		"a foreign taint off":                 {patch: `[{"op":"remove","path":"/spec/taints/0"},` + retaint + "]", refusal: onlyTaints},
		"a foreign taint's effect":            {patch: `[{"op":"replace","path":"/spec/taints/0/effect","value":"NoExecute"},` + retaint + "]", refusal: onlyTaints},
		"the foreign taints' order":           {patch: `[{"op":"move","from":"/spec/taints/0","path":"/spec/taints/1"},` + retaint + "]", refusal: onlyTaints},
		"a label too":                         {patch: `[{"op":"add","path":"/metadata/labels/example.com~1label","value":"y"},` + retaint + "]", refusal: noLabel},
		"the verified label in the same step": {labels: map[string]any{harness.Label: nil}, patch: `[{"op":"add","path":"/metadata/labels/node-ready~1verified","value":"true"},` + retaint + "]", refusal: noLabel},
		"the verified label off":              {patch: `[{"op":"remove","path":"/metadata/labels/node-ready~1verified"},` + retaint + "]", refusal: noLabel},
		"an annotation too":                   {patch: `{"metadata":{"annotations":{"node-ready/verification":"x"}}}`, refusal: who + "change no annotation of a node"},
		"a cordon too":                        {patch: `[{"op":"add","path":"/spec/unschedulable","value":true},` + retaint + "]", refusal: who + "change no field of a node's spec but taints"},
		"a finalizer":                         {patch: `{"metadata":{"finalizers":["example.com/stay"]}}`, refusal: who + "not change a node's ownerReferences, finalizers"},
		"the failed taint off":                {taints: failed, patch: removal},
		"the startup taint off":               {taints: startup, patch: `[{"op":"remove","path":"/spec/taints/2"}]`, refusal: onlyTaints},
		"all taints off":                      {taints: failed, patch: `[{"op":"remove","path":"/spec/taints"}]`, refusal: onlyTaints},
		"the failed taint off, and a label":   {taints: failed, patch: `[{"op":"remove","path":"/metadata/labels/node-ready~1verified"},` + removal[1:], refusal: noLabel},
	})

	t.Run("the API server warns about none of its expressions", func(t *testing.T) { s.part(t).awaitTypeChecked(harness.Name + "-controller") })
}

// Without re-taint the controller may still remove the failed taint that it has added before.
func TestControllerMayRemoveTheTaintWithoutRetaint(t *testing.T) {
	s := start(t)
	const noTaint, onlyOff = "kube-system/kube-node-ready-controller may add or change no taint", "kube-system/kube-node-ready-controller may add, change, remove or move no taint but node-ready/failed"
	own := s.controller(onlyOff)
	s.tries(own, map[string]controllerTry{
		"the failed taint":                       {patch: "[" + retaint + "]", refusal: noTaint},
		"the failed taint off":                   {taints: failed, patch: removal},
		"the failed taint off a node unverified": {labels: map[string]any{harness.Label: nil}, taints: failed, patch: removal},
		"a foreign taint off":                    {taints: failed, patch: `[{"op":"remove","path":"/spec/taints/1"}]`, refusal: onlyOff},
		"the startup taint off": {taints: foreign + `,{"key":"node-ready/unverified","effect":"NoSchedule"}`,
			patch: `[{"op":"remove","path":"/spec/taints/2"}]`, refusal: onlyOff},
	})
	s.awaitTypeChecked(harness.Name + "-controller")
}

// What helm uninstall runs is accepted where the Pod Security Standard `restricted` is enforced, and its account may list and patch
// nodes only.
func TestUninstallJobMayRemoveTheTaintOnly(t *testing.T) {
	s := start(t)
	const namespace = "e2e-uninstall"
	s.apply(`
apiVersion: v1
kind: Namespace
metadata: {name: e2e-uninstall, labels: {pod-security.kubernetes.io/enforce: restricted, pod-security.kubernetes.io/warn: restricted}}
`)
	hook, err := s.Cluster.Template(s.Ctx, "", harness.Release{Name: harness.Name, Namespace: namespace}, append(
		harness.Set("config.recheckInterval=1m", "controller.enabled=true", "controller.retaint.enabled=true"),
		"--show-only", "templates/controller/uninstall.yaml")...)
	s.NoError(err)
	s.Kubectl(hook, "apply", "--server-side", "--dry-run=server", "--warnings-as-errors", "-f", "-")

	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding"} {
		s.apply(only(hook, kind))
	}
	client := s.client(harness.Release{Namespace: namespace}, harness.Name+"-uninstall", nil)
	s.Patch(node, `{"spec":{"taints":[`+failed+`]}}`)
	s.Until(func() (bool, error) {
		_, err := client.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	s.NoError(s.patches(client, "kube-node-ready-controller")(node, removal))
	s.False(harness.HasTaint(s.Node(node), "node-ready/failed"))
	_, err = client.CoreV1().Pods(namespace).List(s.Ctx, metav1.ListOptions{})
	s.ErrorContains(err, "cannot list resource")
	s.ErrorContains(client.CoreV1().Nodes().Delete(s.Ctx, node, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}), "cannot delete resource")
}

// The controller may have a node verified again only if the annotation names another boot than the one that the node runs in.
func TestControllerMayRemoveTheLabelOfARebootedNodeOnly(t *testing.T) {
	for mode, refusal := range map[string]string{
		"daemonset":  "may remove the label node-ready/verified only where the annotation names another boot, and set no label",
		"controller": `may remove the label node-ready/verified only where the annotation names another boot, and set the label node-ready/verified to "true" only`,
	} {
		t.Run(mode, func(t *testing.T) {
			s := start(t)
			const label = `{"op":"remove","path":"/metadata/labels/node-ready~1verified"}`
			records := func(boot string) {
				s.Patch(node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, harness.Annotation, `{"removed":[]`+boot+`}`))
			}
			s.Undo(func(ctx context.Context) error {
				return s.Cluster.Patch(ctx, node, fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, harness.Annotation))
			})
			own := s.controller("add, change, remove or move no taint", "controller.verifyAfterReboot=true", "deploymentMode="+mode)
			records(`,"bootID":"another"`)
			s.Until(func() (bool, error) { // the policy may be an earlier test's for a moment
				s.gives(controllerTry{})
				return own(node, "["+label+"]") == nil, nil
			})
			s.tries(own, map[string]controllerTry{
				"another label": {patch: `[{"op":"remove","path":"/metadata/labels/example.com~1label"}]`, refusal: "label"},
				"both":          {patch: `[{"op":"remove","path":"/metadata/labels/example.com~1label"},` + label + "]", refusal: "label"},
			})
			boot := s.Node(node).Status.NodeInfo.BootID
			for name, record := range map[string]string{"the same boot": fmt.Sprintf(`,"bootID":%q`, boot), "no boot": ""} {
				records(record)
				s.tries(own, map[string]controllerTry{name: {patch: "[" + label + "]", refusal: refusal}})
			}
			// Nor may it write another boot itself, to remove the label afterwards.
			writes := func(record string) string {
				return fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/node-ready~1verification","value":%q}]`, record)
			}
			refusal, ofOwn := "may change no annotation of a node", "may change no annotation of a node"
			if mode == "controller" {
				refusal, ofOwn = "with no bootID but the node's", ""
			}
			s.tries(own, map[string]controllerTry{
				"writes another boot":       {patch: writes(`{"bootID":"another"}`), refusal: refusal},
				"writes another boot first": {patch: writes(fmt.Sprintf(`{"bootID":"another","x":{"bootID":%q}}`, boot)), refusal: refusal},
				"writes the node's boot":    {patch: writes(fmt.Sprintf(`{"removed":["x"],"bootID":%q}`, boot)), refusal: ofOwn},
				"writes no boot":            {patch: writes(`{"removed":["y"]}`), refusal: ofOwn},
			})
			s.awaitTypeChecked(harness.Name + "-controller")
		})
	}
}
