// Package source checks the types of the library's source, as the compiler does, in a
// fraction of its time. It checks the package at the root, the packages below internal/ of
// which that is made, and commands if the caller asks for them.
package source

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
)

// A Library is its source, and the packages that this imports.
type Library struct {
	Fset     *token.FileSet
	root     string         // path of the package at the root
	packages []sources      // the library's own, each after those that it imports
	others   types.Importer // of the packages that they import; it reads each once
}

// sources are the files of a package.
type sources struct {
	path  string
	files []string
}

// Load reads which files there are. dir is the root of the module. commands are the folders
// of commands to check with the library.
func Load(ctx context.Context, dir string, commands ...string) (*Library, error) {
	var failed error
	list := func(args ...string) []string {
		args = append([]string{"list", "-deps"}, args...)
		cmd := exec.CommandContext(ctx, "go", append(append(args, "."), commands...)...)
		cmd.Dir = dir
		out, err := cmd.Output()
		if err != nil {
			failed = fmt.Errorf("%v: %w", cmd, err)
		}
		return strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	l, exports := &Library{Fset: token.NewFileSet()}, make(map[string]string)
	for _, line := range list("-export", "-f", "{{.ImportPath}}={{.Export}}") {
		path, export, _ := strings.Cut(line, "=")
		exports[path] = export
	}
	l.others = importer.ForCompiler(l.Fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	const own = `{{with .Module}}{{if .Main}}{{.Path}}={{$.ImportPath}}` +
		`{{range $.GoFiles}}={{$.Dir}}/{{.}}{{end}}{{end}}{{end}}`
	for _, line := range list("-f", own) {
		if parts := strings.Split(line, "="); len(parts) > 2 {
			if l.root == "" { // else it is that of a command, which may have a module of its own
				l.root = parts[0]
			}
			l.packages = append(l.packages, sources{parts[1], parts[2:]})
		}
	}
	if failed == nil && len(l.packages) == 0 {
		failed = errors.New("no package of the library")
	}
	return l, failed
}

// Files returns the paths of its files.
func (l *Library) Files() (paths []string) {
	for _, p := range l.packages {
		paths = append(paths, p.files...)
	}
	return paths
}

// Check checks the library. changed has other texts for some of its files, by their paths.
// Check returns the package at the root. If info is not nil, it adds to info what it learns
// about all packages.
func (l *Library) Check(
	changed map[string][]byte, info *types.Info,
) (root *types.Package, err error) {
	imports := own{Importer: l.others, checked: make(map[string]*types.Package)}
	left := len(changed)
	for _, p := range l.packages {
		var files []*ast.File
		for _, path := range p.files {
			var text any // nil makes the parser read the file
			if changed[path] != nil {
				text = changed[path]
				left--
			}
			const mode = parser.SkipObjectResolution | parser.ParseComments
			file, err := parser.ParseFile(l.Fset, path, text, mode)
			if err != nil {
				return nil, err
			}
			files = append(files, file)
		}
		config := types.Config{Importer: imports}
		checked, err := config.Check(p.path, l.Fset, files, info)
		if err != nil {
			return nil, err
		}
		imports.checked[p.path] = checked
	}
	if left > 0 {
		return nil, errors.New("it changes files that are not the library's")
	}
	return imports.checked[l.root], nil
}

// An own importer has the packages that were checked, and gets all others elsewhere.
type own struct {
	types.Importer
	checked map[string]*types.Package
}

// Import is as in types.Importer.
func (o own) Import(path string) (*types.Package, error) {
	if checked := o.checked[path]; checked != nil {
		return checked, nil
	}
	return o.Importer.Import(path)
}
