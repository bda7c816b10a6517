package doctor

import (
	"net"
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

// serverBlock is a server block: its zones, and the words of each plugin with its options.
type serverBlock struct {
	zones   []string
	plugins [][]string
}

// parseCorefile reads the server blocks that have the usual form: an opening brace ends a line, and a closing brace is alone on
// one. All other braces are arguments. Snippets have the zone (NAME).
func parseCorefile(text string) coreDNS {
	found, depth := coreDNS{zones: make(map[string][]string)}, 0
	isComment := func(word string) bool { return strings.HasPrefix(word, "#") }
	isUnclear := func(word string) bool {
		return word == "{" || word == "}" || strings.Contains(word, "{$") || strings.Contains(word, "{%")
	}
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if i := slices.IndexFunc(words, isComment); i >= 0 {
			words = words[:i]
		}
		if len(words) == 0 {
			continue
		}
		if slices.Equal(words, []string{"}"}) {
			found.isPartial, depth = found.isPartial || depth == 0, max(0, depth-1)
			continue
		}
		words, opens := cutBrace(words)
		found.isPartial = found.isPartial || depth == 0 && !opens || slices.ContainsFunc(words, isUnclear) ||
			strings.Count(line, `"`)%2 > 0
		found.add(depth, words)
		if opens {
			depth++
		}
	}
	found.isPartial = found.isPartial || depth > 0 || len(found.blocks) == 0
	return found
}

// cutBrace cuts the opening brace that ends a line.
func cutBrace(words []string) (rest []string, found bool) {
	last := len(words) - 1
	if last > 0 && words[last] == "{" {
		return words[:last], true
	}
	return words, false
}

// add adds a line at a depth of braces: the zones of a server block, a plugin of the last block, or options of its last plugin.
func (c *coreDNS) add(depth int, words []string) {
	if depth == 0 {
		c.blocks = append(c.blocks, serverBlock{zones: zoneNames(words)})
		return
	}
	block := &c.blocks[len(c.blocks)-1]
	if depth > 1 {
		last := len(block.plugins) - 1
		block.plugins[last] = append(block.plugins[last], words...)
		return
	}
	block.plugins = append(block.plugins, words)
	zones := zoneNames(words[1:])
	if len(zones) == 0 {
		zones = block.zones
	}
	c.zones[words[0]] = append(c.zones[words[0]], zones...)
}

func zoneNames(words []string) (zones []string) {
	for _, zone := range strings.Fields(strings.ReplaceAll(strings.Join(words, " "), ",", " ")) {
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

// domain returns the first zone of the plugin kubernetes that is no reverse zone, variable or snippet, or "".
func (c coreDNS) domain() string {
	for _, zone := range c.zones["kubernetes"] {
		if zone != "" && !strings.HasSuffix(zone, ".arpa") && !strings.ContainsAny(zone, "/{(") {
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
		for _, words := range block.plugins {
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

// isOwned reports whether a name is in a zone of the plugin kubernetes, or of a server block that is not for the root.
func (c coreDNS) isOwned(name string) bool {
	zones := slices.Clone(c.zones["kubernetes"])
	for _, block := range c.blocks {
		if !slices.Contains(block.zones, "") {
			zones = append(zones, block.zones...)
		}
	}
	return hasZone(zones, name)
}
