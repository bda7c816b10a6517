package checks

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2/hpack"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

const (
	checkToken    = "check the pod's service account token (kubelet rotates it before it expires) and the API server's log"
	checkGrant    = "apply the chart's ClusterRole and its binding: get and patch of nodes"
	checkNodeName = "set NODE_NAME to the name of the Node object (the pod's spec.nodeName), unless the node was deleted"
	checkLimits   = "wait, the agent retries: the API server is overloaded, or limits this client (API Priority and Fairness)"
	checkCA       = "check that the API server's certificate is from the CA in the pod's service account volume (worker: CLUSTER_CA), that this node's clock is right, and that no proxy answers instead of the API server"
	checkAnswerer = "find out what answers at the API server's address: it does not speak TLS"
	checkHealth   = "check the health and the log of the API server"
	checkAPIPath  = "check that kube-proxy (or its replacement) has programmed the kubernetes service on this node, and that nothing drops packets to the API server, small or large ones (path MTU)"
	checkBetween  = "check the API server and the path to it: kube-proxy (or its replacement), the CNI's routes"
)

// nodeCheck reads a node with client-go, as the agent does.
func nodeCheck(t *testing.T, config rest.Config) API {
	t.Helper()
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Node{})
	metav1.AddToGroupVersion(scheme, corev1.SchemeGroupVersion)
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(&config)
	require.NoError(t, err)
	return API{Get: func(ctx context.Context) (Report, error) {
		var node corev1.Node
		warnings, err := WithLargeHeader(func(value string) error {
			request := client.Get().Resource("nodes").Name("node-1").MaxRetries(0)
			if value != "" {
				request.SetHeader("Padding", value)
			}
			return request.Do(ctx).Into(&node)
		})
		return Report{Detail: "node " + node.Name + " read", Took: 7 * time.Millisecond, Warnings: warnings}, err
	}}
}

// quietly starts an httptest server that logs no failed handshake.
func quietly(t *testing.T, handler http.HandlerFunc, start func(*httptest.Server)) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(server)
	t.Cleanup(server.Close)
	return server
}

// trusting is the configuration of a client that takes server's certificate.
func trusting(server *httptest.Server) rest.Config {
	return rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: pemOf(server.Certificate().Raw)}}
}

func pemOf(certificate []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
}

// certificate makes one that signs itself, for 127.0.0.1, until the given time.
func certificate(t *testing.T, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: until.Add(-24 * time.Hour), NotAfter: until,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	raw, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

func TestAPIPasses(t *testing.T) {
	t.Parallel()
	server := quietly(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/")},
		})
	}, (*httptest.Server).StartTLS)
	report, err := nodeCheck(t, trusting(server)).Try(limited(t, enough))
	require.NoError(t, err)
	assert.Equal(t, Report{Detail: "node node-1 read", Took: 7 * time.Millisecond}, report)
}

// The request is larger than two packets, whatever HTTP/2 makes of its header, and never twice the same.
func TestLargeHeader(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ mtu, length int }{{1280, 3414}, {1500, 4000}, {9001, 24003}, {65520, 24576}} {
		value := largeHeader(test.mtu)
		assert.Len(t, value, test.length)
		assert.NotEqual(t, value, largeHeader(test.mtu))
		if test.mtu <= 9001 {
			assert.Greater(t, hpack.HuffmanEncodeLength(value), uint64(2*test.mtu))
		}
	}
	mtu := largestMTU()
	interfaces, err := net.Interfaces()
	require.NoError(t, err)
	found := mtu == 1500
	for _, i := range interfaces {
		found = found || i.MTU == mtu && i.Flags&net.FlagLoopback == 0
	}
	assert.True(t, found, "an MTU of %d", mtu)
}

// An API server, or a proxy before it, that takes small headers only.
func TestAPILargeHeaderRefused(t *testing.T) {
	t.Parallel()
	answer := func(w http.ResponseWriter) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1"}}`)
	}
	refuse := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Padding") != "" {
				w.WriteHeader(code)
				return
			}
			answer(w)
		}
	}
	limit := func(bytes int) func(*httptest.Server) {
		return func(s *httptest.Server) {
			s.EnableHTTP2, s.Config.MaxHeaderBytes = true, bytes
			s.StartTLS()
		}
	}
	anyHeader := func(w http.ResponseWriter, _ *http.Request) { answer(w) }
	for _, test := range []struct {
		title   string
		handler http.HandlerFunc
		start   func(*httptest.Server)
		err     string
	}{
		{"400", refuse(http.StatusBadRequest), (*httptest.Server).StartTLS, ""},
		{"431", refuse(http.StatusRequestHeaderFieldsTooLarge), (*httptest.Server).StartTLS, ""},
		{"a limit of HTTP/2", anyHeader, limit(3000), ""},
		{"a small limit of HTTP/2", anyHeader, limit(1000), ""},
		{"403", refuse(http.StatusForbidden), (*httptest.Server).StartTLS, "authorization: "},
		{"503", refuse(http.StatusServiceUnavailable), (*httptest.Server).StartTLS, "the API server answers with an error: "},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			server := quietly(t, test.handler, test.start)
			report, err := nodeCheck(t, trusting(server)).Try(limited(t, enough))
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, "node node-1 read", report.Detail)
			require.Len(t, report.Warnings, 1)
			assert.Regexp(t, `^the API server, or a proxy on the path, refuses a header of \d+ bytes: this check does not prove that large packets reach it \(.+\)$`,
				report.Warnings[0])
		})
	}
}

// Replies of the API server, or of something in its place.
func TestAPIAnswers(t *testing.T) {
	t.Parallel()
	status := func(reason metav1.StatusReason, message string) metav1.Status {
		return metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Reason: reason, Message: message}
	}
	const anError = "the API server answers with an error: "
	const unauthorized = "authentication: the API server does not accept the service account token: "
	for _, test := range []struct {
		title       string
		code        int
		answer      any // a string: no JSON
		err, remedy string
	}{
		{"401", 401, status(metav1.StatusReasonUnauthorized, "Unauthorized"), unauthorized + "Unauthorized", checkToken},
		{"403", 403, status(metav1.StatusReasonForbidden, `nodes "node-1" is forbidden: no such role`),
			`authorization: nodes "node-1" is forbidden: no such role`, checkGrant},
		{"404", 404, status(metav1.StatusReasonNotFound, `nodes "node-1" not found`), `the node does not exist: nodes "node-1" not found`, checkNodeName},
		{"429", 429, status(metav1.StatusReasonTooManyRequests, "too many requests, please try again later"),
			"the API server asks to wait: too many requests, please try again later", checkLimits},
		{"500", 500, status(metav1.StatusReasonInternalError, "Internal error occurred: etcd is gone"),
			anError + "Internal error occurred: etcd is gone", checkHealth},
		{"500, asks to come again", 500, status(metav1.StatusReasonServerTimeout, "the server is starting"), anError + "the server is starting", checkHealth},
		{"502 from a load balancer", 502, "<html>Bad Gateway</html>",
			anError + `an error on the server ("<html>Bad Gateway</html>") has prevented the request from succeeding (get nodes node-1)`, checkHealth},
		{"503", 503, status(metav1.StatusReasonServiceUnavailable, "shutting down"), anError + "shutting down", checkHealth},
		{"504", 504, status(metav1.StatusReasonTimeout, "Timeout: request did not complete within the allotted time"),
			anError + "Timeout: request did not complete within the allotted time", checkHealth},
		{"400, which is not expected", 400, status(metav1.StatusReasonBadRequest, "what?"), "what?", checkBetween},
		{"401 without a message", 401, "", unauthorized + "the server has asked for the client to provide credentials (get nodes node-1)", checkToken},
	} {
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			server := quietly(t, func(w http.ResponseWriter, _ *http.Request) {
				switch answer := test.answer.(type) {
				case string:
					w.WriteHeader(test.code)
					_, _ = io.WriteString(w, answer)
				case metav1.Status:
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(test.code)
					answer.Code = int32(test.code)
					_ = json.NewEncoder(w).Encode(answer)
				}
			}, (*httptest.Server).StartTLS)

			_, err := nodeCheck(t, trusting(server)).Try(limited(t, enough))

			require.EqualError(t, err, test.err)
			assert.Equal(t, test.remedy, Remedy(err))
		})
	}
}

// Failures before the API server can reply.
func TestAPIConnections(t *testing.T) {
	t.Parallel()
	never := func(t *testing.T) rest.Config { // no request is meant to arrive
		return trusting(quietly(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") }, (*httptest.Server).StartTLS))
	}
	for _, test := range []struct {
		title       string
		config      func(*testing.T) rest.Config
		within      time.Duration
		err, remedy string // {host} is host:port of the server
	}{
		{
			title: "a certificate from another CA",
			config: func(t *testing.T) rest.Config {
				config := never(t)
				config.CAData = pemOf(certificate(t, time.Now().Add(time.Hour)).Certificate[0])
				return config
			},
			err:    `TLS: Get "https://{host}/api/v1/nodes/node-1": tls: failed to verify certificate: x509: certificate signed by unknown authority`,
			remedy: checkCA,
		},
		{
			title: "a certificate for another name",
			config: func(t *testing.T) rest.Config {
				config := never(t)
				config.ServerName = "kubernetes.default.svc"
				return config
			},
			err:    `TLS: Get "https://{host}/api/v1/nodes/node-1": tls: failed to verify certificate: x509: certificate is valid for example.com, *.example.com, not kubernetes.default.svc`,
			remedy: checkCA,
		},
		{
			title: "plain HTTP",
			config: func(t *testing.T) rest.Config {
				server := quietly(t, func(http.ResponseWriter, *http.Request) {}, (*httptest.Server).Start)
				return rest.Config{Host: strings.Replace(server.URL, "http:", "https:", 1)}
			},
			err:    `TLS: Get "https://{host}/api/v1/nodes/node-1": http: server gave HTTP response to HTTPS client`,
			remedy: checkAnswerer,
		},
		{
			title: "something that is not TLS",
			config: func(t *testing.T) rest.Config {
				return rest.Config{Host: "https://" + serving(t, "127.0.0.1", func(conn net.Conn) {
					_, _ = conn.Read(make([]byte, 1))
					_, _ = io.WriteString(conn, "SSH-2.0-OpenSSH_9.9\r\n")
				})}
			},
			err:    `TLS: Get "https://{host}/api/v1/nodes/node-1": tls: first record does not look like a TLS handshake`,
			remedy: checkAnswerer,
		},
		{
			title:  "refused",
			config: func(t *testing.T) rest.Config { return rest.Config{Host: "https://" + refusing(t)} },
			err:    `Get "https://{host}/api/v1/nodes/node-1": dial tcp {host}: connect: connection refused`, remedy: checkBetween,
		},
		{
			title:  "dropped",
			config: func(t *testing.T) rest.Config { return rest.Config{Host: "https://" + silent(t)} },
			within: 300 * time.Millisecond,
			err:    `no answer from the API server in time: TCP connection not accepted: Get "https://{host}/api/v1/nodes/node-1": context deadline exceeded`, remedy: checkAPIPath,
		},
		{
			title:  "a TLS handshake that does not end",
			config: func(t *testing.T) rest.Config { return rest.Config{Host: "https://" + accepting(t, "127.0.0.1")} },
			within: 300 * time.Millisecond,
			err:    `no answer from the API server in time: TCP connects, but the TLS handshake does not end: Get "https://{host}/api/v1/nodes/node-1": context deadline exceeded`, remedy: checkAPIPath,
		},
		{
			title: "an answer that never comes",
			config: func(t *testing.T) rest.Config {
				return trusting(quietly(t, func(http.ResponseWriter, *http.Request) { <-t.Context().Done() }, (*httptest.Server).StartTLS))
			},
			within: 500 * time.Millisecond,
			err:    `no answer from the API server in time: TCP and TLS work and the request is sent, but no answer comes: Get "https://{host}/api/v1/nodes/node-1": context deadline exceeded`, remedy: checkAPIPath,
		},
		{
			title: "an answer cut in half",
			config: func(t *testing.T) rest.Config {
				return trusting(quietly(t, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Length", "1000")
					_, _ = io.WriteString(w, `{"kind":"Node",`)
				}, (*httptest.Server).StartTLS))
			},
			err: "unexpected error when reading response body. Please retry. Original error: unexpected EOF", remedy: checkBetween,
		},
		{
			title: "a connection closed in place of an answer",
			config: func(t *testing.T) rest.Config {
				return trusting(quietly(t, func(http.ResponseWriter, *http.Request) {
					panic(http.ErrAbortHandler)
				}, (*httptest.Server).StartTLS))
			},
			err: `Get "https://{host}/api/v1/nodes/node-1": EOF`, remedy: checkBetween,
		},
	} {
		if test.within == 0 {
			test.within = enough
		}
		t.Run(test.title, func(t *testing.T) {
			t.Parallel()
			config := test.config(t)
			_, err := nodeCheck(t, config).Try(limited(t, test.within))
			require.EqualError(t, err, strings.ReplaceAll(test.err, "{host}", strings.TrimPrefix(config.Host, "https://")))
			assert.Equal(t, test.remedy, Remedy(err))
		})
	}
}

// Its own test, because the error names the time of day.
func TestAPIExpiredCertificate(t *testing.T) {
	t.Parallel()
	expired := certificate(t, time.Now().Add(-time.Hour))
	server := quietly(t, func(http.ResponseWriter, *http.Request) { t.Error("the request was sent") }, func(s *httptest.Server) {
		s.TLS = &tls.Config{Certificates: []tls.Certificate{expired}}
		s.StartTLS()
	})
	_, err := nodeCheck(t, trusting(server)).Try(limited(t, enough))
	require.ErrorContains(t, err, "TLS: ")
	require.ErrorContains(t, err, "x509: certificate has expired or is not yet valid: ")
	assert.Equal(t, checkCA, Remedy(err))
}

// errors.Is finds the cause.
func TestAPIFailureKeepsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("broken")
	_, err := API{Get: func(context.Context) (Report, error) { return Report{}, cause }}.Try(t.Context())
	require.ErrorIs(t, err, cause)
}

// An error after the deadline counts as a timeout.
func TestAPIErrorAfterTheDeadline(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := apiFailure(ctx, errors.New("use of closed network connection"), "")
	require.EqualError(t, err, "no answer from the API server in time: use of closed network connection")
	assert.Equal(t, checkAPIPath, Remedy(err))
}
