// Package e2e tests the agent as users get it: the image from the Dockerfile, deployed by the chart
// on a real API server and a real kubelet. `make e2e` starts the cluster and runs it.
package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

const node = harness.RealNode

// quick are values with which a failure is distinguished from a success within seconds.
var quick = []string{"config.checkTimeout=1s", "config.maxRetries=0"}

func TestMain(m *testing.M) { os.Exit(harness.Main(m, nil)) }

// start brings the cluster into the state in which every test begins: the node verified, no fault,
// DNS up, the agent deployed with values and not running. The tests share the one node, so they run one after another.
func start(t *testing.T, values ...string) *harness.Suite {
	t.Helper()
	s := harness.Start(t)
	s.NoError(s.Cluster.Reset(s.Ctx, node))
	s.Deploy(values...)
	s.Began = time.Now()
	return s
}

// agentWithDeadTarget deploys the agent with values and a network target that does not answer until s.Repair, gates the node, and
// returns the agent's pod.
func agentWithDeadTarget(s *harness.Suite, values ...string) corev1.Pod {
	s.T.Helper()
	address := s.Target()
	s.Deploy(append(values, "config.networkTargets[0]="+address+":80")...)
	s.Break(fmt.Sprintf("ip daddr %s drop", address))
	s.Gate(node)
	return s.AgentPod(node)
}

// watchPods begins to watch pods. What it returns hands over each of their states until one is deleted, and returns that.
func watchPods(s *harness.Suite, which metav1.ListOptions) (untilDeleted func(each func(*corev1.Pod)) *corev1.Pod) {
	s.T.Helper()
	watch, err := s.Cluster.Kube.CoreV1().Pods(harness.Namespace).Watch(s.Ctx, which)
	s.NoError(err)
	s.T.Cleanup(watch.Stop)
	return func(each func(*corev1.Pod)) *corev1.Pod {
		for event := range watch.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			s.True(ok, "watch ended: %v", event)
			if each(pod); event.Type == "DELETED" {
				return pod
			}
		}
		s.FailNow("no pod was deleted")
		return nil
	}
}
