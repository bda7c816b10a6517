package faults

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/imunhatep/kube-node-ready/hack/e2e/harness"
)

// answerCase is something that goes wrong with the API server's answers.
type answerCase struct {
	name, outcome string
	fault         Fault     // of every request of a kind, until it is repaired
	handshake     Handshake // in place of a fault of requests
	read          string    // what the log says of it when the node is read, by "|"; "" where it makes no sense there
	patch         string    // and when it is patched
	applies       bool      // the patch, although its answer is lost
}

func answerCases() []answerCase {
	const (
		retried = "retried with backoff"
		reads   = "reads what became of it"
		refuses = "the API server refuses the patch: "
		lost    = "connection reset|EOF|connection lost"
	)
	status := func(code int, reason metav1.StatusReason, message string) Fault {
		return Status(code, reason, message, 0)
	}
	proxied := func(w http.ResponseWriter, _ *http.Request, _ func() (Answer, error)) {
		http.Error(w, "no healthy upstream", http.StatusServiceUnavailable)
	}
	return []answerCase{
		{name: "401", outcome: retried, fault: status(401, metav1.StatusReasonUnauthorized, "Unauthorized"),
			read: "authentication: the API server does not accept the service account token: Unauthorized", patch: refuses + "Unauthorized"},
		{name: "403", outcome: retried, fault: status(403, metav1.StatusReasonForbidden, `nodes "x" is forbidden: no RBAC`),
			read: `authorization: nodes "x" is forbidden: no RBAC`, patch: refuses + `nodes "x" is forbidden: no RBAC`},
		{name: "404", outcome: retried, fault: status(404, metav1.StatusReasonNotFound, `nodes "x" not found`),
			read: `the node does not exist: nodes "x" not found`, patch: refuses + `nodes "x" not found`},
		{name: "409", outcome: "read again, built again, sent again", fault: status(409, metav1.StatusReasonConflict, "the object has been modified"),
			patch: "the object has been modified"},
		{name: "422", outcome: "read again; nothing changed: a refusal, next round", fault: status(422, metav1.StatusReasonInvalid, "the test operation failed"),
			patch: refuses + "the test operation failed"},
		{name: "429, Retry-After 1 s", outcome: "waits as Retry-After says", fault: Status(429, metav1.StatusReasonTooManyRequests, "too many requests", 1),
			read: "the API server asks to wait: ", patch: "too many requests"},
		{name: "429, Retry-After 1 h", outcome: "does not wait longer than its own time limit", fault: Status(429, metav1.StatusReasonTooManyRequests, "too many requests", 3600),
			read: "the API server asks to wait: ", patch: "too many requests"},
		{name: "500", outcome: retried, fault: status(500, metav1.StatusReasonInternalError, "etcdserver: no leader"),
			read: "the API server answers with an error: etcdserver: no leader", patch: "etcdserver: no leader"},
		{name: "503", outcome: retried, fault: status(503, metav1.StatusReasonServiceUnavailable, "apiserver is shutting down"),
			read: "the API server answers with an error: apiserver is shutting down", patch: "apiserver is shutting down"},
		{name: "503 of a load balancer, no Status", outcome: retried, fault: proxied,
			read: "the API server answers with an error: ", patch: "currently unable to handle the request"},
		{name: "connection reset", outcome: retried, fault: Reset, read: lost, patch: lost},
		{name: "connection reset after the request was acted on", outcome: reads, fault: After(Reset), applies: true},
		{name: "answer cut in half", outcome: reads, fault: Cut, applies: true, read: "reading response body"},
		{name: "no answer, ever", outcome: "retried after the time limit", fault: Never, patch: "no answer in time",
			read: "no answer from the API server in time: TCP and TLS work and the request is sent, but no answer comes"},
		{name: "no answer, ever, but acted on", outcome: reads, fault: After(Never), applies: true},
		{name: "TLS handshake slower than the time limit", outcome: "retried after the time limit",
			handshake: func(ctx context.Context) (*tls.Certificate, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			},
			read: "no answer from the API server in time: TCP connects, but the TLS handshake does not end"},
		{name: "certificate of another CA", outcome: "retried with backoff, nothing is sent", read: "TLS: ",
			handshake: func(context.Context) (*tls.Certificate, error) {
				_, other, err := newCertificate()
				return other, err
			}},
	}
}

// eachAnswer gives every case that is wanted a row and rounds of its own.
func eachAnswer(t *testing.T, kind string, wanted func(answerCase) bool, round func(s *suite, name string, test answerCase)) {
	t.Helper()
	for i, test := range answerCases() {
		if !wanted(test) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			row := harness.BeginRow(t, kind+": "+test.name, test.outcome)
			for n := range harness.Pick(1, 5) {
				round(start(t, row), fmt.Sprintf("faults-%s-%d-%d", kind, i, n), test)
			}
		})
	}
}

// While the node is read: the check fails, says why, and passes as soon as the answer is right.
func TestFaultAnswerToRead(t *testing.T) {
	t.Parallel()
	eachAnswer(t, "read", func(test answerCase) bool { return test.read != "" }, (*suite).answerToRead)
}

func (s *suite) answerToRead(name string, test answerCase) {
	made := s.create(gated(name))
	a := s.agent(name).with(hasty)
	repair := func() { s.proxy.OnHandshake(nil) }
	if test.fault != nil {
		repair = s.proxy.On(Read(name), test.fault)
	}
	s.proxy.OnHandshake(test.handshake)
	p := a.start()
	line := p.awaitLine(test.read, func(line harness.LogLine) bool { return line.Check == "api" && says(line.Error, test.read) })
	s.T.Logf("%s\n    to try: %s", line.Error, line.Remedy)
	s.NotEmpty(line.Remedy)
	s.repaired(p, made, repair)
}

// repaired makes sure that the fault has left the node as it was made, repairs it, and waits as once does.
func (s *suite) repaired(p *process, made *corev1.Node, repair func()) {
	s.T.Helper()
	s.True(untouched(s.Node(made.Name), made))
	began := time.Now()
	repair()
	s.once(p, made, began)
}

// once waits until the node is verified, and makes sure that it was so once and nothing else was lost.
func (s *suite) once(p *process, made metav1.Object, began time.Time) {
	name := made.GetName()
	now := s.verified(name)
	p.awaitMessage(harness.MsgVerified)
	s.row.Recovered(time.Since(began))
	s.True(fullyVerified(now))
	s.row.Keeps(now, harness.Foreign(gated(name)))
	if n := s.proxy.Applied(name); n != 1 {
		s.row.Lose("%s was verified %d times", name, n)
	}
	p.stop()
}

// While the node is patched: whatever became of the patch, it is applied once.
func TestFaultAnswerToPatch(t *testing.T) {
	t.Parallel()
	// TLS is over by then.
	eachAnswer(t, "patch", func(test answerCase) bool { return test.fault != nil }, (*suite).answerToPatch)
}

func (s *suite) answerToPatch(name string, test answerCase) {
	made := s.create(gated(name))
	repair := s.proxy.On(Patch(name), test.fault)
	a := s.agent(name)
	if !test.applies { // what is acted on late would be sent again
		a.with(hasty)
	}
	p := a.start()
	if test.applies {
		s.once(p, made, time.Now())
		s.Len(s.proxy.Asked(Patch(name)), 1, "sent again although it was applied")
		return
	}
	line := p.awaitLine(test.patch, func(line harness.LogLine) bool { return says(line.Error+line.Reason, test.patch) })
	s.T.Logf("%s: %s%s", line.Msg, line.Error, line.Reason)
	s.repaired(p, made, repair)
}

// says reports whether text holds one of the parts that are separated by "|".
func says(text, parts string) bool {
	for part := range strings.SplitSeq(parts, "|") {
		if strings.Contains(text, part) {
			return true
		}
	}
	return false
}
