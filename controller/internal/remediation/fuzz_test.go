package remediation

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The ledger may be edited manually. It is written back unchanged, because a lost entry would allow one more deletion.
func FuzzLedger(f *testing.F) {
	f.Add(Ledger{}.String())
	f.Add(`{"deletions":[{"time":"2026-01-02T03:04:05Z","nodePool":"a","node":"n","nodeUID":"u","reason":"Silent","stuck":true}],` +
		`"guards":{"a":{"answered":"2026-01-02T03:04:05Z","halted":"0001-01-01T00:00:00Z"}}}`)
	f.Add(`{"deletions":[{"time":"9999-12-31T23:59:59.999999999-23:59"}]}`)
	f.Add(`{"deletions":null,"guards":null}`)
	f.Add(`{"guards":{"deletions":{}}}`)
	f.Add(`{"deletions":[{"time":""}]}`)
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		ledger, err := parseLedger(text)
		if err != nil {
			return
		}
		written := ledger.clone().String()
		again, err := parseLedger(written)
		require.NoError(t, err, "a ledger that was read can be written")
		assert.Equal(t, written, again.clone().String())
		assert.Len(t, again.Deletions, len(ledger.Deletions))
	})
}
