// Package mistakes has mistakes that people make, each beside three right functions like it.
package mistakes

import (
	"context"
	"errors"
	"iter"
	"log"
	"sync"
	"time"

	"github.com/etcdlock/etcdlock"
)

func work(ctx context.Context) error { return nil }
func quick()                         {}

// The error of Lock is ignored, and the work runs.

func ignoredWrong(ctx context.Context, mu *etcdlock.Mutex) {
	mu.Lock(ctx) // want `is ignored`
	defer mu.Unlock(ctx)
	quick()
}

func ignoredRight1(ctx context.Context, mu *etcdlock.Mutex) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	defer mu.Unlock(ctx)
	quick()
	return nil
}

func ignoredRight2(ctx context.Context, mu *etcdlock.Mutex) {
	_ = mu.Lock(ctx)
	defer mu.Unlock(ctx)
	quick()
}

func ignoredRight3(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Lock(ctx)
}

// The error of TryLock is only logged, and the work runs.

func loggedWrong(ctx context.Context, mu *etcdlock.Mutex) {
	if err := mu.TryLock(ctx); err != nil { // want `is only logged`
		log.Println(err)
	}
	quick()
	mu.Unlock(ctx)
}

func loggedRight1(ctx context.Context, mu *etcdlock.Mutex) {
	if err := mu.TryLock(ctx); err != nil {
		log.Println(err)
		return
	}
	quick()
	mu.Unlock(ctx)
}

func loggedRight2(ctx context.Context, mu *etcdlock.Mutex) {
	if err := mu.TryLock(ctx); err != nil {
		log.Println(err)
	} else {
		quick()
		mu.Unlock(ctx)
	}
}

func loggedRight3(ctx context.Context, mu *etcdlock.Mutex) {
	if err := mu.TryLock(ctx); err != nil {
		log.Fatal(err)
	}
	quick()
	mu.Unlock(ctx)
}

// Unlock stands in one branch, and both return nil.

func branchWrong(ctx context.Context, mu *etcdlock.Mutex, paid bool) error {
	if err := mu.Lock(ctx); err != nil { // want `leaves it locked`
		return err
	}
	if paid {
		quick()
		mu.Unlock(ctx)
	}
	return nil
}

func branchWrong2(ctx context.Context, mu *etcdlock.Mutex, paid bool) error {
	if err := mu.Lock(ctx); err != nil { // want `leaves it locked`
		return err
	}
	if paid {
		return mu.Unlock(ctx)
	}
	return nil
}

func branchRight1(ctx context.Context, mu *etcdlock.Mutex, paid bool) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	if paid {
		quick()
	}
	mu.Unlock(ctx)
	return nil
}

func branchRight2(ctx context.Context, mu *etcdlock.Mutex, paid bool) error {
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	if err := check(paid); err != nil {
		mu.Unlock(ctx)
		return err
	}
	return nil
}

func branchRight3(ctx context.Context, mu *etcdlock.Mutex, paid bool) error {
	if !paid {
		return nil
	}
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	return mu.Unlock(ctx)
}

func check(bool) error { return nil }

// The function in Do works with context.Background.

func backgroundWrong(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		return work(context.Background()) // want `context.Background\(\) does not end`
	})
}

func backgroundRight1(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		defer work(context.Background())
		return work(ctx)
	})
}

func backgroundRight2(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(context.Background(), func(ctx context.Context) error { return work(ctx) })
}

func backgroundRight3(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		if err := work(ctx); err != nil {
			return work(context.WithoutCancel(ctx))
		}
		return nil
	})
}

// The function in Do asks an outer context whether to go on.

func outerErrWrong(outer context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(outer, func(ctx context.Context) error {
		for outer.Err() == nil { // want `outer does not end`
			quick()
		}
		return nil
	})
}

func outerErrRight1(outer context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(outer, func(ctx context.Context) error {
		for ctx.Err() == nil {
			quick()
		}
		return nil
	})
}

func outerErrRight2(outer context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(outer, func(ctx context.Context) error {
		if err := work(ctx); err != nil && outer.Err() == nil {
			return etcdlock.ErrLost
		}
		return nil
	})
}

func outerErrRight3(outer context.Context, mu *etcdlock.Mutex) error {
	err := mu.Do(outer, work)
	if outer.Err() != nil {
		return nil
	}
	return err
}

func outerDoneWrong(outer context.Context, mu *etcdlock.Mutex, jobs chan int) error {
	return mu.Do(outer, func(ctx context.Context) error {
		for {
			select {
			case <-jobs:
				quick()
			case <-outer.Done(): // want `outer does not end`
				return nil
			}
		}
	})
}

func outerDoneRight1(outer context.Context, mu *etcdlock.Mutex, jobs chan int) error {
	return mu.Do(outer, func(ctx context.Context) error {
		select {
		case <-jobs:
			quick()
		case <-ctx.Done():
		}
		return nil
	})
}

func outerDoneRight2(outer context.Context, mu *etcdlock.Mutex, jobs chan int) error {
	return mu.Do(outer, func(ctx context.Context) error {
		select {
		case <-jobs:
		case <-ctx.Done():
			return ctx.Err()
		case <-outer.Done():
			return nil
		}
		return nil
	})
}

func outerDoneRight3(outer context.Context, mu *etcdlock.Mutex) error {
	<-outer.Done()
	return mu.Do(context.WithoutCancel(outer), work)
}

// A named function ignores its context.

func sleeps(ctx context.Context) error { return work(context.Background()) }

func clean(ctx context.Context) error {
	defer work(context.Background())
	return work(ctx)
}

func adds(context.Context) error { quick(); return nil }

func namedWrong(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, sleeps) // want `sleeps ignores the context`
}

func namedRight1(ctx context.Context, mu *etcdlock.Mutex) error { return mu.Do(ctx, clean) }

func namedRight2(ctx context.Context, mu *etcdlock.Mutex) error { return mu.Do(ctx, adds) }

func namedRight3(ctx context.Context, _ *etcdlock.Mutex) error { return sleeps(ctx) }

// Both results of Session.Lock are dropped.

func droppedWrong(ctx context.Context, s *etcdlock.Session) {
	s.Lock(ctx, "name") // want `is dropped`
	quick()
}

func droppedRight1(ctx context.Context, s *etcdlock.Session) {
	defer s.Close(ctx)
	s.Lock(ctx, "name")
}

func droppedRight2(ctx context.Context, s *etcdlock.Session) (*etcdlock.Hold, error) {
	return s.Lock(ctx, "name")
}

func droppedRight3(ctx context.Context, s *etcdlock.Session) error {
	h, err := s.Lock(ctx, "name")
	if err != nil {
		return err
	}
	quick()
	return h.Unlock(ctx)
}

// Unlock is deferred in a loop.

func loopWrong(ctx context.Context, s *etcdlock.Session, names []string) error {
	for _, name := range names {
		h, err := s.Lock(ctx, name) // want `h is locked again`
		if err != nil {
			return err
		}
		defer h.Unlock(ctx)
		quick()
	}
	return nil
}

func loopRight1(ctx context.Context, s *etcdlock.Session, names []string) error {
	for _, name := range names {
		h, err := s.Lock(ctx, name)
		if err != nil {
			return err
		}
		quick()
		h.Unlock(ctx)
	}
	return nil
}

func loopRight2(ctx context.Context, s *etcdlock.Session, names []string) error {
	for _, name := range names {
		err := func() error {
			h, err := s.Lock(ctx, name)
			if err != nil {
				return err
			}
			defer h.Unlock(ctx)
			quick()
			return nil
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

func loopRight3(ctx context.Context, s *etcdlock.Session, names []string) error {
	for _, name := range names {
		h, err := s.TryLock(ctx, name)
		if err != nil {
			continue
		}
		defer h.Unlock(ctx)
		quick()
		return nil
	}
	return nil
}

// TryLock is repeated without a pause.

func spinWrong(ctx context.Context, mu *etcdlock.Mutex) {
	for mu.TryLock(ctx) != nil { // want `without a pause`
	}
	quick()
	mu.Unlock(ctx)
}

func spinWrong2(ctx context.Context, mu *etcdlock.Mutex) {
	for {
		if err := mu.TryLock(ctx); err == nil { // want `without a pause`
			break
		}
		log.Println("still waiting")
	}
	quick()
	mu.Unlock(ctx)
}

func spinWrong3(ctx context.Context, rw *etcdlock.RWMutex) (h *etcdlock.Hold, err error) {
	for ctx.Err() == nil {
		h, err = rw.TryRLock(ctx) // want `without a pause`
		if !errors.Is(err, etcdlock.ErrLocked) {
			return h, err
		}
	}
	return nil, ctx.Err()
}

func spinRight1(ctx context.Context, mu *etcdlock.Mutex) {
	for mu.TryLock(ctx) != nil {
		time.Sleep(time.Second)
	}
	quick()
	mu.Unlock(ctx)
}

func spinRight2(ctx context.Context, mu *etcdlock.Mutex, tick chan int) {
	for range tick {
		if mu.TryLock(ctx) == nil {
			quick()
			mu.Unlock(ctx)
		}
	}
}

func spinRight3(ctx context.Context, s *etcdlock.Session, names []string) {
	for _, name := range names {
		if h, err := s.TryLock(ctx, name); err == nil {
			quick()
			h.Unlock(ctx)
		}
	}
}

func spinRight4(ctx context.Context, mu *etcdlock.Mutex) error {
	for i := 0; i < 3; i++ {
		if mu.TryLock(ctx) == nil {
			break
		}
	}
	return ctx.Err()
}

func spinRight5(ctx context.Context, mu *etcdlock.Mutex, tick *time.Ticker) {
	for mu.TryLock(ctx) != nil {
		<-tick.C
	}
	quick()
	mu.Unlock(ctx)
}

// A goroutine outlives Do.

func outlivesWrong(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		go work(ctx) // want `may outlive Do`
		return nil
	})
}

func outlivesWrong2(ctx context.Context, mu *etcdlock.Mutex, errs chan error) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		go func() { // want `may outlive Do`
			errs <- work(ctx)
		}()
		return nil
	})
}

func outlivesRight1(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		done := make(chan error)
		go func() { done <- work(ctx) }()
		return <-done
	})
}

func outlivesRight2(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		go work(context.WithoutCancel(ctx))
		return nil
	})
}

func outlivesRight3(ctx context.Context, mu *etcdlock.Mutex) error {
	go mu.Do(ctx, work)
	return nil
}

func outlivesRight4(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		var all sync.WaitGroup
		defer all.Wait()
		all.Add(1)
		go func() {
			defer all.Done()
			work(ctx)
		}()
		return nil
	})
}

// A context of the function in Do comes from context.Background.

func derivedWrong(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(context.Context) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return work(ctx) // want `ctx does not end`
	})
}

func derivedRight1(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return work(ctx)
	})
}

func derivedRight2(ctx context.Context, mu *etcdlock.Mutex) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		after, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return errors.Join(work(ctx), work(after))
	})
}

func derivedRight3(ctx context.Context, mu, other *etcdlock.Mutex) error {
	return mu.Do(ctx, func(context.Context) error {
		after, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return other.Unlock(after)
	})
}

// A range over WatchHolder takes one value, or none, and drops the error.

func rangeWrong(ctx context.Context, client any) (owner string) {
	for holder := range etcdlock.WatchHolder(ctx, client, "name") { // want `drops the error`
		owner = holder.Owner
	}
	return owner
}

func rangeWrong2(ctx context.Context, client any) {
	changes := etcdlock.WatchHolder(ctx, client, "name")
	for range changes { // want `drops the error`
		quick()
	}
}

func rangeRight1(ctx context.Context, client any) (owner string, err error) {
	for holder, err := range etcdlock.WatchHolder(ctx, client, "name") {
		if err != nil {
			return "", err
		}
		owner = holder.Owner
	}
	return owner, ctx.Err()
}

func rangeRight2(ctx context.Context, client any) (owner string) {
	for holder, _ := range etcdlock.WatchHolder(ctx, client, "name") {
		owner = holder.Owner
	}
	return owner
}

func rangeRight3(holders []etcdlock.Contender) (owner string) {
	for i := range holders {
		owner = holders[i].Owner
	}
	return owner
}

func rangeRight4(holders iter.Seq2[int, etcdlock.Contender], errs iter.Seq2[int, error]) {
	for range holders {
		quick()
	}
	for i := range errs {
		log.Println(i)
	}
}

// A duration is a bare number.

const short = 30

var optWrong = etcdlock.WithTTL(30) // want `WithTTL gets 30 nanoseconds`

var (
	optRight1 = etcdlock.WithTTL(30 * time.Second)
	optRight2 = etcdlock.WithMaxHold(500 * time.Microsecond)
	optRight3 = etcdlock.WithTTL(time.Duration(short) * time.Second)
)
