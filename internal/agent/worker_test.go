package agent

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/config"
	"github.com/imunhatep/kube-node-ready/internal/kube"
	"github.com/imunhatep/kube-node-ready/internal/oneround"
	"github.com/imunhatep/kube-node-ready/internal/verdict"
)

// anonymousAPI starts an API server that accepts no credential and expects a request larger than two packets.
func anonymousAPI(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, getNode, r.Method+" "+r.URL.String())
		assert.Equal(t, "kube-node-ready/dev", r.Header.Get("User-Agent"))
		assert.NotContains(t, r.Header, "Authorization")
		assert.Empty(t, r.TLS.PeerCertificates)
		handler(w, r)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func answers(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { answerStatus(w, code, "", http.StatusText(code)) }
}

func caOf(server *httptest.Server) string { return pemOf(server.Certificate().Raw) }

func pemOf(certificate []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate}))
}

// otherCA is one that has signed no server's certificate.
func otherCA(t *testing.T) string {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	raw, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	require.NoError(t, err)
	return pemOf(raw)
}

// workerProcess is one run of a worker. The kubelet is a file and a client of its port.
type workerProcess struct {
	*process
	worker         *oneround.Worker
	port           string
	terminationLog string
}

// startWorker runs a worker whose dns check is skipped. Its pod has a kubeconfig and a token that are not to be used.
func startWorker(t *testing.T, server *httptest.Server, env map[string]string, args ...string) *workerProcess {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte("{"), 0o600))
	host, port, err := net.SplitHostPort(server.Listener.Addr().String())
	require.NoError(t, err)
	all := map[string]string{"NODE_NAME": "node1", "KUBECONFIG": kubeconfig, "CLUSTER_CA": caOf(server), "DNS_SERVICE": "",
		"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
	maps.Copy(all, env)
	cfg, err := config.Parse(append([]string{"--worker", "--max-retries=0"}, args...), lookup(all), io.Discard)
	require.NoError(t, err)

	ctx, terminate := context.WithCancel(context.Background())
	t.Cleanup(terminate)
	p := &workerProcess{process: &process{t: t, terminate: terminate, done: make(chan struct{}), stderr: newOutput()},
		terminationLog: filepath.Join(t.TempDir(), "termination-log")}
	require.NoError(t, os.WriteFile(p.terminationLog, nil, 0o600))
	p.worker = oneround.NewWorker(cfg, newLog(cfg, p.stderr), "dev")
	p.worker.TerminationLog = p.terminationLog
	list := p.worker.Checks
	p.worker.Checks = func(e kube.Environment) []checks.Check {
		return append([]checks.Check{checks.Skip(checks.DNSName, "a test")}, list(e)[1:]...)
	}
	listener := httptest.NewServer(p.worker.Handler())
	t.Cleanup(listener.Close)
	_, p.port, err = net.SplitHostPort(listener.Listener.Addr().String())
	require.NoError(t, err)
	e := kube.AnonymousEnvironment(cfg.ClusterCA, lookup(all), "kube-node-ready/dev")
	require.NoError(t, e.Err)
	go func() {
		defer close(p.done)
		if !p.worker.Run(ctx, e) {
			p.code = exitNotVerified
		}
	}()
	return p
}

// readyz returns the status of /readyz, once it is answered.
func (p *workerProcess) readyz() int {
	code, _ := get(p.t, p.port, "/readyz")
	return code
}

func (p *workerProcess) verdict() verdict.Verdict {
	text, err := os.ReadFile(p.terminationLog)
	require.NoError(p.t, err)
	v, err := verdict.Parse(string(text))
	require.NoError(p.t, err)
	return v
}

// Any answer under the cluster's CA proves the path, that of --anonymous-auth=false too. Then the worker waits to be deleted.
func TestWorkerPasses(t *testing.T) {
	t.Parallel()
	for _, code := range []int{http.StatusOK, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusTooManyRequests} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			var padding atomic.Int64
			p := startWorker(t, anonymousAPI(t, func(w http.ResponseWriter, r *http.Request) {
				padding.Store(int64(len(r.Header.Get("X-Kube-Node-Ready-Padding"))))
				answers(code)(w, r)
			}), nil)
			assert.Equal(t, http.StatusOK, p.readyz())
			v := p.verdict() // as soon as it is ready
			_, err := time.ParseDuration(v.Duration)
			require.NoError(t, err)
			v.Duration = ""
			assert.Equal(t, verdict.Verdict{Verified: true, Node: "node1", Version: "dev",
				Attempts: map[string]int{"dns": 1, "api": 1, "network": 1, "service": 1}}, v)
			assert.Greater(t, padding.Load(), int64(2*1400))
			p.logged("all checks pass: waiting for the controller to release the node")
			assert.Contains(t, p.stderr.String(), fmt.Sprintf("the API server answers an anonymous request: status %d", code))
			select {
			case <-p.done:
				require.Fail(t, "it has not waited to be deleted")
			default:
			}
			p.terminate()
			assert.Equal(t, exitOK, p.wait())
		})
	}
}

func TestWorkerWithoutAUsableAPI(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		code    int
		ca      string
		message []string
	}{
		"500": {http.StatusInternalServerError, "", []string{"api: the API server answers with an error: ", "(check the health and the log of the API server)"}},
		"503": {http.StatusServiceUnavailable, "", []string{"api: the API server answers with an error: ", "(check the health and the log of the API server)"}},
		"another CA": {http.StatusOK, otherCA(t), []string{"api: TLS: ", "certificate signed by unknown authority",
			"(worker: CLUSTER_CA), that this node's clock is right, and that no proxy answers instead of the API server)"}},
	} {
		t.Run(name, func(t *testing.T) {
			env := map[string]string{}
			if test.ca != "" {
				env["CLUSTER_CA"] = test.ca
			}
			p := startWorker(t, anonymousAPI(t, answers(test.code)), env)
			assert.Equal(t, http.StatusServiceUnavailable, p.readyz())
			assert.Equal(t, exitNotVerified, p.wait(), "at once")
			v := p.verdict()
			assert.False(t, v.Verified)
			assert.Equal(t, []string{"api"}, v.Failed)
			assert.Equal(t, 1, v.Attempts["service"], "the checks after it are made for diagnosis")
			for _, text := range test.message {
				assert.Contains(t, v.Message, text)
			}
			assert.Equal(t, "failed: api", p.entry("node not verified")["reason"])
		})
	}
}

// Also an answer that refuses the anonymous client has the API server's time.
func TestWorkerWhoseClockIsWrong(t *testing.T) {
	t.Parallel()
	p := startWorker(t, anonymousAPI(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
		answers(http.StatusForbidden)(w, r)
	}), map[string]string{"MAX_CLOCK_SKEW": "1m"})
	assert.Equal(t, http.StatusServiceUnavailable, p.readyz())
	assert.Equal(t, []string{"api"}, p.verdict().Failed)
	assert.Contains(t, p.verdict().Message, "api: this node's clock differs from the API server's (")
}

// The endpoints of the DNS service are those that the controller names.
func TestWorkerConnectsToTheDNSEndpoints(t *testing.T) {
	t.Parallel()
	server := anonymousAPI(t, answers(http.StatusForbidden))
	open, closed := listen(t).String(), "127.0.0.1:"+closedPort(t)
	for name, test := range map[string]struct{ endpoints, message string }{
		"remote answers": {open + "/node2," + closed + "/node3", ""},
		"remote refuses": {open + "/node1," + closed + "/node2",
			"service: service kube-system/kube-dns: none of its ready endpoints on other nodes answers: "},
		"none": {"", "service: service kube-system/kube-dns has no ready endpoint (0 not ready) (most likely the pods of " +
			"kube-system/kube-dns are Pending because they do not tolerate the taint node-ready/unverified"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startWorker(t, server, map[string]string{"DNS_SERVICE": "kube-system/kube-dns", "DNS_ENDPOINTS": test.endpoints})
			status := p.readyz()
			assert.Equal(t, test.message == "", status == http.StatusOK)
			assert.Contains(t, p.verdict().Message, test.message)
		})
	}
}

// The cluster's CA is trusted for NETWORK_TARGETS too, as an agent trusts that of its service account.
func TestWorkerTrustsTheClustersCAForHTTPS(t *testing.T) {
	t.Parallel()
	server := anonymousAPI(t, answers(http.StatusOK))
	target := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(target.Close)
	p := startWorker(t, server, map[string]string{"NETWORK_TARGETS": target.URL + "/x"})
	assert.Equal(t, http.StatusServiceUnavailable, p.readyz())
	assert.Contains(t, p.verdict().Message, "network: GET "+target.URL+"/x: 404 Not Found")
}

// Shut down before the verdict, the worker says nothing about the node.
func TestWorkerShutDownBeforeTheVerdict(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{})
	p := startWorker(t, anonymousAPI(t, func(_ http.ResponseWriter, r *http.Request) {
		close(reached)
		<-r.Context().Done()
	}), nil, "--check-timeout=5m")
	p.waitFor(reached, "no request was sent")
	p.terminate()
	assert.Equal(t, exitNotVerified, p.wait())
	assert.Equal(t, http.StatusServiceUnavailable, p.readyz())
	text, err := os.ReadFile(p.terminationLog)
	require.NoError(t, err)
	assert.Empty(t, string(text))
	p.entry("shutting down before the verdict")
}

// A worker that passed and is not deleted ends by itself.
func TestWorkerWhoseVerdictNobodyUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stderr := newOutput()
		w := oneround.NewWorker(config.Config{NodeName: "node1"}, newLog(config.Config{LogLevel: "info"}, stderr), "dev")
		w.Checks = func(kube.Environment) []checks.Check { return []checks.Check{checks.Skip(checks.DNSName, "a test")} }
		w.TerminationLog = filepath.Join(t.TempDir(), "none")
		start := time.Now()
		assert.True(t, w.Run(t.Context(), kube.Environment{}))
		assert.Equal(t, time.Minute, time.Since(start))
		assert.Contains(t, stderr.String(), "the controller has not used the verdict: exiting")
		assert.Equal(t, 1, strings.Count(stderr.String(), "cannot write the verdict"), "which holds no node back")
	})
}
