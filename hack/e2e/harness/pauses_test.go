package harness

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestPauses(t *testing.T) {
	lines, err := parseLog(`{"msg":"check passed","check":"dns","attempt":1,"took":"2ms","time":"2026-11-22T10:00:00Z"}
{"msg":"check failed, will retry","check":"api","attempt":1,"took":"1s","retry_in":"990ms","time":"2026-11-22T10:00:01Z"}
{"msg":"check failed, will retry","check":"api","attempt":2,"took":"1s","retry_in":"2.1s","time":"2026-11-22T10:00:02.3Z"}
{"msg":"check failed","check":"api","attempt":3,"took":"1.001s","time":"2026-11-22T10:00:05.4Z"}
{"msg":"check passed with a warning","check":"network","attempt":1,"took":"1ms","time":"2026-11-22T10:00:05.5Z"}
{"msg":"node not verified","next_round_in":"1s","time":"2026-11-22T10:00:06Z"}
{"msg":"initial timeout exceeded","time":"2026-11-22T10:00:06.5Z"}
{"msg":"check passed","check":"dns","attempt":1,"took":"2ms","time":"2026-11-22T10:00:07.002Z"}
{"msg":"check failed, will retry","check":"api","attempt":1,"took":"1s","retry_in":"1s","time":"2026-11-22T10:00:09Z"}
`)
	require.NoError(t, err)
	pauses, err := Pauses(lines)
	require.NoError(t, err)
	assert.Equal(t, []Pause{
		{"api", 990 * time.Millisecond, 300 * time.Millisecond},
		{"api", 2100 * time.Millisecond, 2099 * time.Millisecond},
		{"", time.Second, time.Second},
	}, pauses)
	assert.True(t, pauses[0].IsShorter())
	assert.False(t, pauses[1].IsShorter())
	assert.False(t, pauses[2].IsShorter())
}
