package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/controller/internal/plugin/doctor"
)

// connect follows the rules of kubectl: the flags, $KUBECONFIG, ~/.kube/config.
func connect(o options) (client.Client, *rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &o.overrides).ClientConfig()
	if err != nil {
		return nil, nil, fmt.Errorf("no access to a cluster: %w", err)
	}
	config.UserAgent = "kubectl-node_ready/" + version
	config.QPS = -1 // a person waits, and a command sends some dozens of requests
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(o.clock.Wrap)
	cluster, err := client.New(config, client.Options{})
	return cluster, config, err
}

// forwardTo returns a function that forwards ports to the pods of a cluster, as kubectl port-forward does. Each port-forward must
// be ready within patience.
func forwardTo(config *rest.Config, patience time.Duration) doctor.Forward {
	return func(ctx context.Context, pod *corev1.Pod, port int32) (string, error) {
		server, _, err := rest.DefaultServerUrlFor(config)
		transport, upgrader, invalid := spdy.RoundTripperFor(config)
		if err = cmp.Or(err, invalid); err != nil {
			return "", err
		}
		url := server.JoinPath("api/v1/namespaces", pod.Namespace, "pods", pod.Name, "portforward")
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
		ready, failed := make(chan struct{}), make(chan error, 1)
		quiet := klog.NewContext(ctx, klog.Logger{}) // the queries fail too
		local, ports := []string{"127.0.0.1"}, []string{fmt.Sprintf(":%d", port)}
		forwarder, err := portforward.NewOnAddressesWithContext(quiet, dialer, local, ports, ready, io.Discard, io.Discard)
		if err != nil {
			return "", err
		}
		go func() { failed <- forwarder.ForwardPorts() }()
		select {
		case err := <-failed:
			return "", err
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(patience):
			return "", fmt.Errorf("port-forward to the pod %s/%s: no answer for %s", pod.Namespace, pod.Name, patience)
		case <-ready:
			forwarded, _ := forwarder.GetPorts() // fails only before that
			return fmt.Sprintf("127.0.0.1:%d", forwarded[0].Local), nil
		}
	}
}
