package holders

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// keep is for how long a hold of these tests waits to be adopted.
const keep = 20 * time.Second

// detached is a hold of "n" that process a has detached.
func detached(t *testing.T, etcd *fake.Server) (d etcdlock.Detached, token int64) {
	t.Helper()
	h := lockNamed(t, tests.SessionOf(t, etcd, "a"))
	token = h.Token()
	d, err := h.Detach(context.Background(), keep)
	require.NoError(t, err)
	return d, token
}

// lockNamed is Session.Lock of "n" for a test.
func lockNamed(t *testing.T, s *etcdlock.Session, opts ...etcdlock.Option) *etcdlock.Hold {
	t.Helper()
	return tests.HoldWithin(t, time.Minute, func(ctx context.Context) (*etcdlock.Hold, error) {
		return s.Lock(ctx, "n", opts...)
	})
}

// lockOf is Session.Lock of a name for a test.
func lockOf(t *testing.T, s *etcdlock.Session, name string) *etcdlock.Hold {
	t.Helper()
	return tests.HoldWithin(t, time.Minute, func(ctx context.Context) (*etcdlock.Hold, error) {
		return s.Lock(ctx, name)
	})
}

// adopted is Session.Adopt for a test.
func adopted(
	t *testing.T, s *etcdlock.Session, d etcdlock.Detached, opts ...etcdlock.Option,
) *etcdlock.Hold {
	t.Helper()
	return tests.HoldWithin(t, time.Minute, func(ctx context.Context) (*etcdlock.Hold, error) {
		return s.Adopt(ctx, d, opts...)
	})
}

// A hold moves to another process, with its key and its token. Nobody gets in before its Unlock
// there.
func TestAHoldMovesToAnotherProcess(t *testing.T) {
	for _, by := range []string{"a Hold", "a Mutex"} {
		t.Run(by, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx := context.Background()
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithInfo("to b"))
				detach, unlock, hold, key, token := mu.Detach, mu.Unlock, context.Context(nil), "", int64(0)
				if by == "a Hold" {
					h := lockNamed(t, tests.SessionOf(t, etcd, "a"), etcdlock.WithInfo("to b"))
					detach, unlock, hold, key, token = h.Detach, h.Unlock, h.Context(ctx), h.Key(), h.Token()
				} else {
					hold = tests.LockWithin(t, mu, time.Second)
					key, token = mu.Key(), mu.Token()
				}
				at, began := entersAt(t, etcd), time.Now()

				told := tests.CallsSince(etcd)
				d, err := detach(ctx, keep)
				require.NoError(t, err)
				tests.Costs(t, told, "Txn 1, LeaseGrant 1", 1)
				require.Equal(t, etcdlock.ErrDetached, context.Cause(hold))
				require.ErrorIs(t, unlock(ctx), etcdlock.ErrNotHeld)
				_, err = detach(ctx, keep)
				require.ErrorIs(t, err, etcdlock.ErrNotHeld)
				waits := tests.PlaceOf(t, etcd, "n", 0)
				require.True(t, waits.Until.Equal(began.Add(keep)))
				require.Equal(t, "to b", waits.Info)

				time.Sleep(keep - time.Second)
				b := tests.SessionOf(t, etcd, "b")
				told = tests.CallsSince(etcd)
				h := adopted(t, b, d)
				synctest.Wait()
				tests.Costs(t, told, "Txn 1, Range 1, LeaseGrant 1, LeaseRevoke 1", 1)
				require.Len(t, etcd.Leases(), 3, "that of a, of b and of the one who waits")
				require.Equal(t, token, h.Token())
				require.Equal(t, key, h.Key())
				tests.RequireHolds(t, h)
				holds := tests.PlaceOf(t, etcd, "n", 0)
				require.True(t, holds.Self)
				require.Zero(t, holds.Until)
				require.Equal(t, b.Lease(), holds.Lease)

				time.Sleep(10 * tests.TTL)
				tests.RequireHolds(t, h)
				tests.StillWaits(t, at, "it gets in beside the hold")
				released := time.Now()
				require.NoError(t, h.Unlock(ctx))
				require.Equal(t, released, tests.SoonOr(t, at, "nobody gets in"))
				tests.RequireEnded(t, h)
			})
		})
	}
}

// Of all that adopt a hold, in several Sessions and in one, one gets it.
func TestOneOfSeveralAdopts(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		sessions := []*etcdlock.Session{b, b, b, tests.SessionOf(t, etcd, "c"),
			tests.SessionOf(t, etcd, "d")}
		type result struct {
			h   *etcdlock.Hold
			err error
		}
		for _, process := range []string{"b", "c", "d"} {
			etcd.Delay(process, 10*time.Millisecond) // so that all read the key before one has it
		}
		results := make(chan result, len(sessions))
		for _, s := range sessions {
			go func() {
				h, err := s.Adopt(context.Background(), d)
				results <- result{h, err}
			}()
		}
		var holds []*etcdlock.Hold
		for range sessions {
			r := tests.SoonOr(t, results, "an Adopt hangs")
			if r.err == nil {
				holds = append(holds, r.h)
				continue
			}
			lost, is := errors.AsType[*etcdlock.LostError](r.err)
			require.True(t, is, "%v", r.err)
			require.Equal(t, "n", lost.Name)
		}
		require.Len(t, holds, 1)
		tests.RequireHolds(t, holds[0])
		again, err := holds[0].Detach(context.Background(), keep)
		require.NoError(t, err)
		require.NotEqual(t, d, again, "each Detach has a text of its own")
		require.NoError(t, adopted(t, b, again).Unlock(context.Background()))
		_, err = b.Adopt(context.Background(), again)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// A hold that nobody adopts goes when its time is over, whatever has become of its process.
func TestADetachedHoldWaitsForAWhile(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		began := time.Now()
		d, _ := detached(t, etcd)
		etcd.Cut("a")
		defer etcd.Heal("a")
		at := entersAt(t, etcd)
		require.WithinRange(t, tests.SoonOr(t, at, "nobody gets in"), began.Add(keep),
			began.Add(keep+time.Second))
		_, err := tests.SessionOf(t, etcd, "b").Adopt(context.Background(), d)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.ErrorIs(t, err, etcdlock.ErrKeyDeleted)
	})
}

// A goroutine of the Session that waits for the name neither keeps Adopt from its hold, nor gets in
// beside it.
func TestAHoldIsAdoptedBesideAWaiterOfItsSession(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		d, _ := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		mu := contract.MutexOf(t, b, "n", etcdlock.WithReentrancy())
		waits := tests.LockLater(mu)
		h := adopted(t, b, d)
		time.Sleep(5 * tests.TTL)
		tests.StillWaits(t, waits, "it gets in beside the hold")
		tests.RequireHolds(t, h)
		require.ErrorIs(t, contract.MutexOf(t, b, "n").Lock(h.Context(ctx)), etcdlock.ErrDeadlock)
		require.NoError(t, contract.MutexOf(t, b, "n", etcdlock.WithReentrancy()).Lock(h.Context(ctx)))
		_, err := h.Detach(ctx, keep)
		require.ErrorContains(t, err, "nests")
		tests.RequireHolds(t, h)
		require.NoError(t, h.Unlock(ctx))
		tests.StillWaits(t, waits, "a Lock nests in the hold")
	})
}

// A goroutine that waits for the name in the Session of the hold does not get it by a Detach.
func TestADetachedHoldIsNotHandedOn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a", etcdlock.WithHandoff(9), etcdlock.WithLinger(time.Minute),
			etcdlock.WithMinHold(5*tests.TTL))
		h := lockNamed(t, a)
		began := time.Now()
		waits := tests.LockLater(contract.MutexOf(t, a, "n"))
		d, err := h.Detach(context.Background(), keep)
		require.NoError(t, err)
		time.Sleep(keep / 2)
		tests.StillWaits(t, waits, "the hold was handed on")
		h = adopted(t, tests.SessionOf(t, etcd, "b"), d)
		require.NoError(t, h.Unlock(context.Background()))
		require.NoError(t, tests.SoonOr(t, waits, "nobody gets in"))
		require.Equal(t, keep/2, time.Since(began))
	})
}

// What Detach says for each fault, and when the next contender gets in.
func TestADetachUnderFaults(t *testing.T) {
	rows := []struct {
		promise string
		faults  func(*fake.Server) faults
		before  func(t *testing.T, etcd *fake.Server, h *etcdlock.Hold)
		fails   error
	}{
		{"the answer to the move is lost", next(fake.Txn, fake.Effect{DropReply: true}), nil, nil},
		{"the answer to the move is an error", next(fake.Txn, fake.Effect{After: fake.Unavailable}), nil, nil},
		{"the lease has expired before the move", next(fake.Txn, fake.Effect{Before: rpctypes.ErrGRPCLeaseNotFound}), nil, nil},
		{"no grant is answered", always(tests.FromNth(1, fake.Grant, fake.Effect{Drop: true})), nil, etcdlock.ErrUnconfirmed},
		{"no answer to a move arrives", always(tests.FromNth(1, fake.Txn, fake.Effect{DropReply: true})), nil, etcdlock.ErrUnconfirmed},
		{"the key is gone", nil, func(_ *testing.T, etcd *fake.Server, h *etcdlock.Hold) { etcd.DeleteKey(h.Key()) }, etcdlock.ErrLost},
		{"the hold is lost", nil, func(_ *testing.T, etcd *fake.Server, h *etcdlock.Hold) {
			hold := h.Context(context.Background())
			etcd.RevokeLease(tests.PlaceOf(t, etcd, "n", 0).Lease)
			<-hold.Done()
		}, etcdlock.ErrLost},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				h := lockNamed(t, tests.SessionOf(t, etcd, "a"))
				began := time.Now()
				if row.before != nil {
					row.before(t, etcd, h)
				}
				if row.faults != nil {
					etcd.Intercept(row.faults(etcd))
				}
				d, err := h.Detach(context.Background(), keep)
				etcd.Intercept(nil)
				tests.RequireEnded(t, h)
				if row.fails != nil {
					require.ErrorIs(t, err, row.fails)
					require.Empty(t, d)
					in := tests.SoonOr(t, entersAt(t, etcd), "nobody gets in")
					require.Less(t, in.Sub(began), keep)
					return
				}
				require.NoError(t, err)
				require.NoError(t, adopted(t, tests.SessionOf(t, etcd, "b"), d).Unlock(context.Background()))
			})
		})
	}
}

// A Detached is of one Detach alone. After a later one that has no answer it does not adopt: the
// key is being removed, and the name is free at once.
func TestADetachedIsOfOneDetach(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		b, c := tests.SessionOf(t, etcd, "b"), tests.SessionOf(t, etcd, "c")
		h := adopted(t, b, d)
		etcd.Intercept(func(call fake.Call) fake.Effect {
			if call.Process != "b" || call.Method != fake.Txn {
				return fake.Effect{}
			}
			return fake.Effect{Drop: len(call.Puts) == 0, DropReply: len(call.Puts) > 0}
		})
		_, err := h.Detach(tests.Within(t, time.Second), keep)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		_, err = c.Adopt(context.Background(), d)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		etcd.Intercept(nil)
		time.Sleep(tests.TTL / 2)
		require.Empty(t, etcd.Keys("n/"))
	})
}

// A restore brings the key back to the lease on which it has waited, and another process adopts it.
// The Session that had adopted it before has lost it, and does not remove it there.
func TestWhoLosesAnAdoptedHoldByARestoreLeavesItToTheNext(t *testing.T) {
	for _, then := range []string{"it unlocks", "its Session is closed"} {
		t.Run(then, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				d, _ := detached(t, etcd)
				restore := etcd.Save()
				b, c := tests.SessionOf(t, etcd, "b"), tests.SessionOf(t, etcd, "c")
				h := adopted(t, b, d)
				hold := h.Context(context.Background())
				etcd.Cut("b")
				restore(1)
				next := adopted(t, c, d)
				etcd.Heal("b")
				<-hold.Done()
				if then == "it unlocks" {
					require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrLost)
				} else {
					require.NoError(t, b.Close(context.Background()))
				}
				time.Sleep(2 * keep)
				tests.RequireHolds(t, next)
				require.NoError(t, next.Unlock(context.Background()))
				require.Empty(t, etcd.Keys("n/"))
			})
		})
	}
}

// An adopted hold has ended. When etcd is set back to a revision at which its key was there, on the
// lease of the Session, the Session removes it, as any key that comes back. A key that a user has
// attached to the lease stays.
func TestAnAdoptedKeyThatASetBackBringsBackGoes(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		other, err := b.Lock(context.Background(), "other") // keeps the lease
		require.NoError(t, err)
		h := adopted(t, b, d)
		users := "users/" + strings.TrimPrefix(h.Key(), "n/")
		require.NoError(t, etcd.PutKey(users, b.Lease()))
		snapshot := etcd.Snapshot()
		require.NoError(t, h.Unlock(context.Background()))
		etcd.Restore(snapshot, 2)
		tests.SoonOr(t, entersAt(t, etcd), "the name is not free")
		tests.RequireHolds(t, other)
		require.Len(t, etcd.Keys("users/"), 1)
		require.NoError(t, other.Unlock(context.Background()))
	})
}

// What Adopt says for each fault, and what an Adopt says that comes later.
func TestAnAdoptUnderFaults(t *testing.T) {
	rows := []struct {
		promise string
		faults  func(*fake.Server) faults
		fails   error
		later   error // of an Adopt by another Session
	}{
		{"the answer is lost", next(fake.Txn, fake.Effect{DropReply: true}), nil, etcdlock.ErrLost},
		{"an answer is an error", next(fake.Txn, fake.Effect{After: fake.Unavailable}), nil, etcdlock.ErrLost},
		{"the lease is gone", next(fake.Txn, fake.Effect{Before: rpctypes.ErrGRPCLeaseNotFound}), nil, etcdlock.ErrLost},
		{"no read is answered", always(tests.FromNth(1, fake.Range, fake.Effect{Drop: true})), context.DeadlineExceeded, nil},
		{"no transaction arrives", always(tests.FromNth(1, fake.Txn, fake.Effect{Drop: true})), etcdlock.ErrUnconfirmed, nil},
		{"no transaction arrives that puts", always(func(c fake.Call) fake.Effect { return fake.Effect{Drop: c.Method == fake.Txn && len(c.Puts) > 0} }), etcdlock.ErrUnconfirmed, nil},
		{"no answer arrives", always(func(c fake.Call) fake.Effect { return fake.Effect{DropReply: c.Method == fake.Txn && len(c.Puts) > 0} }), etcdlock.ErrUnconfirmed, etcdlock.ErrLost},
		{"etcd refuses", always(tests.FromNth(1, fake.Txn, fake.Effect{Before: tests.PermissionDenied})), rpctypes.ErrPermissionDenied, nil},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				d, token := detached(t, etcd)
				b := tests.SessionOf(t, etcd, "b")
				etcd.Intercept(row.faults(etcd))
				h, err := b.Adopt(tests.Within(t, 5*time.Second), d)
				etcd.Intercept(nil)
				synctest.Wait()
				time.Sleep(2 * time.Second)
				if row.fails != nil {
					require.ErrorIs(t, err, row.fails)
				} else {
					require.NoError(t, err)
					require.Equal(t, token, h.Token())
					tests.RequireHolds(t, h)
				}
				later, err := tests.SessionOf(t, etcd, "c").Adopt(context.Background(), d)
				if row.later != nil {
					require.ErrorIs(t, err, row.later)
					if row.fails != nil {
						tests.SoonOr(t, entersAt(t, etcd), "the name is not free")
					}
				} else {
					require.NoError(t, err)
					require.NoError(t, b.Close(context.Background()))
					tests.RequireHolds(t, later)
				}
			})
		})
	}
}

// Close, and the end of the context, meet the answer to an Adopt: before, at and after the instant
// at which that comes. Either there is a hold, or an error and the key goes: nothing is left in
// between.
func TestAnAdoptThatEndsAsItIsAnswered(t *testing.T) {
	const answer, step = 100 * time.Millisecond, time.Millisecond / 2
	for _, by := range []string{"Close", "the context"} {
		for after := answer - 2*step; after <= answer+2*step; after += step {
			t.Run(fmt.Sprintf("%s, %v", by, after), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					d, token := detached(t, etcd)
					b := tests.SessionOf(t, etcd, "b")
					require.NoError(t, lockOf(t, b, "other").Unlock(context.Background())) // it has a lease
					etcd.Intercept(func(c fake.Call) fake.Effect {
						if c.Process == "b" && c.Method == fake.Txn && len(c.Puts) > 0 {
							return fake.Effect{DelayReply: answer}
						}
						return fake.Effect{}
					})
					ctx, cancel := context.WithCancel(context.Background())
					defer cancel()
					closed := make(chan error, 1)
					time.AfterFunc(after, func() {
						if by == "Close" {
							closed <- b.Close(context.Background())
						} else {
							cancel()
							closed <- nil
						}
					})
					h, err := b.Adopt(ctx, d)
					require.NoError(t, tests.SoonOr(t, closed, "Close hangs"))
					switch {
					case err == nil && by == "Close":
						require.ErrorIs(t, h.Unlock(context.Background()), etcdlock.ErrNotHeld)
					case err == nil:
						require.Equal(t, token, h.Token())
						tests.RequireHolds(t, h)
						require.NoError(t, h.Unlock(context.Background()))
					case by == "Close":
						require.ErrorIs(t, err, etcdlock.ErrClosed)
					default:
						require.ErrorIs(t, err, context.Canceled)
						require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
					}
					began := time.Now()
					in := tests.SoonOr(t, entersAt(t, etcd), "the key is left")
					require.Less(t, in.Sub(began), tests.TTL)
				})
			})
		}
	}
}

// A Session that is closed while it adopts a hold leaves that to others: the key is not its own
// yet.
func TestACloseLeavesAHoldThatIsNotAdopted(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		b, c := tests.SessionOf(t, etcd, "b"), tests.SessionOf(t, etcd, "c")
		etcd.Intercept(func(call fake.Call) fake.Effect {
			return fake.Effect{Drop: call.Process == "b" && call.Method == fake.Txn && len(call.Puts) > 0}
		})
		failed := make(chan error, 1)
		go func() {
			_, err := b.Adopt(context.Background(), d)
			failed <- err
		}()
		time.Sleep(time.Second)
		h := adopted(t, c, d)
		require.NoError(t, b.Close(context.Background()))
		require.ErrorIs(t, tests.SoonOr(t, failed, "it hangs"), etcdlock.ErrClosed)
		time.Sleep(2 * time.Second)
		tests.RequireHolds(t, h)
		require.NoError(t, h.Unlock(context.Background()))
	})
}

// An adopted hold ends as any other does.
func TestHowAnAdoptedHoldEnds(t *testing.T) {
	ends := map[string]struct {
		end   func(etcd *fake.Server, s *etcdlock.Session, h *etcdlock.Hold)
		cause error
	}{
		"its key is deleted": {func(etcd *fake.Server, _ *etcdlock.Session, h *etcdlock.Hold) {
			etcd.DeleteKey(h.Key())
		}, etcdlock.ErrKeyDeleted},
		"its key goes back to another lease": {func(etcd *fake.Server, _ *etcdlock.Session,
			h *etcdlock.Hold) {
			_ = etcd.PutKey(h.Key(), 0)
		}, etcdlock.ErrKeyOverwritten},
		"the lease of its Session is lost": {func(etcd *fake.Server, s *etcdlock.Session,
			_ *etcdlock.Hold) {
			etcd.RevokeLease(s.Lease())
		}, etcdlock.ErrLeaseRevoked},
		"its process is cut off": {func(etcd *fake.Server, _ *etcdlock.Session, _ *etcdlock.Hold) {
			etcd.Cut("b")
			time.AfterFunc(2*tests.TTL, func() { etcd.Heal("b") })
		}, etcdlock.ErrExpired},
		"its Session is closed": {func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Hold) {
			_ = s.Close(context.Background())
		}, etcdlock.ErrClosed},
		"it is recalled": {func(etcd *fake.Server, _ *etcdlock.Session, h *etcdlock.Hold) {
			c := etcdlock.Contender{Name: "n", Key: h.Key(), Token: h.Token()}
			_ = etcdlock.Recall(context.Background(), etcd.Client("operator"), c, etcdlock.RecallRequest{})
		}, etcdlock.ErrRecalled},
		"its longest time is over": {func(*fake.Server, *etcdlock.Session, *etcdlock.Hold) {}, etcdlock.ErrMaxHold},
	}
	for promise, row := range ends {
		t.Run(promise, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				d, _ := detached(t, etcd)
				b := tests.SessionOf(t, etcd, "b")
				h := adopted(t, b, d, tests.Listens, etcdlock.WithMaxHold(10*tests.TTL))
				hold := h.Context(context.Background())
				time.Sleep(2 * time.Second)
				row.end(etcd, b, h)
				tests.SoonOr(t, hold.Done(), "it goes on")
				require.ErrorIs(t, context.Cause(hold), row.cause)
				_ = h.Unlock(context.Background())
				at := entersAt(t, etcd)
				tests.SoonOr(t, at, "the name is not free")
			})
		})
	}
}

// No bad input loses anything: the hold goes on, and waits to be adopted.
func TestBadInputOfDetachAndAdopt(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
		h := lockNamed(t, a)
		for _, wrong := range []time.Duration{0, -time.Second, math.MaxInt64} {
			_, err := h.Detach(ctx, wrong)
			require.ErrorContains(t, err, wrong.String())
		}
		var none context.Context
		_, err := h.Detach(none, keep)
		require.ErrorContains(t, err, "nil context")
		tests.RequireHolds(t, h)
		for _, notOne := range []func() (*etcdlock.Hold, error){
			func() (*etcdlock.Hold, error) { return a.LockAll(ctx, "m", "o") },
			func() (*etcdlock.Hold, error) {
				rw, err := a.RWMutex("m")
				require.NoError(t, err)
				return rw.RLock(ctx)
			},
			func() (*etcdlock.Hold, error) {
				sem, err := a.Semaphore("p", 2)
				require.NoError(t, err)
				return sem.Acquire(ctx, 1)
			},
		} {
			other, err := notOne()
			require.NoError(t, err)
			_, err = other.Detach(ctx, keep)
			require.ErrorContains(t, err, "not an exclusive hold of one name")
			tests.RequireHolds(t, other)
			require.NoError(t, other.Unlock(ctx))
		}

		whole := etcdlock.Detached("")
		_, err = b.Adopt(ctx, whole)
		require.EqualError(t, err, `etcdlock: adopt: not from a Detach: ""`)
		whole, err = h.Detach(ctx, keep)
		require.NoError(t, err)
		require.Equal(t, string(whole), whole.String())
		for _, wrong := range []etcdlock.Detached{
			"x", ":", "::", "7:", "7:n", "7:0:n", whole + " ", " " + whole, "0" + whole, "-" + whole,
			whole[1:] + "x",
			etcdlock.Detached(strings.Replace(string(whole), "n/", "/", 1)),
			etcdlock.Detached(strings.Repeat("9", 30)) + whole,
		} {
			_, err := b.Adopt(ctx, wrong)
			require.ErrorContains(t, err, "not from a Detach", "%q", wrong)
		}
		_, err = b.Adopt(none, whole)
		require.ErrorContains(t, err, "nil context")
		_, err = b.Adopt(ctx, whole, etcdlock.WithHandoff(1))
		require.EqualError(t, err, "etcdlock: WithHandoff is not for Adopt")
		_, err = (*etcdlock.Session)(nil).Adopt(ctx, whole)
		require.Error(t, err)
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = b.Adopt(ended, whole)
		require.ErrorIs(t, err, context.Canceled)

		// A hold that was not detached is not adopted, whoever knows its key, its token and its lease.
		require.NoError(t, adopted(t, b, whole).Unlock(ctx))
		running := lockNamed(t, a)
		_, err = b.Adopt(ctx,
			etcdlock.Detached(fmt.Sprintf("%d:%x:%s", running.Token(), a.Lease(), running.Key())))
		require.ErrorIs(t, err, etcdlock.ErrLost)
		tests.RequireHolds(t, running)
		require.NoError(t, running.Unlock(ctx))

		_, err = (*etcdlock.Mutex)(nil).Detach(ctx, keep)
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
		_, err = (*etcdlock.Hold)(nil).Detach(ctx, keep)
		require.ErrorIs(t, err, etcdlock.ErrNotHeld)
	})
}

// A late copy of the move of a Detach leaves the hold alone that the same Session has adopted
// since.
func TestALateCopyOfAMoveLeavesTheAdoptedHoldAlone(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		a := tests.SessionOf(t, etcd, "a")
		other, err := a.Lock(context.Background(), "other")
		require.NoError(t, err)
		h := lockNamed(t, a)
		n := 0
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Txn && len(c.Puts) > 0 {
				if n++; n == 1 {
					return fake.Effect{Again: 2 * time.Second}
				}
			}
			return fake.Effect{Drop: c.Method == fake.Revoke}
		})
		d, err := h.Detach(context.Background(), keep)
		require.NoError(t, err)
		h = adopted(t, a, d)
		lease := tests.PlaceOf(t, etcd, "n", 0).Lease
		time.Sleep(10 * time.Second)
		require.Equal(t, lease, tests.PlaceOf(t, etcd, "n", 0).Lease)
		tests.RequireHolds(t, h)
		etcd.Intercept(nil)
		require.NoError(t, h.Unlock(context.Background()))
		require.NoError(t, other.Unlock(context.Background()))
	})
}

// A key that a late copy of an Adopt has moved to the lease of its Session, where it failed, is
// swept though the Session has other holds there.
func TestAKeyThatALateAdoptHasMovedIsSwept(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		other, err := b.Lock(context.Background(), "other")
		require.NoError(t, err)
		etcd.Intercept(func(c fake.Call) fake.Effect {
			if c.Method == fake.Txn && len(c.Puts) > 0 {
				return fake.Effect{Delay: 4 * time.Second}
			}
			return fake.Effect{}
		})
		_, err = b.Adopt(tests.Within(t, 500*time.Millisecond), d)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		etcd.Intercept(nil)
		began := time.Now()
		at := entersAt(t, etcd)
		time.Sleep(3 * keep)
		require.Less(t, tests.SoonOr(t, at, "nobody gets in").Sub(began), keep+tests.TTL)
		tests.RequireHolds(t, other)
	})
}

// An Adopt tells the truth after one that was not confirmed: it waits until the key of that is
// given up for certain.
func TestAnAdoptWaitsForOneThatHasFailed(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, token := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		other, err := b.Lock(context.Background(), "other")
		require.NoError(t, err)
		etcd.Intercept(tests.FromNth(1, fake.Txn, fake.Effect{Drop: true}))
		_, err = b.Adopt(tests.Within(t, time.Second), d)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		_, err = b.Adopt(tests.Within(t, time.Second), d)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		etcd.Intercept(nil)
		h := adopted(t, b, d)
		require.Equal(t, token, h.Token())
		require.NoError(t, h.Unlock(context.Background()))
		require.NoError(t, other.Unlock(context.Background()))
	})
}

// A restore brings back the key of an adopted hold that is over, on the lease of a Session that
// goes on. It is removed, as a key of its own is.
func TestAnAdoptedKeyThatARestoreBringsBackIsRemoved(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		d, _ := detached(t, etcd)
		b := tests.SessionOf(t, etcd, "b")
		other, err := b.Lock(ctx, "other")
		require.NoError(t, err)
		h := adopted(t, b, d)
		restore := etcd.Save()
		require.NoError(t, h.Unlock(ctx))
		restore(2)
		began := time.Now()
		require.Less(t, tests.SoonOr(t, entersAt(t, etcd), "a ghost blocks the name").Sub(began),
			2*tests.TTL)
		tests.RequireHolds(t, other)
	})
}

// A Lock that nests in an adopted hold goes on after the Unlock of the Hold, and ends it in any
// way.
func TestALockNestsInAnAdoptedHold(t *testing.T) {
	for _, end := range []string{"unlock", "close", "detach", "session"} {
		t.Run(end, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx := context.Background()
				d, token := detached(t, etcd)
				b := tests.SessionOf(t, etcd, "b")
				h := adopted(t, b, d, etcdlock.WithReentrancy())
				mu := contract.MutexOf(t, b, "n", etcdlock.WithReentrancy())
				require.NoError(t, mu.Lock(h.Context(ctx)))
				require.NoError(t, h.Unlock(ctx))
				require.Equal(t, token, mu.Token())
				require.Len(t, etcd.Keys("n/"), 1)
				switch end {
				case "unlock":
					require.NoError(t, mu.Unlock(ctx))
				case "close":
					require.NoError(t, mu.Close(ctx))
				case "session":
					require.NoError(t, b.Close(ctx))
				case "detach":
					d2, err := mu.Detach(ctx, keep)
					require.NoError(t, err)
					require.NotEqual(t, d, d2)
					require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrNotHeld)
					h = adopted(t, b, d2)
					require.NoError(t, h.Unlock(ctx))
				}
				require.Empty(t, etcd.Keys("n/"))
				require.Zero(t, mu.Token())
			})
		})
	}
}

// A name may have all that a Detached has, and a hold may be kept for as long as etcd can.
func TestAHoldOfAnyNameIsKeptForAnyTime(t *testing.T) {
	for _, name := range []string{"a:b", "a/b c:é/7:x", " ",
		"7:n/9b1c1c62-98ea-4a0c-a4b2-0d1f6ef4e1b2", "x//y", "\x01"} {
		t.Run(fmt.Sprintf("%q", name), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				ctx := context.Background()
				a, b := tests.SessionOf(t, etcd, "a"), tests.SessionOf(t, etcd, "b")
				h, err := a.Lock(ctx, name)
				require.NoError(t, err)
				d, err := h.Detach(ctx, 9_000_000_000*time.Second)
				require.NoError(t, err)
				h, err = b.Adopt(ctx, d)
				require.NoError(t, err)
				require.Equal(t, []string{name}, h.Names())
				require.NoError(t, h.Unlock(ctx))
				h, err = a.Lock(ctx, name, etcdlock.WithMinHold(9_000_000_000*time.Second))
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
				cs, err := etcdlock.Contenders(ctx, etcd.Client("x"), name)
				require.NoError(t, err)
				require.Len(t, cs, 1)
				require.Greater(t, cs[0].Until.Year(), 2200)
				require.NoError(t, etcdlock.Break(ctx, etcd.Client("x"), cs[0]))
				etcd.RevokeLease(cs[0].Lease) // it would last for longer than the test
				h, err = a.TryLock(ctx, name)
				require.NoError(t, err)
				require.NoError(t, h.Unlock(ctx))
			})
		})
	}
}

// A Detach at the same time as another call, each of which takes 20 ms: the hold is detached, or
// has ended otherwise, and nothing is left behind.
func TestADetachBesideOtherCalls(t *testing.T) {
	ops := map[string]func(ctx context.Context, s *etcdlock.Session, mu *etcdlock.Mutex) error{
		"unlock": func(ctx context.Context, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Unlock(ctx)
		},
		"close": func(ctx context.Context, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Close(ctx)
		},
		"session": func(ctx context.Context, s *etcdlock.Session, _ *etcdlock.Mutex) error {
			return s.Close(ctx)
		},
		"info": func(ctx context.Context, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.SetInfo(ctx, "new")
		},
		"detach": func(ctx context.Context, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			_, err := mu.Detach(ctx, keep)
			return err
		},
		"lock": func(ctx context.Context, _ *etcdlock.Session, mu *etcdlock.Mutex) error {
			return mu.Lock(ctx)
		},
	}
	for name, op := range ops {
		for at := -45 * time.Millisecond; at <= 45*time.Millisecond; at += 5 * time.Millisecond {
			t.Run(fmt.Sprintf("%s at %v", name, at), func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					ctx := context.Background()
					a := tests.SessionOf(t, etcd, "a")
					mu := contract.MutexOf(t, a, "n")
					require.NoError(t, mu.Lock(ctx))
					hold := mu.Context(ctx)
					etcd.Delay("a", 10*time.Millisecond)
					done := make(chan error, 1)
					run := func() {
						c, cancel := context.WithTimeout(ctx, 5*time.Second)
						defer cancel()
						done <- op(c, a, mu)
					}
					if at < 0 {
						go run()
						time.Sleep(-at)
					} else {
						go func() { time.Sleep(at); run() }()
					}
					d, err := mu.Detach(ctx, keep)
					other := <-done
					require.Error(t, hold.Err())
					if err == nil {
						h, err := tests.SessionOf(t, etcd, "b").Adopt(ctx, d)
						require.NoError(t, err)
						require.NoError(t, h.Unlock(ctx))
					} else {
						require.True(t, errors.Is(err, etcdlock.ErrNotHeld), "%v", err)
					}
					etcd.Delay("a", 0)
					_ = mu.Unlock(ctx)
					synctest.Wait()
					time.Sleep(time.Second)
					if name != "detach" || err == nil {
						require.Empty(t, etcd.Keys("n/"), "%v %v", err, other)
					}
				})
			})
		}
	}
}

// A Session whose Adopt comes too late leaves it known that another one of its process has the
// hold.
func TestAnAdoptedHoldIsOfItsProcessThoughAnotherAdoptFails(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		d, _ := detached(t, etcd)
		h := adopted(t, tests.SessionOf(t, etcd, "b"), d)
		_, err := tests.SessionOf(t, etcd, "c").Adopt(context.Background(), d)
		require.ErrorIs(t, err, etcdlock.ErrLost)
		require.True(t, tests.PlaceOf(t, etcd, "n", 0).Self)
		require.NoError(t, h.Unlock(context.Background()))
	})
}
