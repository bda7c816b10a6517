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

// client makes a client with a token for the account of a release; bound to a pod, if one is given.
func (s *suite) client(release harness.Release, account string, bound *corev1.Pod) *kubernetes.Clientset {
	s.T.Helper()
	token, err := s.Cluster.Token(s.Ctx, release.Namespace, account, bound)
	s.NoError(err)
	config, err := clientcmd.BuildConfigFromFlags("", s.Cluster.Kubeconfig())
	s.NoError(err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	s.NoError(err)
	return client
}

// token patches nodes as the agent of a release does.
func (s *suite) token(release harness.Release, account string, bound *corev1.Pod) patchAs {
	s.T.Helper()
	return s.patches(s.client(release, account, bound), harness.Name)
}

// patches patches nodes with a client, which the API server notes as the manager of what it changes.
func (s *suite) patches(client kubernetes.Interface, manager string) patchAs {
	return func(name, patch string, subresources ...string) error {
		kind := types.MergePatchType
		if patch[0] == '[' {
			kind = types.JSONPatchType
		}
		_, err := client.CoreV1().Nodes().Patch(s.Ctx, name, kind, []byte(patch), metav1.PatchOptions{FieldManager: manager}, subresources...)
		return err
	}
}

// forbidden asserts that a request is refused with the status 403 and a message that says why.
func (s *suite) forbidden(err error, why string) {
	s.T.Helper()
	s.Error(err)
	s.Equal(metav1.StatusReasonForbidden, apierrors.ReasonForError(err), "%v", err)
	s.ErrorContains(err, why)
	s.T.Log(err)
}

func TestAgentMayReleaseItsOwnNodeAndNothingElse(t *testing.T) {
	s := start(t)
	s.Deploy(stuck)
	other, err := s.Cluster.RenderAs(s.Ctx, second, secondValues...)
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
		const onlyTaint, noTaint = "add, change, remove or move no taint but node-ready/unverified, node-ready/failed", "add or change no taint"
		onlyLabel, onlyAnnotation := who+"change no label of a node but node-ready/verified", who+"change no annotation of a node but node-ready/verification"
		links := who + "not change a node's ownerReferences, finalizers and generateName"
		for name, try := range map[string]struct {
			as              patchAs
			node, patch, by string
		}{
			"another node":               {own, "elsewhere", harmless, who + `change only the node that its token was issued for: the token names "node1", the request "elsewhere"`},
			"an unbound token":           {unbound, node, harmless, who + `change only the node that its token was issued for: the token names ""`},
			"another taint":              {own, node, `[{"op":"remove","path":"/spec/taints/0"}]`, who + onlyTaint},
			"the whole taint list":       {own, node, `[{"op":"remove","path":"/spec/taints"}]`, who + onlyTaint},
			"a new taint":                {own, node, `[{"op":"add","path":"/spec/taints/-","value":{"key":"example.com/new","effect":"NoExecute"}}]`, who + onlyTaint},
			"its taint with more effect": {own, node, `[{"op":"replace","path":"/spec/taints/1/effect","value":"NoExecute"}]`, who + noTaint},
			"the taints' order":          {own, node, `[{"op":"move","from":"/spec/taints/0","path":"/spec/taints/2"}]`, who + onlyTaint},
			"the other release's taint":  {own, node, `[{"op":"remove","path":"/spec/taints/2"}]`, who + onlyTaint},
			"cordoning":                  {own, node, `{"spec":{"unschedulable":true}}`, who + "change no field of a node's spec but taints"},
			"another label":              {own, node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, onlyLabel},
			"another label's value":      {own, node, `{"metadata":{"labels":{"example.com/label":"y"}}}`, onlyLabel},
			"removal of a foreign label": {own, node, `{"metadata":{"labels":{"example.com/label":null}}}`, onlyLabel},
			"all labels":                 {own, node, `[{"op":"replace","path":"/metadata/labels","value":{}}]`, onlyLabel},
			"another value of its label": {own, node, `{"metadata":{"labels":{"node-ready/verified":"x"}}}`, who + `set the label node-ready/verified to "true" only`},
			"another annotation":         {own, node, `{"metadata":{"annotations":{"example.com/other":"x"}}}`, onlyAnnotation},
			"removal of an annotation":   {own, node, `{"metadata":{"annotations":{"example.com/note":null}}}`, onlyAnnotation},
			"an owner":                   {own, node, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"no","uid":"no"}]}}`, links},
			"a finalizer":                {own, node, `{"metadata":{"finalizers":["example.com/stay"]}}`, links},
			"a generateName":             {own, node, `{"metadata":{"generateName":"x-"}}`, links},
			"a huge annotation":          {own, node, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, harness.Annotation, strings.Repeat("x", 16385)), who + "set the annotation node-ready/verification to at most 16384 characters, and not remove it"},
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
			s.forbidden(own(node, status, "status"), who+"change no field of a node's status")
		})
	})

	t.Run("two releases do not meet", func(t *testing.T) {
		s := s.part(t)
		otherPod := s.pod(second)
		otherRelease := s.token(second, "second-kube-node-ready", &otherPod)
		s.Until(func() (bool, error) { return otherRelease("elsewhere", harmless) != nil, nil })
		s.forbidden(otherRelease(node, `{"metadata":{"labels":{"node-ready/verified":"true"}}}`), "default/second-kube-node-ready may change no label of a node but second.example.com/good")
		s.NoError(otherRelease(node, releasePatch(2, "second.example.com~1good")))
	})

	t.Run("its own patch passes", func(t *testing.T) {
		s := s.part(t)
		s.NoError(s.Cluster.Patch(s.Ctx, node, fmt.Sprintf(`{"spec":{"taints":[
			{"key":"example.com/before","effect":"PreferNoSchedule"},{"key":%q,"effect":"NoSchedule"}]}}`, harness.Taint)))
		s.NoError(own(node, releasePatch(1, "node-ready~1verified")))
		now := s.Node(node)
		s.Equal([]corev1.Taint{{Key: "example.com/before", Effect: "PreferNoSchedule"}}, now.Spec.Taints)
		s.Equal("true", now.Labels[harness.Label])
		s.Equal("true", now.Labels["second.example.com/good"])
	})

	t.Run("the API server warns about none of its expressions", func(t *testing.T) {
		for _, name := range []string{harness.Name, harness.Name + "-events", "second-kube-node-ready"} {
			s.part(t).awaitTypeChecked(name)
		}
	})
}

func TestAgentMayWriteEventsAboutItsOwnNodeOnly(t *testing.T) {
	s := start(t)
	s.Deploy(stuck)
	s.Gate(node)
	agent := s.pod(harness.Default())
	own, unbound := s.client(harness.Default(), harness.Name, &agent), s.client(harness.Default(), harness.Name, nil)
	attempts := 0
	create := func(client kubernetes.Interface, change func(*corev1.Event)) error {
		attempts++
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.e2e-%d", node, attempts), Namespace: "default"},
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: node},
			Type:           corev1.EventTypeNormal, Reason: "EndToEndTest", Message: "m", FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
			Source:              corev1.EventSource{Component: "kube-node-ready", Host: node},
			ReportingController: "kube-node-ready", ReportingInstance: "kube-system/e2e",
		}
		change(event)
		_, err := client.CoreV1().Events("default").Create(s.Ctx, event, metav1.CreateOptions{})
		if err == nil {
			s.Undo(func(ctx context.Context) error {
				return s.Cluster.Kube.CoreV1().Events("default").Delete(ctx, event.Name, metav1.DeleteOptions{})
			})
		}
		return err
	}
	same := func(*corev1.Event) {}
	// A new policy takes effect when the API server has read it.
	s.Until(func() (bool, error) { return create(unbound, same) != nil, nil })

	const who = "kube-system/kube-node-ready may write Events "
	const aboutNode, component, small, plain = who + "only about its own node", who + "only as the component kube-node-ready", who + "with a message of at most 1024 characters", who + "only without series, labels"
	for name, try := range map[string]struct {
		change  func(*corev1.Event)
		refusal string
	}{
		"about another node": {func(e *corev1.Event) { e.InvolvedObject.Name, e.InvolvedObject.UID = "elsewhere", "elsewhere" }, aboutNode + `: this token is for node "node1"`},
		"about a pod":        {func(e *corev1.Event) { e.InvolvedObject.Kind, e.InvolvedObject.Namespace = "Pod", "default" }, aboutNode},
		"about another API":  {func(e *corev1.Event) { e.InvolvedObject.APIVersion = "example.com/v1" }, aboutNode},
		"related to a pod": {func(e *corev1.Event) {
			e.Related = &corev1.ObjectReference{Kind: "Pod", Name: "x", Namespace: "default"}
		}, aboutNode},
		"as kubelet":            {func(e *corev1.Event) { e.ReportingController = "kubelet" }, component},
		"with kubelet's source": {func(e *corev1.Event) { e.Source.Component = "kubelet" }, component},
		"with a long message":   {func(e *corev1.Event) { e.Message = strings.Repeat("x", 1025) }, small},
		"with a long reason":    {func(e *corev1.Event) { e.Reason = strings.Repeat("x", 257) }, small},
		"with a long action":    {func(e *corev1.Event) { e.Action = strings.Repeat("x", 257) }, small},
		"with a long instance":  {func(e *corev1.Event) { e.ReportingInstance = strings.Repeat("x", 257) }, small},
		"with a long host":      {func(e *corev1.Event) { e.Source.Host = strings.Repeat("x", 257) }, small},
		"with a long fieldPath": {func(e *corev1.Event) { e.InvolvedObject.FieldPath = strings.Repeat("x", 257) }, small},
		"with a series":         {func(e *corev1.Event) { e.Series = &corev1.EventSeries{Count: 2, LastObservedTime: metav1.NowMicro()} }, plain},
		"with an annotation":    {func(e *corev1.Event) { e.Annotations = map[string]string{"a": "b"} }, plain},
		"with a label":          {func(e *corev1.Event) { e.Labels = map[string]string{"a": "b"} }, plain},
	} {
		t.Run(name, func(t *testing.T) { s.part(t).forbidden(create(own, try.change), try.refusal) })
	}
	t.Run("with an unbound token", func(t *testing.T) { s.part(t).forbidden(create(unbound, same), aboutNode) })
	t.Run("its own", func(t *testing.T) {
		s := s.part(t)
		s.NoError(create(own, same))
		s.NoError(create(own, func(e *corev1.Event) { e.Message = strings.Repeat("x", 1024) }))
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
