package verdict

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/imunhatep/kube-node-ready/internal/condition"
	"github.com/stretchr/testify/assert"
)

// Any pod can have any termination message, and many accounts may write conditions and Events.

func FuzzVerdict(f *testing.F) {
	f.Add(string(Verdict{Verified: true, Node: "n", Duration: "1s", Attempts: map[string]int{"dns": 1}, Version: "1"}.text()))
	f.Add(string(Verdict{Node: "n", Failed: []string{"dns", "taints"}, Message: strings.Repeat("\x00ü", 4096)}.text()))
	f.Add(`{"verified":true,"node":"n","failed":["dns"]}`)
	f.Add(`{"node":1}`)
	f.Add("null")
	f.Fuzz(func(t *testing.T, text string) {
		v, err := Parse(text)
		if err != nil {
			assert.Equal(t, Verdict{}, v)
			return
		}
		assert.NotEmpty(t, v.Node)
		assert.Equal(t, v.Verified, len(v.Failed) == 0)
	})
}

func FuzzMessage(f *testing.F) {
	f.Add(SinceMessage(time.Unix(1, 0), "dns: a: NXDOMAIN (check); service: b"))
	f.Add(TimeoutMessage(time.Minute, ""))
	f.Add(ReasonMessage("Silent", "kubelet is gone"))
	f.Add(RecheckMessage("peers: none"))
	f.Add("since : ; dns: (")
	f.Add(strings.Repeat("ü", MaxMessage))
	f.Fuzz(func(t *testing.T, text string) {
		m := ParseMessage(text)
		assert.NotZero(t, condition.Parse(m.Reason).Meaning(), m.Reason)
		assert.LessOrEqual(t, len(Shorten(text)), MaxMessage)
		assert.True(t, !utf8.ValidString(text) || utf8.ValidString(Shorten(text)))
	})
}
