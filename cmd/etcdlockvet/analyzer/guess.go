package analyzer

import (
	"go/ast"
	"go/types"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// checkOpen reports a Session or Mutex that a function makes, keeps to itself, and does not close.
// Where the function runs once, and the process ends with it, that does not matter.
func checkOpen(f *function) {
	for n := range ast.Preorder(f.body) {
		set, ok := n.(*ast.AssignStmt)
		if !ok || len(set.Rhs) != 1 || len(set.Lhs) != 2 {
			continue
		}
		call, ok := ast.Unparen(set.Rhs[0]).(*ast.CallExpr)
		if !ok || !makes(f.TypesInfo, call) {
			continue
		}
		of := pathOf(f.TypesInfo, set.Lhs[0])
		if len(of) != 1 || !within(of[0], f.body) {
			continue
		}
		kept := true
		eachUse(f.TypesInfo, f.body, of, func(u use) {
			kept = kept && (u.set || u.method != "" && u.method != "Close")
		})
		if kept {
			f.ReportRangef(call, "%s is never closed: each call of this function leaves one behind, with "+
				"its lease and its goroutines, for two TTLs", of)
		}
	}
}

// makers are the functions that make a Session, or a lock with one of its own.
var makers = []string{"NewSession", "New", "NewMutex", "NewRWMutex", "NewSemaphore"}

// makes reports whether a call makes a Session, or a Mutex with a Session of its own.
func makes(info *types.Info, call *ast.CallExpr) bool {
	f := typeutil.StaticCallee(info, call)
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == library &&
		slices.Contains(makers, f.Name())
}

// checkUnfenced reports SQL that writes, in a function literal given to Do or its like that does
// not ask for the token: a database that has seen a later one should refuse it.
func checkUnfenced(pass *analysis.Pass, work *ast.FuncLit) {
	var writes *ast.CallExpr
	for n := range ast.Preorder(work.Body) {
		switch n := n.(type) {
		case *ast.Ident:
			if n.Name == "TokenFrom" || asks[n.Name] && n.Name != "Context" && n.Name != "Status" {
				return
			}
		case *ast.CallExpr:
			if writes == nil && executes(pass.TypesInfo, n) {
				writes = n
			}
		}
	}
	if writes != nil {
		pass.ReportRangef(writes, "this statement has no fencing token: one that is late writes after "+
			"the next holder has")
	}
}

// executes reports whether a call executes SQL that returns no rows.
func executes(info *types.Info, call *ast.CallExpr) bool {
	f := typeutil.StaticCallee(info, call)
	if f == nil || f.Name() != "Exec" && f.Name() != "ExecContext" {
		return false
	}
	of := f.Signature().Recv()
	return of != nil && isNamed(of.Type(), "database/sql", "DB", "Tx", "Conn", "Stmt")
}

// checkAgain reports a call of a function that waits for a name that WithMinHold keeps taken: in a
// job that is to run once in a period it runs once on each machine, one after the other. It looks
// at the options of the call, and at those of a Mutex that the function itself makes.
func checkAgain(f *function) {
	var kept []path
	for n := range ast.Preorder(f.body) {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if len(n.Rhs) == 1 && keepsTaken(f.TypesInfo, n.Rhs[0]) {
				kept = append(kept, pathOf(f.TypesInfo, n.Lhs[0]))
			}
		case *ast.CallExpr:
			name := method(f.TypesInfo, n)
			if name != "Do" && name != "Lock" {
				continue
			}
			var of path
			if call, ok := ast.Unparen(n.Fun).(*ast.SelectorExpr); ok {
				of = pathOf(f.TypesInfo, call.X)
			}
			if keepsTaken(f.TypesInfo, n) || of != nil && slices.ContainsFunc(kept, of.is) {
				f.ReportRangef(n, "%s waits until the time of WithMinHold is over, and then goes on: for a "+
					"job that is to run once, use Try%s", name, name)
			}
		}
	}
}

// keepsTaken reports whether a call is given WithMinHold, and nothing that bounds a wait.
func keepsTaken(info *types.Info, x ast.Expr) (keeps bool) {
	call, ok := ast.Unparen(x).(*ast.CallExpr)
	if !ok {
		return false
	}
	for _, arg := range call.Args {
		option, ok := ast.Unparen(arg).(*ast.CallExpr)
		if !ok {
			continue
		}
		f := typeutil.StaticCallee(info, option)
		if f == nil || f.Pkg() == nil || f.Pkg().Path() != library {
			continue
		}
		if f.Name() == "WithAcquireTimeout" {
			return false
		}
		keeps = keeps || f.Name() == "WithMinHold"
	}
	return keeps
}
