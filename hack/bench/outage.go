package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The faults of an outage: what is wrong with the network of a node's pods.
const (
	dnsDropped      = "DNS dropped"
	servicesDropped = "all ClusterIPs dropped"
	podsDropped     = "all pod-to-pod traffic dropped"
	proxyLate       = "kube-proxy started late"
)

// patience is how long after an outage a node may take, before it counts as not released. An agent's longest pause is 30 s. That of
// the controller is 8 minutes, but no outage of a worker here reaches INITIAL_TIMEOUT, before which there is none.
const patience = 5 * time.Minute

// outage is one outage of the network of one node. It begins before the pod that verifies the node.
type outage struct {
	fault   string
	planned time.Duration // from the first sight of the running pod on
	counted bool          // the packets of the pod are

	lasted   time.Duration // from the first sight of the running pod to its end
	released time.Duration // after its end
	requests int           // of the agent, before its end
	recovery int           // of the agent, after its end
	packets  packets       // of the agent, before its end
	err      error
}

// verifier is who releases the node.
type verifier struct{ component, user string }

// measure makes an outage on a node, and measures how long after its end the node is released.
func (b *bench) measure(ctx context.Context, by verifier, node string, o *outage) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience+o.planned+patience)
	defer cancel()
	if err := b.settled(ctx, by, node); err != nil { // it may be late after the last outage
		return err
	}
	defer func() { err = errors.Join(err, b.repairNode(context.WithoutCancel(ctx), node, o.fault)) }()
	if err := b.breakNode(ctx, node, o.fault); err != nil {
		return err
	}
	began := time.Now()
	if err := b.Gate(ctx, node); err != nil {
		return err
	}
	pod, err := b.runningPod(ctx, by.component, node)
	if err != nil {
		return err
	}
	started := time.Now()
	counted := func() (packets, error) { return packets{}, nil }
	if o.counted {
		if counted, err = b.countPackets(ctx, pod); err != nil {
			return err
		}
	}
	sleep(ctx, time.Until(started.Add(o.planned)))
	if o.packets, err = counted(); err != nil {
		return err
	}
	if now, err := b.Node(ctx, node); err != nil || !harness.HasTaint(now, harness.Taint) {
		return errors.Join(err, errors.New("the node was released during the outage, or is gone"))
	}
	ended, err := b.endOutage(ctx, node, o.fault)
	if err != nil {
		return err
	}
	o.lasted = ended.Sub(started)
	if err := b.settled(ctx, by, node); err != nil {
		return err
	}
	all, err := b.Audit(began, by.user)
	if err != nil {
		return err
	}
	return o.read(all, node, pod.Name, ended)
}

// read takes from the audit log when the node was released, and what the pod has requested.
func (o *outage) read(all []harness.Request, node, pod string, ended time.Time) error {
	for _, request := range all {
		about := request.ObjectRef
		if about.Resource == "nodes" && about.Subresource == "" && about.Name == node && isRelease(request) {
			o.released = request.Answered.Sub(ended)
		}
		switch {
		case request.Pod() != pod:
		case request.Received.Before(ended):
			o.requests++
		default:
			o.recovery++
		}
	}
	if o.released <= 0 {
		return fmt.Errorf("no patch of %s in the audit log after %s", node, ended)
	}
	return nil
}

// breakNode makes a fault for the pods of a node.
func (b *bench) breakNode(ctx context.Context, node, fault string) error {
	switch fault {
	case dnsDropped:
		return b.Break(ctx, node, "meta l4proto { tcp, udp } th dport 53 drop")
	case servicesDropped:
		return b.Break(ctx, node, "ip daddr 10.96.0.0/16 drop")
	case podsDropped:
		return b.BreakForwarded(ctx, node, "ip saddr 10.244.0.0/16 ip daddr 10.244.0.0/16 drop")
	}
	if _, err := b.Script(ctx, "stop", "kube-proxy", node); err != nil {
		return err
	}
	for _, family := range []string{"ip", "ip6"} {
		if _, err := b.Script(ctx, "enter", node, "nft", "delete", "table", family, "kube-proxy"); err != nil {
			return err
		}
	}
	// The rule keeps connection tracking on, as the rules of most CNIs do: a flow that began then is never translated.
	return b.BreakForwarded(ctx, node, "ct state new accept")
}

// endOutage ends a fault and returns since when the network works.
func (b *bench) endOutage(ctx context.Context, node, fault string) (ended time.Time, err error) {
	pid, err := b.Script(ctx, "pid", "kubelet", node)
	if err != nil {
		return ended, err
	}
	nft := func(args ...string) (string, error) { // at once: hack/cluster/cluster takes a tenth of a second
		return b.Run(ctx, "", "nsenter", append([]string{"--target", strings.TrimSpace(pid), "--net", "nft"}, args...)...)
	}
	if fault != proxyLate {
		ended = time.Now()
		_, err = nft("delete", "table", "inet", "knr-fault")
		return ended, err
	}
	if _, err := b.Script(ctx, "start", "kube-proxy", node); err != nil {
		return ended, err
	}
	err = harness.Until(ctx, func() (bool, error) {
		now := time.Now()
		services, err := nft("list", "map", "ip", "kube-proxy", "service-ips")
		if err == nil && strings.Contains(services, "10.96.0.1 . tcp . 443") && strings.Contains(services, "10.96.0.10 . udp . 53") {
			return true, nil
		}
		ended = now // they came after this look
		return false, nil
	})
	return ended, err
}

// repairNode takes away what an outage may have left.
func (b *bench) repairNode(ctx context.Context, node, fault string) error {
	err := b.Repair(ctx, node)
	if _, stopped := b.Script(ctx, "pid", "kube-proxy", node); stopped != nil && fault == proxyLate {
		_, started := b.Script(ctx, "start", "kube-proxy", node)
		err = errors.Join(err, started)
	}
	return err
}

// runningPod waits for the pod of a component that runs on a node.
func (b *bench) runningPod(ctx context.Context, component, node string) (pod corev1.Pod, err error) {
	err = harness.Until(ctx, func() (bool, error) {
		pods, err := b.Pods(ctx, component)
		i := slices.IndexFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node && p.Status.Phase == corev1.PodRunning })
		if i >= 0 {
			pod = pods[i]
		}
		return i >= 0, err
	})
	return pod, err
}

// settled waits until a node is verified and the pod that has verified it is gone.
func (b *bench) settled(ctx context.Context, by verifier, node string) error {
	if _, _, err := b.AwaitNode(ctx, node, harness.Verified); err != nil {
		return err
	}
	return harness.Until(ctx, func() (bool, error) {
		pods, err := b.Pods(ctx, by.component)
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node }), err
	})
}

// packets is what a pod has sent: to name servers over UDP, to services over TCP (or anything else), and both a second.
type packets struct {
	dns, other int
	perSecond  float64
}

// countPackets counts what a pod sends from now on, but for its answers to kubelet's probes.
func (b *bench) countPackets(ctx context.Context, pod corev1.Pod) (counted func() (packets, error), err error) {
	const rules = `table inet knr-count {
chain sent {
type filter hook output priority filter
tcp sport 8080 accept
udp dport 53 counter accept
oifname "eth0" meta nfproto ipv4 counter
}
}
`
	pid, err := b.Script(ctx, "pod-pid", pod.Namespace, pod.Name)
	if err != nil {
		return nil, err
	}
	nft := []string{"--target", strings.TrimSpace(pid), "--net", "nft"}
	if _, err := b.Run(ctx, rules, "nsenter", append(nft, "-f", "-")...); err != nil {
		return nil, err
	}
	began := time.Now()
	return func() (packets, error) {
		text, err := b.Run(ctx, "", "nsenter", append(nft, "list", "table", "inet", "knr-count")...)
		if err != nil {
			return packets{}, err
		}
		return readPackets(text, time.Since(began))
	}, nil
}

func readPackets(text string, during time.Duration) (p packets, err error) {
	found := regexp.MustCompile(`counter packets (\d+)`).FindAllStringSubmatch(text, -1)
	if len(found) != 2 {
		return p, fmt.Errorf("not two counters in %q", text)
	}
	p.dns, _ = strconv.Atoi(found[0][1]) // digits
	p.other, _ = strconv.Atoi(found[1][1])
	p.perSecond = float64(p.dns+p.other) / during.Seconds()
	return p, nil
}
