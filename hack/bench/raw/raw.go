// Package raw talks to the API server from a pod with net/http and nothing else: what the agent's
// own figures are held against.
package raw

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// Client is an HTTP client with the pod's service account.
type Client struct {
	Address string // host:port of the kubernetes service
	http    *http.Client
	token   string
}

// New reads the service account.
func New() (*Client, error) {
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &Client{
		Address: net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
		http:    &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}},
		token:   string(token),
	}, nil
}

// Do sends one request and returns the body of the answer.
func (c *Client) Do(method, path, contentType, body string) ([]byte, error) {
	request, err := http.NewRequest(method, "https://"+c.Address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("User-Agent", os.Args[0])
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text)
	}
	return text, err
}

// Open takes the startup taint off, where it is the only taint, and puts the label on.
func (c *Client) Open(node string) error {
	_, err := c.Do(http.MethodPatch, "/api/v1/nodes/"+node, "application/json-patch+json", `[
		{"op": "test", "path": "/spec/taints/0/key", "value": "node-ready/unverified"},
		{"op": "remove", "path": "/spec/taints/0"},
		{"op": "add", "path": "/metadata/labels/node-ready~1verified", "value": "true"}]`)
	return err
}
