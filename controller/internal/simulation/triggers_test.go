//go:build !race

package simulation

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// trigger lets something happen just when a write of ours arrives: what goes wrong between two requests. The lock is held.
func (w *world) trigger(q request) {
	if q.from.person || q.resource == "leases" || q.resource == "events" {
		return
	}
	if q.resource == "configmaps" && q.verb == http.MethodPut {
		w.recoverBeforeDeletion(q)
	}
	if m := w.machines[q.name]; m != nil && m.outageAtFalse && q.sub == "status" && strings.Contains(q.sent, `"False"`) && !q.from.controller {
		m.outageAtFalse = false
		w.breaks(&fault{kind: "outage", on: inControllers, layers: []string{"network", "service"}}, "in the controllers' pods", 5*time.Minute)
	}
	if w.options.triggers > 0 && !w.calm && q.resource == "nodes" && w.machines[q.name] != nil {
		w.triggerAtNode(q, w.machines[q.name])
	}
	if q.resource == "pods" && q.verb == http.MethodPost && w.options.triggers > 0 && w.options.waitFor != "" && !w.calm && w.chance(0.3) {
		w.taintBeside(q)
	}
	if q.resource == "pods" && q.verb == http.MethodPost && w.options.triggers > 0 && !w.calm && w.chance(0.1) {
		w.replaceBehindCache(q)
	}
	if w.calm || !w.chance(w.options.triggers) || !q.writes() && !w.chance(0.1) {
		return
	}
	if m := w.machines[q.name]; q.resource == "nodes" && m != nil {
		w.interfere(q, m)
	}
}

// recoverBeforeDeletion lets a node recover while its deletion is written into the ledger. The lock is held.
func (w *world) recoverBeforeDeletion(q request) {
	goesOn := 0.3
	if w.options.stage != "" {
		goesOn = 0.8
	}
	for _, f := range w.faults {
		if f.one == nil || len(f.layers) == 0 || w.node(f.one.name) == nil || w.node(f.one.name).Labels[label] != "" || !strings.Contains(q.sent, string(w.node(f.one.name).UID)) || w.chance(goesOn) {
			continue
		}
		f.end()
		w.tell(f.one.name, "FAULT", "%s ends while the ledger is written", f.kind)
		if !w.options.workers { // a new agent checks at once
			f.one.crash()
		}
		late := &fault{kind: "late deletion", on: only(q.from.machine), trouble: troubles{least: 15 * time.Second, before: 28 * time.Second}, share: 1, about: "DELETE"}
		w.breaks(late, "in the controller's pod", 30*time.Second)
	}
}

// interfere changes a node, or kills the client, just before a request about the node is handled. The lock is held.
func (w *world) interfere(q request, m *machine) {
	name := m.name
	kinds := map[string]func(){
		"foreign taint": func() {
			m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
			m.hold()
			w.later(w.between(time.Second, 30*time.Second), func() { m.untaint(cniTaint); m.release() })
		},
		"whole list": func() { w.restoreTaints(m) },
		"label": func() {
			w.editNode(name, func(node *corev1.Node) { node.Labels["example.com/at"] = fmt.Sprint(w.rv) })
		},
		"status": func() {
			w.editNode(name, func(node *corev1.Node) { setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime()) })
		},
		"register again": m.registerAgain,
		"verify again": func() {
			w.editNode(name, func(node *corev1.Node) { delete(node.Labels, label) })
		},
		"GPUs": func() {
			m.gpus = oneOf(w, 0, 8)
			w.editNode(name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		},
		"kill": func() { w.later(w.between(0, 2*time.Second), func() { w.killClient(q.from, m) }) },
	}
	kind := oneOf(w, "foreign taint", "whole list", "label", "verify again", "GPUs", "status", "status", "kill", "register again")
	w.tell(name, "somebody", "just before %s: %s", q, kind)
	w.counts.faults["at a request"]++
	m.disturb()
	kinds[kind]()
}

// restoreTaints writes the present list of taints again, a moment later, whatever has happened to it by then. The lock is held.
func (w *world) restoreTaints(m *machine) {
	node := w.node(m.name)
	if node == nil {
		return
	}
	taints := node.Spec.Taints
	w.later(w.between(time.Millisecond, time.Second), func() {
		if now := w.node(m.name); now != nil && now.UID == node.UID {
			w.judge.of(now).putBack = w.judge.of(now).putBack || fleet.HasTaint(node, startupTaint) && !fleet.HasTaint(now, startupTaint)
			w.editNode(m.name, func(node *corev1.Node) { node.Spec.Taints = taints })
			m.disturb()
		}
	})
}

// killClient kills the process that has sent a request about a machine. The lock is held.
func (w *world) killClient(p *process, m *machine) {
	p.dead = true
	for _, c := range w.replicas {
		if c.process == p {
			c.end(false)
		}
	}
	if p.machine != nil && m.runs[p.uid] != nil {
		m.runs[p.uid].kill()
	}
}

// triggerAtNode lets something happen that matters at this request only. The lock is held.
func (w *world) triggerAtNode(q request, m *machine) {
	node := w.node(m.name)
	switch {
	case node == nil:
	case q.sub == "status" && w.chance(0.5): // a heartbeat, which changes nothing
		w.editNode(m.name, func(node *corev1.Node) { setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime()) })
	case q.writes() || q.from.controller || node.Labels[label] != "":
	case m.late > 0 && m.held == 0 && time.Since(w.judge.of(node).created) > 15*time.Second && w.chance(0.3): // another Node of this name, while hardly anything can be read
		w.tell(m.name, "somebody", "just before %s: a foreign taint, and soon another Node", q)
		w.breaks(&fault{kind: "500", on: only(m), trouble: troubles{code: 500}, share: 0.5, about: "GET nodes"}, m.name, 30*time.Second)
		m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
		w.later(w.between(5*time.Second, 25*time.Second), func() {
			if m.untaint(cniTaint); !m.gone && w.node(m.name) != nil {
				w.remove("nodes", "/"+m.name)
				m.register()
			}
		})
	case w.options.check == time.Minute && m.held == 0 && w.chance(0.2): // an attempt that takes long, and what changes in that time
		w.breaks(&fault{kind: "network down", on: only(m), layers: []string{"network"}}, m.name, w.between(5*time.Second, 50*time.Second))
		w.later(w.between(500*time.Millisecond, 3*time.Second), func() {
			if m.gpus = 0; w.options.require == "" || w.chance(0.3) {
				m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
			}
			w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		})
		m.hold()
		w.later(time.Minute, func() {
			m.gpus = 8
			w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
			m.untaint(cniTaint)
			m.release()
		})
	}
}

// taintBeside lets a foreign taint come and go while a worker runs, which is created just now. The lock is held.
func (w *world) taintBeside(q request) {
	var pod corev1.Pod
	_ = json.Unmarshal([]byte(q.sent), &pod)
	m := w.machines[fleet.NodeOf(&pod)]
	if m == nil || m.gone {
		return
	}
	comes := w.between(100*time.Millisecond, 3*time.Second)
	m.hold()
	w.later(comes, func() { m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule}) })
	w.later(comes+w.between(1500*time.Millisecond, 8*time.Second), func() {
		m.untaint(cniTaint)
		m.release()
	})
}

// replaceBehindCache replaces the Node of a worker that is created just now, while the controllers' caches of nodes stand still. The
// lock is held.
func (w *world) replaceBehindCache(q request) {
	var pod corev1.Pod
	_ = json.Unmarshal([]byte(q.sent), &pod)
	m := w.machines[fleet.NodeOf(&pod)]
	if m == nil || m.gone || m.held > 0 {
		return
	}
	controllers := func(p *process, _ *machine) bool { return p != nil && p.controller }
	w.breaks(&fault{kind: "Node created again behind the cache", on: controllers, about: "nodes", lag: 2 * time.Minute}, m.name, 2*time.Minute)
	w.later(w.between(0, time.Second), func() {
		if !m.gone && w.node(m.name) != nil {
			m.hold()
			w.remove("nodes", "/"+m.name)
			m.register()
			w.later(3*time.Minute, m.release)
		}
	})
}
