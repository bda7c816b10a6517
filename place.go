package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/imunhatep/kube-node-ready/checks"
)

// What the agent may send at most, in requests a second; a verification needs four in all.
const (
	requestsPerSecond = 10
	requestBurst      = 20
)

// place is where the process runs: what it can reach the API with, and whether it is in a cluster.
type place struct {
	api       *api   // nil where there is no access to the API
	noAPI     error  // why
	service   string // host:port of the kubernetes service, "" outside a cluster
	outside   string // why what only a cluster can answer is not asked, "" inside
	apiServer string // host:port of the API server as the kubeconfig names it, "" where that is behind a proxy
	domain    string // the cluster's DNS domain
}

// api is a REST client without any type of k8s.io/api: see nodepatch.Node. A clientset with all of
// them would make the binary twice as large.
type api struct {
	http            *http.Client
	core, discovery rest.Interface
}

// errNoKubeconfig means that nobody has named a cluster, which is no fault; a file that cannot be read is.
var errNoKubeconfig = errors.New("no kubeconfig")

// locate finds out where the process runs.
func locate(cfg config, lookupEnv func(string) (string, bool)) place {
	var p place
	p.domain = "cluster.local"
	if resolver, err := checks.SystemResolver(); err == nil && resolver.ClusterDomain() != "" {
		p.domain = resolver.ClusterDomain()
	}
	host, _ := lookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := lookupEnv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		p.outside = "not inside a cluster (KUBERNETES_SERVICE_HOST is not set)"
	} else {
		p.service = net.JoinHostPort(host, port)
	}

	restConfig, err := clientConfig(cfg.kubeconfig, p.outside == "")
	if err != nil {
		p.noAPI = err
		return p
	}
	if u, err := url.Parse(restConfig.Host); err == nil && u.Host != "" && restConfig.Proxy == nil {
		p.apiServer = u.Host
		if u.Port() == "" {
			p.apiServer = net.JoinHostPort(u.Hostname(), "443")
		}
	}
	p.api, p.noAPI = newAPI(restConfig)
	return p
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
		return nil, errNoKubeconfig
	}
	return found, err
}

func newAPI(config *rest.Config) (*api, error) {
	config.UserAgent = "kube-node-ready/" + version
	// The path to the API that is proven is the pod's own, whatever HTTPS_PROXY says. A kubeconfig may name a proxy for its cluster.
	if config.Proxy == nil {
		config.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(requestsPerSecond, requestBurst)
	config.WarningHandler = rest.NoWarnings{} // client-go would print them itself, among the lines of the log
	config.APIPath = "/apis"
	if config.BearerTokenFile != "" {
		// client-go keeps what the file held for a minute; a token that is refused is read anew at once.
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(config.BearerTokenFile)))
		config.BearerToken, config.BearerTokenFile = "", ""
	}

	// Objects are decoded by those who read them; what the client itself has to know is a Status.
	core, discovery := schema.GroupVersion{Version: "v1"}, schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, core)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()

	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	a := &api{http: client}
	config.GroupVersion = &discovery
	if a.discovery, err = rest.RESTClientForConfigAndClient(config, client); err != nil {
		return nil, err
	}
	config.APIPath, config.GroupVersion = "/api", &core
	a.core, err = rest.RESTClientForConfigAndClient(config, client)
	return a, err
}

// endpointSlices lists the EndpointSlices of one service, as the API server's cache has them: by
// default it waits, up to a tenth of a second, until its cache has seen the latest write to etcd.
func (a *api) endpointSlices(ctx context.Context, namespace, service string) ([]checks.EndpointSlice, error) {
	answer := a.discovery.Get().Namespace(namespace).Resource("endpointslices").
		Param("labelSelector", "kubernetes.io/service-name="+service).Param("resourceVersion", "0").
		MaxRetries(0).Do(ctx) // see nodepatch.Client
	if err := answer.Error(); err != nil {
		return nil, err
	}
	body, err := answer.Raw()
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []checks.EndpointSlice `json:"items"`
	}
	err = json.Unmarshal(body, &list)
	return list.Items, err
}

// versions asks for what only authenticated callers get (RBAC: system:discovery), and no node.
func (a *api) versions(ctx context.Context) error {
	return a.core.Get().AbsPath("/api").MaxRetries(0).Do(ctx).Error()
}

// closeIdle makes the next request prove the path to the API server anew, from TCP on. It also
// leaves a connection behind that died without a word.
func (a *api) closeIdle() { utilnet.CloseIdleConnectionsFor(a.http.Transport) }

// newChecks lists the four checks in their order. Those that cannot be made here say why.
func newChecks(cfg config, p place, api checks.API) []checks.Check {
	list := []checks.Check{checks.DNS{Names: cfg.dnsTestDomains, Outside: p.outside}}

	noAPI := errors.Is(p.noAPI, errNoKubeconfig)
	if noAPI {
		list = append(list, checks.Skip(checks.APIName, p.noAPI.Error()))
	} else {
		list = append(list, api)
	}

	var targets []checks.Target
	if p.service != "" {
		targets = append(targets, checks.Target{Address: p.service, EachAddress: true,
			Remedy: "the kubernetes service does not answer: check that kube-proxy (or what replaces it) runs on this node, and network policies"})
	} else if p.apiServer != "" {
		targets = append(targets, checks.Target{Address: p.apiServer})
	}
	for _, target := range cfg.networkTargets {
		targets = append(targets, checks.ParseTarget(target))
	}
	if len(targets) > 0 {
		list = append(list, checks.Network{Targets: targets})
	} else {
		server := "no kubeconfig"
		if !noAPI {
			server = "the kubeconfig's API server is behind a proxy"
		}
		list = append(list, checks.Skip(checks.NetworkName, p.outside+", "+server+", no NETWORK_TARGETS"))
	}

	namespace, service, found := strings.Cut(cfg.dnsService, "/")
	switch {
	case !found:
		return append(list, checks.Skip(checks.ServiceName, "DNS_SERVICE is empty"))
	case noAPI:
		return append(list, checks.Skip(checks.ServiceName, p.noAPI.Error()))
	case p.api == nil:
		return append(list, checks.Skip(checks.ServiceName, "the endpoints of "+cfg.dnsService+" cannot be listed without the API"))
	case p.outside != "":
		return append(list, checks.Skip(checks.ServiceName, "pod addresses are not reached from here: "+p.outside))
	default:
		return append(list, checks.Service{
			Namespace: namespace, Service: service, Node: cfg.nodeName, TaintKey: cfg.taintKey, Domain: p.domain,
			List: func(ctx context.Context) ([]checks.EndpointSlice, error) {
				return p.api.endpointSlices(ctx, namespace, service)
			},
		})
	}
}
