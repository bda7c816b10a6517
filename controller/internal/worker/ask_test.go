package worker

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVerdictOfAWorker(t *testing.T) {
	for name, test := range map[string]struct {
		status int
		text   string
		want   bool
	}{
		"passed":                {http.StatusOK, "verified secret\n", true},
		"failed":                {http.StatusServiceUnavailable, "not verified\n", false},
		"another worker":        {http.StatusOK, "verified other\n", false},
		"something else":        {http.StatusOK, "verified\n", false},
		"the key, but not well": {http.StatusForbidden, "verified secret\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
				assert.Equal(t, "/readyz", request.URL.Path)
				out.WriteHeader(test.status)
				_, _ = out.Write([]byte(test.text))
			}))
			defer server.Close()
			assert.Equal(t, test.want, hasPassed(t.Context(), strings.TrimPrefix(server.URL, "http://"), "secret"))
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		assert.False(t, hasPassed(t.Context(), strings.TrimPrefix(server.URL, "http://"), "secret"))
	})
}
