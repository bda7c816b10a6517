package charttest

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// owned is a Node without a kubelet, whose metadata.managedFields these tests change.
const owned = "e2e-managed-fields"

// owners makes the Node with the startup taint, an applier, and so many clients that update it; all of them within a second or two.
func (s *suite) owners(updaters int) {
	s.Helper()
	deleteNode := func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "node", owned, "--ignore-not-found")
		return err
	}
	s.NoError(deleteNode(s.Ctx))
	s.Undo(deleteNode)
	nodes := s.Kube.CoreV1().Nodes()
	_, err := nodes.Create(s.Ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: owned, Labels: map[string]string{corev1.LabelOSStable: "windows"}}, // not one for the DaemonSet
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{startup}},
	}, metav1.CreateOptions{FieldManager: "creator"})
	s.NoError(err)
	apply := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{"example.com/feature":"x"}}}`, owned)
	_, err = nodes.Patch(s.Ctx, owned, types.ApplyPatchType, []byte(apply), metav1.PatchOptions{FieldManager: "applier"})
	s.NoError(err)
	kubelets := `{"status":{"conditions":[{"type":"Ready","status":"False"},{"type":"NodeVerified","status":"Unknown"}]}}`
	s.NoError(s.patches(s.Kube, "kubelet")(owned, kubelets, "status"))
	for i := range updaters {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"node-ready/verified":"%d"},"annotations":{"example.com/note-%d":"x"}}}`, i, i)
		s.NoError(s.patches(s.Kube, fmt.Sprintf("updater-%d", i))(owned, patch))
	}
}

// accounts applies what the chart renders for accounts and their rights. It returns the agent's patches, whose token is bound
// to a pod on the Node, and the controller's patches.
func (s *suite) accounts() (agent, controller patchAs) {
	s.Helper()
	manifests, err := s.Render(s.Ctx, "config.onTimeout=condition", "controller.enabled=true")
	s.NoError(err)
	for _, kind := range []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		s.apply(only(manifests, kind))
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: owned, Namespace: harness.Namespace}, Spec: corev1.PodSpec{
		ServiceAccountName: harness.Name, NodeName: owned, Containers: []corev1.Container{{Name: "c", Image: harness.Image}},
	}}
	deletePod := func(ctx context.Context) error {
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "pod", "-n", harness.Namespace, owned, "--ignore-not-found", "--grace-period=0", "--force")
		return err
	}
	s.NoError(deletePod(s.Ctx))
	s.Undo(deletePod)
	pod, err = s.Kube.CoreV1().Pods(harness.Namespace).Create(s.Ctx, pod, metav1.CreateOptions{})
	s.NoError(err)
	agent = s.token(harness.Default(), harness.Name, pod)
	controller = s.patches(s.client(harness.Default(), harness.Controller, nil), harness.Controller)
	for _, own := range []patchAs{agent, controller} { // A new policy takes effect when the API server has read it.
		attempt := 0
		s.Until(func() (bool, error) {
			attempt++
			err := own(owned, fmt.Sprintf(`{"metadata":{"labels":{"example.com/probe":"%d"}}}`, attempt))
			return err != nil && strings.Contains(err.Error(), " may "), nil
		})
	}
	return agent, controller
}

// An account of ours could otherwise fill etcd, or give a client that applies a field of another, which its next apply would remove.
func TestManagedFieldsOfOthers(t *testing.T) {
	s := &suite{harness.Start(t)}
	s.owners(4)
	agent, controller := s.accounts()
	huge := strings.Repeat("x", 100_000)
	type entries = []metav1.ManagedFieldsEntry
	entry := func(manager string, operation metav1.ManagedFieldsOperationType, subresource, version, fields string) metav1.ManagedFieldsEntry {
		now := metav1.Now()
		return metav1.ManagedFieldsEntry{Manager: manager, Operation: operation, Subresource: subresource, APIVersion: version, Time: &now,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields)}
	}
	managed := func(all entries) string {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"managedFields": all}})
		s.NoError(err)
		return string(text)
	}
	adds := func(more ...metav1.ManagedFieldsEntry) func(entries) entries {
		return func(now entries) entries { return append(now, more...) }
	}
	find := func(now entries, manager string) int {
		at := slices.IndexFunc(now, func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager == manager })
		s.NotEqual(-1, at, "no client %s", manager)
		return at
	}
	gives := func(manager, fields string) func(entries) entries {
		return func(now entries) entries {
			now[find(now, manager)].FieldsV1 = metav1.NewFieldsV1(fields)
			return now
		}
	}
	const apply, update = metav1.ManagedFieldsOperationApply, metav1.ManagedFieldsOperationUpdate
	few := map[string]func(entries) entries{
		"a huge field in a new applier":      adds(entry("new", apply, "", "v1", `{"f:`+huge+`":{}}`)),
		"a huge field in a new updater":      adds(entry("new", update, "", "v1", `{"f:`+huge+`":{}}`)),
		"a new applier without a field":      adds(entry("new", apply, "", "v1", `{}`)),
		"a new updater without a field":      adds(entry("new", update, "", "v1", `{}`)),
		"a new applier of a label":           adds(entry("new", apply, "", "v1", `{"f:metadata":{"f:labels":{"f:kubernetes.io/os":{}}}}`)),
		"an applier's huge field":            gives("applier", `{"f:metadata":{"f:labels":{"f:example.com/feature":{}}},"f:`+huge+`":{}}`),
		"an applier's whole metadata":        gives("applier", `{"f:metadata":{"f:labels":{"f:example.com/feature":{}}},"f:spec":{}}`),
		"an applier's map of labels":         gives("applier", `{"f:metadata":{"f:labels":{".":{},"f:example.com/feature":{}}}}`),
		"an applier's condition of ours":     adds(entry("applier", apply, "status", "v1", `{"f:status":{"f:conditions":{"k:{\"type\":\"NodeVerified\"}":{"f:type":{}}}}}`)),
		"a huge leaf of an updater":          gives("kubelet", `{"f:status":{"f:conditions":{".":{},"k:{\"type\":\"Ready\"}":{"f:`+huge+`":{}}}}}`),
		"an early bucket of updaters":        adds(entry("ancient-changes", update, "", "v1", `{"f:metadata":{"f:labels":{"f:kubernetes.io/os":{}}}}`)),
		"an updater dropped":                 func(now entries) entries { return slices.Delete(now, find(now, "kubelet"), 1+find(now, "kubelet")) },
		"all of them dropped":                func(entries) entries { return entries{{}} },
		"an applier that becomes an updater": func(now entries) entries { now[find(now, "applier")].Operation = update; return now },
	}
	bucket := `{"f:metadata":{"f:labels":{%s}}}`
	many := map[string]func(entries) entries{
		"a huge field of the bucket":       gives("ancient-changes", `{"f:`+huge+`":{}}`),
		"a huge label of the bucket":       gives("ancient-changes", fmt.Sprintf(bucket, `"f:`+huge+`":{}`)),
		"a label that no updater had":      gives("ancient-changes", fmt.Sprintf(bucket, `"f:example.com/feature":{}`)),
		"a huge leaf of the bucket":        gives("ancient-changes", `{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{"f:`+huge+`":{}}}}}`),
		"a deep leaf of the bucket":        gives("ancient-changes", `{"f:metadata":{"f:labels":{"f:kubernetes.io/os":{"f:x":{"f:`+huge+`":{}}}}}}`),
		"a second bucket":                  adds(entry("ancient-changes", update, "x", "v1", fmt.Sprintf(bucket, `"f:kubernetes.io/os":{}`))),
		"a bucket that applies":            adds(entry("ancient-changes", apply, "", "v1", fmt.Sprintf(bucket, `"f:kubernetes.io/os":{}`))),
		"a new applier beside many others": few["a huge field in a new applier"],
		"an applier's fields, beside many": gives("applier", `{"f:metadata":{"f:labels":{".":{},"f:example.com/feature":{}}}}`),
	}
	for who, own := range map[string]patchAs{harness.Name: agent, harness.Controller: controller} {
		try := func(t *testing.T, room int, tries map[string]func(entries) entries) {
			for name, change := range tries {
				t.Run(name, func(t *testing.T) {
					before := s.Node(owned).ManagedFields
					err := own(owned, managed(change(slices.Clone(before))))
					s := s.part(t)
					if err == nil { // The API server has taken from it what it knows: an atomic list has no fields, and so on.
						s.LessOrEqual(len(managed(s.Node(owned).ManagedFields)), len(managed(before))+room, "the patch was accepted")
						return
					}
					s.forbidden(err, "kube-system/"+who+" may not change what other clients own in a node's managedFields")
				})
			}
		}
		t.Run(who, func(t *testing.T) {
			s.owners(4)
			try(t, 0, few)
			t.Run("a huge field of its own", func(t *testing.T) {
				for _, fields := range []string{`{"f:%s":{}}`, `{"f:spec":{"f:taints":{"f:%s":{}}}}`, `{"f:metadata":{"f:labels":{"f:%s":{}}}}`,
					`{"f:status":{"f:conditions":{"k:{\"type\":\"NodeVerified\"}":{"f:%s":{}}}}}`} {
					try(t, 300, map[string]func(entries) entries{fields: adds(entry(who, update, "", "v1", fmt.Sprintf(fields, huge)))})
				}
				try(t, 300, map[string]func(entries) entries{
					"in another version":     adds(entry(who, update, "", huge, `{"f:spec":{"f:taints":{}}}`)),
					"in another subresource": adds(entry(who, update, "x", "v1", `{"f:spec":{"f:taints":{}}}`)),
					"by apply":               adds(entry(who, apply, "", "v1", `{"f:spec":{"f:taints":{}}}`)),
				})
			})
			s.owners(12)
			try(t, 0, many)
		})
	}
}

// However many clients a node has, and within which second they have changed it.
func TestOwnPatchesPassAmongOthersFields(t *testing.T) {
	s := &suite{harness.Start(t)}
	s.owners(0)
	agent, controller := s.accounts()
	const (
		failing   = `[{"op":"test","path":"/status/conditions/1/type","value":"NodeVerified"},{"op":"replace","path":"/status/conditions/1/message","value":"m"}]`
		withdrawn = `[{"op":"remove","path":"/status/conditions/1"}]`
		condition = `[{"op":"add","path":"/status/conditions/-","value":{"type":"NodeVerified","status":"True","reason":"Verified","message":"m"}}]`
		failed    = `{"spec":{"taints":[{"key":"node-ready/unverified","effect":"NoSchedule"},{"key":"node-ready/failed","effect":"NoSchedule"}]}}`
	)
	for _, updaters := range []int{0, 1, 6, 7, 8, 9, 10, 11, 15} {
		t.Run(fmt.Sprintf("%d updaters", updaters), func(t *testing.T) {
			s := s.part(t)
			s.owners(updaters)
			s.NoError(agent(owned, failing, "status"))
			s.NoError(s.patches(s.Kube, "administrator")(owned, failed))
			s.NoError(controller(owned, `[{"op":"remove","path":"/spec/taints/1"}]`))
			s.NoError(controller(owned, withdrawn, "status"))
			s.NoError(agent(owned, releasePatch(0, "node-ready~1verified")))
			s.NoError(agent(owned, condition, "status"))
			s.Equal("x", s.Node(owned).Labels["example.com/feature"])
		})
	}
	t.Run("an applier of an empty map that is gone", func(t *testing.T) {
		s := s.part(t)
		s.owners(0)
		s.NoError(s.patches(s.Kube, "administrator")(owned, `{"metadata":{"labels":null}}`))
		apply := fmt.Sprintf(`{"apiVersion":"v1","kind":"Node","metadata":{"name":%q,"labels":{}}}`, owned)
		_, err := s.Kube.CoreV1().Nodes().Patch(s.Ctx, owned, types.ApplyPatchType, []byte(apply), metav1.PatchOptions{FieldManager: "applier"})
		s.NoError(err)
		s.NoError(agent(owned, `{"metadata":{"labels":{"node-ready/verified":"true"}}}`))
	})
}
