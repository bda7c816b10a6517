//go:build !race

// Package simulation is a cluster in virtual time: the real agents, workers and controllers run in it, everything else is played. A
// seed fixes the world and what goes wrong in it; rules are checked at each write.
package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/checks"
)

// world is the cluster: what the API server has, and what is true of the machines.
type world struct {
	mu sync.Mutex // of everything; nobody sleeps with it
	store
	seed      uint64
	random    *rand.Rand
	openings  *rand.Rand // draws what is only about onTimeout=open
	began     time.Time
	options   options
	dir       string
	processes map[string]*process // agents and workers, by the uid of their pod
	machines  map[string]*machine // by the name of the node, those that are gone too
	pools     []*pool
	faults    []*fault
	past      []*fault // all of them, those that have ended too
	judge     judge
	told      []line
	failed    string // the first rule that was broken
	over      chan struct{}
	players   sync.WaitGroup
	replicas  []*replica
	counts    counts
	wakes     chan struct{} // the DaemonSet controller has work
	skew      time.Duration // of the API server's clock
	mostSkew  time.Duration
	ctx       context.Context
	cancel    context.CancelFunc
	quiet     time.Time // when the last disturbance ended that is about everything
	calm      bool      // nothing is disturbed any more
	ends      time.Time // when the disturbances end

	hasStages bool // else the seed draws what it did before there were stages

	lastMachine string   // that something has happened to
	visited     *machine // the one that a disturbance is about, nil: any
}

// counts are what a run prints.
type counts struct {
	lives  int            // nodes
	most   int            // requests of a controller in a minute
	writes map[string]int // of ours, by kind
	faults map[string]int // by kind
}

func newWorld(seed uint64, dir string) *world {
	w := &world{store: newStore(), seed: seed, random: rand.New(rand.NewPCG(seed, 1)), openings: rand.New(rand.NewPCG(seed, 2)), began: time.Now(), dir: dir, hasStages: true, machines: make(map[string]*machine), processes: make(map[string]*process),
		over: make(chan struct{}), wakes: make(chan struct{}, 1), counts: counts{writes: make(map[string]int), faults: make(map[string]int)}}
	w.judge = newJudge(w)
	w.quiet = w.began
	return w
}

func (w *world) serverTime() time.Time { return time.Now().Add(w.skew) }

// chance, between and oneOf draw from the seed. The lock is held.
func (w *world) chance(p float64) bool { return w.random.Float64() < p }

func (w *world) between(a, b time.Duration) time.Duration {
	return a + time.Duration(w.random.Float64()*float64(b-a))
}

func oneOf[T any](w *world, list ...T) T { return list[w.random.IntN(len(list))] }

// draw draws with the lock.
func draw[T any](w *world, from func() T) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return from()
}

func (w *world) pause(a, b time.Duration) bool {
	return w.sleep(draw(w, func() time.Duration { return w.between(a, b) }))
}

// sleep waits, and returns false if the world has ended.
func (w *world) sleep(d time.Duration) bool {
	select {
	case <-w.over:
		return false
	case <-time.After(d):
		return true
	}
}

// play runs a player until it returns.
func (w *world) play(player func()) {
	w.players.Add(1)
	go func() {
		defer w.players.Done()
		player()
	}()
}

// line is one line of the story.
type line struct {
	at        time.Duration
	node, who string
	text      string
}

// tell adds a line to the story; node is "" where it is about all of them. The lock is held.
func (w *world) tell(node, who, format string, args ...any) {
	w.told = append(w.told, line{time.Since(w.began), node, who, fmt.Sprintf(format, args...)})
	if len(w.told) > 20_000 {
		w.told = slices.Clone(w.told[10_000:])
	}
}

// fail notes that a rule was broken, and ends the world. The lock is held.
func (w *world) fail(node string, rule, format string, args ...any) {
	if w.failed != "" {
		return
	}
	text := fmt.Sprintf(format, args...)
	w.tell(node, "RULE", "%s: %s", rule, text)
	var story strings.Builder
	_, _ = fmt.Fprintf(&story, "seed %d, %s: rule %s: node %s: %s\nworld: %s\n", w.seed, time.Since(w.began).Round(time.Second), rule, node, text, w.options)
	lines := slices.DeleteFunc(slices.Clone(w.told), func(l line) bool { return l.node != "" && l.node != node })
	seen := make(map[string]int) // what an agent says again and again is said twice, but for the end
	lines = slices.DeleteFunc(lines, func(l line) bool {
		key := l.who + l.text[:min(30, len(l.text))]
		seen[key]++
		return seen[key] > 2 && strings.HasPrefix(l.who, agentPod) && time.Since(w.began)-l.at > time.Minute && !strings.HasPrefix(l.text, "PATCH")
	})
	for _, l := range lines[max(0, len(lines)-120):] {
		_, _ = fmt.Fprintf(&story, "%12s  %-12s %-14s %s\n", l.at.Round(time.Millisecond), l.node, l.who, l.text)
	}
	w.failed = story.String()
	close(w.over)
}

const agentPod = "agent-"

func (w *world) hasEnded() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// node returns a Node as it is, or nil: nobody changes what read returns. The lock is held.
func (w *world) node(name string) *corev1.Node { return read[corev1.Node](w, "nodes", "/"+name) }

func (w *world) pod(name string) *corev1.Pod { return read[corev1.Pod](w, "pods", namespace+"/"+name) }

func read[T any](w *world, resource, key string) *T {
	v, found := w.now[resource][key]
	if !found {
		return nil
	}
	return typed[T](v)
}

// typed decodes an object once. The lock is held.
func typed[T any](v *version) *T {
	object, decoded := v.typed.(*T)
	if !decoded {
		object = new(T)
		_ = json.Unmarshal(asSeen[T](v.body), object)
		v.typed = object
	}
	return object
}

// asSeen translates a Node, and leaves other objects as they are.
func asSeen[T any](body []byte) []byte {
	if _, isNode := any((*T)(nil)).(*corev1.Node); isNode {
		return translated(body)
	}
	return body
}

// pods returns those of a node. The lock is held.
func (w *world) podsOf(node string) (found []*corev1.Pod) {
	for key := range w.now["pods"] {
		if pod := read[corev1.Pod](w, "pods", key); pod.Spec.NodeName == node && !isController(pod) {
			found = append(found, pod)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// edit changes an object as one of the players does, at once and whatever others do. The lock is held.
func edit[T any](w *world, resource, key string, change func(*T)) {
	v, found := w.now[resource][key]
	if !found {
		return
	}
	typed, object := new(T), make(map[string]any)
	_ = json.Unmarshal(asSeen[T](v.body), typed)
	change(typed)
	body, _ := json.Marshal(typed)
	_ = json.Unmarshal(asSeen[T](body), &object)
	in, name, _ := strings.Cut(key, "/")
	w.write(request{verb: http.MethodPut, resource: resource, namespace: in, name: name}, object, v.body)
}

func (w *world) editNode(name string, change func(*corev1.Node)) {
	edit(w, "nodes", "/"+name, change)
}

func (w *world) editPod(name string, change func(*corev1.Pod)) {
	edit(w, "pods", namespace+"/"+name, change)
}

// add creates an object as one of the players does. The lock is held.
func (w *world) add(resource string, object metav1.Object) {
	body, _ := json.Marshal(object)
	if resource == "nodes" {
		body = translated(body)
	}
	w.create(request{verb: http.MethodPost, resource: resource, namespace: object.GetNamespace(), sent: string(body)})
}

// remove deletes an object at once. The lock is held.
func (w *world) remove(resource, key string) {
	if v, found := w.now[resource][key]; found {
		var is meta
		_ = json.Unmarshal(v.body, &is)
		in, name, _ := strings.Cut(key, "/")
		w.delete(request{verb: http.MethodDelete, resource: resource, namespace: in, name: name}, v, is)
	}
}

// notice wakes the players whose work depends on an object. The lock is held.
func (w *world) notice(q request) {
	switch q.resource {
	case "pods":
		if pod := w.pod(q.name); pod != nil && w.machines[pod.Spec.NodeName] != nil {
			w.machines[pod.Spec.NodeName].poke()
		}
	case "nodes", "nodeclaims":
	default:
		return
	}
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

// runsSomewhere reports whether a pod has a kubelet that ends it.
func (w *world) runsSomewhere(body []byte) bool {
	var pod corev1.Pod
	_ = json.Unmarshal(body, &pod)
	m := w.machines[pod.Spec.NodeName]
	return m != nil && !m.gone && m.runs[string(pod.UID)] != nil
}

// process is a program of ours that runs: an agent, a worker, or a controller.
type process struct {
	w                          *world
	name                       string
	release                    release
	machine                    *machine // that it runs on
	uid                        string   // of its pod
	boot                       string
	broken                     bool // its sandbox was made while the network of the machine was not
	started                    time.Time
	dead                       bool                 // killed: nothing of it reaches anybody any more
	passed                     map[string]time.Time // when each check has passed last
	rounds                     int                  // that have passed without a break
	released                   map[string]bool      // the uids of Nodes that it has released
	read                       map[string]bool      // the names of the Nodes that it has read since it wrote the ledger
	taints                     map[*truth]sawTaint  // of a controller: what it was sent of foreign taints
	failed                     time.Time            // when one of the checks failed last
	failing                    time.Time            // when a check of the network, or a request, failed first since all of them passed
	hindered                   time.Time            // when a read or a write of a Node may have failed last
	sawForeign                 time.Time            // when it read first that its Node has no taint of WAIT_FOR_TAINTS any more
	isBlocked                  bool                 // the Node had one when it was read last
	retainted                  map[string]time.Time // when it has re-tainted a Node last, by its uid
	retaints                   bool                 // its settings allow it
	hasMissedPeers             bool
	person, controller, worker bool
}

// sawTaint is what a controller was sent of a Node's taints of WAIT_FOR_TAINTS: since when there is one, and when the last one that it
// must have seen was gone.
type sawTaint struct{ since, gone time.Time }

// newProcess returns a process that starts now; machine is nil for a client outside the cluster.
func (w *world) newProcess(name string, on *machine) *process {
	p := &process{w: w, name: name, machine: on, started: time.Now(), passed: make(map[string]time.Time), released: make(map[string]bool), retainted: make(map[string]time.Time),
		read: make(map[string]bool), taints: make(map[*truth]sawTaint)}
	if on != nil {
		p.boot = on.bootID()
	}
	return p
}

// RoundTrip is the network between a process and the API server.
func (p *process) RoundTrip(r *http.Request) (*http.Response, error) {
	w, ctx := p.w, r.Context()
	if r.URL.Host != apiHost {
		return p.toWorker(r)
	}
	q, known := parse(p, r)
	q.at = time.Now()
	broken := func(text string) (*http.Response, error) {
		return nil, fmt.Errorf("%s %s: %s", r.Method, r.URL.Path, text)
	}
	wait := func(d time.Duration) bool {
		if d == 0 {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	// client-go sends Events, and controller-runtime discovers resources, with a mutex held: whoever waits for that one does not let
	// the bubble's clock go on.
	locked := p.controller && (q.resource == "events" || known != nil)
	for lost := time.Duration(0); ; lost += time.Second {
		w.mu.Lock()
		if q.read == nil && q.verb == http.MethodDelete {
			q.read = maps.Clone(p.read)
		}
		dead, cut := p.dead, w.isCut(p)
		if cut {
			p.fail(q)
		}
		w.mu.Unlock()
		switch {
		case dead && !q.writes(): // harmless; a controller ends only once its caches are filled
		case dead || lost > 45*time.Second || cut && locked:
			return broken("connection reset by peer")
		case !cut:
		case !wait(time.Second):
			return nil, ctx.Err()
		default:
			continue
		}
		break
	}
	w.mu.Lock()
	trouble := w.troubleOf(q)
	if p.dead {
		trouble = troubles{}
	}
	if trouble != (troubles{}) {
		p.fail(q)
	}
	if locked {
		trouble.before, trouble.behind, trouble.retryAfter = 0, 0, 0
	}
	w.mu.Unlock()
	if !wait(trouble.before) {
		return nil, ctx.Err()
	}
	w.mu.Lock()
	if p.dead && q.writes() {
		w.mu.Unlock()
		return broken("connection reset by peer")
	}
	var a answer
	switch {
	case trouble.code != 0 && known == nil:
		a = status(trouble.code, map[int]metav1.StatusReason{429: metav1.StatusReasonTooManyRequests, 503: metav1.StatusReasonServiceUnavailable}[trouble.code], "not now")
		a.after = trouble.retryAfter
	case known != nil:
		a = *known
	default:
		w.trigger(q)
		a = w.handle(q)
		w.judge.answered(q, a)
	}
	if p.worker && a.code < http.StatusInternalServerError { // a refusal proves the path, too
		p.passed[checks.APIName] = time.Now()
	}
	date := w.serverTime()
	w.mu.Unlock()
	if !wait(trouble.behind) {
		return nil, ctx.Err()
	}
	if trouble.lost && a.watch == nil {
		return broken("the answer is lost: connection reset by peer")
	}
	response := &http.Response{StatusCode: a.code, Status: fmt.Sprint(a.code, " ", http.StatusText(a.code)), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}, "Date": {date.UTC().Format(http.TimeFormat)}}, Request: r}
	if a.after > 0 {
		response.Header.Set("Retry-After", fmt.Sprint(a.after))
	}
	if a.watch != nil {
		in, out := io.Pipe()
		response.Body = in
		go a.watch.run(ctx.Done(), out)
		go func() {
			<-ctx.Done()
			_ = in.CloseWithError(ctx.Err())
		}()
		return response, nil
	}
	response.Body = io.NopCloser(strings.NewReader(string(a.body)))
	response.ContentLength = int64(len(a.body))
	return response, nil
}

// CloseIdleConnections does nothing: there are none. Without it client-go warns.
func (p *process) CloseIdleConnections() {}
