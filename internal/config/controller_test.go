package config

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each of the three durations of re-taint is a setting of its own.
func TestRetaintDurations(t *testing.T) {
	parse := func(env map[string]string) (Controller, error) {
		return ParseController(nil, func(key string) (string, bool) { value, found := env[key]; return value, found }, new(bytes.Buffer))
	}
	got, err := parse(nil)
	require.NoError(t, err)
	assert.Equal(t, []time.Duration{10 * time.Minute, 10 * time.Minute, 10 * time.Minute},
		[]time.Duration{got.RetaintControlGroupFor, got.RetaintCoolDown, got.RetaintNoAgentFor})
	got, err = parse(map[string]string{"RETAINT_CONTROL_GROUP_FOR": "1s", "RETAINT_COOL_DOWN": "2m", "RETAINT_NO_AGENT_FOR": "24h"})
	require.NoError(t, err)
	assert.Equal(t, []time.Duration{time.Second, 2 * time.Minute, 24 * time.Hour},
		[]time.Duration{got.RetaintControlGroupFor, got.RetaintCoolDown, got.RetaintNoAgentFor})
	for _, key := range []string{"RETAINT_CONTROL_GROUP_FOR", "RETAINT_COOL_DOWN", "RETAINT_NO_AGENT_FOR"} {
		for _, value := range []string{"999ms", "24h1s", "10", ""} {
			_, err := parse(map[string]string{key: value})
			require.ErrorContains(t, err, key, value)
		}
	}
}

// A switch that nothing heeds is a mistake.
func TestSwitchesThatNeedRemediation(t *testing.T) {
	for mode, refused := range map[string]bool{RemediationOff: true, RemediationDryRun: false, RemediationDelete: false} {
		for _, key := range []string{"DELETE_NODES", "UNMET_REQUIREMENTS"} {
			env := map[string]string{key: "true", "REMEDIATION_MODE": mode}
			got, err := ParseController(nil, func(key string) (string, bool) { value, found := env[key]; return value, found }, new(bytes.Buffer))
			assert.Equal(t, key == "DELETE_NODES", got.DeleteNodes)
			assert.Equal(t, key == "UNMET_REQUIREMENTS", got.UnmetRequirements)
			if refused {
				require.EqualError(t, err, "--delete-nodes and --unmet-requirements need --remediation-mode dry-run or delete")
			} else {
				require.NoError(t, err, mode)
			}
		}
	}
}
