package attempt

import (
	"runtime"
	"sync"
	"weak"
)

// Shared has a T for each client, or whatever else all Sessions of a client have in common. It
// keeps none of these alive.
type Shared[T any] struct {
	mu sync.Mutex
	of map[any]*T // by a weak pointer
}

// SharedBy returns p's T, which it makes if there is none. s forgets the T with p.
func SharedBy[P, T any](s *Shared[T], p *P, create func() *T) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := any(weak.Make(p))
	t := s.of[key]
	if t == nil {
		if s.of == nil {
			s.of = make(map[any]*T)
		}
		t = create()
		s.of[key] = t
		runtime.AddCleanup(p, s.forget, key)
	}
	return t
}

func (s *Shared[T]) forget(key any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, key)
}
