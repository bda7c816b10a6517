package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/imunhatep/kube-node-ready/checks"
)

// A rule is one kind of value. Its error says what is allowed.
type rule func(string) error

func text(to *string, allowed rule) rule {
	return func(s string) error {
		*to = s
		return allowed(s)
	}
}

func duration(to *time.Duration, lowest, highest time.Duration) rule {
	return func(s string) (err error) {
		*to, err = time.ParseDuration(s)
		what := fmt.Sprintf("a duration between %s and %s, such as 500ms, 3s or 5m", lowest, highest)
		return must(what, err == nil && *to >= lowest && *to <= highest)
	}
}

func number(to *int, lowest, highest int) rule {
	return func(s string) (err error) {
		*to, err = strconv.Atoi(s)
		return must(fmt.Sprintf("a whole number between %d and %d", lowest, highest), err == nil && *to >= lowest && *to <= highest)
	}
}

func boolean(to *bool) rule {
	return func(s string) (err error) {
		*to, err = strconv.ParseBool(s)
		return must("true or false", err == nil)
	}
}

func list(to *[]string, atLeast int, each rule) rule {
	return func(s string) (mistakes error) {
		*to = nil
		for item := range strings.SplitSeq(s, ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			if err := each(item); err != nil {
				mistakes = errors.Join(mistakes, fmt.Errorf("%q %w", item, err))
			}
			*to = append(*to, item)
		}
		if len(*to) < atLeast {
			return fmt.Errorf("must name at least %d", atLeast)
		}
		return mistakes
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

// off takes 0 and the empty value too.
func off(r rule) rule {
	return func(s string) error {
		if d, err := time.ParseDuration(s); s == "" || (err == nil && d == 0) {
			return nil
		}
		return r(s)
	}
}

func oneOf(values ...string) rule {
	return func(s string) error { return must("one of "+strings.Join(values, ", "), slices.Contains(values, s)) }
}

// must returns an error that says what is allowed, unless ok.
func must(what string, ok bool) error {
	if ok {
		return nil
	}
	return errors.New("must be " + what)
}

func label(s string) error {
	return must("a name of lower-case letters, digits and dashes, at most 63 long", len(validation.IsDNS1123Label(s)) == 0)
}

func subdomain(s string) error {
	const what = "a name of lower-case letters, digits, dashes and dots, at most 253 long"
	return must(what, len(validation.IsDNS1123Subdomain(s)) == 0)
}

func labelValue(s string) error {
	const what = "letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit, at most 63 long"
	return must(what, len(validation.IsValidLabelValue(s)) == 0)
}

func qualifiedName(s string) error {
	return must("a key such as example.com/name: an optional DNS name and a slash, "+
		"then at most 63 letters, digits, dashes, dots and underscores", len(validation.IsQualifiedName(s)) == 0)
}

// ownKey is a key that no one else writes: never one of Kubernetes, a cloud or Karpenter.
func ownKey(s string) error {
	prefix, _, _ := strings.Cut(s, "/")
	allowed := []string{"startup-taint.cluster-autoscaler.kubernetes.io", "ignore-taint.cluster-autoscaler.kubernetes.io"}
	isUnder := func(domain string) bool { return strings.HasSuffix("."+prefix, "."+domain) }
	if !slices.Contains(allowed, prefix) && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io", "karpenter.sh"}, isUnder) {
		return errors.New("must not be a key under kubernetes.io, k8s.io or karpenter.sh: others own those " +
			"(allowed: startup-taint.cluster-autoscaler.kubernetes.io/)")
	}
	return qualifiedName(s)
}

// keyPrefix is the beginning of a qualified name, such as "node.cilium.io/".
func keyPrefix(s string) error {
	const what = "a taint's key or the beginning of one, such as node.cilium.io/"
	return must(what, qualifiedName(s) == nil || qualifiedName(s+"a") == nil)
}

func conditionType(s string) error {
	if slices.Contains([]string{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable"}, s) {
		return errors.New("must not be a condition that kubelet or a network plugin owns")
	}
	return qualifiedName(s)
}

func namespacedName(s string) error {
	namespace, name, ok := strings.Cut(s, "/")
	return must("namespace/name of a service, or empty", ok && label(namespace) == nil && label(name) == nil)
}

// The forms of a target's parts. The chart's schema refuses exactly what the agent refuses (chart_test.go): else every new node
// would stay locked.
const hostForm = `([A-Za-z0-9_][-A-Za-z0-9_.]*|\[[0-9A-Fa-f:.]+\])`
const portForm = `:(0|[1-9][0-9]*)`

// pathForm is a path or a query, and the statuses that pass.
const pathForm = `([/?][^\x00-\x20,#\x7f]*)?(#[2-5][0-9]{2}(\|[2-5][0-9]{2})*)?`

func hasForm(s, form string) bool { return regexp.MustCompile(`^(` + form + `)$`).MatchString(s) }

// domainOrIP allows hosts that can answer: names that libc and DNS accept, and addresses that need no zone.
// Four numbers are meant as an address.
func domainOrIP(s string) error {
	addr, err := netip.ParseAddr(s)
	isIP := err == nil && addr.Zone() == "" && (addr.Unmap().Is4() || !addr.IsLinkLocalUnicast())
	isLong := func(label string) bool { return len(label) > 63 }
	isName := hasForm(s, `([A-Za-z0-9_]([-A-Za-z0-9_]*[A-Za-z0-9_])?(\.|$))+`) && !slices.ContainsFunc(strings.Split(s, "."), isLong)
	return must("an IP address or a DNS name: labels of at most 63 letters, digits, underscores and inner dashes, 253 in all",
		isIP || isName && !hasForm(s, `([0-9]+\.){3}[0-9]+\.?`) && len(strings.TrimSuffix(s, ".")) <= 253)
}

// nodeIP stands for the node's address in a target.
const nodeIP = "$(NODE_IP)"

// mayWarn also allows a name or target whose failure only warns.
func mayWarn(r rule) rule {
	return func(s string) error { return r(strings.TrimPrefix(s, checks.WarnPrefix)) }
}

func endpoint(s string) error {
	_, err := checks.ParseEndpoints([]string{s})
	return must("address:port/node, or [v6 address]:port/node, with a port between 1 and 65535", err == nil)
}

func target(s string) error {
	if strings.Contains(s, nodeIP) {
		return errors.New("needs the node's address in the variable NODE_IP, in a pod from the field status.hostIP")
	}
	const what = "host:port, tcp://host:port, http(s)://host/path or http(s)://host:port/path, with an IPv6 address in brackets, " +
		"and without user or spaces; the fragment of a URL lists the statuses that pass: #200|401"
	if err := must(what, hasForm(s, `(tcp://)?`+hostForm+portForm+`|https?://`+hostForm+`(`+portForm+`)?`+pathForm)); err != nil {
		return err
	}
	t := checks.ParseTarget(s)
	parsed, err := url.Parse(cmp.Or(t.URL, "tcp://"+t.Address))
	if err != nil {
		return fmt.Errorf("is malformed: %w", errors.Unwrap(err))
	}
	hostErr := domainOrIP(parsed.Hostname())
	if hostErr != nil {
		hostErr = fmt.Errorf("has the host %q, which %w", parsed.Hostname(), hostErr)
	}
	port, err := strconv.ParseUint(cmp.Or(parsed.Port(), "443"), 10, 16)
	return errors.Join(hostErr, must("a target with a port between 1 and 65535", err == nil && port > 0))
}
