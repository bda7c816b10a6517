package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/controller/internal/fleet"
)

// Where re-taint is switched off, nothing runs for it; until a node is found that an earlier release has re-tainted.
func TestWhenRetainted(t *testing.T) {
	started, failure := 0, errors.New("not now")
	step := &whenRetainted{start: func() error { started++; return failure }}
	act := func(retainted bool) error {
		_, err := step.Act(t.Context(), fleet.Plan{Statuses: []fleet.Status{{}, {Retainted: retainted}}})
		return err
	}
	require.NoError(t, act(false))
	assert.Zero(t, started)
	require.ErrorIs(t, act(true), failure)
	failure = nil
	for range 3 {
		require.NoError(t, act(true))
	}
	assert.Equal(t, 2, started, "again after a failure, and then never")
}
