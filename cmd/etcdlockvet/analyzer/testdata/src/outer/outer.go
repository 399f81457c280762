// Package outer has functions that are given to Do and its like.
package outer

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/etcdlock/etcdlock"
)

func work(ctx context.Context) error { return nil }

type server struct {
	ctx context.Context
	mu  *etcdlock.Mutex
}

// A request is as that of net/http.
type request struct{ ctx context.Context }

func (r *request) Context() context.Context { return r.ctx }

func (r *request) WithContext(ctx context.Context) *request { return &request{ctx} }

var background = context.Background()

func reported(ctx context.Context, s *etcdlock.Session, mu *etcdlock.Mutex, srv *server,
	r *request) {
	mu.Do(ctx, func(context.Context) error {
		return work(ctx) // want `lost: use the context that Do gives the function`
	})
	mu.Do(ctx, func(_ context.Context) error {
		return work(ctx) // want `lost: use the context that Do gives the function`
	})
	mu.Lead(ctx, func(held context.Context) error {
		work(held)
		return work(ctx) // want `lost: use held, which Lead gives the function`
	})
	mu.TryDo(ctx, func(held context.Context) error {
		return work(srv.ctx) // want `srv.ctx does not end`
	})
	s.Do(r.Context(), "name", func(ctx context.Context) error {
		return work(r.Context()) // want `r.Context\(\) does not end`
	})
	s.Lead(ctx, "name", func(held context.Context) error {
		return work(ctx) // want `ctx does not end if the lock is lost: use held, which Lead gives`
	})
	s.DoAll(ctx, []string{"a", "b"}, func(held context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // want `ctx does not end`
		defer cancel()
		return work(ctx)
	})
	new(etcdlock.RWMutex).RDo(ctx, func(held context.Context) error {
		go func() {
			work(ctx) // want `ctx does not end`
		}()
		return work(background) // want `background does not end`
	})
	new(etcdlock.Semaphore).Do(ctx, 2, func(held context.Context) error {
		return mu.Lock(ctx) // want `ctx does not end`
	})
	mu.Do(ctx, func(one context.Context) error {
		return s.Do(one, "name", func(two context.Context) error {
			work(two)
			work(ctx)        // want `ctx does not end if the lock is lost: use two`
			return work(one) // want `one does not end if the lock is lost: use two`
		})
	})
	mu.Do(ctx, func(one context.Context) error {
		return s.Do(ctx, "name", func(two context.Context) error { // want `ctx does not end`
			return nil
		})
	})
}

func fine(ctx context.Context, s *etcdlock.Session, mu *etcdlock.Mutex, r *request) {
	mu.Do(ctx, work)
	mu.Do(ctx, func(ctx context.Context) error { return work(ctx) })
	mu.Do(ctx, func(held context.Context) error {
		defer work(ctx)
		defer func() { work(ctx) }()
		work(context.WithoutCancel(ctx))
		slog.InfoContext(ctx, "works")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		ctx := context.WithValue(held, "key", "value")
		return work(ctx)
	})
	mu.Do(r.Context(), func(ctx context.Context) error {
		r := r.WithContext(ctx)
		return work(r.Context())
	})
	hold, err := s.Lock(ctx, "other")
	if err != nil {
		return
	}
	mu.Do(ctx, func(held context.Context) error {
		work(hold.Context(ctx))
		_ = mu.Lock(context.Background())
		return hold.Unlock(context.Background())
	})
	other(ctx, func(context.Context) error { return work(ctx) })
}

func other(ctx context.Context, fn func(ctx context.Context) error) {}

func TestOfAnother(t *testing.T) {
	var mu etcdlock.Mutex
	mu.Do(t.Context(), func(context.Context) error { return work(t.Context()) })
}
