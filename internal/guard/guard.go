// Package guard has the one mutex of a Session, the group of its goroutines, and the calls that
// close it.
//
// Invariant: no call to etcd, to the user's code, or to the cancel function of a context happens
// while the mutex is held. What has to be called is given to [Mutex.After].
package guard

import (
	"iter"
	"sync"
)

// Piece is how many a critical section touches at most, of what may be many. Who has more to touch
// gives the mutex up in between: a hundred thousand goroutines may wait for it.
const Piece = 16

// Few is how many it touches at most of each of these.
const Few = 8

// A Mutex is a [sync.Mutex] with calls that are made as it is unlocked, and once it is. Its zero
// value is unlocked. A method with a name that ends in Locked, of any package, is called with it
// held.
type Mutex struct {
	sync.Mutex

	Settler Settler // set before the first Lock, or nil

	after   []func()
	touched int // since the Lock, as far as Pieces and Touch count it
}

// A Settler draws the conclusions of what has changed since the Lock. Each Unlock calls it, with
// the mutex held. So a change needs only a mark that the Settler finds.
type Settler interface{ SettleLocked() }

// After makes the Unlock that follows call f, without m: to cancel a context runs code that may
// lock m. The caller holds m.
func (m *Mutex) After(f func()) { m.after = append(m.after, f) }

// Touch tells Pieces that its f has touched n more than the one that it was called with. The caller
// holds m.
func (m *Mutex) Touch(n int) { m.touched += n }

// Unlock calls the Settler, unlocks m, and then calls what After was given since the Lock.
func (m *Mutex) Unlock() {
	if m.Settler != nil {
		m.Settler.SettleLocked()
	}
	after := m.after
	m.after, m.touched = nil, 0
	m.Mutex.Unlock()
	for _, f := range after {
		f()
	}
}

// Pieces calls f with each that seq yields, with m held, and gives m up after each Piece of them,
// or of what f has touched. So seq has to go on whatever happens to the rest meanwhile, as the keys
// of a map do, and the first one of a list from which f removes it. The caller does not hold m.
func Pieces[T any](m *Mutex, seq iter.Seq[T], f func(T)) {
	m.Lock()
	defer m.Unlock()
	for one := range seq {
		f(one)
		if m.touched++; m.touched >= Piece {
			m.Unlock()
			m.Lock()
		}
	}
}

// A Group is the goroutines of a Session. It has a lock of its own, so a goroutine that renews a
// lease starts another one whoever holds the Session's mutex. A goroutine that begins in the
// critical section that decides on it is never missed: it is counted there.
type Group struct {
	mu    sync.Mutex
	count int
	idle  chan struct{} // closed when count reaches 0; nil while no call waits for that
}

// Go runs f in a goroutine of g. The caller makes sure that f ends soon after the Session's context
// does, or after the context of a call that Close ends.
func (g *Group) Go(f func()) {
	g.Add()
	go func() {
		defer g.Done()
		f()
	}()
}

// Add counts what g waits for as for a goroutine, until Done is called.
func (g *Group) Add() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.count++
}

// Done ends what Add has counted.
func (g *Group) Done() {
	g.mu.Lock()
	g.count--
	var idle chan struct{}
	if g.count == 0 {
		idle, g.idle = g.idle, nil
	}
	g.mu.Unlock()
	if idle != nil {
		close(idle) // which wakes as many as wait
	}
}

// Idle returns a channel that is closed when no goroutine of g runs.
func (g *Group) Idle() <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	idle := g.idle
	if idle == nil {
		idle = make(chan struct{})
	}
	if g.count == 0 {
		close(idle)
	} else {
		g.idle = idle
	}
	return idle
}
