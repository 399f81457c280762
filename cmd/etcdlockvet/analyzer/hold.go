package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// asks are the methods by which a program hears of a loss, or protects its work otherwise.
var asks = map[string]bool{
	"Context": true, "Token": true, "Key": true, "IsOwner": true, "Status": true,
}

// A taking is a call that locks, in a function.
type taking struct {
	*function
	call *ast.CallExpr
	at   *cfg.Block
	node int  // of at, the one with the call
	of   path // the Mutex or the Hold
	hold bool // it is a Hold
	err  path // the variable that gets its error, or nil

	dropped bool // nothing gets the Hold
}

// checkHolds reports what a function does wrong with the locks that it takes.
func checkHolds(f *function, asked map[types.Object]bool) {
	if f.cfg == nil { // such as panic, in the packages of Go itself
		return
	}
	for _, block := range f.cfg.Blocks {
		if !block.Live {
			continue
		}
		for i, n := range block.Nodes {
			t := f.takingIn(n)
			if t == nil {
				continue
			}
			if t.dropped {
				if !f.closes(f.body) {
					t.ReportRangef(t.call, "the Hold of this call is dropped: nothing can unlock it")
				}
				continue
			}
			t.at, t.node = block, i
			uses := t.uses()
			if !uses.asks && !uses.leaves && !asked[t.of[len(t.of)-1]] {
				t.checkWork()
			}
			t.checkPaths(uses)
		}
	}
}

// takingIn returns what a node of the graph takes, nil if it takes nothing that can be followed.
func (f *function) takingIn(n ast.Node) (t *taking) {
	var to []ast.Expr // that from is assigned to
	var from ast.Expr
	switch n := n.(type) {
	case *ast.DeferStmt, *ast.GoStmt, *ast.ReturnStmt:
		return nil
	case *ast.ExprStmt:
		from = ast.Unparen(n.X)
	case *ast.AssignStmt:
		if len(n.Rhs) == 1 {
			to, from = n.Lhs, ast.Unparen(n.Rhs[0])
		}
	case *ast.ValueSpec:
		if len(n.Values) == 1 {
			from = ast.Unparen(n.Values[0])
		}
		for _, name := range n.Names {
			to = append(to, name)
		}
	}
	ast.PreorderStack(n, nil, func(n ast.Node, stack []ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			_, ok := n.(*ast.FuncLit)
			return !ok // that one is a function of its own
		}
		switch method(f.TypesInfo, call) {
		case "TryLock", "TryLockAll", "TryRLock", "TryAcquire":
			if slices.ContainsFunc(stack, isCall) {
				return false // something else looks at its error
			}
			fallthrough
		case "Lock", "LockAll", "RLock", "Acquire":
			t = &taking{function: f, call: call}
		}
		return t == nil
	})
	if t == nil {
		return nil
	}
	if t.call != from {
		to, from = nil, nil
	}
	if _, ok := f.TypesInfo.TypeOf(t.call).(*types.Tuple); !ok { // an error
		t.of = pathOf(f.TypesInfo, ast.Unparen(t.call.Fun).(*ast.SelectorExpr).X)
	} else if t.dropped = from != nil && (len(to) == 0 || isBlank(to[0])); t.dropped {
		return t
	} else if len(to) == 2 { // a Hold and an error
		t.hold = true
		if t.of = pathOf(f.TypesInfo, to[0]); len(t.of) != 1 || !within(t.of[0], f.body) {
			return nil
		}
	}
	if t.of == nil {
		return nil
	}
	if len(to) > 0 {
		t.err = pathOf(f.TypesInfo, to[len(to)-1])
	}
	return t
}

func isCall(n ast.Node) bool {
	_, ok := n.(*ast.CallExpr)
	return ok
}

// uses is what a function does with a lock, apart from the taking.
type uses struct {
	asks   bool
	leaves bool // it is passed on, returned, or kept
	frees  bool // there is an Unlock of it
	closes bool // there is a Close of something, which frees it as well
}

func (t *taking) uses() (all uses) {
	eachUse(t.TypesInfo, t.body, t.of, func(u use) {
		all.leaves = all.leaves || u.method == "" && !u.set
		all.asks = all.asks || asks[u.method]
		all.frees = all.frees || u.method == "Unlock"
	})
	all.closes = t.closes(t.body)
	return all
}

// closes reports whether there is a Close of something of the library's.
func (f *function) closes(n ast.Node) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok && method(f.TypesInfo, call) == "Close" {
			found = true
		}
		return !found
	})
	return found
}

// fieldsAsked are the fields and the variables of packages that something in the package asks.
func fieldsAsked(pass *analysis.Pass, in *inspector.Inspector) map[types.Object]bool {
	asked := make(map[types.Object]bool)
	in.Preorder([]ast.Node{(*ast.CallExpr)(nil)}, func(n ast.Node) {
		call := n.(*ast.CallExpr)
		if asks[method(pass.TypesInfo, call)] {
			p := pathOf(pass.TypesInfo, ast.Unparen(call.Fun).(*ast.SelectorExpr).X)
			if len(p) > 0 {
				if v := p[len(p)-1].(*types.Var); v.IsField() || v.Parent() == pass.Pkg.Scope() {
					asked[v] = true
				}
			}
		}
	})
	return asked
}

// checkWork reports the first call with a context before the Unlock.
func (t *taking) checkWork() {
	var work *ast.CallExpr
	scope := t.of[0].Parent()
	t.walk(func(n ast.Node, at step) (step, bool) {
		if !scope.Contains(n.Pos()) && scope != t.Pkg.Scope() {
			return at, false // it cannot ask any more
		}
		if _, deferred := n.(*ast.DeferStmt); deferred {
			return at, true
		}
		if t.frees(n) {
			return at, false
		}
		ast.Inspect(n, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && t.works(call) {
				if work == nil || call.Pos() < work.Pos() {
					work = call
				}
			}
			_, ok := n.(*ast.FuncLit)
			return !ok // it may run later
		})
		return at, true
	})
	if work != nil {
		t.ReportRangef(work, "this call goes on if the lock is lost: nothing asks for the context "+
			"of %s, locked on line %d", t.of, t.Fset.Position(t.call.Pos()).Line)
	}
}

// works reports whether a call gets a context to work with.
func (t *taking) works(call *ast.CallExpr) bool {
	if f := typeutil.StaticCallee(t.TypesInfo, call); f != nil && f.Pkg() != nil {
		switch f.Pkg().Path() {
		case library, "context", "log/slog":
			return false
		}
	}
	signature, ok := t.TypesInfo.TypeOf(call.Fun).Underlying().(*types.Signature)
	if !ok { // a conversion
		return false
	}
	for result := range signature.Results().Variables() {
		if isContext(result.Type()) {
			return false // a child of the context, such as that of a span
		}
	}
	return slices.ContainsFunc(call.Args, func(arg ast.Expr) bool {
		return isContext(t.TypesInfo.TypeOf(arg))
	})
}

// checkPaths reports a path to a return, or back to the same call, without an Unlock.
func (t *taking) checkPaths(all uses) {
	local := len(t.of) == 1 && within(t.of[0], t.body)
	if !local && !all.frees {
		return // it is unlocked elsewhere
	}
	var success, failure []token.Pos // of returns that leave it locked
	again, freesOnSuccess := false, false
	t.walk(func(n ast.Node, at step) (step, bool) {
		if t.frees(n) {
			_, deferred := n.(*ast.DeferStmt)
			at.later = deferred && (at.later || !at.freed)
			at.freed = true
		}
		if n == t.at.Nodes[t.node] {
			again = again || at.sure && (!at.freed || at.later)
			return at, false
		}
		if t.sets(n, t.of) {
			return at, false // another lock
		}
		r, ok := n.(*ast.ReturnStmt)
		switch {
		case !ok, !at.sure && t.returns(r):
		case t.unlocks(r):
			freesOnSuccess = true
		case t.fails(r):
			if !at.freed {
				failure = append(failure, r.Pos())
			}
		case at.freed:
			freesOnSuccess = true
		default:
			success = append(success, r.Pos())
		}
		return at, true
	})
	// A function that returns with the lock held if it succeeds is one of a pair, and the other
	// unlocks.
	left := failure
	if local || freesOnSuccess {
		left = append(left, success...)
	}
	switch {
	case again && !(t.hold && all.closes):
		t.ReportRangef(t.call, "%s is locked again without an Unlock on a path through this loop", t.of)
	case len(left) > 0 && !all.closes:
		t.ReportRangef(t.call, "%s is not unlocked on each path: the return on line %d leaves it locked",
			t.of, t.Fset.Position(slices.Min(left)).Line)
	}
}

// freeing are the names of what may unlock fields of its receiver and its arguments.
var freeing = regexp.MustCompile(`(?i)unlock|release|close|free|resign|stop|done`)

// frees reports whether a node unlocks the lock, now or later, or gives it to somebody who may. To
// those its key is enough.
func (t *taking) frees(n ast.Node) (freed bool) {
	eachUse(t.TypesInfo, n, t.of, func(u use) {
		freed = freed || u.method == "Unlock" || u.method == "Key" || u.method == "" && !u.set
	})
	if freed || t.closes(n) {
		return true
	}
	if len(t.of) > 1 {
		eachUse(t.TypesInfo, n, t.of[:1], func(u use) {
			freed = freed || u.method == "" && !u.field && !u.set || freeing.MatchString(u.method)
		})
	}
	return freed
}

// returns reports whether a return may pass on the error of the call.
func (t *taking) returns(r *ast.ReturnStmt) bool {
	return t.err != nil && (len(r.Results) == 0 || t.mentions(r))
}

// unlocks reports whether a return is that of the error of an Unlock of the lock: it returns nil.
func (t *taking) unlocks(r *ast.ReturnStmt) bool {
	if len(r.Results) != 1 {
		return false
	}
	call, ok := ast.Unparen(r.Results[0]).(*ast.CallExpr)
	return ok && method(t.TypesInfo, call) == "Unlock" &&
		pathOf(t.TypesInfo, ast.Unparen(call.Fun).(*ast.SelectorExpr).X).is(t.of)
}

// fails reports whether a return is one of an error, or of false.
func (t *taking) fails(r *ast.ReturnStmt) bool {
	if len(r.Results) == 0 {
		return false
	}
	last := ast.Unparen(r.Results[len(r.Results)-1])
	if name, ok := last.(*ast.Ident); ok && (name.Name == "nil" || name.Name == "false") {
		return name.Name == "false"
	}
	return types.Implements(t.TypesInfo.TypeOf(last), errorType)
}

var errorType = types.Universe.Lookup("error").Type().Underlying().(*types.Interface)
