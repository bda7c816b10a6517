package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The series of the scale part. In each of them the same nodes are created at once, with the startup taint, and are done when
// kwok has set their condition Ready and
//   - withAgent: the agent of the chart's DaemonSet has verified them;
//   - idleDaemonSet: the pod of the same DaemonSet runs and has got its token; no agent is started;
//   - controllerMode: the controller has verified them, by a worker that kwok says is ready.
const (
	withAgent      = "agent"
	idleDaemonSet  = "idle DaemonSet"
	controllerMode = "controller mode"
)

// stalled is the time without progress after which the remaining nodes count as not done.
const stalled = 2 * time.Minute

// wave is the result of one series for one number of nodes.
type wave struct {
	took     time.Duration // from the first node created to the last node done
	window   time.Duration // from the first node created to the end of the measurement of the API server
	problems []string      // errors and warnings of the agents
	requests float64       // of the agent or of the controller, for each node
	cpu      float64       // seconds of the API server, in the window
}

// scale measures every series for every number of nodes: the agent and the idle DaemonSet back to back, then controller mode.
func (b *bench) scale(ctx context.Context) error {
	waves := map[string]map[int]wave{withAgent: {}, idleDaemonSet: {}, controllerMode: {}}
	if err := b.scaleDaemonSet(ctx, waves); err != nil {
		return err
	}
	if err := b.scaleControllerMode(ctx, waves[controllerMode]); err != nil {
		return err
	}
	for _, n := range b.sizes {
		b.compare(n, waves[withAgent][n], waves[idleDaemonSet][n], waves[controllerMode][n])
	}
	return b.drawScale(waves)
}

func (b *bench) scaleDaemonSet(ctx context.Context, waves map[string]map[int]wave) (err error) {
	kwok, err := b.StartKwok(ctx)
	if err != nil {
		return err
	}
	defer kwok.Stop()
	ctx = kwok.While(ctx)
	end, err := b.startPod(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer func() { err = errors.Join(err, b.empty(context.WithoutCancel(ctx))) }()
	for _, n := range b.sizes {
		for _, series := range []string{withAgent, idleDaemonSet} {
			if waves[series][n], err = b.wave(ctx, n, series, waves[withAgent][n].window); err != nil {
				return err
			}
		}
	}
	return nil
}

// scaleControllerMode lets kwok run without leases: it ignores pods that are bound before it has the lease of their node.
func (b *bench) scaleControllerMode(ctx context.Context, waves map[int]wave) (err error) {
	kwok, err := b.StartKwok(ctx, filepath.Join(b.Root, "hack", "e2e", "workers", "testdata", "stages.yaml"))
	if err != nil {
		return err
	}
	defer kwok.Stop()
	ctx = kwok.While(ctx)
	remove, err := b.deployControllerMode(ctx)
	if err != nil {
		return err
	}
	defer func() {
		ctx := context.WithoutCancel(ctx)
		err = errors.Join(err, b.empty(ctx), remove(ctx))
	}()
	if _, err := b.wave(ctx, 1, controllerMode, 0); err != nil { // waits for the leader
		return err
	}
	for _, n := range b.sizes {
		if waves[n], err = b.wave(ctx, n, controllerMode, 0); err != nil {
			return err
		}
	}
	return nil
}

// compare reports the waves of n nodes.
func (b *bench) compare(n int, agent, idle, controller wave) {
	nodes := fmt.Sprintf("scale %d: ", n)
	b.figure(nodes+"first created to last done", "agent %.3g, idle DaemonSet %.3g, controller mode %.3g s",
		agent.took.Seconds(), idle.took.Seconds(), controller.took.Seconds())
	b.budget(nodes+"agents with an error or a warning", float64(len(agent.problems)), 0, "%.0f")
	for _, text := range slices.Compact(slices.Sorted(slices.Values(agent.problems))) {
		b.figure(nodes+"logged by an agent", "%s", text)
	}
	b.budget(nodes+"requests of an agent", agent.requests, requestsBudget, "%.2f")
	b.budget(nodes+"requests of the controller for a node", controller.requests, controllerRequestsBudget, "%.2f")
	if n < 100 {
		return // too short to compare
	}
	b.budget(nodes+"controller mode compared with the idle DaemonSet", controller.took.Seconds()/idle.took.Seconds(), controllerScaleBudget, "%.2f times")
	if n == slices.Max(b.sizes) {
		b.budget(nodes+"agent compared with the idle DaemonSet", agent.took.Seconds()/idle.took.Seconds(), agentScaleBudget, "%.2f times")
		b.figure("the agent adds a node", "%.1f requests, %.0f ms of API server CPU", agent.requests, 1000*(agent.cpu-idle.cpu)/float64(n))
	}
}

// wave creates n nodes at once and waits until they are done. What the API server used is measured until the agents have ended
// and the DaemonSet controller has deleted their pods, or for the given window: nodes send heartbeats all the time, so only
// windows of the same length can be compared.
func (b *bench) wave(ctx context.Context, n int, series string, window time.Duration) (w wave, err error) {
	b.step("scale: %d nodes, %s", n, series)
	var fleet sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer fleet.Wait()
	defer cancel()
	done, pods, err := b.prepare(ctx, series)
	if err != nil {
		return w, err
	}
	if series != controllerMode {
		fleet.Go(func() {
			err := inside(ctx, b, func(o outcome) {
				if w.problems = append(w.problems, o.Warnings...); o.Err != "" {
					w.problems = append(w.problems, o.Err)
				}
			}, map[string]string{withAgent: "agents", idleDaemonSet: "idle"}[series], strconv.Itoa(n))
			if err != nil && ctx.Err() == nil {
				w.problems = append(w.problems, err.Error())
			}
		})
	}
	before, err := b.serverCPU(ctx)
	if err != nil {
		return w, err
	}
	start := time.Now()
	if err := b.createNodes(ctx, n, true); err != nil {
		return w, err
	}
	if !await(ctx, func() int {
		b.progress(done(), n, "nodes done")
		return done()
	}, n) {
		return w, errors.Join(context.Cause(ctx), fmt.Errorf("%d nodes, %s: %d nodes are not done", n, series, n-done()))
	}
	w.took = time.Since(start)
	fleet.Wait()
	if series != idleDaemonSet {
		await(ctx, func() int { return len(pods.ListKeys()) }, 0)
	}
	sleep(ctx, window-time.Since(start))
	w.window = time.Since(start)
	after, err := b.serverCPU(ctx)
	if err != nil {
		return w, err
	}
	w.cpu = after - before
	sent, err := b.sent(start, series)
	w.requests = float64(sent) / float64(n)
	return w, err
}

// sent counts the requests of the agents, or of the controller without its Lease and its watches.
func (b *bench) sent(since time.Time, series string) (n int, err error) {
	user := harness.User
	if series == controllerMode {
		user = harness.ControllerUser
	}
	all, err := b.Audit(since, user)
	for _, r := range all {
		if strings.HasPrefix(r.UserAgent, harness.Name) && r.ObjectRef.Resource != "leases" && r.Verb != "watch" {
			n++
		}
	}
	return n, err
}

// serverCPU is what the API server has used, in seconds.
func (b *bench) serverCPU(ctx context.Context) (float64, error) {
	text, err := b.Kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(`(?m)^process_cpu_seconds_total (\S+)$`).FindSubmatch(text)
	if found == nil {
		return 0, errors.New("the API server has no process_cpu_seconds_total")
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// await waits until count is n. It returns false if ctx ends or count does not change for a long time.
func await(ctx context.Context, count func() int, n int) bool {
	latest, since := count(), time.Now()
	for latest != n && ctx.Err() == nil && time.Since(since) < stalled {
		time.Sleep(20 * time.Millisecond) // shorter than in harness.Until: this time is measured
		if now := count(); now != latest {
			latest, since = now, time.Now()
		}
	}
	return latest == n
}

// prepare deletes the nodes of the last wave, and watches nodes and pods.
func (b *bench) prepare(ctx context.Context, series string) (done func() int, pods cache.Store, err error) {
	if err := b.empty(ctx); err != nil {
		return nil, nil, err
	}
	var mu sync.Mutex
	handled, running := map[string]bool{}, map[string]bool{}
	pods, err = watchPods(ctx, b.Cluster, func(pod *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		running[pod.Spec.NodeName] = true
	})
	if err != nil {
		return nil, nil, err
	}
	err = watch(ctx, informers.NewFilteredNodeInformer(b.Kube, 0, nil, labelled(created)), func(node *corev1.Node) {
		mu.Lock()
		defer mu.Unlock()
		ready := harness.Condition(node, corev1.NodeReady)
		if ready != nil && ready.Status == corev1.ConditionTrue && (series == idleDaemonSet || harness.Verified(node)) {
			handled[node.Name] = true
		}
	})
	return func() (n int) {
		mu.Lock()
		defer mu.Unlock()
		for name := range handled {
			if series != idleDaemonSet || running[name] {
				n++
			}
		}
		return n
	}, pods, err
}

// empty deletes the benchmark's nodes, their pods and their leases, and waits until they are gone. Left to the controllers this
// would take a minute, at the cost of the next wave.
func (b *bench) empty(ctx context.Context) error {
	if err := b.clear(ctx); err != nil {
		return err
	}
	now := int64(0)
	only := metav1.ListOptions{LabelSelector: podsOfNodes}
	if err := harness.Until(ctx, func() (bool, error) {
		pods, err := b.Kube.CoreV1().Pods(harness.Namespace).List(ctx, only)
		if err != nil || len(pods.Items) == 0 {
			return err == nil, err
		}
		return false, b.Kube.CoreV1().Pods(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, only)
	}); err != nil {
		return err
	}
	leases := b.Kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	list, err := leases.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	return b.parallel(ctx, len(list.Items), "leases deleted", func(i int) error {
		if name := list.Items[i].Name; strings.HasPrefix(name, nodePrefix) {
			if err := leases.Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}
