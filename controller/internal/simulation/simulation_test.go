//go:build !race

package simulation

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"math/big"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

var (
	first = flag.Uint64("seed", 1, "the first seed")
	lasts = flag.Duration("for", 0, "how long to try further seeds")
	cpu   = flag.Bool("cpu", false, "measure -for by the CPU time of this process, which is the same on a busy machine")
	every = flag.Uint64("every", 1, "the step from one seed to the next: so many processes share the seeds")
	keep  = flag.Bool("keep", false, "go on after a seed that fails")
	again = flag.Int("again", 19, "how often a seed runs again that fails")
	where = flag.String("where", "", "a regular expression: only worlds whose options it matches")
	story = flag.Bool("story", false, "print the whole story")
)

// started is when the process began.
var started = time.Now()

// ca is any certificate: a worker starts with one only.
var ca string

func TestMain(m *testing.M) {
	flag.Parse()
	// They compare the year of the bubble with the real one, and sleep for what is between.
	runtime.ErrorHandlers = nil
	runtime.PanicHandlers = nil
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, _ := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	os.Exit(m.Run())
}

// simulate runs one world to its end, and returns it.
func simulate(t *testing.T, seed uint64, hasStages bool) (w *world) {
	dir := t.TempDir()
	hangs := time.AfterFunc(3*time.Minute, func() {
		panic(fmt.Sprint("seed ", seed, " hangs: something in the bubble does not wait for its clock"))
	})
	defer hangs.Stop()
	synctest.Test(t, func(*testing.T) {
		w = newWorld(seed, dir)
		w.hasStages = hasStages
		w.live()
	})
	return w
}

// TestRegressions runs the seeds that have found something, each with what it was. They are older than the stages.
func TestRegressions(t *testing.T) {
	for seed, found := range map[uint64]string{
		5024: "the API server's clock is set back: each new worker looks older than the one that has failed, and 50 a second are created",
		338:  "an agent releases by checks that passed while a foreign taint was there, which it could not read",
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if w := simulate(t, seed, false); w.failed != "" {
				t.Errorf("%s\n%s", found, w.failed)
			}
		})
	}
}

// TestSeeds tries seeds.
func TestSeeds(t *testing.T) {
	began := spent()
	all := counts{writes: make(map[string]int), faults: make(map[string]int)}
	seeds := 0
	for seed := *first; seeds == 0 || spent()-began < *lasts; seed += *every {
		if !regexp.MustCompile(*where).MatchString(newWorld(seed, "").newOptions().String()) {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := simulate(t, seed, true)
			all.add(w.counts)
			all.most = max(all.most, w.judge.most)
			if w.failed != "" {
				t.Error(w.failed)
				times := 1 // goroutines are not seeded: how often does it fail?
				for range *again {
					if simulate(t, seed, true).failed != "" {
						times++
					}
				}
				t.Errorf("seed %d fails %d of %d times", seed, times, *again+1)
			}
			if *story {
				for _, l := range w.told {
					t.Logf("%12s  %-12s %-14s %s", l.at.Round(time.Millisecond), l.node, l.who, l.text)
				}
			}
		})
		if seeds++; t.Failed() && !*keep {
			break
		}
	}
	t.Logf("%d seeds in %s: %s", seeds, (spent() - began).Round(time.Second), all)
}

// spent returns how much time has passed: real time, or with -cpu the CPU time of this process.
func spent() time.Duration {
	if !*cpu {
		return time.Since(started)
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func (c *counts) add(more counts) {
	c.lives += more.lives
	for kind, n := range more.writes {
		c.writes[kind] += n
	}
	for kind, n := range more.faults {
		c.faults[kind] += n
	}
}

func (c counts) String() string {
	text := fmt.Sprintf("%d node-lifetimes; at most %d requests of a controller in a minute;", c.lives, c.most)
	for _, kind := range slices.Sorted(maps.Keys(c.writes)) {
		text += fmt.Sprintf(" %s %d,", kind, c.writes[kind])
	}
	text += " faults:"
	for _, kind := range slices.Sorted(maps.Keys(c.faults)) {
		text += fmt.Sprintf(" %s %d,", kind, c.faults[kind])
	}
	return text
}

// live is the whole life of a world: it starts, is disturbed for some hours, and then must come to rest.
func (w *world) live() {
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.mu.Lock()
	w.options = w.newOptions()
	w.writeTemplates()
	w.addEndpoints()
	left := w.options.nodes
	for i := range w.options.pools {
		p := &pool{name: fmt.Sprint("pool", i), size: left / (w.options.pools - i), karpenter: w.chance(0.5), gated: w.chance(0.75)}
		p.late = !p.karpenter && p.gated && w.chance(0.5)
		if !p.karpenter && w.chance(0.2) {
			p.role = oneOf(w, "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd")
		}
		if w.options.stage != "" {
			p.late, p.badLater = false, oneOf(w, 0, w.options.bad, 1)
			if w.options.long {
				p.karpenter, p.role, p.badLater = true, "", map[int]float64{1: w.options.bad, 2: float64(1 - i), 5: 1}[w.options.pools]
			}
			p.gated = p.gated || w.options.stage == stageRemediation || w.chance(0.3)
			if !p.karpenter && !w.options.long && w.chance(0.2) {
				p.role = "node-role.kubernetes.io/control-plane"
			}
		}
		if w.options.also == lateTaints {
			p.karpenter, p.gated, p.late = false, true, true
		}
		left -= p.size
		p.release = w.releases()[i%len(w.releases())]
		w.pools = append(w.pools, p)
	}
	// The controller's own machine is none of the fleet's: it was there before.
	for i := range w.options.replicas * len(w.releases()) {
		if w.options.controller {
			m := &machine{w: w, name: fmt.Sprint("system-", i), up: true, boot: 1, zone: fmt.Sprint("zone-", i), pool: &pool{name: "system"}, runs: make(map[string]*run), wake: make(chan struct{}, 1)}
			w.replicas = append(w.replicas, &replica{w: w, release: w.releases()[i/w.options.replicas], name: fmt.Sprint("controller-", i), machine: m, system: m})
		}
	}
	disturbances := w.disturbances()
	names := slices.Sorted(maps.Keys(disturbances))
	w.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:1+w.random.IntN(1+w.random.IntN(len(names)))] // a few are combined better than all of them
	often := oneOf(w, 20*time.Second, time.Minute, 5*time.Minute)
	if w.options.alone {
		names, often = append([]string{"one fails", "one fails", "one fails"}, names[:min(1, w.random.IntN(3))]...), 5*time.Minute
	}
	w.ends = w.began.Add(w.between(20*time.Minute, 100*time.Minute))
	if w.options.stage != "" {
		disturbances = w.scenes()
		names, often = slices.Sorted(maps.Keys(disturbances)), 5*time.Minute
		w.random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:1+w.random.IntN(min(4, len(names)))]
		if w.options.inFleet && w.options.stage == stageRetaint && w.chance(0.4) {
			names = append(names, "own node")
		}
		if scene := w.rareScenes()[w.options.also]; scene != nil {
			disturbances[w.options.also] = scene
			names = append(names, w.options.also, w.options.also, w.options.also)
		}
		if w.ends = w.began.Add(w.between(50*time.Minute, 2*time.Hour)); w.options.long {
			w.ends = w.began.Add(9 * time.Hour)
		}
	}
	w.mu.Unlock()

	w.play(w.controllers)
	for _, p := range w.pools {
		w.play(func() { p.keep(w) })
	}
	for _, c := range w.replicas {
		w.play(c.run)
	}
	w.play(func() {
		for w.sleep(time.Minute) {
			debug.SetGCPercent(400) // an agent that holds has set it to 50, for all of them
			w.mu.Lock()
			w.judge.tick()
			w.mu.Unlock()
		}
	})
	if w.options.inFleet { // once there are verified nodes, the replicas move to them
		for _, c := range w.replicas {
			w.play(func() {
				if w.pause(4*time.Minute, 5*time.Minute) {
					w.mu.Lock()
					c.end(true)
					w.mu.Unlock()
				}
			})
		}
	}
	for time.Now().Before(w.ends) && w.pause(0, 2*often) {
		w.mu.Lock()
		disturbances[oneOf(w, names...)]()
		w.mu.Unlock()
	}
	w.rest()
	w.failAlone()
	w.mu.Lock()
	if !w.hasEnded() {
		close(w.over)
	}
	w.cancel()
	for _, m := range w.machines {
		m.goDown()
		m.poke()
	}
	for _, c := range w.replicas {
		c.end(false)
	}
	w.mu.Unlock()
	w.players.Wait()
	time.Sleep(time.Hour) // for what the programs still wait for: no goroutine may be left then
}

// rest waits until every fault is over and all nodes have had their time. Then nothing may be written.
func (w *world) rest() {
	for busy := true; busy; {
		if !w.sleep(25 * time.Minute) { // longer than what has no entry in faults
			return
		}
		w.mu.Lock()
		busy = len(w.faults) > 0
		w.mu.Unlock()
	}
	w.mu.Lock()
	w.calm = true
	wait := w.patience(true) + 20*time.Minute
	w.mu.Unlock()
	if !w.sleep(wait) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, at := range w.judge.lastWrite {
		if m := w.machines[name]; m != nil && !m.gone && time.Since(at) < 10*time.Minute && time.Since(m.disturbed) > w.patience(true) && w.judge.works(name) {
			w.fail(name, ruleRest, "all is calm since %s, and a node that works was written %s ago", time.Since(m.disturbed).Round(time.Second), time.Since(at))
		}
	}
}

// failAlone breaks one node that works, for long, while all else is calm: it must be re-tainted, and recover.
func (w *world) failAlone() {
	w.mu.Lock()
	var one *machine
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		m, node := w.machines[name], w.node(name)
		if m.up && !m.gone && m.held == 0 && node != nil && node.Labels[label] == "true" && w.judge.works(name) && w.judge.of(node).tainted && !w.judge.hasRole(node) {
			one = m
		}
	}
	long := 3*w.shows() + 10*time.Minute
	if one == nil || !w.options.retaint || w.options.recheck > time.Minute || w.options.check > 3*time.Second || w.hasEnded() {
		w.mu.Unlock()
		return
	}
	w.breaks(&fault{kind: "one fails alone", on: only(one), layers: []string{"network", "service"}}, one.name, long)
	w.mu.Unlock()
	w.sleep(long + w.patience(true))
}

// works reports whether nothing is wrong with a node.
func (j *judge) works(name string) bool {
	node := j.w.node(name)
	return node != nil && node.DeletionTimestamp == nil && !node.Spec.Unschedulable && j.of(node).cniSince.IsZero() && j.of(node).unmet.IsZero() && j.w.machines[name].held == 0
}
