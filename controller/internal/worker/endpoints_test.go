package worker

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ready []string
		var err error
		requests := 0
		e := &Endpoints{turn: make(chan struct{}, 1), list: func(context.Context) ([]string, error) {
			requests++
			return ready, err
		}}
		list := func() ([]string, error) { return e.List(t.Context()) }

		err = errors.New("forbidden")
		_, got := list()
		require.Equal(t, err, got)
		_, got = list()
		require.Equal(t, err, got)
		assert.Equal(t, 1, requests)
		time.Sleep(time.Second)
		err = nil
		for range 30 { // a cluster that starts
			_, got = list()
			require.ErrorIs(t, got, errNoEndpoints)
			_, got = list()
			require.ErrorIs(t, got, errNoEndpoints)
			time.Sleep(time.Second)
		}
		assert.Equal(t, 31, requests, "one a second")
		found, got := list()
		require.NoError(t, got, "the worker reports it")
		assert.Empty(t, found)

		ready = []string{"10.0.0.1:53/m"}
		time.Sleep(time.Second)
		requests = 0
		for range 30 {
			found, got = list()
			require.NoError(t, got)
			assert.Equal(t, []string{"10.0.0.1:53/m"}, found)
			time.Sleep(100 * time.Millisecond)
		}
		assert.Equal(t, 1, requests, "one in three seconds")

		ready = nil
		time.Sleep(time.Hour) // no node has joined
		_, got = list()
		require.ErrorIs(t, got, errNoEndpoints)
	})
	t.Run("many wait for one request", func(t *testing.T) { synctest.Test(t, testEndpointsTimeout) })
	found, err := NewEndpoints(nil, "", time.Second).List(t.Context())
	require.NoError(t, err)
	assert.Empty(t, found)
}

func testEndpointsTimeout(t *testing.T) {
	e := &Endpoints{turn: make(chan struct{}, 1), list: func(context.Context) ([]string, error) {
		time.Sleep(3 * time.Second)
		return nil, context.DeadlineExceeded
	}}
	start := time.Now()
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			_, err := e.List(t.Context())
			assert.ErrorIs(t, err, context.DeadlineExceeded)
		})
	}
	group.Wait()
	assert.Equal(t, 3*time.Second, time.Since(start))
}
