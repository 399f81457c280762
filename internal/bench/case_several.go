package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/etcdlock/etcdlock/internal/side"
)

// severalCase is one process that takes n names and gives them back, while nobody else is
// there.
func severalCase(n int) benchCase {
	return benchCase{
		name: fmt.Sprintf("several-%d", n), kind: several, n: n, etcd: true,
		title: fmt.Sprintf("%d names locked and unlocked, nobody else there: "+
			"by LockAll, or one after another; an operation is all of them", n),
		start: startSeveral(n, 0),
	}
}

// besideCase is the same while other goroutines of the process lock a name each.
func besideCase(n, others int) benchCase {
	c := severalCase(n)
	c.name += "-beside"
	c.title = fmt.Sprintf("the same with %d names, while %d other goroutines of the process lock a "+
		"name each, again and again (the counts are of all)", n, others)
	c.start = startSeveral(n, others)
	return c
}

func startSeveral(n, others int) func(context.Context, *arena) (*event, error) {
	return func(ctx context.Context, a *arena) (*event, error) {
		parties, end, err := a.parties(ctx, 1, ttl)
		if err != nil {
			return nil, err
		}
		l, err := a.severalLock(ctx, parties[0], n)
		s := &section{lock: l, witness: &witness{}, who: 1}
		for i := 0; i < max(warmUp/n, 5) && err == nil; i++ {
			err = s.through(ctx)
		}
		beside := make([]*section, others)
		for i := 0; i < others && err == nil; i++ {
			var own []*section
			own, err = a.sections(ctx, parties, 1)
			beside[i] = own[0]
		}
		if err != nil {
			end()
			return nil, err
		}
		piece := func(ctx context.Context) (m measure, err error) {
			busy, stop := context.WithCancel(ctx)
			var running sync.WaitGroup
			errs := make([]error, others)
			for i, o := range beside {
				running.Go(func() { // ends with busy
					errs[i] = (&contender{section: o}).contend(busy, new(atomic.Int64))
				})
			}
			m, err = a.repeat(ctx, s.through)
			stop()
			running.Wait()
			m.broken = verdict(append(beside, s)...)
			return m, cmp.Or(append(errs, err)...)
		}
		return &event{piece, end}, nil
	}
}

// severalLock is a lock of n new names: the party's own, or one lock after another.
func (a *arena) severalLock(ctx context.Context, p party, n int) (side.Lock, error) {
	prefix := a.name()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s/%02d", prefix, i)
	}
	if p, ok := p.(severalParty); ok {
		return p.severalLock(ctx, names)
	}
	locks, err := locksOf(ctx, p, names)
	return inOrder(locks), err
}

// locksOf makes a lock of each name.
func locksOf(ctx context.Context, p party, names []string) ([]side.Lock, error) {
	locks := make([]side.Lock, len(names))
	for i, name := range names {
		var err error
		if locks[i], err = p.lock(ctx, name); err != nil {
			return nil, err
		}
	}
	return locks, nil
}

// inOrder is several locks. It takes them one after another, and gives them back the other
// way round. Users that take the names in one order do not deadlock.
type inOrder []side.Lock

func (l inOrder) Lock(ctx context.Context) error {
	for i := range l {
		if err := l[i].Lock(ctx); err != nil {
			return errors.Join(err, l[:i].Unlock(ctx))
		}
	}
	return nil
}

func (l inOrder) TryLock(context.Context) error { return errors.ErrUnsupported }

func (l inOrder) Unlock(ctx context.Context) (err error) {
	for i := len(l) - 1; i >= 0; i-- {
		err = errors.Join(err, l[i].Unlock(ctx))
	}
	return err
}
