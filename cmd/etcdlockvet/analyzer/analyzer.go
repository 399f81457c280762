// Package analyzer finds mistakes in code that locks with etcdlock.
//
// It reports
//
//   - a function given to Do, RDo, DoAll or Lead, or a Try form of them, that passes on a context
//     from outside: that one does not end if the lock is lost, the function's own does. A function
//     literal that asks only an outer context whether to go on is reported as well, and so is a
//     function of the package that ignores its context and works with context.Background;
//   - a Lock or TryLock of a Mutex whose error is ignored or only logged, if something runs then;
//   - a goroutine with the context of such a function, which does not wait for it;
//   - a TryLock, or another try, that a loop repeats without a pause;
//   - a range over WatchHolder, or another sequence of the library that yields errors, that takes
//     one value or none: the error is dropped, and the loop ends as if its context had. An
//     assignment to _ says that it is meant;
//   - an option that gets a bare number, such as WithTTL(30): its unit is forgotten;
//   - a call that takes a context while a lock is held whose context nothing asks for: the call
//     goes on if the lock is lost. A function that asks for Token, Key, IsOwner or Status protects
//     its work in another way, and is not reported;
//   - a lock that is not unlocked on a path through the function that has locked it, or whose Hold
//     is assigned to _, or to nothing;
//   - with the flag lost, an Unlock whose error is dropped: that error alone tells a program that
//     does not ask for the context that the lock was lost. An assignment to _ says that it is
//     meant;
//   - with the flag guess, a Session or Mutex that a function makes and never closes, SQL in such a
//     function of Do that no token protects, and a Do or a Lock with WithMinHold and without
//     WithAcquireTimeout, which waits until the time is over and then works again. Each may be
//     right.
//
// Otherwise it reports what it is sure of. It follows a variable or a field within a function;
// whatever is passed on, returned or kept somewhere may be unlocked there. A function with a
// testing.TB is a test, which may do on purpose what is wrong elsewhere.
//
// Cleanup that has to go on after a loss gets its context from context.WithoutCancel, is deferred,
// or is an Unlock or Close; none of these is reported.
package analyzer

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/ctrlflow"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// library is the package whose locks are looked at.
const library = "github.com/etcdlock/etcdlock"

// Analyzer is the analyzer of the command, with its flags.
var Analyzer = New(false)

// New returns the analyzer. lost is the default of its flag.
func New(lost bool) *analysis.Analyzer {
	guess := false
	a := &analysis.Analyzer{
		Name: "etcdlockvet",
		Doc: "find mistakes in code that locks with etcdlock\n\nIt reports a context that does not " +
			"end with the hold, and a lock that is not unlocked on each path.",
		URL:      "https://pkg.go.dev/" + library + "/cmd/etcdlockvet/analyzer",
		Requires: []*analysis.Analyzer{inspect.Analyzer, ctrlflow.Analyzer},
	}
	a.Flags.BoolVar(&lost, "lost", lost, "also report an Unlock whose error is dropped")
	a.Flags.BoolVar(&guess, "guess", guess,
		"also report a Session that is never closed, SQL in Do without a token, and Do with WithMinHold")
	a.Run = func(pass *analysis.Pass) (any, error) {
		run(pass, lost, guess)
		return nil, nil
	}
	return a
}

// A function is the body of one, and those around it.
type function struct {
	*analysis.Pass
	body *ast.BlockStmt
	cfg  *cfg.CFG
}

func run(pass *analysis.Pass, lost, guess bool) {
	graphs := pass.ResultOf[ctrlflow.Analyzer].(*ctrlflow.CFGs)
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	asked := fieldsAsked(pass, in)
	declared := declarations(pass, in)
	nodes := []ast.Node{
		(*ast.FuncDecl)(nil), (*ast.FuncLit)(nil), (*ast.CallExpr)(nil), (*ast.ExprStmt)(nil),
		(*ast.DeferStmt)(nil), (*ast.GoStmt)(nil), (*ast.BlockStmt)(nil), (*ast.ForStmt)(nil),
		(*ast.RangeStmt)(nil),
	}
	in.WithStack(nodes, func(n ast.Node, push bool, stack []ast.Node) bool {
		if !push || inTest(pass, stack) {
			return push
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body != nil {
				f := &function{pass, n.Body, graphs.FuncDecl(n)}
				checkHolds(f, asked)
				if guess {
					checkOpen(f)
					checkAgain(f)
				}
			}
		case *ast.FuncLit:
			checkHolds(&function{pass, n.Body, graphs.FuncLit(n)}, asked)
		case *ast.CallExpr:
			checkOuter(pass, n, guess)
			checkNamed(pass, n, declared)
			checkDurations(pass, n)
		case *ast.BlockStmt:
			checkIgnored(pass, n)
		case *ast.ForStmt:
			checkSpin(pass, n)
		case *ast.RangeStmt:
			checkRange(pass, n)
		case *ast.ExprStmt:
			if call, ok := ast.Unparen(n.X).(*ast.CallExpr); ok && lost {
				checkDropped(pass, call)
			}
		case *ast.DeferStmt:
			if lost {
				checkDropped(pass, n.Call)
			}
		case *ast.GoStmt:
			if lost {
				checkDropped(pass, n.Call)
			}
		}
		return true
	})
}

// method returns the name of the library's method that a call calls, and "" if it calls no such.
func method(info *types.Info, call *ast.CallExpr) string {
	f := typeutil.StaticCallee(info, call)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != library || f.Signature().Recv() == nil {
		return ""
	}
	return f.Name()
}

// checkDropped reports an Unlock whose error nobody gets.
func checkDropped(pass *analysis.Pass, call *ast.CallExpr) {
	if method(pass.TypesInfo, call) == "Unlock" {
		pass.ReportRangef(call, "the error of Unlock is dropped: it tells whether the lock was lost")
	}
}

// inTest reports whether one of the functions around a node has a testing.TB.
func inTest(pass *analysis.Pass, stack []ast.Node) bool {
	for _, n := range stack {
		var of *ast.FuncType
		switch n := n.(type) {
		case *ast.FuncDecl:
			of = n.Type
		case *ast.FuncLit:
			of = n.Type
		default:
			continue
		}
		for _, field := range of.Params.List {
			if isTesting(pass.TypesInfo.TypeOf(field.Type)) {
				return true
			}
		}
	}
	return false
}

// isTesting reports whether t is testing.TB or what implements it.
func isTesting(t types.Type) bool { return isNamed(t, "testing", "T", "B", "F", "TB", "M") }

// isContext reports whether t is context.Context.
func isContext(t types.Type) bool { return isNamed(t, "context", "Context") }

// isNamed reports whether t, or what it points to, is one of the named types of a package.
func isNamed(t types.Type, pkg string, names ...string) bool {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	named, ok := types.Unalias(t).(*types.Named)
	if !ok || named.Obj().Pkg() == nil || named.Obj().Pkg().Path() != pkg {
		return false
	}
	for _, name := range names {
		if named.Obj().Name() == name {
			return true
		}
	}
	return false
}
