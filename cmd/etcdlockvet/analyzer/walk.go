package analyzer

import (
	"go/ast"
	"go/token"
	"slices"

	"golang.org/x/tools/go/cfg"
	"golang.org/x/tools/go/types/typeutil"
)

// A step is what is known on a path behind a call that locks.
type step struct {
	sure  bool // the call has not failed, or nobody looks at its error
	stale bool // the variable of its error has another one
	freed bool // the lock is unlocked
	later bool // it is unlocked at the end of the function alone
}

// walk calls visit for the nodes on all paths behind the call, as long as that lets it go on. It
// leaves out the branches on which the call has failed. It ends where it does not know them.
func (t *taking) walk(visit func(n ast.Node, at step) (next step, goOn bool)) {
	type state struct {
		block *cfg.Block
		step
	}
	seen := make(map[state]bool)
	var follow func(b *cfg.Block, first int, at step)
	branch := func(b *cfg.Block, at step) {
		yes, no := unsure, unsure
		if cond, tag := t.condition(b); cond != nil && !at.stale {
			if tag == nil {
				yes, no = t.judge(cond)
			} else {
				yes, no = t.judgeCase(tag, cond)
			}
		}
		for i, next := range b.Succs {
			is := yes
			if i == 1 {
				is = no
			}
			to := state{next, at}
			to.sure = at.sure || is == certain
			if is != never && (is != unclear || at.sure) && !seen[to] {
				seen[to] = true
				follow(next, 0, to.step)
			}
		}
	}
	follow = func(b *cfg.Block, first int, at step) {
		for _, n := range b.Nodes[first:] {
			goOn := false
			if at, goOn = visit(n, at); !goOn {
				return
			}
			if t.sets(n, t.err) {
				at.sure, at.stale = true, true
			}
		}
		branch(b, at)
	}
	at := step{sure: t.err == nil}
	if cond, _ := t.condition(t.at); cond == t.at.Nodes[t.node] {
		at.sure = false
		branch(t.at, at)
		return
	}
	follow(t.at, t.node+1, at)
}

// held says whether the lock may be held where a condition is true, or false.
type held int

const (
	never   held = iota // the call has failed there
	unclear             // the condition asks something of its error that is not known
	unsure              // as before
	certain
)

// condition returns the condition at the end of a block. If it is a case of a switch with a tag it
// also returns that.
func (f *function) condition(b *cfg.Block) (cond, tag ast.Expr) {
	if len(b.Succs) != 2 || len(b.Nodes) == 0 {
		return nil, nil
	}
	last, ok := b.Nodes[len(b.Nodes)-1].(ast.Expr)
	if !ok {
		return nil, nil
	}
	switch b.Succs[0].Kind {
	case cfg.KindIfThen, cfg.KindForBody:
		return last, nil
	case cfg.KindSwitchCaseBody:
		for n := range ast.Preorder(f.body) {
			s, ok := n.(*ast.SwitchStmt)
			if ok && slices.Contains(s.Body.List, b.Succs[0].Stmt) {
				return last, s.Tag
			}
		}
	}
	return nil, nil
}

// judge says whether the lock may be held where a condition is true, and where it is false.
func (t *taking) judge(cond ast.Expr) (yes, no held) {
	if !t.mentions(cond) {
		return unsure, unsure
	}
	switch cond := ast.Unparen(cond).(type) {
	case *ast.UnaryExpr:
		if cond.Op == token.NOT {
			yes, no = t.judge(cond.X)
			return no, yes
		}
	case *ast.BinaryExpr:
		switch cond.Op {
		case token.LAND:
			yes, no = t.judge(cond.X)
			yes2, no2 := t.judge(cond.Y)
			return both(yes, yes2), either(no, both(yes, no2))
		case token.LOR:
			yes, no = t.judge(cond.X)
			yes2, no2 := t.judge(cond.Y)
			return either(yes, both(no, yes2)), both(no, no2)
		case token.EQL:
			return t.judgeCase(cond.X, cond.Y)
		case token.NEQ:
			yes, no = t.judgeCase(cond.X, cond.Y)
			return no, yes
		}
	case *ast.CallExpr: // errors.Is, errors.As
		f := typeutil.StaticCallee(t.TypesInfo, cond)
		if f != nil && f.Pkg() != nil && f.Pkg().Path() == "errors" && t.isError(cond.Args[0]) {
			return never, unsure
		}
	}
	return unclear, unclear
}

// judgeCase is judge for tag == x.
func (t *taking) judgeCase(tag, x ast.Expr) (yes, no held) {
	if !t.mentions(tag) && !t.mentions(x) {
		return unsure, unsure
	}
	isNil := t.TypesInfo.Types[x].IsNil()
	switch {
	case t.isError(tag) && isNil:
		return certain, never
	case t.isError(tag):
		return never, unsure
	case isNil && pathOf(t.TypesInfo, tag).is(t.of):
		return never, certain
	}
	return unclear, unclear
}

func both(a, b held) held {
	if low := min(a, b); low <= unclear {
		return low
	}
	return max(a, b)
}

func either(a, b held) held {
	if a == never || b == never {
		return max(a, b)
	}
	return min(a, b)
}

// isError reports whether x is the error of the call.
func (t *taking) isError(x ast.Expr) bool {
	return ast.Unparen(x) == t.call || t.err != nil && pathOf(t.TypesInfo, x).is(t.err)
}

// mentions reports whether there is the error of the call in a node, or a comparison of its Hold.
func (t *taking) mentions(n ast.Node) (found bool) {
	for n := range ast.Preorder(n) {
		if x, ok := n.(ast.Expr); ok && (t.isError(x) || t.isCompared(x)) {
			return true
		}
	}
	return false
}

func (t *taking) isCompared(x ast.Expr) bool {
	b, ok := x.(*ast.BinaryExpr)
	return ok && pathOf(t.TypesInfo, b.X).is(t.of)
}

// sets reports whether a node puts something else into a variable.
func (f *function) sets(n ast.Node, p path) (set bool) {
	if p != nil {
		eachUse(f.TypesInfo, n, p, func(u use) { set = set || u.set })
	}
	return set
}
