package checks

import (
	"net"
	"os"
	"slices"
	"strings"
)

// resolvConf is where kubelet (and every libc) puts the name servers; see resolv.conf(5).
const resolvConf = "/etc/resolv.conf"

// SystemResolver returns the resolver that /etc/resolv.conf describes.
func SystemResolver() (Resolver, error) {
	text, err := os.ReadFile(resolvConf)
	return parseResolvConf(string(text)), err
}

// parseResolvConf reads name servers, search list and the option use-vc from the text of a resolv.conf(5).
func parseResolvConf(text string) (out Resolver) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			out.Servers = append(out.Servers, net.JoinHostPort(fields[1], "53"))
		case "search", "domain": // the last one counts
			out.Search = nil
			for _, domain := range fields[1:] {
				if domain = strings.TrimSuffix(domain, "."); domain != "" {
					out.Search = append(out.Search, domain)
				}
			}
		case "options":
			if slices.Contains(fields[1:], "use-vc") {
				out.Network = "tcp"
			}
		}
	}
	if len(out.Servers) == 0 {
		out.Servers = []string{"127.0.0.1:53"} // the default of resolv.conf(5)
	}
	return out
}

// ClusterDomain returns the DNS domain of svc.<domain>, which kubelet puts on the search list behind <namespace>.svc.<domain>, or
// "" (dnsPolicy Default). A namespace may have the name svc.
func (r Resolver) ClusterDomain() string {
	for i, domain := range r.Search {
		rest, found := strings.CutPrefix(domain, "svc.")
		isNamespace := i == 0 && strings.HasPrefix(rest, "svc.") && slices.Contains(r.Search, rest)
		if found && !isNamespace {
			return rest
		}
	}
	return ""
}
