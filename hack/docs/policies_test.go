package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The header of _policies.tpl has a line for each policy of the chart, under its file and its name.
func TestPoliciesAreListed(t *testing.T) {
	const templates = "../../chart/templates"
	read := func(name string) string {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		return string(text)
	}
	var rendered []string
	for _, file := range files(t, "chart/templates/*.yaml") {
		text := read(filepath.Join("../..", file))
		names := map[string]string{"$name": "CONTROLLER", "$fullname": "RELEASE"}
		for _, found := range regexp.MustCompile(`(\$\w+) := printf "%s(-[a-z-]+)" (\$\w+)`).FindAllStringSubmatch(text, -1) {
			names[found[1]] = names[found[3]] + found[2]
		}
		for _, found := range regexp.MustCompile(`"kube-node-ready\.policy" \(list \$\w+ (\$\w+)\)`).FindAllStringSubmatch(text, -1) {
			rendered = append(rendered, strings.TrimPrefix(file, "chart/templates/")+" "+names[found[1]])
		}
	}
	header, _, _ := strings.Cut(read(filepath.Join(templates, "_policies.tpl")), "*/}}")
	var listed []string
	for _, found := range regexp.MustCompile(`(?m)^  (\S+\.yaml) +(\S+)  +\S`).FindAllStringSubmatch(header, -1) {
		listed = append(listed, found[1]+" "+found[2])
	}
	assert.Len(t, rendered, 8)
	assert.ElementsMatch(t, rendered, listed)
}
