package kube

import (
	"cmp"
	"errors"
	"net"
	"net/url"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Environment is where the process runs, and what it can reach from there.
type Environment struct {
	Client    *Client      // nil without access to the API
	Err       error        // why there is no access
	REST      *rest.Config // for other clients, which have no limit of their own either
	Service   string       // host:port of the kubernetes service, "" outside a cluster
	APIServer string       // host:port of the API server in the kubeconfig, "" behind a proxy
}

// Outside returns the reason to skip what works only inside a cluster, "" inside.
func (e Environment) Outside() string {
	if e.Service == "" {
		return "not inside a cluster (KUBERNETES_SERVICE_HOST is not set)"
	}
	return ""
}

// ErrNoKubeconfig means that no kubeconfig is configured; a dry run works without. A file that cannot be read is another error.
var ErrNoKubeconfig = errors.New("no kubeconfig")

// DetectEnvironment finds out where the process runs. A kubeconfig that is named wins over the pod's service account,
// which wins over the usual rules of kubectl.
func DetectEnvironment(kubeconfig string, lookupEnv func(string) (string, bool), userAgent string) Environment {
	e := Environment{Service: serviceAddress(lookupEnv)}
	if e.REST, e.Err = clientConfig(kubeconfig, e.Service != ""); e.Err != nil {
		return e
	}
	if u, err := url.Parse(e.REST.Host); err == nil && u.Host != "" && e.REST.Proxy == nil {
		e.APIServer = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
	}
	e.REST.UserAgent, e.REST.QPS = userAgent, -1
	e.Client, e.Err = NewClient(e.REST)
	return e
}

// AnonymousEnvironment is inside a cluster, with a client that has no credential, whatever the pod or the machine has. It
// trusts the cluster's CA (PEM) and no other.
func AnonymousEnvironment(ca string, lookupEnv func(string) (string, bool), userAgent string) Environment {
	e := Environment{Service: serviceAddress(lookupEnv)}
	e.Client, e.Err = NewClient(&rest.Config{Host: "https://" + e.Service, UserAgent: userAgent,
		TLSClientConfig: rest.TLSClientConfig{CAData: []byte(ca)}})
	return e
}

// serviceAddress returns host:port of the kubernetes service, "" outside a cluster.
func serviceAddress(lookupEnv func(string) (string, bool)) string {
	host, _ := lookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := lookupEnv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// clientConfig follows what the user names, else the pod's service account, else the usual rules
// of kubectl ($KUBECONFIG, ~/.kube/config).
func clientConfig(kubeconfig string, inCluster bool) (*rest.Config, error) {
	if kubeconfig == "" && inCluster {
		return rest.InClusterConfig()
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	switch files := filepath.SplitList(kubeconfig); {
	case len(files) == 1:
		rules.ExplicitPath = files[0] // must exist
	case len(files) > 1:
		rules.Precedence = files
	}
	found, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, ErrNoKubeconfig
	}
	return found, err
}
