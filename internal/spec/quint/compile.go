// Package quint evaluates specifications that are written in Quint (https://quint-lang.org), as
// quint parses them. It knows as much of the language as the specification of this project uses. It
// is fast enough for mutants, and for all states of a small world.
package quint

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"strings"
)

// A Machine evaluates a module. It is for one goroutine.
type Machine struct {
	file    *File
	defs    map[string]*Node
	edits   map[int]*Node // in place of the nodes with these numbers
	ops     map[string]*operator
	shapes  map[string]*shape
	slots   []Value
	state   Value // nil before the first
	next    Value // nil until a step has assigned it
	choices chooser
}

type code func(*Machine) Value

type operator struct {
	params []int
	body   code
}

// A scope says in which slot a name of an operator is.
type scope struct {
	*scope
	name string
	slot int
	lazy code // of a let
}

// New returns a machine for a module. Some nodes have others in their place, by their numbers.
func (f *File) New(module string, edits map[int]*Node) *Machine {
	m := &Machine{file: f, defs: make(map[string]*Node), edits: edits,
		ops: make(map[string]*operator), shapes: make(map[string]*shape)}
	m.declare(module)
	return m
}

func (m *Machine) declare(module string) {
	for _, n := range m.file.modules[module] {
		switch n.Kind {
		case "instance":
			m.declare(n.ProtoName)
			for _, o := range n.Overrides {
				m.defs[o[0].Name] = &Node{Kind: "def", Qualifier: "pureval", Expr: o[1]}
			}
		case "def":
			m.defs[n.Name] = n
		case "assume":
			m.defs[n.Name] = &Node{Kind: "def", Qualifier: "val", Expr: n.Assumption}
		}
	}
}

func (m *Machine) slot() int {
	m.slots = append(m.slots, nil)
	return len(m.slots) - 1
}

// operator compiles a definition when it is used first.
func (m *Machine) operator(name string) *operator {
	if op := m.ops[name]; op != nil {
		return op
	}
	def := m.defs[name]
	if def == nil {
		fail("what is %s?", name)
	}
	op := new(operator)
	m.ops[name] = op
	body := m.edited(def.Expr)
	if body.Kind != "lambda" {
		op.body = m.compile(body, nil)
		if def.Qualifier == "pureval" {
			op.body = once(op.body)
		}
		return op
	}
	op.params, op.body = m.lambda(body, nil)
	return op
}

func once(c code) code {
	var v Value
	return func(m *Machine) Value {
		if v == nil {
			v = c(m)
		}
		return v
	}
}

// lambda compiles a function. There is no recursion: each of its parameters has one slot.
func (m *Machine) lambda(n *Node, s *scope) (params []int, body code) {
	for _, p := range n.Params {
		slot := m.slot()
		params = append(params, slot)
		s = &scope{s, p.Name, slot, nil}
	}
	return params, m.compile(n.Expr, s)
}

// edited returns what stands in the place of n.
func (m *Machine) edited(n *Node) *Node {
	if e := m.edits[n.ID]; e != nil {
		return e
	}
	return n
}

func constant(v Value) code { return func(*Machine) Value { return v } }

func (m *Machine) compile(n *Node, s *scope) code {
	n = m.edited(n)
	switch n.Kind {
	case "int", "bool", "str":
		return constant(literal(n))
	case "name":
		for at := s; at != nil; at = at.scope {
			if at.name != n.Name {
				continue
			}
			slot, lazy := at.slot, at.lazy
			if lazy == nil {
				return func(m *Machine) Value { return m.slots[slot] }
			}
			return func(m *Machine) Value {
				if m.slots[slot] == nil {
					m.slots[slot] = lazy(m)
				}
				return m.slots[slot]
			}
		}
		return m.global(n.Name)
	case "let":
		return m.let(n, s)
	case "app":
		return m.app(n, s)
	}
	fail("an expression of the kind %s", n.Kind)
	return nil
}

func literal(n *Node) Value {
	var v Value
	var err error
	switch n.Kind {
	case "int":
		var i int
		err = json.Unmarshal(n.Value, &i)
		v = i
	case "bool":
		var b bool
		err = json.Unmarshal(n.Value, &b)
		v = b
	default:
		var t string
		err = json.Unmarshal(n.Value, &t)
		v = t
	}
	if err != nil {
		fail("%s: %v", n.Value, err)
	}
	return v
}

func (m *Machine) global(name string) code {
	switch name {
	case "s":
		return func(m *Machine) Value { return m.state }
	case "Bool":
		return constant(Set{false, true})
	}
	op := m.operator(name)
	return func(m *Machine) Value { return op.body(m) }
}

// let evaluates what it defines when that is used first.
func (m *Machine) let(n *Node, s *scope) code {
	def := n.Opdef
	slot := m.slot()
	if def.Qualifier == "nondet" {
		of := m.compile(m.edited(def.Expr).Args[0], s)
		body := m.compile(n.Expr, &scope{s, def.Name, slot, nil})
		return func(m *Machine) Value {
			among := of(m).(Set)
			if len(among) == 0 {
				return false
			}
			m.slots[slot] = among[m.choices.choose(len(among))]
			return body(m)
		}
	}
	value := m.compile(def.Expr, s)
	body := m.compile(n.Expr, &scope{s, def.Name, slot, value})
	return func(m *Machine) Value {
		m.slots[slot] = nil
		return body(m)
	}
}

func (m *Machine) app(n *Node, s *scope) code {
	if n.Opcode == "assign" {
		value := m.compile(n.Args[1], s)
		return func(m *Machine) Value {
			m.next = value(m)
			return true
		}
	}
	if n.Opcode == "variant" {
		return constant(Variant(literal(n.Args[0]).(string)))
	}
	if n.Opcode == "Rec" {
		return m.record(n, s)
	}
	if n.Opcode == "field" || n.Opcode == "with" {
		return m.field(n, s)
	}
	if c := m.iteration(n, s); c != nil {
		return c
	}
	args := make([]code, len(n.Args))
	for i, a := range n.Args {
		args[i] = m.compile(a, s)
	}
	if c := control(n.Opcode, args); c != nil {
		return c
	}
	if f := builtins[n.Opcode]; f != nil {
		return builtin(f, args)
	}
	op := m.operator(n.Opcode)
	switch len(args) {
	case 1:
		return func(m *Machine) Value {
			m.slots[op.params[0]] = args[0](m)
			return op.body(m)
		}
	default:
		return func(m *Machine) Value {
			values := make([]Value, len(args))
			for i, a := range args {
				values[i] = a(m)
			}
			for i, v := range values {
				m.slots[op.params[i]] = v
			}
			return op.body(m)
		}
	}
}

func builtin(f func(...Value) Value, args []code) code {
	switch len(args) {
	case 1:
		return func(m *Machine) Value { return f(args[0](m)) }
	case 2:
		return func(m *Machine) Value { return f(args[0](m), args[1](m)) }
	default:
		return func(m *Machine) Value {
			values := make([]Value, len(args))
			for i, a := range args {
				values[i] = a(m)
			}
			return f(values...)
		}
	}
}

func (m *Machine) shape(names []string) *shape {
	key := strings.Join(names, ",")
	if m.shapes[key] == nil {
		m.shapes[key] = &shape{names}
	}
	return m.shapes[key]
}

func (m *Machine) record(n *Node, s *scope) code {
	fields := make(map[string]code)
	var names []string
	for i := 0; i < len(n.Args); i += 2 {
		name := literal(n.Args[i]).(string)
		names = append(names, name)
		fields[name] = m.compile(n.Args[i+1], s)
	}
	slices.Sort(names)
	of := m.shape(names)
	var values []code
	for _, name := range names {
		values = append(values, fields[name])
	}
	return func(m *Machine) Value {
		r := &Record{of, make([]Value, len(values))}
		for i, v := range values {
			r.values[i] = v(m)
		}
		return r
	}
}

// field compiles a read of a field, and a record with another value in a field.
func (m *Machine) field(n *Node, s *scope) code {
	of, name := m.compile(n.Args[0], s), literal(n.Args[1]).(string)
	var last *shape
	var at int
	find := func(r *Record) int {
		if r.shape != last {
			last, at = r.shape, r.index(name)
		}
		return at
	}
	if n.Opcode == "field" {
		return func(m *Machine) Value {
			r := of(m).(*Record)
			return r.values[find(r)]
		}
	}
	value := m.compile(n.Args[2], s)
	return func(m *Machine) Value {
		r := of(m).(*Record)
		v := value(m)
		r = &Record{r.shape, slices.Clone(r.values)}
		r.values[find(r)] = v
		return r
	}
}

// iteration compiles what calls a function for each element.
func (m *Machine) iteration(n *Node, s *scope) code {
	last := len(n.Args) - 1
	if last < 0 {
		return nil
	}
	var params []int
	var body code
	switch f := m.edited(n.Args[last]); {
	case f.Kind == "lambda":
		params, body = m.lambda(f, s)
	case f.Kind == "name" && m.defs[f.Name] != nil && m.defs[f.Name].Expr.Kind == "lambda":
		op := m.operator(f.Name)
		params, body = op.params, op.body
	default:
		return nil
	}
	var args []code
	for _, a := range n.Args[:last] {
		args = append(args, m.compile(a, s))
	}
	call := func(m *Machine, v Value) Value {
		m.slots[params[0]] = v
		return body(m)
	}
	of := args[0]
	switch n.Opcode {
	case "forall", "exists":
		until := n.Opcode == "exists"
		return func(m *Machine) Value {
			for _, v := range of(m).(Set) {
				if call(m, v) == until {
					return until
				}
			}
			return !until
		}
	case "filter":
		return func(m *Machine) Value {
			all := of(m).(Set)
			some := make(Set, 0, len(all))
			for _, v := range all {
				if call(m, v).(bool) {
					some = append(some, v)
				}
			}
			return some
		}
	case "select":
		return func(m *Machine) Value {
			some := List{}
			for _, v := range of(m).(List) {
				if call(m, v).(bool) {
					some = append(some, v)
				}
			}
			return some
		}
	case "map":
		return func(m *Machine) Value {
			var values []Value
			for _, v := range of(m).(Set) {
				values = append(values, call(m, v))
			}
			return newSet(values)
		}
	case "mapBy":
		return func(m *Machine) Value {
			all := of(m).(Set)
			made := make(Map, len(all))
			for i, v := range all {
				made[i] = pair{v, call(m, v)}
			}
			return made
		}
	case "setBy":
		key := args[1]
		return func(m *Machine) Value {
			all, k := of(m).(Map), key(m)
			return all.put(k, call(m, all.get(k)))
		}
	case "fold":
		start := args[1]
		return func(m *Machine) Value {
			all, result := of(m).(Set), start(m)
			for _, v := range all {
				m.slots[params[0]], m.slots[params[1]] = result, v
				result = body(m)
			}
			return result
		}
	}
	fail("what is %s?", n.Opcode)
	return nil
}

// control compiles what does not evaluate all its arguments, or makes steps of them.
func control(opcode string, args []code) code {
	switch opcode {
	case "ite":
		return func(m *Machine) Value {
			if args[0](m).(bool) {
				return args[1](m)
			}
			return args[2](m)
		}
	case "and", "actionAll":
		return func(m *Machine) Value {
			for _, a := range args {
				if !a(m).(bool) {
					return false
				}
			}
			return true
		}
	case "or":
		return func(m *Machine) Value {
			return slices.ContainsFunc(args, func(a code) bool { return a(m).(bool) })
		}
	case "implies":
		return func(m *Machine) Value { return !args[0](m).(bool) || args[1](m).(bool) }
	case "actionAny":
		return func(m *Machine) Value { return m.choices.any(m, args) }
	case "then":
		return func(m *Machine) Value {
			if !args[0](m).(bool) {
				return false
			}
			m.state, m.next = m.next, nil
			return args[1](m)
		}
	case "fail":
		return func(m *Machine) Value {
			is := args[0](m).(bool)
			m.next = m.state
			return !is
		}
	}
	return nil
}

// A chooser makes the choices of a step.
type chooser interface {
	choose(among int) int
	any(m *Machine, actions []code) Value
}

// random takes one of the actions that are possible.
type random struct{ *rand.Rand }

func (r random) choose(n int) int { return r.IntN(n) }

func (r random) any(m *Machine, actions []code) Value {
	for _, i := range r.Perm(len(actions)) {
		if actions[i](m).(bool) {
			return true
		}
	}
	return false
}

// each makes all choices, one after the other: first is true as long as there are more.
type each struct {
	made []choice
	next int
}

type choice struct{ taken, among int }

func (e *each) choose(n int) int {
	if e.next == len(e.made) {
		e.made = append(e.made, choice{0, n})
	}
	e.next++
	return e.made[e.next-1].taken
}

func (e *each) any(m *Machine, actions []code) Value { return actions[e.choose(len(actions))](m) }

// again prepares the next choices. It reports whether there are any.
func (e *each) again() bool {
	e.next = 0
	for len(e.made) > 0 {
		last := &e.made[len(e.made)-1]
		if last.taken++; last.taken < last.among {
			return true
		}
		e.made = e.made[:len(e.made)-1]
	}
	return false
}

var builtins map[string]func(...Value) Value

func init() {
	builtins = map[string]func(...Value) Value{
		"not":     func(a ...Value) Value { return !a[0].(bool) },
		"eq":      func(a ...Value) Value { return compare(a[0], a[1]) == 0 },
		"neq":     func(a ...Value) Value { return compare(a[0], a[1]) != 0 },
		"ilt":     func(a ...Value) Value { return a[0].(int) < a[1].(int) },
		"ilte":    func(a ...Value) Value { return a[0].(int) <= a[1].(int) },
		"igt":     func(a ...Value) Value { return a[0].(int) > a[1].(int) },
		"igte":    func(a ...Value) Value { return a[0].(int) >= a[1].(int) },
		"iadd":    func(a ...Value) Value { return a[0].(int) + a[1].(int) },
		"isub":    func(a ...Value) Value { return a[0].(int) - a[1].(int) },
		"imul":    func(a ...Value) Value { return a[0].(int) * a[1].(int) },
		"iuminus": func(a ...Value) Value { return -a[0].(int) },
		"Set":     func(a ...Value) Value { return newSet(slices.Clone(a)) },
		"List":    func(a ...Value) Value { return List(slices.Clone(a)) },
		"Tup":     func(a ...Value) Value { return List(slices.Clone(a)) },
		"Map": func(a ...Value) Value {
			m := Map{}
			for _, p := range a {
				m = m.put(p.(List)[0], p.(List)[1])
			}
			return m
		},
		"contains": func(a ...Value) Value { return a[0].(Set).has(a[1]) },
		"in":       func(a ...Value) Value { return a[1].(Set).has(a[0]) },
		"union":    func(a ...Value) Value { return newSet(slices.Concat(a[0].(Set), a[1].(Set))) },
		"exclude": func(a ...Value) Value {
			return slices.DeleteFunc(slices.Clone(a[0].(Set)), a[1].(Set).has)
		},
		"size":   func(a ...Value) Value { return len(a[0].(Set)) },
		"length": func(a ...Value) Value { return len(a[0].(List)) },
		"append": func(a ...Value) Value { return append(slices.Clip(slices.Clone(a[0].(List))), a[1]) },
		"nth": func(a ...Value) Value {
			if i := a[1].(int); i < 0 || i >= len(a[0].(List)) {
				fail("the list has no element %d", i)
			}
			return a[0].(List)[a[1].(int)]
		},
		"keys": func(a ...Value) Value {
			m := a[0].(Map)
			s := make(Set, len(m))
			for i, p := range m {
				s[i] = p.key
			}
			return s
		},
		"get": func(a ...Value) Value { return a[0].(Map).get(a[1]) },
		"put": func(a ...Value) Value { return a[0].(Map).put(a[1], a[2]) },
		"set": func(a ...Value) Value {
			a[0].(Map).get(a[1])
			return a[0].(Map).put(a[1], a[2])
		},
	}
}
