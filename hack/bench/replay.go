package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	replayed      = 2 * time.Minute // each measurement of the API server
	peersInSlice  = 100             // endpoints, by default of the EndpointSlice controller
	peersInterval = time.Hour       // between two lists of an agent
)

// createPeers creates EndpointSlices as those of the chart's headless Service are with 5,000 agents. Every address is that of the
// benchmark's pod, so that the agent in it finds peers that answer.
func (b *bench) createPeers(ctx context.Context) error {
	pod, err := b.Kube.CoreV1().Pods(harness.Namespace).Get(ctx, podName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	name, port, protocol, yes, no := "peers", int32(8080), corev1.ProtocolTCP, true, false
	return b.parallel(ctx, fleetSize/peersInSlice, "EndpointSlices", func(i int) error {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s%05d", nodePrefix, i), Labels: map[string]string{
				created: "", discoveryv1.LabelServiceName: harness.Name + "-peers", corev1.IsHeadlessService: "",
			}},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &protocol}},
		}
		for j := range peersInSlice {
			node, zone := fmt.Sprintf("%s%05d", nodePrefix, i*peersInSlice+j), fmt.Sprintf("eu-central-1%c", 'a'+j%3)
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{pod.Status.PodIP}, NodeName: &node, Zone: &zone,
				Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
				TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: harness.Namespace, Name: node, UID: pod.UID},
			})
		}
		_, err := b.Kube.DiscoveryV1().EndpointSlices(harness.Namespace).Create(ctx, slice, metav1.CreateOptions{})
		return err
	})
}

func (b *bench) removePeers(ctx context.Context) error {
	return b.Kube.DiscoveryV1().EndpointSlices(harness.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: created})
}

// replay sends the requests of a round, recorded from one agent, as 5,000 agents would send them, and measures the API server:
// before, while they do, and while they also list each other.
func (b *bench) replay(ctx context.Context, round []string, peers string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var r replay
	agents, err := b.replayers(ctx, r.dial)
	if err != nil {
		return err
	}
	b.step("recheck: the API server without rechecks")
	without, err := b.measureServer(ctx)
	if err != nil {
		return err
	}
	b.step("recheck: %d agents recheck every %s", fleetSize, longInterval)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	for _, agent := range agents {
		running.Go(func() { r.recheck(ctx, agent, round) })
	}
	if !await(ctx, func() int {
		b.progress(int(r.begun.Load()), fleetSize, "agents")
		return int(r.begun.Load())
	}, fleetSize) {
		return fmt.Errorf("%d agents have sent a round; last error: %v", r.begun.Load(), r.err.Load())
	}
	sent, dialed := r.sent.Load(), r.dialed.Load()
	with, err := b.measureServer(ctx)
	if err != nil {
		return err
	}
	sent = r.sent.Load() - sent
	b.step("recheck: each of them also lists the others once in %s", peersInterval)
	running.Go(func() { r.listPeers(ctx, agents, peers) })
	listed := r.lists.Load()
	listing, err := b.measureServer(ctx)
	if err != nil {
		return err
	}
	listed = r.lists.Load() - listed
	if failed := r.failed.Load(); failed > 0 || listed == 0 {
		return fmt.Errorf("%d lists; %d of %d requests failed: %v", listed, failed, r.sent.Load(), r.err.Load())
	}
	b.reportReplay(without, with, listing, sent, len(round))
	perSecond, megabytes := float64(listed)/replayed.Seconds(), float64(r.size.Load())/mb
	b.figure("of which lists of the other agents", "%.1f a second of %.2f MB", perSecond, megabytes)
	b.figure("connections that 5,000 agents keep", "%d, opened again %d", fleetSize, r.dialed.Load()-dialed)
	return nil
}

func (b *bench) reportReplay(without, with, listing usage, sent int64, ofRound int) {
	milliCPU := func(u usage) float64 { return 1000 * u.cpu / replayed.Seconds() }
	mebibytes := func(u usage) float64 { return u.resident / (1 << 20) }
	b.figure("5,000 agents recheck every 60s: requests", "%.0f a second", float64(sent)/replayed.Seconds())
	b.figure("API server CPU", "%.0f mCPU, without %.0f mCPU", milliCPU(with), milliCPU(without))
	b.figure("compared with the same cluster without rechecks", "%.2f times", with.cpu/without.cpu)
	b.figure("a recheck adds", "%.2f ms of API server CPU", 1000*(with.cpu-without.cpu)*float64(ofRound)/float64(sent))
	b.figure("API server memory", "%.0f MiB, without %.0f MiB", mebibytes(with), mebibytes(without))
	b.figure("p99 of GET, LIST", "%.0f ms, %.0f ms", 1000*with.p99["GET"], 1000*with.p99["LIST"])
	b.figure("5,000 agents recheck with peers: API server CPU", "%.0f mCPU", milliCPU(listing))
	b.figure("compared with the same cluster without rechecks", "%.2f times", listing.cpu/without.cpu)
}

// measureServer returns what the API server uses in a while in which kubelets send heartbeats.
func (b *bench) measureServer(ctx context.Context) (usage, error) {
	before, err := b.scrape(ctx)
	if err != nil {
		return usage{}, err
	}
	if err := b.beat(ctx, replayed); err != nil {
		return usage{}, err
	}
	after, err := b.scrape(ctx)
	return after.since(before), err
}

// replayer sends the requests of one agent, over one HTTP/2 connection that it keeps, with a token of its own.
type replayer struct {
	*http.Client
	server *url.URL
	node   string
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// replayers makes a replayer for each pod of the fleet.
func (b *bench) replayers(ctx context.Context, dial dialFunc) ([]replayer, error) {
	admin, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig())
	if err != nil {
		return nil, err
	}
	server, err := url.Parse(admin.Host)
	if err != nil {
		return nil, err
	}
	pods, err := b.Kube.CoreV1().Pods(harness.Namespace).List(ctx, metav1.ListOptions{LabelSelector: created})
	if err != nil {
		return nil, err
	}
	agents := make([]replayer, len(pods.Items))
	return agents, b.parallel(ctx, len(agents), "tokens", func(i int) error {
		pod := &pods.Items[i]
		token, err := b.Token(ctx, pod.Namespace, pod.Spec.ServiceAccountName, pod)
		if err != nil {
			return err
		}
		config := rest.AnonymousClientConfig(admin)
		config.BearerToken, config.UserAgent = token, "bench"
		config.Dial = dial
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil } // also: a transport, and so a connection, of its own
		client, err := rest.HTTPClientFor(config)
		agents[i] = replayer{client, server, pod.Spec.NodeName}
		return err
	})
}

// replay counts the requests of all replayers.
type replay struct {
	begun, sent, failed, lists, dialed atomic.Int64
	size                               atomic.Int64 // of the last list, in bytes
	err                                atomic.Value // the last error
}

// recheck sends a round every minute ±20 %, beginning at any time in the first one, until ctx ends.
func (r *replay) recheck(ctx context.Context, agent replayer, round []string) {
	next := rand.N(longInterval)
	for first := true; ; first = false {
		if sleep(ctx, next); ctx.Err() != nil {
			return
		}
		began := time.Now()
		r.connect(ctx, agent)
		for _, path := range round {
			r.get(ctx, agent, path)
		}
		if first {
			r.begun.Add(1)
		}
		next = time.Duration((0.8+0.4*rand.Float64())*float64(longInterval)) - time.Since(began)
	}
}

// listPeers lets one agent after the other list the others, each of them once in an hour.
func (r *replay) listPeers(ctx context.Context, agents []replayer, path string) {
	ticker := time.NewTicker(peersInterval / time.Duration(len(agents)))
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			r.size.Store(r.get(ctx, agents[i%len(agents)], path))
			r.lists.Add(1)
		}
	}
}

// dial opens the connection that an agent keeps.
func (r *replay) dial(ctx context.Context, network, address string) (net.Conn, error) {
	r.dialed.Add(1)
	return new(net.Dialer).DialContext(ctx, network, address)
}

// connect is the network check: a connection that is closed at once.
func (r *replay) connect(ctx context.Context, agent replayer) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", agent.server.Host)
	if err != nil {
		r.fail(ctx, err)
		return
	}
	_ = conn.Close()
}

// get sends a request of an agent and returns the size of the answer in bytes.
func (r *replay) get(ctx context.Context, agent replayer, path string) int64 {
	path = strings.Replace(path, "/nodes/"+node, "/nodes/"+agent.node, 1)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, agent.server.String()+path, nil)
	if err != nil {
		r.fail(ctx, err)
		return 0
	}
	request.Header.Set("Accept", "application/json, */*")
	r.sent.Add(1)
	response, err := agent.Do(request)
	if err != nil {
		r.fail(ctx, err)
		return 0
	}
	defer func() { _ = response.Body.Close() }()
	size, err := io.Copy(io.Discard, response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", path, response.Status)
	}
	if err != nil {
		r.fail(ctx, err)
	}
	return size
}

func (r *replay) fail(ctx context.Context, err error) {
	if ctx.Err() == nil {
		r.failed.Add(1)
		r.err.Store(err.Error())
	}
}
