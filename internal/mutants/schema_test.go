package mutants

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chosenEnv chooses a mutant of a schema by its number, in a process and in those that it
// starts.
const chosenEnv = "PLANTED_MUTANT"

// A schema is the library with many mutants in it ("mutant schemata", Untch, Offutt and
// Harrold 1993). It has all versions of each function that mutants change, and the
// environment of a process chooses one. It takes as long to build as one mutant. Without a
// choice it is the library as it is.
type schema struct {
	files   map[string]*file
	numbers map[string]int // of the mutants in it, from 1, by their names
	alone   []mutant       // mutants that change more than the inside of functions
}

// A file is a file of the library that mutants change.
type file struct {
	outline
	versions map[int][]version // of its functions, by their places in it
}

// A version of a function is its body in a mutant.
type version struct {
	mutant int
	body   string
}

// An outline is a file without the inside of its functions.
type outline struct {
	text    []byte
	name    *ast.Ident // of the package
	around  string     // what is outside of functions, without the imports
	imports map[string]bool
	funcs   []*ast.FuncDecl
}

// at returns the text of a node. The outline's positions are offsets plus one.
func (o outline) at(from, to token.Pos) string { return string(o.text[from-1 : to-1]) }

func outlineOf(t *testing.T, path string, text []byte) outline {
	t.Helper()
	// In a file set of its own, the base of the first file is 1.
	parsed, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution)
	require.NoError(t, err)
	o := outline{text: text, name: parsed.Name, imports: make(map[string]bool)}
	from := token.Pos(1)
	leave := func(begin, end token.Pos) { o.around, from = o.around+o.at(from, begin), end }
	for _, decl := range parsed.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			o.funcs = append(o.funcs, decl)
			leave(decl.Body.Pos(), decl.Body.End())
		case *ast.GenDecl:
			if decl.Tok == token.IMPORT {
				leave(decl.Pos(), decl.End())
				for _, spec := range decl.Specs {
					o.imports[o.at(spec.Pos(), spec.End())] = true
				}
			}
		}
	}
	leave(token.Pos(len(text)+1), 0)
	return o
}

// newSchema puts all of ms into one schema that can be in one.
func newSchema(t *testing.T, ms []mutant) *schema {
	s := &schema{files: make(map[string]*file), numbers: make(map[string]int)}
	for _, m := range ms {
		if !s.add(t, m, len(s.numbers)+1) {
			s.alone = append(s.alone, m)
		}
	}
	return s
}

// add puts m into s, and reports whether it can be there.
func (s *schema) add(t *testing.T, m mutant, number int) bool {
	changed := m.texts(t)
	mutated := make(map[string]outline)
	for path, text := range changed {
		if s.files[path] == nil {
			s.files[path] = &file{outlineOf(t, path, read(t, path)), make(map[int][]version)}
		}
		is, would := s.files[path], outlineOf(t, path, text)
		if is.around != would.around {
			return false
		}
		for name := range would.imports {
			if !is.imports[name] {
				return false
			}
		}
		for i, f := range is.funcs {
			differs := is.at(f.Body.Pos(), f.Body.End()) !=
				would.at(would.funcs[i].Body.Pos(), would.funcs[i].Body.End())
			if differs && (f.Type.TypeParams != nil || f.Name.Name == "init") {
				return false
			}
		}
		mutated[path] = would
	}
	for path, would := range mutated {
		is := s.files[path]
		for i, f := range is.funcs {
			body := would.at(would.funcs[i].Body.Pos(), would.funcs[i].Body.End())
			if body != is.at(f.Body.Pos(), f.Body.End()) {
				is.versions[i] = append(is.versions[i], version{number, body})
			}
		}
	}
	s.numbers[m.name] = number
	return true
}

// texts returns the library's files that s changes, by their paths.
func (s *schema) texts() map[string][]byte {
	texts, chooses := make(map[string][]byte), make(map[string]bool)
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		f := s.files[path]
		if len(f.versions) == 0 {
			continue
		}
		text := bytes.Clone(f.text)
		for i, fn := range slices.Backward(f.funcs) {
			if f.versions[i] != nil {
				all := []byte(f.all(fn, f.versions[i]))
				text = slices.Replace(text, int(fn.Pos()-1), int(fn.End()-1), all...)
			}
		}
		if dir := filepath.Dir(path); !chooses[dir] {
			chooses[dir] = true
			text = slices.Insert(text, int(f.name.End()-1),
				[]byte(`; import plantedOS "os"; import plantedStrconv "strconv"`)...)
			text = fmt.Appendf(text,
				"\nvar planted, _ = plantedStrconv.Atoi(plantedOS.Getenv(%q))\n", chosenEnv)
		}
		texts[path] = text
	}
	return texts
}

// all returns a function that calls the chosen one of its versions, and those versions.
func (o outline) all(f *ast.FuncDecl, versions []version) string {
	var all, receiver, self strings.Builder
	if f.Recv != nil {
		kind := f.Recv.List[0].Type
		fmt.Fprintf(&receiver, "(self %s) ", o.at(kind.Pos(), kind.End()))
		self.WriteString("self.")
	}
	var params, args, results []string
	for _, p := range f.Type.Params.List {
		for range max(1, len(p.Names)) {
			arg := fmt.Sprint("p", len(args))
			params = append(params, arg+" "+o.at(p.Type.Pos(), p.Type.End()))
			if _, variadic := p.Type.(*ast.Ellipsis); variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	if f.Type.Results != nil {
		for _, r := range f.Type.Results.List {
			for range max(1, len(r.Names)) {
				results = append(results, o.at(r.Type.Pos(), r.Type.End()))
			}
		}
	}
	call := func(number int) string {
		call := fmt.Sprintf("%s%s_%d(%s)", &self, f.Name, number, strings.Join(args, ", "))
		if len(results) > 0 {
			return "return " + call
		}
		return call
	}
	fmt.Fprintf(&all, "func %s%s(%s) (%s) {\nswitch planted {\n",
		&receiver, f.Name, strings.Join(params, ", "), strings.Join(results, ", "))
	for _, v := range versions {
		fmt.Fprintf(&all, "case %d:\n%s\n", v.mutant, call(v.mutant))
	}
	fmt.Fprintf(&all, "default:\n%s\n}\n}\n", call(0))
	versions = append([]version{{0, o.at(f.Body.Pos(), f.Body.End())}}, versions...)
	for _, v := range versions {
		fmt.Fprintf(&all, "%s%s_%d%s%s\n", o.at(f.Pos(), f.Name.Pos()), f.Name, v.mutant,
			o.at(f.Name.End(), f.Body.Pos()), v.body)
	}
	return all.String()
}
