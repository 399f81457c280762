package direction

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/source"
)

// Files that use each other, directly or not, cannot be read one after the other. An interface of
// the same package is no wall between them: a use of it is one of all its implementations.
func TestTheLargestKnotOfFilesIsSmall(t *testing.T) {
	const most = 8
	for pkg, uses := range uses(t) {
		graph := make(map[string][]string)
		for _, u := range uses {
			graph[u.from] = append(graph[u.from], u.to)
		}
		knot := largestKnot(graph)
		require.LessOrEqual(t, len(knot), most, "%q: %v", pkg, knot)
		t.Logf("%q: %v", pkg, knot)
	}
}

// largestKnot returns the largest set of nodes each of which leads to each other.
func largestKnot(graph map[string][]string) (largest []string) {
	reached := make(map[string]map[string]bool)
	for from := range graph {
		seen := make(map[string]bool)
		for next := graph[from]; len(next) > 0; {
			at := next[0]
			next = next[1:]
			if !seen[at] {
				seen[at] = true
				next = append(slices.Clone(next), graph[at]...)
			}
		}
		reached[from] = seen
	}
	for from := range graph {
		knot := []string{from}
		for to := range reached[from] {
			if to != from && reached[to][from] {
				knot = append(knot, to)
			}
		}
		if len(knot) > len(largest) {
			largest = slices.Sorted(slices.Values(knot))
		}
	}
	return largest
}

// A knot is found among files that only lead to it, or away from it.
func TestAKnotIsFound(t *testing.T) {
	require.Equal(t, []string{"b", "c", "d"}, largestKnot(map[string][]string{
		"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": {"b", "e"}, "e": {"f"}, "f": {"e"},
	}))
}

// A function that is long does several things. The body of one has at most 40 lines; what is longer
// stands in ARCHITECTURE.md with the reason.
func TestAFunctionIsReadAtOnce(t *testing.T) {
	const most = 40
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	require.NoError(t, err)
	functions := 0
	for _, path := range lib.Files() {
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			functions++
			lines := fset.Position(f.Body.Rbrace).Line - fset.Position(f.Body.Lbrace).Line - 1
			if lines > most && !strings.Contains(string(page), "more than 40 lines but `"+f.Name.Name+"`") {
				assert.Fail(t, "a function is long", "%s of %s: %d lines", f.Name.Name, path, lines)
			}
		}
	}
	require.Greater(t, functions, 1000)
}

// Who follows ARCHITECTURE.md looks for its names in the code. One with a dot is a method or a
// field of the type before it, or is declared in the package.
func TestTheArchitectureNamesWhatThereIs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "ARCHITECTURE.md"))
	require.NoError(t, err)
	declared, files := declarations(t)
	names := 0
	quoted := regexp.MustCompile("`([a-zA-Z]\\w*(?:\\.\\w+)*)`")
	for _, found := range quoted.FindAllStringSubmatch(string(page), -1) {
		name := found[1]
		if strings.HasPrefix(name, "Test") || token.IsKeyword(name) {
			continue // internal/tests/docs looks for the tests
		}
		names++
		parts := strings.Split(name, ".")
		assert.True(t, declared[strings.Join(parts[max(0, len(parts)-2):], ".")], found[0])
	}
	require.Greater(t, names, 150)
	for _, name := range regexp.MustCompile(`\b\w+\.go\b`).FindAllString(string(page), -1) {
		assert.True(t, files[name], name)
	}
}

// declarations are the names that the library declares, alone and behind the name of their package
// or type, and the names of its files.
func declarations(t *testing.T) (names, files map[string]bool) {
	t.Helper()
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	names, files = make(map[string]bool), make(map[string]bool)
	for _, path := range lib.Files() {
		files[filepath.Base(path)] = true
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		within := file.Name.Name
		ast.Inspect(file, func(n ast.Node) bool {
			var ids []*ast.Ident
			of := within
			switch n := n.(type) {
			case *ast.FuncDecl:
				ids = []*ast.Ident{n.Name}
				if n.Recv != nil {
					of = types.ExprString(n.Recv.List[0].Type)
				}
			case *ast.TypeSpec:
				ids = []*ast.Ident{n.Name}
				for _, name := range membersOf(n) {
					names[n.Name.Name+"."+name], names[name] = true, true
				}
			case *ast.ValueSpec:
				ids = n.Names
			}
			for _, id := range ids {
				of, _, _ = strings.Cut(strings.TrimPrefix(of, "*"), "[")
				names[of+"."+id.Name], names[id.Name] = true, true
			}
			return true
		})
	}
	return names, files
}

// membersOf are the fields of a struct, or the methods of an interface.
func membersOf(spec *ast.TypeSpec) (names []string) {
	var members *ast.FieldList
	switch def := spec.Type.(type) {
	case *ast.StructType:
		members = def.Fields
	case *ast.InterfaceType:
		members = def.Methods
	default:
		return nil
	}
	for _, m := range members.List {
		for _, id := range m.Names {
			names = append(names, id.Name)
		}
		if len(m.Names) == 0 { // embedded
			name := types.ExprString(m.Type)
			names = append(names, name[strings.LastIndexAny(name, ".*")+1:])
		}
	}
	return names
}

// A relative clause that hangs on another one is read twice. Some are the shortest way to say it.
func TestFewRelativesAreChained(t *testing.T) {
	const most = 30
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	chained := regexp.MustCompile(`//.*\b(of which|that of|by which|behind which|in whose|of whose)\b`)
	var found []string
	for _, path := range lib.Files() {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		found = append(found, chained.FindAllString(string(text), -1)...)
	}
	require.NotEmpty(t, found)
	require.Less(t, len(found), most, strings.Join(found, "\n"))
}

// The methods of a type stand in one file, or two.
func TestATypeStandsInOneFileOrTwo(t *testing.T) {
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	info := &types.Info{Defs: make(map[*ast.Ident]types.Object)}
	library, err := lib.Check(nil, info)
	require.NoError(t, err)
	inPackage := func(p *types.Package) string {
		if p == library {
			return ""
		}
		return p.Name()
	}
	files := make(map[string]map[string]bool)
	for id, object := range info.Defs {
		f, isFunc := object.(*types.Func)
		if !isFunc || f.Signature().Recv() == nil || types.IsInterface(f.Signature().Recv().Type()) {
			continue
		}
		name := strings.TrimPrefix(types.TypeString(f.Signature().Recv().Type(), inPackage), "*")
		if files[name] == nil {
			files[name] = make(map[string]bool)
		}
		files[name][filepath.Base(lib.Fset.Position(id.Pos()).Filename)] = true
	}
	for name, in := range files {
		assert.LessOrEqual(t, len(in), 2, "%s: %v", name, slices.Sorted(maps.Keys(in)))
	}
}

// A reader learns the library from go doc in a sitting. Rare facts are on the pages.
func TestTheDocumentationOfThePackageIsShort(t *testing.T) {
	const most = 11_300
	cmd := exec.CommandContext(t.Context(), "go", "doc", "-all", ".")
	cmd.Dir = filepath.Join("..", "..")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	text, err := cmd.Output()
	require.NoError(t, err)
	words := len(strings.Fields(string(text)))
	require.Greater(t, words, most/2)
	require.LessOrEqual(t, words, most)
}
