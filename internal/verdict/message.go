package verdict

import (
	"strings"
	"time"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/condition"
)

// The messages of Events and of the condition: agent and controller write them, `kubectl node-ready` reads them. Each format is
// beside what reads it, and a test holds them together.
//
// The failures in a message are "CHECK: TEXT (REMEDY)", joined by "; ", or a text that no check has written.
const (
	sincePrefix   = "since "
	timeoutPrefix = "not verified within "
	recheckPrefix = "rechecks fail: "
)

// MaxMessage is how many bytes the API allows in the note of an Event.
const MaxMessage = 1024

// Shorten cuts a message to MaxMessage.
func Shorten(message string) string {
	if len(message) > MaxMessage {
		return strings.ToValidUTF8(message[:MaxMessage-3], "") + "..."
	}
	return message
}

// SinceMessage is the message of NodeNotVerified: how the last round has failed, of a verification that began at start.
func SinceMessage(start time.Time, failures string) string {
	return sincePrefix + start.UTC().Format(time.RFC3339) + ": " + failures
}

// TimeoutMessage is the message of NodeTimedOut, and of the condition. failure is the last one, "" if there was none.
func TimeoutMessage(timeout time.Duration, failure string) string {
	return strings.TrimSuffix(timeoutPrefix+timeout.String()+": "+failure, ": ")
}

// RecheckMessage is the message of RecheckFailed, and of the condition, from the agent.
func RecheckMessage(failures string) string { return recheckPrefix + failures }

// ReasonMessage is the message of each Event of the controller: message is the condition's.
func ReasonMessage(reason, message string) string { return reason + ": " + message }

// NoPodMessage is the message of the condition with the reason NoPod. `kubectl node-ready` cuts it at the colon.
func NoPodMessage(why, remedy string) string { return why + ": " + remedy }

// Message is what a message of an Event or of the condition says.
type Message struct {
	Since  time.Time // when the verification began; zero: it does not say
	Reason string    // as of a condition; condition.NotVerified: it names neither a reason nor a check
	Text   string    // the first failure without its check's name and the remedy, or the whole text
}

// ParseMessage reads what the functions above format, and the text of failures alone.
func ParseMessage(message string) (m Message) {
	first, rest, _ := strings.Cut(message, ": ")
	stamp, isSince := strings.CutPrefix(first, sincePrefix)
	isTimeout := strings.HasPrefix(first, timeoutPrefix) && rest != ""
	isReason := condition.Parse(first).Meaning().Reason != 0
	if isSince || isTimeout || isReason || strings.HasPrefix(message, recheckPrefix) {
		message = rest
	}
	m.Reason, m.Text = parseFailures(message)
	if isReason {
		m.Reason = first
	}
	if isSince {
		m.Since, _ = time.Parse(time.RFC3339, stamp)
	}
	return m
}

// parseFailures returns the reason of failed checks, and the text of the first of them.
func parseFailures(failures string) (reason, text string) {
	text = failures
	var failed []string
	for _, check := range append(checks.Names(), checks.NodeName, checks.PeersName) {
		if rest, isFirst := strings.CutPrefix(failures, check+": "); isFirst {
			text, _, _ = strings.Cut(rest, " (")
			failed = append(failed, check)
		} else if strings.Contains(failures, "; "+check+": ") {
			failed = append(failed, check)
		}
	}
	return condition.OfChecks(failed).String(), text
}
