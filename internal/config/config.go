// Package config reads every flag and environment variable, and reports every mistake in them at once.
package config

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/imunhatep/kube-node-ready/checks"
	"github.com/imunhatep/kube-node-ready/internal/requirement"
	"github.com/imunhatep/kube-node-ready/nodepatch"
)

// Config is everything that an operator can decide. The defaults are in the table of settings.
type Config struct {
	NodeName, PodNamespace, Kubeconfig string

	InitialTimeout, CheckTimeout time.Duration
	MaxRetries                   int
	RetryBackoff                 string

	DNSTestDomains, NetworkTargets []string
	DNSService                     string
	MaxClockSkew                   time.Duration // 0: no difference of the clocks is a failure
	Require                        requirement.List

	TaintKey, TaintValue, TaintEffect string
	VerifiedLabel, VerifiedLabelValue string
	LateTaintWindow                   time.Duration
	WaitForTaints, AlsoRemoveTaints   []string

	OnTimeout                                []string
	FailedTaintKey, ConditionType, Condition string

	RecheckInterval                     time.Duration // 0: the agent is one-shot
	FailureThreshold, RecoveryThreshold int
	ChecksPeers                         bool
	PeersService                        string // namespace/name

	EnableMetrics bool
	MetricsPort   int
	MetricsLinger time.Duration

	LogLevel, LogFormat           string
	DryRun, Once, Worker, Version bool

	// With Worker:
	DNSEndpoints  []string // address:port/node of the ready endpoints of DNSService, see checks.ParseEndpoints
	ClusterDomain string   // "": that of resolv.conf
	ClusterCA     string   // PEM; "" without Worker
	VerdictKey    string   // what /readyz says beside "verified", so that the controller knows who answers
}

// Keys returns the taints and the label of nodes.
func (c *Config) Keys() nodepatch.Keys {
	return nodepatch.Keys{TaintKey: c.TaintKey, FailedTaintKey: c.FailedTaintKey, AlsoRemove: c.AlsoRemoveTaints,
		Label: c.VerifiedLabel, LabelValue: c.VerifiedLabelValue, WaitFor: c.WaitForTaints}
}

// Values of ON_TIMEOUT.
const (
	OnTimeoutKeep      = "keep"
	OnTimeoutTaint     = "taint"
	OnTimeoutCondition = "condition"
	OnTimeoutOpen      = "open"
)

// BackoffLinear is the value of RETRY_BACKOFF that is not the default.
const BackoffLinear = "linear"

// ConditionAlways is the value of CONDITION that is not the default.
const ConditionAlways = "always"

// ShowsEachVerdict reports whether the condition is to show each verdict, on every node.
func (c Config) ShowsEachVerdict() bool { return c.Condition == ConditionAlways }

// UsageError lists every mistake in flags and environment.
type UsageError []string

func (e UsageError) Error() string { return strings.Join(e, "\n") }

// The exit codes: a contract with kubelet, jobs and scripts.
const (
	ExitOK    = 0 // verified, or shut down
	ExitError = 1 // not verified or interrupted (--once, --worker, --dry-run), or a fatal error
	ExitUsage = 2
)

// Program is what a program says about itself.
type Program struct{ Name, Version, Commit, BuildDate string }

// Ends reports whether the program ends before it starts anything, and its exit code: it was asked for its help or its version,
// or err, of Parse or ParseController, lists mistakes.
func (p Program) Ends(askedVersion bool, err error, stdout, stderr io.Writer) (code int, ends bool) {
	var mistakes UsageError
	errors.As(err, &mistakes)
	for _, mistake := range mistakes {
		_, _ = fmt.Fprintf(stderr, "%s: %s\n", p.Name, mistake)
	}
	switch {
	case len(mistakes) > 0:
		return ExitUsage, true
	case errors.Is(err, pflag.ErrHelp):
	case askedVersion:
		_, _ = fmt.Fprintf(stdout, "%s %s (commit %s, built %s, %s)\n", p.Name, p.Version, p.Commit, p.BuildDate, runtime.Version())
	}
	return ExitOK, askedVersion || errors.Is(err, pflag.ErrHelp)
}

// setting is one flag and the environment variable of the same name. Its value stays text until both have been read, so that
// every mistake is reported, not only the first.
type setting struct {
	flag  string
	kind  string // the placeholder in the help
	help  string
	value string // the default at first
	parse rule
}

// aDay is the longest of most durations. Its twin is aDay in chart/values.definitions.yaml: the schema must not accept more
// (chart_test.go).
const aDay = 24 * time.Hour

// settings is the table of all flags, in the order of the help.
func (c *Config) settings() []*setting {
	return slices.Concat(c.checkSettings(), c.gateSettings(), c.runSettings())
}

// checkSettings are those of the process's place and of the checks.
func (c *Config) checkSettings() []*setting {
	return []*setting{
		{flag: "node-name", kind: "name", parse: text(&c.NodeName, optional(subdomain)),
			help: "node to verify; required unless --dry-run"},
		{flag: "pod-namespace", kind: "name", value: "kube-system", parse: text(&c.PodNamespace, label), help: "namespace of this pod"},
		{flag: "kubeconfig", kind: "path", parse: text(&c.Kubeconfig, anything),
			help: "kubeconfig file; default: the pod's service account, else the usual rules of kubectl"},

		{flag: "initial-timeout", kind: "duration", value: "300s", parse: duration(&c.InitialTimeout, time.Second, aDay),
			help: "when to report a node that is not verified; the rounds go on"},
		{flag: "check-timeout", kind: "duration", value: "3s", parse: duration(&c.CheckTimeout, 100*time.Millisecond, 5*time.Minute),
			help: "time limit of one attempt, and of one API request"},
		{flag: "max-retries", kind: "number", value: "5", parse: number(&c.MaxRetries, 0, 100),
			help: "retries of a check in one round"},
		{flag: "retry-backoff", kind: "kind", value: "exponential", parse: text(&c.RetryBackoff, oneOf("exponential", BackoffLinear)),
			help: "wait between attempts: exponential (1 2 4 8 16 s) or linear (1 2 3 4 5 s)"},

		{flag: "dns-test-domains", kind: "names", value: "kubernetes.default.svc.cluster.local,google.com",
			parse: list(&c.DNSTestDomains, 1, mayWarn(domainOrIP)),
			help: "comma-separated names that must resolve; warn+NAME: a failure is only a warning; an IP address is queried as a name " +
				"server"},
		{flag: "network-targets", kind: "targets", parse: list(&c.NetworkTargets, 0, mayWarn(target)),
			help: "comma-separated targets beside the API server: host:port or tcp://host:port must accept, http(s)://host/path must " +
				"answer with a status below 400, or one listed at its end (#200|401); $(NODE_IP) is this node; warn+TARGET: a failure is " +
				"only a warning"},
		{flag: "dns-service", kind: "ns/name", value: "kube-system/kube-dns", parse: text(&c.DNSService, optional(namespacedName)),
			help: "service whose endpoints must answer; empty skips the service check (managed DNS without pods)"},
		{flag: "max-clock-skew", kind: "duration", parse: off(duration(&c.MaxClockSkew, time.Second, aDay)),
			help: "the api check fails if this node's clock and the API server's differ by more than this; empty or 0: never (above " +
				"10s it warns)"},
		{flag: "require", kind: "list", parse: c.Require.Parse,
			help: "JSON list of what the Node must show: condition, allocatable, csiDriver, label, daemonSet; empty: nothing"},
	}
}

// gateSettings are those of the way to the release, and of a release that does not come.
func (c *Config) gateSettings() []*setting {
	return []*setting{
		{flag: "taint-key", kind: "key", value: "node-ready/unverified", parse: text(&c.TaintKey, ownKey),
			help: "key of the startup taint, which the release removes"},
		{flag: "taint-value", kind: "value", value: "true", parse: text(&c.TaintValue, optional(labelValue)),
			help: "value that the chart's policy gives the startup taint; the agent only validates this value"},
		{flag: "taint-effect", kind: "effect", value: "NoSchedule",
			parse: text(&c.TaintEffect, oneOf("NoSchedule", "PreferNoSchedule", "NoExecute")),
			help:  "effect of the startup taint; with another effect it is removed with a warning"},
		{flag: "verified-label", kind: "key", value: "node-ready/verified", parse: text(&c.VerifiedLabel, ownKey),
			help: "label that the release adds"},
		{flag: "verified-label-value", kind: "value", value: "true", parse: text(&c.VerifiedLabelValue, optional(labelValue)),
			help: "value of that label"},
		{flag: "late-taint-window", kind: "duration", value: "60s", parse: duration(&c.LateTaintWindow, 0, time.Hour),
			help: "the agent waits for a missing startup taint until the node is this old"},
		{flag: "wait-for-taints", kind: "prefixes", parse: list(&c.WaitForTaints, 0, keyPrefix),
			help: "comma-separated taint-key prefixes; the checks start when no such taint is left, and never before " +
				"karpenter.sh/unregistered is gone"},
		{flag: "also-remove-taints", kind: "keys", value: "node-ready/failed", parse: list(&c.AlsoRemoveTaints, 0, ownKey),
			help: "comma-separated keys of former startup and failed taints; the release removes them too, and nothing adds them"},

		{flag: "on-timeout", kind: "policies", value: OnTimeoutKeep,
			parse: list(&c.OnTimeout, 1, oneOf(OnTimeoutKeep, OnTimeoutTaint, OnTimeoutCondition, OnTimeoutOpen)),
			help:  "if not verified in --initial-timeout: keep, taint, condition, open, or a pair with condition"},
		{flag: "failed-taint-key", kind: "key", value: "node-ready/failed", parse: text(&c.FailedTaintKey, ownKey),
			help: "key of the NoSchedule taint that --on-timeout taint adds"},
		{flag: "condition-type", kind: "type", value: "NodeVerified", parse: text(&c.ConditionType, conditionType),
			help: "type of the condition that --on-timeout condition writes"},
		{flag: "condition", kind: "when", value: "auto", parse: text(&c.Condition, oneOf("auto", ConditionAlways)),
			help: "when to write that condition: auto (for --on-timeout and rechecks) or always (for each verdict, on every node; True " +
				"before the release)"},
	}
}

// runSettings are those of the time after the release, and of the process.
func (c *Config) runSettings() []*setting {
	return []*setting{
		{flag: "recheck-interval", kind: "duration", parse: off(duration(&c.RecheckInterval, 10*time.Second, time.Hour)),
			help: "how often to check a released node again; empty or 0: never"},
		{flag: "failure-threshold", kind: "number", value: "3", parse: number(&c.FailureThreshold, 1, 1000),
			help: "failed rechecks in a row after which the condition is False"},
		{flag: "recovery-threshold", kind: "number", value: "3", parse: number(&c.RecoveryThreshold, 1, 1000),
			help: "passed rechecks in a row after which it is True again"},
		{flag: "enable-connectivity-matrix", kind: "bool", value: "false", parse: boolean(&c.ChecksPeers),
			help: "with each recheck also connect to agents on other nodes"},
		{flag: "peers-service", kind: "ns/name", value: "kube-system/kube-node-ready-peers",
			parse: text(&c.PeersService, optional(namespacedName)),
			help:  "service of the agents that --enable-connectivity-matrix connects to"},

		{flag: "enable-metrics", kind: "bool", value: "true", parse: boolean(&c.EnableMetrics),
			help: "serve /metrics, /healthz and /readyz"},
		{flag: "metrics-port", kind: "port", value: "8080", parse: number(&c.MetricsPort, 1024, 65535),
			help: "port of the metrics server"},
		{flag: "metrics-linger", kind: "duration", value: "0s", parse: duration(&c.MetricsLinger, 0, time.Hour),
			help: "how long a verified node's agent keeps serving metrics after SIGTERM"},

		{flag: "log-level", kind: "level", value: "info", parse: text(&c.LogLevel, oneOf("error", "warn", "info", "debug")),
			help: "error, warn, info or debug"},
		{flag: "log-format", kind: "format", value: "json", parse: text(&c.LogFormat, oneOf("json", "console")),
			help: "json or console"},

		{flag: "dry-run", kind: "bool", value: "false", parse: boolean(&c.DryRun),
			help: "run every check once, print a report, write nothing"},
		{flag: "once", kind: "bool", value: "false", parse: boolean(&c.Once),
			help: "exit with the verdict, at the latest after --initial-timeout"},
		{flag: "worker", kind: "bool", value: "false", parse: boolean(&c.Worker),
			help: "run one round without a credential, for the controller, and serve its verdict at /readyz; needs the cluster's CA " +
				"(PEM) in the variable CLUSTER_CA"},
		{flag: "dns-endpoints", kind: "endpoints", parse: list(&c.DNSEndpoints, 0, endpoint),
			help: "with --worker: comma-separated ready endpoints of --dns-service, address:port/node"},
		{flag: "cluster-domain", kind: "domain", parse: text(&c.ClusterDomain, optional(subdomain)),
			help: "the cluster's DNS domain; default: the one in /etc/resolv.conf"},
	}
}

func (s *setting) env() string { return strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_")) }

// String, Set and Type make a setting a pflag.Value.
func (s *setting) String() string { return s.value }
func (s *setting) Type() string   { return s.kind }
func (s *setting) Set(value string) error {
	s.value = value
	return nil
}

// flagOnly reports whether the setting has no variable: it is decided at a prompt.
func (s *setting) flagOnly() bool {
	return s.flag == "once" || s.flag == "worker" || s.flag == "remove-failed-taints"
}

// Parse reads flags over environment over defaults. The error is pflag.ErrHelp after the help was
// printed to out, or a UsageError that lists every mistake.
func Parse(args []string, lookupEnv func(string) (string, bool), out io.Writer) (Config, error) {
	var c Config
	problems, err := read("kube-node-ready", usage, c.settings(), &c.Version, args, lookupEnv, out)
	if err != nil || c.Version {
		return c, err
	}
	if c.Worker {
		c.ClusterCA, _ = lookupEnv("CLUSTER_CA")
		c.VerdictKey, _ = lookupEnv("VERDICT_KEY")
	}
	if problems = append(problems, c.validate(lookupEnv, len(problems) == 0)...); len(problems) > 0 {
		return c, problems
	}
	return c, nil
}

// read reads the settings of a program, unless only its version is asked for. problems are mistakes in values.
func read(program, usage string, settings []*setting, version *bool, args []string, lookupEnv func(string) (string, bool),
	out io.Writer) (problems UsageError, err error) {
	flags := pflag.NewFlagSet(program, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard) // mistakes are returned, and printed in one place
	for _, s := range settings {
		help := s.help
		if !s.flagOnly() {
			help += " [" + s.env() + "]"
		}
		f := flags.VarPF(s, s.flag, "", help)
		if s.kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	flags.BoolVar(version, "version", false, "print version, commit and build date")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			_, _ = fmt.Fprintf(out, usage, flags.FlagUsagesWrapped(120))
			return nil, err
		}
		return nil, UsageError{err.Error() + " (see --help)"}
	}
	if *version {
		return nil, nil
	}
	for _, arg := range flags.Args() {
		problems = append(problems, fmt.Sprintf("unexpected argument %q: there are only flags (see --help)", arg))
	}
	ip, _ := lookupEnv("NODE_IP")                                             // from kubelet
	host := cmp.Or(strings.TrimSuffix(net.JoinHostPort(ip, ""), ":"), nodeIP) // with the brackets of IPv6
	for _, s := range settings {
		from := "--" + s.flag
		if value, ok := lookupEnv(s.env()); ok && !s.flagOnly() && !flags.Changed(s.flag) {
			s.value, from = value, s.env()+" (--"+s.flag+")"
		}
		if err := s.parse(strings.ReplaceAll(strings.TrimSpace(s.value), nodeIP, host)); err != nil {
			problems = append(problems, fmt.Sprintf("%s %q: %s", from, s.value, strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	return problems, nil
}

const usage = `kube-node-ready verifies a new Kubernetes node from inside the pod network (DNS, API, network, service discovery).
Then it releases the node: it removes the startup taint and adds the verified label.

Usage: kube-node-ready [flags]

%s
A flag overrides the environment variable named in brackets, which overrides the default.
Exit codes: 0 verified or shut down, 1 not verified or interrupted (--once, --worker, --dry-run) or a fatal error,
2 usage.
`

// validate names what the run cannot do without, and applies the rules between settings, if each of them could be parsed.
func (c *Config) validate(lookupEnv func(string) (string, bool), parsed bool) (problems UsageError) {
	refuse := func(isMistake bool, format string, args ...any) {
		if isMistake {
			problems = append(problems, fmt.Sprintf(format, args...))
		}
	}
	refuse(c.NodeName == "" && !c.DryRun,
		"--node-name (NODE_NAME) is required: the name of the Node object, in a pod from the field spec.nodeName; "+
			"only --dry-run works without")
	host, _ := lookupEnv("KUBERNETES_SERVICE_HOST")
	port, _ := lookupEnv("KUBERNETES_SERVICE_PORT")
	refuse((host == "" || port == "") && !c.DryRun,
		"not inside a cluster (KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set): only --dry-run works here, because "+
			"only checks on a node may release it; for a static pod or a host process set both to the address of the kubernetes service")
	refuse(c.Worker && !x509.NewCertPool().AppendCertsFromPEM([]byte(c.ClusterCA)),
		"CLUSTER_CA is required with --worker: the cluster's CA certificates in PEM (key ca.crt of the ConfigMap kube-root-ca.crt)")
	if !parsed {
		return problems
	}
	name, _ := lookupEnv("NODE_NAME")
	refuse(name != "" && strings.TrimSpace(name) != c.NodeName,
		"--node-name %q must be the same as NODE_NAME %q: the checks run on that node", c.NodeName, name)
	refuse(c.Worker && c.DryRun,
		"--worker and --dry-run exclude each other: the controller releases the node that a worker has verified")
	has := func(marker string) bool { return slices.Contains(c.OnTimeout, marker) }
	refuse(has(OnTimeoutKeep) && len(c.OnTimeout) > 1,
		"--on-timeout %s: keep means no marker, so it must stand alone", strings.Join(c.OnTimeout, ","))
	refuse(has(OnTimeoutOpen) && (has(OnTimeoutTaint) || c.ShowsEachVerdict() || c.Once || c.Worker),
		"--on-timeout open excludes taint, --condition always, --once and --worker: pods come, and the checks go on")
	refuse((has(OnTimeoutTaint) || c.RecheckInterval > 0) && c.FailedTaintKey == c.TaintKey,
		"--failed-taint-key %s must differ from --taint-key: the agent could not tell the two taints apart", c.FailedTaintKey)
	mustResolve := func(name string) bool { return !strings.HasPrefix(name, checks.WarnPrefix) }
	refuse(!slices.ContainsFunc(c.DNSTestDomains, mustResolve),
		"--dns-test-domains %s needs a name without warn+: else dns always passes", strings.Join(c.DNSTestDomains, ","))
	refuse(c.ChecksPeers && c.RecheckInterval == 0,
		"--enable-connectivity-matrix needs --recheck-interval: a one-shot agent is gone before others could reach it")
	refuse(c.ChecksPeers && (!c.EnableMetrics || c.PeersService == ""),
		"--enable-connectivity-matrix needs --enable-metrics and --peers-service: the agents reach one another at /healthz")
	for _, e := range c.Require {
		refuse(e.Name == c.ConditionType || e.Name == c.VerifiedLabel,
			"--require %q must not be what the release itself writes: the node would never be released", e)
	}
	return problems
}
