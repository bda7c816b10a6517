package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Others write the Corefile.
func FuzzCorefile(f *testing.F) {
	f.Add(".:53 {\n    errors\n    kubernetes cluster.local in-addr.arpa ip6.arpa {\n      pods insecure\n    }\n    forward . /etc/resolv.conf\n}\n", "google.com")
	f.Add("(a) {\n  forward . 1.1.1.1\n}\ndns://corp.example:53, b.example {\n  import a\n}", "www.corp.example")
	f.Add("}\n}\n{\n{ {\n. {$X} {\n\x00 \"a\n", "..")
	f.Add("[::1]:53 ://: { # {\nkubernetes", "")
	f.Add(". {\nforward\nkubernetes\n\n{\n}\n}", "a.svc.b")
	f.Fuzz(func(t *testing.T, text, name string) {
		corefile := parseCorefile(text)
		for _, zone := range slices.Concat(corefile.serviceZones, corefile.otherZones) {
			assert.Equal(t, strings.ToLower(zone), zone)
		}
		assert.NotEqual(t, resolved, corefile.fateOf(name), "no DNS pod was asked")
	})
}
