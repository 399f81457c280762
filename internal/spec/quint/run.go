package quint

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
)

// Holds evaluates a definition without parameters that is true or false, in the state as it is.
func (m *Machine) Holds(name string) (is bool, err error) {
	defer caught(&err)
	return m.operator(name).body(m).(bool), nil
}

// Truths evaluates a definition that says of some names what is true in the state as it is.
func (m *Machine) Truths(name string) (truths map[string]bool, err error) {
	defer caught(&err)
	truths = make(map[string]bool)
	for _, p := range m.operator(name).body(m).(Map) {
		truths[p.key.(string)] = p.value.(bool)
	}
	return truths, nil
}

func caught(err *error) {
	switch r := recover().(type) {
	case nil:
	case failure:
		*err = r
	default:
		panic(r)
	}
}

// State describes the state.
func (m *Machine) State() string { return fmt.Sprint(m.state) }

// Test makes the steps of a run. It reports whether each is possible.
func (m *Machine) Test(run string) (bool, error) {
	m.state, m.next, m.choices = nil, nil, random{rand.New(rand.NewPCG(0, 0))}
	return m.Holds(run)
}

// Wander makes a run of so many steps at random. It visits each state.
func (m *Machine) Wander(init, step string, seed uint64, steps int, visit func() error) (
	err error,
) {
	defer caught(&err)
	m.state, m.next, m.choices = nil, nil, random{rand.New(rand.NewPCG(seed, 1))}
	op, next := m.operator(init), m.operator(step)
	for n := 0; n <= steps && op.body(m).(bool); n++ {
		op, m.state, m.next = next, m.next, nil
		if err := visit(); err != nil {
			return fmt.Errorf("step %d of seed %d: %w", n, seed, err)
		}
	}
	return nil
}

// Explore visits each state that can be reached in so many steps, once. It returns how many states
// each number of steps has added: none at last if these were all.
func (m *Machine) Explore(init, step string, steps int, visit func() error) (
	added []int, err error,
) {
	defer caught(&err)
	op, next := m.operator(init), m.operator(step)
	seeds := [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}
	seen := make(map[[2]uint64]struct{})
	var text []byte
	states := []Value{nil}
	for n := 0; n <= steps && len(states) > 0; n++ {
		var found []Value
		for _, from := range states {
			err := m.each(op, from, func(to Value) error {
				text = encode(text[:0], to)
				key := [2]uint64{maphash.Bytes(seeds[0], text), maphash.Bytes(seeds[1], text)}
				if _, is := seen[key]; is {
					return nil
				}
				seen[key] = struct{}{}
				found = append(found, to)
				m.state = to
				return visit()
			})
			if err != nil {
				return added, fmt.Errorf("step %d: %w", n, err)
			}
		}
		op, states, added = next, found, append(added, len(found))
	}
	return added, nil
}

// each makes each step that is possible from a state. Steps that differ may lead to one state.
func (m *Machine) each(step *operator, from Value, visit func(Value) error) error {
	choices := new(each)
	for more := true; more; more = choices.again() {
		m.state, m.next, m.choices = from, nil, choices
		if !step.body(m).(bool) {
			continue
		}
		if err := visit(m.next); err != nil {
			return err
		}
	}
	return nil
}
