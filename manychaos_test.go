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

// A setOfHolders judges several names: who holds each, by what each believes. The lines of the names
// share mu, so that what is said of several is said at one moment.
type setOfHolders struct {
	t     *testing.T
	names []string
	lines map[string]*holders
	all   int // holds of several names
	ended int // of these, how many by a loss
}

func newSetOfHolders(t *testing.T, names ...string) *setOfHolders {
	s := &setOfHolders{t: t, names: names, lines: make(map[string]*holders)}
	for _, name := range names {
		s.lines[name] = &holders{t: t, inside: make(map[*holding]bool)}
	}
	return s
}

// Goroutines of some Sessions lock several names, in any order, and one at a time, to write and to
// read, wait and try and give up, while answers are lost, requests come late and twice, processes are
// cut off, watches end, and an operator deletes keys that wait. Of each name no two believe to hold it, but readers; several names end
// together, and Unlock says so; and in the end everybody gets in, in opposed orders, and nothing is
// left.
func TestSeveralNamesUnderRandomFaults(t *testing.T) {
	several, lost := 0, 0
	for seed := range uint64(race.Fewer(60, 12)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				l := newSetOfHolders(t, "a", "b", "c")
				severalUnderFaults(t, etcd, l, seed)
				several, lost = several+l.all, lost+l.ended
			})
		})
	}
	t.Logf("%d holds of several names, %d lost", several, lost)
	require.NotZero(t, several)
	require.NotZero(t, lost)
}

func severalUnderFaults(t *testing.T, etcd *fake.Server, l *setOfHolders, seed uint64) {
	const sessions, each, faulty = 3, 4, 3 * time.Minute
	processes := []string{"p", "q", "r"}
	var homes []*etcdlock.Session
	random := rand.New(rand.NewPCG(seed, 1))
	options := [][]etcdlock.Option{
		nil, {etcdlock.WithHandoff(2), etcdlock.WithLinger(3 * time.Second)},
		{etcdlock.WithMaxHold(2500 * time.Millisecond)},
	}
	for i := range sessions {
		homes = append(homes, processIn(t, etcd, processes[i], options[random.IntN(len(options))]...))
	}
	etcd.Intercept(randomEffects(seed))
	over := time.Now().Add(faulty)
	var wg sync.WaitGroup
	for home, s := range homes {
		for g := range each {
			own := rand.New(rand.NewPCG(seed, uint64(100+10*home+g)))
			who := fmt.Sprintf("%s%d", processes[home], g)
			wg.Go(func() {
				for time.Now().Before(over) {
					patience := time.Duration(own.Int64N(int64(20 * time.Second)))
					if own.IntN(2) == 0 {
						name := l.names[own.IntN(len(l.names))]
						rw, err := s.RWMutex(name)
						require.NoError(t, err)
						one(l.lines[name], rw, who, home, own, patience)
					} else {
						l.several(s, who, home, own, patience)
					}
					time.Sleep(time.Duration(own.Int64N(int64(time.Second))))
				}
			})
		}
	}
	for time.Now().Before(over) {
		time.Sleep(time.Duration(1+random.IntN(20)) * time.Second)
		process := processes[random.IntN(sessions)]
		switch random.IntN(5) {
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
		case 4:
			for range 3 {
				deleteWaiter(etcd, l.names[random.IntN(len(l.names))], random)
				time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
			}
		}
	}
	wg.Wait()
	etcd.Intercept(nil)
	for home, s := range homes { // all get in at last, in opposed orders
		for _, names := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b"}, {"c", "a"}} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*virtualTTL)
				defer cancel()
				if err := s.DoAll(ctx, names, func(context.Context) error { return nil }); err != nil {
					t.Errorf("%s, %v: %v", processes[home], names, err)
				}
			})
		}
	}
	wg.Wait()
}

// randomEffects loses some requests and answers, and has some come late, or twice.
func randomEffects(seed uint64) func(fake.Call) fake.Effect {
	faults := rand.New(rand.NewPCG(seed, 2))
	var mu sync.Mutex // of faults
	return func(c fake.Call) (e fake.Effect) {
		if c.Process == "operator" {
			return e
		}
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
	}
}

// deleteWaiter deletes a key of one that waits for a name, if somebody does: one that is exclusive,
// and has others before it.
func deleteWaiter(etcd *fake.Server, name string, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, etcd.Client("operator"), name)
	if err != nil {
		return // etcd is frozen
	}
	var waiting []etcdlock.Contender
	for _, c := range line {
		if !c.Holds && c.Mode == "exclusive" {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) > 0 {
		etcd.DeleteKey(waiting[random.IntN(len(waiting))].Key)
	}
}

// several is one call of LockAll or TryLockAll, and the hold if there is one.
func (l *setOfHolders) several(
	s *etcdlock.Session, who string, home int, own *rand.Rand, patience time.Duration,
) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var names []string
	for _, i := range own.Perm(len(l.names))[:1+own.IntN(len(l.names))] {
		names = append(names, l.names[i])
	}
	lock := s.LockAll
	if own.IntN(3) == 0 {
		lock = s.TryLockAll
	}
	h, err := lock(ctx, names...)
	if err != nil {
		return
	}
	inside := h.Context(context.Background())
	b := &holding{who: who, home: home, writes: true, token: h.Token(), ctx: inside}
	for _, name := range names {
		l.lines[name].enter(b)
	}
	time.Sleep(time.Duration(own.Int64N(int64(4 * time.Second))))
	for _, name := range names {
		l.lines[name].leave(b)
	}
	whole := inside.Err() == nil
	err = h.Unlock(context.Background())
	first := l.lines[l.names[0]]
	first.mu.Lock()
	defer first.mu.Unlock()
	if l.all++; !whole {
		l.ended++
		if err == nil {
			l.t.Errorf("%s has lost %v, and Unlock says nothing", who, names)
		}
	}
}
