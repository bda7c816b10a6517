package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What comes late on a node.
const (
	dns      = "DNS"
	services = "ClusterIPs"
	routes   = "CNI routes"
	proxy    = "kube-proxy"
)

// patience is how long after an outage a node may take, before it counts as not released. An agent's longest pause is 30 s. That of
// the controller is 8 minutes, but no outage of a worker here reaches INITIAL_TIMEOUT, before which there is none.
const patience = 5 * time.Minute

// verifier is who releases the node.
type verifier struct{ component, user string }

// endFunc ends a fault and returns since when the network works.
type endFunc func(context.Context) (time.Time, error)

// breakNode makes a fault for the pods of a node.
func (b *bench) breakNode(ctx context.Context, node, fault string) (endFunc, error) {
	pid, err := b.Script(ctx, "pid", "kubelet", node)
	if err != nil {
		return nil, err
	}
	// At once: hack/cluster/cluster takes a tenth of a second.
	inNode := func(ctx context.Context, command ...string) (string, error) {
		return b.Run(ctx, "", "nsenter", append([]string{"--target", strings.TrimSpace(pid), "--net"}, command...)...)
	}
	run := func(command ...string) endFunc {
		return func(ctx context.Context) (time.Time, error) {
			ended := time.Now()
			_, err := inNode(ctx, command...)
			return ended, err
		}
	}
	removeRules := run("nft", "delete", "table", "inet", "knr-fault")
	switch fault {
	case dns:
		return removeRules, b.Break(ctx, node, "meta l4proto { tcp, udp } th dport 53 drop")
	case services:
		return removeRules, b.Break(ctx, node, "ip daddr 10.96.0.0/16 drop")
	case routes: // to the pods of node1, where the name servers run
		route, err := inNode(ctx, "ip", "route", "show", "10.244.1.0/24")
		if err != nil {
			return nil, err
		}
		_, err = inNode(ctx, "ip", "route", "delete", "10.244.1.0/24")
		return run(append([]string{"ip", "route", "replace"}, strings.Fields(route)...)...), err
	}
	if _, err := b.Script(ctx, "stop", "kube-proxy", node); err != nil {
		return nil, err
	}
	for _, family := range []string{"ip", "ip6"} {
		if _, err := inNode(ctx, "nft", "delete", "table", family, "kube-proxy"); err != nil {
			return nil, err
		}
	}
	startProxy := func(ctx context.Context) (ended time.Time, err error) {
		if _, err := b.Script(ctx, "start", "kube-proxy", node); err != nil {
			return ended, err
		}
		err = harness.Until(ctx, func() (bool, error) {
			now := time.Now()
			services, err := inNode(ctx, "nft", "list", "map", "ip", "kube-proxy", "service-ips")
			if err == nil && strings.Contains(services, "10.96.0.1 . tcp . 443") && strings.Contains(services, "10.96.0.10 . udp . 53") {
				return true, nil
			}
			ended = now // they came after this look
			return false, nil
		})
		return ended, errors.Join(err, b.Repair(ctx, node))
	}
	// The rule keeps connection tracking on, as the rules of most CNIs do: a flow that began then is never translated.
	return startProxy, b.BreakForwarded(ctx, node, "ct state new accept")
}

// outage is one outage of the network of one node. It begins before the pod that verifies the node.
type outage struct {
	fault   string
	planned time.Duration // from the first sight of the running pod on

	lasted   time.Duration // from the first sight of the running pod to its end
	released time.Duration // after its end
	err      error
}

// measure makes an outage on a node, and measures how long after its end the node is released.
func (b *bench) measure(ctx context.Context, by verifier, node string, o *outage) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience+o.planned+patience)
	defer cancel()
	if err := b.settled(ctx, by, node); err != nil { // it may be late after the last outage
		return err
	}
	end, err := b.breakNode(ctx, node, o.fault)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.Gate(ctx, node); err != nil {
		return err
	}
	if err := b.podRuns(ctx, by.component, node); err != nil {
		return err
	}
	started := time.Now()
	sleep(ctx, time.Until(started.Add(o.planned)))
	if now, err := b.Node(ctx, node); err != nil || !harness.HasTaint(now, harness.Taint) {
		return errors.Join(err, errors.New("the node was released during the outage, or is gone"))
	}
	ended, err := end(ctx)
	if err != nil {
		return err
	}
	o.lasted = ended.Sub(started)
	if err := b.settled(ctx, by, node); err != nil {
		return err
	}
	released, err := b.releasedAt(began, by.user, node)
	o.released = released.Sub(ended)
	return err
}

// releasedAt takes from the audit log when a node was released.
func (b *bench) releasedAt(since time.Time, user, node string) (time.Time, error) {
	all, err := b.Audit(since, user)
	if err != nil {
		return time.Time{}, err
	}
	i := slices.IndexFunc(all, func(r harness.Request) bool {
		about := r.ObjectRef
		return r.Verb == "patch" && r.Response.Code == 200 && about.Resource == "nodes" && about.Subresource == "" && about.Name == node
	})
	if i < 0 {
		return time.Time{}, fmt.Errorf("no patch of %s in the audit log after %s", node, since)
	}
	return all[i].Answered, nil
}

// podRuns waits until a pod of a component runs on a node.
func (b *bench) podRuns(ctx context.Context, component, node string) error {
	return harness.Until(ctx, func() (bool, error) {
		pods, err := b.Pods(ctx, component)
		return slices.ContainsFunc(pods, func(p corev1.Pod) bool {
			return p.Spec.NodeName == node && p.Status.Phase == corev1.PodRunning
		}), err
	})
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
