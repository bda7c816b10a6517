package worker

import (
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/controller/internal/clock"
	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// answersWithin is how long a worker is waited for. Its round may take longer: then kubelet's readiness tells the verdict.
	answersWithin = time.Minute
	// betweenAsks is the wait after a refused connection: kubelet may report the container before it listens.
	betweenAsks = 20 * time.Millisecond
)

// ask asks each worker that runs for its verdict, once. kubelet asks for it as well, by the readiness probe, but mostly a second
// after the container has started (kubelet 1.36, prober_manager.go: its first probe comes before the status that it needs).
//
// The worker proves by its key that it is the one that this process has created, whatever answers at its address. A worker of
// another leader, or one that cannot be reached from here, is left to kubelet.
func (r *Reconciler) ask(ctx context.Context, node *corev1.Node, workers []*corev1.Pod, seen memory) {
	for _, worker := range workers {
		known := seen.workers[worker.Name]
		outcome, _ := fleet.WorkerOutcome(worker)
		if outcome != fleet.Running || worker.Status.PodIP == "" || known.key == "" || known.asked || worker.DeletionTimestamp != nil {
			continue
		}
		r.rememberWorker(node.Name, worker.Name, func(s *workerState) { s.asked = true })
		address := net.JoinHostPort(worker.Status.PodIP, strconv.Itoa(r.VerdictPort))
		go func() {
			if !hasPassed(ctx, r.Transport, address, known.key) {
				return
			}
			r.rememberWorker(node.Name, worker.Name, func(s *workerState) { s.passed, s.ended = true, clock.Own() })
			r.changed(r.queue, worker, true) // its slot is free, although kubelet reports that a second later
		}()
	}
}

// hasPassed waits for the verdict of the worker at address, and reports whether it has passed and has the key.
func hasPassed(ctx context.Context, transport http.RoundTripper, address, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for tries := 0; tries < 10 && ctx.Err() == nil; tries++ {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			return false
		}
		direct := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10} // no proxy: a pod
		client := http.Client{Transport: cmp.Or[http.RoundTripper](transport, direct),
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		answer, err := client.Do(request)
		if err != nil {
			time.Sleep(betweenAsks)
			continue
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		return err == nil && answer.StatusCode == http.StatusOK && strings.TrimSpace(string(text)) == verdict.Answer(key)
	}
	return false
}
