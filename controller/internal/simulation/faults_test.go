//go:build !race

package simulation

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
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

// fault is something that does not work until its end.
type fault struct {
	kind    string
	on      func(*process, *machine) bool // either may be nil
	layers  []string                      // of the network
	trouble troubles                      // of requests
	share   float64                       // of the requests that it is about
	lag     time.Duration                 // of caches and watches
	about   string                        // a part of a request's text, "": all of them
	began   time.Time
	one     *machine  // if it is about this one only
	crowded time.Time // when another node failed too
}

// only lets a fault be about one machine.
func only(one *machine) func(*process, *machine) bool {
	return func(_ *process, on *machine) bool { return on == one }
}

// troubles are what happens to one request.
type troubles struct {
	before, behind   time.Duration // longest waits before the server has it, and before its answer is there
	least            time.Duration // of before
	code, retryAfter int
	lost             bool // the answer is
}

// fails reports whether a layer of a machine's network does not work. The lock is held.
func (w *world) fails(m *machine, layer string) bool {
	return slices.ContainsFunc(w.faults, func(f *fault) bool { return f.on(nil, m) && slices.Contains(f.layers, layer) })
}

// failsFor is the same for a process, whose sandbox may be broken.
func (w *world) failsFor(p *process, layer string) bool {
	return p.broken || slices.ContainsFunc(w.faults, func(f *fault) bool { return f.on(p, p.machine) && slices.Contains(f.layers, layer) })
}

// isCut reports whether a process cannot reach the API server.
func (w *world) isCut(p *process) bool { return !p.dead && !p.person && w.failsFor(p, "api") }

// lag is how far behind the cache is that a process sees: of all resources, or of one.
func (w *world) lag(q request) (lag time.Duration) {
	for _, f := range w.faults {
		if p := q.from; f.lag > 0 && p != nil && f.on(p, p.machine) && strings.Contains(q.resource, f.about) {
			lag = max(lag, f.lag)
		}
	}
	return lag
}

func (w *world) troubleOf(q request) (all troubles) {
	for _, f := range w.faults {
		if f.trouble == (troubles{}) || !strings.Contains(q.String(), f.about) || !f.on(q.from, q.from.machine) || !w.chance(f.share) {
			continue
		}
		t := f.trouble
		if t.before > 0 {
			all.before += w.between(t.least, t.before)
		}
		if t.behind > 0 {
			all.behind += w.between(0, t.behind)
		}
		if q.query.Get("watch") == "" {
			all.code, all.retryAfter, all.lost = max(all.code, t.code), t.retryAfter, all.lost || t.lost && q.writes()
		}
	}
	return all
}

// break lets something not work for a time. Everything that it is about is disturbed until then. The lock is held.
func (w *world) breaks(f *fault, name string, d time.Duration) {
	w.counts.faults[f.kind]++
	f.began = time.Now()
	w.faults = append(w.faults, f)
	var about []*machine
	for _, m := range w.machines {
		if f.on(nil, m) {
			m.hold()
			about = append(about, m)
		}
	}
	global := slices.ContainsFunc(w.replicas, func(c *replica) bool { return f.on(c.process, c.machine) })
	where := ""
	if len(about) == 1 && !global {
		where, f.one = about[0].name, about[0]
	}
	w.tell(where, "FAULT", "%s: %s, for %s", f.kind, name, d.Round(time.Millisecond))
	w.later(d, func() {
		w.faults = slices.DeleteFunc(w.faults, func(other *fault) bool { return other == f })
		for _, m := range about {
			m.release()
		}
		if global {
			w.quiet = time.Now()
		}
		w.tell(where, "FAULT", "%s is over", f.kind)
	})
}

// scope draws what a fault is about.
func (w *world) scope() (on func(*process, *machine) bool, name string) {
	one := w.someMachine()
	switch w.random.IntN(10) {
	case 0:
		return func(*process, *machine) bool { return true }, "everywhere"
	case 1:
		zone := one.zone
		return func(_ *process, m *machine) bool { return m != nil && m.zone == zone }, zone
	case 2:
		if len(w.replicas) > 0 {
			return func(p *process, _ *machine) bool { return p != nil && p.controller }, "in the controller's pods"
		}
	case 3:
		share, salt := w.random.Float64()*0.5, w.random.IntN(1000)
		return func(_ *process, m *machine) bool { return m != nil && hash(m.name, salt) < share }, fmt.Sprintf("on %.0f %% of the machines", 100*share)
	}
	return only(one), one.name
}

func hash(name string, salt int) float64 {
	sum := uint32(salt) * 2654435761
	for _, c := range name {
		sum = (sum ^ uint32(c)) * 16777619
	}
	return float64(sum%1000) / 1000
}

func (w *world) someMachine() *machine {
	var names []string
	for name, m := range w.machines {
		if !m.gone {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return &machine{w: w, name: "none", gone: true, pool: new(pool)}
	}
	slices.Sort(names)
	shows := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		node := w.node(name)
		return node == nil || !fleet.HasTaint(node, startupTaint) && !fleet.HasTaint(node, failedTaint) && w.judge.condition(node).Status != corev1.ConditionFalse
	})
	last := w.machines[w.lastMachine]
	switch { // two things that happen to one node, and people who look at what is wrong
	case last != nil && !last.gone && w.chance(0.3):
	case len(shows) > 0 && w.chance(0.3):
		w.lastMachine = oneOf(w, shows...)
	default:
		w.lastMachine = oneOf(w, names...)
	}
	return w.machines[w.lastMachine]
}

// briefly is mostly short, and sometimes long.
func (w *world) lasts() time.Duration {
	return oneOf(w, w.between(time.Second, 20*time.Second), w.between(10*time.Second, 3*time.Minute), w.between(time.Minute, 20*time.Minute))
}

// disturbances are what may happen, by name. The lock is held.
func (w *world) disturbances() map[string]func() {
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
	requests := func(kind string, t troubles, about ...string) func() {
		return func() {
			on, name := w.scope()
			w.breaks(&fault{kind: kind, on: on, trouble: t, share: oneOf(w, 0.2, 0.6, 1), about: oneOf(w, about...)}, name, w.lasts())
		}
	}
	node := func(kind string, do func(m *machine, node *corev1.Node)) func() {
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
	all := map[string]func(){
		"network":          layered("network", "service"),
		"dns":              layered("dns"),
		"api path":         layered("api"),
		"all layers":       layered("network", "service", "dns", "api"),
		"broken sandboxes": layered("broken sandbox", "network", "service", "dns", "api"),
		"no sandbox":       layered("sandbox"),
		"slow":             requests("slow API", troubles{before: 4 * time.Second, behind: 4 * time.Second}, "", "", "PATCH", "configmaps", "GET"),
		"slow ledger":      requests("slow ledger", troubles{before: 25 * time.Second, behind: 8 * time.Second}, "configmaps"),
		"429":              requests("429", troubles{code: 429, retryAfter: 1}, "", "PATCH", "pods"),
		"500":              requests("500", troubles{code: 500}, "", "PATCH", "pods", "status", "GET", "DELETE", "DELETE"),
		"503":              requests("503", troubles{code: 503, retryAfter: 2}, "", "PATCH"),
		"lost answers":     requests("lost answers", troubles{lost: true}, "", "PATCH nodes", "POST pods", "PUT"),
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
		"foreign condition": node("foreign condition", func(m *machine, _ *corev1.Node) {
			w.editNode(m.name, func(node *corev1.Node) {
				setCondition(node, "NetworkUnavailable", oneOf(w, corev1.ConditionTrue, corev1.ConditionFalse), w.serverTime())
			})
		}),
		"GPUs": node("GPUs", func(m *machine, _ *corev1.Node) {
			m.gpus = oneOf(w, 0, 8)
			w.editNode(m.name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		}),
		"do not disrupt": node("do-not-disrupt", func(m *machine, _ *corev1.Node) {
			edit(w, "nodeclaims", "/"+m.claim, func(claim *map[string]any) {
				(*claim)["metadata"].(map[string]any)["annotations"] = map[string]any{remediation.DoNotDisrupt: "true"}
			})
		}),
		"register again": node("Node created again", func(m *machine, _ *corev1.Node) { m.registerAgain() }),
		"delete a node":  node("Node deleted", func(m *machine, _ *corev1.Node) { w.expel("nodes", "/"+m.name) }),
		"open": node("kubectl node-ready open", func(m *machine, _ *corev1.Node) {
			w.play(func() { w.open(m) })
		}),
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
	// One node fails for long, while people and kubelet do something about it.
	all["one fails"] = func() {
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
	return all
}

// open is what kubectl node-ready open does.
func (w *world) open(m *machine) {
	p := w.someone()
	e := p.environment()
	_ = e.Client.Versions(w.ctx)
	c, err := client.New(e.REST, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		panic(err)
	}
	cfg, err := config.ParseController(nil, w.lookup(nil), io.Discard)
	if err != nil {
		panic(err)
	}
	settings := fleet.NewSettings(cfg, w.options.template())
	settings.FailedTaintValue = agentName
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

// trigger lets something happen just when a write of ours arrives: what goes wrong between two requests. The lock is held.
func (w *world) trigger(q request) {
	if q.from.person || q.resource == "leases" || q.resource == "events" {
		return
	}
	if q.resource == "configmaps" && q.verb == http.MethodPut { // the ledger: its node recovers before the deletion
		for _, f := range w.faults {
			if f.one == nil || len(f.layers) == 0 || w.node(f.one.name) == nil || w.node(f.one.name).Labels[label] != "" || !strings.Contains(q.sent, string(w.node(f.one.name).UID)) || w.chance(0.3) {
				continue
			}
			f.layers = nil
			w.tell(f.one.name, "FAULT", "%s ends while the ledger is written", f.kind)
			if !w.options.workers { // a new agent checks at once
				f.one.crash()
			}
			late := &fault{kind: "late deletion", on: only(q.from.machine), trouble: troubles{least: 15 * time.Second, before: 28 * time.Second}, share: 1, about: "DELETE"}
			w.breaks(late, "in the controller's pod", 30*time.Second)
		}
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
	name := q.name
	if m := w.machines[name]; q.resource == "nodes" && m != nil {
		kind := oneOf(w, "foreign taint", "whole list", "label", "verify again", "GPUs", "status", "status", "kill", "register again")
		w.tell(name, "somebody", "just before %s: %s", q, kind)
		w.counts.faults["at a request"]++
		m.disturb()
		switch kind {
		case "foreign taint":
			m.taint(corev1.Taint{Key: cniTaint, Effect: corev1.TaintEffectNoSchedule})
			m.hold()
			w.later(w.between(time.Second, 30*time.Second), func() { m.untaint(cniTaint); m.release() })
		case "whole list":
			if node := w.node(name); node != nil {
				taints := node.Spec.Taints
				w.later(w.between(time.Millisecond, time.Second), func() {
					if now := w.node(name); now != nil && now.UID == node.UID {
						w.judge.of(now).putBack = w.judge.of(now).putBack || fleet.HasTaint(node, startupTaint) && !fleet.HasTaint(now, startupTaint)
						w.editNode(name, func(node *corev1.Node) { node.Spec.Taints = taints })
						m.disturb()
					}
				})
			}
		case "label":
			w.editNode(name, func(node *corev1.Node) { node.Labels["example.com/at"] = fmt.Sprint(w.rv) })
		case "status":
			w.editNode(name, func(node *corev1.Node) { setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime()) })
		case "register again":
			m.registerAgain()
		case "verify again":
			w.editNode(name, func(node *corev1.Node) { delete(node.Labels, label) })
		case "GPUs":
			m.gpus = oneOf(w, 0, 8)
			w.editNode(name, func(node *corev1.Node) { node.Status.Allocatable = m.allocatable() })
		case "kill":
			p := q.from
			w.later(w.between(0, 2*time.Second), func() {
				p.dead = true
				for _, c := range w.replicas {
					if c.process == p {
						c.end(false)
					}
				}
				if p.machine != nil && m.runs[p.uid] != nil {
					m.runs[p.uid].kill()
				}
			})
		}
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
