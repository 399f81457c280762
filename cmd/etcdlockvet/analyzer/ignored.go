package analyzer

import (
	"go/ast"
	"go/types"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// locksWithError reports whether a call locks a Mutex: its one result is an error.
func locksWithError(info *types.Info, n ast.Node) bool {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return false
	}
	switch method(info, call) {
	case "Lock", "TryLock":
		return isErrorType(info.TypeOf(call))
	}
	return false
}

// checkIgnored reports a statement of a block that locks, drops the error, and goes on. An
// assignment to _ says that it is meant.
func checkIgnored(pass *analysis.Pass, block *ast.BlockStmt) {
	for i, n := range block.List {
		rest := block.List[i+1:]
		switch n := n.(type) {
		case *ast.ExprStmt:
			if x := ast.Unparen(n.X); locksWithError(pass.TypesInfo, x) && goesOn(pass.TypesInfo, rest) {
				pass.ReportRangef(n, "the error of this call is ignored: if it fails, what follows runs "+
					"without the lock")
			}
		case *ast.IfStmt:
			if onlyLogs(pass.TypesInfo, n) && goesOn(pass.TypesInfo, rest) {
				pass.ReportRangef(n.Init, "the error of this call is only logged: if it fails, what "+
					"follows runs without the lock")
			}
		}
	}
}

// goesOn reports whether statements call something, and none of them asks whether the lock is held.
func goesOn(info *types.Info, list []ast.Stmt) bool {
	calls := false
	for _, n := range list {
		for n := range ast.Preorder(n) {
			if call, ok := n.(*ast.CallExpr); ok {
				name := method(info, call)
				if asks[name] {
					return false
				}
				calls = calls || name != "Unlock"
			}
		}
	}
	return calls
}

// onlyLogs reports whether an if locks, and logs the error in its only branch.
func onlyLogs(info *types.Info, n *ast.IfStmt) bool {
	set, ok := n.Init.(*ast.AssignStmt)
	if !ok || len(set.Rhs) != 1 || !locksWithError(info, ast.Unparen(set.Rhs[0])) {
		return false
	}
	cond, ok := ast.Unparen(n.Cond).(*ast.BinaryExpr)
	if !ok || cond.Op.String() != "!=" || !info.Types[cond.Y].IsNil() || n.Else != nil ||
		!pathOf(info, cond.X).is(pathOf(info, set.Lhs[0])) {
		return false
	}
	for _, n := range n.Body.List {
		x, ok := n.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := ast.Unparen(x.X).(*ast.CallExpr)
		if !ok || !logs(info, call) {
			return false
		}
	}
	return true
}

// logs reports whether a call prints something, and returns.
func logs(info *types.Info, call *ast.CallExpr) bool {
	f := typeutil.StaticCallee(info, call)
	if f == nil || f.Pkg() == nil {
		return false
	}
	switch f.Pkg().Path() {
	case "log", "log/slog", "fmt":
		return !strings.HasPrefix(f.Name(), "Fatal") && !strings.HasPrefix(f.Name(), "Panic")
	}
	return false
}

// checkRange reports a range over a sequence of the library's values and errors that takes no
// error: a range that takes one value compiles, and no compiler or linter misses the other one.
func checkRange(pass *analysis.Pass, loop *ast.RangeStmt) {
	if loop.Value != nil {
		return
	}
	of, ok := types.Unalias(pass.TypesInfo.TypeOf(loop.X)).(*types.Named)
	if !ok || !isNamed(of, "iter", "Seq2") || !isErrorType(of.TypeArgs().At(1)) {
		return
	}
	value, ok := types.Unalias(of.TypeArgs().At(0)).(*types.Named)
	if ok && value.Obj().Pkg() != nil && value.Obj().Pkg().Path() == library {
		pass.ReportRangef(loop.X, "this range drops the error of the sequence: range over both values")
	}
}

// isErrorType reports whether t is error.
func isErrorType(t types.Type) bool {
	return t != nil && types.Identical(t, types.Universe.Lookup("error").Type())
}
