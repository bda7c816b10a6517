package recheck

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const networkFailed = "NetworkFailed"

// Half a zone fails: that many failures are a fault of the network, and no node is re-tainted. When all but three of them have recovered,
// those are re-tainted, up to the budget of their node group.
func TestHalfAZoneFails(t *testing.T) {
	s := start(t)
	var failed []string
	for i := range ofAZone / 2 {
		failed = append(failed, inFleet(0, i))
	}
	s.fail(failed...)
	s.awaitBreaker("failed-rechecks", true)
	t.Log(s.withheld("failed-rechecks: "))
	s.Regexp(`\d+ of 64 nodes fail their rechecks now`, s.withheld("failed-rechecks: "))
	s.Empty(s.taints())

	s.NoError(s.report(s.Ctx, corev1.ConditionTrue, "Verified", failed[3:]...))
	t.Log(s.withheld("budget: "))
	s.Contains(s.withheld("budget: "), "2 of 20 nodes of "+groupLabel+"=group-a")
	s.awaitBreaker("failed-rechecks", false)
	s.awaitSeries("retainted_nodes 2")
	s.Len(s.taints(), 2)
}

// withheld waits for the Event of this test that says that a rule keeps a node from being re-tainted, and returns its message.
func (s *suite) withheld(rule string) (message string) {
	s.T.Helper()
	s.Until(func() (bool, error) {
		list, err := s.Cluster.Kube.CoreV1().Events("default").List(s.Ctx, metav1.ListOptions{FieldSelector: "reason=TaintWithheld"})
		for _, event := range list.Items {
			if strings.HasPrefix(event.Message, rule) && !event.CreationTimestamp.Time.Before(s.Began.Truncate(time.Second)) {
				message = event.Message
			}
		}
		return message != "", err
	}, "no Event %s", rule)
	return message
}
