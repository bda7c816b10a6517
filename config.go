package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// config is everything that an operator can decide. The defaults are in the table of settings.
type config struct {
	nodeName     string
	podNamespace string
	kubeconfig   string

	initialTimeout   time.Duration
	checkTimeout     time.Duration
	maxRetries       int
	retryBackoff     string
	successThreshold int

	dnsTestDomains []string
	networkTargets []string
	dnsService     string

	taintKey, taintValue, taintEffect string
	verifiedLabel, verifiedLabelValue string
	lateTaintWindow                   time.Duration
	waitForTaints                     []string

	onTimeout, failedTaintKey, conditionType string

	enableMetrics bool
	metricsPort   int
	metricsLinger time.Duration

	logLevel, logFormat string

	dryRun, once, version bool
}

// What ON_TIMEOUT may be.
const (
	onTimeoutKeep      = "keep"
	onTimeoutTaint     = "taint"
	onTimeoutCondition = "condition"
)

// errUsage is a mistake in flags or environment: exit code 2.
type errUsage []string

func (e errUsage) Error() string { return strings.Join(e, "\n") }

// setting is one flag and the environment variable of the same name. Its value stays text until
// both have been read, so that every mistake is reported, not the first one only.
type setting struct {
	flag  string
	kind  string // the placeholder in the help
	help  string
	value string // the default at first
	from  string // where the value came from, as a message names it
	parse func(string) error
}

// settings is the table of all flags, in the order of the help.
func (c *config) settings() []*setting {
	return []*setting{
		{flag: "node-name", kind: "name", help: "the node to verify; required unless --dry-run", parse: text(&c.nodeName, optional(subdomain))},
		{flag: "pod-namespace", kind: "name", value: "kube-system", help: "namespace of this pod", parse: text(&c.podNamespace, label)},
		{flag: "kubeconfig", kind: "path", help: "kubeconfig file; default: the pod's service account, else the usual rules of kubectl", parse: text(&c.kubeconfig, anything)},

		{flag: "initial-timeout", kind: "duration", value: "300s", help: "after which a node that is not verified is reported; the rounds go on", parse: duration(&c.initialTimeout, time.Second, 24*time.Hour)},
		{flag: "check-timeout", kind: "duration", value: "3s", help: "time limit of one attempt, and of one API request", parse: duration(&c.checkTimeout, 100*time.Millisecond, 5*time.Minute)},
		{flag: "max-retries", kind: "number", value: "5", help: "further attempts of a check in one round", parse: number(&c.maxRetries, 0, 100)},
		{flag: "retry-backoff", kind: "kind", value: "exponential", help: "waits between attempts: exponential (1 2 4 8 16 s) or linear (1 2 3 4 5 s)", parse: text(&c.retryBackoff, oneOf("exponential", "linear"))},
		{flag: "success-threshold", kind: "number", value: "1", help: "whole rounds in a row that must pass", parse: number(&c.successThreshold, 1, 1000)},

		{flag: "dns-test-domains", kind: "names", value: "kubernetes.default.svc.cluster.local,google.com", help: "names that must resolve, by commas; an IP address is asked as a name server", parse: list(&c.dnsTestDomains, 1, domainOrIP)},
		{flag: "network-targets", kind: "targets", help: "what else must answer, by commas: host:port or tcp://host:port accepts, https://host/path answers below 400", parse: list(&c.networkTargets, 0, target)},
		{flag: "dns-service", kind: "ns/name", value: "kube-system/kube-dns", help: "service whose endpoints must answer; empty: no such check (managed DNS without pods)", parse: text(&c.dnsService, optional(namespacedName))},

		{flag: "taint-key", kind: "key", value: "node-ready/unverified", help: "the taint to take off, by its key", parse: text(&c.taintKey, qualifiedName)},
		{flag: "taint-value", kind: "value", value: "true", help: "the value that the taint is expected to have", parse: text(&c.taintValue, optional(labelValue))},
		{flag: "taint-effect", kind: "effect", value: "NoSchedule", help: "the effect that the taint is expected to have", parse: text(&c.taintEffect, oneOf("NoSchedule", "PreferNoSchedule", "NoExecute"))},
		{flag: "verified-label", kind: "key", value: "node-ready/verified", help: "the label to put on", parse: text(&c.verifiedLabel, qualifiedName)},
		{flag: "verified-label-value", kind: "value", value: "true", help: "its value", parse: text(&c.verifiedLabelValue, optional(labelValue))},
		{flag: "late-taint-window", kind: "duration", value: "60s", help: "age of a node up to which a taint that is not there yet is waited for", parse: duration(&c.lateTaintWindow, 0, time.Hour)},

		{flag: "wait-for-taints", kind: "prefixes", help: "taints of others, by prefixes of their keys and commas, that must be gone before the checks begin", parse: list(&c.waitForTaints, 0, keyPrefix)},

		{flag: "on-timeout", kind: "policy", value: onTimeoutKeep, help: "what --initial-timeout puts on the node until it is verified: keep (nothing), taint or condition", parse: text(&c.onTimeout, oneOf(onTimeoutKeep, onTimeoutTaint, onTimeoutCondition))},
		{flag: "failed-taint-key", kind: "key", value: "node-ready/failed", help: "key of the taint of --on-timeout=taint, with effect NoSchedule", parse: text(&c.failedTaintKey, qualifiedName)},
		{flag: "condition-type", kind: "type", value: "NodeVerified", help: "type of the condition of --on-timeout=condition", parse: text(&c.conditionType, conditionType)},

		{flag: "enable-metrics", kind: "bool", value: "true", help: "serve /metrics, /healthz and /readyz", parse: boolean(&c.enableMetrics)},
		{flag: "metrics-port", kind: "port", value: "8080", help: "port to serve them on", parse: number(&c.metricsPort, 1, 65535)},
		{flag: "metrics-linger", kind: "duration", value: "0s", help: "how long to go on serving after SIGTERM, once the node is verified", parse: duration(&c.metricsLinger, 0, time.Hour)},

		{flag: "log-level", kind: "level", value: "info", help: "error, warn, info or debug", parse: text(&c.logLevel, oneOf("error", "warn", "info", "debug"))},
		{flag: "log-format", kind: "format", value: "json", help: "json or console", parse: text(&c.logFormat, oneOf("json", "console"))},

		{flag: "dry-run", kind: "bool", value: "false", help: "run every check once, print a report, write nothing", parse: boolean(&c.dryRun)},
		{flag: "once", kind: "bool", value: "false", help: "exit with the verdict, at the latest after --initial-timeout, instead of holding", parse: boolean(&c.once)},
	}
}

func (s *setting) env() string { return strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_")) }

// String, Set and Type make a setting a pflag.Value.
func (s *setting) String() string { return s.value }
func (s *setting) Type() string   { return s.kind }
func (s *setting) Set(value string) error {
	s.value, s.from = value, "--"+s.flag
	return nil
}

// flagOnly tells whether there is no variable: what a person decides at a prompt.
func (s *setting) flagOnly() bool { return s.flag == "once" }

// parseConfig reads flags over environment over defaults. The error is pflag.ErrHelp after the
// help was printed to out, or an errUsage that lists every problem.
func parseConfig(args []string, lookupEnv func(string) (string, bool), out io.Writer) (config, error) {
	var c config
	settings := c.settings()
	flags := pflag.NewFlagSet("kube-node-ready", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard) // problems are returned, and printed in one place
	for _, s := range settings {
		s.from = "--" + s.flag
		help := s.help
		if !s.flagOnly() {
			help += " [" + s.env() + "]"
		}
		f := flags.VarPF(s, s.flag, "", help)
		if s.kind == "bool" {
			f.NoOptDefVal = "true"
		}
	}
	flags.BoolVar(&c.version, "version", false, "print version, commit and build date")

	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			_, _ = fmt.Fprintf(out, usage, flags.FlagUsages())
			return c, err
		}
		return c, errUsage{err.Error() + " (see --help)"}
	}
	if c.version {
		return c, nil
	}
	var problems errUsage
	for _, arg := range flags.Args() {
		problems = append(problems, fmt.Sprintf("unexpected argument %q: there are only flags (see --help)", arg))
	}
	for _, s := range settings {
		if value, ok := lookupEnv(s.env()); ok && !s.flagOnly() && !flags.Changed(s.flag) {
			s.value, s.from = value, s.env()+" (--"+s.flag+")"
		}
		if err := s.parse(strings.TrimSpace(s.value)); err != nil {
			problems = append(problems, fmt.Sprintf("%s %q: %v", s.from, s.value, err))
		}
	}
	if len(problems) == 0 {
		problems = c.validate()
	}
	if len(problems) > 0 {
		return c, problems
	}
	return c, nil
}

const usage = `kube-node-ready verifies a new Kubernetes node from inside the pod network (DNS, API, network,
service discovery), then takes its startup taint off and puts the verified label on.

Usage: kube-node-ready [flags]

%s
A flag is preferred over the environment variable named in brackets, and that over the default.
Exit codes: 0 verified or told to stop, 1 not verified or a fatal error, 2 usage.
`

// validate applies the rules between settings.
func (c *config) validate() errUsage {
	var problems errUsage
	if c.nodeName == "" && !c.dryRun {
		problems = append(problems, `--node-name (NODE_NAME) is required: the name of the Node object, in a pod from the field spec.nodeName; only --dry-run works without`)
	}
	if c.onTimeout == onTimeoutTaint && c.failedTaintKey == c.taintKey {
		problems = append(problems, fmt.Sprintf("--failed-taint-key %s must not be --taint-key: one of them would be taken for the other", c.failedTaintKey))
	}
	if c.checkTimeout > c.initialTimeout {
		problems = append(problems, fmt.Sprintf("--check-timeout %s must not be longer than --initial-timeout %s", c.checkTimeout, c.initialTimeout))
	}
	return problems
}

// What follows are the kinds of values. Each says what is allowed, not what was wrong with a letter.

type rule func(string) error

func text(to *string, allowed rule) func(string) error {
	return func(s string) error {
		*to = s
		return allowed(s)
	}
}

func duration(to *time.Duration, lowest, highest time.Duration) func(string) error {
	return func(s string) (err error) {
		if *to, err = time.ParseDuration(s); err != nil || *to < lowest || *to > highest {
			return fmt.Errorf("must be a duration between %s and %s, such as 500ms, 3s or 5m", lowest, highest)
		}
		return nil
	}
}

func number(to *int, lowest, highest int) func(string) error {
	return func(s string) (err error) {
		if *to, err = strconv.Atoi(s); err != nil || *to < lowest || *to > highest {
			return fmt.Errorf("must be a whole number between %d and %d", lowest, highest)
		}
		return nil
	}
}

func boolean(to *bool) func(string) error {
	return func(s string) (err error) {
		if *to, err = strconv.ParseBool(s); err != nil {
			return errors.New("must be true or false")
		}
		return nil
	}
}

func list(to *[]string, atLeast int, each rule) func(string) error {
	return func(s string) error {
		*to = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			if err := each(item); err != nil {
				return fmt.Errorf("%q %w", item, err)
			}
			*to = append(*to, item)
		}
		if len(*to) < atLeast {
			return fmt.Errorf("must name at least %d", atLeast)
		}
		return nil
	}
}

func anything(string) error { return nil }

func optional(r rule) rule {
	return func(s string) error {
		if s == "" {
			return nil
		}
		return r(s)
	}
}

func oneOf(values ...string) rule {
	return func(s string) error {
		if !slices.Contains(values, s) {
			return fmt.Errorf("must be one of %s", strings.Join(values, ", "))
		}
		return nil
	}
}

func matching(pattern string, maxLength int, what string) rule {
	exp := regexp.MustCompile("^(" + pattern + ")$")
	return func(s string) error {
		if len(s) > maxLength || !exp.MatchString(s) {
			return errors.New("must be " + what)
		}
		return nil
	}
}

// The syntax of names is that of k8s.io/apimachinery/pkg/util/validation: RFC 1123 labels and
// subdomains, and qualified names.
const (
	labelPattern     = `[a-z0-9]([-a-z0-9]*[a-z0-9])?`
	subdomainPattern = labelPattern + `(\.` + labelPattern + `)*`
	valuePattern     = `[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?`
)

func label(s string) error {
	return matching(labelPattern, 63, "a name of lower-case letters, digits and dashes, at most 63 long")(s)
}

func subdomain(s string) error {
	return matching(subdomainPattern, 253, "a name of lower-case letters, digits, dashes and dots, at most 253 long")(s)
}

func labelValue(s string) error {
	return matching(valuePattern, 63, "letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit, at most 63 long")(s)
}

func qualifiedName(s string) error {
	prefix, name, found := strings.Cut(s, "/")
	if !found {
		prefix, name = "", s
	}
	if (found && subdomain(prefix) != nil) || labelValue(name) != nil {
		return errors.New("must be a key such as example.com/name: an optional DNS name and a slash, then at most 63 letters, digits, dashes, dots and underscores")
	}
	return nil
}

// keyPrefix is the beginning of a qualified name, such as "node.cilium.io/".
func keyPrefix(s string) error {
	if qualifiedName(s) == nil || qualifiedName(s+"a") == nil {
		return nil
	}
	return errors.New("must be a taint's key or the beginning of one, such as node.cilium.io/")
}

func conditionType(s string) error {
	switch s {
	case "Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable":
		return errors.New("must not be a condition that kubelet or a network plugin owns")
	}
	return qualifiedName(s)
}

func namespacedName(s string) error {
	namespace, name, ok := strings.Cut(s, "/")
	if !ok || label(namespace) != nil || label(name) != nil {
		return errors.New("must be namespace/name of a service, or empty")
	}
	return nil
}

func domainOrIP(s string) error {
	if _, err := netip.ParseAddr(s); err == nil {
		return nil
	}
	// Underscores are no part of host names but of many a DNS name.
	return matching(`([A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.)*[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?\.?`,
		254, "a DNS name or an IP address")(s)
}

func hostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if n, e := strconv.Atoi(port); err != nil || e != nil || n < 1 || n > 65535 || domainOrIP(host) != nil {
		return errors.New("must be host:port, or [v6 address]:port, with a port between 1 and 65535")
	}
	return nil
}

func target(s string) error {
	scheme, rest, found := strings.Cut(s, "://")
	switch {
	case !found:
		return hostPort(s)
	case scheme == "tcp":
		return hostPort(rest)
	case scheme == "https":
		u, err := url.Parse(s)
		if err != nil || u.User != nil || u.Fragment != "" || hostPort(net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))) != nil {
			return errors.New("must be https://host/path or https://host:port/path, without user, fragment or spaces")
		}
		return nil
	default:
		return errors.New("must be host:port, tcp://host:port or https://host/path: there are no other schemes")
	}
}
