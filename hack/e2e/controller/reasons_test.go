package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Faults of single nodes, most of them at the same time.
func TestReasonOfEachNode(t *testing.T) {
	s := start(t)
	cutOff, withoutDNS, withoutNetwork := nodes[0], nodes[1], nodes[2]
	s.awaitNoAgent(withoutNetwork) // kubelet could not end it without a CNI, and no other one would come
	s.drop(cutOff, "ip daddr 10.96.0.1 drop")
	s.drop(withoutDNS, "meta l4proto { tcp, udp } th dport 53 drop")
	restore := s.withoutCNI(withoutNetwork)
	for _, node := range nodes {
		s.Gate(node)
	}

	full := s.bare("full", func(n *corev1.Node) {
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1m"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
	})
	tainted := s.bare("tainted", func(n *corev1.Node) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "gpu", Effect: corev1.TaintEffectNoExecute})
	})
	labelled := s.bare("labelled", func(n *corev1.Node) { n.Labels[harness.Label] = "no" })
	// Nothing is to be said about these.
	excluded := s.bare("excluded", func(n *corev1.Node) { n.Labels["pool"] = "excluded" })
	windows := s.bare("windows", func(n *corev1.Node) { n.Labels["kubernetes.io/os"] = "windows" })
	cordoned := s.bare("cordoned", func(n *corev1.Node) { n.Spec.Unschedulable = true })
	open := s.bare("open", func(n *corev1.Node) { n.Spec.Taints = nil })

	for _, failed := range []struct{ node, reason, part string }{
		{full, "Unschedulable", "Insufficient cpu"},
		{tainted, "NoPod", "does not tolerate the taint dedicated=gpu:NoExecute"},
		{labelled, "NoPod", "the label " + harness.Label + "=no keeps the agent away"},
		{withoutNetwork, "SandboxFailed", "cni plugin not initialized"},
	} {
		found := s.awaitFailed(failed.node, failed.reason, failed.part)
		t.Logf("%s: %s", failed.node, found.Message)
		s.awaitEvent(failed.node, failed.reason+": "+found.Message)
	}
	s.Regexp(`Warning +NodeNotStarted .*Unschedulable: pod `, s.Kubectl("", "describe", "node", full))
	const byAgent = "DNSFailed" // among others
	s.awaitFailed(withoutDNS, byAgent, "dns: ")
	reported := time.Now()
	for _, series := range []string{
		`nodes{reason="NoPod",state="Failed"} 2`, `nodes{reason="SandboxFailed",state="Failed"} 1`,
		`nodes{reason="DNSFailed",state="Failed"} 1`, `verification_status{node="` + withoutNetwork + `",status="failed"} 1`,
	} {
		s.Until(func() (bool, error) {
			leader, _ := s.Leader()
			return strings.Contains(s.metrics(leader), "\nkube_node_ready_"+series), nil
		}, "no series %s", series)
	}
	restore()
	s.awaitRecovered(withoutNetwork)

	paused := withoutNetwork
	s.awaitNoAgent(paused)
	resume := s.Pause("kubelet", paused)
	s.Gate(paused)
	found := s.awaitFailed(paused, "Silent", "kubelet has not reported its status")
	s.awaitEvent(paused, "Silent: "+found.Message) // of this pod: kubelet may have been late about the one before, too
	resume()
	s.awaitRecovered(paused)

	// Last, because INITIAL_TIMEOUT and a minute pass. No agent has anything left to report by then.
	s.awaitFailed(cutOff, "Silent", "has neither verified the node nor reported a failure")
	s.awaitEvent(cutOff, "Silent")
	for _, node := range []string{excluded, windows, cordoned, open} {
		s.nothing(node)
	}
	s.awaitFailed(withoutDNS, byAgent, "dns: ")
	s.Empty(slices.DeleteFunc(s.conditionsOf(withoutDNS), func(r harness.Request) bool { return r.Received.Before(reported) }),
		"the controller writes over what the agent has reported")
	s.Empty(slices.DeleteFunc(s.events(withoutDNS, ""), func(e corev1.Event) bool { return e.CreationTimestamp.Time.Before(reported) }))
	s.repair(cutOff)
	s.repair(withoutDNS)
	s.awaitRecovered(cutOff)
	s.awaitRecovered(withoutDNS)
}
