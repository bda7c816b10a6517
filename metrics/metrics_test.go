package metrics

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var checkNames = []string{"dns", "api", "network", "service"}

func newRecorder() *Recorder {
	return New("node1", checkNames, "1.2.3", "abc")
}

// series lists what is served, without comments and in the order of the names.
func series(t *testing.T, r *Recorder) []string {
	code, body := ask(t, r, "/metrics")
	require.Equal(t, http.StatusOK, code)
	var lines []string
	for line := range strings.Lines(body) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func ask(t *testing.T, r *Recorder, path string) (code int, body string) {
	server := httptest.NewServer(r.Handler())
	defer server.Close()
	return get(t, server.URL+path)
}

func get(t *testing.T, url string) (code int, body string) {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

func TestSeriesFromTheStart(t *testing.T) {
	assert.Equal(t, []string{
		`node_check_api_duration_seconds{node="node1"} 0`,
		`node_check_attempts_total{check="api",node="node1"} 0`,
		`node_check_attempts_total{check="dns",node="node1"} 0`,
		`node_check_attempts_total{check="network",node="node1"} 0`,
		`node_check_attempts_total{check="service",node="node1"} 0`,
		`node_check_build_info{commit="abc",go_version="` + runtime.Version() + `",node="node1",version="1.2.3"} 1`,
		`node_check_completion_timestamp{node="node1"} 0`,
		`node_check_dns_duration_seconds{node="node1"} 0`,
		`node_check_failures_total{check="api",node="node1"} 0`,
		`node_check_failures_total{check="dns",node="node1"} 0`,
		`node_check_failures_total{check="network",node="node1"} 0`,
		`node_check_failures_total{check="service",node="node1"} 0`,
		`node_check_network_duration_seconds{node="node1"} 0`,
		`node_check_opened{node="node1"} 0`,
		`node_check_patch_retries_total{node="node1"} 0`,
		`node_check_service_duration_seconds{node="node1"} 0`,
		`node_check_status{node="node1"} 0`,
		`node_check_timed_out{node="node1"} 0`,
		`node_check_verification_duration_seconds{node="node1"} 0`,
	}, series(t, newRecorder()))
}

func TestSeriesChange(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(*Recorder)
		want []string // that are not as at the start
	}{
		"attempt": {
			do: func(r *Recorder) {
				r.Attempt("dns", time.Second)
				r.Attempt("dns", 250*time.Millisecond)
			},
			want: []string{
				`node_check_attempts_total{check="dns",node="node1"} 2`,
				`node_check_dns_duration_seconds{node="node1"} 0.25`,
			},
		},
		"failure": {
			do:   func(r *Recorder) { r.Failure("service") },
			want: []string{`node_check_failures_total{check="service",node="node1"} 1`},
		},
		"patch retry": {
			do:   func(r *Recorder) { r.PatchRetry() },
			want: []string{`node_check_patch_retries_total{node="node1"} 1`},
		},
		"timed out": {
			do:   func(r *Recorder) { r.TimedOut(true) },
			want: []string{`node_check_timed_out{node="node1"} 1`},
		},
		"timed out and healed": {
			do: func(r *Recorder) {
				r.TimedOut(true)
				r.TimedOut(false)
			},
		},
		"verified": {
			do: func(r *Recorder) { r.Verified(time.Unix(1024, 500_000_000), 1500*time.Millisecond) },
			want: []string{
				`node_check_completion_timestamp{node="node1"} 1024.5`,
				`node_check_status{node="node1"} 1`,
				`node_check_verification_duration_seconds{node="node1"} 1.5`,
			},
		},
		"verified already at the start": {
			do:   func(r *Recorder) { r.SetStatus(true) },
			want: []string{`node_check_status{node="node1"} 1`},
		},
		"rechecks fail": {
			do: func(r *Recorder) {
				r.Verified(time.Unix(1024, 0), 2*time.Second)
				r.SetRecheckStatus(true)
				r.SetRecheckStatus(false)
				assert.Contains(t, series(t, r), `node_check_recheck_status{node="node1"} 0`)
				r.SetStatus(false)
			},
			want: []string{
				`node_check_completion_timestamp{node="node1"} 1024`,
				`node_check_verification_duration_seconds{node="node1"} 2`,
			},
		},
		"verified and not any more": {
			do: func(r *Recorder) {
				r.Verified(time.Unix(1024, 0), 2*time.Second)
				r.SetStatus(false)
			},
			want: []string{
				`node_check_completion_timestamp{node="node1"} 1024`,
				`node_check_verification_duration_seconds{node="node1"} 2`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			before := series(t, r)
			test.do(r)
			var changed []string
			after := series(t, r)
			require.Len(t, after, len(before))
			for i, line := range after {
				if line != before[i] {
					changed = append(changed, line)
				}
			}
			assert.Equal(t, test.want, changed)
		})
	}
}

// The series of a round replace those of the round before.
func TestPeers(t *testing.T) {
	r := newRecorder()
	atStart := series(t, r)
	r.Peers("a", map[string]Zone{"a": {Failed: 2}, "b": {Reached: 2, Failed: 1, Took: 3 * time.Second}})
	for _, want := range []string{
		`node_check_peers{node="node1",own_zone="a",result="failed",zone="a"} 2`,
		`node_check_peers{node="node1",own_zone="a",result="reached",zone="a"} 0`,
		`node_check_peers{node="node1",own_zone="a",result="failed",zone="b"} 1`,
		`node_check_peers{node="node1",own_zone="a",result="reached",zone="b"} 2`,
		`node_check_peer_duration_seconds{node="node1",own_zone="a",zone="b"} 1.5`,
	} {
		assert.Contains(t, series(t, r), want)
	}
	assert.Len(t, series(t, r), len(atStart)+5)
	r.Peers("a", nil)
	assert.Equal(t, atStart, series(t, r))
}

func TestRecheckProbe(t *testing.T) {
	r := newRecorder()
	for passes, want := range map[bool]int{true: http.StatusOK, false: http.StatusServiceUnavailable} {
		r.SetRecheckStatus(passes)
		code, _ := ask(t, r, "/readyz")
		assert.Equal(t, want, code)
	}
}

func TestTwoRecordersShareNothing(t *testing.T) {
	r := newRecorder()
	newRecorder().Failure("dns")
	assert.Contains(t, series(t, r), `node_check_failures_total{check="dns",node="node1"} 0`)
}

func TestLint(t *testing.T) {
	r := newRecorder()
	r.SetRecheckStatus(true)
	r.Peers("a", map[string]Zone{"b": {Reached: 1}})
	families, err := r.registry.Gather()
	require.NoError(t, err)
	// Not testutil.GatherAndLint, which is the same and needs one more module.
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	require.NoError(t, err)
	var got []string
	for _, problem := range problems {
		got = append(got, problem.Metric+": "+problem.Text)
	}
	assert.Empty(t, got) // the names that the owner chose pass as well
}

func TestProbes(t *testing.T) {
	r := newRecorder()
	for _, step := range []struct {
		verified bool
		code     int
		body     string
	}{
		{false, http.StatusServiceUnavailable, "not verified\n"},
		{true, http.StatusOK, "verified\n"},
		{false, http.StatusServiceUnavailable, "not verified\n"},
	} {
		r.SetStatus(step.verified)
		code, body := ask(t, r, "/readyz")
		assert.Equal(t, step.code, code)
		assert.Equal(t, step.body, body)
		code, body = ask(t, r, "/healthz")
		assert.Equal(t, http.StatusOK, code, "a node that is not verified is not mended by a restart")
		assert.Equal(t, "ok\n", body)
	}

	code, _ := ask(t, newRecorder(), "/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code, "from the start")
	r.Verified(time.Now(), time.Second)
	code, _ = ask(t, r, "/readyz")
	assert.Equal(t, http.StatusOK, code)
	code, _ = ask(t, r, "/debug/pprof/")
	assert.Equal(t, http.StatusNotFound, code)
}

func TestListen(t *testing.T) {
	r := newRecorder()
	server, err := Listen(0, r.Handler(), time.Second)
	require.NoError(t, err)
	_, text, err := net.SplitHostPort(server.Addr)
	require.NoError(t, err)
	port, err := strconv.Atoi(text)
	require.NoError(t, err)
	url := "http://127.0.0.1:" + text
	code, body := get(t, url+"/metrics")
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, `node_check_status{node="node1"} 0`)

	_, err = Listen(port, r.Handler(), time.Second)
	require.EqualError(t, err, "metrics port "+text+" cannot be bound: listen tcp :"+text+": bind: address already in use")

	require.NoError(t, server.Shutdown(t.Context()))
	_, err = net.Dial("tcp", "127.0.0.1:"+text)
	require.ErrorContains(t, err, "connection refused")
	again, err := Listen(port, r.Handler(), time.Second)
	require.NoError(t, err, "the port is free again")
	require.NoError(t, again.Shutdown(t.Context()))
}
