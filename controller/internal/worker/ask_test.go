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
		header int // bytes, besides Go's own
	}{
		"passed":                {status: http.StatusOK, text: "verified secret\n", want: true},
		"failed":                {status: http.StatusServiceUnavailable, text: "not verified\n"},
		"another worker":        {status: http.StatusOK, text: "verified other\n"},
		"something else":        {status: http.StatusOK, text: "verified\n"},
		"the key, but not well": {status: http.StatusForbidden, text: "verified secret\n"},
		"megabytes of headers":  {status: http.StatusOK, text: "verified secret\n", header: 5 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
				assert.Equal(t, "/readyz", request.URL.Path)
				out.Header().Set("X-Header", strings.Repeat("a", test.header))
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
