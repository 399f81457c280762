package direction

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/source"
)

// pure are the packages below internal/ that decide what follows, and do nothing else.
var pure = []string{"home", "lease/trust", "line", "list", "recheck", "ticket"}

// A use against the direction couples a lower layer to what stands on it.
func TestNothingIsUsedAgainstTheDirection(t *testing.T) {
	all := uses(t)
	for pkg, heading := range map[string]string{"": "Files", "hold": "internal/hold"} {
		layer := layers(t, heading)
		against := make(map[string][]string)
		for _, u := range all[pkg] {
			for _, f := range []string{u.from, u.to} {
				require.Contains(t, layer, f, "a file of %q without a layer", pkg)
			}
			if layer[u.from] > layer[u.to] && !u.implements {
				against[u.name] = append(against[u.name], u.from+" "+u.to)
			}
		}
		require.Empty(t, against, "%q", pkg)
	}
}

// imports are the packages below internal/ that the library is made of, each with those of them
// that it may import.
var imports = map[string][]string{
	"ask": {
		"etcd", "etcd/attempt", "follow", "guard", "line", "queue", "ticket",
	},
	"etcd":           {"etcd/attempt", "etcd/keepalive", "guard", "line", "ticket"},
	"etcd/attempt":   {"guard", "quote"},
	"etcd/keepalive": {"etcd/attempt", "guard"},
	"events":         nil,
	"follow":         {"etcd", "etcd/attempt", "line", "recheck", "ticket"},
	"guard":          nil,
	"hold": {
		"ask", "etcd", "etcd/attempt", "events", "guard", "home", "lease", "line", "list", "queue",
		"quote", "ticket",
	},
	"home":        {"list", "ticket"},
	"list":        nil,
	"lease":       {"etcd", "etcd/attempt", "etcd/keepalive", "guard", "lease/trust", "list"},
	"lease/trust": nil,
	"line":        nil,
	"queue": {
		"etcd", "etcd/attempt", "guard", "lease", "line", "recheck", "ticket",
	},
	"quote":   nil,
	"recheck": nil,
	"ticket":  {"line"},
}

// An import against the list couples a package to what stands above it.
func TestAPackageImportsWhatStandsBelowIt(t *testing.T) {
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	library, err := lib.Check(nil, nil)
	require.NoError(t, err)
	below := library.Path() + "/internal/"
	checked := make(map[string]bool)
	var check func(p *types.Package)
	check = func(p *types.Package) {
		for _, imported := range p.Imports() {
			name, own := strings.CutPrefix(imported.Path(), below)
			if !own {
				continue
			}
			require.Contains(t, imports, name, p.Path())
			if p != library {
				require.Contains(t, imports[strings.TrimPrefix(p.Path(), below)], name, p.Path())
			}
			if !checked[name] {
				checked[name] = true
				check(imported)
			}
		}
	}
	check(library)
	require.Len(t, checked, len(imports), "a package that the library does not use any more")
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

// layers returns the layer of each file that stands under a heading of ARCHITECTURE.md. A file uses
// files of its own layer and of those below, which have higher numbers.
func layers(t *testing.T, heading string) map[string]int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	require.NoError(t, err)
	_, after, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found)
	list, _, found := strings.Cut(after, "\n## ")
	require.True(t, found)
	layer, n := make(map[string]int), 0
	for line := range strings.Lines(list) {
		if name := fileName.FindStringSubmatch(line); name != nil {
			require.NotContains(t, layer, name[1])
			layer[name[1]] = n
		} else if strings.HasSuffix(line, ":\n") {
			n++ // what follows is another layer
		}
	}
	layer["doc.go"] = n // of the root
	return layer
}

var fileName = regexp.MustCompile(`^- (\w+\.go): `)

// A use is one file's use of a function, a field, a variable or a constant that another one
// declares. To name a type is no use: a file that keeps what belongs to those above, and passes it
// on, knows nothing of it.
type use struct {
	from, to, name string
	implements     bool // what is used is a method of an interface, for which this one stands
}

// uses returns the uses between the files of a package, of each package of the library: by its path
// below internal/, "" for the one at the root.
func uses(t *testing.T) map[string][]use {
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	library, err := lib.Check(nil, info)
	require.NoError(t, err)
	at := func(p token.Pos) string { return lib.Fset.Position(p).Filename }
	all := make(map[string][]use)
	for id, object := range info.Uses {
		pkg := object.Pkg()
		if pkg == nil || filepath.Dir(at(id.Pos())) != filepath.Dir(at(object.Pos())) {
			continue
		}
		v, isVar := object.(*types.Var)
		local := isVar && !v.IsField() && v.Parent() != pkg.Scope()
		_, isType := object.(*types.TypeName)
		if local || isType {
			continue
		}
		within := strings.TrimPrefix(strings.TrimPrefix(pkg.Path(), library.Path()), "/internal/")
		add := func(to types.Object, implements bool) {
			from := filepath.Base(at(id.Pos()))
			all[within] = append(all[within], use{from, filepath.Base(at(to.Pos())), to.Name(), implements})
		}
		add(object, false)
		for _, m := range implementations(pkg, object) {
			add(m, true)
		}
	}
	return all
}

// implementations returns the methods of a package for which object stands, if that is a method of
// an interface.
func implementations(library *types.Package, object types.Object) (all []types.Object) {
	f, isFunc := object.(*types.Func)
	if !isFunc || f.Signature().Recv() == nil || !types.IsInterface(f.Signature().Recv().Type()) {
		return nil
	}
	of := f.Signature().Recv().Type().Underlying().(*types.Interface)
	for _, name := range library.Scope().Names() {
		named, isType := library.Scope().Lookup(name).(*types.TypeName)
		if !isType || types.IsInterface(named.Type()) {
			continue
		}
		pointer := types.NewPointer(named.Type())
		if types.Implements(pointer, of) {
			m, _, _ := types.LookupFieldOrMethod(pointer, true, library, f.Name())
			all = append(all, m)
		}
	}
	return all
}
