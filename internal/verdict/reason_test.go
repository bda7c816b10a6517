package verdict

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/imunhatep/kube-node-ready/checks"
)

func TestReason(t *testing.T) {
	for want, failed := range map[string][]string{
		"NotVerified":             nil,
		"DNSFailed":               {"dns"},
		"DNSFailed,ServiceFailed": {"service", "dns"},
		"DNSFailed,APIFailed,NetworkFailed,ServiceFailed,PeersFailed": {"dns", "api", "network", "service", "peers"},
	} {
		assert.Equal(t, want, Reason(failed))
		assert.True(t, IsAgents(want))
	}
	for _, check := range checks.Names() {
		assert.NotEqual(t, NotVerified, Reason([]string{check}), "a check without a reason")
	}
}

func TestReasonsOfOthers(t *testing.T) {
	assert.True(t, IsAgents("Verified"))
	assert.True(t, IsAgents("TaintsOfOthers"))
	for _, reason := range []string{"", "NoPod", "ImagePull", "Silent", "DNS", "DNSFailedToo"} {
		assert.False(t, IsAgents(reason), reason)
	}
}
