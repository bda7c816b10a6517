package config

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func lookup(env map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) {
		value, ok := env[key]
		return value, ok
	}
}

// parse gives a node name to those that do not care.
func parse(env map[string]string, args ...string) (Config, error) {
	env = inCluster(env)
	if _, ok := env["NODE_NAME"]; !ok && !slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, "--node-name") }) {
		env["NODE_NAME"] = "node1"
	}
	return Parse(args, lookup(env), new(bytes.Buffer))
}

// inCluster is what kubelet sets in every pod.
func inCluster(env map[string]string) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = make(map[string]string)
	}
	env["KUBERNETES_SERVICE_HOST"], env["KUBERNETES_SERVICE_PORT"] = "10.96.0.1", "443"
	if _, ok := env["CLUSTER_CA"]; !ok {
		env["CLUSTER_CA"] = clusterCA
	}
	return env
}

// clusterCA is a certificate that the controller gives its workers.
var clusterCA = func() string {
	server := httptest.NewTLSServer(nil)
	defer server.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}()

var defaults = Config{
	NodeName: "node1", PodNamespace: "kube-system",
	InitialTimeout: 5 * time.Minute, CheckTimeout: 3 * time.Second, MaxRetries: 5, RetryBackoff: "exponential",
	DNSTestDomains: []string{"kubernetes.default.svc.cluster.local", "google.com"}, DNSService: "kube-system/kube-dns",
	TaintKey: "node-ready/unverified", TaintValue: "true", TaintEffect: "NoSchedule",
	VerifiedLabel: "node-ready/verified", VerifiedLabelValue: "true", LateTaintWindow: time.Minute,
	AlsoRemoveTaints: []string{"node-ready/failed"},
	OnTimeout:        []string{"keep"}, FailedTaintKey: "node-ready/failed", ConditionType: "NodeVerified", Condition: "auto",
	FailureThreshold: 3, RecoveryThreshold: 3, PeersService: "kube-system/kube-node-ready-peers",
	EnableMetrics: true, MetricsPort: 8080,
	LogLevel: "info", LogFormat: "json",
}

// good and bad are values of one setting.
type good struct {
	value string
	set   func(*Config) // what of the defaults it changes
}
type bad struct{ value, message string }

const (
	wantName      = "must be a name of lower-case letters, digits and dashes, at most 63 long"
	wantSubdomain = "must be a name of lower-case letters, digits, dashes and dots, at most 253 long"
	wantKey       = "must be a key such as example.com/name: an optional DNS name and a slash, then at most 63 letters, digits, dashes, dots and underscores"
	wantOwn       = "must not be a key under kubernetes.io, k8s.io or karpenter.sh: others own those (allowed: startup-taint.cluster-autoscaler.kubernetes.io/)"
	wantValue     = "must be letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit, at most 63 long"
	wantService   = "must be namespace/name of a service, or empty"
	wantDomain    = "must be an IP address or a DNS name: labels of at most 63 letters, digits, underscores and inner dashes, 253 in all"
	wantPort      = "must be a target with a port between 1 and 65535"
	wantTarget    = "must be host:port, tcp://host:port, http(s)://host/path or http(s)://host:port/path, with an IPv6 address in brackets, and " +
		"without user or spaces; the fragment of a URL lists the statuses that pass: #200|401"
	wantPrefix    = "must be a taint's key or the beginning of one, such as node.cilium.io/"
	wantCondition = "must not be a condition that kubelet or a network plugin owns"
	wantBool      = "must be true or false"
	wantEndpoint  = "must be address:port/node, or [v6 address]:port/node, with a port between 1 and 65535"
)

func badHosts(targets map[string]string) []bad {
	var list []bad
	for host, target := range targets {
		list = append(list, badItems(fmt.Sprintf("has the host %q, which ", host)+wantDomain, target)...)
	}
	return list
}

func wantRequirement(text string) string {
	return strconv.Quote(text) + " must be one of condition: TYPE=True (or False, Unknown); allocatable: RESOURCE or RESOURCE>=QUANTITY; " +
		"csiDriver: NAME; label: KEY; daemonSet: NAMESPACE/NAME; each may have on: {LABEL: VALUE}"
}

func wantDuration(lowest, highest string) string {
	return "must be a duration between " + lowest + " and " + highest + ", such as 500ms, 3s or 5m"
}

func wantNumber(lowest, highest int) string {
	return "must be a whole number between " + strconv.Itoa(lowest) + " and " + strconv.Itoa(highest)
}

func badNumbers(lowest, highest int) []bad {
	var list []bad
	for _, value := range []string{strconv.Itoa(lowest - 1), strconv.Itoa(highest + 1), "", "x", "1.5", "1e3", "0x10", "99999999999999999999"} {
		list = append(list, bad{value, wantNumber(lowest, highest)})
	}
	return list
}

func badDurations(lowest, highest string, outside ...string) []bad {
	var list []bad
	for _, value := range append(outside, "-1s", "", "3", "3 s", "soon", "99999999h") {
		list = append(list, bad{value, wantDuration(lowest, highest)})
	}
	return list
}

func badItems(message string, items ...string) []bad {
	var list []bad
	for _, item := range items {
		list = append(list, bad{item, strconv.Quote(item) + " " + message})
	}
	return list
}

func badValues(message string, values ...string) []bad {
	var list []bad
	for _, value := range values {
		list = append(list, bad{value, message})
	}
	return list
}

var (
	long63, long64 = strings.Repeat("a", 63), strings.Repeat("a", 64)
	long253        = strings.Repeat("a.", 126) + "a"
)

// cases has an entry for every setting: TestEverySettingHasCases sees to that.
var cases = map[string]struct {
	good []good
	bad  []bad
}{
	"node-name": {
		good: []good{
			{"node2", func(c *Config) { c.NodeName = "node2" }},
			{"ip-10-0-0-1.eu-central-1.compute.internal", func(c *Config) { c.NodeName = "ip-10-0-0-1.eu-central-1.compute.internal" }},
			{long253, func(c *Config) { c.NodeName = long253 }},
			{" node2\n", func(c *Config) { c.NodeName = "node2" }},
		},
		bad: badValues(wantSubdomain, "Node1", "node_1", "-a", "a-", "a..b", ".a", "a/b", long253+"a"),
	},
	"pod-namespace": {
		good: []good{{"default", func(c *Config) { c.PodNamespace = "default" }}, {long63, func(c *Config) { c.PodNamespace = long63 }}},
		bad:  badValues(wantName, "", "a.b", "A", "a_b", "-a", "a-", long64),
	},
	"kubeconfig": {
		good: []good{
			{"", func(*Config) {}},
			{"/a b/c", func(c *Config) { c.Kubeconfig = "/a b/c" }},
			{"/a:/b", func(c *Config) { c.Kubeconfig = "/a:/b" }},
		},
	},
	"initial-timeout": {
		good: []good{
			{"3s", func(c *Config) { c.InitialTimeout = 3 * time.Second }},
			{"24h", func(c *Config) { c.InitialTimeout = 24 * time.Hour }},
			{"1m30s", func(c *Config) { c.InitialTimeout = 90 * time.Second }},
		},
		bad: badDurations("1s", "24h0m0s", "999ms", "24h1s", "0"),
	},
	"check-timeout": {
		good: []good{
			{"100ms", func(c *Config) { c.CheckTimeout = 100 * time.Millisecond }},
			{"5m", func(c *Config) { c.CheckTimeout = 5 * time.Minute }},
		},
		bad: badDurations("100ms", "5m0s", "99ms", "5m1ms", "0"),
	},
	"max-retries": {
		good: []good{{"0", func(c *Config) { c.MaxRetries = 0 }}, {"100", func(c *Config) { c.MaxRetries = 100 }}},
		bad:  badNumbers(0, 100),
	},
	"retry-backoff": {
		good: []good{{"linear", func(c *Config) { c.RetryBackoff = "linear" }}, {"exponential", func(*Config) {}}},
		bad:  badValues("must be one of exponential, linear", "", "Linear", "constant", "exponential,linear"),
	},
	"dns-test-domains": {
		good: []good{
			{"a.example", func(c *Config) { c.DNSTestDomains = []string{"a.example"} }},
			{"fd00::a,::,1::,::ffff:169.254.20.10,fe7f::1,fec0::1,1:2:3:4:5:6:7::,1:2:3:4:5:6:7:8,::ffff:10.0.0.1,64:ff9b::1.2.3.4", func(c *Config) {
				c.DNSTestDomains = []string{"fd00::a", "::", "1::", "::ffff:169.254.20.10", "fe7f::1", "fec0::1", "1:2:3:4:5:6:7::", "1:2:3:4:5:6:7:8", "::ffff:10.0.0.1", "64:ff9b::1.2.3.4"}
			}},
			{"A_b--c_.EXAMPLE,xn--bcher-kva.example.,_._,db.2024,1.2.3.4.5," + long63 + "." + long63 + "," + long253 + ".", func(c *Config) {
				c.DNSTestDomains = []string{"A_b--c_.EXAMPLE", "xn--bcher-kva.example.", "_._", "db.2024", "1.2.3.4.5", long63 + "." + long63, long253 + "."}
			}},
			{"warn+" + long253 + ".,warn+" + long63 + ",b", func(c *Config) {
				c.DNSTestDomains = []string{"warn+" + long253 + ".", "warn+" + long63, "b"}
			}},
			{"warn+a.example,b,warn+10.0.0.10,warn+fd00::a", func(c *Config) {
				c.DNSTestDomains = []string{"warn+a.example", "b", "warn+10.0.0.10", "warn+fd00::a"}
			}},
			{" a , b.,_x.c ,, 10.0.0.10,fd00::a", func(c *Config) { c.DNSTestDomains = []string{"a", "b.", "_x.c", "10.0.0.10", "fd00::a"} }},
		},
		bad: append([]bad{
			{"", "must name at least 1"}, {" , ", "must name at least 1"},
			{"ok,https://a", `"https://a" ` + wantDomain}, {"a,warn+", `"warn+" ` + wantDomain}, {"a,warn+warn+b", `"warn+warn+b" ` + wantDomain},
			{"a..b,c-.d,e", `"a..b" ` + wantDomain + `; "c-.d" ` + wantDomain},
		}, badItems(wantDomain, "a b", "-a", ".", "a:53", "10.0.0.10:53", "[::1]", "WARN+b", "a/b", "fd00::g", "a..b", "a-", "a.-b", "a..", ".a",
			long64+".b", long253+"a", "10.0.0.300", "10.0.0.010", "10.0.0.1.", "1::2::3", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "::12345",
			"::1.2.3", "::1.2.3.256", ":1::", "fe80::1", "FEBF::1", "b\u00fccher.example")...),
	},
	"network-targets": {
		good: []good{
			{"", func(*Config) {}},
			{"10.0.0.1:1, a.example:65535,[fd00::1]:443", func(c *Config) { c.NetworkTargets = []string{"10.0.0.1:1", "a.example:65535", "[fd00::1]:443"} }},
			{"tcp://a:1,tcp://[fd00::1]:2", func(c *Config) { c.NetworkTargets = []string{"tcp://a:1", "tcp://[fd00::1]:2"} }},
			{"tcp:80,https:443,a.:1,https://a/%20b?c=%zz", func(c *Config) {
				c.NetworkTargets = []string{"tcp:80", "https:443", "a.:1", "https://a/%20b?c=%zz"}
			}},
			{"_db._TCP.A_b.svc.:1,db.2024:5432,https://A_b.EXAMPLE./,[::ffff:10.0.0.1]:1,http://" + long253 + ".:1", func(c *Config) {
				c.NetworkTargets = []string{"_db._TCP.A_b.svc.:1", "db.2024:5432", "https://A_b.EXAMPLE./", "[::ffff:10.0.0.1]:1", "http://" + long253 + ".:1"}
			}},
			{"warn+" + long63 + ":1,warn+http://" + long253 + "./", func(c *Config) {
				c.NetworkTargets = []string{"warn+" + long63 + ":1", "warn+http://" + long253 + "./"}
			}},
			{"https://a,https://a:8443/b?c=d,https://[fd00::1]/,https://10.0.0.1:1", func(c *Config) {
				c.NetworkTargets = []string{"https://a", "https://a:8443/b?c=d", "https://[fd00::1]/", "https://10.0.0.1:1"}
			}},
			{"http://a,http://a:8080/b?c=d,http://[fd00::1]/,http:80", func(c *Config) {
				c.NetworkTargets = []string{"http://a", "http://a:8080/b?c=d", "http://[fd00::1]/", "http:80"}
			}},
			{"https://a#401,http://a:1#204,https://a/v2/#200|401,https://a?b#302|307|308", func(c *Config) {
				c.NetworkTargets = []string{"https://a#401", "http://a:1#204", "https://a/v2/#200|401", "https://a?b#302|307|308"}
			}},
			{"warn+a:1,warn+tcp://[fd00::1]:2,warn+http://a,warn+https://a/#200", func(c *Config) {
				c.NetworkTargets = []string{"warn+a:1", "warn+tcp://[fd00::1]:2", "warn+http://a", "warn+https://a/#200"}
			}},
		},
		bad: slices.Concat([]bad{
			{"b:1,tcp://a", `"tcp://a" ` + wantTarget}, {"warn+", `"warn+" ` + wantTarget},
			{"a..b:1,warn+c:0,d:2,tcp://e-:65536", `"a..b:1" has the host "a..b", which ` + wantDomain + `; "warn+c:0" ` + wantPort +
				`; "tcp://e-:65536" has the host "e-", which ` + wantDomain + "; " + wantPort},
			{"https://a/%zz,b", `"https://a/%zz" is malformed: invalid URL escape "%zz"; "b" ` + wantTarget},
			{"http://a/%", `"http://a/%" is malformed: invalid URL escape "%"`},
			{"[fd00::12345]:1", `"[fd00::12345]:1" is malformed: invalid host: ParseAddr("fd00::12345"): each group must have 4 or less digits (at "12345")`},
			{"https://[1::2::3]/", `"https://[1::2::3]/" is malformed: invalid host: ParseAddr("1::2::3"): multiple :: in address (at ":3")`},
			{"[10.0.0.1]:1", `"[10.0.0.1]:1" is malformed: invalid IP-literal`},
		}, badItems(wantTarget, "a", "a:", "a:http", "a:080", ":80", "a b:1", ".a:1", "fd00::1:80", "tcp://a:1/x", "tcp://-a:1",
			"a:1#200", "tcp://a:1#200", "udp://a:53", "HTTPS://a", "warn+warn+a:1", "warn+udp://a:1", "$(POD_IP):1", "[fe80::1%eth0]:1",
			"https://", "https:///path", "https://a:x/", "https://u:p@a/", "http://u@a/", "https://a b/", "https://a?b\tc",
			"https://a/#b", "https://a/#199", "https://a/#600", "https://a/#200|", "https://a/#2000", "https://a/#200#401"),
			badItems(wantPort, "a:0", "a:65536", "a:100000", "tcp://[::1]:0", "https://a:0", "http://a:65536/b"),
			badHosts(map[string]string{"db..example.com": "db..example.com:5432", "db-.example.com": "tcp://db-.example.com:5432", "a.-b": "a.-b:1",
				"a..": "https://a../", "a-": "http://a-:80/%20", long64: long64 + ":1", long253 + "a": "https://" + long253 + "a",
				"10.0.0.256": "10.0.0.256:1", "fe80::1": "[fe80::1]:1"})),
	},
	"dns-service": {
		good: []good{
			{"", func(c *Config) { c.DNSService = "" }},
			{"dns/rke2-coredns", func(c *Config) { c.DNSService = "dns/rke2-coredns" }},
		},
		bad: badValues(wantService, "kube-dns", "a/b/c", "/kube-dns", "kube-system/", "A/b", "a/"+long64),
	},
	"max-clock-skew": {
		good: []good{
			{"", func(*Config) {}}, {"0s", func(*Config) {}},
			{"1s", func(c *Config) { c.MaxClockSkew = time.Second }},
			{"24h", func(c *Config) { c.MaxClockSkew = 24 * time.Hour }},
		},
		bad: slices.DeleteFunc(badDurations("1s", "24h0m0s", "999ms", "24h1s"), func(b bad) bool { return b.value == "" }),
	},
	"require": {
		good: []good{
			{"", func(*Config) {}}, {"[]", func(*Config) {}},
			{`[{"condition":"NetworkUnavailable=False"},{"allocatable":"nvidia.com/gpu>=8","on":{"gpu":"nvidia"}}]`, func(c *Config) {
				_ = c.Require.Parse(`[{"condition":"NetworkUnavailable=False"},{"allocatable":"nvidia.com/gpu>=8","on":{"gpu":"nvidia"}}]`)
			}},
		},
		bad: []bad{
			{`[{"taint":"a"}]`, wantRequirement("taint a")}, {`[{"condition":"Ready=Yes"}]`, wantRequirement("condition Ready=Yes")},
			{`[{"label":"a"},{"allocatable":"gpu"}]`, wantRequirement("allocatable gpu")},
			{`[{"allocatable":"nvidia.com/gpu>=0"}]`, wantRequirement("allocatable nvidia.com/gpu>=0")},
			{`[{"csiDriver":"a/b"}]`, wantRequirement("csiDriver a/b")}, {`[{"label":"a","csiDriver":"b"}]`, wantRequirement("csiDriver blabel a")},
			{`[{"daemonSet":"aws-node","on":{"a":"b"}}]`, wantRequirement("daemonSet aws-node on a=b")},
			{`[{"label":"a","on":{"b":"c d"}}]`, wantRequirement("label a on b=c d")},
		},
	},
	"taint-key": {
		good: []good{
			{"unverified", func(c *Config) { c.TaintKey = "unverified" }},
			{"startup-taint.cluster-autoscaler.kubernetes.io/A_b.c-1", func(c *Config) { c.TaintKey = "startup-taint.cluster-autoscaler.kubernetes.io/A_b.c-1" }},
			{"a/" + long63, func(c *Config) { c.TaintKey = "a/" + long63 }},
			{"mykubernetes.io/x", func(c *Config) { c.TaintKey = "mykubernetes.io/x" }},
			{"kubernetes.io.example.com/k8s.io", func(c *Config) { c.TaintKey = "kubernetes.io.example.com/k8s.io" }},
			{"ignore-taint.cluster-autoscaler.kubernetes.io/x", func(c *Config) { c.TaintKey = "ignore-taint.cluster-autoscaler.kubernetes.io/x" }},
		},
		bad: append(badValues(wantKey, "", "/a", "a/", "a/b/c", "A/b", "a/-b", "a b", "a~b", long64, long253+"a/a"),
			badValues(wantOwn, "node.kubernetes.io/unschedulable", "karpenter.sh/unregistered", "k8s.io/a", "karpenter.sh",
				"kubernetes.io", "a.k8s.io")...),
	},
	"taint-value": {
		good: []good{{"", func(c *Config) { c.TaintValue = "" }}, {"A_1.b", func(c *Config) { c.TaintValue = "A_1.b" }}},
		bad:  badValues(wantValue, "a b", "-a", "a.", "a/b", long64),
	},
	"taint-effect": {
		good: []good{
			{"NoSchedule", func(*Config) {}},
			{"PreferNoSchedule", func(c *Config) { c.TaintEffect = "PreferNoSchedule" }},
			{"NoExecute", func(c *Config) { c.TaintEffect = "NoExecute" }},
		},
		bad: badValues("must be one of NoSchedule, PreferNoSchedule, NoExecute", "", "noschedule", "NoEvict"),
	},
	"verified-label": {
		good: []good{{"a.b/C", func(c *Config) { c.VerifiedLabel = "a.b/C" }}},
		bad:  append(badValues(wantKey, "", "/a", "a/", "a/b/c", "a=b", long64), badValues(wantOwn, "kubernetes.io/hostname")...),
	},
	"verified-label-value": {
		good: []good{{"", func(c *Config) { c.VerifiedLabelValue = "" }}, {"yes", func(c *Config) { c.VerifiedLabelValue = "yes" }}},
		bad:  badValues(wantValue, "a b", "-a", "a.", "a/b", long64),
	},
	"late-taint-window": {
		good: []good{{"0", func(c *Config) { c.LateTaintWindow = 0 }}, {"1h", func(c *Config) { c.LateTaintWindow = time.Hour }}},
		bad:  badDurations("0s", "1h0m0s", "1h1s"),
	},
	"wait-for-taints": {
		good: []good{
			{"", func(*Config) {}},
			{"node.cilium.io/, example.com/new", func(c *Config) { c.WaitForTaints = []string{"node.cilium.io/", "example.com/new"} }},
			{"node.", func(c *Config) { c.WaitForTaints = []string{"node."} }},
			{"a_,a/b-," + long63, func(c *Config) { c.WaitForTaints = []string{"a_", "a/b-", long63} }},
		},
		bad: []bad{{"ok/,a b", `"a b" ` + wantPrefix}, {"/a", `"/a" ` + wantPrefix}, {"a/b/", `"a/b/" ` + wantPrefix}, {"a=b", `"a=b" ` + wantPrefix},
			{".a", `".a" ` + wantPrefix}, {"-a", `"-a" ` + wantPrefix}, {"a..b/c", `"a..b/c" ` + wantPrefix}, {"a-.b/", `"a-.b/" ` + wantPrefix},
			{"a/_b", `"a/_b" ` + wantPrefix}, {long64, `"` + long64 + `" ` + wantPrefix}, {long253 + "a/", `"` + long253 + `a/" ` + wantPrefix}},
	},
	"also-remove-taints": {
		good: []good{
			{"", func(c *Config) { c.AlsoRemoveTaints = nil }},
			{"a/b, c", func(c *Config) { c.AlsoRemoveTaints = []string{"a/b", "c"} }},
		},
		bad: []bad{{"ok,a b", `"a b" ` + wantKey}, {"a/", `"a/" ` + wantKey}, {"karpenter.sh/unregistered", `"karpenter.sh/unregistered" ` + wantOwn}},
	},
	"condition": {
		good: []good{
			{"auto", func(*Config) {}},
			{" always ", func(c *Config) { c.Condition = "always" }},
		},
		bad: []bad{{"", "must be one of auto, always"}, {"Always", "must be one of auto, always"}, {"true", "must be one of auto, always"}},
	},
	"on-timeout": {
		good: []good{
			{"keep", func(*Config) {}},
			{"taint", func(c *Config) { c.OnTimeout = []string{"taint"} }},
			{"condition", func(c *Config) { c.OnTimeout = []string{"condition"} }},
			{"taint,condition", func(c *Config) { c.OnTimeout = []string{"taint", "condition"} }},
			{"open", func(c *Config) { c.OnTimeout = []string{"open"} }},
			{"open,condition", func(c *Config) { c.OnTimeout = []string{"open", "condition"} }},
			{" condition , taint", func(c *Config) { c.OnTimeout = []string{"condition", "taint"} }},
		},
		bad: []bad{
			{"", "must name at least 1"}, {"Taint", `"Taint" must be one of keep, taint, condition, open`},
			{"taint,delete", `"delete" must be one of keep, taint, condition, open`},
		},
	},
	"failed-taint-key": {
		good: []good{{"a.b/C", func(c *Config) { c.FailedTaintKey = "a.b/C" }}},
		bad:  badValues(wantKey, "", "/a", "a/", "a/b/c", "a=b", long64),
	},
	"condition-type": {
		good: []good{
			{"NetworkingReady", func(c *Config) { c.ConditionType = "NetworkingReady" }},
			{"example.com/Verified", func(c *Config) { c.ConditionType = "example.com/Verified" }},
		},
		bad: append(badValues(wantKey, "", "a b", "a/", long64), badValues(wantCondition, "Ready", "DiskPressure", "NetworkUnavailable")...),
	},
	"recheck-interval": {
		good: []good{
			{"", func(*Config) {}}, {"0", func(*Config) {}}, {"0s", func(*Config) {}},
			{"10s", func(c *Config) { c.RecheckInterval = 10 * time.Second }},
			{"1h", func(c *Config) { c.RecheckInterval = time.Hour }},
		},
		bad: slices.DeleteFunc(badDurations("10s", "1h0m0s", "9s", "1h1s", "1ms"), func(b bad) bool { return b.value == "" }),
	},
	"failure-threshold": {
		good: []good{{"1", func(c *Config) { c.FailureThreshold = 1 }}, {"1000", func(c *Config) { c.FailureThreshold = 1000 }}},
		bad:  badNumbers(1, 1000),
	},
	"recovery-threshold": {
		good: []good{{"1", func(c *Config) { c.RecoveryThreshold = 1 }}, {"1000", func(c *Config) { c.RecoveryThreshold = 1000 }}},
		bad:  badNumbers(1, 1000),
	},
	"enable-connectivity-matrix": { // true needs another setting: see TestChecksPeers
		good: []good{{"false", func(*Config) {}}, {"0", func(*Config) {}}},
		bad:  badValues(wantBool, "", "yes", "2", "on"),
	},
	"peers-service": {
		good: []good{{"a/b", func(c *Config) { c.PeersService = "a/b" }}, {"", func(c *Config) { c.PeersService = "" }}},
		bad:  badValues(wantService, "a", "a/", "/b", "a/b/c", "A/b"),
	},
	"enable-metrics": {
		good: []good{{"false", func(c *Config) { c.EnableMetrics = false }}, {"TRUE", func(*Config) {}}, {"0", func(c *Config) { c.EnableMetrics = false }}},
		bad:  badValues(wantBool, "", "yes", "2", "off"),
	},
	"metrics-port": {
		good: []good{{"1024", func(c *Config) { c.MetricsPort = 1024 }}, {"65535", func(c *Config) { c.MetricsPort = 65535 }}},
		bad:  badNumbers(1024, 65535),
	},
	"metrics-linger": {
		good: []good{{"45s", func(c *Config) { c.MetricsLinger = 45 * time.Second }}, {"1h", func(c *Config) { c.MetricsLinger = time.Hour }}},
		bad:  badDurations("0s", "1h0m0s", "1h1s"),
	},
	"log-level": {
		good: []good{{"error", func(c *Config) { c.LogLevel = "error" }}, {"warn", func(c *Config) { c.LogLevel = "warn" }}, {"debug", func(c *Config) { c.LogLevel = "debug" }}},
		bad:  badValues("must be one of error, warn, info, debug", "", "INFO", "trace", "panic"),
	},
	"log-format": {
		good: []good{{"console", func(c *Config) { c.LogFormat = "console" }}},
		bad:  badValues("must be one of json, console", "", "text", "JSON"),
	},
	"dry-run": {
		good: []good{{"true", func(c *Config) { c.DryRun = true }}, {"false", func(*Config) {}}, {"1", func(c *Config) { c.DryRun = true }}},
		bad:  badValues(wantBool, "", "yes"),
	},
	"once": {
		good: []good{{"true", func(c *Config) { c.Once = true }}, {"false", func(*Config) {}}},
		bad:  badValues(wantBool, "", "yes"),
	},
	"worker": {
		good: []good{{"true", func(c *Config) { c.Worker, c.ClusterCA = true, clusterCA }}, {"false", func(*Config) {}}},
		bad:  badValues(wantBool, "", "yes"),
	},
	"dns-endpoints": {
		good: []good{
			{"", func(*Config) {}},
			{"10.0.0.1:53/node2, [fd00::1]:5353/a.b/dns-tcp,10.0.0.2:53/,10.0.0.3:53", func(c *Config) {
				c.DNSEndpoints = []string{"10.0.0.1:53/node2", "[fd00::1]:5353/a.b/dns-tcp", "10.0.0.2:53/", "10.0.0.3:53"}
			}},
		},
		bad: []bad{
			{"10.0.0.1", `"10.0.0.1" ` + wantEndpoint}, {"a:53/n", `"a:53/n" ` + wantEndpoint}, {"10.0.0.1:0/n", `"10.0.0.1:0/n" ` + wantEndpoint},
			{"10.0.0.1:53/n,fd00::1:53/n", `"fd00::1:53/n" ` + wantEndpoint}, {"10.0.0.1:65536/n", `"10.0.0.1:65536/n" ` + wantEndpoint},
			{"/n", `"/n" ` + wantEndpoint},
		},
	},
	"cluster-domain": {
		good: []good{{"", func(*Config) {}}, {"cluster.local", func(c *Config) { c.ClusterDomain = "cluster.local" }}},
		bad:  badValues(wantSubdomain, "a b", ".local", "Cluster.local"),
	},
}

func TestEverySettingHasCases(t *testing.T) {
	var flags []string
	for _, s := range new(Config).settings() {
		flags = append(flags, s.flag)
		assert.NotEmpty(t, cases[s.flag].good, "good values of --%s", s.flag)
		if s.flag != "kubeconfig" { // any text may be a path
			assert.NotEmpty(t, cases[s.flag].bad, "bad values of --%s", s.flag)
		}
	}
	slices.Sort(flags)
	assert.Equal(t, slices.Sorted(maps.Keys(cases)), flags)
}

func TestDefaults(t *testing.T) {
	got, err := parse(nil)
	require.NoError(t, err)
	assert.Equal(t, defaults, got)
}

func TestGoodValues(t *testing.T) {
	for flag, test := range cases {
		variable := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		for _, value := range test.good {
			t.Run(flag+"="+value.value, func(t *testing.T) {
				want := defaults
				value.set(&want)

				got, err := parse(nil, "--"+flag+"="+value.value)
				require.NoError(t, err)
				assert.Equal(t, want, got, "by flag")

				if flag == "once" || flag == "worker" {
					want = defaults // has no variable
				}
				got, err = parse(map[string]string{variable: value.value})
				require.NoError(t, err)
				assert.Equal(t, want, got, "by environment")
			})
		}
	}
}

func TestFlagOverEnvironment(t *testing.T) {
	for flag, test := range cases {
		if flag == "node-name" {
			continue // must not differ: see TestUsageErrors
		}
		t.Run(flag, func(t *testing.T) {
			variable := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
			ignored := "-no value-"
			for _, value := range test.good {
				want := defaults
				value.set(&want)
				got, err := parse(map[string]string{variable: ignored}, "--"+flag+"="+value.value)
				require.NoError(t, err)
				assert.Equal(t, want, got)
			}
		})
	}
}

func TestBadValues(t *testing.T) {
	for flag, test := range cases {
		variable := strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		for _, value := range test.bad {
			t.Run(flag+"="+value.value, func(t *testing.T) {
				quoted := " " + strconv.Quote(value.value) + ": " + value.message
				_, err := parse(nil, "--"+flag+"="+value.value)
				require.Equal(t, UsageError{"--" + flag + quoted}, err)

				_, err = parse(map[string]string{variable: value.value})
				if flag == "once" || flag == "worker" {
					require.NoError(t, err)
				} else {
					require.Equal(t, UsageError{variable + " (--" + flag + ")" + quoted}, err)
				}
			})
		}
	}
}

const wantOpenAlone = "--on-timeout open excludes taint, --condition always, --once and --worker: pods come, and the checks go on"

func TestUsageErrors(t *testing.T) {
	for name, test := range map[string]struct {
		env  map[string]string
		args []string
		want UsageError
	}{
		"two bad values, one of each kind": {
			env: map[string]string{"LOG_LEVEL": "loud"}, args: []string{"--max-retries", "many"},
			want: UsageError{
				`--max-retries "many": must be a whole number between 0 and 100`,
				`LOG_LEVEL (--log-level) "loud": must be one of error, warn, info, debug`,
			},
		},
		"no node": {
			env:  map[string]string{"NODE_NAME": ""},
			want: UsageError{"--node-name (NODE_NAME) is required: the name of the Node object, in a pod from the field spec.nodeName; only --dry-run works without"},
		},
		"requirements that the release itself writes": {
			args: []string{`--require=[{"label":"node-ready/verified"},{"condition":"Ready=True"},{"condition":"NodeVerified=True"}]`},
			want: UsageError{
				`--require "label node-ready/verified" must not be what the release itself writes: the node would never be released`,
				`--require "condition NodeVerified=True" must not be what the release itself writes: the node would never be released`,
			},
		},
		"two taints of one name": {
			args: []string{"--on-timeout=taint", "--taint-key=a/b", "--failed-taint-key=a/b"},
			want: UsageError{"--failed-taint-key a/b must differ from --taint-key: the agent could not tell the two taints apart"},
		},
		"a worker without a CA, and all that is wrong beside": {
			env:  map[string]string{"CLUSTER_CA": "", "NODE_NAME": "", "DNS_ENDPOINTS": "10.0.0.1"},
			args: []string{"--worker", "--cluster-domain=a b"},
			want: UsageError{
				`DNS_ENDPOINTS (--dns-endpoints) "10.0.0.1": "10.0.0.1" ` + wantEndpoint,
				`--cluster-domain "a b": ` + wantSubdomain,
				"--node-name (NODE_NAME) is required: the name of the Node object, in a pod from the field spec.nodeName; only --dry-run works without",
				"CLUSTER_CA is required with --worker: the cluster's CA certificates in PEM (key ca.crt of the ConfigMap kube-root-ca.crt)",
			},
		},
		"a worker with a CA that is none": {
			env:  map[string]string{"CLUSTER_CA": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
			args: []string{"--worker"},
			want: UsageError{"CLUSTER_CA is required with --worker: the cluster's CA certificates in PEM (key ca.crt of the ConfigMap kube-root-ca.crt)"},
		},
		"a worker's dry run": {
			env: map[string]string{"DRY_RUN": "true"}, args: []string{"--worker"},
			want: UsageError{"--worker and --dry-run exclude each other: the controller releases the node that a worker has verified"},
		},
		"two taints of one name, and rechecks": {
			args: []string{"--recheck-interval=1m", "--taint-key=a/b", "--failed-taint-key=a/b"},
			want: UsageError{"--failed-taint-key a/b must differ from --taint-key: the agent could not tell the two taints apart"},
		},
		"peers of a one-shot agent": {
			env:  map[string]string{"ENABLE_CONNECTIVITY_MATRIX": "true", "RECHECK_INTERVAL": "0"},
			want: UsageError{"--enable-connectivity-matrix needs --recheck-interval: a one-shot agent is gone before others could reach it"},
		},
		"peers that nobody can reach": {
			args: []string{"--enable-connectivity-matrix", "--recheck-interval=1m", "--enable-metrics=false"},
			want: UsageError{"--enable-connectivity-matrix needs --enable-metrics and --peers-service: the agents reach one another at /healthz"},
		},
		"peers without a service": {
			args: []string{"--enable-connectivity-matrix", "--recheck-interval=1m", "--peers-service="},
			want: UsageError{"--enable-connectivity-matrix needs --enable-metrics and --peers-service: the agents reach one another at /healthz"},
		},
		"keep and a mark": {
			env:  map[string]string{"ON_TIMEOUT": "condition,keep"},
			want: UsageError{"--on-timeout condition,keep: keep means no marker, so it must stand alone"},
		},
		"open and keep":             {args: []string{"--on-timeout=open,keep"}, want: UsageError{"--on-timeout open,keep: keep means no marker, so it must stand alone"}},
		"open and taint":            {args: []string{"--on-timeout=open,taint"}, want: UsageError{wantOpenAlone}},
		"open and condition=always": {args: []string{"--on-timeout=open,condition", "--condition=always"}, want: UsageError{wantOpenAlone}},
		"open once":                 {args: []string{"--on-timeout=open", "--once"}, want: UsageError{wantOpenAlone}},
		"open and a worker":         {args: []string{"--on-timeout=open", "--worker"}, want: UsageError{wantOpenAlone}},
		"two taints of one name, and a condition": {
			args: []string{"--on-timeout=condition,taint", "--taint-key=a/b", "--failed-taint-key=a/b"},
			want: UsageError{"--failed-taint-key a/b must differ from --taint-key: the agent could not tell the two taints apart"},
		},
		"another node than the pod's own": {
			env: map[string]string{"NODE_NAME": "node1"}, args: []string{"--node-name=node2"},
			want: UsageError{`--node-name "node2" must be the same as NODE_NAME "node1": the checks run on that node`},
		},
		"unknown flag": {
			args: []string{"--max-retry=1"},
			want: UsageError{"unknown flag: --max-retry (see --help)"},
		},
		"shorthand": {
			args: []string{"-x"},
			want: UsageError{"unknown shorthand flag: 'x' in -x (see --help)"},
		},
		"flag without its value": {
			args: []string{"--metrics-port"},
			want: UsageError{"flag needs an argument: --metrics-port (see --help)"},
		},
		"positional arguments and a bad value": {
			args: []string{"verify", "--once", "now\n", "--log-format=xml"},
			want: UsageError{
				`unexpected argument "verify": there are only flags (see --help)`,
				`unexpected argument "now\n": there are only flags (see --help)`,
				`--log-format "xml": must be one of json, console`,
			},
		},
		"the value of a bool is not taken from the next argument": {
			args: []string{"--dry-run", "false"},
			want: UsageError{`unexpected argument "false": there are only flags (see --help)`},
		},
		"what is not printable is quoted": {
			env:  map[string]string{"TAINT_KEY": "a\x00\"\n"},
			want: UsageError{`TAINT_KEY (--taint-key) "a\x00\"\n": ` + wantKey},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(test.env, test.args...)
			require.Equal(t, test.want, err)
			require.EqualError(t, err, strings.Join(test.want, "\n"))
		})
	}
}

func TestChecksPeers(t *testing.T) {
	got, err := parse(map[string]string{"RECHECK_INTERVAL": "1m"}, "--enable-connectivity-matrix")
	require.NoError(t, err)
	want := defaults
	want.RecheckInterval, want.ChecksPeers = time.Minute, true
	assert.Equal(t, want, got)
}

// Kubelet sets NODE_IP from the pod's status.hostIP.
func TestNodeIP(t *testing.T) {
	const targets = "http://$(NODE_IP):10256/healthz,$(NODE_IP):1,warn+tcp://$(NODE_IP):2"
	for ip, host := range map[string]string{"10.0.0.1": "10.0.0.1", "fd00::1": "[fd00::1]"} {
		got, err := parse(map[string]string{"NODE_IP": ip, "NETWORK_TARGETS": targets})
		require.NoError(t, err)
		assert.Equal(t, []string{"http://" + host + ":10256/healthz", host + ":1", "warn+tcp://" + host + ":2"}, got.NetworkTargets)
		controller, err := ParseController(nil, lookup(map[string]string{"NODE_IP": ip, "NETWORK_TARGETS": targets}), nil)
		require.NoError(t, err)
		assert.Equal(t, got.NetworkTargets, controller.NetworkTargets, "for its control group, on its own node")
	}
	for _, env := range []map[string]string{{"NETWORK_TARGETS": targets}, {"NETWORK_TARGETS": targets, "NODE_IP": ""}} {
		_, err := parse(env)
		require.ErrorContains(t, err, `"http://$(NODE_IP):10256/healthz" needs the node's address in the variable NODE_IP, in a pod from the field status.hostIP`)
	}
	_, err := parse(map[string]string{"NODE_IP": "a b", "NETWORK_TARGETS": targets})
	require.ErrorContains(t, err, `"http://a b:10256/healthz" `+wantTarget)
	_, err = parse(map[string]string{"NODE_IP": ""})
	require.NoError(t, err, "it is not used")
}

// A dns check that can only warn proves nothing.
func TestDNSNeedsANameThatMustResolve(t *testing.T) {
	_, err := parse(map[string]string{"DNS_TEST_DOMAINS": "warn+a.example,warn+10.0.0.1"})
	require.EqualError(t, err, "--dns-test-domains warn+a.example,warn+10.0.0.1 needs a name without warn+: else dns always passes")
}

func TestFlagsWithoutValue(t *testing.T) {
	got, err := parse(map[string]string{"NODE_NAME": ""}, "--dry-run", "--once", "--enable-metrics")
	require.NoError(t, err, "no node is needed in a dry run")
	want := defaults
	want.NodeName, want.DryRun, want.Once = "", true, true
	assert.Equal(t, want, got)
}

// Outside a cluster the checks would prove another machine's network.
func TestOnlyADryRunWorksOutsideACluster(t *testing.T) {
	for _, env := range []map[string]string{nil, {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, {"KUBERNETES_SERVICE_PORT": "443"}} {
		_, err := Parse([]string{"--node-name=node1", "--once"}, lookup(env), nil)
		var problems UsageError
		require.ErrorAs(t, err, &problems)
		require.Len(t, problems, 1)
		assert.Contains(t, problems[0], "not inside a cluster (KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set): only --dry-run works here")
		assert.Contains(t, problems[0], "for a static pod or a host process set both")
	}
	_, err := Parse([]string{"--dry-run"}, lookup(nil), nil)
	require.NoError(t, err)
}

func TestVersionNeedsNothingElse(t *testing.T) {
	got, err := Parse([]string{"--version"}, lookup(map[string]string{"LOG_LEVEL": "loud"}), nil)
	require.NoError(t, err)
	assert.True(t, got.Version)
}

func TestHelp(t *testing.T) {
	for _, flag := range []string{"--help", "-h"} {
		var out bytes.Buffer
		_, err := Parse([]string{flag}, lookup(nil), &out)
		require.Equal(t, pflag.ErrHelp, err)
		for line := range strings.Lines(out.String()) {
			assert.LessOrEqual(t, len(strings.TrimSuffix(line, "\n")), 120, line)
		}
		var flags []string // the text of each flag on one line
		for line := range strings.Lines(out.String()) {
			line = strings.Join(strings.Fields(line), " ")
			if len(flags) > 0 && !strings.HasPrefix(line, "--") && !strings.HasPrefix(line, "-h") {
				flags[len(flags)-1] += " " + line
			} else {
				flags = append(flags, line)
			}
		}
		for _, s := range new(Config).settings() {
			i := slices.IndexFunc(flags, func(text string) bool { return strings.HasPrefix(text, "--"+s.flag+" ") })
			require.GreaterOrEqual(t, i, 0, "--%s", s.flag)
			text := flags[i]
			assert.Contains(t, text, s.help)
			if s.flag == "once" || s.flag == "worker" {
				assert.NotContains(t, text, " ["+strings.ToUpper(s.flag)+"]")
			} else {
				assert.Contains(t, text, " ["+strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))+"]")
			}
			if s.value != "" && s.value != "false" {
				assert.Contains(t, text, "(default "+s.value+")")
			}
		}
		assert.Contains(t, out.String(), "--version")
		assert.Contains(t, out.String(), "Exit codes: 0 verified or shut down, 1 not verified or interrupted (--once, --worker, --dry-run) or a fatal error,\n2 usage.")
	}
}
