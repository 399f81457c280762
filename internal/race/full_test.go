package race_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/race"
)

// module is the root of the module, seen from here.
const module = "../.."

// Invariant: whatever Fewer shortens runs in full in a step of .ci/run, and those steps run
// nothing else. A round that every step leaves out proves nothing.
func TestCIRunsInFullWhatIsShortened(t *testing.T) {
	shortened := make(map[string][]string) // tests by the folder of their package
	for dir, files := range testFiles(t) {
		if tests := outlineOf(files).shortened(); len(tests) > 0 {
			shortened[dir] = tests
		}
	}
	require.NotEmpty(t, shortened)
	require.Equal(t, shortened, inFull(t), "what race.Fewer shortens, and what .ci/run runs in full")
}

// inFull are the tests that the steps "in full" of .ci/run select, by the folder of their package.
func inFull(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(module, ".ci", "run"))
	require.NoError(t, err)
	functions := regexp.MustCompile(`(?ms)^(in_full\w*)\(\) \{(?: [^\n]* \}$|\n.*?^\}$)`)
	var script strings.Builder
	script.WriteString("go() { [[ $" + race.WholeEnv + " ]] && printf '%s\\n' \"$@\"; }\n") // prints its arguments
	found := functions.FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, found)
	for _, function := range found {
		require.Regexp(t, `(?m)^\s*check ".*" `+function[1]+"$", string(text), "a step")
		script.WriteString(function[0] + "\n" + function[1] + "\n")
	}
	said, err := exec.CommandContext(t.Context(), "bash", "-c", script.String()).Output()
	require.NoError(t, err)

	files, selected := testFiles(t), make(map[string][]string)
	var pattern *regexp.Regexp
	args := strings.Fields(string(said))
	for i, arg := range args {
		switch {
		case arg == "-run":
			pattern = regexp.MustCompile(args[i+1])
		case strings.HasPrefix(arg, "."):
			dir := filepath.Clean(arg)
			require.NotEmpty(t, files[dir], "no tests in %s", arg)
			for _, test := range outlineOf(files[dir]).tests() {
				if pattern.MatchString(test) {
					selected[dir] = append(selected[dir], test)
				}
			}
		}
	}
	return selected
}

// testFiles returns the test files of all modules, by their folder.
func testFiles(t *testing.T) map[string][]*ast.File {
	t.Helper()
	files, fset := make(map[string][]*ast.File), token.NewFileSet()
	require.NoError(t, filepath.WalkDir(module, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		dir, err := filepath.Rel(module, filepath.Dir(path))
		require.NoError(t, err)
		files[dir] = append(files[dir], file)
		return nil
	}))
	return files
}

// An outline has what a package's tests declare, by name, with the names that each
// declaration mentions. A method's name begins with a dot, and methods of one name count as
// one, whatever their types.
type outline map[string]map[string]bool

func outlineOf(files []*ast.File) outline {
	o := make(outline)
	for _, file := range files {
		for _, decl := range file.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				name := decl.Name.Name
				if decl.Recv != nil {
					name = "." + name
				}
				o.add(name, decl)
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					if values, ok := spec.(*ast.ValueSpec); ok {
						for _, name := range values.Names {
							o.add(name.Name, values)
						}
					}
				}
			}
		}
	}
	return o
}

// add puts a declaration into o. It joins those of one name.
func (o outline) add(name string, decl ast.Node) {
	if o[name] == nil {
		o[name] = make(map[string]bool)
	}
	var mention func(n ast.Node) bool
	mention = func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			o[name][n.Name] = true
		case *ast.SelectorExpr:
			o[name]["."+n.Sel.Name] = true
			if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "race" {
				o[name]["race."+n.Sel.Name] = true
			}
			ast.Inspect(n.X, mention)
			return false
		}
		return true
	}
	ast.Inspect(decl, mention)
}

// tests returns the names of the tests.
func (o outline) tests() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(o)), func(name string) bool {
		return !strings.HasPrefix(name, "Test") || name == "TestMain"
	})
}

// shortened returns the tests that ask package race how much to do, directly or through
// what they mention.
func (o outline) shortened() []string {
	return slices.DeleteFunc(o.tests(), func(test string) bool {
		return !o.asks(test, make(map[string]bool))
	})
}

func (o outline) asks(name string, seen map[string]bool) bool {
	if seen[name] {
		return false
	}
	seen[name] = true
	if o[name]["race.Fewer"] || o[name]["race.Whole"] {
		return true
	}
	for mentioned := range o[name] {
		if o.asks(mentioned, seen) {
			return true
		}
	}
	return false
}
