// Command baseline is what the benchmark compares the agent with. It uses net/http and no client library.
//
//	baseline         releases its node with one request and without any check, then holds: the least a gate costs
//	baseline checks  makes the agent's requests and queries one after the other, releases its node and exits: the
//	                 least that a verification of this kind costs
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := run(ctx, slices.Equal(os.Args[1:], []string{"checks"}), os.Getenv("NODE_NAME")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, checks bool, node string) error {
	c, err := newClient()
	if err != nil {
		return err
	}
	if !checks {
		if err := c.release(node); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}
	if _, err := c.do(http.MethodGet, "/api/v1/nodes/"+node, "", ""); err != nil {
		return err
	}
	const clusterName = "kubernetes.default.svc.cluster.local."
	for _, name := range []string{clusterName, "google.com."} {
		if _, err := net.DefaultResolver.LookupHost(ctx, name); err != nil {
			return err
		}
	}
	conn, err := net.Dial("tcp", c.address)
	if err != nil {
		return err
	}
	_ = conn.Close()
	addresses, err := c.dnsEndpoints()
	if err != nil {
		return err
	}
	for _, address := range addresses {
		// One query over TCP, as the agent sends it to each DNS pod.
		pod := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}}
		if _, err := pod.LookupNetIP(ctx, "ip4", clusterName); err != nil {
			return err
		}
	}
	return c.release(node)
}

// client is an HTTP client with the pod's service account.
type client struct {
	http.Client
	address string // host:port of the kubernetes service
	token   string
}

func newClient() (*client, error) {
	token, err := os.ReadFile(serviceAccount + "token")
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(serviceAccount + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &client{
		Client:  http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}},
		address: net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
		token:   string(token),
	}, nil
}

// do sends one request to the API server and returns the body of the response.
func (c *client) do(method, path, contentType, body string) ([]byte, error) {
	request, err := http.NewRequest(method, "https://"+c.address+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	// The policy knows the agent by the name before the slash: metadata.managedFields has it.
	request.Header.Set("User-Agent", "kube-node-ready/"+os.Args[0])
	request.Header.Set("Content-Type", contentType)
	response, err := c.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return text, err
}

// release removes the startup taint, where it is the node's only taint, and adds the label.
func (c *client) release(node string) error {
	_, err := c.do(http.MethodPatch, "/api/v1/nodes/"+node, "application/json-patch+json", `[
		{"op": "test", "path": "/spec/taints/0/key", "value": "node-ready/unverified"},
		{"op": "remove", "path": "/spec/taints/0"},
		{"op": "add", "path": "/metadata/labels/node-ready~1verified", "value": "true"}]`)
	return err
}

// dnsEndpoints lists the addresses of the DNS pods.
func (c *client) dnsEndpoints() (addresses []string, err error) {
	body, err := c.do(http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"+
		"?labelSelector=kubernetes.io/service-name%3Dkube-dns&resourceVersion=0", "", "")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Endpoints []struct{ Addresses []string }
		}
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	for _, slice := range list.Items {
		for _, endpoint := range slice.Endpoints {
			addresses = append(addresses, net.JoinHostPort(endpoint.Addresses[0], "53"))
		}
	}
	return addresses, nil
}
