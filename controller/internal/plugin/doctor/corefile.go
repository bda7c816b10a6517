package doctor

import (
	"net"
	"slices"
	"strings"
)

// serverBlock is a server block of a Corefile: the zones that it serves, and its plugins with their arguments.
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
		line, opens := strings.CutSuffix(strings.TrimSpace(line), "{")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "}":
			depth--
		case depth == 0:
			block := serverBlock{}
			for _, zone := range strings.Fields(strings.ReplaceAll(line, ",", " ")) {
				block.zones = append(block.zones, zoneName(zone))
			}
			blocks = append(blocks, block)
		case depth == 1 && len(blocks) > 0:
			last := &blocks[len(blocks)-1]
			last.plugins = append(last.plugins, fields)
		}
		if opens {
			depth++
		}
	}
	return blocks
}

// zoneName returns the name of a zone in lower case, without protocol, port and dots around it: "" is the root.
func zoneName(zone string) string {
	if _, rest, found := strings.Cut(zone, "://"); found {
		zone = rest
	}
	if host, _, err := net.SplitHostPort(zone); err == nil {
		zone = host
	}
	return strings.ToLower(strings.Trim(zone, "."))
}

// corefileDomain returns the first zone of the plugin kubernetes that is no reverse zone, or "".
func corefileDomain(text string) string {
	for _, zone := range kubernetesZones(text, "kubernetes") {
		if zone != "" && !strings.HasSuffix(zone, ".arpa") && !strings.Contains(zone, "{") { // CoreDNS replaces {$NAME}
			return zone
		}
	}
	return ""
}

// kubernetesZones returns the zones of plugins that serve the names of Services.
func kubernetesZones(text string, plugins ...string) (zones []string) {
	for _, block := range parseCorefile(text) {
		zones = append(zones, block.zonesOf(plugins)...)
	}
	return zones
}

// zonesOf returns the zones of plugins: those that they name, or else the block's.
func (b serverBlock) zonesOf(plugins []string) (zones []string) {
	for _, plugin := range b.plugins {
		if !slices.Contains(plugins, plugin[0]) {
			continue
		}
		if len(plugin) == 1 {
			zones = append(zones, b.zones...)
		}
		for _, zone := range plugin[1:] {
			zones = append(zones, zoneName(zone))
		}
	}
	return zones
}

// blockOf returns the server block for a name, and the zone that it is there for; nil if no block is.
func blockOf(blocks []serverBlock, name string) (best *serverBlock, longest string) {
	for i, block := range blocks {
		for _, zone := range block.zones {
			if isUnder(name, zone) && (best == nil || len(zone) > len(longest)) {
				best, longest = &blocks[i], zone
			}
		}
	}
	return best, longest
}

func isUnder(name, zone string) bool {
	name = zoneName(name)
	return zone == "" || name == zone || strings.HasSuffix(name, "."+zone)
}

// stubZone returns the zone of a server block that is for a name but not for everything, unless the name is under a zone of the
// plugin kubernetes there: that denies what it does not know. Else it returns "".
func stubZone(text, name string) string {
	block, zone := blockOf(parseCorefile(text), name)
	isServed := func(zone string) bool { return isUnder(name, zone) }
	if block == nil || slices.ContainsFunc(block.zonesOf([]string{"kubernetes", "multicluster"}), isServed) {
		return ""
	}
	return zone
}

// refuses reports whether a CoreDNS with this Corefile certainly answers REFUSED for an external name: no block serves it, or the
// block that does has only silent plugins. A plugin that is not in the list counts as one that answers: it is no trap.
func refuses(corefile, name string) bool {
	silent := []string{"kubernetes", "errors", "health", "ready", "prometheus", "cache", "loop", "reload", "loadbalance", "log",
		"bufsize", "debug", "nsid", "pprof", "trace", "metadata", "cancel", "minimal", "tls", "bind", "root", "autopath", "chaos",
		"timeouts", "multisocket", "header", "local", "any", "transfer"}
	blocks := parseCorefile(corefile)
	if len(blocks) == 0 {
		return false
	}
	best, _ := blockOf(blocks, name)
	if best == nil {
		return !slices.ContainsFunc(blocks, func(block serverBlock) bool { return slices.Contains(block.zones, "import") })
	}
	answers := func(plugin []string) bool { return !slices.Contains(silent, plugin[0]) }
	return !slices.ContainsFunc(best.plugins, answers)
}
