package main

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// connect follows the rules of kubectl: the flags, $KUBECONFIG, ~/.kube/config.
func connect(o options) (client.Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &o.overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("no access to a cluster: %w", err)
	}
	config.UserAgent = "kubectl-node_ready/" + version
	config.QPS = -1 // a person waits, and a command sends some dozens of requests
	config.WarningHandler = rest.NoWarnings{}
	config.Wrap(o.clock.Wrap)
	return client.New(config, client.Options{})
}
