// Package docs checks the documents of the repository: every link leads somewhere.
package docs

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// files returns the files of the repository whose names match a pattern, relative to its root.
func files(t *testing.T, patterns ...string) []string {
	t.Helper()
	out, err := exec.Command("git", append([]string{"-C", "../..", "ls-files", "-co", "--exclude-standard", "--"}, patterns...)...).Output()
	require.NoError(t, err)
	var found []string
	for _, name := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join("../..", name)); err == nil {
			found = append(found, name)
		}
	}
	require.NotEmpty(t, found, "%s", patterns)
	return found
}

// walk calls visit with every node of a Markdown document that is not a code block.
func walk(t *testing.T, name string, visit func(n ast.Node, source []byte)) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("../..", name))
	require.NoError(t, err)
	document := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	require.NoError(t, ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			visit(n, source)
		}
		return ast.WalkContinue, nil
	}))
}

// words counts the words of a document without code blocks and comments: what has a letter or a digit.
func words(t *testing.T, name string) (count int) {
	walk(t, name, func(n ast.Node, source []byte) {
		part := ""
		switch n := n.(type) {
		case *ast.Text:
			part = string(n.Value(source))
		case *ast.String:
			part = string(n.Value)
		}
		for _, word := range strings.Fields(part) {
			if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
				count++
			}
		}
	})
	return count
}

// TestWords prints how long the documents for users are (make words). It fails nothing.
func TestWords(t *testing.T) {
	all := 0
	for _, name := range files(t, "README.md", "docs/*.md", "chart/README.md.gotmpl", "controller/README.md") {
		n := words(t, name)
		t.Logf("%6d %s", n, name)
		all += n
	}
	t.Logf("%6d in all", all)
}

// anchors returns the anchors of a document's headings, as GitHub makes them.
func anchors(t *testing.T, name string) map[string]bool {
	found := make(map[string]bool)
	walk(t, name, func(n ast.Node, source []byte) {
		heading, ok := n.(*ast.Heading)
		if !ok {
			return
		}
		title := strings.ToLower(string(heading.Lines().Value(source)))
		slug := strings.Map(func(r rune) rune {
			switch {
			case r == ' ' || r == '-':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '_':
				return r
			}
			return -1
		}, title)
		unique := slug
		for i := 1; found[unique]; i++ {
			unique = slug + "-" + strconv.Itoa(i)
		}
		found[unique] = true
	})
	return found
}

// check asserts that a path of the repository is there and, if an anchor is given, that the document has such a heading.
func check(t *testing.T, where, path, anchor string) {
	t.Helper()
	info, err := os.Stat(filepath.Join("../..", path))
	if !assert.NoError(t, err, where) || anchor == "" {
		return
	}
	if assert.False(t, info.IsDir(), "%s: %s#%s", where, path, anchor) {
		assert.True(t, anchors(t, path)[anchor], "%s: %s has no heading for #%s", where, path, anchor)
	}
}

// Every relative link of a document leads to a file of the repository, and to a heading of it.
func TestLinks(t *testing.T) {
	for _, name := range files(t, "*.md") {
		walk(t, name, func(n ast.Node, _ []byte) {
			target := ""
			switch n := n.(type) {
			case *ast.Link:
				target = string(n.Destination)
			case *ast.Image:
				target = string(n.Destination)
			}
			if target == "" || strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				return
			}
			path, anchor, _ := strings.Cut(target, "#")
			if path == "" {
				path = name
			} else {
				path = filepath.Join(filepath.Dir(name), path)
			}
			check(t, name, path, anchor)
		})
	}
}

// Every address of a page of this repository, in the chart, the programs and the examples, leads to a file and a heading of it.
func TestAddresses(t *testing.T) {
	address := regexp.MustCompile(`github\.com/imunhatep/kube-node-ready/(?:blob|tree)/(?:v[\w.]+|v?\{\{[^}]*\}\}|v%s|main)/([\w./-]*)(#[\w-]+)?`)
	found := 0
	for _, name := range files(t, "chart", "internal", "controller", "hack/examples", "hack/manifests", "SECURITY.md", "main.go") {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			require.ErrorIs(t, err, fs.ErrNotExist)
			continue
		}
		for _, match := range address.FindAllStringSubmatch(string(content), -1) {
			check(t, name, strings.TrimSuffix(match[1], "."), strings.TrimPrefix(match[2], "#"))
			found++
		}
	}
	assert.NotZero(t, found)
}
