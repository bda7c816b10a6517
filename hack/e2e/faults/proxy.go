// Package faults breaks one thing at a time around the agent's real binary, against a real API
// server, and shows that nothing is lost. Every test adds a row to one table.
package faults

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Proxy stands between the agent and the API server. It ends TLS with a certificate of its own and
// forwards what it is asked with the client's own token, but for the requests that a Fault is set
// on: those are reached by what they ask for, and never by waiting.
type Proxy struct {
	URL string
	CA  []byte // PEM; what a client must trust

	upstream  string
	transport http.RoundTripper
	server    *http.Server
	good      *tls.Certificate

	mu        sync.Mutex
	rules     []*rule
	asked     []Asked
	conns     map[net.Conn]bool
	handshake Handshake // nil for the good certificate
}

// Asked is one request that came through the proxy, and the API server's own answer to it.
type Asked struct {
	Method, Path string
	Code         int // 0 where the API server was not asked or did not answer
}

// Match picks requests.
type Match func(method, path string) bool

// Any picks every request.
func Any(string, string) bool { return true }

// Read picks the GET of a Node.
func Read(node string) Match { return exactly(http.MethodGet, "/api/v1/nodes/"+node) }

// Patch picks the PATCH of a Node.
func Patch(node string) Match { return exactly(http.MethodPatch, "/api/v1/nodes/"+node) }

// Event picks the POST of an Event.
func Event(method, path string) bool {
	return method == http.MethodPost && strings.HasSuffix(path, "/events")
}

// Slices picks the LIST of EndpointSlices.
func Slices(_, path string) bool { return strings.HasSuffix(path, "/endpointslices") }

func exactly(method, path string) Match {
	return func(m, p string) bool { return m == method && p == path }
}

// Answer is what the API server said.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

// Fault is done in place of forwarding a request. It may forward it, once, at any time.
type Fault func(w http.ResponseWriter, r *http.Request, forward func() (Answer, error))

// Handshake answers a TLS handshake.
type Handshake func(context.Context) (*tls.Certificate, error)

type rule struct {
	match Match
	fault Fault
}

// NewProxy starts a proxy on a loopback address, in front of the API server of config.
func NewProxy(config *rest.Config) (*Proxy, error) {
	upstream := rest.AnonymousClientConfig(config) // the caller's token is what counts
	transport, err := rest.TransportFor(upstream)
	if err != nil {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		URL: "https://" + listener.Addr().String(), upstream: strings.TrimSuffix(config.Host, "/"),
		transport: transport, conns: make(map[net.Conn]bool),
	}
	if p.CA, p.good, err = newCertificate(); err != nil {
		return nil, err
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		ReadHeaderTimeout: time.Minute,
		TLSConfig:         &tls.Config{GetCertificate: p.certificate, MinVersion: tls.VersionTLS12},
		ConnState:         p.track,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ErrorLog:          log.New(io.Discard, "", 0), // faults are no news
	}
	go func() { _ = p.server.ServeTLS(listener, "", "") }()
	return p, nil
}

// Close ends the proxy and all of its connections.
func (p *Proxy) Close() { _ = p.server.Close() }

// On sets a fault on the requests that match picks, before any that was set earlier. The function
// that it returns takes it away.
func (p *Proxy) On(match Match, fault Fault) (off func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &rule{match, fault}
	p.rules = slices.Insert(p.rules, 0, r)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rules = slices.DeleteFunc(p.rules, func(other *rule) bool { return other == r })
	}
}

// Asked returns the requests that match picks, in the order of their answers.
func (p *Proxy) Asked(match Match) []Asked {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []Asked
	for _, asked := range p.asked {
		if match(asked.Method, asked.Path) {
			found = append(found, asked)
		}
	}
	return found
}

// Applied counts the patches of a Node that the API server has applied.
func (p *Proxy) Applied(node string) (n int) {
	for _, asked := range p.Asked(Patch(node)) {
		if asked.Code == http.StatusOK {
			n++
		}
	}
	return n
}

// OnHandshake sets what answers TLS handshakes from now on; nil is the good certificate.
func (p *Proxy) OnHandshake(handshake Handshake) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handshake = handshake
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *Proxy) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	p.mu.Lock()
	handshake := p.handshake
	p.mu.Unlock()
	if handshake == nil {
		return p.good, nil
	}
	return handshake(hello.Context())
}

func (p *Proxy) track(conn net.Conn, state http.ConnState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch state {
	case http.StateNew:
		p.conns[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(p.conns, conn)
	}
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	// Recorded as soon as the API server has answered: a test that sees the client's reaction finds the request here.
	var once sync.Once
	record := func(code int) {
		once.Do(func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.asked = append(p.asked, Asked{r.Method, r.URL.Path, code})
		})
	}
	defer record(0)
	forward := func() (Answer, error) {
		answer, err := p.forward(r, body)
		record(answer.Code)
		return answer, err
	}

	fault := Pass
	p.mu.Lock()
	for _, rule := range p.rules {
		if rule.match(r.Method, r.URL.Path) {
			fault = rule.fault
			break
		}
	}
	p.mu.Unlock()
	fault(w, r, forward)
}

// forward asks the API server. A client that has gone does not take its request back.
func (p *Proxy) forward(r *http.Request, body []byte) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, r.Method, p.upstream+r.URL.RequestURI(), bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	request.Header = r.Header.Clone()
	request.Header.Del("Accept-Encoding") // so that a Fault can read the answer
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return Answer{}, fmt.Errorf("proxy: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.Header, text}, err
}

// newCertificate makes a certificate for 127.0.0.1 that is its own CA, which it returns as PEM, too.
func newCertificate() (ca []byte, certificate *tls.Certificate, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "kube-apiserver"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
