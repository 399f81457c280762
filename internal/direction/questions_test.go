package direction

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/source"
)

// ends are the functions that end a lease, a hold, a view or a place, by their names without the
// path of the library. All that ends one of these calls one of them.
var ends = []string{
	"(*lease.Lease).becomesLocked",
	"(*hold.Hold).becomesLocked",
	"(*queue.view).endLocked",
	"(*queue.Place).lostLocked",
	"(*queue.Place).ReleasesLocked",
	"(*queue.Place).AbandonLocked",
	"(*queue.Place).NeverPutLocked",
	"(*queue.Place).RemovedLocked",
	"(*queue.Place).RecallLocked",
}

// tells is the beginning of the comment of a function that only tells something.
var tells = regexp.MustCompile(
	`^\w+ (reports whether|(is|are) (the|a|an|what|why|whom|how|when|for how|nil|whether)) `)

// acts are the names of functions that do something, and report how that went.
var acts = regexp.MustCompile(
	`^(ask|audit|Audit|close|compare|end|giveUp|keep|Linger|observe|read|RecallOwn|take)([A-Z]|$)`)

// isQuestion are the names of questions.
var isQuestion = regexp.MustCompile(`^(is|has|may|can|must|needs|Is|Has|May|Can|Must|Needs)[A-Z]`)

// A reader trusts that an if changes nothing. So what is asked ends nothing: no function that only
// tells something, by its name, its comment or its result, and none that a condition calls.
//
// What time alone has ended is over, though a look notes that: Life.Cause and the trust in a lease.
// The unlock of a mutex follows what was marked before: it is no part of a question.
func TestNoQuestionEndsAnything(t *testing.T) {
	g := callsOf(t)
	for _, name := range ends {
		require.Contains(t, g.calls, name)
	}
	for _, q := range g.questions {
		if way := g.way(q, ends); way != nil {
			assert.Fail(t, "a question ends something", "%s", strings.Join(way, " -> "))
		}
	}
	require.Greater(t, len(g.questions), 200)
}

// later is where a look has the rest follow, in another goroutine: at a life whose time is over,
// and at what the keeper of a lease is to see.
var later = []string{"(*hold.Hold).OverSafe", "(*lease.keeper).cares"}

// A graph has who calls whom in the engine: every function that is named in another one's body,
// and for a method of an interface each one that implements it.
type graph struct {
	calls     map[string][]string
	questions []string
}

// way is the shortest way from a function to one of some, nil if there is none.
func (g graph) way(from string, some []string) []string {
	before := map[string]string{from: ""}
	for next := []string{from}; len(next) > 0; next = next[1:] {
		if slices.Contains(some, next[0]) {
			var way []string
			for at := next[0]; at != ""; at = before[at] {
				way = append([]string{at}, way...)
			}
			return way
		}
		for _, to := range g.calls[next[0]] {
			if slices.Contains(later, to) {
				continue
			}
			if _, seen := before[to]; !seen {
				before[to] = next[0]
				next = append(next, to)
			}
		}
	}
	return nil
}

func callsOf(t *testing.T) graph {
	t.Helper()
	lib, err := source.Load(t.Context(), filepath.Join("..", ".."))
	require.NoError(t, err)
	info := &types.Info{
		Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
		FileVersions: make(map[*ast.File]string),
	}
	library, err := lib.Check(nil, info)
	require.NoError(t, err)
	below := library.Path() + "/internal/"
	name := func(f *types.Func) string {
		return strings.ReplaceAll(f.Origin().FullName(), below, "")
	}
	var methods []*types.Func
	for _, object := range info.Defs {
		if f, is := object.(*types.Func); is && f.Signature().Recv() != nil {
			methods = append(methods, f)
		}
	}
	called := func(f *types.Func) (names []string) {
		recv := f.Signature().Recv()
		if recv == nil || !types.IsInterface(recv.Type()) {
			return []string{name(f)}
		}
		of := recv.Type().Underlying().(*types.Interface)
		for _, m := range methods {
			if m.Name() == f.Name() && types.Implements(m.Signature().Recv().Type(), of) {
				names = append(names, name(m))
			}
		}
		return names
	}
	namedIn := func(n ast.Node) (names []string) {
		ast.Inspect(n, func(n ast.Node) bool {
			if id, is := n.(*ast.Ident); is {
				if f, is := info.Uses[id].(*types.Func); is {
					names = append(names, called(f)...)
				}
			}
			return true
		})
		return names
	}
	g := graph{calls: make(map[string][]string)}
	asked := make(map[string]bool)
	for file := range info.FileVersions {
		dir := filepath.Base(filepath.Dir(lib.Fset.Position(file.Pos()).Filename))
		if !slices.Contains([]string{"hold", "queue", "lease"}, dir) {
			continue
		}
		for _, d := range file.Decls {
			d, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			f := info.Defs[d.Name].(*types.Func)
			g.calls[name(f)] = namedIn(d.Body)
			if isQuestionOf(d, f) {
				asked[name(f)] = true
			}
			for _, c := range conditions(d.Body) {
				for _, q := range namedIn(c) {
					asked[q] = true
				}
			}
		}
	}
	for q := range asked {
		g.questions = append(g.questions, q)
	}
	slices.Sort(g.questions)
	return g
}

// isQuestionOf reports whether a function only tells something.
func isQuestionOf(d *ast.FuncDecl, f *types.Func) bool {
	results, name := f.Signature().Results(), d.Name.Name
	if results.Len() == 0 {
		return false
	}
	reports := results.Len() == 1 && types.Identical(results.At(0).Type(), types.Typ[types.Bool])
	return isQuestion.MatchString(name) || tells.MatchString(d.Doc.Text()) ||
		reports && !acts.MatchString(name)
}

// conditions are the expressions in a body that decide what is done next.
func conditions(body ast.Node) (all []ast.Expr) {
	isBool := func(results *ast.FieldList) bool {
		if results == nil {
			return false
		}
		id, is := results.List[0].Type.(*ast.Ident)
		return is && id.Name == "bool"
	}
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt:
			all = append(all, n.Cond)
		case *ast.ForStmt:
			if n.Cond != nil {
				all = append(all, n.Cond)
			}
		case *ast.SwitchStmt:
			if n.Tag != nil {
				all = append(all, n.Tag)
			}
		case *ast.CaseClause:
			all = append(all, n.List...)
		case *ast.FuncLit: // that another function asks
			if isBool(n.Type.Results) && len(n.Body.List) == 1 {
				all = append(all, n.Body.List[0].(*ast.ReturnStmt).Results...)
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				all = append(all, n)
			}
		}
		return true
	})
	return all
}
