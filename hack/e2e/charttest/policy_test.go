package charttest

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Both releases run an agent that never gets to its patch, so that its token is here to be tried.
const stuck = "config.dnsTestDomains={nowhere.invalid}"

var (
	second       = harness.Release{Name: "second", Namespace: "default"}
	secondValues = []string{stuck, "config.taintKey=second.example.com/new", "config.verifiedLabel=second.example.com/good"}
)

// patchAs sends a patch of a node with somebody's token.
type patchAs func(name, patch string, subresources ...string) error

// token makes a client with a token for the account of a release; bound to a pod, if one is given.
func (s *suite) token(release harness.Release, account string, bound *corev1.Pod) patchAs {
	s.Helper()
	token, err := s.Token(s.Ctx, release.Namespace, account, bound)
	s.NoError(err)
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	s.NoError(err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	s.NoError(err)
	return func(name, patch string, subresources ...string) error {
		kind := types.MergePatchType
		if patch[0] == '[' {
			kind = types.JSONPatchType
		}
		_, err := client.CoreV1().Nodes().Patch(s.Ctx, name, kind, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
}

// forbidden asserts that a request is refused with the status 403 and a message that says why.
func (s *suite) forbidden(err error, why string) {
	s.Helper()
	s.Error(err)
	s.Equal(metav1.StatusReasonForbidden, apierrors.ReasonForError(err), "%v", err)
	s.ErrorContains(err, why)
	s.Log(err)
}

func TestAgentMayReleaseItsOwnNodeAndNothingElse(t *testing.T) {
	s := start(t)
	s.Deploy(stuck)
	other, err := s.RenderAs(s.Ctx, second, secondValues...)
	s.NoError(err)
	s.apply(other)
	s.apply("apiVersion: v1\nkind: Node\nmetadata: {name: elsewhere}\n")

	// Between the effect taints of both, and what belongs to others.
	s.Patch(node, fmt.Sprintf(`{"metadata":{"labels":{%q:null,"example.com/label":"x"},"annotations":{%q:null,"example.com/note":"x"}},
		"spec":{"taints":[{"key":"example.com/before","effect":"PreferNoSchedule"},{"key":%q,"effect":"NoSchedule","value":"true"},
			{"key":"second.example.com/new","effect":"NoSchedule"}]}}`, harness.Label, harness.Annotation, harness.Taint))
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Patch(ctx, node,
			`{"metadata":{"labels":{"example.com/label":null,"second.example.com/good":null},"annotations":{"example.com/note":null}}}`)
	})

	agent := s.pod(harness.Default())
	own := s.token(harness.Default(), harness.Name, &agent)
	harmless := fmt.Sprintf(`{"metadata":{"annotations":{%q:"x"}}}`, harness.Annotation)
	// A new policy takes effect when the API server has read it.
	s.Until(func() (bool, error) { return own("elsewhere", harmless) != nil, nil })

	t.Run("refused", func(t *testing.T) {
		unbound := s.token(harness.Default(), harness.Name, nil)
		who := "kube-system/kube-node-ready may "
		onlyTaint := who + "take off the taint node-ready/unverified, and change no other taint"
		onlyLabel := who + "set the label node-ready/verified, and change no other label"
		onlyAnnotation := who + "set the annotation node-ready/verification, and change no other annotation"
		for name, try := range map[string]struct {
			as              patchAs
			node, patch, by string
		}{
			"another node":               {own, "elsewhere", harmless, who + `change only its own node: this token is for node "node1", the request for "elsewhere"`},
			"an unbound token":           {unbound, node, harmless, who + "change a node only with a token that is bound to a pod on it"},
			"another taint":              {own, node, `[{"op":"remove","path":"/spec/taints/0"}]`, onlyTaint},
			"the whole taint list":       {own, node, `[{"op":"remove","path":"/spec/taints"}]`, onlyTaint},
			"a new taint":                {own, node, `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoExecute"}}]`, onlyTaint},
			"its taint with more effect": {own, node, `[{"op":"replace","path":"/spec/taints/1/effect","value":"NoExecute"}]`, onlyTaint},
			"the taints' order":          {own, node, `[{"op":"move","from":"/spec/taints/0","path":"/spec/taints/2"}]`, onlyTaint},
			"the other release's taint":  {own, node, `[{"op":"remove","path":"/spec/taints/2"}]`, onlyTaint},
			"cordoning":                  {own, node, `{"spec":{"unschedulable":true}}`, who + "change nothing in a node's spec but its taints"},
			"another label":              {own, node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, onlyLabel},
			"another label's value":      {own, node, `{"metadata":{"labels":{"example.com/label":"y"}}}`, onlyLabel},
			"removal of a foreign label": {own, node, `{"metadata":{"labels":{"example.com/label":null}}}`, onlyLabel},
			"all labels":                 {own, node, `[{"op":"replace","path":"/metadata/labels","value":{}}]`, onlyLabel},
			"another value of its label": {own, node, `{"metadata":{"labels":{"node-ready/verified":"x"}}}`, who + `set the label node-ready/verified to "true" only`},
			"another annotation":         {own, node, `{"metadata":{"annotations":{"example.com/other":"x"}}}`, onlyAnnotation},
			"removal of an annotation":   {own, node, `{"metadata":{"annotations":{"example.com/note":null}}}`, onlyAnnotation},
			"an owner":                   {own, node, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"no","uid":"no"}]}}`, who + "not change a node's owners or finalizers"},
			"a finalizer":                {own, node, `{"metadata":{"finalizers":["example.com/stay"]}}`, who + "not change a node's owners or finalizers"},
		} {
			t.Run(name, func(t *testing.T) { s.part(t).forbidden(try.as(try.node, try.patch), try.by) })
		}
		t.Run("nodes status", func(t *testing.T) {
			s := s.part(t)
			status := `{"status":{"capacity":{"example.com/x":"1"}}}`
			s.forbidden(own(node, status, "status"), `cannot patch resource "nodes/status"`) // RBAC
			// And where somebody has granted it:
			s.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: e2e-status}
rules: [{apiGroups: [""], resources: [nodes/status], verbs: [patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-status}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: e2e-status}
subjects: [{kind: ServiceAccount, name: kube-node-ready, namespace: kube-system}]
`)
			s.Until(func() (bool, error) {
				err := own(node, status, "status")
				return err != nil && !rbac(err), nil
			})
			s.forbidden(own(node, status, "status"), who+"change the node itself, not nodes/status")
		})
	})

	t.Run("two releases do not meet", func(t *testing.T) {
		s := s.part(t)
		neighbour := s.pod(second)
		neighbours := s.token(second, "second-kube-node-ready", &neighbour)
		s.Until(func() (bool, error) { return neighbours("elsewhere", harmless) != nil, nil })
		s.forbidden(neighbours(node, `{"metadata":{"labels":{"node-ready/verified":"true"}}}`), "default/second-kube-node-ready may set the label second.example.com/good")
		s.NoError(neighbours(node, releasePatch(2, "second.example.com~1good")))
	})

	t.Run("its own patch passes", func(t *testing.T) {
		s := s.part(t)
		s.NoError(own(node, releasePatch(1, "node-ready~1verified")))
		now := s.Node(node)
		s.Equal([]corev1.Taint{{Key: "example.com/before", Effect: "PreferNoSchedule"}}, now.Spec.Taints)
		s.Equal("true", now.Labels[harness.Label])
		s.Equal("true", now.Labels["second.example.com/good"])
	})

	t.Run("the API server warns about none of its expressions", func(t *testing.T) {
		for _, name := range []string{harness.Name, "second-kube-node-ready"} {
			s.part(t).awaitTypeChecked(name)
		}
	})
}

// releasePatch is what the agent sends, with our keys escaped.
func releasePatch(index int, label string) string {
	key := fmt.Sprintf("/spec/taints/%d", index)
	return fmt.Sprintf(`[{"op":"test","path":"%s/effect","value":"NoSchedule"},{"op":"remove","path":%q},
		{"op":"add","path":"/metadata/labels/%s","value":"true"},{"op":"add","path":"/metadata/annotations/node-ready~1verification","value":"{}"}]`, key, key, label)
}

// rbac reports whether a refusal comes from the authorizer, before any policy is asked.
func rbac(err error) bool { return strings.Contains(err.Error(), "cannot patch resource") }
