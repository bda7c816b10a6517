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

// fault is something that does not work until its end.
type fault struct {
	kind    string
	on      func(*process, *machine) bool // either may be nil
	layers  []string                      // of the network
	trouble troubles                      // of requests
	share   float64                       // of the requests that it is about
	lag     time.Duration                 // of caches and watches
	about   string                        // a part of a request's text, "": all of them
	broke   []string                      // the layers when it began
	began   time.Time
	ended   time.Time
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
	f.began, f.broke = time.Now(), f.layers
	w.faults, w.past = append(w.faults, f), append(w.past, f)
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
		f.end()
		for _, m := range about {
			m.release()
		}
		if global {
			w.quiet = time.Now()
		}
		w.tell(where, "FAULT", "%s is over", f.kind)
	})
}

// end notes when a fault ended first.
func (f *fault) end() {
	if f.layers = nil; f.ended.IsZero() {
		f.ended = time.Now()
	}
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
