package doctor

import (
	"net"
	"slices"
	"strings"
)

// serverBlock is one of a Corefile: the zones that it serves, and its plugins with their arguments.
// https://coredns.io/manual/configuration/
type serverBlock struct {
	zones   []string
	plugins [][]string
}

// parseCorefile returns the server blocks of a Corefile. Snippets have the zone (NAME).
func parseCorefile(text string) (blocks []serverBlock) {
	depth := 0
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		opens, closes := fields[len(fields)-1] == "{", fields[0] == "}"
		switch {
		case closes:
			depth--
			continue
		case depth == 0:
			block := serverBlock{}
			for _, zone := range fields {
				if zone = strings.Trim(zone, ",{"); zone != "" {
					block.zones = append(block.zones, zoneName(zone))
				}
			}
			blocks = append(blocks, block)
		case depth == 1:
			last := &blocks[len(blocks)-1]
			last.plugins = append(last.plugins, fields)
		}
		if opens {
			depth++
		}
	}
	return blocks
}

// zoneName returns the name of a zone without protocol, port and dots around it: "" is the root.
func zoneName(zone string) string {
	if _, rest, found := strings.Cut(zone, "://"); found {
		zone = rest
	}
	if host, _, err := net.SplitHostPort(zone); err == nil {
		zone = host
	}
	return strings.Trim(zone, ".")
}

// corefileDomain returns the first zone of the plugin kubernetes that is no reverse zone, or "".
func corefileDomain(text string) string {
	for _, zone := range kubernetesZones(text) {
		if !strings.HasSuffix(zone, ".arpa") {
			return zone
		}
	}
	return ""
}

// kubernetesZones returns the zones of the plugin kubernetes.
func kubernetesZones(text string) (zones []string) {
	for _, block := range parseCorefile(text) {
		for _, plugin := range block.plugins {
			if plugin[0] != "kubernetes" {
				continue
			}
			for _, zone := range plugin[1:] {
				if zone = zoneName(strings.Trim(zone, "{")); zone != "" {
					zones = append(zones, zone)
				}
			}
		}
	}
	return zones
}

// hasZone reports whether a Corefile has something for a second domain of Services (another cluster's, clusterset.local): a zone
// of the plugin kubernetes, or a server block that is not for everything.
func hasZone(text, domain string) bool {
	zones := kubernetesZones(text)
	for _, block := range parseCorefile(text) {
		zones = append(zones, block.zones...)
	}
	return slices.ContainsFunc(zones, func(zone string) bool {
		zone = strings.TrimPrefix(zone, "svc.")
		return zone != "" && (zone == domain || strings.HasSuffix(domain, "."+zone))
	})
}

// refuses reports whether a CoreDNS with this Corefile certainly answers REFUSED for an external name: no block serves it, or the
// one that does has only plugins that answer nothing by themselves.
func refuses(corefile, name string) bool {
	silent := []string{"kubernetes", "errors", "health", "ready", "prometheus", "cache", "loop", "reload", "loadbalance", "log",
		"bufsize", "debug", "nsid", "pprof", "trace", "metadata", "cancel", "minimal", "tls", "bind", "root", "autopath", "chaos",
		"timeouts", "multisocket", "header", "local", "any", "transfer"}
	blocks := parseCorefile(corefile)
	if len(blocks) == 0 {
		return false
	}
	var best *serverBlock
	longest := -1
	for i, block := range blocks {
		for _, zone := range block.zones {
			serves := zone == "" || zone == name || strings.HasSuffix(name, "."+zone)
			if serves && len(zone) > longest {
				best, longest = &blocks[i], len(zone)
			}
		}
	}
	if best == nil {
		return !slices.ContainsFunc(blocks, func(block serverBlock) bool { return slices.Contains(block.zones, "import") })
	}
	answers := func(plugin []string) bool { return !slices.Contains(silent, plugin[0]) }
	return !slices.ContainsFunc(best.plugins, answers)
}
