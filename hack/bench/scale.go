package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
//   - noDaemonSet: nothing else;
//   - controllerMode: the controller has verified them, by a worker that kwok says is ready (scalecontroller.go).
const (
	withAgent      = "agent"
	idleDaemonSet  = "idle DaemonSet"
	noDaemonSet    = "no DaemonSet"
	controllerMode = "controller mode"
)

// stalled is the time without progress after which the remaining nodes count as not done.
const stalled = 2 * time.Minute

// scale measures every series for every number of nodes: those with and without a DaemonSet back to back, then controller mode.
func (b *bench) scale(ctx context.Context) error {
	idle := make(map[int]time.Duration)
	if err := b.scaleDaemonSet(ctx, idle); err != nil {
		return err
	}
	return b.scaleControllerMode(ctx, idle)
}

// scaleDaemonSet measures the series with and without a DaemonSet, and notes the times of the idle one by the number of nodes.
func (b *bench) scaleDaemonSet(ctx context.Context, idle map[int]time.Duration) (err error) {
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
		waves, points := map[string]wave{}, map[string]point{}
		for _, series := range []string{withAgent, idleDaemonSet, noDaemonSet} {
			b.step("scale: %d nodes, %s", n, series)
			w, err := b.wave(ctx, n, series, waves[withAgent].window)
			if err != nil {
				return err
			}
			waves[series], points[series] = w, point{n, w.took.Seconds(), w.server.cpu, w.requests}
		}
		idle[n] = waves[idleDaemonSet].took
		b.compare(n, waves)
		if err := b.draw(points); err != nil {
			return err
		}
	}
	return nil
}

// wave is the result of one series for one number of nodes.
type wave struct {
	took     time.Duration // from the first node created to the last node done
	window   time.Duration // from the first node created to the end of the measurement of the API server
	problems []string      // errors and warnings of the agents
	requests int           // of the agents
	server   usage
}

// compare reports the waves of n nodes.
func (b *bench) compare(n int, waves map[string]wave) {
	agent, idle, none := waves[withAgent], waves[idleDaemonSet], waves[noDaemonSet]
	nodes := fmt.Sprintf("scale %d: ", n)
	each := func(name, unit string, figure func(wave) float64) {
		b.figure(nodes+name, "agent %.3g, idle DaemonSet %.3g, no DaemonSet %.3g %s", figure(agent), figure(idle), figure(none), unit)
	}
	perNode := float64(agent.requests) / float64(n)
	b.budget(nodes+"agents with an error or a warning", float64(len(agent.problems)), 0, "%.0f")
	for _, text := range slices.Compact(slices.Sorted(slices.Values(agent.problems))) {
		b.figure(nodes+"logged by an agent", "%s", text)
	}
	b.budget(nodes+"requests of an agent", perNode, requestsBudget, "%.2f")
	each("first created to last done", "s", func(w wave) float64 { return w.took.Seconds() })
	if n != slices.Max(b.sizes) {
		return
	}
	each("API server CPU", "s", func(w wave) float64 { return w.server.cpu })
	for _, verb := range slices.Sorted(maps.Keys(agent.server.p99)) {
		each("p99 of "+verb, "ms", func(w wave) float64 { return 1000 * w.server.p99[verb] })
	}
	b.figure(nodes+"agent compared with an idle DaemonSet", "%.2f times the time, %.2f times the API server CPU",
		agent.took.Seconds()/idle.took.Seconds(), agent.server.cpu/idle.server.cpu)
	added := func(baseline wave) float64 { return 1000 * (agent.server.cpu - baseline.server.cpu) / float64(n) }
	b.figure("the agent adds a node", "%.1f requests, %.0f ms of API server CPU; with its DaemonSet %.0f ms",
		perNode, added(idle), added(none))
}

// wave creates n nodes at once and waits until they are done. What the API server used is measured until the agents have ended
// and the DaemonSet controller has deleted their pods, or for the given window: nodes send heartbeats all the time, so only
// windows of the same length can be compared.
func (b *bench) wave(ctx context.Context, n int, series string, window time.Duration) (w wave, err error) {
	var fleet sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer fleet.Wait()
	defer cancel()
	done, pods, err := b.prepare(ctx, series)
	if err != nil {
		return w, err
	}
	if series != noDaemonSet {
		fleet.Go(func() {
			err := inside(ctx, b, func(o outcome) {
				if w.problems = append(w.problems, o.Warnings...); o.Err != "" {
					w.problems = append(w.problems, o.Err)
				}
			}, map[string]string{withAgent: "fleet", idleDaemonSet: "tokens"}[series], strconv.Itoa(n))
			if err != nil && ctx.Err() == nil {
				w.problems = append(w.problems, err.Error())
			}
		})
	}
	before, err := b.scrape(ctx)
	if err != nil {
		return w, err
	}
	start := time.Now()
	if err := b.createNodes(ctx, nodePrefix, n, true); err != nil {
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
	if series == withAgent {
		await(ctx, func() int { return len(pods.ListKeys()) }, 0)
	}
	select {
	case <-ctx.Done():
	case <-time.After(window - time.Since(start)):
	}
	w.window = time.Since(start)
	after, err := b.scrape(ctx)
	if err != nil {
		return w, err
	}
	w.server = after.since(before)
	requests, err := b.Audit(start, harness.User)
	for _, request := range requests {
		if strings.HasPrefix(request.UserAgent, harness.Name+"/") {
			w.requests++
		}
	}
	return w, err
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

// prepare deletes the nodes of the last wave, deploys or deletes the DaemonSet, and watches nodes and pods.
func (b *bench) prepare(ctx context.Context, series string) (done func() int, pods cache.Store, err error) {
	if err := b.empty(ctx); err != nil {
		return nil, nil, err
	}
	switch series {
	case controllerMode:
	case noDaemonSet:
		err = b.Kube.AppsV1().DaemonSets(harness.Namespace).Delete(ctx, harness.Name, metav1.DeleteOptions{})
	default:
		if err = b.Deploy(ctx); err == nil {
			err = b.settle(ctx)
		}
	}
	if err != nil {
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
		if isReady(node) && (series != withAgent && series != controllerMode || harness.Verified(node)) {
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

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// empty deletes the benchmark's nodes, their pods and their leases, and waits until they are gone. Left to the controllers this
// would take a minute, at the cost of the next wave.
func (b *bench) empty(ctx context.Context) error {
	if err := b.clear(ctx); err != nil {
		return err
	}
	now := int64(0)
	if err := harness.Until(ctx, func() (bool, error) {
		pods, err := b.AgentPods(ctx)
		if err != nil || len(pods) == 0 {
			return len(pods) == 0, err
		}
		return false, b.Kube.CoreV1().Pods(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name})
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
