// Command demo shows the gate at work on the throwaway cluster: `make demo`. When it starts there is
// one node, which is never gated and runs the cluster's DNS, as a system node group does.
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
	node   = "node2" // the one that joins
)

// workload is what an operator wants to run: an ordinary pod that tolerates nothing.
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
		fmt.Fprintln(os.Stderr, "look around: hack/cluster/cluster help   tear down: make cluster-down")
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
	s := &story{Cluster: cluster, Live: harness.NewLive(os.Stdout), ctx: ctx}
	chapters := []func() error{s.newNode, s.labelOff, s.noDNS}
	for i, chapter := range chapters {
		told := s.tellProgress(i+1, len(chapters))
		err := chapter()
		if told(); err != nil {
			return err
		}
	}
	return s.end()
}

// story tells what happens, with the time since its chapter began.
type story struct {
	*harness.Cluster
	*harness.Live
	ctx   context.Context
	began time.Time
	took  []figure
}

type figure struct {
	what string
	took time.Duration
}

func (s *story) chapter(title string) {
	s.Line("\n%s", title)
	s.began = time.Now()
}

// tellProgress says which chapter goes on, and for how long, until the function that it returns is called.
func (s *story) tellProgress(chapter, of int) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	began, done := time.Now(), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.Progress("  … %d of %d, %.0f s", chapter, of, time.Since(began).Seconds())
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func (s *story) say(format string, args ...any) { s.sayAt(time.Now(), format, args...) }

func (s *story) sayAt(at time.Time, format string, args ...any) {
	s.Line("  %+8.2f s  %s", at.Sub(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func (s *story) note(what string, from, to time.Time) {
	s.took = append(s.took, figure{what, to.Sub(from)})
}

// newNode: a node joins, tainted; it is verified; what waited for it runs.
func (s *story) newNode() error {
	s.chapter("1. A new node joins")
	if err := s.Deploy(s.ctx); err != nil {
		return err
	}
	if _, err := s.Kubectl(s.ctx, "", "label", "node", system, harness.Label+"=true"); err != nil {
		return err
	}
	if _, err := s.Kubectl(s.ctx, "", "cordon", system); err != nil {
		return err
	}
	s.say("%s is the system node: it runs CoreDNS, is labelled by hand, and takes no workload here", system)
	s.say("chart-rendered manifests applied with kubectl: DaemonSet, ConfigMap, service account and its rights")
	if _, err := s.Kubectl(s.ctx, workload, "apply", "-f", "-"); err != nil {
		return err
	}
	s.say("a workload pod is created; it is %s, as there is no node for it", s.workloadPhase())

	joining := make(chan error, 1)
	go func() {
		_, err := s.Script(s.ctx, "add-node", node)
		joining <- err
	}()
	joined, registered, err := s.AwaitNode(s.ctx, node, func(*corev1.Node) bool { return true })
	if err != nil {
		return errors.Join(err, failure(joining))
	}
	s.sayAt(registered, "%s registers, tainted %s; the workload pod is %s", node, taints(joined), s.workloadPhase())

	verified, err := s.gatePasses(registered)
	if err != nil {
		return errors.Join(err, failure(joining))
	}
	s.note("node registered to node verified (kubelet starts containers once the CNI is there)", registered, verified)
	if err := harness.Until(s.ctx, func() (bool, error) { return s.workloadPhase() == corev1.PodRunning, nil }); err != nil {
		return fmt.Errorf("the workload pod does not run: %w", err)
	}
	s.say("the workload pod is Running")
	s.note("node verified to workload running", verified, time.Now())
	if err := s.nothingLeft(); err != nil {
		return err
	}
	s.note("node verified to agent gone", verified, time.Now())
	return <-joining
}

// failure is what the channel holds already, if anything.
func failure(from <-chan error) error {
	select {
	case err := <-from:
		return err
	default:
		return nil
	}
}

// labelOff: a node is verified again by taking its label off.
func (s *story) labelOff() error {
	s.chapter("2. Verify it again: kubectl label node " + node + " " + harness.Label + "-")
	if _, err := s.Kubectl(s.ctx, "", "label", "node", node, harness.Label+"-"); err != nil {
		return err
	}
	from := time.Now()
	s.say("label off")
	verified, err := s.gatePasses(from)
	if err != nil {
		return err
	}
	s.note("label off to verified again", from, verified)
	return s.nothingLeft()
}

// noDNS: a node whose DNS does not work stays closed, and says why.
func (s *story) noDNS() error {
	s.chapter("3. A node without DNS")
	if err := s.ScaleCoreDNS(s.ctx, 0); err != nil {
		return err
	}
	s.say("CoreDNS scaled to zero")
	if err := s.Gate(s.ctx, node); err != nil {
		return err
	}
	from := time.Now()
	s.say("taint on, label off: as a new node would start")
	pod, err := s.AgentPod(s.ctx, node)
	if err != nil {
		return err
	}
	s.say("agent pod %s runs; its first round takes most of a minute, with five retries of each check", pod.Name)
	if err := s.followFailure(pod); err != nil {
		return err
	}
	now, err := s.Node(s.ctx, node)
	if err != nil {
		return err
	}
	s.say("the node is still tainted %s", taints(now))
	s.note("broken DNS to Event on the node (one round)", from, time.Now())

	if err := s.ScaleCoreDNS(s.ctx, 2); err != nil {
		return err
	}
	back := time.Now()
	s.say("CoreDNS is back")
	verified, err := s.gatePasses(back)
	if err != nil {
		return err
	}
	s.note("DNS back to verified, without a restart of the agent", back, verified)
	return s.nothingLeft()
}

// followFailure tells each failed attempt, then the Event and the metrics.
func (s *story) followFailure(pod corev1.Pod) error {
	told := 0
	err := harness.Until(s.ctx, func() (bool, error) {
		lines, err := s.Logs(s.ctx, pod)
		if err != nil {
			return false, nil // the container may only be starting
		}
		for ; told < len(lines); told++ {
			if line := lines[told]; line.Error != "" {
				text := fmt.Sprintf("%s, attempt %d: %s", line.Check, line.Attempt, line.Error)
				if line.RetryIn != "" {
					text += "; again in " + line.RetryIn
				}
				s.sayAt(line.Time, "%s", text)
			}
		}
		events, err := s.Events(s.ctx, node, "NodeNotVerified")
		return len(events) > 0, err
	})
	if err != nil {
		return err
	}
	events, err := s.Events(s.ctx, node, "NodeNotVerified")
	if err != nil {
		return err
	}
	s.say("Event on the node: %s %s: %s", events[0].Type, events[0].Reason, events[0].Message)
	for _, series := range []string{`node_check_status`, `node_check_failures_total{check="dns"}`, `node_check_attempts_total{check="dns"}`} {
		value, err := s.Metric(s.ctx, pod, series)
		if err != nil {
			return err
		}
		s.say("metric %s is %v", series, value)
	}
	return nil
}

// gatePasses tells what the agent does from a time on until the node is open, and returns when it was.
func (s *story) gatePasses(from time.Time) (time.Time, error) {
	watch, err := s.Kube.CoreV1().Pods(harness.Namespace).Watch(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + harness.Name})
	if err != nil {
		return time.Time{}, err
	}
	defer watch.Stop()
	var at time.Time
	verified := make(chan error, 1)
	go func() {
		var err error
		_, at, err = s.AwaitNode(s.ctx, node, harness.Verified)
		verified <- err
	}()
	var pod *corev1.Pod
	for {
		select {
		case event, ok := <-watch.ResultChan():
			if now, isPod := event.Object.(*corev1.Pod); ok && isPod && event.Type != "DELETED" && now.Spec.NodeName == node {
				if pod == nil && now.CreationTimestamp.After(from.Add(-time.Second)) {
					s.say("agent pod %s is on %s", now.Name, node)
				}
				pod = now
			}
			continue
		case err := <-verified:
			if err != nil {
				return at, err
			}
		}
		break
	}
	if pod != nil {
		s.tellChecks(*pod, from)
	}
	now, err := s.Node(s.ctx, node)
	if err != nil {
		return at, err
	}
	s.sayAt(at, "taint off, label on: taints %s, %s=%s", taints(now), harness.Label, now.Labels[harness.Label])
	s.sayAt(at, "annotation %s: %s", harness.Annotation, now.Annotations[harness.Annotation])
	return at, nil
}

// tellChecks tells how each check went, from the log of a pod that is about to go.
func (s *story) tellChecks(pod corev1.Pod, from time.Time) {
	lines, err := s.Logs(s.ctx, pod)
	if err != nil {
		s.say("the log of %s is gone already", pod.Name)
		return
	}
	for _, line := range lines {
		switch {
		case line.Time.Before(from):
		case line.Msg == "check passed":
			s.sayAt(line.Time, "check %-7s passed in %s: %s", line.Check, line.Took, line.Detail)
		case line.Check != "" && line.Error != "":
			s.sayAt(line.Time, "check %-7s failed: %s", line.Check, line.Error)
		}
	}
}

// nothingLeft waits until no pod of ours is on the node.
func (s *story) nothingLeft() error {
	if err := harness.Until(s.ctx, func() (bool, error) {
		pods, err := s.AgentPods(s.ctx)
		return !slices.ContainsFunc(pods, func(pod corev1.Pod) bool { return pod.Spec.NodeName == node }), err
	}); err != nil {
		return fmt.Errorf("the agent's pod is still there: %w", err)
	}
	s.say("agent pod deleted by the DaemonSet controller: nothing of ours is left on the node")
	return nil
}

func (s *story) workloadPhase() corev1.PodPhase {
	pod, err := s.Kube.CoreV1().Pods("default").Get(s.ctx, "workload", metav1.GetOptions{})
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

// end prints what took how long, and where to look.
func (s *story) end() error {
	s.Line("\nWhat took how long")
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, f := range s.took {
		_, _ = fmt.Fprintf(table, "  %s\t%.2f s\n", f.what, f.took.Seconds())
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Printf(`
Look around
  export KUBECONFIG=%s PATH=%s/bin/tools:$PATH
  kubectl get nodes -L %s
  kubectl describe node %s
  kubectl label node %s %s-
Tear down
  make cluster-down
`, s.Kubeconfig(), s.Root, harness.Label, node, node, harness.Label)
	return nil
}
