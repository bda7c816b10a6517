// Command demo shows the agent at work on the throwaway cluster (`make demo`): a node joins, two nodes join with and without the gate,
// a node is verified again, a node has no DNS. The cluster starts with one node without the startup taint, which runs CoreDNS, as a system node group does.
// It draws a timeline of the node that joins.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const (
	system = "node1"
	node   = "node2" // joins during the demo
)

// workload is an ordinary pod without tolerations.
const workload = `
apiVersion: v1
kind: Pod
metadata: {name: workload, namespace: default}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: workload, image: "localhost/workload:1", imagePullPolicy: Never}]
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		fmt.Fprintln(os.Stderr, "inspect the cluster: hack/cluster/cluster help   tear it down: make cluster-down")
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cluster, err := harness.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	d := &demo{Cluster: cluster, Live: harness.NewLive(os.Stdout), ctx: ctx}
	go d.showProgress()
	for _, chapter := range []func() error{d.newNode, d.sideBySide, d.verifyAgain, d.noDNS} {
		if err := chapter(); err != nil {
			return err
		}
	}
	cancel()
	return d.summary()
}

// demo prints what happens, with the time since the chapter began.
type demo struct {
	*harness.Cluster
	*harness.Live
	ctx       context.Context
	began     time.Time // of the chapter
	durations []duration
	services  map[string]started // by node
}

type duration struct {
	what string
	time time.Duration
}

func (d *demo) chapter(title string) {
	d.Line("\n%s", title)
	d.began = time.Now()
}

// showProgress shows how long the demo has been running, until ctx is done.
func (d *demo) showProgress() {
	for began := time.Now(); ; {
		select {
		case <-d.ctx.Done():
			return
		case <-time.After(200 * time.Millisecond):
			d.Progress("  … %.0f s since the start of the demo", time.Since(began).Seconds())
		}
	}
}

func (d *demo) say(format string, args ...any) { d.sayAt(time.Now(), format, args...) }

func (d *demo) sayAt(at time.Time, format string, args ...any) {
	d.Line("  %+8.2f s  %s", at.Sub(d.began).Seconds(), fmt.Sprintf(format, args...))
}

func (d *demo) record(what string, from, to time.Time) {
	d.durations = append(d.durations, duration{what, to.Sub(from)})
}

// install applies the committed manifests with the image that was built for this cluster.
func (d *demo) install() error {
	for _, args := range [][]string{
		{"label", "node", system, harness.Label + "=true"},
		{"cordon", system},
		{"apply", "-f", "hack/manifests/kube-node-ready.yaml", "-f", "hack/manifests/kube-node-ready-policy.yaml"},
		{"set", "image", "-n", harness.Namespace, "daemonset/" + harness.Name, "agent=" + harness.Image + ":" + harness.Tag},
	} {
		if _, err := d.Kubectl(d.ctx, "", args...); err != nil {
			return err
		}
	}
	d.say("%s is the system node: it runs CoreDNS, is labelled as verified by hand, and is cordoned", system)
	d.say("the manifests of hack/manifests are applied: DaemonSet, ConfigMap, service account, RBAC and admission policy")
	return nil
}

// newNode: a node joins with the startup taint and is verified; the pending workload then runs.
func (d *demo) newNode() error {
	d.chapter("1. A new node joins")
	if err := d.install(); err != nil {
		return err
	}
	if _, err := d.Kubectl(d.ctx, workload, "apply", "-f", "-"); err != nil {
		return err
	}
	d.say("a workload pod is created; it is %s, because no node accepts it", d.workloadPhase())

	joining := make(chan error, 1)
	go func() {
		_, err := d.Script(d.ctx, "add-node", node)
		joining <- err
	}()
	joined, registered, err := d.AwaitNode(d.ctx, node, func(*corev1.Node) bool { return true })
	if err != nil {
		return errors.Join(err, failure(joining))
	}
	d.sayAt(registered, "%s registers with the taint %s; the workload pod is %s", node, taints(joined), d.workloadPhase())

	verified, err := d.awaitVerified(registered)
	if err != nil {
		return errors.Join(err, failure(joining))
	}
	d.record("node registered to node verified (includes the start of the CNI)", registered, verified.at)
	if err := harness.Until(d.ctx, func() (bool, error) { return d.workloadPhase() == corev1.PodRunning, nil }); err != nil {
		return fmt.Errorf("the workload pod is not Running: %w", err)
	}
	d.say("the workload pod is Running")
	d.record("node verified to workload running", verified.at, time.Now())
	if err := d.agentGone(); err != nil {
		return err
	}
	d.record("node verified to agent gone", verified.at, time.Now())
	if err := d.writeTimeline(verified); err != nil {
		d.say("no picture: %v", err)
	}
	return <-joining
}

// failure returns the error that is already in the channel, or nil.
func failure(from <-chan error) error {
	select {
	case err := <-from:
		return err
	default:
		return nil
	}
}

// verifyAgain: a node without the label is verified again.
func (d *demo) verifyAgain() error {
	d.chapter("3. Verify it again: kubectl label node " + node + " " + harness.Label + "-")
	if _, err := d.Kubectl(d.ctx, "", "label", "node", node, harness.Label+"-"); err != nil {
		return err
	}
	from := time.Now()
	d.say("label removed")
	verified, err := d.awaitVerified(from)
	if err != nil {
		return err
	}
	d.record("label removed to verified again", from, verified.at)
	return d.agentGone()
}

// noDNS: a node without DNS keeps its startup taint, and the log, an Event and the metrics give the reason.
func (d *demo) noDNS() error {
	d.chapter("4. A node without DNS")
	if err := d.ScaleCoreDNS(d.ctx, 0); err != nil {
		return err
	}
	d.say("CoreDNS scaled to zero; for a short demo, agents make one attempt in a round (config.maxRetries=0)")
	if _, err := d.Kubectl(d.ctx, "", "set", "env", "-n", harness.Namespace, "daemonset/"+harness.Name, "MAX_RETRIES=0"); err != nil {
		return err
	}
	if err := d.Gate(d.ctx, node); err != nil {
		return err
	}
	from := time.Now()
	d.say("startup taint added, label removed: the state of a new node")
	pod, err := d.AgentPod(d.ctx, node)
	if err != nil {
		return err
	}
	d.say("agent pod %s runs", pod.Name)
	if err := d.followFailure(pod); err != nil {
		return err
	}
	now, err := d.Node(d.ctx, node)
	if err != nil {
		return err
	}
	d.say("the node still has the taint %s", taints(now))
	d.record("no DNS to Event on the node (one round)", from, time.Now())

	if err := d.ScaleCoreDNS(d.ctx, 2); err != nil {
		return err
	}
	back := time.Now()
	d.say("CoreDNS is back")
	verified, err := d.awaitVerified(back)
	if err != nil {
		return err
	}
	d.record("DNS back to verified, without a restart of the agent", back, verified.at)
	return d.agentGone()
}

// followFailure prints each failed attempt, then the Event and the metrics.
func (d *demo) followFailure(pod corev1.Pod) error {
	printed := 0
	err := harness.Until(d.ctx, func() (bool, error) {
		lines, err := d.Logs(d.ctx, pod)
		if err != nil {
			return false, nil // the container may still be starting
		}
		for ; printed < len(lines); printed++ {
			if line := lines[printed]; line.Error != "" {
				text := fmt.Sprintf("%s, attempt %d: %s", line.Check, line.Attempt, line.Error)
				if line.RetryIn != "" {
					text += "; next attempt in " + line.RetryIn
				}
				d.sayAt(line.Time, "%s", text)
			}
		}
		events, err := d.Events(d.ctx, node, "NodeNotVerified")
		return len(events) > 0, err
	})
	if err != nil {
		return err
	}
	events, err := d.Events(d.ctx, node, "NodeNotVerified")
	if err != nil {
		return err
	}
	d.say("Event on the node: %s %s: %s", events[0].Type, events[0].Reason, events[0].Message)
	for _, series := range []string{`node_check_status`, `node_check_failures_total{check="dns"}`, `node_check_attempts_total{check="dns"}`} {
		value, err := d.Metric(d.ctx, pod, series)
		if err != nil {
			return err
		}
		d.say("metric %s is %v", series, value)
	}
	return nil
}

// verification is what the demo has seen of one.
type verification struct {
	at  time.Time // the node was verified
	pod string    // of the agent
	log []harness.LogLine
}

// awaitVerified prints what the agent does after from, until the node is verified.
func (d *demo) awaitVerified(from time.Time) (seen verification, err error) {
	agents := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name}
	watch, err := d.Kube.CoreV1().Pods(harness.Namespace).Watch(d.ctx, agents)
	if err != nil {
		return seen, err
	}
	defer watch.Stop()
	verified := make(chan error, 1)
	go func() {
		var err error
		_, seen.at, err = d.AwaitNode(d.ctx, node, harness.Verified)
		verified <- err
	}()
	var pod *corev1.Pod
	for pods := watch.ResultChan(); ; {
		select {
		case event, ok := <-pods:
			if !ok {
				pods = nil // the watch has ended
			}
			now, isPod := event.Object.(*corev1.Pod)
			if isPod && event.Type != "DELETED" && now.Spec.NodeName == node {
				if pod == nil && now.CreationTimestamp.After(from.Add(-time.Second)) {
					d.say("agent pod %s is on %s", now.Name, node)
				}
				pod = now
			}
			continue
		case err := <-verified:
			if err != nil {
				return seen, err
			}
		}
		break
	}
	if pod != nil {
		seen.pod, seen.log = pod.Name, d.printChecks(*pod, from)
	}
	now, err := d.Node(d.ctx, node)
	if err != nil {
		return seen, err
	}
	d.sayAt(seen.at, "node verified: taints %s, label %s=%s", taints(now), harness.Label, now.Labels[harness.Label])
	d.sayAt(seen.at, "annotation %s: %s", harness.Annotation, now.Annotations[harness.Annotation])
	return seen, nil
}

// printChecks prints the result of each check after from, and returns the log of the pod, which is about to be deleted.
func (d *demo) printChecks(pod corev1.Pod, from time.Time) []harness.LogLine {
	lines, err := d.Logs(d.ctx, pod)
	if err != nil {
		d.say("the log of %s is already gone", pod.Name)
		return nil
	}
	for _, line := range lines {
		switch {
		case line.Time.Before(from):
		case line.Check != "" && line.Detail != "":
			d.sayAt(line.Time, "check %-7s passed in %s: %s", line.Check, line.Took, line.Detail)
		case line.Check != "" && line.Error != "":
			d.sayAt(line.Time, "check %-7s failed: %s", line.Check, line.Error)
		}
	}
	return lines
}

// agentGone waits until no agent pod is on the node.
func (d *demo) agentGone() error {
	if err := harness.Until(d.ctx, func() (bool, error) {
		pods, err := d.AgentPods(d.ctx)
		return !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }), err
	}); err != nil {
		return fmt.Errorf("the agent pod is still there: %w", err)
	}
	d.say("agent pod deleted by the DaemonSet controller")
	return nil
}

func (d *demo) workloadPhase() corev1.PodPhase {
	pod, err := d.Kube.CoreV1().Pods("default").Get(d.ctx, "workload", metav1.GetOptions{})
	if err != nil {
		return corev1.PodUnknown
	}
	return pod.Status.Phase
}

func taints(node *corev1.Node) string {
	var all []string
	for _, taint := range node.Spec.Taints {
		all = append(all, taint.ToString())
	}
	if len(all) == 0 {
		return "none"
	}
	return strings.Join(all, ", ")
}

// summary prints the durations, and commands to continue with.
func (d *demo) summary() error {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, f := range d.durations {
		_, _ = fmt.Fprintf(table, "  %s\t%.2f s\n", f.what, f.time.Seconds())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	d.Line(`
Durations
%s
Inspect the cluster
  export KUBECONFIG=%s PATH=%s/bin/tools:$PATH
  kubectl get nodes -L %s
  kubectl describe node %s
  kubectl label node %s %s-
Tear down
  make cluster-down

%s`, text.String(), d.Kubeconfig(), d.Root, harness.Label, node, node, harness.Label, d.verdict())
	return nil
}
