package agent

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// layers are the files of this package, from the top. Files of one layer may use one another.
var layers = [][]string{{"agent.go"}, {"recheck.go"}, {"verifier.go"}, {"rounds.go"}, {"loop.go"},
	{"opening.go", "marker.go", "report.go", "peers.go"}, {"common.go"}}

// noImports stands for every other package: what they declare does not count here.
type noImports struct{}

func (noImports) Import(path string) (*types.Package, error) {
	pkg := types.NewPackage(path, filepath.Base(path))
	pkg.MarkComplete()
	return pkg, nil
}

// No file uses a declaration, a method or a field of a file above it, and each can be read at once.
func TestLayers(t *testing.T) {
	set := token.NewFileSet()
	var files []*ast.File
	layer := make(map[string]int)
	for i, names := range layers {
		for _, name := range names {
			file, err := parser.ParseFile(set, name, nil, 0)
			require.NoError(t, err)
			files, layer[name] = append(files, file), i
			assert.LessOrEqual(t, set.File(file.Pos()).LineCount(), 250, name)
		}
	}
	all, _ := filepath.Glob("*.go")
	tests, _ := filepath.Glob("*_test.go")
	assert.Len(t, all, len(layer)+len(tests), "each file has a layer")
	info := types.Info{Uses: make(map[*ast.Ident]types.Object)}
	settings := types.Config{Importer: noImports{}, Error: func(error) {}} // names of other packages are unknown
	pkg, _ := settings.Check("agent", set, files, &info)
	for ident, object := range info.Uses {
		if object.Pkg() != pkg || !object.Pos().IsValid() {
			continue
		}
		at, declared := set.Position(ident.Pos()), set.Position(object.Pos())
		assert.LessOrEqual(t, layer[at.Filename], layer[declared.Filename], "%s uses %s of %s", at, ident.Name, declared.Filename)
	}
}
