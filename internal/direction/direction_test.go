package direction

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/source"
)

var update = flag.Bool("update", false, "write the uses against the direction as they are")

// layers are the library's files, from the ground up. A file uses files of its own layer
// and of those below.
var layers = [][]string{
	{"doc.go", "errors.go", "options.go", "trace.go", "admin.go", "recall.go"},
	{"session.go", "stream.go", "era.go"}, // a Session: its lock, its tasks, what it knows of etcd
	{"lease.go", "renew.go", "revoke.go", "audit.go"},
	{ // one key in etcd's line
		"place.go", "rivals.go", "watch.go", "partings.go", "view.go", "viewread.go", "keywatch.go",
		"removal.go",
	},
	{ // what the goroutines of a Session share of a name
		"local.go", "grant.go", "cohort.go", "permits.go", "hold.go", "context.go", "release.go",
		"recalled.go",
	},
	{"lock.go", "close.go", "rwmutex.go", "semaphore.go", "many.go", "acquire.go"},
	{"lead.go", "watchholder.go"},
}

// pure are the packages below internal/ that decide what follows, and do nothing else.
var pure = []string{"line", "recheck", "ticket", "trust", "turn"}

// A use against the direction couples a lower layer to what stands on it. The existing ones
// stand in testdata/against.txt. Nobody may add new ones. Whoever removes one takes it from
// the list, so that it does not come back.
func TestNoNewUseAgainstTheDirection(t *testing.T) {
	const list = "testdata/against.txt"
	layer := make(map[string]int)
	for i, files := range layers {
		for _, f := range files {
			layer[f] = i
		}
	}
	against := make(map[string]bool)
	for _, u := range uses(t) {
		for _, f := range []string{u.from, u.to} {
			require.Contains(t, layer, f, "a file without a layer")
		}
		if layer[u.from] < layer[u.to] {
			against[u.String()] = true
		}
	}
	found := slices.Sorted(maps.Keys(against))
	if *update {
		require.NoError(t, os.WriteFile(list, []byte(strings.Join(found, "\n")+"\n"), 0o644))
	}
	text, err := os.ReadFile(list)
	require.NoError(t, err)
	known := strings.Split(strings.TrimSpace(string(text)), "\n")
	t.Logf("%d uses against the direction", len(found))
	require.Equal(t, known, found, "with -update the list becomes what is found")
}

// A pure package has no clock, no lock and no goroutine, so a test can explore all that it
// does.
func TestThePureCoresArePure(t *testing.T) {
	for _, pkg := range pure {
		t.Run(pkg, func(t *testing.T) {
			fset := token.NewFileSet()
			paths, err := filepath.Glob(filepath.Join("..", pkg, "*.go"))
			require.NoError(t, err)
			require.NotEmpty(t, paths)
			for _, path := range paths {
				if strings.HasSuffix(path, "_test.go") {
					continue
				}
				file, err := parser.ParseFile(fset, path, nil, 0)
				require.NoError(t, err)
				for _, imported := range file.Imports {
					name, err := strconv.Unquote(imported.Path.Value)
					require.NoError(t, err)
					impure := []string{
						"context", "net", "os", "sync", "sync/atomic", "math/rand/v2", "log/slog",
					}
					require.NotContains(t, impure, name, path)
				}
				ast.Inspect(file, func(n ast.Node) bool {
					at := func() string { return fset.Position(n.Pos()).String() }
					switch n := n.(type) {
					case *ast.GoStmt:
						require.Fail(t, "a goroutine", at())
					case *ast.ChanType:
						require.Fail(t, "a channel", at())
					case *ast.SelectorExpr:
						clock := []string{
							"time.Now", "time.Since", "time.Until", "time.Sleep",
							"time.After", "time.AfterFunc", "time.NewTimer", "time.NewTicker",
						}
						require.NotContains(t, clock, fmt.Sprintf("%v.%v", n.X, n.Sel), at())
					}
					return true
				})
			}
		})
	}
}

// A use is one file's use of a name that another one declares.
type use struct{ from, to, name string }

func (u use) String() string { return u.from + " " + u.to + " " + u.name }

// uses returns the uses between the files of the library.
func uses(t *testing.T) []use {
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	library, err := lib.Check(nil, info)
	require.NoError(t, err)
	file := func(at token.Pos) string { return filepath.Base(lib.Fset.Position(at).Filename) }
	var all []use
	for id, object := range info.Uses {
		v, isVar := object.(*types.Var)
		local := isVar && !v.IsField() && v.Parent() != library.Scope()
		if object.Pkg() == library && !local {
			all = append(all, use{file(id.Pos()), file(object.Pos()), object.Name()})
		}
	}
	return all
}
