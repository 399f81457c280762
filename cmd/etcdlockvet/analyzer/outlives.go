package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// checkOutlives reports a goroutine with the context of a function literal, given to Do or its
// like, that waits for none: the lock may be given back while it works.
func checkOutlives(pass *analysis.Pass, work *ast.FuncLit, name string) {
	if waits(pass.TypesInfo, work.Body) {
		return
	}
	ast.Inspect(work.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			if worksBy(pass.TypesInfo, work.Type, n) {
				pass.ReportRangef(n, "this goroutine may outlive %s: nothing waits for it before the lock "+
					"is given back", name)
			}
			return false
		case *ast.FuncLit:
			return false // it may run elsewhere
		}
		return true
	})
}

// waits reports whether a body may wait for its goroutines: it receives from a channel, or calls
// something named Wait.
func waits(info *types.Info, body ast.Node) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			return false
		case *ast.CallExpr:
			f := typeutil.Callee(info, n)
			found = found || f != nil && f.Name() == "Wait"
		default:
			found = found || receives(info, n)
		}
		return !found
	})
	return found
}

// receives reports whether a node receives from a channel.
func receives(info *types.Info, n ast.Node) bool {
	switch n := n.(type) {
	case *ast.SelectStmt:
		return true
	case *ast.UnaryExpr:
		return n.Op == token.ARROW
	case *ast.RangeStmt:
		_, channel := info.TypeOf(n.X).Underlying().(*types.Chan)
		return channel
	}
	return false
}

// worksBy reports whether there is a call below n that works with the only parameter of a function.
func worksBy(info *types.Info, of *ast.FuncType, n ast.Node) (found bool) {
	names := of.Params.List[0].Names
	if len(names) != 1 || info.ObjectOf(names[0]) == nil {
		return false
	}
	param := path{info.ObjectOf(names[0])}
	ast.Inspect(n, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return !found
		}
		if mayGoOn(info, call) {
			return false
		}
		for _, arg := range call.Args {
			found = found || pathOf(info, arg).is(param)
		}
		return !found
	})
	return found
}

// checkSpin reports a loop that repeats a try and does nothing else that may take time.
func checkSpin(pass *analysis.Pass, loop *ast.ForStmt) {
	if loop.Init != nil || loop.Post != nil {
		return
	}
	var try *ast.CallExpr
	for n := range ast.Preorder(loop) {
		switch n := n.(type) {
		case *ast.FuncLit, *ast.SendStmt, *ast.DeferStmt, *ast.GoStmt:
			return
		case *ast.CallExpr:
			switch method(pass.TypesInfo, n) {
			case "TryLock", "TryLockAll", "TryRLock", "TryAcquire":
				try = n
			default:
				if !isQuick(pass.TypesInfo, n) {
					return
				}
			}
		default:
			if receives(pass.TypesInfo, n) {
				return
			}
		}
	}
	if try != nil {
		pass.ReportRangef(try, "this loop asks etcd without a pause: use Lock, which waits")
	}
}

// isQuick reports whether a call looks at an error, or prints something: it takes no time. A loop
// that asks for more of the error, by errors.As, may have its reasons.
func isQuick(info *types.Info, call *ast.CallExpr) bool {
	if info.Types[call.Fun].IsType() || info.Types[call.Fun].IsBuiltin() || logs(info, call) {
		return true
	}
	switch f := typeutil.Callee(info, call); {
	case f == nil || f.Pkg() == nil:
		return f != nil && f.Name() == "Error" // of an error
	case f.Pkg().Path() == "errors":
		return f.Name() != "As"
	default:
		return f.Pkg().Path() == "context" && f.Name() == "Err"
	}
}
