package condition

import (
	"encoding/json"
	"math/bits"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/checks"
)

func TestReasonsAreInTheOrderOfMeanings(t *testing.T) {
	for i, meaning := range Meanings() {
		assert.Equal(t, Reasons(1<<i), meaning.Reason)
		assert.Equal(t, meaning, meaning.Reason.Meaning())
		assert.NotEqual(t, meaning.Controller, meaning.Reason.IsAgents())
	}
	assert.Len(t, names(), bits.TrailingZeros32(uint32(Other)), "each reason has a name")
	for _, reason := range []Reasons{0, NotGated, NotRechecked, Verified, Other} {
		assert.Zero(t, reason.Meaning())
	}
}

func TestOfChecks(t *testing.T) {
	for want, failed := range map[string][]string{
		"NotVerified":             nil,
		"TaintsOfOthers":          {"taints"},
		"DNSFailed":               {"dns"},
		"DNSFailed,ServiceFailed": {"service", "dns"},
		"DNSFailed,APIFailed,NetworkFailed,ServiceFailed,PeersFailed": {"dns", "api", "network", "service", "peers"},
	} {
		reasons := OfChecks(failed)
		assert.Equal(t, want, reasons.String())
		assert.Equal(t, reasons, Parse(want))
		assert.True(t, reasons.IsAgents())
	}
	for _, check := range checks.Names() {
		assert.NotEqual(t, NotVerified, OfChecks([]string{check}), "a check without a reason")
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]struct {
		reasons, first Reasons
		written        string
	}{
		"":                         {0, 0, ""},
		"Silent":                   {Silent, Silent, "Silent"},
		"PeersFailed,DNSFailed":    {DNSFailed | PeersFailed, DNSFailed, "DNSFailed,PeersFailed"},
		"NotRechecked":             {NotRechecked, NotRechecked, "NotRechecked"},
		"DNSFailedToo":             {Other, Other, ""},
		"Unheard,DNSFailed,NoNews": {DNSFailed | Other, DNSFailed, "DNSFailed"},
	} {
		reasons := Parse(text)
		assert.Equal(t, want.reasons, reasons, text)
		assert.Equal(t, want.first, reasons.First(), text)
		assert.Equal(t, want.written, reasons.String(), text)
	}
	reasons := DNSFailed | PeersFailed
	assert.True(t, reasons.Has(PeersFailed|Silent))
	assert.False(t, reasons.Has(Silent))
	shown, err := json.Marshal(reasons)
	require.NoError(t, err)
	assert.Equal(t, `"DNSFailed,PeersFailed"`, string(shown), "in a log")
}

func TestIsAgents(t *testing.T) {
	for _, reasons := range []Reasons{Verified, TaintsOfOthers, NotVerified, NodeFailed | PeersFailed} {
		assert.True(t, reasons.IsAgents(), reasons)
	}
	for _, reasons := range []Reasons{0, NoPod, ImagePull, Silent, Other, SandboxFailed | PeersFailed, DNSFailed | Other, NotGated, NotRechecked | PeersFailed} {
		assert.False(t, reasons.IsAgents(), reasons)
	}
}

// FuzzParse reads the reason of a condition, which many accounts may write.
func FuzzParse(f *testing.F) {
	f.Add("DNSFailed,PeersFailed")
	f.Add(",NoPod,\x00")
	f.Fuzz(func(t *testing.T, text string) {
		reasons := Parse(text)
		assert.Equal(t, text == "", reasons == 0)
		assert.Equal(t, reasons&^Other, Parse(reasons.String()))
		assert.Equal(t, reasons.First(), reasons&reasons.First())
	})
}
