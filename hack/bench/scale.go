package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	// kwokNode marks the nodes that kwok plays kubelet for.
	kwokNode = "kwok.x-k8s.io/node"
	// idle is after how long without any progress the rest of the nodes counts as left behind.
	idle = 2 * time.Minute
)

// scale brings up many nodes at once, with the real scheduler and DaemonSet controller, without the
// agents and with them.
func (b *bench) scale(ctx context.Context) (err error) {
	ctx, stop, err := b.kwok(ctx)
	if err != nil {
		return err
	}
	defer stop()
	end, err := b.withPod(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer func() { err = errors.Join(err, b.empty(context.WithoutCancel(ctx))) }()

	var drawn []point
	for _, n := range b.sizes {
		var without wave
		if n == slices.Max(b.sizes) {
			b.step("scale: %d nodes without agents", n)
			if without, err = b.wave(ctx, n, false); err != nil {
				return err
			}
		}
		b.step("scale: %d nodes with agents", n)
		with, err := b.wave(ctx, n, true)
		if err != nil {
			return err
		}
		if with.left == 0 {
			drawn = append(drawn, point{n, with.took.Seconds()})
		}
		b.tell(n, without, with)
	}
	return b.draw(drawn)
}

// kwok plays kubelet for our nodes until stop is called. The context that it returns ends when kwok
// ends of itself.
func (b *bench) kwok(ctx context.Context) (running context.Context, stop func(), err error) {
	module, err := b.Run(ctx, "", "go", "list", "-C", "hack/tools/kwok", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok")
	if err != nil {
		return nil, nil, err
	}
	args := []string{"--kubeconfig", b.Kubeconfig(), "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=" + kwokNode + "=fake", "--node-lease-duration-seconds=40"}
	for _, stage := range []string{"node/fast/node-initialize", "node/heartbeat-with-lease/node-heartbeat-with-lease", "pod/fast/pod-ready", "pod/fast/pod-delete"} {
		args = append(args, "--config", filepath.Join(strings.TrimSpace(module), "kustomize", "stage", stage+".yaml"))
	}
	path := filepath.Join(b.Dir, "log", "kwok.log")
	log, err := os.Create(path)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(b.Tool("kwok"), args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(fmt.Errorf("kwok has ended (%w), see %s", cmp.Or(cmd.Wait(), errors.New("exit status 0")), path))
	}()
	return ctx, func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = log.Close()
	}, nil
}

// wave is what many nodes at once came to.
type wave struct {
	took     time.Duration // from the first node to the last one that is open, or that runs its pod
	left     int           // nodes that did not get there
	errors   []string      // of the agents
	troubles []string
	requests int // of the agents
	server   usage
}

func (b *bench) tell(n int, without, with wave) {
	name := fmt.Sprintf("%d nodes: ", n)
	b.budget(name+"left behind", float64(with.left), 0, "%.0f")
	b.budget(name+"agents that failed", float64(len(with.errors)), 0, "%.0f")
	b.figure(name+"first node to last untainted", "%.1f s, %.0f nodes a second", with.took.Seconds(), float64(n)/with.took.Seconds())
	b.budget(name+"requests a node", float64(with.requests)/float64(n), requestsBudget, "%.2f")
	for _, text := range slices.Compact(slices.Sorted(slices.Values(append(with.errors, with.troubles...)))) {
		b.figure(name+"an agent said", "%s", text)
	}
	if without.took == 0 {
		return
	}
	b.figure(name+"without agents, to the last running pod", "%.1f s", without.took.Seconds())
	b.figure(name+"CPU of the API server", "%.1f s, without agents %.1f s", with.server.cpu, without.server.cpu)
	for _, verb := range slices.Sorted(maps.Keys(with.server.p99)) {
		b.figure(name+"p99 of "+verb, "%.0f ms, without agents %.0f ms", 1000*with.server.p99[verb], 1000*without.server.p99[verb])
	}
}

// wave creates n gated nodes and waits until they are open; without agents, until their pods run.
func (b *bench) wave(ctx context.Context, n int, agents bool) (w wave, err error) {
	if err := b.empty(ctx); err != nil {
		return w, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	open, run, err := b.count(ctx)
	if err != nil {
		return w, err
	}
	var fleet sync.WaitGroup
	if agents {
		fleet.Go(func() {
			err := inside(ctx, b, func(l launched) {
				if l.Err != "" {
					w.errors = append(w.errors, l.Err)
				}
				w.troubles = append(w.troubles, l.Troubles...)
			}, "fleet", strconv.Itoa(n))
			if err != nil && ctx.Err() == nil {
				w.errors = append(w.errors, err.Error())
			}
		})
	}
	before, err := b.scrape(ctx)
	if err != nil {
		return w, err
	}
	start := time.Now()
	if err := b.createNodes(ctx, n, true); err != nil {
		return w, err
	}
	reached, what := open, "nodes open"
	if !agents {
		reached, what = run, "pods running"
	}
	await(ctx, idle, func() int {
		done := reached()
		b.progress(done, n, what)
		return done
	}, n)
	w.took, w.left = time.Since(start), n-reached()
	if cause := context.Cause(ctx); cause != nil {
		return w, cause
	}
	after, err := b.scrape(ctx)
	if err != nil {
		return w, err
	}
	w.server = after.since(before)
	if w.left > 0 {
		cancel()
	}
	fleet.Wait()
	requests, err := b.Audit(start, harness.User)
	for _, request := range requests {
		if strings.HasPrefix(request.UserAgent, harness.Name+"/") {
			w.requests++
		}
	}
	return w, err
}

// count watches our nodes, and how many of them are open; and the pods of the DaemonSet that run on them.
func (b *bench) count(ctx context.Context) (open, run func() int, err error) {
	var mu sync.Mutex
	opened, runs := map[string]bool{}, map[string]bool{}
	see := func(object any) {
		mu.Lock()
		defer mu.Unlock()
		if node, ok := object.(*corev1.Node); ok && harness.Verified(node) {
			opened[node.Name] = true
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(b.Kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = created }))
	nodes := factory.Core().V1().Nodes().Informer()
	if _, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, now any) { see(now) }}); err != nil {
		return nil, nil, err
	}
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), nodes.HasSynced)
	err = running(ctx, b.Cluster, func(pod *corev1.Pod) {
		mu.Lock()
		defer mu.Unlock()
		runs[pod.Spec.NodeName] = true
	})
	length := func(m map[string]bool) func() int {
		return func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(m)
		}
	}
	return length(opened), length(runs), err
}

// empty deletes our nodes and the pods that are left on them, and waits until they are gone.
func (b *bench) empty(ctx context.Context) error {
	b.clear(ctx)
	now := int64(0)
	return harness.Until(ctx, func() (bool, error) {
		pods, err := b.AgentPods(ctx)
		if err != nil || len(pods) == 0 {
			return len(pods) == 0, err
		}
		return false, b.Kube.CoreV1().Pods(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now},
			metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name})
	})
}

func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
}
