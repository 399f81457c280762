package analyzer

import (
	"cmp"
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/types/typeutil"
)

// calls are the methods that call a function with a context that ends with the hold.
var calls = map[string]bool{
	"Do": true, "TryDo": true, "RDo": true, "TryRDo": true, "DoAll": true, "TryDoAll": true,
	"Lead": true,
}

// checkOuter reports what a function literal given to one of these methods does with a context
// from outside.
func checkOuter(pass *analysis.Pass, call *ast.CallExpr, guess bool) {
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
		uses := usesParam(pass.TypesInfo, work.Type, work.Body)
		var derived map[types.Object]bool
		if !uses {
			derived = fromBackground(pass.TypesInfo, work.Body)
		}
		checkOutlives(pass, work, name)
		if guess {
			checkUnfenced(pass, work)
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
				if outer == nil && !uses {
					outer = cmp.Or(asksOuter(pass.TypesInfo, n, work), among(pass.TypesInfo, n, derived))
				}
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
			if isBackground(info, made) && !mayDetach(info, call) {
				return arg
			}
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

// asksOuter returns the context from outside of work that a call asks for its end.
func asksOuter(info *types.Info, call *ast.CallExpr, work *ast.FuncLit) ast.Expr {
	sel, ok := ast.Unparen(call.Fun).(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != "Err" && sel.Sel.Name != "Done" || !isContext(info.TypeOf(sel.X)) {
		return nil
	}
	if p := pathOf(info, sel.X); p == nil || within(p[0], work) {
		return nil
	}
	return sel.X
}

// fromBackground are the variables of a body whose contexts come from context.Background.
func fromBackground(info *types.Info, body ast.Node) map[types.Object]bool {
	derived := make(map[types.Object]bool)
	for n := range ast.Preorder(body) {
		set, ok := n.(*ast.AssignStmt)
		if !ok || len(set.Rhs) != 1 {
			continue
		}
		call, ok := ast.Unparen(set.Rhs[0]).(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			continue
		}
		from, ok := ast.Unparen(call.Args[0]).(*ast.CallExpr)
		f := typeutil.StaticCallee(info, call)
		if !ok || !isBackground(info, from) || f == nil || f.Pkg() == nil || f.Pkg().Path() != "context" {
			continue
		}
		if p := pathOf(info, set.Lhs[0]); len(p) == 1 {
			derived[p[0]] = true
		}
	}
	return derived
}

// among returns the argument of a call, which works, that is one of some variables.
func among(info *types.Info, call *ast.CallExpr, some map[types.Object]bool) ast.Expr {
	if mayDetach(info, call) {
		return nil
	}
	for _, arg := range call.Args {
		if p := pathOf(info, arg); len(p) == 1 && some[p[0]] {
			return arg
		}
	}
	return nil
}

// isBackground reports whether a call is context.Background() or context.TODO().
func isBackground(info *types.Info, call *ast.CallExpr) bool {
	f := typeutil.StaticCallee(info, call)
	return f != nil && f.Pkg() != nil && f.Pkg().Path() == "context" &&
		(f.Name() == "Background" || f.Name() == "TODO")
}

// mayDetach reports whether a call may take context.Background on purpose: it is of cleanup, by the
// name of what it calls, makes a context that may be for cleanup, or is of the library, such as the
// Lock of another request.
func mayDetach(info *types.Info, call *ast.CallExpr) bool {
	f := typeutil.Callee(info, call)
	return f == nil || f.Name() == "Shutdown" || freeing.MatchString(f.Name()) ||
		f.Pkg() != nil && (f.Pkg().Path() == "context" || f.Pkg().Path() == library)
}

// usesParam reports whether a body uses the only parameter of its function.
func usesParam(info *types.Info, of *ast.FuncType, body ast.Node) bool {
	if len(of.Params.List) != 1 || len(of.Params.List[0].Names) != 1 {
		return false
	}
	param := info.ObjectOf(of.Params.List[0].Names[0])
	for n := range ast.Preorder(body) {
		if name, ok := n.(*ast.Ident); ok && param != nil && info.Uses[name] == param {
			return true
		}
	}
	return false
}

// declarations are the functions of the package.
func declarations(pass *analysis.Pass, in *inspector.Inspector) map[types.Object]*ast.FuncDecl {
	all := make(map[types.Object]*ast.FuncDecl)
	in.Preorder([]ast.Node{(*ast.FuncDecl)(nil)}, func(n ast.Node) {
		f := n.(*ast.FuncDecl)
		if of := pass.TypesInfo.ObjectOf(f.Name); of != nil && f.Body != nil {
			all[of] = f
		}
	})
	return all
}

// checkNamed reports a function of the package, given to Do or its like, that ignores its context
// and works with context.Background.
func checkNamed(
	pass *analysis.Pass, call *ast.CallExpr, declared map[types.Object]*ast.FuncDecl,
) {
	name := method(pass.TypesInfo, call)
	if !calls[name] {
		return
	}
	for _, arg := range call.Args {
		var f *ast.FuncDecl
		switch x := ast.Unparen(arg).(type) {
		case *ast.Ident:
			f = declared[pass.TypesInfo.ObjectOf(x)]
		case *ast.SelectorExpr:
			f = declared[pass.TypesInfo.ObjectOf(x.Sel)]
		}
		if f != nil && !usesParam(pass.TypesInfo, f.Type, f.Body) && worksOn(pass.TypesInfo, f.Body) {
			pass.ReportRangef(arg, "%s ignores the context that %s gives it, and goes on if the lock is "+
				"lost", types.ExprString(arg), name)
		}
	}
}

// worksOn reports whether a body passes on context.Background, apart from cleanup.
func worksOn(info *types.Info, body ast.Node) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.DeferStmt:
			return false
		case *ast.CallExpr:
			for _, arg := range n.Args {
				made, ok := ast.Unparen(arg).(*ast.CallExpr)
				found = found || ok && isBackground(info, made) && !mayDetach(info, n) && !mayGoOn(info, n)
			}
		}
		return true
	})
	return found
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
