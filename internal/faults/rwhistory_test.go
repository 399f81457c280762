package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
)

// A keepers is the state of a read/write lock: who is in, and the last tokens. It is comparable,
// so the set of those who read is a text.
type keepers struct {
	writes  string // who does, and by which token
	reads   string // likewise, in order
	written int64  // the greatest token of one that has written
	newest  int64  // of anybody
}

// theRWLock is a read/write lock as it should be. One that writes takes it only when it is free, by
// a greater token than all before. One that reads takes it while nobody writes, by a greater token
// than all who have written. Work, release and loss are of those who are in.
var theRWLock = porcupine.Model{
	Init: func() any { return keepers{} },
	Step: func(state, input, _ any) (bool, any) {
		k, s := state.(keepers), input.(step)
		who := fmt.Sprintf("%d by %d;", s.client, s.token)
		readers := strings.SplitAfter(k.reads, ";")
		in := k.writes == who
		if s.reads {
			in = slices.Contains(readers, who)
		}
		switch {
		case s.verb == take && s.reads:
			may := k.writes == "" && !in && s.token > k.written
			readers = append(readers, who)
			slices.Sort(readers)
			k.reads, k.newest = strings.Join(readers, ""), max(k.newest, s.token)
			return may, k
		case s.verb == take:
			may := k.writes == "" && k.reads == "" && s.token > k.newest
			return may, keepers{writes: who, written: s.token, newest: s.token}
		case s.verb == work:
			return in, k
		case s.reads:
			readers = slices.DeleteFunc(readers, func(r string) bool { return r == who })
			k.reads = strings.Join(readers, "")
			return in, k
		default:
			k.writes = ""
			return in, k
		}
	},
	DescribeOperation: func(input, _ any) string {
		s := input.(step)
		mode := "write"
		if s.reads {
			mode = "read"
		}
		return fmt.Sprintf("%s %d, %s", s.verb, s.token, mode)
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state) },
}

// The judge of histories judges known ones of readers and writers rightly.
func TestTheJudgeOfHistoriesOfReaders(t *testing.T) {
	t.Parallel()
	// in is a hold, with a look at its begin and at its end.
	in := func(client int, reads bool, token int64, from, until time.Duration) []*hold {
		return []*hold{{
			client: client, reads: reads, token: token, entered: look{from, from + 1},
			last: look{until - 1, until - 1}, release: look{until, until + 1},
		}}
	}
	const reads, writes = true, false
	lost := in(1, reads, 5, 10, 20)
	lost[0].release, lost[0].lost = look{}, 30
	workedOn := in(1, reads, 5, 10, 20)
	workedOn[0].release, workedOn[0].lost, workedOn[0].revived = look{}, 22, []look{{35, 36}}
	for _, h := range []struct {
		name    string
		holds   []*hold
		verdict porcupine.CheckResult
	}{
		{"readers beside each other",
			slices.Concat(in(1, reads, 5, 10, 30), in(2, reads, 6, 12, 28), in(3, reads, 5, 14, 40)), porcupine.Ok},
		{"readers come in any order of their tokens",
			slices.Concat(in(1, reads, 6, 10, 30), in(2, reads, 5, 12, 28)), porcupine.Ok},
		{"one after the other",
			slices.Concat(in(1, writes, 5, 10, 20), in(2, reads, 6, 30, 40), in(1, writes, 7, 50, 60)), porcupine.Ok},
		{"one reads by the same token again",
			slices.Concat(in(1, reads, 5, 10, 20), in(2, reads, 5, 12, 40), in(1, reads, 5, 25, 30)), porcupine.Ok},
		{"a writer gets in after a reader has lost it",
			slices.Concat(lost, in(2, writes, 6, 25, 40)), porcupine.Ok},

		{"a writer beside a reader",
			slices.Concat(in(1, reads, 5, 10, 30), in(2, writes, 6, 15, 25)), porcupine.Illegal},
		{"a reader beside a writer",
			slices.Concat(in(1, writes, 5, 10, 30), in(2, reads, 6, 15, 25)), porcupine.Illegal},
		{"two writers",
			slices.Concat(in(1, writes, 5, 10, 30), in(2, writes, 6, 15, 25)), porcupine.Illegal},
		{"a writer gets in when the first of two readers is gone",
			slices.Concat(in(1, reads, 5, 10, 20), in(2, reads, 5, 12, 40), in(3, writes, 6, 25, 50)), porcupine.Illegal},
		{"a writer's token is not above a reader's",
			slices.Concat(in(1, reads, 6, 10, 20), in(2, writes, 5, 30, 40)), porcupine.Illegal},
		{"a reader's token is not above a writer's",
			slices.Concat(in(1, writes, 6, 10, 20), in(2, reads, 5, 30, 40)), porcupine.Illegal},
		{"a reader works on when a writer is in",
			slices.Concat(workedOn, in(2, writes, 6, 25, 40)), porcupine.Illegal},
	} {
		t.Run(h.name, func(t *testing.T) {
			verdict, file := judged(t, theRWLock, h.holds)
			require.Equal(t, h.verdict, verdict)
			require.Equal(t, verdict != porcupine.Ok, file != "")
		})
	}
}

// Readers and writers of three Sessions on a real etcd of three members, of which one after the
// other is killed or frozen for a while. Porcupine judges what they tell.
func TestPorcupineSaysOkOfReadersAndWriters(t *testing.T) {
	const (
		sessions, each = 3, 3
		lasts, ttl     = 12 * time.Second, 3 * time.Second
	)
	seed := uint64(time.Now().UnixNano())
	etcd := startServers(t, 3)
	end := now() + lasts
	var wg sync.WaitGroup
	var mu sync.Mutex
	var all []*hold
	for i := range sessions {
		s, err := etcdlock.NewSession(etcd.client(t), etcdlock.WithTTL(ttl))
		require.NoError(t, err)
		for g := range each {
			rw, err := s.RWMutex("n")
			require.NoError(t, err)
			client := i*each + g
			r := rand.New(rand.NewPCG(seed, uint64(client)))
			wg.Go(func() {
				for now() < end {
					if h := readOrWrite(rw, client, r); h != nil {
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
	reads, writes := 0, 0
	for _, h := range all {
		if h.reads {
			reads++
		} else {
			writes++
		}
	}
	t.Logf("%d reads, %d writes, seed %d", reads, writes, seed)
	require.NotZero(t, reads)
	require.NotZero(t, writes)
	verdict, file := judged(t, theRWLock, all)
	require.Equal(t, porcupine.CheckResult(porcupine.Ok), verdict,
		"kept with -artifacts: %s; seed %d", file, seed)
}

// readOrWrite is one call, and the hold if it had one.
func readOrWrite(rw *etcdlock.RWMutex, client int, r *rand.Rand) *hold {
	wait := between(r, time.Millisecond, 3*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	h := &hold{client: client, reads: r.IntN(4) > 0, entered: look{asked: now()}}
	var belief context.Context
	unlock := rw.Unlock
	if h.reads {
		lock := rw.RLock
		if r.IntN(4) == 0 {
			lock = rw.TryRLock
		}
		read, err := lock(ctx)
		if err != nil {
			return nil
		}
		h.token, belief, unlock = read.Token(), read.Context(context.Background()), read.Unlock
	} else {
		if rw.Lock(ctx) != nil {
			return nil
		}
		h.token, belief = rw.Token(), rw.Context(context.Background())
	}
	h.entered.told = now()
	if h.token == 0 { // it has ended already, and there is nothing to be told
		_ = unlock(context.Background())
		return nil
	}
	for until := now() + between(r, 0, 300*time.Millisecond); now() < until; {
		asked := now()
		whole := belief.Err() == nil
		if !whole {
			h.lost = now()
			break
		}
		h.last = look{asked, now()}
		time.Sleep(5 * time.Millisecond) // the work
	}
	asked := now()
	err := unlock(context.Background())
	switch {
	case err == nil:
		h.release = look{asked, now()}
	case errors.Is(err, etcdlock.ErrLost) && h.lost == 0:
		h.lost = now()
	}
	return h
}
