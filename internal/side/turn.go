package side

import (
	"context"
	"sync"
)

// InTurn returns a Session whose locks many goroutines may use: they wait for each other
// locally, and one at a time goes to etcd. A careful user makes this of a
// concurrency.Session. (Its RWMutexes are those of s: goroutines that read need no turn.)
func InTurn(s Session) Session {
	return &turnSession{Session: s, mutexes: make(map[string]*turnMutex)}
}

type turnSession struct {
	Session

	mu      sync.Mutex
	mutexes map[string]*turnMutex
}

// Mutex returns the lock of that name.
func (s *turnSession) Mutex(name string) (Mutex, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if made := s.mutexes[name]; made != nil {
		return made, nil
	}
	inner, err := s.Session.Mutex(name)
	if err != nil {
		return nil, err
	}
	s.mutexes[name] = &turnMutex{Mutex: inner, turn: make(chan struct{}, 1)}
	return s.mutexes[name], nil
}

type turnMutex struct {
	Mutex
	turn chan struct{} // full while a goroutine has its turn
}

func (m *turnMutex) Lock(ctx context.Context) error    { return m.take(ctx, m.Mutex.Lock) }
func (m *turnMutex) TryLock(ctx context.Context) error { return m.take(ctx, m.Mutex.TryLock) }

// take waits for the turn, and keeps it if the call takes the lock.
func (m *turnMutex) take(ctx context.Context, lock func(context.Context) error) error {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := lock(ctx)
	if err != nil {
		<-m.turn
	}
	return err
}

func (m *turnMutex) Unlock(ctx context.Context) error {
	defer func() { <-m.turn }()
	return m.Mutex.Unlock(ctx)
}
