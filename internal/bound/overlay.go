package bound

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"go/types"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/etcdlock/etcdlock/internal/bound/steps"
	"github.com/etcdlock/etcdlock/internal/source"
)

// counter is where package steps is, in the module.
const counter = "internal/bound/steps"

// alias is the name of package steps in the library.
const alias = "countedSteps"

// Flags and Env are what go test needs besides the overlay. With one processor, and goroutines that
// give it up only where they call something, the tests are the same each time.
var (
	Flags = []string{"-tags", "timed,bound", "-vet", "off", "-cpu", "1", "-count", "1"}
	Env   = []string{"GODEBUG=asyncpreemptoff=1"}
)

// Write writes the overlay of the module in the folder module to the folder to, and returns the
// path of the file for go build -overlay.
func Write(ctx context.Context, module, to string) (overlay string, err error) {
	texts, err := Texts(ctx, module, nil)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for path, text := range texts {
		written := filepath.Join(to, fmt.Sprint(len(replace), filepath.Base(path)))
		if err := os.WriteFile(written, text, 0o600); err != nil {
			return "", err
		}
		replace[path] = written
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(to, "overlay.json")
	return overlay, os.WriteFile(overlay, list, 0o600)
}

// Texts returns the files of the library, by their absolute paths, as they are with all that counts
// steps. changed has other texts for some of them, and may have texts for files that are none of
// these: they are left out.
func Texts(
	ctx context.Context, module string, changed map[string][]byte,
) (texts map[string][]byte, err error) {
	module, err = filepath.Abs(module)
	if err != nil {
		return nil, err
	}
	lib, err := source.Load(ctx, module)
	if err != nil {
		return nil, err
	}
	info := &types.Info{
		Uses:   make(map[*ast.Ident]types.Object),
		Types:  make(map[ast.Expr]types.TypeAndValue),
		Scopes: make(map[ast.Node]*types.Scope),
	}
	own := lib.Files()
	changed = maps.Clone(changed)
	maps.DeleteFunc(changed, func(path string, _ []byte) bool { return !slices.Contains(own, path) })
	library, err := lib.Check(changed, info)
	if err != nil {
		return nil, err
	}
	c := &counting{
		module: module, library: library.Path(), fset: lib.Fset, info: info,
		texts: make(map[string][]byte),
	}
	files := make(map[string]*ast.File)
	for node := range info.Scopes {
		if file, ok := node.(*ast.File); ok {
			files[lib.Fset.File(file.Package).Name()] = file
		}
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		text := changed[path]
		if text == nil {
			if text, err = os.ReadFile(path); err != nil {
				return nil, err
			}
		}
		if err := c.file(path, text, files[path]); err != nil {
			return nil, err
		}
	}
	c.texts[filepath.Join(module, counter, "sites.go")] = fmt.Appendf(nil,
		"package steps\n\nvar sites = %#v\n", c.sites)
	return c.texts, nil
}

// A counting makes the library count its steps.
type counting struct {
	module  string
	library string // path of the package at the root
	fset    *token.FileSet
	info    *types.Info

	sites []string
	texts map[string][]byte
}

// A change replaces what stands in a file from one offset to another.
type change struct {
	from, to int
	text     string
}

// A fileChange makes the changes of one file.
type fileChange struct {
	*counting
	path    string
	in      string // the function that is being changed
	changes []change
	types   strings.Builder // what the file declares besides
	err     error
}

// file makes the changes of a file.
func (c *counting) file(path string, text []byte, file *ast.File) error {
	f := &fileChange{counting: c, path: path}
	f.insert(file.Name.End(), fmt.Sprintf("; import %s %q", alias, c.library+"/"+counter))
	fmt.Fprintf(&f.types, "\nvar _ = %s.At\n", alias)
	for _, decl := range file.Decls {
		f.in = ""
		if fn, ok := decl.(*ast.FuncDecl); ok {
			f.in = fn.Name.Name
			if fn.Body != nil {
				f.counts(fn.Body, "")
			}
		}
		ast.Inspect(decl, f.node)
	}
	if f.err != nil {
		return f.err
	}
	slices.SortStableFunc(f.changes, func(a, b change) int { return cmp.Compare(a.from, b.from) })
	var changed strings.Builder
	at := 0
	for _, change := range f.changes {
		changed.Write(text[at:change.from])
		changed.WriteString(change.text)
		at = change.to
	}
	changed.Write(text[at:])
	changed.WriteString(f.types.String())
	c.texts[path] = []byte(changed.String())
	return nil
}

// node makes the changes of a node, and reports that those below it are to be made.
func (f *fileChange) node(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.FuncLit:
		f.counts(n.Body, "")
	case *ast.ForStmt:
		f.counts(n.Body, steps.Loop)
	case *ast.RangeStmt:
		f.counts(n.Body, steps.Loop)
	case *ast.GoStmt:
		f.begins(n.Call)
	case *ast.SelectorExpr:
		f.mutex(n)
	case *ast.CallExpr:
		f.call(n)
	}
	return true
}

// counts makes a block of a kind count a step.
func (f *fileChange) counts(block *ast.BlockStmt, kind string) {
	f.insert(block.Lbrace+1, fmt.Sprintf(" %s.At(%d); ", alias, f.site(block.Lbrace, kind)))
}

// begins makes a goroutine tell that it has begun.
func (f *fileChange) begins(call *ast.CallExpr) {
	if fn, ok := call.Fun.(*ast.FuncLit); ok {
		f.insert(fn.Body.Lbrace+1, " "+alias+".Began(); ")
		return
	}
	if len(call.Args) > 2 {
		f.fail(call, "package steps begins no goroutine with so many arguments")
	}
	f.insert(call.Pos(), fmt.Sprintf("%s.Go%d(", alias, len(call.Args)))
	separator := ""
	if len(call.Args) > 0 {
		separator = ", "
	}
	f.changes = append(f.changes, change{f.offset(call.Lparen), f.offset(call.Lparen) + 1, separator})
}

// OfCleanups is the file whose mutex cleanups of the runtime lock. These run in no bubble of
// testing/synctest, so they may not wake what waits in one at a channel.
const OfCleanups = "internal/etcd/attempt/shared.go"

// mutex replaces the type of a mutex.
func (f *fileChange) mutex(n *ast.SelectorExpr) {
	named, ok := f.info.Uses[n.Sel].(*types.TypeName)
	if !ok || named.Pkg() == nil || named.Pkg().Path() != "sync" ||
		f.path == filepath.Join(f.module, OfCleanups) {
		return
	}
	switch named.Name() {
	case "RWMutex":
		f.fail(n, "package steps has no RWMutex")
	case "Mutex":
		site := f.site(n.Pos(), "")
		f.changes = append(f.changes, change{f.offset(n.Pos()), f.offset(n.End()),
			fmt.Sprintf("%s.Mutex[declares%d]", alias, site)})
		fmt.Fprintf(&f.types, "\ntype declares%d struct{}\n\nfunc (declares%[1]d) Declaration() string"+
			" { return %q }\n\nvar _ sync.Mutex\n", site, f.sites[site])
	}
}

// lazy are the functions that go through what they are given as their result is asked for.
var lazy = map[string]bool{
	"slices.All": true, "slices.Values": true, "slices.Backward": true, "slices.Chunk": true,
	"maps.All": true, "maps.Keys": true, "maps.Values": true,
}

// call makes a call count what the callee goes through, if that is not of the library.
func (f *fileChange) call(call *ast.CallExpr) {
	callee := calleeOf(call.Fun)
	if callee == nil {
		return
	}
	switch callee := f.info.Uses[callee].(type) {
	case *types.Builtin:
		f.builtin(callee.Name(), call)
	case *types.Func:
		pkg := callee.Pkg()
		if pkg == nil || pkg.Path() == f.library || strings.HasPrefix(pkg.Path(), f.library+"/") {
			return
		}
		name := pkg.Path() + "." + callee.Name()
		ofSequences := pkg.Path() == "slices" || pkg.Path() == "maps"
		// What is called with each element counts the step.
		if lazy[name] || ofSequences &&
			(strings.HasSuffix(name, "Func") || strings.HasPrefix(name, "slices.BinarySearch")) {
			return
		}
		for _, arg := range call.Args {
			switch t := f.info.Types[arg].Type.Underlying().(type) {
			case *types.Slice:
				f.slice(arg)
			case *types.Map:
				f.wrap("Map", arg)
			case *types.Signature:
				if ofSequences && t.Params().Len() == 1 {
					f.wrap("Seq", arg)
				}
			}
		}
	}
}

// builtin is call for a function of the language.
func (f *fileChange) builtin(name string, call *ast.CallExpr) {
	if len(call.Args) == 0 {
		return
	}
	last := call.Args[len(call.Args)-1]
	switch name {
	case "append":
		if call.Ellipsis.IsValid() {
			f.slice(last)
		}
	case "copy":
		f.slice(last)
	case "clear":
		if _, is := f.info.Types[last].Type.Underlying().(*types.Map); is {
			f.wrap("Map", last)
		}
		f.slice(last)
	case "close":
		f.wrap("Closed", last)
	case "make":
		for _, n := range call.Args[1:] {
			if f.info.Types[n].Value == nil {
				f.wrap("Len", n)
			}
		}
	}
}

// slice wraps e if it is a slice, unless that is text.
func (f *fileChange) slice(e ast.Expr) {
	slice, is := f.info.Types[e].Type.Underlying().(*types.Slice)
	if is && !types.Identical(slice.Elem(), types.Typ[types.Byte]) {
		f.wrap("Slice", e)
	}
}

// calleeOf is the name of what is called, nil if it has none.
func calleeOf(fn ast.Expr) *ast.Ident {
	switch fn := ast.Unparen(fn).(type) {
	case *ast.Ident:
		return fn
	case *ast.SelectorExpr:
		return fn.Sel
	case *ast.IndexExpr:
		return calleeOf(fn.X)
	case *ast.IndexListExpr:
		return calleeOf(fn.X)
	}
	return nil
}

// wrap gives an expression to a function of package steps, which returns it.
func (f *fileChange) wrap(by string, e ast.Expr) {
	f.insert(e.Pos(), fmt.Sprintf("%s.%s(%d, ", alias, by, f.site(e.Pos(), steps.Loop)))
	f.insert(e.End(), ")")
}

func (f *fileChange) insert(at token.Pos, text string) {
	f.changes = append(f.changes, change{f.offset(at), f.offset(at), text})
}

func (f *fileChange) offset(at token.Pos) int { return f.fset.PositionFor(at, false).Offset }

// site is the number of a place in the source, of a kind.
func (f *fileChange) site(at token.Pos, kind string) int {
	path, err := filepath.Rel(f.module, f.path)
	if err != nil {
		f.err = err
	}
	name := fmt.Sprintf("%s:%d", filepath.ToSlash(path), f.fset.PositionFor(at, false).Line)
	if f.in != "" {
		name += " " + f.in
	}
	f.sites = append(f.sites, name+kind)
	return len(f.sites) - 1
}

func (f *fileChange) fail(n ast.Node, why string) {
	f.err = fmt.Errorf("%v: %s", f.fset.Position(n.Pos()), why)
}
