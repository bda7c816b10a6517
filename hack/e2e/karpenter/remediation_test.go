package karpenter

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const ledger = harness.Name + "-remediation"

// replacing deploys a controller that replaces a node which has failed, and is older than a minute.
var replacing = []string{
	"controller.enabled=true", "controller.replicas=1", "controller.image.repository=" + harness.ControllerImage,
	"controller.image.tag=" + harness.Tag, "controller.image.pullPolicy=Never",
	`controller.nodeSelector.kubernetes\.io/hostname=` + realNode,
	"controller.remediation.mode=delete", "controller.remediation.deleteAfter=75s", "controller.remediation.failedFor=5s",
	"controller.remediation.controlGroupFor=5s",
	"config.initialTimeout=3s", "config.maxRetries=0",
}

// startReplacing is start with that controller, and without a ledger of an earlier test.
func startReplacing(t *testing.T, values ...string) *suite {
	t.Helper()
	s := start(t, append(slices.Clone(replacing), values...)...)
	s.Undo(func(ctx context.Context) error {
		if err := s.Cluster.Undeploy(ctx, append(slices.Clone(replacing), values...)...); err != nil {
			return err
		}
		_, err := s.Cluster.Kubectl(ctx, "", "delete", "configmap", "-n", harness.Namespace, ledger, "--ignore-not-found")
		return err
	})
	return s
}

func isFalse(node *corev1.Node) bool {
	found := harness.Condition(node, harness.ConditionType)
	return found != nil && found.Status == corev1.ConditionFalse
}

// badAmongGood makes a node on which no name server is reached, and then a younger one that is verified: the proof that another
// machine would do better. Each is wanted by a pod.
func (s *suite) badAmongGood() (bad, good state) {
	s.T.Helper()
	s.kubelet.networkOfTheFirst(s.badNetwork())
	s.nodePools("1s")
	s.workload("story", 1)
	bad = s.await("the agent on the first node finds no name server", nodes, func(s state) bool { return ofPool(s) && isFalse(s.node()) }).state
	s.scale("story", 2)
	good = s.await("a younger node is verified", nodes, func(s state) bool { return ofPool(s) && harness.Verified(s.node()) }).state
	s.NotEqual(bad.name(), good.name())
	return bad, good
}

// awaitNodeEvent waits for an Event of the controller about a node.
func (s *suite) awaitNodeEvent(node, reason, part string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, node, reason)
		return slices.ContainsFunc(events, func(e corev1.Event) bool { return strings.Contains(e.Message, part) }), err
	}, "no Event %s with %q about %s", reason, part, node)
}

// fleetEvents are those about the controller's Deployment for a reason, of this test.
func (s *suite) fleetEvents(reason string) (found []corev1.Event) {
	s.T.Helper()
	list, err := s.Cluster.Kube.CoreV1().Events(harness.Namespace).List(s.Ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
	s.NoError(err)
	for _, event := range list.Items {
		if !event.CreationTimestamp.Time.Before(s.Began.Truncate(time.Second)) {
			found = append(found, event)
		}
	}
	return found
}

func (s *suite) controller() corev1.Pod {
	s.T.Helper()
	var found corev1.Pod
	s.Until(func() (bool, error) {
		pods, err := s.Cluster.Pods(s.Ctx, "controller")
		for _, pod := range pods {
			if pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				found = pod
				return true, nil
			}
		}
		return false, err
	}, "no controller")
	return found
}

// breaks waits until a breaker is as wanted.
func (s *suite) breaks(rule, wanted string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		body, _, err := s.Cluster.Get(s.Ctx, s.controller(), "metrics")
		return strings.Contains(body, `kube_node_ready_breaker{reason="`+rule+`"} `+wanted+"\n"), err
	}, "the breaker %s is not %s", rule, wanted)
}

// One bad node among good ones, while DNS is dead in the cluster: nothing is deleted, although the node would be replaced. Once DNS
// works again, it is, once, and both pods run.
func TestBadNodeIsReplacedOnceTheClusterWorks(t *testing.T) {
	s := startReplacing(t, "controller.remediation.deleteAfter=3m") // when the node's agent has long failed in a fresh sandbox, too
	bad, good := s.badAmongGood()
	s.breaks("control-group", "0")
	s.awaitNodeEvent(bad.name(), "SandboxRenewed", "")
	s.Break("udp dport 53 drop", "tcp dport 53 drop") // for the controller's own pod
	s.breaks("control-group", "1")
	s.awaitNodeEvent(bad.name(), "RemediationWithheld", "control-group: the checks have passed in the controller's pod for ")
	s.Until(func() (bool, error) { return len(s.fleetEvents("RemediationFrozen")) > 0, nil }, "no Event about the fleet")
	s.noneDeleted()

	s.Repair()
	s.breaks("control-group", "0")
	deleted := s.await("its NodeClaim is deleted", nodeClaims, func(c state) bool {
		return ofPool(c) && c.object.GetDeletionTimestamp() != nil
	})
	name, _, err := unstructured.NestedString(deleted.object.Object, "status", "nodeName")
	s.NoError(err)
	s.Equal(bad.name(), name)
	s.awaitNodeEvent(bad.name(), "NodeClaimDeleted", "NodeClaim "+deleted.name()+": DNSFailed: ")
	another := s.await("Karpenter makes another node, which is verified", nodes, func(n state) bool {
		return ofPool(n) && n.name() != bad.name() && n.name() != good.name() && harness.Verified(n.node())
	})
	s.Until(func() (bool, error) {
		return len(s.seen.now(pods, workloadPod("story", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning && (p.Spec.NodeName == good.name() || p.Spec.NodeName == another.name())
		}))) == 2, nil
	}, "the pods do not run")
	inOrder(t, deleted, another)
	s.onlyDeletion(bad.name())
}

// onlyDeletion asserts what the ledger says.
func (s *suite) onlyDeletion(node string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		object, err := s.Cluster.Kube.CoreV1().ConfigMaps(harness.Namespace).Get(s.Ctx, ledger, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		text := object.Data["ledger"]
		s.Equal(1, strings.Count(text, `"nodeClaim":`), text)
		s.Contains(text, `"node":"`+node+`"`)
		return strings.Contains(text, `"gone":true`) && strings.Contains(text, `"answered":`), nil
	}, "the ledger does not say that the deletion has ended and was followed by a verified node")
}

// noneDeleted asserts that no NodeClaim was deleted.
func (s *suite) noneDeleted() {
	s.T.Helper()
	s.Empty(s.seen.of(nodeClaims, func(c state) bool { return c.deleted || c.object.GetDeletionTimestamp() != nil }))
}

// A dry run has no right to delete, and says what would be.
func TestDryRunDeletesNothing(t *testing.T) {
	if !harness.Long() {
		t.Skip("40 s for what tests without a cluster show: make e2e-karpenter runs it")
	}
	s := startReplacing(t, "controller.remediation.mode=dry-run", "controller.remediation.deleteAfter=20s")
	bad, _ := s.badAmongGood()
	s.awaitNodeEvent(bad.name(), "RemediationWithheld", "dry-run: NodeClaim ")
	s.noneDeleted()
	s.False(harness.Verified(s.Node(bad.name())))
}
