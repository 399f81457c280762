package mutants

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/source"
)

// A change makes a mutant out of the library: each of its steps edits one place in a
// declaration.
//
// The declaration is a function, a constant, a variable or a type. Its name is as much of
// package.Type.name as tells it from all others, wherever its file and its package are.
//
// The place is Go: an expression, statements in a row, an element of a literal, or the head
// of an if, for, switch or case. It is compared with the declaration as a syntax tree, so
// white space, comments and brackets do not count. A head says nothing of what follows it.
// In a place
//
//	_, _x     are any expressions: write them for what has no name outside of the function
//	f(_...)   is a call of f with any arguments; others may stand before these
//	{}        is any block
//	it        is any expression, and is what is edited, instead of the whole
//	#2 of 3   at the end says which, if it fits three times
//
// In the text that comes in, _x is what it was in the place. In both, _self is the receiver.
// So a mutant need not change if what is declared in a function gets another name.
//
// How a place is to be written, in this order: by the names that others see (_.Ticket.Lost()),
// by its form (if _ > 0), by the names of the function (if known), by its number. A place that
// fits nowhere, or more often than it says, is an error.
type change struct {
	decl  string // of the next step
	steps []step
}

type step struct{ decl, verb, place, text string }

// in begins a change, in a declaration.
func in(decl string) change { return change{decl: decl} }

// in goes on in another declaration.
func (c change) in(decl string) change { return change{decl, c.steps} }

// drop leaves out statements, a term of a condition, or an element of a list.
func (c change) drop(place string) change { return c.then("drop", place, "") }

// replace puts text in the place.
func (c change) replace(place, text string) change { return c.then("replace", place, text) }

// and adds a term to a condition.
func (c change) and(place, term string) change { return c.then("and", place, " && "+term) }

// or adds an alternative to a condition.
func (c change) or(place, term string) change { return c.then("or", place, " || "+term) }

// never makes a condition false, once it is evaluated.
func (c change) never(place string) change { return c.and(place, "false") }

// always makes a condition true, once it is evaluated.
func (c change) always(place string) change { return c.or(place, "true") }

// before puts statements, or an element of a list, before the place.
func (c change) before(place, text string) change { return c.then("before", place, text) }

// after puts them after it: in a case, at its end.
func (c change) after(place, text string) change { return c.then("after", place, text) }

func (c change) then(verb, place, text string) change {
	return change{c.decl, append(c.steps, step{c.decl, verb, place, text})}
}

// files returns the files that c changes, relative to the module.
func (c change) files() (files []string, err error) {
	for _, s := range c.steps {
		path, _, err := find(s.decl)
		if err != nil {
			return nil, err
		}
		root, err := filepath.Abs(module)
		if err != nil {
			return nil, err
		}
		files = append(files, filepath.ToSlash(strings.TrimPrefix(path, root+string(filepath.Separator))))
	}
	return files, nil
}

// texts returns the library's files that c changes, by their paths.
func (c change) texts() (map[string][]byte, error) {
	texts := make(map[string][]byte)
	for _, s := range c.steps {
		path, name, err := find(s.decl)
		if err != nil {
			return nil, err
		}
		if texts[path] == nil {
			if texts[path], err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
		if texts[path], err = s.apply(texts[path], name); err != nil {
			return nil, fmt.Errorf("in(%q).%s(%q): %w", s.decl, s.verb, s.place, err)
		}
	}
	return texts, nil
}

// ---- declarations

// library is the source of the library, of package concurrency, and of the command.
var library = sync.OnceValues(func() (*source.Library, error) {
	return source.Load(context.Background(), module, "./cmd/etcdlock", "./concurrency")
})

// declared are the files with a declaration, by package.Type.name.
var declared = sync.OnceValues(func() (map[string][]string, error) {
	lib, err := library()
	if err != nil {
		return nil, err
	}
	files := make(map[string][]string)
	for _, path := range lib.Files() {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		decls, err := declarations(text)
		if err != nil {
			return nil, err
		}
		for name := range decls {
			files[name] = append(files[name], path)
		}
	}
	return files, nil
})

// find returns the file of a declaration, and its whole name.
func find(decl string) (path, name string, err error) {
	files, err := declared()
	if err != nil {
		return "", "", err
	}
	var found []string
	for whole, paths := range files {
		if strings.HasSuffix("."+whole, "."+decl) {
			path, name, found = paths[0], whole, append(found, paths...)
		}
	}
	if len(found) != 1 {
		return "", "", fmt.Errorf("%q is declared %d times, in %v", decl, len(found), found)
	}
	return path, name, nil
}

// declarations are those of a file, by package.Type.name. Positions are offsets plus one.
func declarations(text []byte) (map[string]ast.Node, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	decls := make(map[string]ast.Node)
	pkg := file.Name.Name + "."
	for _, decl := range file.Decls {
		switch decl := decl.(type) {
		case *ast.FuncDecl:
			kind := ""
			if decl.Recv != nil {
				receiver := decl.Recv.List[0].Type
				kind = strings.TrimPrefix(string(text[receiver.Pos()-1:receiver.End()-1]), "*")
				kind, _, _ = strings.Cut(kind, "[")
				kind += "."
			}
			decls[pkg+kind+decl.Name.Name] = decl
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, id := range spec.Names {
						decls[pkg+id.Name] = spec
					}
				case *ast.TypeSpec:
					decls[pkg+spec.Name.Name] = spec
				}
			}
		}
	}
	return decls, nil
}

// ---- places

// apply carries s out in a file.
func (s step) apply(text []byte, name string) ([]byte, error) {
	decls, err := declarations(text)
	if err != nil {
		return nil, err
	}
	at, err := search(decls[name], s.place)
	if err != nil {
		return nil, err
	}
	from, to := at.first.Pos(), at.last.End()
	source := func(n ast.Node) string { return string(text[n.Pos()-1 : n.End()-1]) }
	given := placeholder.ReplaceAllStringFunc(s.text, func(name string) string {
		switch n := at.names[name].(type) {
		case nil:
			return name
		case *ast.BinaryExpr:
			return "(" + source(n) + ")"
		default:
			return source(n)
		}
	})
	was, new, separator := string(text[from-1:to-1]), "", "\n"
	_, isExpr := at.first.(ast.Expr)
	_, isStmt := at.in.(*ast.ExprStmt)
	if isExpr && !isStmt {
		separator = ", "
	}
	switch s.verb {
	case "replace":
		new = given
		if e, err := parser.ParseExpr(new); err == nil && isExpr {
			if _, ok := e.(*ast.BinaryExpr); ok {
				new = "(" + new + ")"
			}
		}
	case "and", "or":
		new = "((" + was + ")" + given + ")"
	case "before":
		new = given + separator + was
	case "after":
		new = was + separator + given
	case "drop":
		var list []ast.Expr
		switch in := at.in.(type) {
		case *ast.BinaryExpr:
			if in.Op == token.LAND || in.Op == token.LOR {
				new = source(in.X)
				if to <= in.X.End() {
					new = source(in.Y)
				}
				from, to = in.Pos(), in.End()
			}
		case *ast.CallExpr:
			list = in.Args
		case *ast.CompositeLit:
			list = in.Elts
		case *ast.CaseClause:
			list = in.List
		}
		for i, e := range list { // with the comma
			if e == at.first && i > 0 {
				from = list[i-1].End()
			} else if e == at.first && len(list) > 1 {
				to = list[1].Pos()
			}
		}
	}
	return slices.Concat(text[:from-1], []byte(new), text[to-1:]), nil
}

// placeholder matches the names of what is any expression.
var placeholder = regexp.MustCompile(`\b_\w+\b`)

// A spot is what is edited: the nodes from first to last, in a node.
type spot struct {
	first, last, in ast.Node
	names           map[string]ast.Node // what the place has names for
}

// search returns the spot in decl where a place fits.
func search(decl ast.Node, place string) (spot, error) {
	which, count := 1, 1
	if i := strings.LastIndex(place, "#"); i >= 0 {
		if _, err := fmt.Sscanf(place[i:], "#%d of %d", &which, &count); err == nil {
			place = place[:i]
		}
	}
	pattern, clause := parsePlace(place)
	names := make(map[string]ast.Node)
	within := decl
	if f, ok := decl.(*ast.FuncDecl); ok {
		within = f.Body
		if f.Recv != nil && len(f.Recv.List[0].Names) > 0 {
			names["_self"] = f.Recv.List[0].Names[0]
		}
	}
	var found []spot
	try := func(pattern []ast.Node, nodes ...ast.Node) {
		at := spot{nodes[0], nodes[len(nodes)-1], nil, maps.Clone(names)}
		if !equal(reflect.ValueOf(pattern), reflect.ValueOf(nodes), at.names) {
			return
		}
		if it := at.names["it"]; it != nil {
			at.first, at.last = it, it
		}
		found = append(found, at)
	}
	for n := range ast.Preorder(within) {
		if _, brackets := n.(*ast.ParenExpr); brackets {
			continue
		}
		try(pattern, n)
		try(clause, n)
		var list []ast.Node
		for _, s := range statements(n) {
			list = append(list, s)
		}
		for i := 0; len(pattern) > 1 && i+len(pattern) <= len(list); i++ {
			try(pattern, list[i:i+len(pattern)]...)
		}
	}
	if len(found) != count || which < 1 || which > count {
		return spot{}, fmt.Errorf("the place is there %d times", len(found))
	}
	at := found[which-1]
	ast.PreorderStack(decl, nil, func(n ast.Node, in []ast.Node) bool {
		for _, outer := range in {
			if _, brackets := outer.(*ast.ParenExpr); n == at.first && !brackets {
				at.in = outer
			}
		}
		return true
	})
	return at, nil
}

// statements are those that n has in a list.
func statements(n ast.Node) []ast.Stmt {
	switch n := n.(type) {
	case *ast.BlockStmt:
		return n.List
	case *ast.CaseClause:
		return n.Body
	case *ast.CommClause:
		return n.Body
	}
	return nil
}

// parsePlace returns what a place is: one node, or statements in a row. The head of a case
// may be that of a select, too, which is clause.
func parsePlace(place string) (pattern, clause []ast.Node) {
	if e, err := parser.ParseExpr(place); err == nil {
		return []ast.Node{e}, nil
	}
	parse := func(form string) (list []ast.Node) {
		text := fmt.Sprintf("package p; func _() {"+form+"\n}", place)
		file, err := parser.ParseFile(token.NewFileSet(), "", text, parser.SkipObjectResolution)
		if err == nil {
			for _, s := range file.Decls[0].(*ast.FuncDecl).Body.List {
				list = append(list, s)
			}
		}
		return list
	}
	if list := parse("_ = _{%s}"); list != nil {
		return []ast.Node{list[0].(*ast.AssignStmt).Rhs[0].(*ast.CompositeLit).Elts[0]}, nil
	}
	for _, form := range []string{"%s", "%s {}"} {
		if list := parse(form); list != nil {
			return list, nil
		}
	}
	if list := parse("switch { %s: }"); list != nil {
		pattern = []ast.Node{list[0].(*ast.SwitchStmt).Body.List[0]}
	}
	if list := parse("select { %s: }"); list != nil {
		clause = []ast.Node{list[0].(*ast.SelectStmt).Body.List[0]}
	}
	return pattern, clause
}

// equal reports whether a pattern fits what is in a syntax tree. It adds to names what has a
// name in the pattern, which is the same wherever that is.
func equal(pattern, node reflect.Value, names map[string]ast.Node) bool {
	pattern, node = bare(pattern), bare(node)
	if !pattern.IsValid() || !node.IsValid() {
		return pattern.IsValid() == node.IsValid()
	}
	if id, ok := pattern.Interface().(*ast.Ident); ok && (id.Name[0] == '_' || id.Name == "it") {
		e, ok := node.Interface().(ast.Expr)
		if known := names[id.Name]; ok && known != nil && id.Name != "_" {
			return equal(reflect.ValueOf(known), node, names)
		} else if ok {
			names[id.Name] = e
		}
		return ok
	}
	if pattern.Type() != node.Type() {
		return false
	}
	switch p := pattern.Interface().(type) {
	case token.Pos, *ast.CommentGroup:
		return true
	case *ast.CallExpr:
		n := node.Interface().(*ast.CallExpr)
		some := len(p.Args) - 1
		if p.Ellipsis.IsValid() && isBlank(p.Args[some]) && some <= len(n.Args) {
			p = &ast.CallExpr{Fun: p.Fun, Args: p.Args[:some]}
			n = &ast.CallExpr{Fun: n.Fun, Args: n.Args[:some]}
		}
		if p.Ellipsis.IsValid() != n.Ellipsis.IsValid() {
			return false
		}
		pattern, node = reflect.ValueOf(p), reflect.ValueOf(n)
	case []ast.Stmt:
		if len(p) == 0 {
			return true
		}
	}
	switch pattern.Kind() {
	case reflect.Pointer:
		return equal(pattern.Elem(), node.Elem(), names)
	case reflect.Slice:
		for i := range min(pattern.Len(), node.Len()) {
			if !equal(pattern.Index(i), node.Index(i), names) {
				return false
			}
		}
		return pattern.Len() == node.Len()
	case reflect.Struct:
		for i := range pattern.NumField() {
			isHead := pattern.Type().Field(i).Name == "Else" && pattern.Field(i).IsNil()
			if !isHead && !equal(pattern.Field(i), node.Field(i), names) {
				return false
			}
		}
		return true
	}
	return pattern.Interface() == node.Interface()
}

func isBlank(e ast.Expr) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == "_"
}

// bare is a node without its brackets. It is invalid for nil.
func bare(v reflect.Value) reflect.Value {
	for v.Kind() == reflect.Interface {
		v = v.Elem()
	}
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return reflect.Value{}
	}
	if v.IsValid() {
		if brackets, ok := v.Interface().(*ast.ParenExpr); ok {
			return bare(reflect.ValueOf(brackets.X))
		}
	}
	return v
}

func TestAStepEditsOnePlace(t *testing.T) {
	const source = `package p

func (l *line) f(all []int, known bool) (int, error) {
	if known && l.open() && !l.over { // a comment
		return 0, nil
	}
	defer l.mu.Unlock()
	switch {
	case l.a, l.b:
		l.put(1, point{X: 2, Y: 3})
	default:
	}
	for _, n := range all {
		l.sum = (n + 1) * 2
	}
	return l.sum, nil
}`
	for _, row := range []struct {
		made     change
		old, new string // none if it does not fit
	}{
		{in("").drop("_.open()"), " && l.open()", ""},
		{in("").drop("known"), "known && ", ""},
		{in("").drop("if _ || _"), "", ""},
		{in("").drop("if _ && _ && !_"), "if known && l.open() && !l.over { // a comment\n\t\treturn 0, nil\n\t}", ""},
		{in("").drop("return _, nil"), "", ""},
		{in("").drop("return _, nil #2 of 2"), "return l.sum, nil", ""},
		{in("").drop("return _, nil #2 of 3"), "", ""},
		{in("").drop("case _.a, it"), ", l.b", ""},
		{in("").drop("case _, _"), "case l.a, l.b:\n\t\tl.put(1, point{X: 2, Y: 3})", ""},
		{in("").drop("Y: 3"), ", Y: 3", ""},
		{in("").replace("_.put(it, _...)", "7"), "1", "7"},
		{in("").replace("_n + 1", "_n - 1"), "n + 1", "(n - 1)"},
		{in("").replace("_n + _n", "1"), "", ""},
		{in("").replace("_.sum = it", "_self.over"), "(n + 1) * 2", "l.over"},
		{in("").never("!_.over"), "!l.over", "((!l.over) && false)"},
		{in("").always("if it"), "known && l.open() && !l.over", "((known && l.open() && !l.over) || true)"},
		{in("").before("defer _.mu.Unlock()", "_self.mu.Lock()"), "defer", "l.mu.Lock()\ndefer"},
		{in("").before("point{}", "0"), "", ""},
		{in("").after("X: _", "Z: 4"), "X: 2", "X: 2, Z: 4"},
		{in("").after("default", "f()"), "default:", "default:\nf()"},
		{in("").replace("_.mu.Unlock(); switch", ""), "", ""},
		{in("").drop("no Go at all"), "", ""},
	} {
		s := row.made.steps[0]
		made, err := s.apply([]byte(source), "p.line.f")
		if row.old == "" {
			require.Error(t, err, s.place)
			continue
		}
		require.NoError(t, err, s.place)
		require.Contains(t, source, row.old)
		require.Equal(t, strings.Replace(source, row.old, row.new, 1), string(made), s.place)
	}
}
