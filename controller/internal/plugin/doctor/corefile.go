package doctor

import (
	"net"
	"regexp"
	"slices"
	"strings"
)

// coreDNS is what doctor understands of a Corefile. https://coredns.io/manual/configuration/
type coreDNS struct {
	blocks []serverBlock
	// zones are those of each plugin: the zones that it names, or else those of its server block.
	zones map[string][]string
	// isPartial means that there is more, such as an import or a variable. It may answer any name.
	isPartial bool
}

// serverBlock is a server block: its zones, and its plugins, each with arguments and options.
type serverBlock struct{ zones, plugins []string }

// parseCorefile reads the server blocks that have the usual form: an opening brace ends a line. Snippets have the zone (NAME).
func parseCorefile(text string) coreDNS {
	const options = `\{\s*\n[^{}]*\}`
	blocks := regexp.MustCompile(`(?m)^([^{}\n]+)\{\s*\n((?:[^{}]|` + options + `)*)\}`)
	plugins := regexp.MustCompile(`[^{}\s][^{}\n]*(?:` + options + `)?`)
	text = regexp.MustCompile(`#.*`).ReplaceAllString(text, "")
	found := coreDNS{zones: make(map[string][]string)}
	found.isPartial = !blocks.MatchString(text) || strings.TrimSpace(blocks.ReplaceAllString(text, "")) != ""
	for _, match := range blocks.FindAllStringSubmatch(text, -1) {
		block := serverBlock{zoneNames(match[1]), plugins.FindAllString(match[2], -1)}
		for _, plugin := range block.plugins {
			arguments, _, _ := strings.Cut(plugin, "{")
			zones := zoneNames(arguments) // the first is the plugin's own name
			if len(zones) == 1 {
				zones = append(zones, block.zones...)
			}
			found.zones[zones[0]] = append(found.zones[zones[0]], zones[1:]...)
		}
		found.blocks = append(found.blocks, block)
	}
	return found
}

func zoneNames(text string) (zones []string) {
	for _, zone := range strings.Fields(strings.ReplaceAll(text, ",", " ")) {
		zones = append(zones, zoneName(zone))
	}
	return zones
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

// hasZone reports whether a name is in one of the zones.
func hasZone(zones []string, name string) bool {
	return slices.ContainsFunc(zones, func(zone string) bool {
		return zone == "" || strings.HasSuffix("."+zoneName(name), "."+zone)
	})
}

// domain returns the first zone of the plugin kubernetes that is not a reverse zone, or "".
func (c coreDNS) domain() string {
	for _, zone := range c.zones["kubernetes"] {
		if zone != "" && !strings.HasSuffix(zone, ".arpa") && !strings.Contains(zone, "/") {
			return zone
		}
	}
	return ""
}

// fate is what becomes of a query for a name outside the cluster.
type fate int

const (
	uncertain  fate = iota
	unanswered      // no plugin can answer it
	forwarded       // to the upstream servers, like every other name
	resolved        // a DNS pod has answered with addresses
)

// fateOf returns the fate of a name as far as the Corefile shows it. Any plugin that may see the name makes it uncertain, except
// those that never answer such names and, for the root, a plain forward of everything.
func (c coreDNS) fateOf(name string) fate {
	silent := []string{"kubernetes", "errors", "health", "ready", "prometheus", "cache", "loop", "reload", "loadbalance", "log",
		"bufsize", "debug", "nsid", "pprof", "trace", "metadata", "cancel", "minimal", "root", "autopath", "chaos", "timeouts",
		"multisocket", "header", "local", "any", "transfer"}
	if c.isPartial || slices.Contains(c.zones["kubernetes"], "") {
		return uncertain
	}
	found := unanswered // CoreDNS refuses a name that no server block is for
	for _, block := range c.blocks {
		for _, plugin := range block.plugins {
			words := strings.Fields(plugin)
			isForward := words[0] == "forward" && len(words) > 2 && words[1] == "." && !slices.Contains(words, "except")
			switch {
			case !hasZone(block.zones, name) || slices.Contains(silent, words[0]):
			case isForward && slices.Contains(block.zones, ""):
				found = forwarded
			default:
				return uncertain
			}
		}
	}
	return found
}
