package oneround

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/internal/config"
)

// kubelet's probe gets its answer when the verdict is known, not before and not by a later probe.
func TestReadyzWaitsForTheVerdict(t *testing.T) {
	for _, verified := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := NewWorker(config.Config{}, nil, "dev")
			answer := httptest.NewRecorder()
			done := make(chan struct{})
			go func() {
				defer close(done)
				w.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			}()
			synctest.Wait()
			assert.Empty(t, answer.Body.String())
			select {
			case <-done:
				require.Fail(t, "answered before the verdict")
			default:
			}
			healthz := httptest.NewRecorder()
			w.Handler().ServeHTTP(healthz, httptest.NewRequest(http.MethodGet, "/healthz", nil))
			assert.Equal(t, http.StatusOK, healthz.Code)

			w.verified = verified
			close(w.decided)
			<-done
			assert.Equal(t, map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable}[verified], answer.Code)
			assert.Equal(t, map[bool]string{true: "verified\n", false: "not verified\n"}[verified], answer.Body.String())
		})
	}
}

// A probe that times out leaves nothing behind.
func TestReadyzEndsWithItsClient(t *testing.T) {
	w := NewWorker(config.Config{}, nil, "dev")
	ctx, hangUp := context.WithCancel(t.Context())
	hangUp()
	answer := httptest.NewRecorder()
	w.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
	assert.Empty(t, answer.Body.String())
}
