//go:build !race

package simulation

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/retaint"
	"github.com/imunhatep/kube-node-ready/internal/checklist"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// The rules, as sentences of DESIGN.md and the documents.
const (
	ruleProven   = "1: a release follows checks that passed on that uid, boot and sandbox, not long ago"
	ruleForeign  = "2: nothing foreign is lost or comes back"
	ruleGated    = "3: a node that was never gated is not tainted, conditioned or deleted, and no control plane is re-tainted or deleted"
	ruleBudget   = "4: budgets and breakers"
	ruleLiveness = "5: a node that works is released, and shows it"
	ruleRest     = "6: at rest nothing is written"
	ruleOpened   = "7: onTimeout=open opens a node that fails its network checks, after INITIAL_TIMEOUT, and adds no label"
)

// slack is what an answer may take: faults delay it.
const slack = 10 * time.Second

// truth is what the rules know of one Node, by its uid.
type truth struct {
	name      string
	created   time.Time
	tainted   bool      // it has had the startup taint
	asked     time.Time // since when it is to be verified: it was created, or was verified and has lost the label
	cniSince  time.Time // of a taint of WAIT_FOR_TAINTS; zero: there is none
	cniEnds   time.Time // of the last one of them
	unmet     time.Time // since when it lacks what REQUIRE demands
	released  time.Time // the last release
	wasMet    bool      // at the last release
	opened    time.Time // by a person
	unproven  time.Time // since when an agent has opened it (onTimeout=open), until it is released
	gatedAt   time.Time // since when it has the startup taint
	ungated   time.Time // when it lost the startup taint last
	putBack   bool      // a foreign client has put a taint of ours back
	failsAt   time.Time // since when the condition is False
	saidFalse time.Time // when False was written last
	reason    string    // the first one of a condition that is False
	lacked    []span    // in which it lacked what REQUIRE demands
	keptSince time.Time // since when an annotation or a label keeps it from being deleted
	gone      time.Time // when the Node was deleted

	saidOther   time.Time // when the condition was False last and became something else
	reasonSince time.Time // since when the condition is False for this reason
	isProven    bool      // it was verified at some time, also while it was being deleted
	serves      bool      // it was verified while nobody was deleting it
	cordoned    time.Time
	uncordoned  time.Time
	retainted   time.Time
	workers     []time.Time // when those of the last minute were created
}

// judge checks the rules at each write.
type judge struct {
	w         *world
	truths    map[string]*truth // by uid
	used      map[string]bool   // the workers whose verdict has released a node, by uid
	deletions []deletion
	created   []time.Time              // when the workers of the last second were
	lastWrite map[string]time.Time     // of ours, by the node's name
	requests  map[*process][]time.Time // when those of the last minute were made
	cleared   time.Time                // when a halt was cleared last
	most      int                      // requests of a controller in a minute
}

func newJudge(w *world) judge {
	return judge{w: w, truths: make(map[string]*truth), used: make(map[string]bool), lastWrite: make(map[string]time.Time),
		requests: make(map[*process][]time.Time)}
}

// within returns the times that are no longer ago than d.
func within(times []time.Time, d time.Duration) []time.Time {
	return slices.DeleteFunc(times, func(at time.Time) bool { return time.Since(at) > d })
}

type deletion struct {
	at   time.Time
	uid  string // of the Node
	pool *pool
}

func (j *judge) of(node *corev1.Node) *truth {
	t := j.truths[string(node.UID)]
	if t == nil {
		t = &truth{name: node.Name, created: time.Now(), asked: time.Now()}
		j.truths[string(node.UID)] = t
	}
	return t
}

// write looks at one write, before it is there. The lock is held.
func (j *judge) write(q request, before, after []byte) {
	w := j.w
	ours := q.from != nil && !q.from.person
	if ours {
		w.counts.writes[q.verb+" "+q.resource]++
	}
	switch q.resource {
	case "nodes":
		was, is := decodeNode(before), decodeNode(after)
		if ours {
			j.crosses(q, was)
		}
		if ours && was != nil && is != nil && is.DeletionTimestamp.IsZero() {
			j.change(q, was, is)
		} else if ours && was != nil && q.verb == http.MethodDelete {
			j.deleted(q, was)
		}
		if is != nil {
			j.follow(q, was, is)
		} else if was != nil {
			j.of(was).gone = time.Now()
		}
	case "nodeclaims":
		if ours && q.verb == http.MethodDelete {
			claim := new(unstructured.Unstructured)
			_ = json.Unmarshal(before, &claim.Object)
			name, _, _ := unstructured.NestedString(claim.Object, "status", "nodeName")
			if node := w.node(name); node != nil {
				j.crosses(q, node)
				j.deleted(q, node)
			}
		}
	case "pods":
		if ours && q.verb == http.MethodPost {
			j.worker(q, after)
		}
	case "events":
		if ours && q.verb == http.MethodPost {
			j.event(q, after)
		}
	}
}

// follow notes what has become of a Node.
func (j *judge) follow(q request, was, is *corev1.Node) {
	t, w := j.of(is), j.w
	now := time.Now()
	since := func(at *time.Time, holds bool) {
		if !holds {
			*at = time.Time{}
		} else if at.IsZero() {
			*at = now
		}
	}
	wasGated := was == nil && record.WasGated(is.Annotations[nodepatch.Annotation], is.Annotations[nodepatch.Opened], failedTaint) // before this world began
	t.tainted = t.tainted || wasGated || fleet.HasTaint(is, startupTaint)
	if was != nil && was.Labels[label] != "" && is.Labels[label] == "" {
		t.putBack = false
		isRebooted := record.WasRebooted(was.Annotations[nodepatch.Annotation], was.Status.NodeInfo.BootID)
		if !isRebooted || !fleet.HasTaint(was, startupTaint) { // else it is being verified, in another boot than the label tells of
			t.asked = now
		}
	}
	if !t.cniSince.IsZero() && j.blocking(is) == nil {
		t.cniEnds = now
	}
	since(&t.cniSince, j.blocking(is) != nil)
	quantity := is.Status.Allocatable[gpu]
	if !t.gatedAt.IsZero() && !fleet.HasTaint(is, startupTaint) {
		t.ungated = now
	}
	since(&t.gatedAt, fleet.HasTaint(is, startupTaint))
	wasUnmet := t.unmet
	since(&t.unmet, w.options.require != "" && quantity.Value() < 8)
	switch n := len(t.lacked); {
	case wasUnmet.IsZero() && !t.unmet.IsZero():
		t.lacked = append(t.lacked, span{from: now})
	case !wasUnmet.IsZero() && t.unmet.IsZero():
		t.lacked[n-1].to = now
	}
	if !t.cordoned.IsZero() && !is.Spec.Unschedulable {
		t.uncordoned = now
	}
	since(&t.cordoned, is.Spec.Unschedulable)
	since(&t.retainted, j.isRetainted(is))
	since(&t.keptSince, keepsNode(is.Labels, is.Annotations) != "")
	t.isProven = t.isProven || is.Labels[label] == "true" && is.Annotations[nodepatch.Annotation] != ""
	isDeleted := is.DeletionTimestamp != nil || slices.ContainsFunc(j.deletions, func(d deletion) bool { return d.uid == string(is.UID) })
	t.serves = t.serves || t.isProven && is.Labels[label] == "true" && !isDeleted
	j.followCondition(t, was, is)
	if q.from != nil && !q.from.person {
		j.lastWrite[is.Name] = now
	}
}

// followCondition notes since when the condition of a Node is False, for which reason, and when that was written last.
func (j *judge) followCondition(t *truth, was, is *corev1.Node) {
	condition, now := j.condition(is), time.Now()
	if condition.Status != corev1.ConditionFalse {
		if !t.failsAt.IsZero() {
			t.saidOther = now
		}
		t.failsAt, t.reason, t.reasonSince = time.Time{}, "", time.Time{}
		return
	}
	if t.failsAt.IsZero() {
		t.failsAt = now
	}
	first, _, _ := strings.Cut(condition.Reason, ",")
	if t.reason != first {
		t.reason, t.reasonSince = first, now
	}
	if was == nil || j.condition(was) != condition {
		t.saidFalse = now
	}
}

// sent notes what a controller is sent of a Node: of a foreign taint that comes and goes while its caches are behind it cannot know,
// nor of one that goes before it has looked.
func (j *judge) sent(p *process, node *corev1.Node) {
	t := j.truths[string(node.UID)]
	if !p.controller || t == nil {
		return
	}
	saw := p.taints[t]
	switch {
	case j.blocking(node) != nil && saw.since.IsZero():
		saw.since = time.Now()
	case j.blocking(node) == nil && !saw.since.IsZero():
		if time.Since(saw.since) >= time.Second {
			saw.gone = t.cniEnds
		}
		saw.since = time.Time{}
	}
	p.taints[t] = saw
}

func (j *judge) blocking(node *corev1.Node) *nodepatch.Taint {
	return j.w.options.keys().ForeignTaint(fleet.Taints(node))
}

func (j *judge) isRetainted(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == failedTaint && t.Value == agentName })
}

func (j *judge) condition(node *corev1.Node) (found corev1.NodeCondition) {
	for _, c := range node.Status.Conditions {
		if c.Type == conditionType {
			return c
		}
	}
	return found
}

func isOurs(taint corev1.Taint) bool { return taint.Key == startupTaint || taint.Key == failedTaint }

// change looks at what a write of ours changes of a Node.
func (j *judge) change(q request, was, is *corev1.Node) {
	w, t := j.w, j.of(is)
	w.tell(is.Name, q.from.name, "%s", describe(q, was, is))
	foreign := func(node *corev1.Node) *corev1.Node {
		node = node.DeepCopy()
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, isOurs)
		node.Status.Conditions = slices.DeleteFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == conditionType })
		if node.Labels[label] == "true" {
			delete(node.Labels, label)
		}
		delete(node.Annotations, nodepatch.Annotation)
		node.ResourceVersion, node.ManagedFields = "", nil
		return node
	}
	if a, b := foreign(was), foreign(is); !reflect.DeepEqual(normal(a), normal(b)) {
		w.fail(is.Name, ruleForeign, "%s has changed what is not ours: %s", q.from.name, difference(a, b))
	}
	lost := func(key string) bool { return fleet.HasTaint(was, key) && !fleet.HasTaint(is, key) }
	gained := func(key string) bool { return !fleet.HasTaint(was, key) && fleet.HasTaint(is, key) }
	released := is.Labels[label] != "" && was.Labels[label] == ""
	if gained(startupTaint) {
		w.fail(is.Name, ruleForeign, "%s has added the startup taint", q.from.name)
	}
	if was.Labels[label] != "" && is.Labels[label] == "" && !record.WasRebooted(was.Annotations[nodepatch.Annotation], is.Status.NodeInfo.BootID) {
		w.fail(is.Name, ruleForeign, "%s has removed the label of a node that was not rebooted", q.from.name)
	}
	if released || lost(startupTaint) {
		j.release(q, was, is, released)
	}
	if gained(failedTaint) {
		if !t.tainted {
			w.fail(is.Name, ruleGated, "%s has added the failed taint to a node that never had the startup taint", q.from.name)
		}
		if q.from.controller {
			j.retaint(q, was)
		}
	}
	if lost(failedTaint) && !released && j.isRetainted(was) {
		j.opens(q, was)
		if n := q.from.rounds; !q.from.controller && !lost(startupTaint) && n < recoveryThreshold {
			w.fail(is.Name, ruleProven, "%s removes the controller's failed taint after %d rounds in a row that passed", q.from.name, n)
		}
	}
	before, after := j.condition(was), j.condition(is)
	before.LastHeartbeatTime = after.LastHeartbeatTime
	isAgain := was.Annotations[nodepatch.Annotation] != "" && was.Labels[label] == "" // somebody wants it to be verified again
	if before != after && !t.tainted && !isAgain && w.options.condition != "always" && before.Type == "" {
		w.fail(is.Name, ruleGated, "%s has written the condition %s %s on a node that was never gated", q.from.name, after.Status, after.Reason)
	}
}

func normal(node *corev1.Node) string {
	text, _ := json.Marshal(node)
	var object map[string]any
	_ = json.Unmarshal(text, &object)
	metadata, _ := object["metadata"].(map[string]any)
	for _, key := range []string{"labels", "annotations"} {
		if m, _ := metadata[key].(map[string]any); len(m) == 0 {
			delete(metadata, key)
		}
	}
	text, _ = json.Marshal(object)
	return string(text)
}

func difference(a, b *corev1.Node) string {
	return fmt.Sprintf("%v %v %v %v, then %v %v %v %v", fleet.Taints(a), a.Labels, a.Annotations, a.Spec.Unschedulable, fleet.Taints(b), b.Labels, b.Annotations, b.Spec.Unschedulable)
}

func describe(q request, was, is *corev1.Node) string {
	text := q.String() + ":"
	if before, after := fleet.Taints(was), fleet.Taints(is); !slices.Equal(before, after) {
		text += fmt.Sprintf(" taints %v → %v", before, after)
	}
	if was.Labels[label] != is.Labels[label] {
		text += fmt.Sprintf(" label %q", is.Labels[label])
	}
	if was.Annotations[nodepatch.Annotation] != is.Annotations[nodepatch.Annotation] {
		text += " annotation " + is.Annotations[nodepatch.Annotation]
	}
	for _, c := range is.Status.Conditions {
		if c.Type == conditionType {
			text += fmt.Sprintf(" condition %s %s %.120s", c.Status, c.Reason, c.Message)
		}
	}
	return text
}

// round is the longest that a round takes.
func (w *world) round() time.Duration {
	return checklist.LongestRound(config.Config{CheckTimeout: w.options.check, MaxRetries: 5})
}

// release is rule 1.
func (j *judge) release(q request, was, is *corev1.Node, labelled bool) {
	w, t, p := j.w, j.of(is), q.from
	released, _ := record.Parse(is.Annotations[nodepatch.Annotation])
	broken := func(format string, args ...any) { w.fail(is.Name, ruleProven, format, args...) }
	m := w.machines[is.Name]
	if !labelled && is.Labels[label] == "" {
		j.open(q, was, is)
		return
	}
	if !labelled { // the startup taint was added again to a verified node: it was proven in this boot, or is proven now
		switch {
		case p.controller && (released.BootID == "" || released.BootID != is.Status.NodeInfo.BootID):
			broken("%s removes a startup taint that was added again: the record is of boot %q, the node runs %q", p.name, released.BootID, is.Status.NodeInfo.BootID)
		case p.controller, p.released[string(is.UID)] && p.boot == m.bootID():
			return
		}
	}
	if age := time.Since(t.created); labelled && !p.controller && !t.tainted && was.Annotations[nodepatch.Annotation] == "" && w.mostSkew == 0 && age < w.options.late-2*time.Second {
		broken("%s releases a node %s after its creation: a late startup taint may come until %s", p.name, age, w.options.late)
	}
	limit := w.round() + 10*w.options.check + 20*time.Second
	if p.controller {
		worker := w.processes[string(released.Worker)]
		if worker == nil {
			broken("%s releases by the worker %q, which does not exist", p.name, released.Worker)
			return
		}
		if j.used[string(released.Worker)] {
			broken("the verdict of worker %s is used twice", worker.name)
		}
		j.used[string(released.Worker)] = true
		limit += 2 * time.Minute
		p = worker
	}
	if p.machine == nil || p.machine.name != is.Name {
		broken("%s runs on another machine", p.name)
		return
	}
	if p.boot != m.bootID() {
		broken("%s has checked in %s, the machine runs %s", p.name, p.boot, m.bootID())
	}
	for _, check := range []string{checks.DNSName, checks.APIName, checks.NetworkName, checks.ServiceName} {
		at := p.passed[check]
		switch {
		case at.IsZero():
			broken("%s has not passed the check %s", p.name, check)
		case at.Before(t.created):
			broken("%s has passed %s before this Node was created", p.name, check)
		case at.Before(p.sawForeign), q.from.controller && at.Before(q.from.taints[t].gone):
			broken("%s has passed %s before a foreign taint was gone", p.name, check)
		case time.Since(at) > limit:
			broken("%s has passed %s %s ago, more than %s", p.name, check, time.Since(at), limit)
		case q.from.controller && at.Before(t.asked):
			broken("%s has passed %s before the node was to be verified again", p.name, check)
		}
	}
	sent := q.at
	if !t.cniSince.IsZero() && sent.Sub(t.cniSince) > 3*time.Second+slack {
		broken("%s releases beside a taint of WAIT_FOR_TAINTS that is there for %s", q.from.name, sent.Sub(t.cniSince))
	}
	if !t.unmet.IsZero() && sent.Sub(t.unmet) > 3*time.Second+slack {
		broken("%s releases a node that lacks what REQUIRE demands for %s", q.from.name, sent.Sub(t.unmet))
	}
	q.from.released[string(is.UID)] = true
	t.released, t.wasMet, t.unproven = time.Now(), t.unmet.IsZero(), time.Time{}
}

// open is what onTimeout=open may do: remove the startup taint without the label.
func (j *judge) open(q request, was, is *corev1.Node) {
	w, t, p := j.w, j.of(is), q.from
	broken := func(format string, args ...any) { w.fail(is.Name, ruleOpened, p.name+" opens a node "+format, args...) }
	opened, _ := record.Parse(is.Annotations[nodepatch.Annotation])
	waited := time.Since(p.started) // a taint that returns begins INITIAL_TIMEOUT again, if the agent can know
	if !t.unproven.IsZero() && time.Since(t.unproven) < waited {
		waited = time.Since(t.unproven)
	}
	switch age := time.Since(t.created); {
	case p.controller || !w.options.opens():
		broken("without the setting")
	case p.machine == nil || p.machine.name != is.Name:
		broken("from another machine")
	case waited < w.options.initial-time.Second:
		broken("after %s, before INITIAL_TIMEOUT", waited)
	case w.mostSkew == 0 && age < w.options.initial-time.Second:
		broken("%s after its creation, before INITIAL_TIMEOUT", age)
	case time.Since(p.failed) > w.round()+time.Minute && w.mostSkew == 0:
		broken("none of whose checks has failed since %s", p.failed)
	case time.Since(p.failing) < w.options.initial-time.Second:
		broken("whose network checks have failed for %s only", time.Since(p.failing))
	case j.blocking(was) != nil:
		broken("beside the taint %s", j.blocking(was))
	case !t.unmet.IsZero():
		broken("that lacks what REQUIRE demands for %s", time.Since(t.unmet))
	case strings.Contains(w.options.onTimeout, "condition") && j.condition(was).Status != corev1.ConditionFalse && time.Since(p.hindered) > time.Minute:
		broken("whose condition is %q", j.condition(was).Status)
	case opened.Opened.IsZero() || !record.WasGated(is.Annotations[nodepatch.Annotation], "", failedTaint):
		broken("and does not say so: %s", is.Annotations[nodepatch.Annotation])
	case j.isRetainted(was) != j.isRetainted(is):
		broken("and removes the controller's failed taint")
	}
	t.unproven = time.Now()
	w.counts.writes["opened"]++
}

// count counts the nodes of a release for which something holds.
func (j *judge) count(of release, holds func(*corev1.Node) bool) (n, all int) {
	for key := range j.w.now["nodes"] {
		node := read[corev1.Node](j.w, "nodes", key)
		if node.Labels[label] == "preexisting" || releaseOf(node) != of {
			continue
		}
		if all++; holds(node) {
			n++
		}
	}
	return n, all
}

// frozen says why nothing may be re-tainted or deleted now, or "".
func (j *judge) frozen(q request) string {
	w := j.w
	if why := j.ownFault(q.from, q.at, time.Minute); why != "" {
		return why
	}
	shown := w.shown(q.from)
	failing, all := j.count(q.from.release, func(node *corev1.Node) bool {
		t := j.of(node)
		lasts := func(at time.Time) bool { return !at.IsZero() && time.Since(at) > shown }
		return lasts(t.retainted) || lasts(t.failsAt) && node.Labels[label] == "true" && !fleet.HasTaint(node, startupTaint) && fleet.Untouchable(node) == "" && w.options.recheck > 0
	})
	if failing >= max(3, (all+2)/10) {
		return fmt.Sprintf("%d of %d nodes fail for %s", failing, all, shown)
	}
	return ""
}

// retaint is rule 4 at a re-taint.
func (j *judge) retaint(q request, was *corev1.Node) {
	w, t := j.w, j.of(was)
	if was.Labels[label] == "" {
		w.fail(was.Name, ruleOpened, "%s re-taints a node that has no label, opened at %s", q.from.name, t.unproven)
	}
	if fleet.IsControlPlane(was) || j.hasRole(was) {
		w.fail(was.Name, ruleGated, "%s re-taints a server of the control plane or etcd", q.from.name)
	}
	if !t.opened.IsZero() && time.Since(t.opened) < w.options.coolDown-time.Minute-2*w.mostSkew { // the annotation has the API server's time
		w.fail(was.Name, ruleBudget, "%s re-taints a node that somebody has opened %s ago", q.from.name, time.Since(t.opened))
	}
	if !t.cordoned.IsZero() && time.Since(t.cordoned) > slack {
		w.fail(was.Name, ruleBudget, "%s re-taints a cordoned node", q.from.name)
	}
	if why := j.frozen(q); why != "" {
		w.fail(was.Name, ruleBudget, "%s re-taints a node although %s", q.from.name, why)
	}
	j.retaintCause(q, was)
	n, all := j.count(q.from.release, j.isRetainted)
	if allowed := max(1, (all+2)/10); n+1 > allowed {
		w.fail(was.Name, ruleBudget, "%d of %d nodes have the failed taint, and %s adds one", n, all, q.from.name)
	}
}

func (j *judge) hasRole(node *corev1.Node) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(node.Labels)), func(key string) bool { return strings.HasPrefix(key, "node-role.kubernetes.io/") })
}

// opens is what removes a failed taint of the controller's: a proof, or that nobody can prove anything.
func (j *judge) opens(q request, was *corev1.Node) {
	w := j.w
	m := w.machines[was.Name]
	if !q.from.controller || m == nil || j.condition(was).Status == corev1.ConditionTrue || w.hasOtherSettings() {
		return
	}
	since, ran := j.of(was).retainted.Add(-2*noAgentFor), time.Duration(0)
	if created := j.of(was).created; created.After(since) {
		since = created
	}
	defer func() {
		if without := time.Since(since) - ran; without < noAgentFor*3/4 {
			w.fail(was.Name, ruleBudget, "%s removes the failed taint because no agent was there, but in %s none ran for %s only", q.from.name, time.Since(since), without)
		}
	}()
	for _, r := range m.all {
		if r.worker {
			continue
		}
		for _, s := range r.spans {
			to := s.to
			if to.IsZero() {
				to = time.Now()
			}
			if from := s.from; to.After(since) {
				if from.Before(since) {
					from = since
				}
				ran += to.Sub(from)
			}
			enough := min(noAgentFor/2, 4*w.options.recheck) + time.Minute
			if to.Sub(s.from) > enough && time.Since(to) < noAgentFor-time.Minute && m.held == 0 {
				w.fail(was.Name, ruleBudget, "%s removes the failed taint because no agent was there, but one ran for %s until %s ago", q.from.name, to.Sub(s.from), time.Since(to))
			}
		}
	}
}

func (w *world) hasOtherSettings() bool {
	return slices.ContainsFunc(w.replicas, func(c *replica) bool { return len(c.more) > 0 })
}

// deleted is rules 3 and 4 at a deletion by the controller.
func (j *judge) deleted(q request, node *corev1.Node) {
	w, t := j.w, j.of(node)
	w.tell(node.Name, q.from.name, "%s", q)
	switch {
	case !t.unproven.IsZero():
		w.fail(node.Name, ruleOpened, "%s deletes a node that an agent has opened %s ago", q.from.name, time.Since(t.unproven))
	case !t.tainted:
		w.fail(node.Name, ruleGated, "%s deletes a node that was never gated", q.from.name)
	case fleet.IsControlPlane(node) || j.hasRole(node):
		w.fail(node.Name, ruleGated, "%s deletes a server of the control plane or etcd", q.from.name)
	case node.Labels[label] != "" && !q.read[node.Name]:
		w.fail(node.Name, ruleGated, "%s deletes a node that was released %s ago, and has not read it since it wrote the ledger", q.from.name, time.Since(t.released))
	case node.Labels[label] != "" && q.at.Sub(t.released) > slack:
		w.fail(node.Name, ruleGated, "%s deletes a node that was released %s ago", q.from.name, time.Since(t.released))
	}
	if why := j.frozen(q); why != "" {
		w.fail(node.Name, ruleBudget, "%s deletes a node although %s", q.from.name, why)
	}
	if ledger := read[corev1.ConfigMap](w, "configmaps", namespace+"/"+q.from.release.agentName()+"-remediation"); ledger == nil || !strings.Contains(ledger.Data["ledger"], string(node.UID)) {
		w.fail(node.Name, ruleBudget, "%s makes a deletion that is not in the ledger", q.from.name)
	}
	hour, day := 0, 0
	for _, d := range j.deletions {
		if d.pool.release != q.from.release {
			continue
		}
		if time.Since(d.at) < time.Hour-ledgerAhead-2*w.mostSkew {
			hour++
		}
		if time.Since(d.at) < 24*time.Hour-ledgerAhead-2*w.mostSkew {
			day++
		}
		if j.truths[d.uid] != nil && w.node(j.truths[d.uid].name) != nil && string(w.node(j.truths[d.uid].name).UID) == d.uid && time.Since(d.at) < 25*time.Minute && d.uid != string(node.UID) {
			w.fail(node.Name, ruleBudget, "%s deletes a node while %s is still being replaced", q.from.name, j.truths[d.uid].name)
		}
	}
	if hour >= 3 || day >= 10 {
		w.fail(node.Name, ruleBudget, "%s makes deletion %d of an hour, %d of a day", q.from.name, hour+1, day+1)
	}
	j.deletionCause(q, node)
	j.deletions = append(j.deletions, deletion{time.Now(), string(node.UID), w.machines[node.Name].pool})
}

// worker is rule 4 at the creation of a worker.
func (j *judge) worker(q request, body []byte) {
	w := j.w
	var pod corev1.Pod
	_ = json.Unmarshal(body, &pod)
	name := fleet.NodeOf(&pod)
	j.crosses(q, w.node(name))
	node, t := w.node(name), j.truths[pod.Annotations[fleet.NodeUIDAnnotation]] // the cache may show a Node that is gone
	if t == nil {
		return
	}
	if !t.tainted && node != nil && j.of(node) == t && node.Annotations[nodepatch.Annotation] == "" {
		w.fail(name, ruleGated, "a worker is created for a node that was never gated")
	}
	w.tell(name, "controller", "creates %s, attempt %s", pod.Name, pod.Annotations[fleet.AttemptAnnotation])
	j.created = within(append(j.created, time.Now()), time.Second)
	if len(j.created) > 60 {
		w.fail(name, ruleBudget, "%d workers are created within a second", len(j.created))
	}
	t.workers = within(append(t.workers, time.Now()), time.Minute)
	if len(t.workers) > 12 {
		w.fail(name, ruleBudget, "%d workers are created for one node within a minute", len(t.workers))
	}
	live := 0
	for key := range w.now["pods"] {
		if other := read[corev1.Pod](w, "pods", key); fleet.NodeOf(other) == name && other.Labels[component] == "worker" && !fleet.HasEnded(other) && other.DeletionTimestamp == nil {
			live++
		}
	}
	if live >= 6 {
		w.fail(name, ruleBudget, "the node has %d workers that have not ended", live)
	}
}

// event checks that an Event about a withheld re-taint is not about a node that has the failed taint.
func (j *judge) event(q request, body []byte) {
	var event eventsv1.Event
	_ = json.Unmarshal(body, &event)
	node := j.w.node(event.Regarding.Name)
	if event.Reason != retaint.TaintWithheld || node == nil || node.UID != event.Regarding.UID {
		return
	}
	if at := j.of(node).retainted; !at.IsZero() && q.at.Sub(at) > j.w.shown(q.from) {
		j.w.fail(node.Name, ruleWithhold, "%s withholds a re-taint of a node that has the failed taint since %s: %s", q.from.name, q.at.Sub(at), event.Note)
	}
}

// answered notes what a request has proven, and counts it.
func (j *judge) answered(q request, a answer) {
	p := q.from
	if q.resource == "configmaps" && q.verb == http.MethodPut {
		clear(p.read)
	}
	if q.resource == "nodes" && q.verb == http.MethodGet && q.name != "" {
		p.read[q.name] = true
	}
	if q.resource == "nodes" && q.verb == http.MethodGet && a.code == http.StatusOK {
		p.passed[checks.APIName] = time.Now()
		var node corev1.Node
		_ = json.Unmarshal(a.body, &node)
		j.sent(p, &node)
		if blocked := j.blocking(&node) != nil; blocked || p.isBlocked {
			p.isBlocked, p.sawForeign = blocked, time.Now()
		}
	}
	if p.person || a.watch != nil {
		return
	}
	recent := append(j.requests[p], time.Now())
	if len(recent) > 300 {
		recent = within(recent, time.Minute)
	}
	j.requests[p] = recent
	if !p.controller && len(recent) > 300 && p.machine != nil {
		j.w.fail(p.machine.name, ruleRest, "%s sends %d requests a minute", p.name, len(recent))
	}
}

// tick looks once a minute whether what must happen has happened. The lock is held.
func (j *judge) tick() {
	w := j.w
	j.unseen()
	for p, times := range j.requests {
		if !p.controller {
			continue
		}
		n := len(within(slices.Clone(times), time.Minute))
		if j.most = max(j.most, n); n > w.options.mostRequests() {
			w.fail("", ruleRest, "%s sends %d requests in a minute", p.name, n)
		}
	}
	for key := range maps.Clone(w.now["nodes"]) {
		node := read[corev1.Node](w, "nodes", key)
		m := w.machines[node.Name]
		if m != nil && j.isOverdue(m, node) {
			w.fail(node.Name, ruleOpened, "has the startup taint since %s, its agent runs, its network checks fail, and it is not opened", time.Since(j.of(node).gatedAt))
		}
		if m == nil || m.gone || m.held > 0 || !m.up || node.DeletionTimestamp != nil || fleet.Untouchable(node) != "" {
			continue
		}
		if slices.ContainsFunc(w.faults, func(f *fault) bool { return f.on(nil, m) }) { // it began before the machine was there
			m.disturbed = time.Now()
			continue
		}
		j.working(m, node)
	}
}

// calmSince returns how long nothing has disturbed a machine, nor what its node depends on.
func (w *world) calmSince(m *machine) time.Duration {
	isDisturbed := func(c *replica) bool {
		return slices.ContainsFunc(w.faults, func(f *fault) bool { return c.process != nil && f.on(c.process, c.machine) })
	}
	if slices.ContainsFunc(w.replicas, isDisturbed) {
		w.quiet = time.Now()
	}
	if w.options.workers || w.options.retaint {
		return min(time.Since(m.disturbed), time.Since(w.quiet))
	}
	return time.Since(m.disturbed)
}

// working checks a node whose machine has no fault: it must be released, and show it. If it lacks a requirement, it must show that.
func (j *judge) working(m *machine, node *corev1.Node) {
	w, t := j.w, j.of(node)
	calm, isBroken := w.calmSince(m), slices.ContainsFunc(slices.Collect(maps.Values(m.runs)), func(r *run) bool { return r.broken })
	j.showsUnmet(node, calm)
	if calm < w.patience(isBroken) || !t.cniSince.IsZero() || !t.unmet.IsZero() {
		return
	}
	if why := j.lateness(node, isBroken); why != "" {
		w.fail(node.Name, ruleLiveness, "works since %s, and %s", calm.Round(time.Second), why)
	}
}

// showsUnmet checks that a node shows that it lacks a requirement that it met when it was released.
func (j *judge) showsUnmet(node *corev1.Node, calm time.Duration) {
	w, t, condition := j.w, j.of(node), j.condition(node)
	isRechecked := w.options.recheck > 0 && node.Labels[label] == "true" && !fleet.HasTaint(node, startupTaint) && t.tainted
	isLost := !t.unmet.IsZero() && t.wasMet && t.released.Before(t.unmet)
	lacks := time.Since(t.unmet)
	if isRechecked && isLost && calm > lacks-time.Minute && lacks > w.shows() && t.cniSince.IsZero() && condition.Status != corev1.ConditionFalse {
		w.fail(node.Name, ruleLiveness, "lacks for %s what it was released with, and its condition is %s %s", lacks, condition.Status, condition.Reason)
	}
}

// lateness returns what a node that works should have long ago, or no longer have, or "".
func (j *judge) lateness(node *corev1.Node, isBroken bool) string {
	w, t, condition := j.w, j.of(node), j.condition(node)
	labelled, gated := node.Labels[label] == "true", fleet.HasTaint(node, startupTaint)
	isOneShot := !w.options.workers && w.options.recheck == 0
	hasWorkers := slices.ContainsFunc(w.podsOf(node.Name), func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil })
	wasGated := record.WasGated(node.Annotations[nodepatch.Annotation], node.Annotations[nodepatch.Opened], failedTaint)
	isUnverified := condition.Status != corev1.ConditionTrue
	switch {
	case w.options.workers && !gated && node.Annotations[nodepatch.Annotation] == "" && (!t.tainted || t.opened.IsZero()):
		return "" // it was never gated, or lost the startup taint to a client that did not open it
	case isBroken && !gated: // its agent cannot write, and by design the agent of such a node need not
		return ""
	case isOneShot && labelled && (t.putBack || gated): // no agent is left to notice what others put back
		// A clock of the API server that jumps by an hour makes a new Node look old: its late startup taint is not waited for.
		looksOld := w.mostSkew != 0 && t.released.Before(t.gatedAt)
		if t.putBack || !gated || looksOld {
			return ""
		}
		return "has label and startup taint"
	case !labelled:
		return "is not released: " + w.podTexts(node.Name)
	case gated:
		return "has label and startup taint"
	case fleet.HasTaint(node, failedTaint) && (!isOneShot || !t.putBack):
		return "has the failed taint"
	case w.options.workers && hasWorkers:
		return "still has workers: " + w.podTexts(node.Name)
	case w.options.workers && isUnverified && wasGated, condition.Type != "" && isUnverified && !isOneShot && (w.options.controller || w.options.recheck > 0):
		return fmt.Sprintf("its condition is %q %s", condition.Status, condition.Reason)
	}
	return ""
}

// isOverdue reports whether a node must have been opened: all the time nothing but its network was wrong.
func (j *judge) isOverdue(m *machine, node *corev1.Node) bool {
	w, t := j.w, j.of(node)
	limit := w.options.initial + w.round() + 2*time.Minute
	ran := slices.ContainsFunc(slices.Collect(maps.Values(m.runs)), func(r *run) bool {
		return r.process != nil && !r.process.dead && !r.broken && time.Since(r.process.started) > limit
	})
	return w.options.opens() && ran && !t.gatedAt.IsZero() && time.Since(t.gatedAt) > limit && time.Since(m.disturbed) > limit && m.held == 1 && w.mostSkew == 0 &&
		time.Since(t.cniEnds) > limit && t.cniSince.IsZero() && t.unmet.IsZero() && node.DeletionTimestamp == nil && node.Labels[label] == "" &&
		slices.ContainsFunc(w.faults, func(f *fault) bool {
			return f.one == m && slices.Equal(f.layers, []string{"network", "service"}) && time.Since(f.began) > limit
		})
}

// shows is how long a node that fails its rechecks may say nothing of it.
func (w *world) shows() time.Duration {
	return time.Duration(1.2*float64((failureThreshold+1)*w.options.recheck)) + w.round() + 3*time.Minute
}

// unseen looks for a node that fails alone, for long, and is not re-tainted.
func (j *judge) unseen() {
	w := j.w
	failing := 0
	for _, of := range w.releases() {
		n, _ := j.count(of, func(node *corev1.Node) bool {
			return j.isRetainted(node) || j.condition(node).Status == corev1.ConditionFalse
		})
		failing = max(failing, n)
	}
	for _, f := range w.faults {
		if failing > 1 {
			f.crowded = time.Now() // it takes the budget, or holds the breaker
		}
		m, lasts := f.one, min(time.Since(f.began), time.Since(f.crowded))
		if m == nil || !w.options.retaint || w.hasOtherSettings() || lasts < 3*w.shows()+2*time.Minute || m.held != 1 || m.disturbed.After(f.began.Add(-w.shows())) ||
			w.quiet.After(f.began) || !slices.Contains(f.layers, "network") || f.layers[0] == "sandbox" || len(w.faults) > 1 {
			continue
		}
		node := w.node(m.name)
		if node == nil || failing > 1 || j.isRetainted(node) || node.Labels[label] != "true" || fleet.HasTaint(node, startupTaint) || fleet.Untouchable(node) != "" ||
			!j.of(node).tainted || j.hasRole(node) || time.Since(j.of(node).opened) < w.options.coolDown+lasts {
			continue
		}
		w.fail(m.name, ruleLiveness, "fails alone for %s, and is not re-tainted", lasts)
	}
}

func (w *world) podTexts(node string) string {
	var texts []string
	for _, pod := range w.podsOf(node) {
		texts = append(texts, fmt.Sprintf("%s %s %v", pod.Name, pod.Status.Phase, pod.Status.ContainerStatuses))
	}
	return fmt.Sprint(texts)
}

// patience is how long a node that works may wait at most: the longest pause and one round.
func (w *world) patience(broken bool) time.Duration {
	wait := w.round() + 12*time.Minute
	if w.options.recheck > 0 {
		wait += 5 * time.Duration(1.2*float64(w.options.recheck))
	}
	if broken {
		wait += time.Hour
	}
	return wait
}
