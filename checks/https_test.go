package checks

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// secure starts an HTTPS server whose certificate is for example.com and 127.0.0.1, and returns its
// address and its CA.
func secure(t *testing.T, handler http.HandlerFunc) (address, ca string) {
	t.Helper()
	server := quietly(t, handler, (*httptest.Server).StartTLS)
	return server.Listener.Addr().String(), string(asPEM(server.Certificate()))
}

func status(code int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
}

// answering is a resolver that knows example.com and other.example by these addresses.
func answering(t *testing.T, addresses ...string) *Resolver {
	t.Helper()
	server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"example.com.": {a: addresses}, "other.example.": {a: addresses}})
	return &Resolver{Servers: []string{server.address}}
}

func TestHTTPSTarget(t *testing.T) {
	try := func(t *testing.T, n Network, url string) (Report, error) {
		t.Helper()
		n.Targets = []Target{ParseTarget(url)}
		return n.Try(limited(t, enough))
	}
	for code, good := range map[int]bool{200: true, 204: true, 302: true, 399: true, 400: false, 404: false, 503: false} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			address, ca := secure(t, status(code))
			report, err := try(t, Network{ClusterCA: ca}, "https://"+address+"/path?q=1")
			if good {
				require.NoError(t, err)
				require.Contains(t, report.Detail, "GET https://"+address+"/path?q=1 ")
				return
			}
			require.EqualError(t, err, fmt.Sprintf("GET https://%s/path?q=1: %d %s", address, code, http.StatusText(code)))
			require.Contains(t, Remedy(err), "the network works, the target returned an error")
		})
	}
	t.Run("the request", func(t *testing.T) {
		asked := make(chan *http.Request, 1)
		address, ca := secure(t, func(_ http.ResponseWriter, r *http.Request) { asked <- r })
		t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1") // not used
		_, err := try(t, Network{ClusterCA: ca}, "https://"+address+"/healthz")
		require.NoError(t, err)
		request := receive(t, asked)
		require.Equal(t, http.MethodGet, request.Method)
		require.Equal(t, "/healthz", request.URL.Path)
	})
	t.Run("an unknown CA", func(t *testing.T) {
		address, _ := secure(t, status(200))
		_, err := try(t, Network{}, "https://"+address)
		require.ErrorContains(t, err, "GET https://"+address+": TLS: x509: certificate signed by unknown authority")
		require.Contains(t, Remedy(err), "which the system or the cluster must trust")
	})
	t.Run("a certificate for another name", func(t *testing.T) {
		address, ca := secure(t, status(200))
		_, port, _ := net.SplitHostPort(address)
		_, err := try(t, Network{ClusterCA: ca, Resolver: answering(t, "127.0.0.1")}, "https://other.example:"+port)
		require.ErrorContains(t, err, "TLS: x509: certificate is valid for example.com")
	})
	t.Run("a name, with an address that does not answer", func(t *testing.T) {
		address, ca := secure(t, status(200))
		_, port, _ := net.SplitHostPort(address)
		_, err := try(t, Network{ClusterCA: ca, Resolver: answering(t, unreachable, "127.0.0.2", "127.0.0.1")}, "https://example.com:"+port)
		require.NoError(t, err)
	})
	t.Run("a name, with an address that drops packets", func(t *testing.T) {
		_, port, _ := net.SplitHostPort(silent(t))
		server := quietly(t, status(200), func(s *httptest.Server) {
			listener, err := net.Listen("tcp", "127.0.0.2:"+port)
			require.NoError(t, err)
			_ = s.Listener.Close()
			s.Listener = listener
			s.StartTLS()
		})
		_, err := try(t, Network{ClusterCA: string(asPEM(server.Certificate())), Resolver: answering(t, "127.0.0.1", "127.0.0.2")}, "https://example.com:"+port)
		require.NoError(t, err)
	})
	t.Run("no TLS", func(t *testing.T) {
		plain := httptest.NewServer(status(200))
		t.Cleanup(plain.Close)
		url := strings.Replace(plain.URL, "http:", "https:", 1)
		_, err := try(t, Network{}, url)
		require.ErrorContains(t, err, "GET "+url+": TLS: ")
		require.Contains(t, Remedy(err), "does not speak TLS")
	})
	t.Run("refused", func(t *testing.T) {
		address := refusing(t)
		_, err := try(t, Network{}, "https://"+address)
		require.EqualError(t, err, "GET https://"+address+": connection refused")
		require.Equal(t, checkListens, Remedy(err))
	})
	t.Run("silence", func(t *testing.T) {
		for what, address := range map[string]string{"dropped": silent(t), "no handshake": serving(t, "127.0.0.1", func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })} {
			n := Network{Targets: []Target{ParseTarget("https://" + address)}}
			_, err := n.Try(limited(t, 300*time.Millisecond))
			require.EqualError(t, err, "GET https://"+address+": timeout", what)
			require.Equal(t, checkDropped, Remedy(err))
		}
	})
	t.Run("everything ends with the attempt", func(t *testing.T) {
		closed := make(chan struct{})
		address := serving(t, "127.0.0.1", func(conn net.Conn) {
			_, _ = io.Copy(io.Discard, conn)
			close(closed)
		})
		_, err := Network{Targets: []Target{ParseTarget("https://" + address)}}.Try(limited(t, 300*time.Millisecond))
		require.Error(t, err)
		select {
		case <-closed:
		case <-time.After(enough):
			require.Fail(t, "the handshake still waits")
		}
	})
	t.Run("a name server that does not answer", func(t *testing.T) {
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"example.com.": {silent: true}})
		n := Network{Resolver: &Resolver{Servers: []string{server.address}}, Targets: []Target{ParseTarget("https://example.com/")}}
		_, err := n.Try(limited(t, 300*time.Millisecond))
		require.EqualError(t, err, "GET https://example.com/: example.com: timeout from name server "+server.address)
		require.Equal(t, checkTarget, Remedy(err))
	})
	t.Run("a name server that is slow", func(t *testing.T) { // slower than others, within its share of the attempt
		address, ca := secure(t, status(200))
		_, port, _ := net.SplitHostPort(address)
		server := newNameServer(t, "127.0.0.1", tcpOpen, map[string]script{"example.com.": {a: []string{"127.0.0.1"}, slowA: 1300 * time.Millisecond}})
		_, err := try(t, Network{ClusterCA: ca, Resolver: &Resolver{Servers: []string{server.address}}}, "https://example.com:"+port)
		require.NoError(t, err)
	})
	t.Run("an unknown name", func(t *testing.T) {
		_, err := try(t, Network{Resolver: answering(t)}, "https://nowhere.example/")
		require.ErrorContains(t, err, "GET https://nowhere.example/: ")
		require.Equal(t, checkTarget, Remedy(err))
	})
}

func TestParseTarget(t *testing.T) {
	require.Equal(t, Target{Address: "a:1"}, ParseTarget("a:1"))
	require.Equal(t, Target{Address: "[fd00::1]:1"}, ParseTarget("tcp://[fd00::1]:1"))
	require.Equal(t, Target{URL: "https://a/b"}, ParseTarget("https://a/b"))
	require.Equal(t, Target{URL: "http://[fd00::1]:1/"}, ParseTarget("http://[fd00::1]:1/"))
	require.Equal(t, Target{URL: "https://a/v2/", Statuses: "200|401"}, ParseTarget("https://a/v2/#200|401"))
	require.Equal(t, Target{Address: "a:1", OnlyWarns: true}, ParseTarget("warn+a:1"))
	require.Equal(t, Target{Address: "a:1", OnlyWarns: true}, ParseTarget("warn+tcp://a:1"))
	require.Equal(t, Target{URL: "http://a", Statuses: "204", OnlyWarns: true}, ParseTarget("warn+http://a#204"))
}

func TestHTTPTarget(t *testing.T) {
	server := quietly(t, func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(strings.TrimPrefix(r.RequestURI, "/")) // the fragment is not sent
		if err != nil {
			code = http.StatusNotImplemented
		}
		w.WriteHeader(code)
	}, (*httptest.Server).Start)
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1") // not used
	for path, message := range map[string]string{
		"/200": "", "/302": "", "/401": "401 Unauthorized", "/503": "503 Service Unavailable",
		"/200#200|401": "", "/401#200|401": "", "/503#503": "",
		"/403#200|401": "403 Forbidden, not 200|401", "/200#401": "200 OK, not 401", "/204#200": "204 No Content, not 200",
	} {
		url, _, _ := strings.Cut(server.URL+path, "#")
		report, err := Network{Targets: []Target{ParseTarget(server.URL + path)}}.Try(limited(t, enough))
		if message != "" {
			require.EqualError(t, err, "GET "+url+": "+message)
			continue
		}
		require.NoError(t, err, path)
		require.Contains(t, report.Detail, "GET "+url+" ")
	}
}

func TestTargetWithoutPort(t *testing.T) {
	for scheme, port := range map[string]string{"http": "80", "https": "443"} {
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.9", port))
		if err != nil {
			t.Skip(err) // needs root
		}
		start := map[string]func(*httptest.Server){"http": (*httptest.Server).Start, "https": (*httptest.Server).StartTLS}[scheme]
		server := quietly(t, status(200), func(s *httptest.Server) {
			_ = s.Listener.Close()
			s.Listener = listener
			start(s)
		})
		n := Network{Resolver: answering(t, "127.0.0.9"), Targets: []Target{ParseTarget(scheme + "://example.com/")}}
		if server.Certificate() != nil {
			n.ClusterCA = string(asPEM(server.Certificate()))
		}
		_, err = n.Try(limited(t, enough))
		require.NoError(t, err, scheme)
	}
}

// An external service that is down does not stop a cluster from growing, if its target only warns.
func TestTargetsThatOnlyWarn(t *testing.T) {
	accepts, refuses := accepting(t, "127.0.0.1"), refusing(t)
	try := func(targets ...string) (Report, error) {
		n := Network{Resolver: answering(t)}
		for _, target := range targets {
			n.Targets = append(n.Targets, ParseTarget(target))
		}
		return n.Try(limited(t, enough))
	}
	report, err := try("warn+"+refuses, accepts, "warn+https://"+refuses+"/path", "warn+tcp://nowhere.example:1")
	require.NoError(t, err)
	require.Equal(t, accepts+" accepts", report.Detail)
	require.Len(t, report.Warnings, 3)
	require.Equal(t, "TCP "+refuses+": connection refused", report.Warnings[0])
	require.Equal(t, "GET https://"+refuses+"/path: connection refused", report.Warnings[1])
	require.Contains(t, report.Warnings[2], "nowhere.example:1: ")

	report, err = try("warn+" + accepts)
	require.NoError(t, err)
	require.Equal(t, Report{Detail: accepts + " accepts"}, report)

	_, err = try("warn+"+refuses, refuses)
	require.EqualError(t, err, "TCP "+refuses+": connection refused")
}

func TestTrustedRoots(t *testing.T) {
	bundled, cluster, system := authority(t), authority(t), authority(t)
	for name, c := range map[string]struct{ system, want *x509.CertPool }{
		"no system: those brought along": {pool(), pool(bundled, cluster)},
		"the system's":                   {pool(system), pool(system, cluster)},
	} {
		t.Run(name, func(t *testing.T) {
			require.True(t, trustedRoots(c.system, string(asPEM(bundled)), string(asPEM(cluster))).Equal(c.want))
		})
	}
}

func authority(t *testing.T) *x509.Certificate {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(nil, template, template, key.Public(), key)
	require.NoError(t, err)
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return certificate
}

func asPEM(certificate *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
}

func pool(certificates ...*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	return pool
}
