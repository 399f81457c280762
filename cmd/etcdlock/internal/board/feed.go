package board

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/quote"
)

const (
	// Rechecks find an event that was lost, an etcd that is away, and one that was set back.
	// A recheck makes etcd count the keys, and so they are rarer where there are many.
	recheckEvery = 2 * time.Second
	keysASecond  = 2000
	mostMisses   = 10 // that differ, while events come all the time

	// askEvery is the time from one question about leases or holders to the next, and askAgain how
	// often a lease is asked for that somebody looks at.
	askEvery = 10 * time.Millisecond
	askAgain = time.Second

	// Pauses after a failure.
	pauseLeast = 100 * time.Millisecond
	pauseMost  = 2 * time.Second
)

// A Feed tells a Board what is in etcd. It reads the prefix once and watches it, both again after a
// failure, and asks about leases, at most 100 a second. It writes nothing.
type Feed struct {
	Board   *Board
	Client  *clientv3.Client
	Prefix  string
	Timeout time.Duration // of a request

	looks atomic.Pointer[[]*Lock] // locks that somebody looks at
}

// Look says which locks are looked at. Their leases are asked for first.
func (f *Feed) Look(locks []*Lock) { f.looks.Store(&locks) }

// Run feeds the board until ctx ends, and leaves nothing running.
func (f *Feed) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var asking sync.WaitGroup
	asking.Go(func() { f.ask(ctx) })
	defer asking.Wait()
	for pause := pauseLeast; ctx.Err() == nil; {
		began := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.Board.Trouble(time.Now(), f.why(err))
		if time.Since(began) > 2*pauseMost {
			pause = pauseLeast
		}
		sleep(ctx, pause/2+rand.N(pause))
		pause = min(2*pause, pauseMost)
	}
}

// why says what is wrong, in words.
func (f *Feed) why(err error) string {
	if err == nil {
		return ""
	}
	if errors.Is(err, context.DeadlineExceeded) {
		where := strings.Join(quote.Addresses(f.Client.Endpoints()), ",")
		return fmt.Sprintf("etcd at %s did not answer in %v", where, f.Timeout)
	}
	return strings.TrimPrefix(err.Error(), "etcdserver: ")
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// timed is a KV whose Gets are bounded.
type timed struct {
	clientv3.KV
	timeout time.Duration
}

func (t timed) Get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	return t.KV.Get(ctx, key, opts...)
}

// A check is what a recheck has found.
type check struct {
	asked, revision int64 // of the board when it was sent, and of the answer
	keys            int64
	cluster         uint64
	err             error
}

// follow reads the prefix and watches it, until something is wrong.
func (f *Feed) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	read, err := ReadKeys(ctx, timed{f.Client, f.Timeout}, f.Prefix, Page)
	if err != nil {
		return err
	}
	f.Board.Read(time.Now(), read.Revision, read.Keys)
	f.Board.Trouble(time.Now(), "")
	from, end := bounds(f.Prefix)
	watch := f.Client.Watch(clientv3.WithRequireLeader(ctx), from, clientv3.WithRange(end),
		clientv3.WithRev(read.Revision+1), clientv3.WithFragment())
	every := max(recheckEvery, time.Duration(len(read.Keys))*time.Second/keysASecond)
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	checks, checking := make(chan check, 1), false
	quiet, misses := true, 0 // no event since the last recheck; how many differed, one after the other
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case resp, open := <-watch:
			switch {
			case !open:
				return errors.New("the watch has ended")
			case resp.Err() != nil:
				return resp.Err()
			}
			quiet = false
			f.Board.Apply(time.Now(), resp.Header.Revision, resp.Events)
		case now := <-ticks.C:
			f.Board.Tick(now)
			if !checking {
				checking = true
				go func() { checks <- f.recheck(ctx) }() // ends with ctx, or by its bound
			}
		case c := <-checks:
			checking = false
			keys, _ := f.Board.counted()
			switch {
			case c.err != nil:
				f.Board.Trouble(time.Now(), f.why(c.err))
			case c.cluster != read.Cluster || c.revision < c.asked:
				return errors.New("etcd was set back")
			case c.keys == keys:
				f.Board.Trouble(time.Now(), "")
				misses = 0
			default: // events may be under way
				if misses++; misses > 1 && quiet || misses > mostMisses {
					return errors.New("an event was lost")
				}
			}
			quiet = true
		}
	}
}

// recheck counts the keys. The answer is small, whatever their number.
func (f *Feed) recheck(ctx context.Context) check {
	_, asked := f.Board.counted()
	from, end := bounds(f.Prefix)
	resp, err := timed{f.Client, f.Timeout}.Get(ctx, from, clientv3.WithRange(end),
		clientv3.WithCountOnly())
	if err != nil {
		return check{err: err}
	}
	return check{asked, resp.Header.Revision, resp.Count, resp.Header.ClusterId, nil}
}

// counted is how many keys the board has seen, and at what revision.
func (b *Board) counted() (keys, revision int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keys, b.revision
}

// ask asks how much of leases is left: each second for the locks on the screen, and for all others
// one after the other. In between it asks since when the holders hold that were there before the
// board: first for those on the screen, once for each.
func (f *Feed) ask(ctx context.Context) {
	ticks := time.NewTicker(askEvery)
	defer ticks.Stop()
	var later time.Time // nothing is asked of holders before: etcd has not answered
	for began := true; ; began = !began {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			var looks []*Lock
			if looked := f.looks.Load(); looked != nil {
				looks = *looked
			}
			if began && !now.Before(later) {
				if place, lock := f.Board.unsure(looks); place != nil {
					if answered := f.askBegan(ctx, lock, place); !answered {
						later = time.Now().Add(pauseMost)
					}
					continue
				}
			}
			if id, is := f.Board.nextLease(now, looks); is {
				f.askLease(ctx, id)
			}
		}
	}
}

func (f *Feed) askBegan(ctx context.Context, lock string, p *Place) (answered bool) {
	atOnce, err := BeganAtOnce(ctx, timed{f.Client, f.Timeout}, lock, p.Key, p.Token)
	if err != nil {
		f.Board.askLater(lock, p.Key)
		return false
	}
	f.Board.Began(lock, p.Key, p.Token, atOnce)
	return true
}

func (f *Feed) askLease(ctx context.Context, id int64) {
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	if resp, err := f.Client.TimeToLive(ctx, clientv3.LeaseID(id)); err == nil {
		f.Board.Heard(time.Now(), id, resp.TTL, resp.GrantedTTL)
	}
}

// unsure reports whether it is yet to be asked since when p holds.
func (p *Place) unsure() bool {
	return p.Holds && p.Held.IsZero() && !p.Waited && !p.Queued.IsZero()
}

// unsure is a place of which it is yet to be asked since when it holds: of the locks on the
// screen, or else of any.
func (b *Board) unsure(looks []*Lock) (*Place, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, looked := range looks {
		l := b.locks[looked.Name]
		if l == nil {
			continue
		}
		for _, e := range l.line.Holding() {
			if p := l.places[e.Key]; p.unsure() && !p.asked.Load() {
				p.asked.Store(true)
				return p, looked.Name
			}
		}
	}
	for len(b.begun) > 0 {
		next := b.begun[0]
		b.begun = b.begun[1:]
		if l := b.locks[next.lock]; l != nil {
			if p := l.places[next.key]; p != nil && p.unsure() {
				return p, next.lock
			}
		}
	}
	return nil, ""
}

// askLater has it asked again since when a place holds: etcd has not answered.
func (b *Board) askLater(lock, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun = append(b.begun, hold{lock, key})
}

// nextLease is the lease to ask for, if one is due.
func (b *Board) nextLease(now time.Time, looks []*Lock) (id int64, is bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range looks {
		for _, p := range l.Places[:min(len(l.Places), 16)] {
			if l := b.leases[p.Lease]; l != nil && now.Sub(l.asked) >= askAgain {
				l.asked = now
				return p.Lease, true
			}
		}
	}
	// Maps begin anywhere: of a few the one that was asked for longest ago.
	var oldest *lease
	n := 0
	for other, l := range b.leases {
		if oldest == nil || l.asked.Before(oldest.asked) {
			id, oldest = other, l
		}
		if n++; n == 64 {
			break
		}
	}
	if oldest == nil || now.Sub(oldest.asked) < askAgain {
		return 0, false
	}
	oldest.asked = now
	return id, true
}
