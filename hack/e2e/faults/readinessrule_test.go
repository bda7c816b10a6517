package faults

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// ruleKind has the fields of a NodeReadinessRule (readiness.node.x-k8s.io/v1alpha1) that the example uses: kubectl refuses others.
const ruleKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: nodereadinessrules.readiness.node.x-k8s.io}
spec:
  group: readiness.node.x-k8s.io
  scope: Cluster
  names: {kind: NodeReadinessRule, plural: nodereadinessrules}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          spec:
            type: object
            required: [conditions, enforcementMode, taint, nodeSelector]
            properties:
              conditions:
                type: array
                minItems: 1
                items:
                  type: object
                  required: [type, requiredStatus]
                  properties: {type: {type: string}, requiredStatus: {type: string, enum: ["True", "False", Unknown]}}
              enforcementMode: {type: string, enum: [bootstrap-only, continuous]}
              taint:
                type: object
                required: [key, effect]
                properties:
                  key: {type: string, pattern: "^readiness[.]k8s[.]io/[^/]+$"}
                  value: {type: string, maxLength: 63}
                  effect: {type: string, enum: [NoSchedule, PreferNoSchedule, NoExecute]}
              nodeSelector:
                type: object
                minProperties: 1
                properties: {matchLabels: {type: object, additionalProperties: {type: string}}}
`

// rules is the release whose agents report to the rule: with the example's values, beside that of the other tests.
var rules = harness.Release{Name: "rules", Namespace: harness.Namespace}

// readinessRule stands in for the node-readiness-controller, and does what the rule of hack/examples says on every node: the example
// is bootstrap-only. It also notes each state of a node.
type readinessRule struct {
	*suite
	UID  string
	Spec struct {
		Conditions []struct {
			Type           corev1.NodeConditionType
			RequiredStatus corev1.ConditionStatus
		}
		EnforcementMode string
		Taint           corev1.Taint
		NodeSelector    metav1.LabelSelector
	}
	selector labels.Selector

	mu     sync.Mutex
	states map[string][]nodeState
}

// nodeState is what a rule and the agent make of a node.
type nodeState struct {
	Condition         corev1.ConditionStatus // "": there is none
	Tainted, Released bool                   // by the rule; by the agent
}

// startRule applies the example with the rights and the policy of its values, and begins to do what it says.
func startRule(s *suite) *readinessRule {
	s.T.Helper()
	example := filepath.Join(s.Cluster.Root, "hack", "examples", "node-readiness-controller")
	chart, err := s.Cluster.Template(s.Ctx, "", rules, "--no-hooks", "--values", filepath.Join(example, "values.yaml"))
	s.NoError(err)
	s.Contains(chart, `CONDITION: "always"`)
	s.Contains(chart, `LATE_TAINT_WINDOW: "0s"`)
	s.Apply(strings.Join(slices.DeleteFunc(strings.Split(chart, "\n---\n"), func(object string) bool {
		return strings.Contains(object, "kind: DaemonSet")
	}), "\n---\n"))

	s.Undo(func(ctx context.Context) error { // the next test applies it again
		_, err := s.Cluster.Kubectl(ctx, ruleKind, "delete", "--ignore-not-found", "-f", "-")
		return err
	})
	s.Kubectl(ruleKind, "apply", "-f", "-")
	s.Kubectl("", "wait", "--for=condition=Established", harness.Wait, "crd/nodereadinessrules.readiness.node.x-k8s.io")
	rule, err := os.ReadFile(filepath.Join(example, "rule.yaml"))
	s.NoError(err)
	s.Apply(string(rule))
	r := &readinessRule{suite: s, states: make(map[string][]nodeState)}
	var stored struct {
		Metadata struct{ UID string }
		Spec     any
	}
	stored.Spec = &r.Spec
	s.NoError(json.Unmarshal([]byte(s.Kubectl("", "get", "nodereadinessrule", "pod-network", "-o", "json")), &stored))
	r.UID = stored.Metadata.UID
	s.Equal("bootstrap-only", r.Spec.EnforcementMode)
	r.selector, err = metav1.LabelSelectorAsSelector(&r.Spec.NodeSelector)
	s.NoError(err)

	list, err := s.Cluster.Kube.CoreV1().Nodes().List(s.Ctx, metav1.ListOptions{})
	s.NoError(err)
	for i := range list.Items {
		r.see(&list.Items[i])
	}
	harness.Watch(s.Suite, s.Cluster.Kube.CoreV1().Nodes(), list.ResourceVersion, "", func(event watch.EventType, node *corev1.Node) {
		if event == watch.Deleted {
			r.mu.Lock()
			delete(r.states, node.Name)
			r.mu.Unlock()
			return
		}
		r.see(node)
	})
	return r
}

// see notes the state of a node, and does what the rule says. What is refused because the Node has changed since comes again.
func (r *readinessRule) see(node *corev1.Node) {
	state := nodeState{Tainted: harness.HasTaint(node, r.Spec.Taint.Key), Released: node.Labels[harness.Label] == "true"}
	if found := harness.Condition(node, r.Spec.Conditions[0].Type); found != nil {
		state.Condition = found.Status
	}
	r.mu.Lock()
	if before := r.states[node.Name]; len(before) == 0 || before[len(before)-1] != state {
		r.states[node.Name] = append(before, state)
	}
	r.mu.Unlock()
	if wanted := r.wanted(node); wanted != nil {
		if _, err := r.Cluster.Kube.CoreV1().Nodes().Update(r.Ctx, wanted, metav1.UpdateOptions{}); err != nil {
			r.T.Logf("the rule cannot change %s now: %v", node.Name, err)
		}
	}
}

// wanted is a node as the rule wants it, nil if it is so. The taint is on a node without the conditions, also where it did not
// register with it. Once they are there it goes, and the rule has done with the node.
func (r *readinessRule) wanted(node *corev1.Node) *corev1.Node {
	done := "readiness.k8s.io/bootstrap-completed-" + r.UID
	if _, isDone := node.Annotations[done]; isDone || !r.selector.Matches(labels.Set(node.Labels)) {
		return nil
	}
	isMet := true
	for _, required := range r.Spec.Conditions {
		found := harness.Condition(node, required.Type)
		isMet = isMet && found != nil && found.Status == required.RequiredStatus
	}
	node = node.DeepCopy()
	isRules := func(taint corev1.Taint) bool {
		return taint.Key == r.Spec.Taint.Key && taint.Effect == r.Spec.Taint.Effect
	}
	switch {
	case isMet:
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isRules)
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, done, "pod-network")
	case slices.ContainsFunc(node.Spec.Taints, isRules):
		return nil
	default:
		node.Spec.Taints = append(node.Spec.Taints, r.Spec.Taint)
	}
	return node
}

// seen returns the states of a node, and asserts what a rule must be able to rely on.
func (r *readinessRule) seen(node string) []nodeState {
	r.T.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	states := slices.Clone(r.states[node])
	r.NotEmpty(states)
	for i, state := range states[1:] {
		if state.Condition != corev1.ConditionTrue {
			r.False(state.Released && !states[i].Released, "released without the condition: %v", states)
			r.False(states[i].Tainted && !state.Tainted, "the rule's taint was removed without the condition: %v", states)
		}
	}
	return states
}

// join makes a Node of a pool, that of the rule or another, with taints.
func (r *readinessRule) join(name string, isNew bool, change func(*corev1.Node), taints ...corev1.Taint) {
	r.T.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}, Spec: corev1.NodeSpec{Taints: taints}}
	if isNew {
		for key, value := range r.Spec.NodeSelector.MatchLabels {
			node.Labels[key] = value
		}
	}
	if change != nil {
		change(node)
	}
	r.create(node)
}

// reporter prepares the agent of a node with the example's settings.
func (r *readinessRule) reporter(node string, settings ...string) *agent {
	r.T.Helper()
	token := r.boundTokenOf(rules.Name+"-"+harness.Name, node)
	return r.agentAt(node, r.proxy.URL, r.proxy.CA, token).
		with("CONDITION=always", "LATE_TAINT_WINDOW=0s", "MAX_RETRIES=0").with(settings...)
}

// condition picks the PATCH of a Node's status.
func condition(node string) Match {
	return exactly(http.MethodPatch, "/api/v1/nodes/"+node+"/status")
}

// applied counts the requests that the API server has acted on.
func applied(asked []Asked) (n int) {
	for _, a := range asked {
		if a.Code == http.StatusOK {
			n++
		}
	}
	return n
}

// await waits until a node has been in a state, and is in it.
func (r *readinessRule) await(node string, state nodeState) {
	r.T.Helper()
	r.Until(func() (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		states := r.states[node]
		return len(states) > 0 && states[len(states)-1] == state, nil
	}, "%s: %v", node, state)
}

// The states of a node with a rule.
var (
	joined   = nodeState{"", true, false}
	failing  = nodeState{corev1.ConditionFalse, true, false}
	passing  = nodeState{corev1.ConditionTrue, true, false}
	open     = nodeState{corev1.ConditionTrue, false, true}
	old      = nodeState{"", false, true}
	selected = nodeState{"", true, true}
)

func verifiedBefore(node *corev1.Node) { node.Labels[harness.Label] = "true" }

// Who writes what, in which order and on which nodes, with a rule of the node-readiness-controller that waits for the agent's condition.
func TestReadinessRule(t *testing.T) {
	s := start(t, harness.BeginRow(t, "a NodeReadinessRule waits for the condition", "True before the release; no other node gets the taint"))
	r := startRule(s)
	taint, startup := r.Spec.Taint, corev1.Taint{Key: harness.Taint, Value: "true", Effect: corev1.TaintEffectNoSchedule}

	// A node whose network fails first: False after one round, long before INITIAL_TIMEOUT, and the rule's taint stays.
	r.dns.pause()
	r.join("faults-rule-new", true, nil, taint)
	first := r.reporter("faults-rule-new", hasty)
	p := first.start()
	r.await("faults-rule-new", failing)
	r.Equal("DNSFailed", harness.Condition(r.Node("faults-rule-new"), harness.ConditionType).Reason)
	r.NotContains(p.output(), harness.MsgTimedOut)
	repaired := time.Now()
	r.dns.resume()
	r.await("faults-rule-new", open)
	s.row.Recovered(time.Since(repaired))
	states := r.seen("faults-rule-new")
	r.Equal([]nodeState{joined, failing, passing}, states[:3])
	p.stop()

	// Nodes that pass at once: the rule adds its taint where the node did not register with it; our startup taint may be beside it.
	for name, taints := range map[string][]corev1.Taint{
		"faults-rule-plain": nil, "faults-rule-tainted": {taint}, "faults-rule-before": {taint, startup}, "faults-rule-behind": {startup, taint}} {
		r.join(name, true, nil, taints...)
		r.await(name, joined)
		p := r.reporter(name, patient).start()
		r.await(name, open)
		r.False(harness.HasTaint(r.Node(name), harness.Taint))
		p.awaitMessage(harness.MsgVerified)
		r.seen(name)
		r.Equal(1, applied(r.proxy.Asked(condition(name))), "one request more")
		r.Equal(1, r.proxy.Applied(name))
		p.stop()
	}

	// Nodes that were verified before have no agent. The rule leaves those of other pools alone. One that it selects keeps the taint until
	// it is verified again, as kubectl node-ready verify has it.
	r.join("faults-rule-old", false, verifiedBefore)
	r.join("faults-rule-selected", true, verifiedBefore)
	r.await("faults-rule-selected", selected)
	r.Equal([]nodeState{old, selected}, r.seen("faults-rule-selected"))
	r.Patch("faults-rule-selected", `{"metadata":{"labels":{"`+harness.Label+`":null}}}`)
	p = r.reporter("faults-rule-selected", patient).start()
	r.await("faults-rule-selected", open)
	r.seen("faults-rule-selected")
	p.stop()
	r.Equal([]nodeState{old}, r.seen("faults-rule-old"))

	// The rule has done with a node: a condition that turns False later taints nothing.
	r.dns.pause()
	r.Patch("faults-rule-new", `{"metadata":{"labels":{"`+harness.Label+`":null}}}`)
	p = first.start()
	r.await("faults-rule-new", nodeState{corev1.ConditionFalse, false, false})
	r.dns.resume()
	r.await("faults-rule-new", open)
	p.stop()
	for _, state := range r.seen("faults-rule-new")[len(states):] {
		r.False(state.Tainted, "tainted again")
	}
}

// The agent is killed around the condition and the release, and the Node is deleted and created again there.
func TestFaultReadinessRule(t *testing.T) {
	s := start(t, harness.BeginRow(t, "killed around the condition of a NodeReadinessRule", "started again it is verified; never without the condition"))
	r := startRule(s)
	for name, stage := range map[string]stage{
		"faults-rule-condition": {request: condition},
		"faults-rule-applied":   {request: condition, answer: true},
		"faults-rule-release":   {request: Patch},
		"faults-rule-released":  {request: Patch, answer: true},
	} {
		r.join(name, true, nil, r.Spec.Taint)
		a := r.reporter(name, patient)
		r.hold(stage, a)(a.start())
		began := time.Now()
		p := a.start()
		p.awaitLine("the end", func(line harness.LogLine) bool {
			return line.Msg == harness.MsgVerified || line.Msg == harness.MsgAlreadyVerified
		})
		r.await(name, open)
		s.row.Recovered(time.Since(began))
		r.seen(name)
		p.stop()
	}

	// A Node that is created again has no condition, and gets none by the checks of the one before.
	const again = "faults-rule-again"
	r.join(again, true, nil, r.Spec.Taint)
	a, gate := r.reporter(again, patient), NewGate()
	off := r.proxy.On(condition(again), gate.Hold)
	p := a.start()
	s.await("the condition", gate.Arrived)
	r.NoError(r.Cluster.Kube.CoreV1().Nodes().Delete(r.Ctx, again, metav1.DeleteOptions{}))
	r.join(again, true, nil, r.Spec.Taint)
	gate.Open()
	p.awaitMessage(harness.MsgNotVerified)
	off()
	r.await(again, open)
	r.seen(again)
	r.GreaterOrEqual(r.proxy.Asked(condition(again))[0].Code, http.StatusBadRequest, "the uid of the deleted Node")
	p.stop()
}
