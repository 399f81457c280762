// Package etcdlock stands for the library: the signatures of it that the tests use.
package etcdlock

import (
	"context"
	"iter"
	"time"
)

type (
	Mutex     struct{ _ int }
	RWMutex   struct{ *Mutex }
	Semaphore struct{ _ int }
	Session   struct{ _ int }
	Hold      struct{ _ int }
	Option    interface{ option() }

	SessionOption interface{ sessionOption() }

	Status    struct{ Held bool }
	Contender struct{ Owner string }
)

var ErrLocked, ErrLost error

func New(client any, name string, opts ...SessionOption) (*Mutex, error) { return nil, nil }
func NewSession(client any, opts ...SessionOption) (*Session, error)     { return nil, nil }
func TokenFrom(ctx context.Context) (token int64, ok bool)               { return 0, false }
func WithTTL(d time.Duration) SessionOption                              { return nil }
func WithMaxHold(d time.Duration) Option                                 { return nil }
func WithMinHold(d time.Duration) Option                                 { return nil }
func WithAcquireTimeout(d time.Duration) Option                          { return nil }
func WatchHolder(ctx context.Context, client any, name string) iter.Seq2[Contender, error] {
	return nil
}

func (m *Mutex) Lock(ctx context.Context) error    { return nil }
func (m *Mutex) TryLock(ctx context.Context) error { return nil }
func (m *Mutex) Unlock(ctx context.Context) error  { return nil }
func (m *Mutex) Close(ctx context.Context) error   { return nil }
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context) error) error {
	return nil
}
func (m *Mutex) TryDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return nil
}
func (m *Mutex) Lead(ctx context.Context, fn func(ctx context.Context) error) error {
	return nil
}
func (m *Mutex) Context(parent context.Context) context.Context { return parent }
func (m *Mutex) Token() int64                                   { return 0 }
func (m *Mutex) Status() Status                                 { return Status{} }

func (rw *RWMutex) RLock(ctx context.Context) (*Hold, error)    { return nil, nil }
func (rw *RWMutex) TryRLock(ctx context.Context) (*Hold, error) { return nil, nil }
func (rw *RWMutex) RDo(ctx context.Context, fn func(ctx context.Context) error) error {
	return nil
}

func (s *Semaphore) Acquire(ctx context.Context, n int) (*Hold, error) { return nil, nil }
func (s *Semaphore) Do(ctx context.Context, n int, fn func(ctx context.Context) error) error {
	return nil
}

func (s *Session) Mutex(name string, opts ...Option) (*Mutex, error) { return nil, nil }
func (s *Session) Lock(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	return nil, nil
}
func (s *Session) TryLock(ctx context.Context, name string, opts ...Option) (*Hold, error) {
	return nil, nil
}
func (s *Session) LockAll(ctx context.Context, names ...string) (*Hold, error) { return nil, nil }
func (s *Session) Do(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	return nil
}
func (s *Session) TryDo(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	return nil
}
func (s *Session) Lead(
	ctx context.Context, name string, fn func(ctx context.Context) error, opts ...Option,
) error {
	return nil
}
func (s *Session) DoAll(
	ctx context.Context, names []string, fn func(ctx context.Context) error,
) error {
	return nil
}
func (s *Session) Close(ctx context.Context) error { return nil }

func (h *Hold) Unlock(ctx context.Context) error               { return nil }
func (h *Hold) Context(parent context.Context) context.Context { return parent }
func (h *Hold) Token() int64                                   { return 0 }
func (h *Hold) Status() Status                                 { return Status{} }
func (h *Hold) Key() string                                    { return "" }
