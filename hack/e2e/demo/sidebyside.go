package main

import (
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// The nodes that join side by side. Both get kube-proxy late.
const (
	gated     = "node3"
	ungated   = "node4"
	proxyLate = 8 * time.Second
)

// started is what the demo has seen of the service of one node.
type started struct {
	restarts int
	after    time.Duration // kube-proxy started: all pods are ready
}

// sideBySide: two nodes have the same fault and the same pods, and one of them has the gate.
func (d *demo) sideBySide() error {
	d.chapter(fmt.Sprintf("2. Two nodes side by side, kube-proxy %.0f s late on both, one without the gate", proxyLate.Seconds()))
	if err := d.join(gated); err != nil {
		return err
	}
	if err := d.join(ungated, "REGISTER_TAINTS=", "LABELS="+harness.Label+"=preexisting"); err != nil {
		return err
	}
	for _, name := range []string{gated, ungated} {
		now, _, err := d.AwaitNode(d.ctx, name, ready)
		if err != nil {
			return err
		}
		d.say("%s is Ready: kubelet and CNI work, kube-proxy does not run; taints: %s", name, taints(now))
	}
	for _, name := range []string{gated, ungated} {
		if _, err := d.StartService(d.ctx, name); err != nil {
			return err
		}
	}
	d.began = time.Now()
	d.say("%d pods are pinned to each node; each waits 5 s for DNS when it starts, and exits without it", harness.ServicePods)

	select {
	case <-d.ctx.Done():
		return d.ctx.Err()
	case <-time.After(proxyLate):
	}
	for _, name := range []string{gated, ungated} {
		if _, err := d.Script(d.ctx, "start", "kube-proxy", name); err != nil {
			return err
		}
	}
	works := time.Now()
	d.say("kube-proxy starts on both nodes: from now on DNS works")
	return d.followServices(works)
}

// join adds a node without kube-proxy.
func (d *demo) join(name string, environment ...string) error {
	args := append(environment, "PROXY=late", "WAIT=0", filepath.Join(d.Root, "hack", "cluster", "cluster"), "add-node", name)
	_, err := d.Run(d.ctx, "", "env", args...)
	return err
}

func ready(node *corev1.Node) bool {
	condition := harness.Condition(node, corev1.NodeReady)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// followServices prints when the pods of each node are ready, and keeps what the last line of the demo says.
func (d *demo) followServices(works time.Time) error {
	d.services = make(map[string]started)
	return harness.Until(d.ctx, func() (bool, error) {
		for _, name := range []string{gated, ungated} {
			if _, known := d.services[name]; known {
				continue
			}
			state, err := d.ServiceState(d.ctx, name)
			if err != nil {
				return false, err
			}
			if state.Ready == harness.ServicePods {
				d.services[name] = started{state.Restarts, time.Since(works)}
				d.say("%s: all pods are ready; kubelet has restarted them %d times", name, state.Restarts)
			}
		}
		return len(d.services) == 2, nil
	})
}

// verdict is the last line of the demo.
func (d *demo) verdict() string {
	without, with := d.services[ungated], d.services[gated]
	return fmt.Sprintf("kube-proxy %.0f s late. Without the gate: %d restarts, ready %.1f s after it started; with it: %d restarts, ready after %.1f s.",
		proxyLate.Seconds(), without.restarts, without.after.Seconds(), with.restarts, with.after.Seconds())
}
