//go:build !race

package simulation

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// A stage is a world in which nearly everything that happens is about one action of the controller, so that a few hundred seeds
// meet each protection of it.
const (
	stageRetaint     = "re-taint"
	stageRemediation = "remediation"
)

// drawStage makes a stage of more than half of the worlds. It draws from a stream of its own: the other worlds stay as they were.
func (o *options) drawStage(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 3))
	chance := func(p float64) bool { return r.Float64() < p }
	switch draw := r.Float64(); {
	case draw < 0.35:
		o.stage = stageRetaint
	case draw < 0.75:
		o.stage = stageRemediation
	default:
		return
	}
	o.controller, o.workers, o.alone, o.triggers, o.reboots = true, false, false, 0, false
	o.check, o.initial, o.linger, o.onTimeout, o.condition = 3*time.Second, time.Minute, 0, "condition", "auto"
	o.waitFor, o.require = "cni.example.com/", `[{"allocatable":"`+gpu+`>=8"}]`
	o.inFleet, o.replicas = chance(0.7), []int{1, 1, 2}[r.IntN(3)]
	o.pools = 1 + r.IntN(3)
	o.recheck, o.retaint, o.coolDown = time.Minute, chance(0.9), 30*time.Minute
	o.nodes = []int{6, 10, 11, 12}[r.IntN(4)]
	o.evicts = chance(0.4)
	if chance(0.5) { // longer than it takes until a new node is old enough
		o.failedFor = 7 * time.Minute
	}
	if o.stage == stageRetaint {
		o.remediates, o.deleteNodes, o.bad = chance(0.2), false, 0
		if chance(0.4) {
			o.condition = "always"
		}
		return
	}
	o.remediates, o.deleteNodes, o.bad, o.long = true, chance(0.5), []float64{0.1, 0.15, 0.25}[r.IntN(3)], chance(0.3)
	o.nodes = []int{9, 10, 15, 18}[r.IntN(4)]
	switch draw := r.Float64(); {
	case o.long: // deletions have a budget for a day, and halt after hours
		o.recheck, o.retaint, o.inFleet, o.nodes, o.replicas, o.pools = 0, false, false, 10, 1, []int{1, 2, 5}[r.IntN(3)]
		o.bad = 0.35
	case draw < 0.15:
		o.workers, o.recheck, o.retaint, o.onTimeout = true, 0, false, "keep"
	case draw < 0.6: // verified nodes cost nothing then
		o.recheck, o.retaint, o.nodes = 0, false, []int{15, 30, 31}[r.IntN(3)]
	}
}

// scenes are what happens on a stage, by name. The lock is held when one is called.
func (w *world) scenes() map[string]func() {
	switch {
	case w.options.long && w.options.pools == 5: // no new node is verified
		return map[string]func(){"nothing": func() {}}
	case w.options.long:
		return map[string]func(){"shrink": w.shrink}
	case w.options.stage == stageRemediation:
		return map[string]func(){
			"gate again": w.gateFailing, "grow": w.grow, "shrink": w.shrink, "churn": w.shrink,
		}
	}
	return map[string]func(){
		"some fail": w.someFail, "flaps": w.flaps, "cordoned": w.failsCordoned, "stale": w.failsUnsaid, "broken sandbox": w.breaksSandbox,
		"opened": w.failsOpened, "outage": w.controllersFail, "at once": w.failsAtOnce, "own node": w.ownNodeFails, "settings": w.failsUnwatched,
		"peers": w.peersFail, "evicted": w.evictsAgent, "behind": w.failBehindCache,
	}
}

// rareScenes are what a world has beside its other scenes, by name: see drawMore. The lock is held when one is called.
func (w *world) rareScenes() map[string]func() {
	return map[string]func(){
		"gated-behind": w.gateBehindCache, "opened-before": w.openBeforeLeader, "few-peers": w.peersFailAlone, "drained": w.failsBesideDrained, "kept-away": w.failsKeptAway, newLeaders: w.endControllers,
		"open-failing": func() {
			if m := w.failing(); m != nil {
				w.play(func() { w.open(m) })
			}
		},
		"cordon-failing": func() {
			if m := w.failing(); m != nil {
				w.cordon(m, 30*time.Minute)
			}
		},
		"label-failing": func() {
			if m := w.failing(); m != nil {
				w.tell(m.name, "somebody", "labels it by hand")
				w.editNode(m.name, func(node *corev1.Node) { node.Labels[label] = "true" })
				m.disturb()
			}
		},
	}
}

// failing returns a machine that waits for its release, is not cordoned, and whose condition is False, or nil.
func (w *world) failing() *machine {
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		if node := w.node(name); node != nil && node.Labels[label] == "" && !node.Spec.Unschedulable && fleet.HasTaint(node, startupTaint) && w.judge.isFalse(node) {
			return w.machines[name]
		}
	}
	return nil
}

// gateBehindCache gates a node again that has just been found to fail, while the controllers' caches still show it verified.
func (w *world) gateBehindCache() {
	for _, m := range w.verified(1, false) {
		w.lacks(m, 20*time.Minute)
		w.when(m, 10*time.Minute, w.judge.isFalse, func() {
			w.breaks(&fault{kind: "lag", on: inControllers, about: "nodes", lag: 2 * time.Minute}, "in the controllers' pods", 3*time.Minute)
			w.gateAgain(m)
		})
	}
}

// openBeforeLeader opens a node that has been re-tainted and still fails, and ends the controllers: the next leader has only the
// annotation to know it by.
func (w *world) openBeforeLeader() {
	for _, m := range w.verified(1, false) {
		w.lacks(m, 25*time.Minute)
		w.when(m, 20*time.Minute, w.judge.isRetainted, func() {
			w.play(func() { w.open(m) })
			w.later(30*time.Second, w.endControllers)
		})
	}
}

// endControllers lets new leaders begin.
func (w *world) endControllers() {
	for _, c := range w.replicas {
		c.end(true)
	}
}

// failsKeptAway lets so many nodes fail that the cause is common, keeps their agents away, and lets one more fail.
func (w *world) failsKeptAway() {
	some := w.verified(4, false)
	if len(some) < 4 {
		return
	}
	for _, m := range some[:3] {
		w.lacks(m, 25*time.Minute)
		w.when(m, 10*time.Minute, w.judge.isFalse, func() { w.evict(m, 20*time.Minute) })
	}
	w.later(3*time.Minute, func() {
		if m := some[3]; !m.gone {
			w.lacks(m, 15*time.Minute)
		}
	})
}

// failsBesideDrained lets two nodes fail beside one that has been re-tainted and is drained: three are too many.
func (w *world) failsBesideDrained() {
	for _, m := range w.verified(1, false) {
		w.lacks(m, 40*time.Minute)
		w.when(m, 20*time.Minute, w.judge.isRetainted, func() {
			w.cordon(m, 35*time.Minute)
			for _, other := range w.verified(2, false) {
				w.breaksNode(other, 25*time.Minute)
			}
		})
	}
}

// peersFailAlone lets the peers of a node not answer, and nearly all other nodes go down just before the node says so.
func (w *world) peersFailAlone() {
	for _, m := range w.verified(1, false) {
		w.breaks(&fault{kind: "peers do not answer", on: only(m), layers: []string{"peers"}}, m.name, 15*time.Minute)
		w.later(w.between(2*time.Minute, 3*time.Minute), func() {
			others := w.verified(len(w.machines), false)
			for _, other := range others[:max(0, len(others)-w.random.IntN(2))] {
				w.play(func() { other.reboot(10 * time.Minute) })
			}
		})
	}
}

// verified returns up to n machines whose nodes are verified and undisturbed, of one group or of any.
func (w *world) verified(n int, sameGroup bool) (found []*machine) {
	var all []*machine
	for _, m := range w.machines {
		if node := w.node(m.name); node != nil && m.up && !m.gone && m.held == 0 && node.Labels[label] == "true" && w.judge.works(m.name) {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *machine) int { return strings.Compare(a.name, b.name) })
	w.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, m := range all {
		if len(found) < n && (!sameGroup || len(found) == 0 || m.pool == found[0].pool) {
			found = append(found, m)
		}
	}
	return found
}

// breaksNode lets the network of one machine fail.
func (w *world) breaksNode(m *machine, d time.Duration) {
	layers := oneOf(w, []string{"network", "service"}, []string{"dns"}, []string{"network", "service", "dns"})
	w.breaks(&fault{kind: "one fails", on: only(m), layers: layers}, m.name, d)
}

// lacks lets a node lack a requirement for some time, or fail in another way if there is none.
func (w *world) lacks(m *machine, d time.Duration) {
	if w.options.require == "" {
		w.breaksNode(m, d)
		return
	}
	w.tell(m.name, "FAULT", "has no GPUs for %s", d)
	set := func(gpus int) {
		m.gpus = gpus
		w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		m.disturb()
	}
	set(0)
	w.later(d, func() { set(8) })
}

// when waits until something is true of a machine's Node, and then does something.
func (w *world) when(m *machine, longest time.Duration, is func(*corev1.Node) bool, do func()) {
	w.play(func() {
		for end := time.Now().Add(longest); time.Now().Before(end) && w.sleep(5*time.Second); {
			w.mu.Lock()
			node := w.node(m.name)
			done := m.gone || node != nil && is(node)
			if done && !m.gone && node != nil {
				do()
			}
			w.mu.Unlock()
			if done {
				return
			}
		}
	})
}

func (j *judge) isFalse(node *corev1.Node) bool {
	return j.condition(node).Status == corev1.ConditionFalse
}

func inControllers(p *process, _ *machine) bool { return p != nil && p.controller }

// controllersFail lets the checks fail in the controllers' own pods, and on no node or on a few.
func (w *world) controllersFail() {
	some := w.verified(w.random.IntN(3), false)
	on := func(p *process, m *machine) bool { return inControllers(p, m) || m != nil && slices.Contains(some, m) }
	w.breaks(&fault{kind: "outage", on: on, layers: oneOf(w, []string{"network", "service"}, []string{"api", "dns"}, []string{"dns"})}, "in the controllers' pods", w.between(3*time.Minute, 20*time.Minute))
}

// someFail lets some nodes fail at nearly the same time, so that budgets and breakers matter; the controllers' caches may be behind.
func (w *world) someFail() {
	for _, m := range w.verified(oneOf(w, 1, 2, 2, 3, 4), w.chance(0.5)) {
		w.later(w.between(0, time.Minute), func() { w.breaksNode(m, w.between(12*time.Minute, 25*time.Minute)) })
	}
	if w.chance(0.4) {
		w.later(w.between(3*time.Minute, 9*time.Minute), func() {
			w.breaks(&fault{kind: "lag", on: inControllers, about: "nodes", lag: 2 * time.Minute}, "in the controllers' pods", 5*time.Minute)
		})
	}
}

// failBehindCache lets two nodes of a group fail at once, and the controllers' caches be behind when the first one is re-tainted.
func (w *world) failBehindCache() {
	for _, m := range w.verified(2, true) {
		w.lacks(m, 20*time.Minute)
	}
	w.later(2*time.Minute, func() {
		w.breaks(&fault{kind: "lag", on: inControllers, about: "nodes", lag: 2 * time.Minute}, "in the controllers' pods", 10*time.Minute)
	})
}

// flaps lets a node fail, recover and fail again within the cool-down.
func (w *world) flaps() {
	for _, m := range w.verified(1, false) {
		w.lacks(m, 11*time.Minute)
		w.later(17*time.Minute, func() {
			if !m.gone && m.held == 0 {
				w.breaksNode(m, 20*time.Minute)
			}
		})
	}
}

// failsCordoned cordons a node that has just been found to fail.
func (w *world) failsCordoned() {
	for _, m := range w.verified(1, false) {
		w.breaksNode(m, 20*time.Minute)
		w.when(m, 10*time.Minute, w.judge.isFalse, func() { w.cordon(m, 15*time.Minute) })
	}
}

func (w *world) cordon(m *machine, d time.Duration) {
	w.tell(m.name, "somebody", "cordons it for %s", d)
	m.hold()
	w.editNode(m.name, func(node *corev1.Node) { node.Spec.Unschedulable = true })
	w.later(d, func() {
		w.editNode(m.name, func(node *corev1.Node) { node.Spec.Unschedulable = false })
		m.release()
	})
}

// failsUnsaid ends a failure while no agent is there to say so: the last word about the node is old when it is uncordoned.
func (w *world) failsUnsaid() {
	for _, m := range w.verified(1, false) {
		w.breaksNode(m, 5*time.Minute)
		w.when(m, 6*time.Minute, w.judge.isFalse, func() {
			w.cordon(m, 8*time.Minute+30*time.Second)
			w.breaks(&fault{kind: "image pull fails", on: only(m), layers: []string{"image"}}, m.name, 12*time.Minute)
			w.expelPods(m)
		})
	}
}

func (w *world) expelPods(m *machine) {
	for _, pod := range w.podsOf(m.name) {
		w.expel("pods", namespace+"/"+pod.Name)
	}
}

// breaksSandbox gives an agent a sandbox that stays broken on a machine that works.
func (w *world) breaksSandbox() {
	for _, m := range w.verified(1, false) {
		w.breaks(&fault{kind: "broken sandbox", on: only(m), layers: []string{"broken sandbox"}}, m.name, 40*time.Second)
		w.expelPods(m)
	}
}

// failsOpened opens a node that has been re-tainted and still fails.
func (w *world) failsOpened() {
	for _, m := range w.verified(1, false) {
		w.breaksNode(m, 40*time.Minute)
		w.when(m, 20*time.Minute, w.judge.isRetainted, func() { w.play(func() { w.open(m) }) })
	}
}

// failsAtOnce begins an outage in the controllers' pods in the moment in which an agent writes that its node fails: see trigger.
func (w *world) failsAtOnce() {
	for _, m := range w.verified(1, false) {
		w.lacks(m, 15*time.Minute)
		m.outageAtFalse = true
	}
}

// failsUnwatched switches re-taint off while a node fails, and on again.
func (w *world) failsUnwatched() {
	for _, m := range w.verified(1, false) {
		w.breaksNode(m, 30*time.Minute)
	}
	restart := func(more map[string]string) {
		for _, c := range w.replicas {
			c.more = more
			c.end(true)
		}
	}
	restart(map[string]string{"RETAINT": "false"})
	w.later(w.between(8*time.Minute, 15*time.Minute), func() { restart(nil) })
}

// ownNodeFails lets the nodes on which the controllers run lack a requirement, or wait for a foreign taint, and another node fail.
func (w *world) ownNodeFails() {
	w.ownNodesFail(15 * time.Minute)
	for _, m := range w.verified(1, false) {
		w.breaksNode(m, 20*time.Minute)
	}
}

func (w *world) ownNodesFail(d time.Duration) {
	for _, c := range w.replicas {
		m := c.machine
		if w.machines[m.name] == nil || m.gone || m.held > 0 || w.node(m.name) == nil {
			continue
		}
		if w.options.recheck > 0 && w.chance(0.5) {
			w.lacks(m, d)
			continue
		}
		m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
		w.gateAgain(m)
		m.hold()
		w.later(d, func() { m.untaint(cniTaint); m.release() })
	}
}

// gateAgain wants a node to be verified again, with the startup taint. The lock is held.
func (w *world) gateAgain(m *machine) {
	w.tell(m.name, "somebody", "gates it again")
	w.editNode(m.name, func(node *corev1.Node) { delete(node.Labels, label) })
	m.taint(corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	m.disturb()
}

// gateFailing gates a verified node again whose network fails from then on.
func (w *world) gateFailing() {
	for _, m := range w.verified(1, false) {
		if m.gated {
			w.breaksNode(m, 25*time.Minute)
			w.gateAgain(m)
		}
	}
}

// evictsAgent puts a taint on a node that its agent does not tolerate, before or after the node fails.
func (w *world) evictsAgent() {
	for _, m := range w.verified(1, false) {
		w.later(w.between(0, 12*time.Minute), func() { w.breaksNode(m, w.between(4*time.Minute, 20*time.Minute)) })
		w.later(w.between(0, 12*time.Minute), func() { w.evict(m, w.between(3*time.Minute, 25*time.Minute)) })
	}
}

// evict is what a taint with NoExecute does to agents that do not tolerate it: the one that runs goes, and no other comes.
func (w *world) evict(m *machine, d time.Duration) {
	w.tell(m.name, "somebody", "adds a NoExecute taint for %s", d)
	m.hold()
	m.taint(corev1.Taint{Key: evictTaint, Effect: corev1.TaintEffectNoExecute})
	w.later(d, func() {
		m.untaint(evictTaint)
		m.release()
	})
}

// peersFail lets the peers of a node not answer, and then most other nodes go down.
func (w *world) peersFail() {
	some := w.verified(1, false)
	if len(some) == 0 {
		return
	}
	w.breaks(&fault{kind: "peers do not answer", on: only(some[0]), layers: []string{"peers"}}, some[0].name, 20*time.Minute)
	if len(w.machines) > 6 && w.chance(0.7) {
		return
	}
	w.later(time.Minute, func() {
		others := w.verified(len(w.machines), false)
		for _, m := range others[:max(0, len(others)-w.random.IntN(3))] {
			w.play(func() { m.reboot(15 * time.Minute) })
		}
	})
}

// grow and shrink are what an autoscaler does.
func (w *world) grow() {
	if p := oneOf(w, w.pools...); len(w.machines) < 60 {
		p.size++
	}
}
func (w *world) shrink() {
	for _, m := range w.verified(1, false) {
		if m.pool == w.pools[0] && w.options.long && len(w.pools) > 1 { // its guard alone meets no verified node
			continue
		}
		w.tell(m.name, "autoscaler", "replaces it")
		w.expel("nodes", "/"+m.name)
	}
}

// arrive lets a new machine of a stage have a flaw for its whole life, and people do something about it. The lock is held.
func (m *machine) arrive(isFirst bool) {
	w := m.w
	share := w.options.bad
	if !isFirst {
		share = m.pool.badLater
	}
	left := time.Until(w.ends)
	if isFirst && w.options.long && len(w.pools) > 1 { // one in the group that is deleted and never verified, or in each group
		share = 0
		if m.pool.machines == 1 && (len(w.pools) == 5 || m.pool == w.pools[0]) {
			share = 1
		}
	}
	if left <= 0 || !w.chance(share) || w.options.stage != stageRemediation {
		return
	}
	kinds := []string{"network", "network", "network", "network", "network", "dns", "dns", "dns", "api", "sandbox", "image", "room", "crash", "own sandbox"}
	if w.options.waitFor != "" {
		kinds = append(kinds, "foreign taint")
	}
	if w.options.require != "" {
		kinds = append(kinds, "GPUs")
	}
	switch w.options.also {
	case longTimeout:
		kinds = []string{"GPUs"}
	case ownSandboxes:
		kinds = []string{"own sandbox"}
	case newLeaders:
		kinds = []string{"crash", "sandbox", "network", "network"}
	}
	if w.options.evicts {
		kinds = append(kinds, "evicted")
	}
	if w.options.long {
		kinds = []string{"sandbox"} // costs little in all these hours
		if len(w.pools) == 1 {      // repaired, so that not too many fail at once
			left = min(left, 25*time.Minute)
		}
	}
	switch kind := oneOf(w, kinds...); kind {
	case "foreign taint":
		m.hasForeignTaint = true
		m.hold()
	case "evicted":
		m.hold()
		w.when(m, 5*time.Minute, func(*corev1.Node) bool { return true }, func() { w.evict(m, left) })
	case "GPUs":
		m.gpus = 0
		m.hold()
	case "own sandbox": // its first agent has a broken sandbox, and the next one gets none for some time
		w.breaks(&fault{kind: "bad sandbox", on: only(m), layers: []string{"broken sandbox"}}, m.name, 5*time.Minute)
		w.when(m, 15*time.Minute, w.judge.isFalse, func() {
			w.breaks(&fault{kind: "no sandbox", on: only(m), layers: []string{"sandbox"}}, m.name, 5*time.Minute)
		})
	case "network":
		w.breaks(&fault{kind: "bad machine", on: only(m), layers: []string{"network", "service"}}, m.name, left)
	default:
		w.breaks(&fault{kind: "bad machine: " + kind, on: only(m), layers: []string{kind}}, m.name, left)
	}
	if !w.options.long {
		w.later(w.between(3*time.Minute, 6*time.Minute), func() { w.attend(m) })
	}
}

// attend is what people do about a node that is not verified.
func (w *world) attend(m *machine) {
	if m.gone || w.node(m.name) == nil {
		return
	}
	mark := func(meta map[string]string) map[string]string {
		marked := map[string]string{oneOf(w, "karpenter.sh/do-not-disrupt", "node-ready/do-not-delete"): "true"}
		for key, value := range meta {
			marked[key] = value
		}
		return marked
	}
	switch w.random.IntN(14) {
	case 5, 6:
		w.breaks(&fault{kind: "outage", on: inControllers, layers: []string{"network", "service"}}, "in the controllers' pods", w.between(6*time.Minute, 12*time.Minute))
	case 7, 8, 9:
		w.ownNodesFail(12 * time.Minute)
	case 10, 11:
		if w.options.recheck > 0 {
			for _, m := range w.verified(4, false) {
				w.lacks(m, 20*time.Minute)
			}
		}
	case 0:
		w.editNode(m.name, func(node *corev1.Node) { node.Annotations = mark(node.Annotations) })
	case 1:
		w.editNode(m.name, func(node *corev1.Node) { node.Labels = mark(node.Labels) })
	case 2:
		edit(w, "nodeclaims", "/"+m.claim, func(claim *map[string]any) {
			annotations := make(map[string]any)
			for key, value := range mark(nil) {
				annotations[key] = value
			}
			(*claim)["metadata"].(map[string]any)["annotations"] = annotations
		})
	case 3:
		w.cordon(m, 30*time.Minute)
	case 4:
		w.editNode(m.name, func(node *corev1.Node) {
			if fleet.HasTaint(node, startupTaint) && w.options.recheck > 0 { // by hand, which proves nothing
				node.Labels[label] = "true"
			}
		})
	}
}
