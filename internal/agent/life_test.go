package agent

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/apitest"
	"github.com/imunhatep/kube-node-ready/internal/record"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

var (
	firstSeed = flag.Uint64("seed", 1, "the first seed of TestLives")
	seeds     = flag.Uint64("seeds", 20, "how many seeds TestLives runs")
	lasts     = flag.Duration("for", 0, "how long TestLives runs further seeds")
	// A release that the API server applies after its client has given up is a known gap: the agent may have found a failure since,
	// and shown it in a condition that then stays False on the released node.
	lateReleases = flag.Bool("late-releases", false, "apply a release although its client has given up")
	story        = flag.Bool("story", false, "print the whole story of every life")
)

// TestLives runs random lives of one agent on one node, each from a seed. It stops after five failures. hack/lives.sh runs more.
func TestLives(t *testing.T) {
	began, next, tried, failed := time.Now(), new(atomic.Uint64), new(atomic.Uint64), new(atomic.Uint64)
	var lives sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		lives.Go(func() {
			for n := next.Add(1); failed.Load() < 5 && (n <= *seeds || time.Since(began) < *lasts); n = next.Add(1) {
				if !t.Run(fmt.Sprint(*firstSeed+n-1), func(t *testing.T) { live(t, *firstSeed+n-1) }) {
					failed.Add(1)
				}
				tried.Add(1)
			}
		})
	}
	lives.Wait()
	t.Logf("%d lives in %s, %d of them failed", tried.Load(), time.Since(began).Round(time.Second), failed.Load())
}

// TestLivesThatFoundABug runs seeds that have found a bug, each with a description of it.
func TestLivesThatFoundABug(t *testing.T) {
	for seed, found := range map[uint64]string{
		200758: "a False that the API server applies after its client gave up replaces the True of the released node",
	} {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Log(found)
			live(t, seed)
		})
	}
}

// live runs the life of a seed. If it breaks a rule, it prints the end of the story and how often the same seed fails: the agent's
// jitter and the order of goroutines are not seeded.
func live(t *testing.T, seed uint64) {
	l := newLife(t, seed)
	told := l.story
	if len(l.broken) > 0 {
		t.Error(strings.Join(slices.Compact(l.broken), "\n"))
		failures := 1
		for range 9 {
			failures += min(1, len(newLife(t, seed).broken))
		}
		told = append(told, fmt.Sprintf("seed %d fails %d of 10 times", seed, failures))
		if !*story && len(told) > 60 {
			told = append(told[:1], told[len(told)-60:]...)
		}
	}
	if len(l.broken) > 0 || *story {
		t.Log("\n" + strings.Join(told, "\n"))
	}
}

// The three parts of a life.
const (
	trouble  = 15 * time.Minute // things go wrong
	recovery = 45 * time.Minute // the agent has this long once everything is in order
	idle     = 15 * time.Minute // the agent writes nothing
)

// The rules of every life.
const (
	ruleForeign = "the agent changes nothing that belongs to another client"
	ruleProven  = "the label and a True condition are written only if everything was in order moments before"
	ruleGate    = "the startup taint is removed only together with adding the label, or after INITIAL_TIMEOUT with ON_TIMEOUT=open"
	ruleStop    = "an agent ends soon after SIGTERM"
	ruleFew     = "an agent sends at most 400 requests a minute"
	ruleEnd     = "once everything is in order, the node becomes verified and shows no failure"
	ruleRest    = "a verified node on which nothing happens is not written to"
)

// life is one agent on one node and everything that happens to them. It draws the world's events, the settings after a restart and
// the faults of requests from separate sources, so that the events of a seed do not depend on what the agent does.
type life struct {
	*fakeAPI
	t                       *testing.T
	world, upgrade, traffic *rand.Rand      // traffic is guarded by mu
	has                     map[string]bool // features, and facts that may be out of order
	args                    []string        // of the first agent
	isConditionOnly         bool            // the policy shows the condition, which an agent with another policy would not withdraw
	initialTimeout          time.Duration
	network                 brokenNetwork
	agent                   *process
	stoppedAt               time.Time // when the agent received SIGTERM
	lateTaint               time.Time // when the startup taint is added to a node that joined without it

	turn sync.Mutex // held by each edit and its record

	mu                sync.Mutex
	faults            float64              // the probability that a request fails
	kinds             []int                // how it fails
	refused, down     time.Time            // when the API server accepts writes again, and when it is up again
	versions          []version            // of the Node, oldest first
	outOfOrder        map[string]time.Time // since when a fact is out of order
	mayOpen           bool                 // with ON_TIMEOUT=open, of this agent or an earlier one
	writes            int
	minute, inAMinute int64
	broken, story     []string
}

type version struct {
	at   time.Time
	node *corev1.Node
}

// newLife runs a life from its beginning to its end.
func newLife(t *testing.T, seed uint64) *life {
	l := &life{has: make(map[string]bool), outOfOrder: make(map[string]time.Time),
		world: rand.New(rand.NewPCG(seed, 1)), upgrade: rand.New(rand.NewPCG(seed, 2)), traffic: rand.New(rand.NewPCG(seed, 3))}
	simulated(t, func(t *testing.T, api *fakeAPI) {
		debug.SetGCPercent(400) // an agent on a verified node has set it to 50, for the whole process
		l.t, l.fakeAPI = t, api
		l.drawSettings()
		l.tell("seed %d: %s", seed, strings.Join(l.args, " "))
		l.replaceNode()
		l.setAllInOrder()
		l.set("network", l.world.IntN(2) == 0)
		l.intercept(l.request)
		events, often := l.events(), oneOf(l.world, 0.003, 0.01, 0.03)
		l.world.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		events = events[:2+l.world.IntN(len(events)-1)]
		l.during(trouble, func() {
			if l.world.Float64() < often {
				oneOf(l.world, events...)()
			}
		})
		l.mu.Lock()
		l.faults, l.refused, l.down = 0, time.Time{}, time.Time{}
		l.mu.Unlock()
		l.turn.Lock()
		l.setAllInOrder()
		l.turn.Unlock()
		l.during(recovery, func() {})
		l.mu.Lock()
		l.writes = 0
		l.mu.Unlock()
		l.during(idle, func() {})
		l.judgeEnd()
		if l.agent != nil {
			l.agent.stop()
			l.agent.wait()
		}
		after(time.Minute) // for requests whose client has given up
	})
	return l
}

func oneOf[T any](random *rand.Rand, list ...T) T { return list[random.IntN(len(list))] }

func (l *life) drawSettings() {
	for _, name := range []string{"rechecks", "upgrades", "cni", "label", "plugin"} {
		l.has[name] = l.world.Float64() < 0.45
	}
	l.has["network"] = true
	l.faults = oneOf(l.world, 0, 0.02, 0.1, 0.3)
	l.kinds = l.world.Perm(10)[:1+l.world.IntN(4)] // a few at a time reach states that all together do not
	l.initialTimeout = oneOf(l.world, 30*time.Second, 2*time.Minute, 5*time.Minute)
	onTimeout, condition := oneOf(l.world, "keep", "taint", "condition", "taint,condition", "open", "open,condition"), "auto"
	l.mayOpen = strings.HasPrefix(onTimeout, "open")
	if !l.mayOpen {
		condition = oneOf(l.world, "auto", "auto", "always")
	}
	l.isConditionOnly = condition == "auto" && strings.HasSuffix(onTimeout, "condition")
	l.args = []string{"--on-timeout=" + onTimeout, "--condition=" + condition, "--initial-timeout=" + l.initialTimeout.String(),
		"--max-retries=" + oneOf(l.world, "0", "2", "5"), "--late-taint-window=" + oneOf(l.world, "0s", lateWindow.String()),
		"--metrics-linger=" + oneOf(l.world, "0s", "0s", "20s"), "--check-timeout=" + oneOf(l.world, "3s", "3s", "1s")}
	if l.has["cni"] {
		l.args = append(l.args, "--wait-for-taints="+cilium.Key)
	}
	var require []string
	if l.has["label"] {
		require = append(require, `{"label":"pool"}`)
	}
	if l.has["plugin"] {
		require = append(require, `{"daemonSet":"gpu/plugin"}`)
	}
	if len(require) > 0 {
		l.args = append(l.args, "--require=["+strings.Join(require, ",")+"]")
	}
	if l.has["rechecks"] {
		l.args = append(l.args, "--recheck-interval="+oneOf(l.world, "10s", "1m", "10m"))
	}
}

const lateWindow = time.Minute

// changedSettings draws the settings that an upgrade changes.
func (l *life) changedSettings() (args []string) {
	if !l.has["upgrades"] {
		return nil
	}
	if l.upgrade.IntN(2) == 0 {
		args = append(args, "--taint-key=new.example.com/key", "--also-remove-taints=node-ready/unverified,node-ready/failed")
	}
	if l.isConditionOnly {
		onTimeout := oneOf(l.upgrade, "condition", "taint,condition", "open,condition")
		args = append(args, "--on-timeout="+onTimeout)
		l.mu.Lock()
		l.mayOpen = l.mayOpen || onTimeout == "open,condition"
		l.mu.Unlock()
	}
	if l.has["rechecks"] {
		args = append(args, "--recheck-interval="+oneOf(l.upgrade, "10s", "1m", "10m"),
			"--failure-threshold="+oneOf(l.upgrade, "1", "3"), "--recovery-threshold="+oneOf(l.upgrade, "1", "3"))
	}
	return args
}

// events returns what may happen in this life.
func (l *life) events() []func() {
	until := func(what string, end *time.Time) {
		at := time.Now().Add(time.Duration(l.world.IntN(120)) * time.Second)
		l.tell("%s until %s", what, at.Format(time.TimeOnly))
		l.mu.Lock()
		defer l.mu.Unlock()
		*end = at
	}
	isRunning := func() bool { return l.agent != nil && l.stoppedAt.IsZero() }
	events := []func(){
		func() { until("the API server refuses writes", &l.refused) },
		func() { until("the API server is down", &l.down) },
		l.replaceNode,
		func() {
			l.edit(func(node *corev1.Node) { node.Labels["foreign"] = time.Now().Format(time.TimeOnly) })
			l.changed("another client changes a label")
		},
		func() {
			if isRunning() {
				l.stop()
			}
		},
		func() { // by a client that read the node before its release; without an agent, no component removes the taint
			if isRunning() && !slices.Contains(l.taints(), "node-ready/unverified") {
				l.lateTaint = time.Time{}
				l.addStartupTaint()
				l.changed("another client puts the startup taint back")
			}
		},
		func() {
			if l.isLabelled() {
				l.edit(func(node *corev1.Node) { delete(node.Labels, "node-ready/verified") })
				l.changed("another client removes the label")
			}
		},
	}
	if l.has["rechecks"] {
		events = append(events, func() {
			if l.isLabelled() && slices.Contains(l.record().Removed, startup) {
				l.edit(setFalse("Silent"))
				l.edit(removeTaint("node-ready/failed"))
				l.edit(addFailedTaint)
				l.changed("the controller writes False and re-taints the node")
			}
		})
	}
	for _, fact := range []string{"network", "cni", "label", "plugin"} {
		if l.has[fact] {
			events = append(events, func() { l.set(fact, !l.isInOrder(fact)) })
		}
	}
	return events
}

func (l *life) isInOrder(fact string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outOfOrder[fact].IsZero()
}

func (l *life) setAllInOrder() {
	for _, fact := range []string{"network", "cni", "label", "plugin"} {
		l.set(fact, true)
	}
}

// set puts a fact that a release depends on in order, or out of order.
func (l *life) set(fact string, isInOrder bool) {
	switch fact {
	case "network":
		l.network.recovered.Store(isInOrder)
	case "plugin":
		l.setPlugin(map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[isInOrder])
	case "cni":
		l.edit(removeTaint(cilium.Key))
		if !isInOrder {
			l.edit(addTaint(cilium))
		}
	case "label":
		l.edit(func(node *corev1.Node) {
			if delete(node.Labels, "pool"); isInOrder {
				node.Labels["pool"] = "x"
			}
		})
	}
	l.note(fact, isInOrder)
	l.changed(fmt.Sprintf("%s is in order: %v", fact, isInOrder))
}

// note records whether a fact is in order. One that stays out of order keeps its time.
func (l *life) note(fact string, isInOrder bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isInOrder {
		l.outOfOrder[fact] = time.Time{}
	} else if l.outOfOrder[fact].IsZero() {
		l.outOfOrder[fact] = time.Now()
	}
}

// replaceNode deletes the Node and creates another one of its name, which joins with the startup taint, without it, or gets it late.
func (l *life) replaceNode() {
	isGated, isLate := l.world.Float64() < 0.7, l.world.IntN(2) == 0
	late := time.Now().Add(time.Duration(l.world.IntN(58)) * time.Second) // timestamps and the Date header have whole seconds
	if isLate = isLate && !isGated && slices.Contains(l.args, "--late-taint-window="+lateWindow.String()); !isLate {
		late = time.Time{}
	}
	l.join(isGated, late)
}

func (l *life) join(isGated bool, late time.Time) {
	l.lateTaint = late
	l.edit(func(node *corev1.Node) {
		next := newSimulatedAPI(l.t).node
		next.UID, next.ResourceVersion, next.Labels["pool"] = node.UID+"+", node.ResourceVersion, "x"
		*node = *next
		if !isGated {
			removeTaint("node-ready/unverified")(node)
		}
	})
	l.note("label", true)
	l.note("cni", true)
	l.changed(fmt.Sprintf("another Node of this name joins, with the startup taint: %v", isGated))
}

// changed records an edit by another client, and the Node as it is then.
func (l *life) changed(what string) {
	l.tell("%s", what)
	l.keepVersion()
}

func (l *life) keepVersion() *corev1.Node {
	l.fakeAPI.mu.Lock()
	node := l.node
	l.fakeAPI.mu.Unlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.versions = append(l.versions, version{time.Now(), node})
	return node
}

func (l *life) tell(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.story = append(l.story, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
}

// fail records a broken rule. The caller holds the lock.
func (l *life) fail(rule, format string, args ...any) {
	text := fmt.Sprintf("rule %q: ", rule) + fmt.Sprintf(format, args...)
	l.broken = append(l.broken, text)
	l.story = append(l.story, time.Now().Format("15:04:05.000 ")+text)
}

// during runs the DaemonSet controller, the kubelet and each for a while.
func (l *life) during(d time.Duration, each func()) {
	for began := time.Now(); time.Since(began) < d; time.Sleep(250 * time.Millisecond) {
		l.turn.Lock()
		l.keepAgent()
		if !l.lateTaint.IsZero() && time.Now().After(l.lateTaint) {
			l.lateTaint = time.Time{}
			l.addStartupTaint()
			l.changed("the startup taint is added late")
		}
		each()
		l.turn.Unlock()
	}
}

// keepAgent starts and stops the agent the way the DaemonSet controller and the kubelet do.
func (l *life) keepAgent() {
	const gracePeriod = 50 * time.Second // 30 s more than the longest METRICS_LINGER
	isWanted := l.has["rechecks"] || !l.isLabelled()
	switch {
	case l.agent == nil && isWanted:
		changed := l.changedSettings()
		l.agent = simulate(l.t, l.fakeAPI, l.network.try, nil, slices.Concat(l.args, changed)...)
		l.tell("an agent starts %s", strings.Join(changed, " "))
	case l.agent == nil:
	case l.agent.hasEnded():
		l.agent, l.stoppedAt = nil, time.Time{}
		l.tell("the agent has ended")
	case l.stoppedAt.IsZero() && !isWanted:
		l.stop()
	case !l.stoppedAt.IsZero() && time.Since(l.stoppedAt) > gracePeriod:
		l.mu.Lock()
		l.fail(ruleStop, "it still runs after %s", time.Since(l.stoppedAt))
		l.mu.Unlock()
		l.agent.kill()
	}
}

func (l *life) stop() {
	l.tell("the agent receives SIGTERM")
	l.agent.terminate()
	l.stoppedAt = time.Now()
}

func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// request handles a request the way an unreliable API server does.
func (l *life) request(request string, _ int, w http.ResponseWriter, r *http.Request) bool {
	body, _ := io.ReadAll(r.Body)
	isWrite := r.Method != http.MethodGet && request != postEvent
	l.mu.Lock()
	if minute := time.Now().Unix() / 60; minute != l.minute {
		l.minute, l.inAMinute = minute, 0
	}
	if l.inAMinute++; l.inAMinute == 401 {
		l.fail(ruleFew, "the last one is %s", request)
	}
	isDown, isRefused := time.Now().Before(l.down), time.Now().Before(l.refused) && isWrite
	fault, hangs := -1, l.traffic.IntN(2) == 0
	if l.traffic.Float64() < l.faults {
		fault = l.kinds[l.traffic.IntN(len(l.kinds))]
	}
	takes := time.Duration(l.traffic.IntN(30)) * time.Millisecond
	late := time.Duration(l.traffic.IntN(60000)) * time.Millisecond
	l.mu.Unlock()

	switch {
	case isDown && hangs || fault == 0:
		<-r.Context().Done()
		return true
	case isDown:
		return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "down")
	case isRefused:
		return answerStatus(w, http.StatusForbidden, metav1.StatusReasonForbidden, "refused")
	case fault == 1:
		return answerStatus(w, http.StatusInternalServerError, metav1.StatusReasonInternalError, "500")
	case fault == 2:
		return answerStatus(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "429")
	case fault == 3 && isWrite:
		return answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict, "409")
	case fault == 4: // the write is applied even if its client has given up
		takes = late
	case fault == 5:
		takes = late / 16
	}
	time.Sleep(takes)
	isLateRelease := r.Context().Err() != nil && strings.Contains(string(body), "/metadata/labels")
	switch {
	case isLateRelease && !*lateReleases:
	case request == getCached:
		apitest.Answer(w, http.StatusOK, l.cached(fault >= 0))
	case !isWrite:
		l.answer(w, request, body)
	default:
		answer := l.write(request, body, fault)
		if fault == 6 {
			l.tell("  its answer is lost")
			return answerStatus(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "lost")
		}
		if fault == 7 {
			l.tell("  its answer does not come")
			<-r.Context().Done()
			return true
		}
		maps.Copy(w.Header(), answer.Header())
		w.WriteHeader(answer.Code)
		_, _ = w.Write(answer.Body.Bytes())
	}
	return true
}

// cached returns the Node from the API server's cache, up to two seconds old.
func (l *life) cached(isBehind bool) *corev1.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.versions) - 1
	for isBehind && last > 0 && time.Since(l.versions[last].at) < 2*time.Second {
		last--
	}
	return l.versions[last].node
}

// write applies a write by the agent and checks it against the rules.
func (l *life) write(request string, body []byte, fault int) *httptest.ResponseRecorder {
	l.turn.Lock()
	defer l.turn.Unlock()
	switch fault { // another client is faster
	case 8:
		l.edit(toggleFirstTaint)
		l.changed("another client adds or removes the first taint")
	case 9:
		l.join(true, time.Time{})
	}
	before := l.versions[len(l.versions)-1].node
	answer := httptest.NewRecorder()
	l.answer(answer, request, body)
	if answer.Code >= http.StatusBadRequest {
		return answer
	}
	now := l.keepVersion()
	condition := conditionOf(now)
	l.tell("the agent writes (%s): taints %v, label %q, condition %s %s", strings.TrimPrefix(request, "PATCH /api/v1/nodes/"),
		l.taints(), now.Labels["node-ready/verified"], condition.Status, condition.Reason)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes++
	l.judgeWrite(before, now)
	return answer
}

func toggleFirstTaint(node *corev1.Node) {
	const first = "foreign/first"
	if node.Spec.Taints[0].Key == first {
		removeTaint(first)(node)
		return
	}
	node.Spec.Taints = slices.Insert(node.Spec.Taints, 0, corev1.Taint{Key: first, Effect: corev1.TaintEffectNoSchedule})
}

func conditionOf(node *corev1.Node) (found corev1.NodeCondition) {
	for _, condition := range node.Status.Conditions {
		if condition.Type == "NodeVerified" {
			found = condition
		}
	}
	return found
}

// foreignPart returns the Node as JSON without the parts that belong to the agent.
func foreignPart(node *corev1.Node) string {
	rest := node.DeepCopy()
	rest.ResourceVersion, rest.Status.Conditions = "", nil
	rest.Spec.Taints = slices.DeleteFunc(rest.Spec.Taints, func(taint corev1.Taint) bool { return strings.HasPrefix(taint.Key, "node-ready/") })
	delete(rest.Labels, "node-ready/verified")
	if delete(rest.Annotations, nodepatch.Annotation); len(rest.Annotations) == 0 {
		rest.Annotations = nil
	}
	text, _ := json.Marshal(rest)
	return string(text)
}

// judgeWrite checks the rules for a write. The caller holds the lock.
func (l *life) judgeWrite(before, now *corev1.Node) {
	// Rechecks repeat a failed write after the next round, at most ten minutes later.
	proven, recheck := 8*time.Second, 10*time.Minute
	if l.faults > 0 || time.Since(l.down) < time.Minute || time.Since(l.refused) < time.Minute {
		proven = time.Minute // the time limit for all attempts of one patch, and some seconds
	}
	if foreignPart(before) != foreignPart(now) {
		l.fail(ruleForeign, "%s before, %s after", foreignPart(before), foreignPart(now))
	}
	isLabelled := now.Labels["node-ready/verified"] != ""
	isReleased := isLabelled && before.Labels["node-ready/verified"] == ""
	isShown := conditionOf(now).Status == corev1.ConditionTrue && conditionOf(before) != conditionOf(now)
	for fact, since := range l.outOfOrder {
		isIgnored := fact == "cni" && !isReleased && isLabelled // rechecks do not wait for foreign taints
		if !l.has[fact] || since.IsZero() || isIgnored {
			continue
		}
		if broken := time.Since(since); isReleased && broken > proven || isShown && broken > proven+recheck {
			l.fail(ruleProven, "%s has not been in order for %s", fact, broken)
		}
	}
	isGated := func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == "node-ready/unverified" })
	}
	last, _ := record.Parse(now.Annotations[nodepatch.Annotation])
	isOpened := l.mayOpen && last.Opened.Sub(now.CreationTimestamp.Time) >= l.initialTimeout
	if isGated(before) && !isGated(now) && !isLabelled && !isOpened {
		l.fail(ruleGate, "the node has no label; %s", now.Annotations[nodepatch.Annotation])
	}
}

// judgeEnd checks the rules for the end of the life.
func (l *life) judgeEnd() {
	isLabelled, taints, opened, condition := l.isLabelled(), l.taints(), l.record().Opened, conditionOf(l.node)
	l.mu.Lock()
	defer l.mu.Unlock()
	taints = slices.DeleteFunc(taints, func(key string) bool { return strings.HasPrefix(key, "foreign/") })
	if !isLabelled || len(taints) > 0 || condition.Status == corev1.ConditionFalse || !opened.IsZero() {
		l.fail(ruleEnd, "label %v, taints %v, condition %s %s, opened %s", isLabelled, taints, condition.Status, condition.Reason, opened)
	}
	if l.writes > 0 {
		l.fail(ruleRest, "%d writes in %s", l.writes, idle)
	}
}
