package analyzer

import (
	"go/ast"
	"go/constant"
	"time"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/types/typeutil"
)

// checkDurations reports an option that gets a bare number below a millisecond: its unit is
// forgotten.
func checkDurations(pass *analysis.Pass, call *ast.CallExpr) {
	f := typeutil.StaticCallee(pass.TypesInfo, call)
	if f == nil || f.Pkg() == nil || f.Pkg().Path() != library {
		return
	}
	for _, arg := range call.Args {
		of := pass.TypesInfo.Types[arg]
		if !isNamed(of.Type, "time", "Duration") || of.Value == nil || hasUnit(pass, arg) {
			continue
		}
		n, ok := constant.Int64Val(of.Value)
		if ok && 0 < n && n < int64(time.Millisecond) {
			pass.ReportRangef(arg, "%s gets %d nanoseconds: give a unit, as in 30 * time.Second",
				f.Name(), n)
		}
	}
}

// hasUnit reports whether a time.Duration, or the type itself, stands in an expression.
func hasUnit(pass *analysis.Pass, x ast.Expr) bool {
	for n := range ast.Preorder(x) {
		if name, ok := n.(*ast.Ident); ok {
			of := pass.TypesInfo.ObjectOf(name)
			if of != nil && isNamed(of.Type(), "time", "Duration") {
				return true
			}
		}
	}
	return false
}
