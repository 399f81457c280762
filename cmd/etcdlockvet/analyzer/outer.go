package analyzer

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// calls are the methods that call a function with a context that ends with the hold.
var calls = map[string]bool{
	"Do": true, "TryDo": true, "RDo": true, "TryRDo": true, "DoAll": true, "TryDoAll": true,
	"Lead": true,
}

// checkOuter reports what a function literal given to one of these methods does with a context
// from outside.
func checkOuter(pass *analysis.Pass, call *ast.CallExpr) {
	name := method(pass.TypesInfo, call)
	if !calls[name] {
		return
	}
	nested := make(map[*ast.FuncLit]bool)
	for _, arg := range call.Args {
		work, ok := ast.Unparen(arg).(*ast.FuncLit)
		if !ok || len(work.Type.Params.List) != 1 ||
			!isContext(pass.TypesInfo.TypeOf(work.Type.Params.List[0].Type)) {
			continue
		}
		own := "the context that " + name + " gives the function"
		if names := work.Type.Params.List[0].Names; len(names) == 1 && names[0].Name != "_" {
			own = names[0].Name + ", which " + name + " gives the function"
		}
		ast.Inspect(work.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.DeferStmt:
				return false // cleanup
			case *ast.FuncLit:
				return !nested[n]
			case *ast.CallExpr:
				if calls[method(pass.TypesInfo, n)] { // it looks at its functions itself
					for _, arg := range n.Args {
						if f, ok := ast.Unparen(arg).(*ast.FuncLit); ok {
							nested[f] = true
						}
					}
				}
				outer := outerContext(pass.TypesInfo, n, work)
				if outer != nil && !mayGoOn(pass.TypesInfo, n) {
					pass.ReportRangef(outer, "%s does not end if the lock is lost: use %s",
						types.ExprString(outer), own)
				}
			}
			return true
		})
	}
}

// outerContext returns the argument of a call that is a context from outside of work: a variable or
// a field, or a method such as (*http.Request).Context of one.
func outerContext(info *types.Info, call *ast.CallExpr, work *ast.FuncLit) ast.Expr {
	for _, arg := range call.Args {
		if !isContext(info.TypeOf(arg)) {
			continue
		}
		x := ast.Unparen(arg)
		if made, ok := x.(*ast.CallExpr); ok {
			sel, ok := ast.Unparen(made.Fun).(*ast.SelectorExpr)
			if !ok || len(made.Args) != 0 || isTesting(info.TypeOf(sel.X)) {
				continue
			}
			x = sel.X
		}
		if p := pathOf(info, x); p != nil && !within(p[0], work) {
			return arg
		}
	}
	return nil
}

// within reports whether a variable is declared in a function.
func within(v types.Object, f ast.Node) bool { return f.Pos() <= v.Pos() && v.Pos() < f.End() }

// mayGoOn reports whether a call does no work that the lock protects: it only reads the context's
// values, makes a context that is meant to go on or that ends with a hold, or gives a lock back.
func mayGoOn(info *types.Info, call *ast.CallExpr) bool {
	switch method(info, call) {
	case "Unlock", "Close", "Context":
		return true
	}
	f := typeutil.StaticCallee(info, call)
	if f == nil || f.Pkg() == nil {
		return false
	}
	switch f.Pkg().Path() {
	case "context":
		return f.Name() == "WithoutCancel" || f.Name() == "Cause"
	case "log/slog":
		return true
	}
	return false
}
