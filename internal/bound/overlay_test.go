package bound_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/bound"
	"github.com/etcdlock/etcdlock/internal/source"
)

const module = "../.."

// The library compiles with all that counts its steps.
func TestTheOverlayFitsTheLibrary(t *testing.T) {
	texts, err := bound.Texts(t.Context(), module, nil)
	require.NoError(t, err)
	lib, err := source.Load(t.Context(), module, "./internal/bound/steps")
	require.NoError(t, err)
	_, err = lib.Check(texts, nil)
	require.NoError(t, err)
}

// Each function of the library and each turn of a loop counts a step, each goroutine tells that
// it has begun, and each mutex counts. What is left out is not seen, however often it runs.
func TestTheOverlayLeavesNothingOut(t *testing.T) {
	texts, err := bound.Texts(t.Context(), module, nil)
	require.NoError(t, err)
	loops, goroutines, mutexes := 0, 0, 0
	for path, text := range texts {
		if filepath.Base(path) == "sites.go" {
			continue
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, 0)
		require.NoError(t, err)
		calls := func(block *ast.BlockStmt, names ...string) {
			if block == nil {
				return
			}
			where := fset.Position(block.Pos())
			for i, name := range names {
				require.Greater(t, len(block.List), i, "%v", where)
				begin, end := block.List[i].Pos()-1, block.List[i].End()-1
				require.Contains(t, string(text[begin:end]), "countedSteps."+name+"(", "%v", where)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Name.Name != "Declaration" { // of a mutex, which the overlay has added
					calls(n.Body, "At")
				}
			case *ast.GoStmt:
				goroutines++
				if fn, ok := n.Call.Fun.(*ast.FuncLit); ok {
					calls(fn.Body, "Began", "At")
					return true
				}
				begin, end := n.Call.Pos()-1, n.Call.End()-1
				require.Contains(t, string(text[begin:end]), "countedSteps.Go", "%v", fset.Position(n.Pos()))
			case *ast.FuncLit:
				if at := n.Body.List[0]; !strings.Contains(string(text[at.Pos()-1:at.End()-1]), "Began") {
					calls(n.Body, "At")
				}
			case *ast.ForStmt:
				loops++
				calls(n.Body, "At")
			case *ast.RangeStmt:
				loops++
				calls(n.Body, "At")
			case *ast.IndexExpr:
				if x, ok := n.X.(*ast.SelectorExpr); ok && x.Sel.Name == "Mutex" {
					mutexes++
				}
			case *ast.Field:
				x, ok := n.Type.(*ast.SelectorExpr)
				left := ok && x.Sel.Name == "Mutex" && x.X.(*ast.Ident).Name == "sync"
				require.False(t, left && !strings.HasSuffix(path, bound.OfCleanups),
					"%v", fset.Position(n.Pos()))
			}
			return true
		})
	}
	require.Greater(t, loops, 100)
	require.Greater(t, goroutines, 3)
	require.Greater(t, mutexes, 5)
}
