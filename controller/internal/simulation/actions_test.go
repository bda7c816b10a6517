//go:build !race

package simulation

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// The rules for what the controller does to nodes: each re-taint and each deletion has a cause that the simulation has put there
// itself, and keeps to docs/controller.md.
const (
	ruleCause    = "8: a re-taint and a deletion have a cause that is true of the machine, and that another machine would not have"
	ruleWithhold = "9: what docs/controller.md says withholds a re-taint or a deletion does"
)

// noticed is how long a fault may be there until a round of the controller's own checks has failed: the rounds begin every 30 s,
// and a result counts for a minute.
const noticed = 2 * time.Minute

// staleFalse is how old a False may be that a node is re-tainted by, with what a decision takes after it has read the cache.
const staleFalse = 7*time.Minute + 30*time.Second + slack

// overlaps reports whether a fault was there at some time between two.
func (f *fault) overlaps(from, to time.Time) bool {
	return f.began.Before(to) && (f.ended.IsZero() || f.ended.After(from))
}

func (s span) overlaps(from, to time.Time) bool {
	return s.from.Before(to) && (s.to.IsZero() || s.to.After(from))
}

// breaksAny reports whether a fault is one of some layers.
func (f *fault) breaksAny(layers ...string) bool {
	return slices.ContainsFunc(f.broke, func(layer string) bool { return slices.Contains(layers, layer) })
}

// causes are the layers by which a check, or the start of an agent, fails for a reason of the condition.
var causes = map[string][]string{
	"DNSFailed": {"dns"}, "APIFailed": {"api"}, "NetworkFailed": {"network"}, "ServiceFailed": {"service"}, "PeersFailed": {"peers"},
	"SandboxFailed": {"sandbox"}, "Silent": {"api", "sandbox", "dns", "network", "service"},
}

// hasCause reports whether something was wrong with a machine between two times that is a cause of one reason of the condition.
func (j *judge) hasCause(m *machine, t *truth, reason string, from, to time.Time) bool {
	if reason == "NodeFailed" {
		return slices.ContainsFunc(t.lacked, func(s span) bool { return s.overlaps(from, to) })
	}
	isCause := func(f *fault) bool {
		hinders := f.trouble != (troubles{}) && (reason == "APIFailed" || reason == "Silent")
		return f.on(nil, m) && f.overlaps(from, to) && (f.breaksAny(causes[reason]...) || hinders)
	}
	if slices.ContainsFunc(j.w.past, isCause) {
		return true
	}
	hasBrokenSandbox := slices.ContainsFunc(m.all, func(r *run) bool {
		return r.broken && reason != "SandboxFailed" && slices.ContainsFunc(r.spans, func(s span) bool { return s.overlaps(from, to) })
	})
	if hasBrokenSandbox && time.Since(t.failsAt) > j.w.renewal(!t.released.IsZero()) { // the time for a renewal is over
		return true
	}
	return reason == "Silent" && (hasBrokenSandbox || j.lacksAgent(m, from, to))
}

// passes is how long an agent takes at most to pass: on a verified node one round more than it needs to recover.
func (w *world) passes(isVerified bool) time.Duration {
	if isVerified {
		return time.Duration(1.2 * float64((recoveryThreshold+1)*w.options.recheck))
	}
	return w.options.initial
}

// renewal is how long the failure of a node may be the sandbox of its agent: see "A fresh sandbox".
func (w *world) renewal(isVerified bool) time.Duration {
	return w.passes(isVerified) + 5*time.Minute - slack
}

// lacksAgent reports whether no agent ran on a machine for some time between two.
func (j *judge) lacksAgent(m *machine, from, to time.Time) bool {
	var ran time.Duration
	for _, r := range m.all {
		for _, s := range r.spans {
			end := s.to
			if end.IsZero() || end.After(to) {
				end = to
			}
			if s.from.After(from) {
				ran += max(0, end.Sub(s.from))
			} else {
				ran += max(0, end.Sub(from))
			}
		}
	}
	return ran < to.Sub(from)-slack
}

// lacksCause returns the first reason of a node's condition that nothing was a cause of since then, or "".
func (j *judge) lacksCause(node *corev1.Node, since, until time.Time) string {
	for _, reason := range strings.Split(j.condition(node).Reason, ",") {
		if !j.hasCause(j.w.machines[node.Name], j.of(node), reason, since, until) {
			return reason
		}
	}
	return ""
}

// ownFault says what fails the checks in a controller's own pod now, or has failed them until less than since ago, or "".
func (j *judge) ownFault(p *process, at time.Time, since time.Duration) string {
	for _, f := range j.w.past {
		until := f.ended
		if until.IsZero() {
			until = at
		}
		if f.breaksAny("dns", "network", "service") && f.on(p, p.machine) && until.Sub(f.began) > noticed && at.Sub(until) < since {
			return fmt.Sprintf("%s failed the checks in its own pod for %s until %s ago", f.kind, until.Sub(f.began), at.Sub(until))
		}
	}
	return ""
}

// unproven says what the controller's own pod has not proven about a node that fails since then, or "": the checks must have
// passed there since, and after an outage for as long as an agent takes to recover.
func (j *judge) unproven(q request, fails time.Time) string {
	recovers := time.Duration(1.2 * float64(recoveryThreshold*j.w.options.recheck))
	for _, f := range j.w.past {
		if !f.breaksAny("dns", "network", "service") || !f.on(q.from, q.from.machine) || fails.IsZero() {
			continue
		}
		if !f.began.After(fails) && f.ended.IsZero() {
			return fmt.Sprintf("%s fails the checks in its own pod since the node failed, or longer", f.kind)
		}
		isOutage := f.ended.Sub(f.began) > noticed && q.from.started.Before(f.began) && fails.Before(f.ended)
		if isOutage && q.at.Sub(f.ended) < time.Minute+recovers-slack {
			return fmt.Sprintf("%s failed the checks in its own pod until %s ago, and the node failed before", f.kind, q.at.Sub(f.ended))
		}
	}
	if leads := q.at.Sub(q.from.started); leads < time.Minute {
		return fmt.Sprintf("it has run for %s only: its checks cannot have passed for a minute", leads)
	}
	return j.ownFault(q.from, q.at, time.Minute)
}

// lacksFreshAgent says that a node fails for a reason that the sandbox of its agent can cause, and no agent in another sandbox has
// failed too, or "".
func (j *judge) lacksFreshAgent(m *machine, node *corev1.Node) string {
	w, t := j.w, j.of(node)
	first, _, _ := strings.Cut(j.condition(node).Reason, ",")
	isVerified := node.Labels[label] == "true"
	isSuspected := slices.Contains([]string{"DNSFailed", "APIFailed", "NetworkFailed", "ServiceFailed", "Silent"}, first)
	if !isSuspected || w.options.workers || m.boot > 1 || w.mostSkew > 0 || t.failsAt.IsZero() || time.Since(t.failsAt) > w.renewal(isVerified) {
		return ""
	}
	hasOld := false
	for _, r := range m.all {
		isNew := r.made.After(t.failsAt.Add(-time.Second))
		if isNew && len(r.spans) == 0 && time.Since(r.made) > 3*time.Minute-slack { // NOT_STARTED_AFTER: that is a failure of its own
			return ""
		}
		for _, s := range r.spans {
			hasOld = hasOld || s.from.Add(slack).Before(t.failsAt) && s.overlaps(t.failsAt.Add(-slack), t.failsAt)
			if isNew && time.Since(s.from) > w.passes(isVerified)-slack {
				return ""
			}
		}
	}
	if !hasOld { // no agent has started: that is the failure
		return ""
	}
	return fmt.Sprintf("no agent in a fresh sandbox has failed too since %s", time.Since(t.failsAt))
}

// ownNode says since when a controller's own node is not fit to decide from, or "".
func (j *judge) ownNode(q request) string {
	node := j.w.node(q.from.machine.name)
	if node == nil || releaseOf(node) != q.from.release {
		return ""
	}
	t, shown := j.of(node), j.w.shown(q.from)
	lasts := func(at time.Time) bool { return !at.IsZero() && q.at.Sub(at) > shown }
	switch {
	case lasts(t.gatedAt) && node.Labels[label] == "":
		return "waits for its release since " + t.gatedAt.String()
	case lasts(t.retainted):
		return "is re-tainted"
	case lasts(t.failsAt) && node.Labels[label] == "true" && j.w.options.recheck > 0:
		return "fails since " + t.failsAt.String()
	}
	return ""
}

// isLeftOut reports whether a node has a taint that keeps agents away.
func (w *world) isLeftOut(node *corev1.Node) bool {
	return w.options.evicts && fleet.HasTaint(node, evictTaint)
}

// retaintCause is rules 8 and 9 at a re-taint.
func (j *judge) retaintCause(q request, was *corev1.Node) {
	w, t := j.w, j.of(was)
	condition := j.condition(was)
	withheld := func(format string, args ...any) {
		w.fail(was.Name, ruleWithhold, q.from.name+" re-taints a node "+format, args...)
	}
	if condition.Status != corev1.ConditionFalse {
		withheld("whose condition is %q", condition.Status)
	}
	if age := q.at.Sub(t.saidFalse); age > staleFalse+w.longestLag(q.from) {
		withheld("whose condition was written %s ago", age)
	}
	if !q.from.retaints {
		withheld("although re-taint is off")
	}
	if since := q.at.Sub(q.from.retainted[string(was.UID)]); since < w.options.coolDown-slack {
		withheld("that it has re-tainted %s ago", since)
	}
	if why := j.unproven(q, t.failsAt); why != "" {
		withheld("although %s", why)
	}
	if why := j.ownNode(q); why != "" {
		withheld("although its own node %s", why)
	}
	if why := j.lacksFreshAgent(w.machines[was.Name], was); why != "" {
		withheld("although %s", why)
	}
	group := func(node *corev1.Node) bool {
		return w.machines[node.Name] != nil && w.machines[node.Name].pool == w.machines[was.Name].pool
	}
	failed, _ := j.count(q.from.release, func(node *corev1.Node) bool { return group(node) && j.isRetainted(node) })
	if _, all := j.count(q.from.release, group); failed+1 > max(1, (all+2)/10) {
		withheld("of a group of which %d of %d have the failed taint", failed, all)
	}
	if condition.Reason == "PeersFailed" {
		ready := func(node *corev1.Node) bool { return node.UID != was.UID && fleet.IsNodeReady(node) }
		if others, _ := j.count(q.from.release, ready); others < 3 && q.at.Sub(w.quiet) > time.Minute {
			withheld("whose peers do not answer, and %d others are ready", others)
		}
	}
	rounds := w.round() + 30*time.Second
	if condition.Reason == "Silent" { // it shows that an agent is not ready after rounds that failed, and for as long as it takes to recover
		rounds += w.shows()
	}
	if reason := j.lacksCause(was, t.saidFalse.Add(-rounds), q.at); reason != "" {
		w.fail(was.Name, ruleCause, "%s re-taints a node for %s, and nothing was wrong since %s before its condition was written", q.from.name, reason, rounds)
	}
	q.from.retainted[string(was.UID)] = q.at
	w.counts.writes["re-tainted"]++
}

// longestLag is how far behind the caches of a process may be.
func (w *world) longestLag(p *process) (longest time.Duration) {
	for _, f := range w.faults {
		if f.on(p, p.machine) {
			longest = max(longest, f.lag, 2*f.trouble.before, 2*f.trouble.behind)
		}
	}
	return longest
}

// deleteAfter is the age from which nodes are replaced.
const deleteAfter = 5 * time.Minute

// ledgerAhead is how long before a deletion its entry in the ledger may have been made, by whose time pauses and budgets are counted.
const ledgerAhead = time.Minute

// deletionCause is rules 8 and 9 at a deletion of a node, or of its NodeClaim.
func (j *judge) deletionCause(q request, node *corev1.Node) {
	w, t, m := j.w, j.of(node), j.w.machines[node.Name]
	w.counts.writes["deleted"]++
	withheld := func(format string, args ...any) {
		w.fail(node.Name, ruleWithhold, q.from.name+" deletes a node "+format, args...)
	}
	since := func(at time.Time) time.Duration { return q.at.Sub(at) }
	isSteady := w.mostSkew == 0
	isGated := fleet.HasTaint(node, startupTaint)
	switch {
	case !isGated && t.ungated.IsZero(), !isGated && since(t.ungated) > slack:
		withheld("that lost the startup taint %s ago", since(t.ungated))
	case !t.released.IsZero() && since(t.released) > slack:
		withheld("that was verified %s ago", since(t.released))
	case !t.cordoned.IsZero() && since(t.cordoned) > slack:
		withheld("that is cordoned since %s", since(t.cordoned))
	case !t.keptSince.IsZero() && since(t.keptSince) > slack:
		withheld("that has %s since %s", keepsNode(node.Labels, node.Annotations), since(t.keptSince))
	case q.resource == "nodeclaims" && keepsNode(w.claimKeys(m)) != "":
		withheld("whose NodeClaim has %s", keepsNode(w.claimKeys(m)))
	case q.resource == "nodes" && (!w.options.deleteNodes || m.pool.karpenter):
		withheld("itself, although nothing would replace it: deleteNodes is %t, NodePool %t", w.options.deleteNodes, m.pool.karpenter)
	case isSteady && since(t.created) < deleteAfter-slack:
		withheld("that was created %s ago", since(t.created))
	}
	if why := j.unproven(q, time.Time{}); why != "" {
		withheld("although %s", why)
	}
	if why := j.ownNode(q); why != "" {
		withheld("although its own node %s", why)
	}
	if why := j.lacksFreshAgent(m, node); why != "" {
		withheld("although %s", why)
	}
	if why := j.loops(q, m); why != "" && isSteady {
		withheld("although %s", why)
	}
	if !j.hasProof(node) && isSteady {
		withheld("although no node that was created after it has been verified")
	}
	var failed []string
	all := 0
	for key := range w.now["nodes"] {
		other := read[corev1.Node](w, "nodes", key)
		if w.machines[other.Name] == nil || w.machines[other.Name].pool != m.pool {
			continue
		}
		if all++; j.fails(q.from, other) {
			failed = append(failed, other.Name+" for "+j.condition(other).Reason)
		}
	}
	if len(failed) > max(1, (all+4)/5) {
		withheld("of a group of which %d of %d nodes fail: %q", len(failed), all, failed)
	}
	condition := j.condition(node)
	if condition.Status != corev1.ConditionFalse && since(t.saidOther) < slack {
		return // its agent is about to release it
	}
	switch { // what the controller itself has found, it may not have been able to write
	case condition.Status != corev1.ConditionFalse && since(q.from.hindered) > time.Minute:
		withheld("whose condition is %q", condition.Status)
	// The condition may be written half a minute after the verdict of the worker, and is not written while the node is cordoned.
	// A reason that was written while the deletion was under way says nothing about the decision.
	case since(t.uncordoned) > w.options.failedFor && !t.reasonSince.After(q.at) && since(t.reasonSince) < w.options.failedFor-slack-20*time.Second && since(q.from.hindered) > w.options.failedFor:
		withheld("that has failed for %s only for %s", condition.Reason, since(t.reasonSince))
	}
	first, _, _ := strings.Cut(condition.Reason, ",")
	_, isCurable := causes[first]
	if isCurable = isCurable || first == "NodeFailed" && w.options.replacesUnmet(); !isCurable && since(q.from.hindered) > time.Minute {
		w.fail(node.Name, ruleCause, "%s deletes a node for %s", q.from.name, condition.Reason)
	}
	// The agent's round that counted has begun by then, and so has the time in which the controller may find that no agent runs.
	rounds := max(w.options.failedFor, w.round()) + time.Minute + 30*time.Second
	if isCaused := j.hasCause(m, t, first, q.at.Add(-rounds), q.at); !isCaused {
		w.fail(node.Name, ruleCause, "%s deletes a node for %s, and no such thing was wrong with it for %s", q.from.name, condition.Reason, rounds)
	}
	if why := j.incurable(m, t, q.at); why != "" {
		w.fail(node.Name, ruleCause, "%s deletes a node for %s, but all that is wrong with it is %s", q.from.name, condition.Reason, why)
	}
}

// incurable says what keeps a machine from being verified that another machine would not cure, if there was nothing else for the
// time that counts, or "".
func (j *judge) incurable(m *machine, t *truth, at time.Time) string {
	from := at.Add(-j.w.options.failedFor - max(j.w.round(), j.w.options.initial) - time.Minute)
	isElse := func(f *fault) bool {
		return f.on(nil, m) && f.overlaps(from, at) && (f.trouble != (troubles{}) || f.breaksAny("dns", "api", "network", "service", "sandbox"))
	}
	if slices.ContainsFunc(j.w.past, isElse) || slices.ContainsFunc(m.all, func(r *run) bool { return r.broken }) || m.boot > 1 {
		return ""
	}
	for _, f := range j.w.past {
		if f.on(nil, m) && f.ended.IsZero() && f.began.Before(from) && f.breaksAny("image", "room", "crash") {
			return f.kind
		}
	}
	switch {
	case !t.cniSince.IsZero() && t.cniSince.Before(from):
		return "a foreign taint"
	case !t.unmet.IsZero() && t.unmet.Before(from) && !j.w.options.replacesUnmet():
		return "an unmet requirement"
	}
	return ""
}

// keepsNode returns the key of a label or annotation that keeps a node from being deleted, or "".
func keepsNode(labels, annotations map[string]string) string {
	for _, key := range []string{"karpenter.sh/do-not-disrupt", "node-ready/do-not-delete"} {
		_, isLabel := labels[key]
		if _, isAnnotation := annotations[key]; isLabel || isAnnotation {
			return key
		}
	}
	return ""
}

// claimKeys returns the labels and annotations of a machine's NodeClaim.
func (w *world) claimKeys(m *machine) (labels, annotations map[string]string) {
	claim := read[meta](w, "nodeclaims", "/"+m.claim)
	if claim == nil {
		return nil, nil
	}
	return claim.Labels, claim.Annotations
}

// fails reports whether a node has shown for some time that it is not verified, or is being deleted by us. What its condition says
// counts for each leader, however short a time it has led.
func (j *judge) fails(p *process, node *corev1.Node) bool {
	t, w := j.of(node), j.w
	if slices.ContainsFunc(j.deletions, func(d deletion) bool { return d.uid == string(node.UID) }) {
		return true
	}
	isGated := node.Labels[label] == "" && fleet.HasTaint(node, startupTaint) && fleet.Untouchable(node) == ""
	return isGated && !t.reasonSince.IsZero() && time.Since(t.reasonSince) > w.shown(p)
}

// shown is how long a controller may not know yet what an object shows.
func (w *world) shown(p *process) time.Duration {
	hinders := func(f *fault) bool {
		isInWay := f.lag > 0 || f.trouble != (troubles{}) || f.breaksAny("api")
		return isInWay && f.on(p, p.machine) && f.overlaps(time.Now().Add(-5*time.Minute), time.Now())
	}
	if time.Since(p.started) < time.Minute || slices.ContainsFunc(w.past, hinders) {
		return 5 * time.Minute
	}
	return time.Minute
}

// hasProof reports whether a node that was created after another one has been verified, and was still there a short time ago.
func (j *judge) hasProof(node *corev1.Node) bool {
	for key := range j.w.now["nodes"] {
		if other := read[corev1.Node](j.w, "nodes", key); other.Labels[label] == "true" && releaseOf(other) == releaseOf(node) && node.CreationTimestamp.Before(&other.CreationTimestamp) {
			return true
		}
	}
	created := j.of(node).created
	for _, t := range j.truths {
		isSelected := j.w.machines[t.name] != nil && j.w.machines[t.name].pool.release == releaseOf(node)
		if isSelected && t.isProven && t.created.After(created) && (t.gone.IsZero() || time.Since(t.gone) < 5*time.Minute) {
			return true
		}
	}
	return false
}

// loops says which deletions have led to no verified node, so that the next one must wait, or "".
func (j *judge) loops(q request, m *machine) string {
	pauses := []time.Duration{30 * time.Minute, time.Hour, 2 * time.Hour}
	for _, of := range []*pool{m.pool, nil} {
		var unanswered []deletion
		for _, d := range j.deletions {
			if d.pool.release == m.pool.release && (of == nil || d.pool == of) && !j.isAnswered(d, of) && d.at.After(j.cleared) {
				unanswered = append(unanswered, d)
			}
		}
		scope := "the cluster"
		if of != nil {
			scope = of.name
		}
		n := len(unanswered)
		switch {
		case n > len(pauses):
			return fmt.Sprintf("%d deletions in %s have led to no verified node", n, scope)
		case n > 0 && q.at.Sub(unanswered[n-1].at) < pauses[n-1]-ledgerAhead:
			return fmt.Sprintf("%d deletions in %s have led to no verified node, the last one %s ago", n, scope, q.at.Sub(unanswered[n-1].at))
		}
	}
	return ""
}

// isAnswered reports whether a node has been verified that was created after a deletion, in its group or in the cluster.
func (j *judge) isAnswered(d deletion, of *pool) bool {
	for _, t := range j.truths {
		m := j.w.machines[t.name]
		if t.serves && t.created.After(d.at.Add(-2*time.Second)) && m != nil && m.pool.release == d.pool.release && (of == nil || m.pool == of) {
			return true
		}
	}
	return false
}
