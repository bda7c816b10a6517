package doctor

import (
	"net"
	"slices"
	"strings"
)

// coreDNS is what doctor understands of a Corefile: https://coredns.io/manual/configuration/
type coreDNS struct {
	domain       string   // of the cluster, or "" if it is unknown
	serviceZones []string // of the plugins kubernetes and multicluster
	otherZones   []string // of the server blocks that are not for the root
	fate         fate     // of the names outside these zones
}

// fate is what becomes of a query for a name outside the cluster.
type fate int

const (
	uncertain  fate = iota
	unanswered      // no plugin can answer it
	forwarded       // to the upstream servers, like every other name
	resolved        // a DNS pod has answered with addresses
)

// parseCorefile reads server blocks of the usual form: an opening brace ends a line, and a closing brace is alone on one.
// Anything else, such as a variable or an option that excludes names, makes the fate of every name uncertain.
func parseCorefile(text string) coreDNS {
	found := coreDNS{fate: unanswered} // CoreDNS refuses a name that no server block is for
	depth, isUnclear := 0, false
	var zones []string // of the server block
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line = strings.TrimSpace(line)
		if line == "}" {
			depth--
			continue
		}
		line, opens := strings.CutSuffix(line, " {")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		isUnclear = isUnclear || depth < 0 || depth == 0 && !opens || strings.ContainsAny(line, `{}"`) || words[0] == "except"
		switch depth {
		case 0:
			zones = zoneNames(words)
			if !slices.Contains(zones, "") {
				found.otherZones = append(found.otherZones, zones...)
			}
		case 1:
			isUnclear = !found.add(words, zones) || isUnclear
		}
		if opens {
			depth++
		}
	}
	if isUnclear || depth != 0 || len(zones) == 0 {
		found.fate = uncertain
	}
	return found
}

// add adds a plugin of a server block. It reports whether the plugin's effect on names outside the cluster is clear: only a plain
// forward of everything is, beside plugins that never answer such names.
func (c *coreDNS) add(words, zones []string) bool {
	silent := []string{"errors", "health", "ready", "prometheus", "cache", "loop", "reload", "loadbalance", "log", "bufsize",
		"debug", "nsid", "pprof", "trace", "metadata", "cancel", "minimal", "root", "autopath", "chaos", "timeouts",
		"multisocket", "header", "local", "any", "transfer"}
	switch plugin := words[0]; {
	case plugin == "kubernetes" || plugin == "multicluster":
		if len(words) > 1 {
			zones = zoneNames(words[1:])
		}
		c.serviceZones = append(c.serviceZones, zones...)
		for _, zone := range zones {
			isReverse := strings.HasSuffix(zone, ".arpa") || strings.Contains(zone, "/")
			if c.domain == "" && plugin == "kubernetes" && !isReverse && !strings.ContainsAny(zone, "{(") { // a variable or a snippet
				c.domain = zone
			}
		}
	case slices.Contains(silent, plugin) || !slices.Contains(zones, ""):
	case plugin == "forward" && len(words) > 2 && words[1] == ".":
		c.fate = forwarded
	default:
		return false
	}
	return true
}

func zoneNames(words []string) (zones []string) {
	for _, word := range words {
		zones = append(zones, zoneName(word))
	}
	return zones
}

// zoneName returns the name of a zone in lower case, without protocol, port, and dots or commas around it: "" is the root.
func zoneName(zone string) string {
	if _, rest, found := strings.Cut(zone, "://"); found {
		zone = rest
	}
	if host, _, err := net.SplitHostPort(zone); err == nil {
		zone = host
	}
	return strings.ToLower(strings.Trim(zone, ".,"))
}

// fateOf returns the fate of a name as far as the Corefile shows it.
func (c coreDNS) fateOf(name string) fate {
	for _, zone := range append(c.serviceZones, c.otherZones...) {
		if zone == "" || strings.HasSuffix("."+zoneName(name), "."+zone) {
			return uncertain
		}
	}
	return c.fate
}
