package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/etcdlock/etcdlock/internal/side"
)

// startNames measures what it costs one process to hold n names: to lock them, and then in
// goroutines, memory and renewals.
func startNames(n int) func(context.Context, *arena) (*event, error) {
	return func(_ context.Context, a *arena) (*event, error) {
		piece := func(ctx context.Context) (m measure, err error) {
			goroutines := runtime.NumGoroutine()
			opened, end, err := a.parties(ctx, 1, namesTTL)
			if err != nil {
				return m, err
			}
			defer end()
			heap := heapInUse()

			held, prefix := make([]side.Lock, n), a.name()
			m.ops = n
			m.samples = make([]time.Duration, n)
			began := time.Now()
			m.spent, err = a.spent(ctx, func() error {
				return inParallel(n, func(i int) (err error) {
					began := time.Now()
					if held[i], err = opened[0].lock(ctx, fmt.Sprintf("%s/%d", prefix, i)); err != nil {
						return err
					}
					err = held[i].Lock(ctx)
					m.samples[i] = time.Since(began)
					return err
				})
			})
			if err != nil {
				return m, err
			}
			m.value = time.Since(began) / time.Duration(n)
			if n > 1 { // one would have the client and the lease to itself
				m.heap = float64(heapInUse()-heap) / float64(n)
			}

			renewals := a.wire.renewals.Load()
			if err := sleep(ctx, namesTTL); err != nil {
				return m, err
			}
			m.renewals = float64(a.wire.renewals.Load()-renewals) / 3
			m.goroutines = runtime.NumGoroutine() - goroutines

			// Nobody else contends. Each Unlock says whether its name was held all the
			// while.
			return m, inParallel(n, func(i int) error { return held[i].Unlock(ctx) })
		}
		return &event{piece, func() {}}, nil
	}
}

// namesTTL is short, so that the case soon sees renewals.
const namesTTL = 6 * time.Second

func heapInUse() int64 {
	runtime.GC()
	runtime.GC() // frees what finalizers let go
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	return int64(mem.HeapAlloc)
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
