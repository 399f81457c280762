package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// These tests are about a Session that has stood in a long line and stands in it again: it
// asks for less then.

// aCrowd is how many stand in a line that counts as long. In such a line a waiter seldom
// rechecks.
const aCrowd = 300

// returns lets the process "a" come to hold behind aCrowd others, in a given time, and
// unlock. Then as many others stand in line again.
func returns(
	t *testing.T, etcd *fake.Server, after time.Duration,
) (keys []string, mu *etcdlock.Mutex) {
	t.Helper()
	keys, mu, in := tests.WaitsBehind(t, etcd, aCrowd)
	time.Sleep(after)
	for _, key := range keys {
		etcd.DeleteKey(key)
	}
	require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
	require.NoError(t, mu.Unlock(context.Background()))
	keys, _ = tests.Strangers(t, etcd, "n", aCrowd)
	return keys, mu
}

// lockAgain makes mu lock.
func lockAgain(mu *etcdlock.Mutex) (in <-chan error) { return tests.LockLater(mu) }

// lockAgainWatchingLate makes mu lock. Its watches begin 50 ms late from here on.
func lockAgainWatchingLate(etcd *fake.Server, mu *etcdlock.Mutex) (in <-chan error) {
	etcd.Intercept(func(c fake.Call) fake.Effect {
		if c.Process == "a" && c.Method == fake.Watch {
			return fake.Effect{Delay: 50 * time.Millisecond}
		}
		return fake.Effect{}
	})
	return lockAgain(mu)
}

// asked returns the requests that the process "a" has sent, by method, without those that
// renew its lease.
func asked(etcd *fake.Server) map[string]int {
	n := make(map[string]int)
	for _, c := range etcd.Calls("") {
		if c.Process == "a" && c.Method != fake.KeepAlive && c.Method != fake.TimeToLive &&
			c.Method != fake.Event {
			n[c.Method]++
		}
	}
	return n
}

// since returns the requests that a has sent since before.
func since(etcd *fake.Server, before map[string]int) map[string]int {
	n := asked(etcd)
	for method := range n {
		if n[method] -= before[method]; n[method] == 0 {
			delete(n, method)
		}
	}
	return n
}

// Rule 24: a waiter that waits for long in a long line sends five requests: its put, a look, a
// watch, another look when its turn comes, and the release. If waits are short it also checks once
// the watch is there.
func TestWhoReturnsToALongLineAsksForLittle(t *testing.T) {
	for _, row := range []struct {
		waited time.Duration
		txns   int
	}{{time.Second, 1}, {100 * time.Millisecond, 2}} {
		t.Run(fmt.Sprint(row.waited), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, mu := returns(t, etcd, row.waited)
				before := asked(etcd)
				in := lockAgain(mu)
				time.Sleep(10 * time.Millisecond) // a check waits a moment for others
				require.Equal(t, map[string]int{fake.Txn: row.txns, fake.Watch: 1, fake.Range: 1},
					since(etcd, before))
				time.Sleep(3 * time.Second)
				for _, key := range keys {
					require.Empty(t, in)
					etcd.DeleteKey(key)
				}
				getsInAfter(t, mu, in, 0)
				require.Equal(t, map[string]int{fake.Txn: row.txns + 1, fake.Watch: 1, fake.Range: 2},
					since(etcd, before))
			})
		})
	}
}

// A check may have no answer for long, from an etcd that was frozen and has many to answer.
// An event of the watch meanwhile counts at once.
func TestACheckKeepsNobodyFromHearingTheEvent(t *testing.T) {
	for i, which := range []string{"the one once the watch is there", "a recheck"} {
		t.Run(which, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				late := make(chan struct{}, 1)
				txns := 0
				etcd.Intercept(func(c fake.Call) (e fake.Effect) {
					if c.Process != "a" || c.Method != fake.Txn {
						return e
					}
					if txns++; txns == 2+i { // after the put
						late <- struct{}{}
					}
					if txns >= 2+i { // and its repeats
						e.Delay = 8 * time.Second
					}
					return e
				})
				keys, mu, in := tests.WaitsBehind(t, etcd, 12)
				<-late
				time.Sleep(time.Second)
				start := time.Now()
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
				require.Zero(t, time.Since(start))
				etcd.Intercept(nil)
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// Rule 20: what happens before the watch is there is not missed, though the waiter does not
// look then.
func TestAWatchFromTheReadingMissesNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu := returns(t, etcd, time.Second)
		in := lockAgainWatchingLate(etcd, mu)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		getsInAfter(t, mu, in, 50*time.Millisecond)
	})
}

// The revisions since the put are compacted before the watch is there. So the waiter reads
// the line, and watches from now.
func TestAWatchFromAPutThatIsCompactedIsMadeAnew(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu := returns(t, etcd, time.Second)
		in := lockAgainWatchingLate(etcd, mu)
		behind, _ := tests.Strangers(t, etcd, "n", 2)
		etcd.Compact()
		time.Sleep(time.Second)
		for _, key := range keys {
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		getsInAfter(t, mu, in, 0)
		for _, key := range behind {
			etcd.DeleteKey(key)
		}
	})
}

// Rule 14: a key that is read without its value shows no lease, so the waiter takes a key in the
// form of a contender's for one. It finds out the truth, at once if waits are short, and otherwise
// soon.
func TestAStrayThatLooksLikeAContenderBlocksNobodyForLong(t *testing.T) {
	for _, kind := range []struct {
		name  string
		tail  string
		lease bool
	}{
		{"a UUID without a lease", uuid.NewString(), false},
		{"a number without a lease", "42", false},
		{"a number with another lease", "42", true},
	} {
		for _, in := range []struct {
			line   string
			waited time.Duration
			more   int // keys in line
			within time.Duration
		}{
			{"a line that moves", 100 * time.Millisecond, 0, 0},
			{"a line", time.Second, 0, 6250 * time.Millisecond},
			{"a line that is read without its values", time.Second, aCrowd, 6250 * time.Millisecond},
		} {
			t.Run(kind.name+" in "+in.line, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					keys, mu := returns(t, etcd, in.waited)
					more, _ := tests.Strangers(t, etcd, "n", in.more)
					keys = append(keys, more...)
					granted, err := etcd.Client("strays").Grant(context.Background(), 3000)
					require.NoError(t, err)
					if !kind.lease {
						granted.ID = clientv3.NoLease
					}
					require.NoError(t, etcd.PutKey("n/"+kind.tail, granted.ID))
					entered := lockAgain(mu)
					for _, key := range keys {
						require.Empty(t, entered)
						etcd.DeleteKey(key)
					}
					start := time.Now()
					require.NoError(t, tests.SoonOr(t, entered, "it does not get in"))
					require.LessOrEqual(t, time.Since(start), in.within)
					require.NoError(t, mu.Unlock(context.Background()))
					etcd.DeleteKey("n/" + kind.tail)
				})
			})
		}
	}
}

// The nearest key has the form of concurrency.Mutex, with the lease that the key tells. The
// waiter waits for it, even after a look.
func TestAContenderOfAnotherKindIsWaitedForByItsKey(t *testing.T) {
	for _, waited := range []time.Duration{time.Second, 100 * time.Millisecond} {
		t.Run(fmt.Sprint(waited), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, mu := returns(t, etcd, waited)
				granted, err := etcd.Client("peer").Grant(context.Background(), 3000)
				require.NoError(t, err)
				last := fmt.Sprintf("n/%x", int64(granted.ID))
				require.NoError(t, etcd.PutKey(last, granted.ID))
				in := lockAgain(mu)
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				time.Sleep(time.Minute)
				require.Empty(t, in, "it got in beside one who holds")
				etcd.DeleteKey(last)
				require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
			})
		})
	}
}

// Rule 18: the crowd is gone. Lock is one request, and so is Unlock. A key that stands in
// no line makes no difference. Behind a contender it is as if there had never been a crowd,
// except for a read.
func TestWhoReturnsWhenTheCrowdHasGone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu := returns(t, etcd, time.Second)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		require.NoError(t, etcd.PutKey("n/config", clientv3.NoLease))
		before := asked(etcd)
		require.NoError(t, mu.Lock(context.Background()))
		require.NoError(t, mu.Unlock(context.Background()))
		require.Equal(t, map[string]int{fake.Txn: 2}, since(etcd, before))
		etcd.DeleteKey("n/config")
	})
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu := returns(t, etcd, time.Second)
		for _, key := range keys[1:] {
			etcd.DeleteKey(key)
		}
		in := lockAgain(mu)
		time.Sleep(10 * time.Second)
		require.Empty(t, in)
		etcd.DeleteKey(keys[0])
		getsInAfter(t, mu, in, 0)
	})
}

// Rule 8: the put does not read who holds. A caller that gives up learns the holder's key,
// and after a while also its owner.
func TestWhoReturnsToALongLineIsToldWhoHolds(t *testing.T) {
	for _, row := range []struct {
		after time.Duration
		owner bool
	}{{time.Second, false}, {8 * time.Second, true}} {
		t.Run(fmt.Sprint(row.after), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				keys, mu := returns(t, etcd, time.Second)
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				holder := contract.MutexOf(t, tests.SessionOf(t, etcd, "api-7:1234"), "n")
				tests.LockWithin(t, holder, time.Second)
				keys, _ = tests.Strangers(t, etcd, "n", aCrowd)
				ctx, cancel := context.WithTimeout(context.Background(), row.after)
				defer cancel()
				err := mu.Lock(ctx)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				var locked *etcdlock.LockedError
				ok := errors.As(err, &locked)
				require.True(t, ok)
				require.Equal(t, holder.Key(), locked.Holder.Key)
				require.Equal(t, holder.Token(), locked.Holder.Token)
				require.Equal(t, aCrowd+1, locked.Ahead)
				if row.owner {
					require.Equal(t, "api-7:1234", locked.Holder.Owner)
				}
				require.NoError(t, holder.Unlock(context.Background()))
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
			})
		})
	}
}

// A round is processes that go round and round in one line.
type round struct {
	t       *testing.T
	etcd    *fake.Server
	line    []*etcdlock.Mutex // in the order of their turns
	entered chan int
	at      int // the process whose turn it is
}

// goesRound makes n processes go through the critical section in turn, a few times.
func goesRound(t *testing.T, etcd *fake.Server, n int) *round {
	t.Helper()
	r := &round{t: t, etcd: etcd, entered: make(chan int, n)}
	for i := range n {
		r.line = append(r.line, contract.MutexOf(t, tests.SessionOf(t, etcd, fmt.Sprint(i)), "n"))
		r.queues(i)
	}
	require.Equal(t, 0, <-r.entered)
	for range 2*n + 1 {
		r.passes()
	}
	return r
}

// queues makes a process queue, again.
func (r *round) queues(i int) {
	go func() {
		if err := r.line[i].Lock(context.Background()); err != nil {
			r.t.Error(err)
		}
		r.entered <- i
	}()
	synctest.Wait()
}

// leaves makes the process whose turn it is leave.
func (r *round) leaves() (who int) {
	r.t.Helper()
	who = r.at % len(r.line)
	require.NoError(r.t, r.line[who].Unlock(context.Background()))
	r.at++
	return who
}

// passes makes the process whose turn it is leave, the next one get in, and the first one
// queue again.
func (r *round) passes() {
	r.t.Helper()
	who := r.leaves()
	require.Equal(r.t, r.at%len(r.line), tests.SoonOr(r.t, r.entered, "the next does not get in"))
	r.queues(who)
}

// ends makes all leave that stand in line.
func (r *round) ends() {
	r.t.Helper()
	for range len(r.line) - 1 {
		r.leaves()
		require.Equal(r.t, r.at%len(r.line), tests.SoonOr(r.t, r.entered, "the next does not get in"))
	}
	r.leaves()
}

// requests returns how many requests all have sent, without those that renew leases.
func (r *round) requests() (n int) {
	for _, c := range r.etcd.Calls("") {
		if c.Method != fake.KeepAlive && c.Method != fake.TimeToLive && c.Method != fake.Event {
			n++
		}
	}
	return n
}

// Rule 25: a new Session in a line of thousands puts its key, reads the nearest keys without their
// values, and watches the nearest one from that reading on. It reads nothing else, and checks once
// without asking who holds. It gets in when its turn comes, whatever goes meanwhile.
func TestANewPlaceInAVastLineAsksForLittle(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		const vast = 600
		keys, mu, in := tests.WaitsBehind(t, etcd, vast)
		time.Sleep(time.Second)
		require.Equal(t, map[string]int{
			fake.Grant: 1, fake.Txn: 1, fake.Range: 1, fake.Watch: 1,
		}, asked(etcd))
		etcd.DeleteKey(keys[10])
		time.Sleep(8 * time.Second)
		require.Equal(t, 2, asked(etcd)[fake.Txn], "the put, and the first check")
		for _, c := range etcd.Calls("") {
			if c.Process == "a" && c.Method == fake.Txn && len(c.Puts) == 0 {
				require.NotContains(t, c.Gets, "n/", "it goes through the line")
			}
		}
		for i, key := range keys {
			require.Empty(t, in)
			if i != 10 {
				etcd.DeleteKey(key)
			}
		}
		require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Rule 24: if all go round and round, each stands behind the same key again, and still
// watches it. A hand-over is the release, a look, and the next put.
func TestAHandOverInACrowdThatGoesRoundIsThreeRequests(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		r := goesRound(t, etcd, 40)
		before := r.requests()
		const handOvers = 80
		for range handOvers {
			r.passes()
		}
		require.Equal(t, 3*handOvers, r.requests()-before)
		r.ends()
	})
}

// The key behind which a place last stood is there again, and somebody else has come
// between the two. The place does not get in beside that one.
func TestWhoStandsBehindTheSameKeyAgainWaitsForThoseBetween(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		r := goesRound(t, etcd, 40)
		between, _ := tests.Strangers(t, etcd, "n", 1)
		for range len(r.line) - 1 {
			r.passes()
		}
		r.leaves()
		time.Sleep(3 * time.Second)
		require.Empty(t, r.entered, "it got in beside one who holds")
		etcd.DeleteKey(between[0])
		start := time.Now()
		require.Equal(t, r.at%len(r.line), tests.SoonOr(t, r.entered, "it does not get in"))
		require.Zero(t, time.Since(start))
		for range len(r.line) - 2 {
			r.leaves()
			require.Equal(t, r.at%len(r.line), tests.SoonOr(t, r.entered, "the next does not get in"))
		}
		r.leaves()
	})
}

// The one before gives up in the middle of the line. The one behind its key moves up, and
// does not get in before its turn.
func TestWhoStoodBehindAKeyThatIsGivenUpMovesUp(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		r := goesRound(t, etcd, 40)
		who := (r.at + len(r.line) - 2) % len(r.line) // queued before the last one
		line, err := etcdlock.Contenders(context.Background(), etcd.Client("judge"), "n")
		require.NoError(t, err)
		require.Len(t, line, len(r.line))
		etcd.DeleteKey(line[len(line)-2].Key)
		synctest.Wait()
		require.Empty(t, r.entered)
		for range len(r.line) - 2 {
			r.leaves()
			next := tests.SoonOr(t, r.entered, "the next does not get in")
			if r.at%len(r.line) == who { // its key was deleted, so it has queued anew
				r.at++
			}
			require.Equal(t, r.at%len(r.line), next)
		}
		r.leaves()
		require.Equal(t, who, tests.SoonOr(t, r.entered, "it does not get in"))
		require.NoError(t, r.line[who].Unlock(context.Background()))
	})
}

// The key behind which a place stood is there again, but without a lease: it stands in no
// line.
func TestWhoseFormerPredecessorHasLeftAStrayIsNotHeldUp(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		keys, mu := returns(t, etcd, time.Second)
		for _, key := range keys {
			etcd.DeleteKey(key)
		}
		keys, _ = tests.Strangers(t, etcd, "n", aCrowd)
		in := lockAgain(mu)
		for _, key := range keys {
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
		stray := keys[len(keys)-1]
		keys, _ = tests.Strangers(t, etcd, "n", aCrowd)
		require.NoError(t, etcd.PutKey(stray, clientv3.NoLease))
		require.NoError(t, mu.Unlock(context.Background()))
		in = lockAgain(mu)
		for _, key := range keys {
			require.Empty(t, in)
			etcd.DeleteKey(key)
		}
		getsInAfter(t, mu, in, 0)
		etcd.DeleteKey(stray)
	})
}

// The watch of the key behind which a place stood stays for two seconds more, and no
// longer. Close ends it, as it ends everything.
func TestAWatchThatIsKeptForTheNextPlaceEnds(t *testing.T) {
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprint("close ", closes), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				s := tests.SessionOf(t, etcd, "a")
				mu := contract.MutexOf(t, s, "n")
				keys, _ := tests.Strangers(t, etcd, "n", aCrowd)
				in := lockAgain(mu)
				require.Equal(t, 1, etcd.Watches())
				for _, key := range keys {
					etcd.DeleteKey(key)
				}
				require.NoError(t, tests.SoonOr(t, in, "it does not get in"))
				require.NoError(t, mu.Unlock(context.Background()))
				synctest.Wait()
				require.Equal(t, 1, etcd.Watches())
				if closes {
					require.NoError(t, s.Close(context.Background()))
				} else {
					time.Sleep(2 * time.Second)
				}
				synctest.Wait()
				require.Zero(t, etcd.Watches())
			})
		})
	}
}

// A waiter audits its lease soon after its Session has given a key back, in case a late copy of
// the put of that has left a key. Then it does so seldom. In a line of a thousand the first audit
// comes as rarely as a recheck. A waiter on a fresh lease has no such audit.
func TestWhoWaitsInALongLineAuditsAsRarelyAsItRechecks(t *testing.T) {
	for _, row := range []struct {
		ahead       int
		fresh       bool
		from, until time.Duration // when the first audit comes
	}{
		{10, false, tests.SeldomLook - time.Second, tests.SeldomLook + time.Second},
		{1000, false, time.Minute - tests.RenewalPeriod, time.Minute + tests.RenewalPeriod},
		{10, true, 0, 0},
		{1000, true, 0, 0},
	} {
		t.Run(fmt.Sprint(row.ahead, row.fresh), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				lease, err := etcd.Client("others").Grant(context.Background(), 3600)
				require.NoError(t, err)
				for range row.ahead {
					require.NoError(t, etcd.PutKey("n/"+uuid.NewString(), lease.ID))
				}
				waits, cancel := context.WithTimeout(context.Background(), 5*tests.TTL)
				defer cancel()
				start := time.Now()
				var audits []time.Duration
				var mu sync.Mutex // of audits
				etcd.Intercept(func(c fake.Call) fake.Effect {
					mu.Lock()
					defer mu.Unlock()
					if c.Process == "a" && c.Method == fake.TimeToLive && waits.Err() == nil {
						audits = append(audits, time.Since(start))
					}
					return fake.Effect{}
				})
				s := tests.SessionOf(t, etcd, "a")
				if !row.fresh {
					before := contract.MutexOf(t, s, "before")
					tests.LockWithin(t, before, time.Second)
					require.NoError(t, before.Unlock(context.Background()))
				}
				waiter := contract.MutexOf(t, s, "n")
				require.ErrorIs(t, waiter.Lock(waits), context.DeadlineExceeded)
				if row.fresh {
					require.Empty(t, audits)
					return
				}
				require.Len(t, audits, 1, "the others are seldom")
				require.GreaterOrEqual(t, audits[0], row.from)
				require.LessOrEqual(t, audits[0], row.until)
			})
		})
	}
}
