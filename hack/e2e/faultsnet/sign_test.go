package faultsnet

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// What the agent looks at during a pause works, and the attempt fails all the same. A sign that was wrong is not trusted again
// until the check has passed: it has ended one pause at most, and all other attempts come when the log has announced them.
func TestFaultLyingSign(t *testing.T) {
	server := nameServer(t)
	resolver := &corev1.PodDNSConfig{Nameservers: []string{server}}
	const outcome = "not verified; one pause at most is shorter than announced"

	fault(t, "a sign that lies: API server accepts, large packets to it are dropped", outcome, func(s *suite) {
		out, _ := s.directions()
		s.breakForwarded(out + "tcp dport 6443 " + large + "drop")
		s.keepsSchedule(s.agent(patient(), nil), "api")
		s.recovers(s.Repair)
	})
	fault(t, "a sign that lies: name server answers over UDP, TCP blocked", outcome, func(s *suite) {
		s.point(faulty)
		out, _ := s.directions()
		s.Break(out + "ip daddr " + server + " tcp dport 53 drop")
		s.keepsSchedule(s.agent(patient("DNS_TEST_DOMAINS", "large.fault"), resolver), "dns")
		s.recovers(s.Repair)
	})
	// One connection a second gets through. An attempt makes two at once, so one of them fails; a sign makes the one that failed.
	fault(t, "a sign that lies: one connection a second to two targets gets through", outcome, func(s *suite) {
		service := s.Target()
		pod, err := s.Cluster.Kube.CoreV1().Pods("default").Get(s.Ctx, "e2e-target", metav1.GetOptions{})
		s.NoError(err)
		out, _ := s.directions()
		s.Break(out + "ip daddr { " + service + ", " + pod.Status.PodIP + " } tcp flags syn / syn,ack limit rate over 1/second burst 1 packets drop")
		s.keepsSchedule(s.agent(patient("NETWORK_TARGETS", service+":80,"+pod.Status.PodIP+":8080"), nil), "network")
		s.recovers(s.Repair)
	})
}

// patient are settings with the pauses of the default, and further ones as name, value.
func patient(further ...string) map[string]string {
	settings := quick(further...)
	delete(settings, "MAX_RETRIES")
	return settings
}

// keepsSchedule waits for pauses before attempts of a check that fails (long: also one between two rounds), and asserts that
// nothing but one sign has ended one early.
func (s *suite) keepsSchedule(pod corev1.Pod, check string) {
	s.T.Helper()
	var pauses []harness.Pause
	s.Until(func() (bool, error) {
		lines, err := s.Cluster.Logs(s.Ctx, pod)
		if err != nil {
			return false, nil // the container is not there yet
		}
		pauses, err = harness.Pauses(lines)
		return len(pauses) >= harness.Pick(4, 8), err
	}, "too few pauses: %v", &pauses)
	s.unverified()
	s.T.Log(pauses)
	s.True(slices.ContainsFunc(pauses, func(p harness.Pause) bool { return p.Check == check }), "%s has not failed: %v", check, pauses)
	shorter := slices.DeleteFunc(pauses, func(p harness.Pause) bool { return !p.IsShorter() })
	s.LessOrEqual(len(shorter), 1, "ended early: %v", shorter)
}
