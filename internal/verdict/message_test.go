package verdict

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestMessages(t *testing.T) {
	start := time.Date(2026, 1, 2, 3, 1, 5, 0, time.FixedZone("", 3600))
	const failures, text = "dns: google.com: NXDOMAIN (no internet?); service: none", "google.com: NXDOMAIN"
	for message, want := range map[string]Message{
		SinceMessage(start, failures):                      {start.UTC(), "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, failures):            {time.Time{}, "DNSFailed,ServiceFailed", text},
		TimeoutMessage(5*time.Minute, ""):                  {time.Time{}, NotVerified, "not verified within 5m0s"},
		RecheckMessage("peers: none answers (check)"):      {time.Time{}, PeersFailed, "none answers"},
		ReasonMessage(Silent, "kubelet is gone"):           {time.Time{}, Silent, "kubelet is gone"},
		ReasonMessage("DNSFailed,ServiceFailed", failures): {time.Time{}, "DNSFailed,ServiceFailed", text},
		failures: {time.Time{}, "DNSFailed,ServiceFailed", text},
		"node: label pool: the node has none (check)": {time.Time{}, NodeFailed, "label pool: the node has none"},
		"patch: refused": {time.Time{}, NotVerified, "patch: refused"},
		"":               {time.Time{}, NotVerified, ""},
	} {
		assert.Equal(t, want, ParseMessage(message), message)
	}
	why, remedy := ParseNoPod(NoPodMessage("the label a=b keeps the agent away", "remove the label"))
	assert.Equal(t, []string{"the label a=b keeps the agent away", "remove the label"}, []string{why, remedy})
	why, remedy = ParseNoPod("no remedy")
	assert.Equal(t, []string{"no remedy", ""}, []string{why, remedy})
}
