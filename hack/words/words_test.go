// Package words lists every text of the agent, the controller and the plugin that a user may read.
package words

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// text is one row of the table.
type text struct {
	kind  string // log, event, error, remedy, help, or text: a part that one of the others contains, and what the plugin prints
	place string
	words string // with its verbs; {} stands for an expression that is added to it
}

// Kinds of the arguments of functions and methods, by their names. The last kind is for all further arguments.
var kinds = map[string][]string{
	"Debug": {"log"}, "Info": {"log"}, "Warn": {"log"}, "Error": {"log"},
	"event": {"event"}, "Event": {"event"}, "Eventf": {"event"}, "Add": {"event"},
	"Errorf": {"error"}, "New": {"error"}, "must": {"error"}, "refuse": {"error"},
	"fail": {"remedy", "error"}, "find": {"remedy", "text"}, "apiFailure": {"error", "error", "remedy"},
	"gauge": {"help"}, "series": {"help"}, "NewGaugeVec": {"help"}, "NewCounter": {"help"}, "NewCounterVec": {"help"},
	"NewHistogram": {"help"}, "StringVar": {"help"}, "StringSliceVar": {"help"}, "BoolVar": {"help"}, "BoolVarP": {"help"},
}

// Functions whose arguments are matched, not shown.
var matchers = []string{"HasPrefix", "Contains", "Count", "Cut", "CutPrefix", "LastIndex", "MustCompile", "HandleFunc"}

var (
	isShown = regexp.MustCompile(`\pL.* |^(\{\}|[;,:])? .*\pL`)
	dialect = regexp.MustCompile(`(?i)\b((open|close)[sd]? (a|the|this) node|un-?taint\w*|neighbou?rs?|mend(s|ed)?|heal(s|ed)?|` +
		`bears?|for ?ever|told to stop|anew|newly|meanwhile|whoever|what has become|is none|are none|those of|that of|the one which|` +
		`nobody's|its like|our taints?|for a start|in vain|all the same|in spite of|floor|definite|members?)\b`)
	capital = regexp.MustCompile(`(^|\n)[A-Z][a-z]+\b`) // no name such as ConfigMap or TCP
	period  = regexp.MustCompile(`[^.]\.$`)
)

// TestWords prints the table, and fails for what LANGUAGE.md and STYLE.md exclude: a word of the dialect, an error that reads
// like a sentence of its own, a failure without a remedy.
func TestWords(t *testing.T) {
	texts := collect(t, "../..")
	if len(texts) < 500 {
		t.Fatalf("only %d texts were found", len(texts))
	}
	for _, text := range texts {
		fmt.Printf("%-6s  %-48s  %q\n", text.kind, text.place, text.words)
		for _, mistake := range mistakes(text) {
			t.Errorf("%s: %s %q: %s", text.place, text.kind, text.words, mistake)
		}
	}
}

func TestMistakes(t *testing.T) {
	for _, wrong := range []text{{"log", "", "the agent opens the node"}, {"text", "", "there is none: is none"}, {"remedy", "", ""},
		{"error", "", "Node is gone"}, {"error", "", "no node\nName one"}, {"event", "", "the node is verified."}} {
		if len(mistakes(wrong)) != 1 {
			t.Errorf("%+v: %q", wrong, mistakes(wrong))
		}
	}
	for _, right := range []text{{"help", "", "Nodes by state."}, {"error", "", "ConfigMap %s: %w"}, {"text", "", "and so on..."}} {
		if found := mistakes(right); found != nil {
			t.Errorf("%+v: %q", right, found)
		}
	}
}

func mistakes(t text) (found []string) {
	if word := dialect.FindString(t.words); word != "" {
		found = append(found, "no word of the project's language: "+word)
	}
	if t.kind == "error" && capital.MatchString(t.words) {
		found = append(found, "begins with a capital letter")
	}
	if t.kind != "help" && period.MatchString(t.words) {
		found = append(found, "ends with a period")
	}
	if t.kind == "remedy" && t.words == "" {
		found = append(found, "is empty")
	}
	return found
}

// collect returns the texts of all production code.
func collect(t *testing.T, root string) (texts []text) {
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "hack" || name == "bin" || strings.HasPrefix(filepath.Base(name), ".") && name != "."):
			return filepath.SkipDir
		case filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		v := visitor{place: func(n ast.Node) string { return fmt.Sprintf("%s:%d", name, files.Position(n.Pos()).Line) }, kind: "text"}
		v.walk(file)
		texts = append(texts, v.texts...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return texts
}

type visitor struct {
	place func(ast.Node) string
	kind  string // of what is visited
	texts []text
}

// walk visits the children of a node as texts of a kind.
func (v *visitor) walk(root ast.Node) {
	ast.Inspect(root, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.StructType:
			return false
		case *ast.CallExpr:
			v.call(n)
			return false
		case *ast.KeyValueExpr:
			if key, is := n.Key.(*ast.Ident); is && key.Name == "Remedy" {
				v.as("remedy", n.Value)
				return false
			}
		case *ast.FuncDecl:
			switch name := n.Name.Name; {
			case n.Body == nil:
			case strings.HasSuffix(name, "Remedy") && name != "Remedy":
				v.as("remedy", n.Body)
				return false
			case strings.HasSuffix(strings.ToLower(name), "settings"):
				v.as("help", n.Body)
				return false
			}
		case *ast.BinaryExpr, *ast.BasicLit:
			if compared, is := n.(*ast.BinaryExpr); is && (compared.Op == token.EQL || compared.Op == token.NEQ) {
				return false
			}
			if words, is := v.join(n.(ast.Expr)); is {
				if isShown.MatchString(words) || v.kind == "log" || v.kind == "remedy" {
					v.texts = append(v.texts, text{v.kind, v.place(n), words})
				}
				return false
			}
		}
		return true
	})
}

func (v *visitor) as(kind string, root ast.Node) {
	before := v.kind
	v.kind = kind
	v.walk(root)
	v.kind = before
}

// call visits a call's arguments as the kinds of the function.
func (v *visitor) call(call *ast.CallExpr) {
	name := ""
	switch function := call.Fun.(type) {
	case *ast.Ident:
		name = function.Name
	case *ast.SelectorExpr:
		name = function.Sel.Name
		v.walk(function.X)
	default:
		v.walk(function)
	}
	if slices.Contains(matchers, name) {
		return
	}
	for i, argument := range call.Args {
		kind := v.kind
		if of := kinds[name]; of != nil {
			kind = of[min(i, len(of)-1)]
		}
		if name != "" && i > 0 && kind == "log" {
			kind = "text" // a field
		}
		v.as(kind, argument)
	}
}

// join returns a string, or the sum of several and of other expressions, which it visits.
func (v *visitor) join(e ast.Expr) (words string, is bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		words, err := strconv.Unquote(e.Value)
		return words, e.Kind == token.STRING && err == nil
	case *ast.BinaryExpr:
		if e.Op != token.ADD {
			return "", false
		}
		left, isLeft := v.join(e.X)
		right, isRight := v.join(e.Y)
		if !isLeft && !isRight {
			return "", false
		}
		if !isLeft {
			left = "{}"
			v.as("text", e.X)
		}
		if !isRight {
			right = "{}"
			v.as("text", e.Y)
		}
		return left + right, true
	}
	return "", false
}
