package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// A rule is one kind of value. Its error says what is allowed.
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

// must returns an error that says what is allowed, unless apimachinery's validation found no problem.
func must(what string, problems []string) error {
	if len(problems) > 0 {
		return errors.New("must be " + what)
	}
	return nil
}

func label(s string) error {
	return must("a name of lower-case letters, digits and dashes, at most 63 long", validation.IsDNS1123Label(s))
}

func subdomain(s string) error {
	return must("a name of lower-case letters, digits, dashes and dots, at most 253 long", validation.IsDNS1123Subdomain(s))
}

func labelValue(s string) error {
	return must("letters, digits, dashes, dots and underscores, beginning and ending with a letter or digit, at most 63 long",
		validation.IsValidLabelValue(s))
}

func qualifiedName(s string) error {
	return must("a key such as example.com/name: an optional DNS name and a slash, "+
		"then at most 63 letters, digits, dashes, dots and underscores", validation.IsQualifiedName(s))
}

// ownKey is a key that no one else writes: never one of Kubernetes, a cloud or Karpenter.
func ownKey(s string) error {
	prefix, _, _ := strings.Cut(s, "/")
	if prefix == "startup-taint.cluster-autoscaler.kubernetes.io" || prefix == "ignore-taint.cluster-autoscaler.kubernetes.io" {
		return qualifiedName(s)
	}
	for _, foreign := range []string{"kubernetes.io", "k8s.io", "karpenter.sh"} {
		if prefix == foreign || strings.HasSuffix(prefix, "."+foreign) {
			return errors.New("must not be a key under kubernetes.io, k8s.io or karpenter.sh: others own those " +
				"(allowed: startup-taint.cluster-autoscaler.kubernetes.io/)")
		}
	}
	return qualifiedName(s)
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
	// apimachinery refuses underscores, which host names do not have and many DNS names do.
	const part = `[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?`
	if len(s) > 254 || !regexp.MustCompile(`^(`+part+`\.)*`+part+`\.?$`).MatchString(s) {
		return errors.New("must be a DNS name or an IP address")
	}
	return nil
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
