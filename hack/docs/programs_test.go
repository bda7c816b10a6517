package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// said is a text of the programs that a person reads.
type said struct{ where, by, text string }

// texts returns every string of the programs that has three words, with the function that gets it: log messages, Events, errors,
// remedies and help.
func texts(t *testing.T) (found []said) {
	t.Helper()
	set := token.NewFileSet()
	for _, name := range files(t, "*.go", ":!*_test.go", ":!hack") {
		file, err := parser.ParseFile(set, filepath.Join("../..", name), nil, 0)
		require.NoError(t, err)
		var enclosing []ast.Node
		ast.Inspect(file, func(n ast.Node) bool {
			if n == nil {
				enclosing = enclosing[:len(enclosing)-1]
				return true
			}
			enclosing = append(enclosing, n)
			literal, ok := n.(*ast.BasicLit)
			if _, isTag := enclosing[max(0, len(enclosing)-2)].(*ast.Field); !ok || literal.Kind != token.STRING || isTag {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			require.NoError(t, err)
			if len(regexp.MustCompile(`[a-z]{2,}`).FindAllString(text, -1)) < 3 || !strings.Contains(text, " ") {
				return true
			}
			by := ""
			for _, outer := range enclosing {
				switch outer := outer.(type) {
				case *ast.CallExpr:
					switch f := outer.Fun.(type) {
					case *ast.Ident:
						by = f.Name
					case *ast.SelectorExpr:
						by = f.Sel.Name
					}
				case *ast.KeyValueExpr:
					if key, ok := outer.Key.(*ast.Ident); ok {
						by = key.Name
					}
				}
			}
			at := set.Position(literal.Pos())
			found = append(found, said{name + ":" + strconv.Itoa(at.Line), by, text})
			return true
		})
	}
	return found
}

// What the programs say, in one table, and in the words of the project: one for each thing, and none of its old dialect.
func TestTextsOfThePrograms(t *testing.T) {
	dialect := regexp.MustCompile(`(?i)\b(un-?taint\w*|neighbou?rs?|mend(ed|s)?|heal(ed|s)?|for ever|whoever|meanwhile|anew|bear|those of|that of|` +
		`is none|is no fault|told to|what has become of|newly)\b`)
	found := texts(t)
	assert.Greater(t, len(found), 300)
	for _, s := range found {
		t.Logf("| %s | %s | %s |", s.where, s.by, strings.ReplaceAll(s.text, "\n", "⏎"))
		assert.NotRegexp(t, dialect, s.text, s.where)
		if s.by == "Errorf" || s.by == "New" {
			assert.NotRegexp(t, `[.!]\n?$`, s.text, "%s: an error is a part of a sentence", s.where)
		}
	}
}
