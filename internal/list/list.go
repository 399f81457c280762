// Package list is a doubly linked list whose nodes are fields of what is listed: to add or to
// remove one takes no allocation, and as long beside 100,000 others as beside one.
package list

import "iter"

// A List has nodes in the order in which they were added. The zero List is empty. Do not copy one
// that has had a node. A list that is given up goes on while it has nodes: each knows the one in
// which it is.
type List[T any] struct {
	first  *Node[T] // nil if there is none
	length int
}

// A Node is in one List at most. The zero Node is in none.
type Node[T any] struct {
	of            T
	in            *List[T]
	before, after *Node[T] // in a ring: before the first one is the last one
}

// Add adds n, as the last one. It stands for of.
func (l *List[T]) Add(n *Node[T], of T) {
	n.Remove()
	n.of, n.in, n.before, n.after = of, l, n, n
	if l.first == nil {
		l.first = n
	} else {
		n.before, n.after = l.first.before, l.first
		n.before.after, n.after.before = n, n
	}
	l.length++
}

// Remove takes n out of its list, if it is in one.
func (n *Node[T]) Remove() {
	if n.in == nil {
		return
	}
	n.before.after, n.after.before = n.after, n.before
	if n.in.length--; n.in.length == 0 {
		n.in.first = nil
	} else if n.in.first == n {
		n.in.first = n.after
	}
	n.in, n.before, n.after = nil, nil, nil
}

// Len is the number of nodes, of a nil List 0.
func (l *List[T]) Len() int {
	if l == nil {
		return 0
	}
	return l.length
}

// First is what the first node stands for. ok is false if there is none.
func (l *List[T]) First() (of T, ok bool) {
	if l.Len() == 0 {
		return of, false
	}
	return l.first.of, true
}

// Last is what the last node stands for. ok is false if there is none.
func (l *List[T]) Last() (of T, ok bool) {
	if l.Len() == 0 {
		return of, false
	}
	return l.first.before.of, true
}

// All yields what the nodes stand for, in order. The one that was just yielded may be removed.
func (l *List[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		for n := l.first; n != nil; {
			next := n.after
			if next == l.first {
				next = nil
			}
			if !yield(n.of) {
				return
			}
			n = next
		}
	}
}

// Before yields what stands before n in its list, the nearest first.
func (n *Node[T]) Before() iter.Seq[T] {
	return func(yield func(T) bool) {
		l := n.in
		for b := n; l != nil && b != l.first && yield(b.before.of); b = b.before {
		}
	}
}

// Firsts yields what is first, again and again, until nothing is. The caller removes each.
func (l *List[T]) Firsts() iter.Seq[T] {
	return func(yield func(T) bool) {
		for l.length > 0 && yield(l.first.of) {
		}
	}
}
