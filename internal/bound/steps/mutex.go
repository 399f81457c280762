package steps

import "sync"

// A Declaration is where a mutex is declared.
type Declaration interface{ Declaration() string }

// A Mutex is a sync.Mutex whose sections are counted. A goroutine that waits for it waits at a
// channel. So in a bubble of testing/synctest time goes on meanwhile, and a test may hold it for
// longer than no time.
type Mutex[D Declaration] struct {
	lock lock
	is   *section // of the goroutine that has it
}

// Lock is as in sync.Mutex.
func (m *Mutex[D]) Lock() {
	m.lock.lock()
	m.is = begin()
}

// TryLock is as in sync.Mutex.
func (m *Mutex[D]) TryLock() bool {
	if !m.lock.tryLock() {
		return false
	}
	m.is = begin()
	return true
}

// Unlock is as in sync.Mutex.
func (m *Mutex[D]) Unlock() {
	if m.is == nil {
		panic("steps: Unlock of a Mutex that is not locked")
	}
	s := m.is
	m.is = nil
	var at D
	s.end(at.Declaration())
	m.lock.unlock()
}

// A lock is what a Mutex waits by: first come, first served.
type lock struct {
	mu      sync.Mutex // not held across anything
	taken   bool
	waiting []chan struct{}
}

func (l *lock) tryLock() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.taken {
		return false
	}
	l.taken = true
	return true
}

func (l *lock) lock() {
	l.mu.Lock()
	if !l.taken {
		l.taken = true
		l.mu.Unlock()
		return
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	<-turn
}

// unlock hands the lock to the first that waits.
func (l *lock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) == 0 {
		l.taken = false
		return
	}
	turn := l.waiting[0]
	l.waiting = l.waiting[1:]
	close(turn)
}
