package workers

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// Faults between verdict and release: the API server refuses the release until the fault is made and over.
func TestFaultBeforeRelease(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		fault, outcome string
		workers        int
		long           bool
		make           func(*suite, *seen)
	}{
		{"worker deleted before the release", "verified by another worker", 2, true, func(s *suite, worker *seen) {
			s.NoError(s.Cluster.Kube.CoreV1().Pods(worker.Namespace).Delete(s.Ctx, worker.Name, metav1.DeleteOptions{}))
			s.Until(func() (bool, error) {
				pods, err := s.Cluster.Pods(s.Ctx, "worker")
				return len(pods) == 1 && pods[0].UID != worker.UID, err
			}, "no other worker")
		}},
		{"controller killed before the release", "the next one runs the checks again", 2, false, func(s *suite, _ *seen) {
			s.awaitOther(func(leader corev1.Pod) { s.KillContainer(&leader) })
		}},
		{"API server paused before the release", "released by the same verdict", 1, false, func(s *suite, _ *seen) {
			s.pauseAPI(3 * time.Second)
		}},
		{"API server paused before the release until no controller leads", "the next one runs the checks again", 2, true, func(s *suite, _ *seen) {
			s.awaitOther(func(corev1.Pod) { s.pauseAPI(13 * time.Second) })
		}},
		{"controller deleted before the release", "the next one runs the checks again", 2, true, func(s *suite, _ *seen) {
			s.awaitOther(func(leader corev1.Pod) {
				s.NoError(s.Cluster.Kube.CoreV1().Pods(leader.Namespace).Delete(s.Ctx, leader.Name, metav1.DeleteOptions{}))
			})
		}},
		{"Lease taken from the leader before the release", "the next one runs the checks again", 2, true, func(s *suite, _ *seen) {
			s.awaitOther(func(corev1.Pod) { s.takeLease() })
		}},
	} {
		if c.long && !harness.Long() {
			continue
		}
		t.Run(strings.ReplaceAll(c.fault, " ", "_"), func(t *testing.T) {
			s.part(t, c.fault, c.outcome).faultBeforeRelease(nodes[0], c.workers, c.make)
		})
	}
}

// faultBeforeRelease verifies a node with a fault between verdict and release.
func (s *suite) faultBeforeRelease(node string, count int, fault func(*suite, *seen)) {
	s.T.Helper()
	s.Began = time.Now()
	workers, wanted := s.record(), s.addForeign(node)
	release := s.hold("nodes", "UPDATE")
	s.Gate(node)
	passed := s.await(workers, node, func(w *seen) bool { return w.isReady })
	s.awaitRefused("patch", node)
	fault(s, passed)
	s.Unverified(node)
	released := time.Now()
	release()
	s.awaitVerified(node, workers, count)
	s.row.Recovered(time.Since(released))
	s.row.Keeps(s.Node(node), wanted)
	s.noWorkers(workers, node)
}

// takeLease gives the leader's Lease to nobody, and waits until a controller takes it when it has expired.
func (s *suite) takeLease() {
	s.T.Helper()
	const another = "another"
	_, err := s.Cluster.Kube.CoordinationV1().Leases(harness.Namespace).Patch(s.Ctx, harness.Controller, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"holderIdentity":%q,"renewTime":%q}}`, another, time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")),
		metav1.PatchOptions{})
	s.NoError(err)
	s.Until(func() (bool, error) {
		identity, _, err := s.Cluster.Leader(s.Ctx)
		return identity != another, err
	}, "nobody takes the Lease over")
}

// pauseAPI stops the API server for a while.
func (s *suite) pauseAPI(pause time.Duration) {
	s.T.Helper()
	resume := s.Pause("kube-apiserver")
	defer resume()
	select {
	case <-s.Ctx.Done():
	case <-time.After(pause): // the fault, not a wait for something
	}
}

// Faults of a worker. Both wait for another attempt at the same time: half a minute after INITIAL_TIMEOUT, or after a worker that has
// ended without a verdict.
func TestFaultWorker(t *testing.T) {
	t.Parallel()
	s := start(t)
	killed := s.workerKilled(nodes[0], s.part(t, "worker killed", "verified by the next attempt"))
	failing := s.failingCheck(nodes[1], s.part(t, "DNS dropped on the node, then repaired", "condition DNSFailed; verified by the next attempt"))
	killed()
	failing()
}

// failingCheck asserts what is said of a node whose pods reach no name server. The function that it returns waits until the next
// attempt has verified the node.
func (s *suite) failingCheck(node string, part *suite) (rest func()) {
	s.T.Helper()
	workers, wanted := s.record(), s.addForeign(node)
	repair := s.drop(node, dropDNS)
	s.Gate(node)
	now, _ := s.AwaitNode(node, func(n *corev1.Node) bool {
		condition := harness.Condition(n, harness.ConditionType)
		return condition != nil && condition.Status == corev1.ConditionFalse
	})
	condition := harness.Condition(now, harness.ConditionType)
	s.Contains(condition.Reason, "DNSFailed")
	s.Contains(condition.Reason, "ServiceFailed")
	s.Contains(condition.Message, "dns: ")
	s.True(harness.HasTaint(now, harness.Taint))
	// The second attempt comes at once, and ends after INITIAL_TIMEOUT.
	failed := s.await(workers, node, func(w *seen) bool { return w.hasEnded() && w.Annotations["node-ready/attempt"] != "1" })
	ended := failed.Status.ContainerStatuses[0].State.Terminated
	s.Equal(int32(1), ended.ExitCode)
	s.Regexp(`"failed":\["dns",.*"service"`, ended.Message)
	s.AwaitLog(failed.Pod, harness.FailedCheck("dns")) // what is left of the failure
	s.Until(func() (bool, error) {
		events, err := s.Cluster.Events(s.Ctx, node, "NodeNotVerified")
		for _, event := range events {
			if event.Related != nil && event.Related.UID == failed.UID && strings.Contains(event.Message, "dns: ") {
				return true, nil
			}
		}
		return false, err
	}, "no Event about the failure")
	repair()
	repaired := time.Now()
	return func() {
		s.T.Helper()
		s.awaitRelease(node, workers)
		all := workers.of(node)
		for i, next := range all[1:] {
			s.Equal(strconv.Itoa(i+2), next.Annotations["node-ready/attempt"])
			s.Equal(all[0].CreationTimestamp.UTC().Format(time.RFC3339), next.Annotations["node-ready/first-attempt"])
			s.True(all[i].gone.IsZero() || all[i].gone.After(next.first), "a failed worker was deleted before the next one came")
		}
		last := all[len(all)-1]
		s.GreaterOrEqual(last.CreationTimestamp.Sub(all[len(all)-2].CreationTimestamp.Time), 29*time.Second, "no pause after INITIAL_TIMEOUT")
		part.row.Recovered(time.Since(repaired))
		part.row.Keeps(s.Node(node), wanted)
		s.AwaitNode(node, func(n *corev1.Node) bool {
			return harness.Condition(n, harness.ConditionType).Status == corev1.ConditionTrue
		})
		s.noWorkers(workers, node)
	}
}

// awaitSecond waits until a node is verified, whose second worker has made this attempt.
func (s *suite) awaitSecond(node string, workers *recorder, attempt int) {
	s.T.Helper()
	s.awaitRelease(node, workers)
	all := workers.of(node)
	s.GreaterOrEqual(len(all), 2)
	s.Equal(strconv.Itoa(attempt), all[1].Annotations["node-ready/attempt"])
}

// workerKilled kills the container of a worker before it has a verdict. The function that it returns waits until the next attempt
// has verified the node.
func (s *suite) workerKilled(node string, part *suite) (rest func()) {
	s.T.Helper()
	workers, wanted := s.record(), s.addForeign(node)
	repair := s.drop(node, dropDNS) // its round takes some seconds, then
	s.Gate(node)
	running := s.await(workers, node, (*seen).isRunning)
	s.KillContainer(&running.Pod)
	repair()
	repaired := time.Now()
	ended := s.await(workers, node, (*seen).hasEnded)
	s.Equal(int32(137), ended.Status.ContainerStatuses[0].State.Terminated.ExitCode)
	return func() {
		s.T.Helper()
		s.awaitSecond(node, workers, 2)
		part.row.Recovered(time.Since(repaired))
		part.row.Keeps(s.Node(node), wanted)
		s.noWorkers(workers, node)
	}
}

// A worker that is deleted before it has a verdict is no failed attempt.
func TestFaultWorkerDeleted(t *testing.T) {
	t.Parallel()
	s := begin(t, "worker deleted before its verdict", "verified by another one at once")
	node := nodes[2]
	workers, wanted := s.record(), s.addForeign(node)
	repair := s.drop(node, dropDNS)
	s.Gate(node)
	running := s.await(workers, node, (*seen).isRunning)
	now := int64(0)
	s.NoError(s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Delete(s.Ctx, running.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
	repair()
	repaired := time.Now()
	s.awaitSecond(node, workers, 1)
	s.row.Recovered(time.Since(repaired))
	s.row.Keeps(s.Node(node), wanted)
	s.noWorkers(workers, node)
}
