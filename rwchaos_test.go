package etcdlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
)

// A holders is who holds, by what each believes.
type holders struct {
	t       *testing.T
	mu      sync.Mutex
	inside  map[*holding]bool
	token   int64 // the highest of a hold
	last    int   // the home of the last one
	written int64 // the highest of one that writes
	reads   int
	writes  int
	shared  int // holds beside others
}

// A holding is one that has come to hold.
type holding struct {
	who    string
	home   int // its Session
	writes bool
	token  int64
	ctx    context.Context
}

// enter judges one that has come to hold: nobody else believes to, unless both read; in its own
// Session nobody else has yet to unlock. A hold that has ended by now says nothing.
func (l *holders) enter(b *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.ctx.Err() != nil {
		return
	}
	for o := range l.inside {
		switch {
		case !b.writes && !o.writes:
			l.shared++
		case o.home == b.home, o.ctx.Err() == nil && b.ctx.Err() == nil:
			l.t.Errorf("%s holds with token %d beside %s with %d", b.who, b.token, o.who, o.token)
		}
	}
	before := l.token
	if !b.writes {
		before = l.written
	}
	passedOn := b.writes && b.token == before && b.home == l.last // WithHandoff, WithLinger
	if b.token <= before && !passedOn {
		l.t.Errorf("%s has token %d after %d", b.who, b.token, before)
	}
	l.token, l.last = max(l.token, b.token), b.home
	if b.writes {
		l.written = max(l.written, b.token)
		l.writes++
	} else {
		l.reads++
	}
	l.inside[b] = true
}

func (l *holders) leave(b *holding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.inside, b)
}

// Goroutines of some Sessions read and write, wait and try, give up and hold for a while, while
// answers are lost, requests come late and twice, processes are cut off, and watches end. A writer
// is alone, as far as anybody believes; a Session's own goroutines exclude each other until they
// have unlocked; tokens grow from each write to whatever comes after it; and in the end everybody
// gets in, and nothing is left.
func TestReadersAndWritersUnderRandomFaults(t *testing.T) {
	reads, writes, shared := 0, 0, 0
	for seed := range uint64(race.Fewer(60, 12)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				l := &holders{t: t, inside: make(map[*holding]bool)}
				randomFaults(t, etcd, seed, func(s *etcdlock.Session, home int, who string) chaotic {
					rw := rwIn(t, s)
					return chaotic{
						call: func(own *rand.Rand, patience time.Duration) { one(l, rw, who, home, own, patience) },
						last: []func(context.Context) error{
							func(ctx context.Context) error { return rw.RDo(ctx, nothing) },
							func(ctx context.Context) error { return rw.Do(ctx, nothing) },
						},
					}
				})
				reads, writes, shared = reads+l.reads, writes+l.writes, shared+l.shared
			})
		})
	}
	t.Logf("%d reads, %d writes, %d times beside others", reads, writes, shared)
	require.NotZero(t, writes)
	require.Greater(t, shared, reads/10)
}

// A chaotic is what a goroutine does in the chaos.
type chaotic struct {
	call func(own *rand.Rand, patience time.Duration)
	last []func(context.Context) error // each must work once the faults are over
}

func nothing(context.Context) error { return nil }

// randomFaults has goroutines of some Sessions do what does says, while much goes wrong.
func randomFaults(
	t *testing.T, etcd *fake.Server, seed uint64, does func(s *etcdlock.Session, home int, who string) chaotic,
) {
	const sessions, each, faulty = 3, 4, 3 * time.Minute
	names := []string{"a", "b", "c"}
	var homes []*etcdlock.Session
	random := rand.New(rand.NewPCG(seed, 1))
	options := [][]etcdlock.Option{
		nil, {etcdlock.WithHandoff(2), etcdlock.WithLinger(3 * time.Second)}, {etcdlock.WithMaxHold(2500 * time.Millisecond)},
	}
	for i := range sessions {
		homes = append(homes, processIn(t, etcd, names[i], options[random.IntN(len(options))]...))
	}
	stop := faultsAtRandom(etcd, seed)
	over := time.Now().Add(faulty)
	var wg sync.WaitGroup
	for home, s := range homes {
		for g := range each {
			own := rand.New(rand.NewPCG(seed, uint64(100+10*home+g)))
			who := fmt.Sprintf("%s%d", names[home], g)
			c := does(s, home, who)
			wg.Go(func() {
				for time.Now().Before(over) {
					c.call(own, time.Duration(own.Int64N(int64(20*time.Second))))
					time.Sleep(time.Duration(own.Int64N(int64(time.Second))))
				}
			})
		}
	}
	for time.Now().Before(over) {
		time.Sleep(time.Duration(1+random.IntN(20)) * time.Second)
		misfortune(etcd, random, names[random.IntN(sessions)])
	}
	wg.Wait()
	stop()
	for home, s := range homes { // all get in at last
		for i, do := range does(s, home, names[home]).last {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*virtualTTL)
				defer cancel()
				if err := do(ctx); err != nil {
					t.Errorf("%s, %d: %v", names[home], i, err)
				}
			})
		}
	}
	wg.Wait()
}

// faultsAtRandom has requests and answers lost, late and doubled by a seed, until stop is called.
func faultsAtRandom(etcd *fake.Server, seed uint64) (stop func()) {
	faults := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of faults
	etcd.Intercept(func(c fake.Call) (e fake.Effect) {
		mu.Lock()
		defer mu.Unlock()
		some := func(most time.Duration) time.Duration { return 1 + time.Duration(faults.Int64N(int64(most))) }
		switch n := faults.IntN(1000); {
		case n < 15:
			e.DropReply = true
		case n < 30:
			e.Drop = true
		case n < 45:
			e.Again = some(20 * time.Second)
		case n < 75:
			e.Delay = some(3 * time.Second)
		case n < 100:
			e.DelayReply = some(3 * time.Second)
		}
		return e
	})
	return func() { etcd.Intercept(nil) }
}

// misfortune is one thing that happens, to a process or to all.
func misfortune(etcd *fake.Server, random *rand.Rand, process string) {
	switch random.IntN(4) {
	case 0:
		etcd.Cut(process)
		time.Sleep(time.Duration(random.Int64N(int64(virtualTTL * 3 / 2))))
		etcd.Heal(process)
	case 1:
		etcd.CancelWatches()
	case 2:
		etcd.Freeze()
		time.Sleep(time.Duration(random.Int64N(int64(virtualTTL / 2))))
		etcd.Thaw()
	case 3:
		etcd.LoseAnswers(process, 1+random.IntN(3))
	}
}

// one is one call, and the hold if there is one.
func one(l *holders, rw *etcdlock.RWMutex, who string, home int, own *rand.Rand, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b := &holding{who: who, home: home, writes: own.IntN(4) == 0}
	try := own.IntN(3) == 0
	var unlock func(context.Context) error
	if b.writes {
		lock := rw.Lock
		if try {
			lock = rw.TryLock
		}
		if lock(ctx) != nil {
			return
		}
		b.ctx, b.token, unlock = rw.Context(context.Background()), rw.Token(), rw.Unlock
	} else {
		lock := rw.RLock
		if try {
			lock = rw.TryRLock
		}
		h, err := lock(ctx)
		if err != nil {
			return
		}
		b.ctx, b.token, unlock = h.Context(context.Background()), h.Token(), h.Unlock
	}
	l.enter(b)
	time.Sleep(time.Duration(own.Int64N(int64(4 * time.Second))))
	l.leave(b)
	_ = unlock(context.Background())
}
