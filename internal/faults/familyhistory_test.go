package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// An ask is what a client of the family's histories wants: some of the names, in a mode.
type ask struct {
	names         names
	mode          mode
	weight, limit int // of permits
}

// A mode is how a client holds a name beside others.
type mode int

const (
	asAlone mode = iota
	asReader
	asPermit
	modes
)

func (m mode) String() string { return []string{"alone", "reading", "permits"}[m] }

// names is a set of names, one bit for each.
type names uint

const (
	nameM names = 1 << iota
	nameN
	nameO

	allNames = 3
)

// each returns the names as the library has them.
func (n names) each() (all []string) {
	for i, name := range []string{"m", "n", "o"} {
		if n&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	return all
}

// Keepers are the state of the family's names: what each client holds, and the last tokens.
type keepers struct {
	in     [visitors]kept // by client; the token 0 means no hold
	newest [allNames][modes]int64
}

type kept struct {
	token int64
	ask
}

// visitors is more than the number of clients in a history.
const visitors = 10

// admits is the rule for a client that takes what s asks for.
//
// Invariant: the holders of a name are one that holds alone, or only readers, or only
// permits. The weights of the permits are together at most the least of their limits. (Of
// any two holders, the later one has counted the earlier one. So the last one has counted
// all.) A token is above all tokens of its name that were of another mode, or of holders
// that were alone. Several names are taken by one step, or not at all.
func (k *keepers) admits(s step) bool {
	sum, least := s.weight, s.limit
	for _, other := range k.in {
		if other.token == 0 || other.names&s.names == 0 {
			continue
		}
		if other.mode != s.mode || s.mode == asAlone {
			return false
		}
		sum, least = sum+other.weight, min(least, other.limit)
	}
	for name := range allNames {
		for m, newest := range k.newest[name] {
			shares := mode(m) == s.mode && s.mode != asAlone
			if s.names&(1<<name) != 0 && !shares && s.token <= newest {
				return false
			}
		}
	}
	return k.in[s.client].token == 0 && sum <= least
}

// theFamily is the locks of some names as they should be, for clients that hold alone,
// read, have permits, or hold several names. Only a holder works, releases or loses.
var theFamily = porcupine.Model{
	Init: func() any { return keepers{} },
	Step: func(state, input, _ any) (bool, any) {
		k, s := state.(keepers), input.(step)
		if s.verb == take {
			if !k.admits(s) {
				return false, k
			}
			k.in[s.client] = kept{s.token, s.ask}
			for name := range allNames {
				if s.names&(1<<name) != 0 {
					k.newest[name][s.mode] = max(k.newest[name][s.mode], s.token)
				}
			}
			return true, k
		}
		in := k.in[s.client] == kept{s.token, s.ask}
		if in && s.verb != work {
			k.in[s.client] = kept{}
		}
		return in, k
	},
	DescribeOperation: func(input, _ any) string {
		s := input.(step)
		return fmt.Sprintf("%s %d, %v %v %d of %d", s.verb, s.token, s.names.each(), s.mode,
			s.weight, s.limit)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// The judge of histories judges known histories of the family rightly.
func TestTheJudgeOfHistoriesOfTheFamily(t *testing.T) {
	t.Parallel()
	// in is a hold that was looked at when it began and when it ended.
	in := func(client int, what ask, token int64, from, until time.Duration) []*hold {
		return []*hold{{
			client: client, ask: what, token: token, entered: look{from, from + 1},
			last: look{until - 1, until - 1}, release: look{until, until + 1},
		}}
	}
	reads, writes := ask{names: nameM, mode: asReader}, ask{names: nameM}
	of := func(weight, limit int) ask {
		return ask{names: nameM, mode: asPermit, weight: weight, limit: limit}
	}
	m, n, mn, no := ask{names: nameM}, ask{names: nameN}, ask{names: nameM | nameN},
		ask{names: nameN | nameO}
	lost := func(what ask) []*hold {
		all := in(1, what, 5, 10, 20)
		all[0].release, all[0].lost = look{}, 30
		return all
	}
	workedOn := func(what ask) []*hold {
		all := in(1, what, 5, 10, 20)
		all[0].release, all[0].lost, all[0].revived = look{}, 22, []look{{35, 36}}
		return all
	}
	for _, h := range []struct {
		name    string
		holds   []*hold
		verdict porcupine.CheckResult
	}{
		{"readers beside each other",
			slices.Concat(in(1, reads, 5, 10, 30), in(2, reads, 6, 12, 28), in(3, reads, 5, 14, 40)),
			porcupine.Ok},
		{"readers come in any order of their tokens",
			slices.Concat(in(1, reads, 6, 10, 30), in(2, reads, 5, 12, 28)), porcupine.Ok},
		{"one after the other",
			slices.Concat(in(1, writes, 5, 10, 20), in(2, reads, 6, 30, 40), in(1, writes, 7, 50, 60)),
			porcupine.Ok},
		{"one reads by the same token again",
			slices.Concat(in(1, reads, 5, 10, 20), in(2, reads, 5, 12, 40), in(1, reads, 5, 25, 30)),
			porcupine.Ok},
		{"a writer gets in after a reader has lost it",
			slices.Concat(lost(reads), in(2, writes, 6, 25, 40)), porcupine.Ok},
		{"a writer beside a reader",
			slices.Concat(in(1, reads, 5, 10, 30), in(2, writes, 6, 15, 25)), porcupine.Illegal},
		{"a reader beside a writer",
			slices.Concat(in(1, writes, 5, 10, 30), in(2, reads, 6, 15, 25)), porcupine.Illegal},
		{"two writers",
			slices.Concat(in(1, writes, 5, 10, 30), in(2, writes, 6, 15, 25)), porcupine.Illegal},
		{"a writer gets in when the first of two readers is gone",
			slices.Concat(in(1, reads, 5, 10, 20), in(2, reads, 5, 12, 40), in(3, writes, 6, 25, 50)),
			porcupine.Illegal},
		{"a writer's token is not above a reader's",
			slices.Concat(in(1, reads, 6, 10, 20), in(2, writes, 5, 30, 40)), porcupine.Illegal},
		{"a reader's token is not above a writer's",
			slices.Concat(in(1, writes, 6, 10, 20), in(2, reads, 5, 30, 40)), porcupine.Illegal},
		{"a reader works on when a writer is in",
			slices.Concat(workedOn(reads), in(2, writes, 6, 25, 40)), porcupine.Illegal},

		{"permits up to the limit",
			slices.Concat(in(1, of(1, 3), 5, 10, 30), in(2, of(2, 3), 6, 12, 28),
				in(3, of(2, 3), 7, 29, 50)), porcupine.Ok},
		{"permits come in any order of their tokens",
			slices.Concat(in(1, of(1, 3), 6, 10, 30), in(2, of(2, 3), 5, 12, 28)), porcupine.Ok},
		{"limits that disagree, and the least is kept",
			slices.Concat(in(1, of(1, 2), 5, 10, 30), in(2, of(1, 4), 6, 12, 28),
				in(3, of(4, 4), 7, 32, 50)), porcupine.Ok},
		{"a Mutex gets in when the last permit is gone",
			slices.Concat(in(1, of(1, 3), 5, 10, 20), in(2, of(2, 3), 6, 12, 28), in(3, m, 7, 30, 50)),
			porcupine.Ok},
		{"a permit after one that was lost",
			slices.Concat(lost(of(3, 3)), in(2, of(1, 3), 6, 25, 40)), porcupine.Ok},
		{"more than the limit",
			slices.Concat(in(1, of(2, 3), 5, 10, 30), in(2, of(2, 3), 6, 15, 25)), porcupine.Illegal},
		{"more than the limit of one that holds",
			slices.Concat(in(1, of(1, 2), 5, 10, 30), in(2, of(2, 4), 6, 15, 25)), porcupine.Illegal},
		{"more than the own limit",
			slices.Concat(in(1, of(2, 4), 5, 10, 30), in(2, of(1, 2), 6, 15, 25)), porcupine.Illegal},
		{"a permit beside a Mutex",
			slices.Concat(in(1, m, 5, 10, 30), in(2, of(1, 3), 6, 15, 25)), porcupine.Illegal},
		{"a Mutex beside a permit",
			slices.Concat(in(1, of(1, 3), 5, 10, 30), in(2, m, 6, 15, 25)), porcupine.Illegal},
		{"a permit beside a reader",
			slices.Concat(in(1, reads, 5, 10, 30), in(2, of(1, 3), 6, 15, 25)), porcupine.Illegal},
		{"a permit's token is not above a Mutex's",
			slices.Concat(in(1, m, 6, 10, 20), in(2, of(1, 3), 5, 30, 40)), porcupine.Illegal},
		{"a Mutex's token is not above a permit's",
			slices.Concat(in(1, of(1, 3), 6, 10, 20), in(2, m, 5, 30, 40)), porcupine.Illegal},
		{"a permit works on when another has its place",
			slices.Concat(workedOn(of(2, 3)), in(2, of(2, 3), 6, 25, 40)), porcupine.Illegal},

		{"several names, and others beside them",
			slices.Concat(in(1, m, 5, 10, 30), in(2, no, 6, 12, 28), in(3, n, 7, 30, 40),
				in(1, mn, 8, 42, 50)), porcupine.Ok},
		{"several names after one of them was lost",
			slices.Concat(lost(mn), in(2, n, 6, 25, 40), in(3, m, 7, 25, 40)), porcupine.Ok},
		{"one of several names is held by another",
			slices.Concat(in(1, n, 5, 10, 30), in(2, mn, 6, 15, 25)), porcupine.Illegal},
		{"the other of several names is taken meanwhile",
			slices.Concat(in(1, mn, 5, 10, 30), in(2, m, 6, 15, 25)), porcupine.Illegal},
		{"two that want several meet at one name",
			slices.Concat(in(1, mn, 5, 10, 30), in(2, no, 6, 15, 25)), porcupine.Illegal},
		{"several names by a token that is old at one of them",
			slices.Concat(in(1, n, 6, 10, 20), in(2, mn, 5, 30, 40)), porcupine.Illegal},
		{"one name by a token that is older than that of several",
			slices.Concat(in(1, mn, 6, 10, 20), in(2, n, 5, 30, 40)), porcupine.Illegal},
		{"one works on at several names when another has one of them",
			slices.Concat(workedOn(mn), in(2, n, 6, 25, 40)), porcupine.Illegal},
	} {
		t.Run(h.name, func(t *testing.T) {
			verdict, file := judged(t, theFamily, h.holds)
			require.Equal(t, h.verdict, verdict)
			require.Equal(t, verdict != porcupine.Ok, file != "")
		})
	}
}

// Goroutines of three Sessions use a real etcd of three members. One member after the other
// is killed or frozen for a while. Porcupine judges what the goroutines report.
func TestPorcupineSaysOkOfTheFamily(t *testing.T) {
	for _, story := range []struct {
		name string
		uses
		modes map[mode]bool // that must have been held
	}{
		{"readers and writers", readersAndWriters, map[mode]bool{asAlone: true, asReader: true}},
		{"permits, of limits that disagree, and a Mutex", permitsAndMutexes, map[mode]bool{asAlone: true, asPermit: true}},
		{"several names", severalNames, map[mode]bool{asAlone: true}},
	} {
		t.Run(story.name, func(t *testing.T) {
			t.Parallel()
			seed := uint64(time.Now().UnixNano())
			all := story.history(t, seed)
			held, several := make(map[mode]int), 0
			for _, h := range all {
				held[h.mode]++
				if len(h.names.each()) > 1 {
					several++
				}
			}
			t.Logf("holds: %v, %d of several names, seed %d", held, several, seed)
			for mode := range story.modes {
				require.NotZero(t, held[mode], mode)
			}
			require.Equal(t, story.name == "several names", several > 0)
			verdict, file := judged(t, theFamily, all)
			require.Equal(t, porcupine.CheckResult(porcupine.Ok), verdict,
				"kept with -artifacts: %s; seed %d", file, seed)
		})
	}
}

// uses is the ways in which a Session's goroutines use it: each call draws one.
type uses func(s *etcdlock.Session) (picks func(r *rand.Rand) (ask, acquires), err error)

// acquires takes what a call asks for.
type acquires func(ctx context.Context) (grip, error)

// A grip is a hold of any kind.
type grip struct {
	token  int64
	belief context.Context
	unlock func(context.Context) error
}

func gripOf(h *etcdlock.Hold, err error) (grip, error) {
	if err != nil {
		return grip{}, err
	}
	return grip{h.Token(), h.Context(context.Background()), h.Unlock}, nil
}

// locking takes what holds alone: a Mutex, or the writer's side of an RWMutex.
func locking(mu interface {
	Lock(context.Context) error
	Unlock(context.Context) error
	Token() int64
	Context(context.Context) context.Context
}) acquires {
	return func(ctx context.Context) (grip, error) {
		if err := mu.Lock(ctx); err != nil {
			return grip{}, err
		}
		return grip{mu.Token(), mu.Context(context.Background()), mu.Unlock}, nil
	}
}

func readersAndWriters(s *etcdlock.Session) (func(*rand.Rand) (ask, acquires), error) {
	rw, err := s.RWMutex("n")
	return func(r *rand.Rand) (ask, acquires) {
		reads := ask{names: nameN, mode: asReader}
		switch n := r.IntN(16); {
		case n < 4:
			return ask{names: nameN}, locking(rw)
		case n < 7:
			return reads, func(ctx context.Context) (grip, error) { return gripOf(rw.TryRLock(ctx)) }
		default:
			return reads, func(ctx context.Context) (grip, error) { return gripOf(rw.RLock(ctx)) }
		}
	}, err
}

func permitsAndMutexes(s *etcdlock.Session) (func(*rand.Rand) (ask, acquires), error) {
	mu, err := s.Mutex("n")
	var sems []*etcdlock.Semaphore
	for limit := 2; limit <= 4; limit++ {
		sem, semErr := s.Semaphore("n", limit)
		sems, err = append(sems, sem), errors.Join(err, semErr)
	}
	return func(r *rand.Rand) (ask, acquires) {
		i := min(r.IntN(8), 2) // mostly 4; a lower limit is being rolled out
		a := ask{names: nameN, mode: asPermit, limit: 2 + i}
		a.weight = 1 + r.IntN(min(a.limit, 3))
		switch n := r.IntN(16); {
		case n < 2:
			return ask{names: nameN}, locking(mu)
		case n < 5:
			return a, func(ctx context.Context) (grip, error) {
				return gripOf(sems[i].TryAcquire(ctx, a.weight))
			}
		default:
			return a, func(ctx context.Context) (grip, error) {
				return gripOf(sems[i].Acquire(ctx, a.weight))
			}
		}
	}, err
}

func severalNames(s *etcdlock.Session) (func(*rand.Rand) (ask, acquires), error) {
	var all []*etcdlock.Mutex
	var err error
	for _, name := range (nameM | nameN | nameO).each() {
		mu, muErr := s.Mutex(name)
		all, err = append(all, mu), errors.Join(err, muErr)
	}
	return func(r *rand.Rand) (ask, acquires) {
		if r.IntN(3) == 0 {
			i := r.IntN(len(all))
			return ask{names: 1 << i}, locking(all[i])
		}
		a := ask{names: []names{nameM | nameN, nameN | nameO, nameO | nameM,
			nameM | nameN | nameO}[r.IntN(4)]}
		names := a.names.each()
		r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		if r.IntN(4) == 0 {
			return a, func(ctx context.Context) (grip, error) { return gripOf(s.TryLockAll(ctx, names...)) }
		}
		return a, func(ctx context.Context) (grip, error) { return gripOf(s.LockAll(ctx, names...)) }
	}, err
}

// history runs clients on an etcd of three members, and returns what they report.
func (o uses) history(t *testing.T, seed uint64) (all []*hold) {
	const (
		sessions, each = 3, 3
		lasts, ttl     = 12 * time.Second, 3 * time.Second
	)
	etcd := startServers(t, 3)
	end := now() + lasts
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range sessions {
		s, err := etcdlock.NewSession(etcd.client(t), etcdlock.WithTTL(ttl))
		require.NoError(t, err)
		for g := range each {
			picks, err := o(s)
			require.NoError(t, err)
			client := i*each + g
			r := rand.New(rand.NewPCG(seed, uint64(client)))
			wg.Go(func() {
				for now() < end {
					a, acquire := picks(r)
					if h := acquire.once(client, a, r); h != nil {
						mu.Lock()
						all = append(all, h)
						mu.Unlock()
					}
					time.Sleep(between(r, 0, 100*time.Millisecond))
				}
			})
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			require.NoError(t, s.Close(ctx))
		})
	}
	faults := rand.New(rand.NewPCG(seed, 1<<32))
	for now() < end-ttl {
		member := faults.IntN(3)
		if faults.IntN(2) == 0 {
			etcd.kill(member)
			time.Sleep(between(faults, 0, ttl/2))
			etcd.restart(member)
		} else {
			etcd.freeze(member)
			time.Sleep(between(faults, 0, ttl/2))
			etcd.thaw(member)
		}
		time.Sleep(between(faults, 0, ttl/3))
	}
	wg.Wait()
	return all
}

// once makes one call, and returns the hold if the call had one.
func (acquire acquires) once(client int, a ask, r *rand.Rand) *hold {
	wait := between(r, time.Millisecond, 3*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	h := &hold{client: client, ask: a, entered: look{asked: now()}}
	got, err := acquire(ctx)
	if err != nil {
		return nil
	}
	h.token, h.entered.told = got.token, now()
	if h.token == 0 { // it has ended already, and there is nothing to report
		_ = got.unlock(context.Background())
		return nil
	}
	for until := now() + between(r, 0, 300*time.Millisecond); now() < until; {
		asked := now()
		whole := got.belief.Err() == nil
		if !whole {
			h.lost = now()
			break
		}
		h.last = look{asked, now()}
		time.Sleep(5 * time.Millisecond) // the work
	}
	asked := now()
	err = got.unlock(context.Background())
	switch {
	case err == nil:
		h.release = look{asked, now()}
	case errors.Is(err, etcdlock.ErrLost) && h.lost == 0:
		h.lost = now()
	}
	return h
}
