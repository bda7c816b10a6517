// Command floor does what the agent does on the network, one after the other, with net and net/http
// alone: the time below which no verification of this kind can be.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"

	"github.com/imunhatep/kube-node-ready/hack/bench/raw"
)

func main() {
	if err := run(os.Getenv("NODE_NAME")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(node string) error {
	client, err := raw.New()
	if err != nil {
		return err
	}
	if _, err := client.Do(http.MethodGet, "/api/v1/nodes/"+node, "", ""); err != nil {
		return err
	}
	const inCluster = "kubernetes.default.svc.cluster.local."
	for _, name := range []string{inCluster, "google.com."} {
		if _, err := net.DefaultResolver.LookupHost(context.Background(), name); err != nil {
			return err
		}
	}
	if err := dial(client.Address); err != nil {
		return err
	}
	addresses, err := endpoints(client)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		// One question over TCP, as the agent asks it of each pod that serves DNS.
		pod := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		}}
		if _, err := pod.LookupNetIP(context.Background(), "ip4", inCluster); err != nil {
			return err
		}
	}
	return client.Open(node)
}

func dial(address string) error {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// endpoints lists the addresses of the pods that serve DNS.
func endpoints(client *raw.Client) (addresses []string, err error) {
	body, err := client.Do(http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices?labelSelector=kubernetes.io/service-name%3Dkube-dns&resourceVersion=0", "", "")
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
