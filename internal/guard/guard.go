// Package guard has the one mutex of a Session, and the group of its goroutines.
//
// Invariant: no call to etcd, to the user's code, or to the cancel function of a context happens
// while the mutex is held. What has to be called is given to [Mutex.After].
package guard

import "sync"

// A Mutex is a [sync.Mutex] with calls that are made as it is unlocked, and once it is. Its zero
// value is unlocked. A method with a name that ends in Locked, of any package, is called with it
// held.
type Mutex struct {
	sync.Mutex

	Settler Settler // set before the first Lock, or nil

	after []func()
}

// A Settler draws the conclusions of what has changed since the Lock. Each Unlock calls it, with
// the mutex held. So a change needs only a mark that the Settler finds.
type Settler interface{ SettleLocked() }

// After makes the Unlock that follows call f, without m: to cancel a context runs code that may
// lock m. The caller holds m.
func (m *Mutex) After(f func()) { m.after = append(m.after, f) }

// Unlock calls the Settler, unlocks m, and then calls what After was given since the Lock.
func (m *Mutex) Unlock() {
	if m.Settler != nil {
		m.Settler.SettleLocked()
	}
	after := m.after
	m.after = nil
	m.Mutex.Unlock()
	for _, f := range after {
		f()
	}
}

// A Group is the goroutines of a Session. Its counter is guarded by the Session's mutex, so that
// a goroutine that begins in the critical section that decides on it is never missed.
type Group struct {
	mu    *Mutex
	count int
	idle  []chan struct{} // closed when count reaches 0
}

// NewGroup returns a group without goroutines, guarded by mu.
func NewGroup(mu *Mutex) *Group { return &Group{mu: mu} }

// GoLocked runs f in a goroutine of g. The caller makes sure that f ends soon after the Session's
// context does, or after the context of a call that Close ends.
func (g *Group) GoLocked(f func()) {
	g.count++
	go func() {
		f()
		g.mu.Lock()
		defer g.mu.Unlock()
		g.count--
		if g.count == 0 {
			for _, idle := range g.idle {
				close(idle)
			}
			g.idle = nil
		}
	}()
}

// Go is GoLocked for callers that do not hold the mutex.
func (g *Group) Go(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.GoLocked(f)
}

// IdleLocked returns a channel that is closed when no goroutine of g runs.
func (g *Group) IdleLocked() <-chan struct{} {
	idle := make(chan struct{})
	if g.count == 0 {
		close(idle)
	} else {
		g.idle = append(g.idle, idle)
	}
	return idle
}
