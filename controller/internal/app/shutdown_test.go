package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// slowManager is a manager whose runnables take 15 s to end.
type slowManager struct {
	manager.Manager
	runnables []manager.Runnable
	released  bool
}

func (m *slowManager) Add(r manager.Runnable) error {
	m.runnables = append(m.runnables, r)
	return nil
}

func (m *slowManager) Start(ctx context.Context) error {
	for _, r := range m.runnables {
		_ = r.Start(ctx)
	}
	<-ctx.Done()
	time.Sleep(15 * time.Second)
	m.released = true // the Lease: LeaderElectionReleaseOnCancel
	return nil
}

// What is under way ends, and the Lease is released, before the process does.
func TestSigtermWaitsForTheManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, cancel)
		m := new(slowManager)
		require.NoError(t, startManager(ctx, m))
		assert.True(t, m.released)
	})
}
