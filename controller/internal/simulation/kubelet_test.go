//go:build !race

package simulation

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// machine is one machine with its kubelet. A Node of its name may be deleted and created again.
type machine struct {
	w         *world
	name      string
	pool      *pool
	zone      string
	claim     string        // its NodeClaim
	role      string        // of a server of the control plane or etcd, a label and a taint
	gated     bool          // it registers with the startup taint
	late      time.Duration // the platform adds the startup taint so long after the Node was created
	boot      int
	up, gone  bool
	gpus      int
	runs      map[string]*run // by the pod's uid
	all       []*run          // those that have ended, too
	wake      chan struct{}
	disturbed time.Time // when something ended last that may keep the node from being verified
	held      int       // disturbances that go on

	hasForeignTaint bool // for its whole life
	outageAtFalse   bool // the controllers' checks begin to fail when its condition becomes False
}

// run is one pod on a machine.
type run struct {
	pod, ip  string
	worker   bool
	broken   bool     // its sandbox is, as long as it lives
	process  *process // of its container; nil: none runs
	stop     context.CancelFunc
	crash    chan struct{} // closed: the container is killed
	handler  http.Handler
	restarts int
	made     time.Time     // when its pod was
	ended    chan struct{} // the pod is over
	spans    []span        // in which a container ran
}

type span struct{ from, to time.Time }

func (m *machine) bootID() string { return fmt.Sprintf("%s-boot%d", m.name, m.boot) }

func (m *machine) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// kubelet runs the pods of the machine, and says in the Node that it lives, until the machine is gone.
func (m *machine) kubelet() {
	w := m.w
	beat := time.Now()
	for {
		w.mu.Lock()
		if m.gone || w.hasEnded() {
			w.mu.Unlock()
			return
		}
		if m.up {
			for _, pod := range w.podsOf(m.name) {
				m.sync(pod)
			}
			if time.Since(beat) >= 5*time.Minute {
				beat = time.Now()
				w.editNode(m.name, func(node *corev1.Node) { setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime()) })
			}
		}
		w.mu.Unlock()
		select {
		case <-w.over:
		case <-m.wake:
			if !w.pause(50*time.Millisecond, 500*time.Millisecond) {
				return
			}
		case <-time.After(time.Minute):
		}
	}
}

func setCondition(node *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, now time.Time) {
	at := metav1.NewTime(now)
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == kind {
			if c.Status != status {
				c.LastTransitionTime = at
			}
			c.Status, c.LastHeartbeatTime = status, at
			return
		}
	}
	node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, LastHeartbeatTime: at, LastTransitionTime: at, Reason: "Played"})
}

// sync starts a pod that is new, and stops one that is being deleted. The lock is held.
func (m *machine) sync(pod *corev1.Pod) {
	r := m.runs[string(pod.UID)]
	switch {
	case pod.DeletionTimestamp != nil && r != nil && r.stop != nil:
		r.stop()
		r.stop = nil
	case pod.DeletionTimestamp != nil && r == nil:
		m.w.remove("pods", namespace+"/"+pod.Name)
	case pod.DeletionTimestamp == nil && r == nil && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded:
		ctx, stop := context.WithCancel(context.Background())
		m.w.uids++
		r = &run{pod: pod.Name, ip: fmt.Sprintf("10.244.%d.%d", m.w.uids/250, m.w.uids%250+1), worker: pod.Labels[component] == "worker", stop: stop, crash: make(chan struct{}), ended: make(chan struct{}), made: pod.CreationTimestamp.Time}
		m.runs[string(pod.UID)] = r
		m.all = append(m.all, r)
		m.w.play(func() { m.runPod(ctx, pod, r) })
	}
}

const component = "app.kubernetes.io/component"

// runPod is the life of one pod, until it is deleted or the machine goes down.
func (m *machine) runPod(ctx context.Context, pod *corev1.Pod, r *run) {
	w := m.w
	defer close(r.ended)
	finish := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(m.runs, string(pod.UID))
		if r.broken { // the next sandbox may be good: from then on the node works
			m.disturb()
		}
		if now := w.pod(pod.Name); now != nil && now.UID == pod.UID && now.DeletionTimestamp != nil && m.up {
			w.remove("pods", namespace+"/"+pod.Name)
		}
	}
	defer finish()
	if !m.makeSandbox(ctx, pod) {
		return
	}
	if !m.pullImage(ctx, pod, r) {
		return
	}
	r.broken = draw(w, func() bool { return w.fails(m, "broken sandbox") && w.options.controller && !r.worker })
	for backoff := 10 * time.Second; ; backoff = min(2*backoff, 5*time.Minute) {
		w.mu.Lock()
		p := w.newProcess(pod.Name, m)
		p.release, p.uid, p.broken, p.worker = releaseOfPod(pod), string(pod.UID), r.broken, r.worker
		w.processes[p.uid] = p
		r.process, r.crash = p, make(chan struct{})
		crash := r.crash
		w.mu.Unlock()
		exits := make(chan int, 1)
		processCtx, terminate := context.WithCancel(context.Background())
		isCrashing := draw(w, func() bool { return w.fails(m, "crash") })
		if isCrashing {
			time.AfterFunc(time.Second, func() { exits <- 2 })
		} else if r.worker {
			go m.worker(processCtx, p, pod, r, exits)
		} else {
			go m.agent(processCtx, p, r, exits)
		}
		w.mu.Lock()
		r.spans = append(r.spans, span{from: time.Now()})
		m.report(pod, r, nil, "")
		w.mu.Unlock()
		probing, stopProbing := context.WithCancel(context.Background())
		go m.probe(probing, pod, r)
		code, deleted := 0, false
		select {
		case code = <-exits:
		case <-crash:
			code = 137
		case <-ctx.Done(): // deleted, or the machine goes down
			deleted = true
			terminate()
			select {
			case <-exits:
			case <-crash:
			case <-time.After(90 * time.Second):
			case <-w.over:
			}
		}
		stopProbing()
		w.mu.Lock()
		p.dead, r.process = true, nil
		r.spans[len(r.spans)-1].to = time.Now()
		w.mu.Unlock()
		terminate()
		if deleted || ctx.Err() != nil || w.hasEnded() {
			return
		}
		message, _ := os.ReadFile(m.w.terminationLog(pod.Name))
		r.restarts++
		w.mu.Lock()
		m.report(pod, r, &code, string(message))
		w.mu.Unlock()
		if r.worker {
			<-ctx.Done()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-w.over:
			return
		case <-time.After(backoff):
		}
	}
}

// pullImage waits until the image is there, and reports whether it is.
func (m *machine) pullImage(ctx context.Context, pod *corev1.Pod, r *run) bool {
	w := m.w
	for {
		w.mu.Lock()
		fails := w.fails(m, "image")
		if fails && m.up {
			w.editPod(pod.Name, func(now *corev1.Pod) {
				if now.UID == pod.UID {
					name := map[bool]string{false: "agent", true: "worker"}[r.worker]
					now.Status.Phase, now.Status.ContainerStatuses = corev1.PodPending, []corev1.ContainerStatus{{Name: name,
						State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "not found"}}}}
					setReady(now, false, metav1.NewTime(w.serverTime()))
				}
			})
		}
		w.mu.Unlock()
		if !fails {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.over:
			return false
		case <-time.After(20 * time.Second):
		}
	}
}

func (w *world) terminationLog(pod string) string { return filepath.Join(w.dir, pod) }

// makeSandbox waits until the pod has a sandbox, and reports whether it has got one.
func (m *machine) makeSandbox(ctx context.Context, pod *corev1.Pod) bool {
	w := m.w
	pause := draw(w, func() time.Duration { return w.between(200*time.Millisecond, 3*time.Second) })
	for {
		select {
		case <-ctx.Done():
			return false
		case <-w.over:
			return false
		case <-time.After(pause):
		}
		w.mu.Lock()
		fails := w.fails(m, "sandbox")
		if fails {
			w.uids++
			at := metav1.NewTime(w.serverTime())
			w.add("events", &corev1.Event{TypeMeta: metav1.TypeMeta{Kind: "Event", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("event-", w.uids), Namespace: namespace},
				InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: pod.Name, Namespace: namespace, UID: pod.UID}, Reason: "FailedCreatePodSandBox",
				Message: "plugin type=cni failed", FirstTimestamp: at, LastTimestamp: at, Type: "Warning", Count: 1})
		}
		w.mu.Unlock()
		if !fails {
			return true
		}
		if pause = 12 * time.Second; w.options.long {
			pause = 2 * time.Minute
		}
	}
}

// report writes the pod's status. code is that of a container that has ended. The lock is held.
func (m *machine) report(pod *corev1.Pod, r *run, code *int, message string) {
	w := m.w
	if !m.up {
		return
	}
	w.editPod(pod.Name, func(now *corev1.Pod) {
		if now.UID != pod.UID {
			return
		}
		name := "agent"
		if r.worker {
			name = "worker"
		}
		at := metav1.NewTime(w.serverTime())
		container := corev1.ContainerStatus{Name: name, RestartCount: int32(r.restarts)}
		now.Status.Phase, now.Status.PodIP = corev1.PodRunning, r.ip
		now.Status.StartTime = &at
		if code == nil {
			container.ContainerID = fmt.Sprintf("%s-%d-%d", pod.Name, m.boot, r.restarts)
			container.State.Running = &corev1.ContainerStateRunning{StartedAt: at}
		} else {
			ended := &corev1.ContainerStateTerminated{ExitCode: int32(*code), FinishedAt: at, Message: message, Reason: "Error"}
			if container.State.Terminated = ended; !r.worker {
				container.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
				container.LastTerminationState.Terminated = ended
			} else if now.Status.Phase = corev1.PodFailed; *code == 0 {
				now.Status.Phase = corev1.PodSucceeded
			}
		}
		now.Status.ContainerStatuses = []corev1.ContainerStatus{container}
		setReady(now, false, at)
	})
}

func setReady(pod *corev1.Pod, ready bool, at metav1.Time) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	conditions := []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == status {
			at = c.LastTransitionTime
		}
	}
	pod.Status.Conditions = append(conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status, LastTransitionTime: at})
}

// probe is the readiness probe: of a worker its one answer, of an agent with rechecks each 10 s.
func (m *machine) probe(ctx context.Context, pod *corev1.Pod, r *run) {
	w := m.w
	ready, fails := false, 0
	for first := true; ; first = false {
		pause := 10 * time.Second
		switch {
		case r.worker && !first:
			return
		case r.worker:
			pause = draw(w, func() time.Duration { return w.between(0, time.Second) })
		case w.options.recheck == 0:
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		w.mu.Lock()
		handler := r.handler
		w.mu.Unlock()
		if handler == nil {
			continue
		}
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
		if passes := recorder.Code == http.StatusOK; passes {
			fails = 0
		} else {
			fails++
		}
		if now := fails == 0 || ready && fails < 2; now != ready && ctx.Err() == nil {
			ready = now
			w.mu.Lock()
			if m.up && r.process != nil {
				w.editPod(pod.Name, func(now *corev1.Pod) { setReady(now, ready, metav1.NewTime(w.serverTime())) })
			}
			w.mu.Unlock()
		}
	}
}

// goDown ends all that runs on the machine at once. The lock is held.
func (m *machine) goDown() {
	m.up = false
	for _, c := range m.w.replicas {
		if c.machine == m {
			c.end(false)
		}
	}
	for uid, r := range m.runs {
		if r.process != nil {
			r.process.dead = true
			r.process = nil
		}
		if r.stop != nil {
			r.stop()
			r.stop = nil
		}
		r.kill()
		delete(m.runs, uid)
	}
}

// crash ends the containers of the machine. The lock is held.
func (m *machine) crash() {
	for _, r := range m.runs {
		if r.process != nil {
			r.process.dead = true
			r.kill()
		}
	}
}

func (r *run) kill() {
	select {
	case <-r.crash:
	default:
		close(r.crash)
	}
}

// reboot is down for some time, and starts again with another boot id and fresh sandboxes.
func (m *machine) reboot(down time.Duration) {
	w := m.w
	w.mu.Lock()
	if m.gone || !m.up {
		w.mu.Unlock()
		return
	}
	w.tell(m.name, "machine", "reboots, %s", down.Round(time.Second))
	w.counts.faults["reboot"]++
	m.goDown()
	m.hold()
	w.mu.Unlock()
	if down > 40*time.Second {
		w.sleep(40 * time.Second)
		w.mu.Lock()
		m.unreachable()
		w.mu.Unlock()
		down -= 40 * time.Second
	}
	w.sleep(down)
	w.mu.Lock()
	defer w.mu.Unlock()
	m.release()
	if m.gone {
		return
	}
	m.boot++
	m.up = true
	w.tell(m.name, "machine", "has booted: %s", m.bootID())
	w.editNode(m.name, func(node *corev1.Node) {
		node.Status.NodeInfo.BootID = m.bootID()
		setCondition(node, corev1.NodeReady, corev1.ConditionTrue, w.serverTime())
		node.Status.Allocatable = m.allocatable()
	})
	w.editNode(m.name, func(node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") })
	})
	if node := w.node(m.name); node != nil && m.gated && w.chance(0.2) { // its bootstrap script taints the node at each boot
		w.judge.of(node).putBack = true
		m.taint(corev1.Taint{Key: startupTaint, Value: "true", Effect: corev1.TaintEffectNoSchedule})
	}
	m.poke()
}

// unreachable is what the node lifecycle controller writes. The lock is held.
func (m *machine) unreachable() {
	m.w.editNode(m.name, func(node *corev1.Node) {
		setCondition(node, corev1.NodeReady, corev1.ConditionUnknown, m.w.serverTime())
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeUnreachable }) {
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
		}
	})
}

// hold and release are around a disturbance of the machine. The lock is held.
func (m *machine) hold() { m.held++ }
func (m *machine) release() {
	m.held--
	m.disturb()
}
func (m *machine) disturb() { m.disturbed = time.Now() }
