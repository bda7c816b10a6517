//go:build !race

package simulation

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/manual"
	"github.com/imunhatep/kube-node-ready/controller/internal/remediation"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// disturbances returns everything that may happen, by name. The lock is held when one of them is called.
func (w *world) disturbances() map[string]func() {
	all := make(map[string]func())
	for _, some := range []map[string]func(){w.outages(), w.apiTroubles(), w.machineEvents(), w.operatorActions(), w.controllerEvents()} {
		maps.Copy(all, some)
	}
	all["one fails"] = func() { w.oneFails(all) }
	return all
}

// onNode returns a disturbance of one machine that has a Node.
func (w *world) onNode(kind string, do func(m *machine, node *corev1.Node)) func() {
	return func() {
		m := w.visited
		if m == nil {
			m = w.someMachine()
		}
		if node := w.node(m.name); node != nil && !m.gone {
			w.counts.faults[kind]++
			w.tell(m.name, "somebody", "%s", kind)
			m.disturb()
			do(m, node)
		}
	}
}

// outages break layers of the network of some machines.
func (w *world) outages() map[string]func() {
	layered := func(layers ...string) func() {
		return func() {
			on, name := w.scope()
			d := w.lasts()
			if w.machines[name] != nil && w.chance(0.3) { // so long that somebody must see it
				d = w.between(20*time.Minute, time.Hour)
			}
			w.breaks(&fault{kind: layers[0] + " down", on: on, layers: layers}, name, d)
		}
	}
	return map[string]func(){
		"network":          layered("network", "service"),
		"dns":              layered("dns"),
		"api path":         layered("api"),
		"all layers":       layered("network", "service", "dns", "api"),
		"broken sandboxes": layered("broken sandbox", "network", "service", "dns", "api"),
		"no sandbox":       layered("sandbox"),
	}
}

// apiTroubles delay, refuse or lose requests, or let watches and clocks lag.
func (w *world) apiTroubles() map[string]func() {
	requests := func(kind string, t troubles, about ...string) func() {
		return func() {
			on, name := w.scope()
			w.breaks(&fault{kind: kind, on: on, trouble: t, share: oneOf(w, 0.2, 0.6, 1), about: oneOf(w, about...)}, name, w.lasts())
		}
	}
	return map[string]func(){
		"slow":         requests("slow API", troubles{before: 4 * time.Second, behind: 4 * time.Second}, "", "", "PATCH", "configmaps", "GET"),
		"slow ledger":  requests("slow ledger", troubles{before: 25 * time.Second, behind: 8 * time.Second}, "configmaps"),
		"429":          requests("429", troubles{code: 429, retryAfter: 1}, "", "PATCH", "pods"),
		"500":          requests("500", troubles{code: 500}, "", "PATCH", "pods", "status", "GET", "DELETE", "DELETE"),
		"503":          requests("503", troubles{code: 503, retryAfter: 2}, "", "PATCH"),
		"lost answers": requests("lost answers", troubles{lost: true}, "", "PATCH nodes", "POST pods", "PUT"),
		"lag": func() {
			on, name := w.scope()
			w.breaks(&fault{kind: "lag", on: on, about: oneOf(w, "", "pods", "nodes"), lag: oneOf(w, time.Second, 5*time.Second, 30*time.Second, 2*time.Minute)}, name, w.lasts())
		},
		"clock": func() {
			w.counts.faults["clock"]++
			was := w.skew
			w.skew += oneOf[time.Duration](w, -1, 1) * oneOf(w, 2*time.Second, 90*time.Second, time.Hour)
			w.mostSkew = max(w.mostSkew, w.skew.Abs())
			w.tell("", "FAULT", "the API server's clock jumps by %s", w.skew-was)
			w.quiet = time.Now()
			if w.chance(0.7) {
				w.later(w.between(time.Second, 5*time.Minute), func() {
					w.skew = was
					w.quiet = time.Now()
					w.tell("", "FAULT", "the API server's clock jumps back")
				})
			}
		},
	}
}

// machineEvents happen to one machine, its kubelet or its Node object.
func (w *world) machineEvents() map[string]func() {
	node := w.onNode
	return map[string]func(){
		"reboot": node("reboot", func(m *machine, _ *corev1.Node) {
			down := oneOf(w, w.between(5*time.Second, 30*time.Second), w.between(time.Minute, 6*time.Minute))
			if w.options.require != "" && w.chance(0.5) {
				m.gpus = oneOf(w, 0, 8)
			}
			w.play(func() { m.reboot(down) })
		}),
		"kill an agent": node("kill", func(m *machine, _ *corev1.Node) { m.crash() }),
		"crash loop": node("crash loop", func(m *machine, _ *corev1.Node) {
			often := oneOf(w, w.between(30*time.Second, 6*time.Minute), w.between(2*time.Minute, 4*time.Minute))
			w.play(func() {
				for n := 2 + draw(w, func() int { return w.random.IntN(6) }); n > 0 && w.pause(often/2, often); n-- {
					w.mu.Lock()
					m.crash()
					m.disturb()
					w.mu.Unlock()
				}
			})
		}),
		"delete a pod": node("pod deleted", func(m *machine, _ *corev1.Node) {
			for _, pod := range w.podsOf(m.name) {
				w.expel("pods", namespace+"/"+pod.Name)
			}
		}),
		"GPUs": node("GPUs", func(m *machine, _ *corev1.Node) {
			m.gpus = oneOf(w, 0, 8)
			w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		}),
		"register again": node("Node created again", func(m *machine, _ *corev1.Node) { m.registerAgain() }),
		"delete a node":  node("Node deleted", func(m *machine, _ *corev1.Node) { w.expel("nodes", "/"+m.name) }),
		"foreign condition": node("foreign condition", func(m *machine, _ *corev1.Node) {
			w.editNode(m.name, func(node *corev1.Node) {
				setCondition(node, "NetworkUnavailable", oneOf(w, corev1.ConditionTrue, corev1.ConditionFalse), w.serverTime())
			})
		}),
	}
}

// operatorActions are what people and other clients do to nodes.
func (w *world) operatorActions() map[string]func() {
	node := w.onNode
	return map[string]func(){
		"verify again": node("label removed", func(_ *machine, node *corev1.Node) {
			w.editNode(node.Name, func(node *corev1.Node) { delete(node.Labels, label) })
		}),
		"verify all again": func() { // kubectl label nodes --all, and sometimes twice
			w.counts.faults["all labels removed"]++
			w.tell("", "somebody", "removes the label of all nodes")
			all := func() {
				for name, m := range w.machines {
					if m.disturb(); w.node(name) != nil && w.node(name).Labels[label] == "true" {
						w.editNode(name, func(node *corev1.Node) { delete(node.Labels, label) })
					}
				}
			}
			all()
			for range w.random.IntN(4) {
				w.later(w.between(5*time.Second, time.Minute), all)
			}
		},
		"gate again": node("gated again", func(m *machine, node *corev1.Node) {
			if !m.gated {
				return
			}
			if w.chance(0.5) {
				w.editNode(node.Name, func(node *corev1.Node) { delete(node.Labels, label) })
			} else {
				w.judge.of(node).putBack = true
			}
			m.taint(corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
		}),
		"cordon": node("cordoned", func(m *machine, node *corev1.Node) {
			m.hold()
			w.editNode(node.Name, func(node *corev1.Node) { node.Spec.Unschedulable = true })
			w.later(w.lasts(), func() {
				w.editNode(m.name, func(node *corev1.Node) { node.Spec.Unschedulable = false })
				m.release()
			})
		}),
		"foreign taint": node("foreign taint", func(m *machine, _ *corev1.Node) {
			key := oneOf(w, cniTaint, "example.com/maintenance", cniTaint)
			m.taint(corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule, Value: fmt.Sprint(w.random.IntN(3))})
			m.hold()
			w.later(oneOf(w, w.between(100*time.Millisecond, 5*time.Second), w.lasts()), func() {
				m.untaint(key)
				m.release()
			})
		}),
		"whole list": node("whole list of taints", func(m *machine, node *corev1.Node) { // kubectl taint: read, and write the list
			taints := append(slices.Clone(node.Spec.Taints), corev1.Taint{Key: "example.com/x", Effect: corev1.TaintEffectPreferNoSchedule})
			w.later(w.between(10*time.Millisecond, 3*time.Second), func() {
				if now := w.node(m.name); now != nil && now.UID == node.UID {
					if fleet.HasTaint(node, startupTaint) && !fleet.HasTaint(now, startupTaint) || fleet.HasTaint(node, failedTaint) && !fleet.HasTaint(now, failedTaint) {
						w.tell(m.name, "somebody", "puts taints of ours back with a whole list")
						w.judge.of(now).putBack = true
					}
					w.editNode(m.name, func(node *corev1.Node) { node.Spec.Taints = taints })
					m.disturb()
				}
			})
			w.later(w.between(time.Minute, 3*time.Minute), func() { m.untaint("example.com/x") })
		}),
		"foreign labels": node("foreign label", func(m *machine, _ *corev1.Node) {
			w.editNode(m.name, func(node *corev1.Node) {
				node.Labels[fmt.Sprint("example.com/", w.random.IntN(3))] = fmt.Sprint(w.random.IntN(100))
				was := node.Annotations
				node.Annotations = map[string]string{"example.com/owner": fmt.Sprint(w.random.IntN(100))} // a client that drops what it does not know
				for _, key := range []string{nodepatch.Annotation, nodepatch.Opened} {
					if was[key] != "" {
						node.Annotations[key] = was[key]
					}
				}
			})
		}),
		"do not disrupt": node("do-not-disrupt", func(m *machine, _ *corev1.Node) {
			edit(w, "nodeclaims", "/"+m.claim, func(claim *map[string]any) {
				(*claim)["metadata"].(map[string]any)["annotations"] = map[string]any{remediation.DoNotDisrupt: "true"}
			})
		}),
		"open": node("kubectl node-ready open", func(m *machine, _ *corev1.Node) {
			w.play(func() { w.open(m) })
		}),
	}
}

// controllerEvents happen to the controller, its Lease, its ledger and its settings.
func (w *world) controllerEvents() map[string]func() {
	return map[string]func(){
		"kill a controller": func() {
			if len(w.replicas) > 0 {
				w.counts.faults["controller killed"]++
				oneOf(w, w.replicas...).end(w.chance(0.4))
			}
		},
		"no lease": func() {
			w.counts.faults["Lease deleted"]++
			w.quiet = time.Now()
			for key := range w.now["leases"] {
				w.remove("leases", key)
			}
		},
		"no halt": func() {
			w.judge.cleared = time.Now()
			for key := range w.now["configmaps"] {
				edit(w, "configmaps", key, func(c *corev1.ConfigMap) {
					c.Annotations = map[string]string{remediation.ClearHalt: "*"}
				})
			}
		},
		"other settings": func() {
			if len(w.replicas) == 0 {
				return
			}
			w.counts.faults["other settings"]++
			more := map[string]string{}
			if w.options.retaint && w.chance(0.5) {
				more["RETAINT"] = "false"
			}
			for _, c := range w.replicas {
				c.more = more
				c.end(true)
			}
		},
	}
}

// oneFails lets one node fail for long, while people and kubelet do something about it.
func (w *world) oneFails(all map[string]func()) {
	m := w.someMachine()
	if node := w.node(m.name); m.held > 0 || node == nil || node.Labels[label] != "true" && w.chance(0.8) {
		return
	}
	long := w.between(15*time.Minute, time.Hour)
	if w.options.require != "" && w.chance(0.4) { // after a reboot it has no GPUs
		w.counts.faults["reboot without GPUs"]++
		m.gpus = 0
		w.play(func() { m.reboot(20 * time.Second) })
		w.later(long, func() {
			m.gpus = 8
			w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
			m.disturb()
		})
		return
	}
	w.breaks(&fault{kind: "one fails", on: only(m), layers: []string{"network", "service"}}, m.name, long)
	visits := oneOf(w, []string{"open"}, []string{"open", "kill a controller"}, []string{"crash loop"}, []string{"crash loop"}, []string{"cordon"}, []string{"open", "cordon", "crash loop", "verify again"})
	for range w.random.IntN(4) {
		w.later(w.between(3*time.Minute, long), func() {
			w.visited = m
			all[oneOf(w, visits...)]()
			w.visited = nil
		})
	}
}

// open is what kubectl node-ready open does.
func (w *world) open(m *machine) {
	p, of := w.someone(), m.pool.release
	e := p.environment()
	_ = e.Client.Versions(w.ctx)
	c, err := client.New(e.REST, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		panic(err)
	}
	cfg, err := config.ParseController(nil, w.lookup(of, nil), io.Discard)
	if err != nil {
		panic(err)
	}
	settings := fleet.NewSettings(cfg, w.options.template(of))
	settings.FailedTaintValue = of.agentName()
	said := new(strings.Builder)
	_ = manual.Patcher{Settings: settings, Client: c, Now: e.Client.ServerTime, Out: said}.Open(w.ctx, []string{m.name})
	w.mu.Lock()
	defer w.mu.Unlock()
	if node := w.node(m.name); node != nil && strings.Contains(said.String(), "removed") { // else it says that there is nothing to do
		w.judge.of(node).opened = time.Now()
		w.tell(m.name, "somebody", "has opened it")
	}
	m.disturb()
}
