package analyzer

import (
	"go/ast"
	"go/token"
	"go/types"
	"slices"
	"strings"
)

// A path is a variable, and then the fields that lead from it to another one, as in s.lock.mu.
type path []types.Object

// pathOf returns the path of an expression, nil if it is none. The blank identifier is none: what
// is assigned to it is in no variable, though its declaration has one, which is in no scope.
func pathOf(info *types.Info, x ast.Expr) path {
	switch x := ast.Unparen(x).(type) {
	case *ast.Ident:
		if v, ok := info.ObjectOf(x).(*types.Var); ok && !isBlank(x) {
			return path{v}
		}
	case *ast.UnaryExpr:
		if x.Op == token.AND {
			return pathOf(info, x.X)
		}
	case *ast.StarExpr:
		return pathOf(info, x.X)
	case *ast.SelectorExpr:
		if field, ok := info.ObjectOf(x.Sel).(*types.Var); ok {
			if !field.IsField() { // of another package
				return path{field}
			}
			if of := pathOf(info, x.X); of != nil {
				return append(of, field)
			}
		}
	}
	return nil
}

func isBlank(x ast.Expr) bool {
	name, ok := ast.Unparen(x).(*ast.Ident)
	return ok && name.Name == "_"
}

func (p path) is(other path) bool {
	if len(p) != len(other) {
		return false
	}
	for i := range p {
		if p[i] != other[i] {
			return false
		}
	}
	return true
}

func (p path) String() string {
	var names []string
	for _, of := range p {
		names = append(names, of.Name())
	}
	return strings.Join(names, ".")
}

// A use is what becomes of the variable of a path at one place.
type use struct {
	method string // that is called, "" if it is not a call of one
	field  bool   // one of its fields is used
	set    bool   // it is assigned to
}

// eachUse calls f for each use of a path below n.
func eachUse(info *types.Info, n ast.Node, p path, f func(use)) {
	ast.PreorderStack(n, nil, func(n ast.Node, stack []ast.Node) bool {
		x, ok := n.(ast.Expr)
		if !ok || !pathOf(info, x).is(p) {
			return true
		}
		if _, ok := x.(*ast.Ident); !ok && len(p) == 1 {
			return true // its identifier follows
		}
		f(useIn(x, stack))
		return len(p) == 1
	})
}

// useIn is the use of x, which the nodes of stack contain.
func useIn(x ast.Expr, stack []ast.Node) use {
	for len(stack) > 0 {
		if _, ok := stack[len(stack)-1].(*ast.ParenExpr); !ok {
			break
		}
		stack = stack[:len(stack)-1]
	}
	if len(stack) == 0 {
		return use{}
	}
	switch parent := stack[len(stack)-1].(type) {
	case *ast.AssignStmt:
		if slices.Contains(parent.Lhs, x) {
			return use{set: true}
		}
	case *ast.ValueSpec:
		for _, to := range parent.Names {
			if to == x {
				return use{set: true}
			}
		}
	case *ast.SelectorExpr:
		if len(stack) > 1 {
			if call, ok := stack[len(stack)-2].(*ast.CallExpr); ok && call.Fun == parent {
				return use{method: parent.Sel.Name}
			}
		}
		return use{field: true}
	}
	return use{}
}
