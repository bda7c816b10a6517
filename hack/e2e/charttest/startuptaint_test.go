package charttest

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const startupTaintPolicy = harness.Name + "-startup-taint"

// startWithPolicy skips a test of startupTaint.add where the API server has no such policy: Kubernetes before 1.36.
func startWithPolicy(t *testing.T) *suite {
	t.Helper()
	if !(&suite{harness.Start(t)}).addsStartupTaint() {
		t.Skip("this Kubernetes serves no MutatingAdmissionPolicy v1")
	}
	return start(t)
}

// The chart refuses startupTaint.add where the API server has no such policy, and changes nothing.
func TestStartupTaintIsRefusedWhereItCannotWork(t *testing.T) {
	if (&suite{harness.Start(t)}).addsStartupTaint() {
		t.Skip("this Kubernetes serves MutatingAdmissionPolicy v1")
	}
	s := start(t)
	before := s.inventory()
	_, err := s.Cluster.Run(s.Ctx, "", s.Cluster.Tool("helm"), append([]string{"install", harness.Name, "chart", "--namespace", harness.Namespace},
		harness.Set("startupTaint.add=true")...)...)
	s.ErrorContains(err, "MutatingAdmissionPolicy")
	s.Equal(before, s.inventory())
}

// The startup taint comes onto the nodes on which the DaemonSet controller wants an agent, except those that have the label, the taint
// or a NodeClaim, and onto no other node.
func TestStartupTaintWhereAnAgentMayRun(t *testing.T) {
	s := startWithPolicy(t)
	for name, each := range map[string]struct {
		values string
		nodes  map[string]joining
		taint  corev1.Taint
	}{
		"default": {"", byDefault, startup},
		"own":     {ownRules, byOwnRules(), corev1.Taint{Key: harness.Taint, Effect: prefer}},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.part(t)
			s.addStartupTaint(each.values, each.taint, labels(map[string]string{"pool": "a", "gen": "7"}))
			s.deploysAgents(each.values)
			var gated []string
			for kind, node := range each.nodes {
				got, err := s.register(name+"-"+kind, false, labels(node.labels), taints(node.taints...))
				s.NoError(err, kind)
				// The API server adds it to every Node.
				added := slices.DeleteFunc(got.Spec.Taints, func(t corev1.Taint) bool {
					return slices.Contains(append(node.taints, taint(corev1.TaintNodeNotReady, noSchedule)), t)
				})
				if !node.gated {
					s.Empty(added, kind)
					continue
				}
				s.Equal([]corev1.Taint{each.taint}, added, kind)
				if kind != "cni" && kind != "cloud-provider" { // where the agent comes when these taints are gone
					gated = append(gated, got.Name)
				}
			}
			s.Until(func() (bool, error) {
				agents, err := s.Cluster.AgentPods(s.Ctx)
				gated = slices.DeleteFunc(gated, func(node string) bool {
					return slices.ContainsFunc(agents, func(pod corev1.Pod) bool { return isFor(pod, node) })
				})
				return len(gated) == 0, err
			}, "nodes with the startup taint and without an agent: %v", &gated)
		})
	}
}

// Whatever goes wrong in an expression: the node joins, without the taint.
func TestStartupTaintErrorsStopNoNode(t *testing.T) {
	s := startWithPolicy(t)
	s.addStartupTaint("", startup)
	const failing = `object.metadata.labels["absent"] == "x"`
	rendered := s.policy()
	broken := map[string]func(*policySpec){
		"evaluation of the patch": func(spec *policySpec) {
			spec.Mutations[0].JSONPatch.Expression = `[JSONPatch{op: "add", path: "/metadata/labels/x", value: object.metadata.labels["absent"]}]`
		},
		"application of the patch": func(spec *policySpec) {
			spec.Mutations[0].JSONPatch.Expression = `[JSONPatch{op: "add", path: "/metadata/absent/x", value: "x"}]`
		},
	}
	for i, condition := range rendered.MatchConditions {
		broken[condition.Name] = func(spec *policySpec) { spec.MatchConditions[i].Expression = failing }
	}
	for what, change := range broken {
		t.Run(what, func(t *testing.T) {
			s := s.part(t)
			s.changePolicy(rendered, change)
			s.awaitTaint(startup, false)
			s.changePolicy(rendered, func(*policySpec) {})
			s.awaitTaint(startup, true)
		})
	}
}

// Where no admission plugin has made a list of taints, the policy makes it. Its own first mutation removes the list here.
func TestStartupTaintIsTheFirstTaint(t *testing.T) {
	s := startWithPolicy(t)
	s.addStartupTaint("", startup)
	s.changePolicy(s.policy(), func(spec *policySpec) {
		spec.Mutations = append([]admissionv1.Mutation{{
			PatchType: admissionv1.PatchTypeJSONPatch,
			JSONPatch: &admissionv1.JSONPatch{Expression: `[JSONPatch{op: "remove", path: "/spec/taints"}]`},
		}}, spec.Mutations...)
	})
	var got *corev1.Node
	s.Until(func() (_ bool, err error) {
		got, err = s.register("first", true, taints(taint("example.com/removed", prefer)))
		return err == nil && !harness.HasTaint(got, "example.com/removed"), err
	})
	s.Contains(got.Spec.Taints, startup)
}

// A kubelet that is told nothing registers with the startup taint, in the same request; the agent releases its node.
func TestStartupTaintOfARealKubelet(t *testing.T) {
	s := startWithPolicy(t)
	const name = "node2"
	s.Deploy("startupTaint.add=true")
	s.awaitTaint(startup, true)
	seen, err := s.Cluster.Kube.CoreV1().Nodes().Watch(s.Ctx, metav1.SingleObject(metav1.ObjectMeta{Name: name}))
	s.NoError(err)
	defer seen.Stop()
	s.Undo(func(ctx context.Context) error { return s.Cluster.DeleteNodes(ctx, name) })
	_, err = s.Cluster.Run(s.Ctx, "", "env", "WAIT=0", "REGISTER_TAINTS=", filepath.Join(s.Cluster.Root, "hack", "cluster", "cluster"), "add-node", name)
	s.NoError(err)

	first, ok := <-seen.ResultChan()
	s.True(ok)
	s.Equal(watch.Added, first.Type)
	s.Contains(first.Object.(*corev1.Node).Spec.Taints, startup)
	released, _ := s.AwaitVerified(name)
	s.Contains(released.Annotations[harness.Annotation], harness.Taint, "the taints that the release has removed")
	s.False(harness.HasTaint(s.Node(node), harness.Taint), "a node that was there before")
}

// Many nodes join at once. Each has the startup taint from the beginning, and no pod gets onto any of them when they are ready.
func TestStartupTaintOfManyNodes(t *testing.T) {
	s := startWithPolicy(t)
	many := harness.Pick(100, 1000)
	kwok, err := s.Cluster.StartKwok(s.Ctx)
	s.NoError(err)
	s.Undo(func(context.Context) error { kwok.Stop(); return nil })
	s.addStartupTaint("", startup)
	const replicas = 20
	s.waiting(replicas)

	began := time.Now()
	var creators errgroup.Group
	creators.SetLimit(50)
	for i := range many {
		creators.Go(func() error {
			got, err := s.register(fmt.Sprintf("many-%d", i), false, kwokNode)
			if err == nil && !harness.HasTaint(got, harness.Taint) {
				err = fmt.Errorf("%s has joined without the startup taint: %v", got.Name, got.Spec.Taints)
			}
			return err
		})
	}
	s.NoError(creators.Wait())
	t.Logf("%d nodes created in %s", many, time.Since(began).Round(time.Millisecond))
	ofTest := metav1.ListOptions{LabelSelector: registering}
	s.Until(func() (bool, error) {
		list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, ofTest)
		return err == nil && len(list.Items) == many && !slices.ContainsFunc(list.Items, func(node corev1.Node) bool {
			return harness.HasTaint(&node, corev1.TaintNodeNotReady) || !isReady(&node)
		}), err
	}, "nodes that are not ready")
	t.Logf("all ready after %s", time.Since(began).Round(time.Millisecond))
	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, ofTest)
	s.NoError(err)
	for _, node := range list.Items {
		s.True(harness.HasTaint(&node, harness.Taint), node.Name)
	}
	s.Empty(s.bound(), "pods on nodes with the startup taint")

	// One node that is released has all of them: nothing else kept them waiting.
	const released = "many-7"
	s.Patch(released, `{"spec":{"taints":null}}`)
	s.Until(func() (bool, error) { return len(s.bound()) == replicas, nil })
	s.Equal(slices.Repeat([]string{released}, replicas), s.bound())
}

// policySpec is that of the policy that adds the startup taint.
type policySpec = admissionv1.MutatingAdmissionPolicySpec

// template renders one template of the chart with values. Its pods have the account that each namespace has, which the chart refuses.
func (s *suite) template(path, values string) string {
	s.T.Helper()
	out, err := s.Cluster.Template(s.Ctx, values, harness.Default(),
		append(harness.Set("startupTaint.add=true", "serviceAccount.create=false", "serviceAccount.name=of-the-namespace"), "--show-only", path)...)
	s.NoError(err)
	return strings.ReplaceAll(out, "of-the-namespace", "default")
}

// addStartupTaint applies the policy as the chart renders it with values, and waits until a node that is changed so gets wanted.
func (s *suite) addStartupTaint(values string, wanted corev1.Taint, changes ...func(*corev1.Node)) {
	s.T.Helper()
	s.apply(s.template("templates/startuptaint.yaml", values))
	s.Undo(func(ctx context.Context) error {
		return s.Cluster.Kube.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: registering})
	})
	s.awaitTaint(wanted, true, changes...)
}

// awaitTaint waits until a node that registers gets a taint, or does not any more. It can always join.
func (s *suite) awaitTaint(wanted corev1.Taint, gets bool, changes ...func(*corev1.Node)) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		got, err := s.register("probe", true, changes...)
		return err == nil && slices.Contains(got.Spec.Taints, wanted) == gets, err
	}, "the policy is not in force")
}

// deploysAgents applies the DaemonSet alone, as the chart renders it with values. Its pods never run: their nodes have no kubelet.
func (s *suite) deploysAgents(values string) {
	s.T.Helper()
	manifest := s.template("templates/daemonset.yaml", values)
	s.Undo(func(ctx context.Context) error {
		if _, err := s.Cluster.Kubectl(ctx, manifest, "delete", "--ignore-not-found", "--cascade=orphan", "-f", "-"); err != nil {
			return err
		}
		now := int64(0)
		return s.Cluster.Kube.CoreV1().Pods(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=agent"})
	})
	s.Kubectl(manifest, "apply", "-f", "-")
}

// isFor reports whether the DaemonSet controller made a pod for a node.
func isFor(pod corev1.Pod, node string) bool {
	terms := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return slices.ContainsFunc(term.MatchFields, func(field corev1.NodeSelectorRequirement) bool { return slices.Contains(field.Values, node) })
	})
}

func isReady(node *corev1.Node) bool {
	found := harness.Condition(node, corev1.NodeReady)
	return found != nil && found.Status == corev1.ConditionTrue
}

// policy reads the spec of the policy.
func (s *suite) policy() policySpec {
	s.T.Helper()
	now, err := s.Cluster.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies().Get(s.Ctx, startupTaintPolicy, metav1.GetOptions{})
	s.NoError(err)
	return now.Spec
}

// changePolicy makes the policy what it was, changed as wanted.
func (s *suite) changePolicy(was policySpec, change func(*policySpec)) {
	s.T.Helper()
	policies := s.Cluster.Kube.AdmissionregistrationV1().MutatingAdmissionPolicies()
	now, err := policies.Get(s.Ctx, startupTaintPolicy, metav1.GetOptions{})
	s.NoError(err)
	now.Spec = *was.DeepCopy()
	change(&now.Spec)
	_, err = policies.Update(s.Ctx, now, metav1.UpdateOptions{})
	s.NoError(err)
}

// waiting makes pods that only run on nodes of these tests.
func (s *suite) waiting(replicas int) {
	s.T.Helper()
	s.Apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: e2e-waiting, namespace: default}
spec:
  replicas: %d
  selector: {matchLabels: {app: e2e-waiting}}
  template:
    metadata: {labels: {app: e2e-waiting}}
    spec:
      nodeSelector: {%s: ""}
      terminationGracePeriodSeconds: 0
      containers: [{name: app, image: localhost/none}]
`, replicas, registering))
}

// bound lists the nodes of these pods.
func (s *suite) bound() (on []string) {
	s.T.Helper()
	list, err := s.Cluster.Kube.CoreV1().Pods("default").List(s.Ctx, metav1.ListOptions{LabelSelector: "app=e2e-waiting"})
	s.NoError(err)
	for _, pod := range list.Items {
		if pod.Spec.NodeName != "" {
			on = append(on, pod.Spec.NodeName)
		}
	}
	return on
}
