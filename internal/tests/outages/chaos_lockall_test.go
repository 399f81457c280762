package outages

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// A setOfHolders judges several names by the beliefs of those that hold each. The lines of
// the names share mu, so that all names of a hold are judged at one moment.
type setOfHolders struct {
	t     *testing.T
	names []string
	lines map[string]*holders
	all   int // holds of several names
	ended int // how many of these a loss has ended
}

func newSetOfHolders(t *testing.T, names ...string) *setOfHolders {
	s := &setOfHolders{t: t, names: names, lines: make(map[string]*holders)}
	for _, name := range names {
		s.lines[name] = newHolders(t)
	}
	return s
}

// Goroutines of some Sessions lock several names, in any order, and one at a time, to write
// and to read. They wait, try and give up. Meanwhile answers are lost, requests come late
// and twice, processes are cut off, watches end, and an operator deletes keys that wait. No
// two believe to hold a name, except readers. Several names end together, and Unlock says
// so. In the end everybody gets in, in opposed orders, and nothing is left.
func TestSeveralNamesUnderRandomFaults(t *testing.T) {
	several, lost := 0, 0
	eachChaos(t, func(t *testing.T, etcd *fake.Server, seed uint64) {
		l := newSetOfHolders(t, "a", "b", "c")
		severalUnderFaults(t, etcd, l, seed)
		several, lost = several+l.all, lost+l.ended
	})
	t.Logf("%d holds of several names, %d lost", several, lost)
	require.NotZero(t, several)
	require.NotZero(t, lost)
}

func severalUnderFaults(t *testing.T, etcd *fake.Server, l *setOfHolders, seed uint64) {
	chaos{
		each: 4,
		does: func(s *etcdlock.Session, home int, who string) chaotic {
			var last []func(context.Context) error // in opposed orders
			for _, names := range [][]string{{"a", "b", "c"}, {"c", "b", "a"}, {"b"}, {"c", "a"}} {
				last = append(last, func(ctx context.Context) error { return s.DoAll(ctx, names, nothing) })
			}
			return chaotic{last: last, call: func(own *rand.Rand, patience time.Duration) {
				if own.IntN(2) == 0 {
					l.several(s, who, home, own, patience)
					return
				}
				name := l.names[own.IntN(len(l.names))]
				rw, err := s.RWMutex(name)
				require.NoError(t, err)
				one(l.lines[name], rw, who, home, own, patience)
			}}
		},
		harm: func(random *rand.Rand) {
			for range 3 {
				deleteWaiter(etcd, l.names[random.IntN(len(l.names))], random)
				time.Sleep(time.Duration(random.Int64N(int64(3 * time.Second))))
			}
		},
	}.run(t, etcd, seed)
}

// deleteWaiter deletes the key of a waiter for a name, if there is one: one that is
// exclusive, and has others before it. It may have got in since the line was read. So the
// holder of that time must still be there: who loses a hold to an operator believes in it
// for a moment more.
func deleteWaiter(etcd *fake.Server, name string, random *rand.Rand) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, etcd.Client("operator"), name)
	if err != nil {
		return // etcd is frozen, or the answer is lost
	}
	var waiting []etcdlock.Contender
	for _, c := range line {
		if !c.Holds && c.Mode == "exclusive" {
			waiting = append(waiting, c)
		}
	}
	if len(waiting) > 0 {
		etcd.DeleteKeyBehind(waiting[random.IntN(len(waiting))].Key, line[0].Key, line[0].Token)
	}
}

// several makes one call of LockAll or TryLockAll, and returns the hold if there is one.
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
	b := &holding{who: who, home: home, writes: true}
	unlock := b.holdsBy(lock(ctx, names...))
	if unlock == nil {
		return
	}
	for _, name := range names {
		l.lines[name].enter(b)
	}
	time.Sleep(time.Duration(own.Int64N(int64(4 * time.Second))))
	for _, name := range names {
		l.lines[name].leave(b)
	}
	whole := b.ctx.Err() == nil
	err := unlock(context.Background())
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
