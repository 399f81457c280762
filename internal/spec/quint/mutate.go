package quint

import (
	"fmt"
	"slices"
	"strings"
)

// A Mutant is a specification with one place that is weaker.
type Mutant struct {
	In    string // a definition
	What  string // is gone: a guard, a conjunct, a term ...
	Text  string // of the place
	Place Place
	Edits map[int]*Node
}

func (m Mutant) String() string {
	text := strings.Join(strings.Fields(m.Text), " ")
	if len(text) > 70 {
		text = text[:67] + "..."
	}
	return fmt.Sprintf("%d, %s, without the %s: %s", m.Place.Line, m.In, m.What, text)
}

// A sign says what a place is for: a step that needs it (a guard), needs that it is not, or either.
type sign int

const (
	needless sign = iota - 1
	unknown
	needed
)

// Mutants returns the mutants of a module: each guard, conjunct, disjunct, implication, term and
// branch is gone in one of them, unless a step is possible more seldom then. Definitions without
// parameters that ask for the state are none of a step. Nor are some others, by their names.
func (f *File) Mutants(module string, without ...string) (all []Mutant) {
	actions := make(map[string]bool)
	defs := f.Definitions(module)
	for _, d := range defs {
		actions[d.Name] = d.Qualifier == "action"
	}
	for _, d := range defs {
		if d.Qualifier == "val" || slices.Contains(without, d.Name) {
			continue
		}
		add := func(n *Node, what string, by *Node) {
			copied := *by
			all = append(all, Mutant{d.Name, what, f.Text(n), f.Place(n), map[int]*Node{n.ID: &copied}})
		}
		var walk func(n *Node, is sign)
		walk = func(n *Node, is sign) {
			if n == nil {
				return
			}
			inside := unknown
			switch n.Opcode {
			case "actionAll":
				inside = is
				for _, a := range n.Args {
					if !acts(a, actions) && a.Opcode != "and" && a.Opcode != "implies" {
						add(a, "guard", truth(true))
					}
				}
			case "and":
				inside = is
				for _, a := range n.Args {
					if a.Opcode != "and" && a.Opcode != "implies" && is != needless {
						add(a, "conjunct", truth(true))
					}
				}
			case "or":
				inside = is
				for _, a := range n.Args {
					if a.Opcode != "or" && is != needed {
						add(a, "disjunct", truth(false))
					}
				}
			case "implies":
				if is != needless {
					add(n, "implication", truth(true))
				}
				walk(n.Args[0], -is)
				walk(n.Args[1], is)
				return
			case "not":
				inside = -is
			case "forall", "exists":
				walk(n.Args[0], unknown)
				walk(n.Args[1], is)
				return
			case "iadd", "isub":
				add(n, "term "+f.Text(n.Args[1]), n.Args[0])
				if n.Opcode == "iadd" && n.Args[1].Kind != "int" {
					add(n, "term "+f.Text(n.Args[0]), n.Args[1])
				}
			case "max":
				add(n, "term "+f.Text(n.Args[1]), n.Args[0])
				add(n, "term "+f.Text(n.Args[0]), n.Args[1])
			case "ite":
				add(n, "else of", n.Args[1])
				add(n, "then of", n.Args[2])
			}
			for _, a := range n.Args {
				if acts(a, actions) {
					walk(a, needed)
				} else {
					walk(a, inside)
				}
			}
			if n.Opdef != nil && !slices.Contains(without, n.Opdef.Name) {
				walk(n.Opdef.Expr, unknown)
			}
			walk(n.Expr, is)
		}
		start := unknown
		if actions[d.Name] {
			start = needed
		}
		walk(d.Expr, start)
	}
	return all
}

func truth(is bool) *Node {
	return &Node{Kind: "bool", Value: fmt.Append(nil, is)}
}

// acts reports whether n makes a step.
func acts(n *Node, actions map[string]bool) bool {
	if n == nil {
		return false
	}
	if n.Opcode == "assign" || actions[n.Opcode] || n.Kind == "name" && actions[n.Name] {
		return true
	}
	for _, a := range n.Args {
		if acts(a, actions) {
			return true
		}
	}
	return acts(n.Expr, actions)
}
