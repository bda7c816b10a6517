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

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

const (
	// answersWithin is how long to wait for a worker. If its round takes longer, kubelet's readiness probe reports the verdict.
	answersWithin = time.Minute
	// asksAtMost and betweenAsks bound the requests after a refused connection: kubelet may report the container before it listens.
	asksAtMost  = 10
	betweenAsks = 20 * time.Millisecond
)

// Asker asks workers for their verdict. kubelet asks as well, by the readiness probe, but mostly a second after the container has
// started (kubelet 1.36, prober_manager.go: its first probe comes before the status that it needs).
type Asker struct {
	Port      int               // of a worker
	Transport http.RoundTripper // nil means a direct connection
}

// HasPassed waits for the verdict of a worker that runs, and reports whether it has passed. The worker proves by its key that it
// is the one that this process has created, whatever answers at its address.
func (a Asker) HasPassed(ctx context.Context, pod *corev1.Pod, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	url := "http://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(a.Port)) + "/readyz"
	for range asksAtMost {
		answer, err := a.get(ctx, url)
		if err == nil {
			return strings.TrimSpace(answer) == verdict.Answer(key)
		}
		time.Sleep(betweenAsks)
	}
	return false
}

// get returns the answer of a server, or "" unless its status is 200.
func (a Asker) get(ctx context.Context, url string) (text string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	direct := &http.Transport{DisableKeepAlives: true, MaxResponseHeaderBytes: 16 << 10} // no proxy: a pod
	client := http.Client{Transport: cmp.Or[http.RoundTripper](a.Transport, direct),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return "", nil
	}
	all, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	return string(all), err
}

// ask asks each worker that runs for its verdict, once. The verdict of another leader's worker, or of one that cannot be
// reached from here, comes from kubelet. ctx outlives the call: controller-runtime ends it only with the process.
func (r *Reconciler) ask(ctx context.Context, v view) {
	for _, pod := range v.pods {
		state := v.memory.workers[pod.Name]
		hasAddress := pod.Status.PodIP != "" && pod.DeletionTimestamp == nil
		if state.key == "" || state.outcome(pod) != fleet.Running || !hasAddress {
			continue
		}
		r.memories.workerAsked(v.node.Name, pod.Name)
		go func() {
			if !r.Asker.HasPassed(ctx, pod, state.key) {
				return
			}
			r.memories.workerPassed(v.node.Name, pod.Name)
			r.workerChanged(r.queue, pod, true) // frees its slot, a second before kubelet reports it
		}()
	}
}
