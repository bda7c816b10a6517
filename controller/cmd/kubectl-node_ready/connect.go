package main

import (
	"fmt"

	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// access is what a command needs of a cluster.
type access struct {
	Client client.Client
	// Node reads and patches a node.
	Node func(name string) nodepatch.NodeAPI
}

// connect follows the rules of kubectl: the flags, $KUBECONFIG, ~/.kube/config.
func connect(o options) (access, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &o.overrides).ClientConfig()
	if err != nil {
		return access{}, fmt.Errorf("no access to a cluster: %w", err)
	}
	config.UserAgent = "kubectl-node_ready/" + version
	config.QPS = -1 // a person waits, and a command sends some dozens of requests
	config.WarningHandler = rest.NoWarnings{}
	direct, err := client.New(config, client.Options{})
	if err != nil {
		return access{}, err
	}
	core, err := corev1.NewForConfig(config)
	if err != nil {
		return access{}, err
	}
	return access{
		Client: direct,
		Node:   func(name string) nodepatch.NodeAPI { return nodepatch.Client{REST: core.RESTClient(), Name: name} },
	}, nil
}
