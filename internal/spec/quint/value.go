package quint

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// A Value is an int, a bool, a string, a Variant, a *Record, a Set, a Map or a List. Equal values
// have one form, so that compare and encode can go by the form.
type Value any

// A Variant is a value of a sum type, without a value of its own.
type Variant string

// A Record has its fields in the order of their names.
type Record struct {
	*shape
	values []Value
}

// A shape is what records with the same fields have in common.
type shape struct{ names []string }

func (s *shape) index(name string) int {
	i, ok := slices.BinarySearch(s.names, name)
	if !ok {
		fail("there is no field %s", name)
	}
	return i
}

func (r *Record) String() string {
	var fields []string
	for i, name := range r.names {
		fields = append(fields, fmt.Sprintf("%s: %v", name, r.values[i]))
	}
	return "{" + strings.Join(fields, ", ") + "}"
}

// A Set has its elements in order, each once.
type Set []Value

// A Map has its pairs in the order of their keys.
type Map []pair

type pair struct{ key, value Value }

func (p pair) String() string { return fmt.Sprintf("%v -> %v", p.key, p.value) }

// A List is a list, or a tuple.
type List []Value

// compare compares two values of one type.
func compare(a, b Value) int {
	switch a := a.(type) {
	case int:
		return cmp.Compare(a, b.(int))
	case string:
		return strings.Compare(a, b.(string))
	case Variant:
		return strings.Compare(string(a), string(b.(Variant)))
	case bool:
		return cmp.Compare(number(a), number(b.(bool)))
	case *Record:
		if a == b.(*Record) {
			return 0
		}
		return slices.CompareFunc(a.values, b.(*Record).values, compare)
	case Set:
		return slices.CompareFunc(a, b.(Set), compare)
	case List:
		return slices.CompareFunc(a, b.(List), compare)
	case Map:
		return slices.CompareFunc(a, b.(Map), func(a, b pair) int {
			return cmp.Or(compare(a.key, b.key), compare(a.value, b.value))
		})
	}
	panic(fmt.Sprintf("a value of the type %T", a))
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// encode appends a text that only equal values have.
func encode(to []byte, v Value) []byte {
	switch v := v.(type) {
	case int:
		return binary.AppendVarint(to, int64(v))
	case bool:
		return append(to, byte(number(v)))
	case string:
		return append(append(to, v...), 0)
	case Variant:
		return append(append(to, v...), 0)
	case *Record:
		return encodeAll(to, v.values)
	case Set:
		return encodeAll(binary.AppendUvarint(to, uint64(len(v))), v)
	case List:
		return encodeAll(binary.AppendUvarint(to, uint64(len(v))), v)
	case Map:
		to = binary.AppendUvarint(to, uint64(len(v)))
		for _, p := range v {
			to = encode(encode(to, p.key), p.value)
		}
		return to
	}
	panic(fmt.Sprintf("a value of the type %T", v))
}

func encodeAll(to []byte, values []Value) []byte {
	for _, v := range values {
		to = encode(to, v)
	}
	return to
}

// newSet returns the set of some values. It takes the slice.
func newSet(values []Value) Set {
	slices.SortFunc(values, compare)
	return slices.CompactFunc(values, func(a, b Value) bool { return compare(a, b) == 0 })
}

func (s Set) has(v Value) bool {
	_, ok := slices.BinarySearchFunc(s, v, compare)
	return ok
}

func (m Map) find(key Value) (int, bool) {
	return slices.BinarySearchFunc(m, key, func(p pair, key Value) int { return compare(p.key, key) })
}

func (m Map) get(key Value) Value {
	i, ok := m.find(key)
	if !ok {
		fail("the map has no key %v", key)
	}
	return m[i].value
}

func (m Map) put(key, value Value) Map {
	i, ok := m.find(key)
	if ok {
		m = slices.Clone(m)
		m[i].value = value
		return m
	}
	return slices.Insert(slices.Clip(slices.Clone(m)), i, pair{key, value})
}

// A failure is an error of the specification at run time.
type failure string

func (f failure) Error() string { return string(f) }

func fail(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
