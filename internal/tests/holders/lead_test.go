package holders

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// leads makes a Mutex lead until the returned function is called. That function returns how
// Lead ended.
func leads(
	mu *etcdlock.Mutex, fn func(context.Context) error,
) (end func(cause error) error, over <-chan error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	over = contract.Async(func() error { return mu.Lead(ctx, fn) })
	return func(cause error) error { cancel(cause); return <-over }, over
}

// untilItEnds is a leader that stops when its context ends.
func untilItEnds(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

var errEnough = errors.New("enough")

// One candidate leads at a time. After its term it queues behind those that wait.
func TestCandidatesLeadInTurn(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var led []string
		leading := 0
		for _, who := range []string{"a", "b", "c"} {
			end, _ := leads(contract.MutexOf(t, tests.SessionOf(t, etcd, who), "n"),
				func(ctx context.Context) error {
					leading++
					require.Equal(t, 1, leading)
					led = append(led, who)
					time.Sleep(time.Minute)
					leading--
					return nil
				})
			defer func() { require.ErrorIs(t, end(errEnough), errEnough) }()
			time.Sleep(time.Second)
		}
		time.Sleep(9 * time.Minute)
		synctest.Wait()
		require.Equal(t, "a b c a b c a b c", strings.Join(led[:9], " "))
	})
}

// A leader whose context has ended keeps the lock until it has returned.
func TestALeaderIsReleasedOnlyAfterItHasReturned(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		returned := time.Duration(0)
		start := time.Now()
		end, _ := leads(contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"),
			func(ctx context.Context) error {
				<-ctx.Done()
				time.Sleep(time.Hour) // it takes leave
				returned = time.Since(start)
				return ctx.Err()
			})
		synctest.Wait()
		next := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		got := contract.Async(func() error { return next.Lock(context.Background()) })
		time.Sleep(time.Minute)
		ended := contract.Async(func() error { return end(errEnough) })
		time.Sleep(time.Hour - time.Second)
		tests.StillWaits(t, got, "the leader has not returned")
		require.NoError(t, tests.SoonOr(t, got, "the leader has returned"))
		require.Equal(t, time.Minute+time.Hour, returned)
		require.ErrorIs(t, <-ended, errEnough)
	})
}

// The pause grows while terms are short, and is short again after a long one. The TTL that
// counts is the granted one.
func TestTheRestOfALeader(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		etcd.MinTTL(60)
		const long = 12
		var rests []time.Duration
		ended := time.Time{}
		term := 0
		end, _ := leads(contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n"),
			func(ctx context.Context) error {
				if term > 0 {
					rests = append(rests, time.Since(ended))
				}
				switch term++; term {
				case long:
					time.Sleep(time.Minute)
				case long - 1:
					time.Sleep(59 * time.Second)
				}
				ended = time.Now()
				return nil
			})
		time.Sleep(10 * time.Minute)
		require.ErrorIs(t, end(errEnough), errEnough)
		require.Greater(t, len(rests), long+1)
		want := 100 * time.Millisecond
		for i, rest := range rests {
			require.InDelta(t, want, rest, float64(want)/4+float64(5*time.Millisecond), "after term %d", i+1)
			want = min(2*want, 30*time.Second)
			if i+2 == long {
				want = 100 * time.Millisecond
			}
		}
	})
}

// The error of a leader is reported, and does not end Lead. Neither does a panic, or the
// loss of the lock.
func TestWhatALeaderReturnsIsTold(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		type term struct {
			token int64
			held  time.Duration
			err   error
		}
		var told []term
		var log strings.Builder
		failure, term5 := errors.New("it failed"), make(chan context.Context, 1)
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n",
			etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))),
			etcdlock.WithTrace(&etcdlock.Trace{Led: func(_ context.Context, e etcdlock.LedEvent) {
				require.Equal(t, "n", e.Name)
				told = append(told, term{e.Token, e.Held, e.Err})
			}}))
		var tokens []int64
		end, _ := leads(mu, func(ctx context.Context) error {
			tokens = append(tokens, mu.Token())
			time.Sleep(time.Second)
			switch len(tokens) {
			case 1:
				return failure
			case 2:
				panic(failure)
			case 3:
				panic("a text")
			case 4:
				term5 <- ctx
				<-ctx.Done()
				return nil
			case 5:
				require.NoError(t, mu.Unlock(ctx)) // the leader's own Unlock
				return nil
			}
			return untilItEnds(ctx)
		})
		<-term5
		time.Sleep(tests.WatchedBy)
		etcd.DeleteKey(mu.Key())
		time.Sleep(time.Minute)
		require.ErrorIs(t, end(errEnough), errEnough)
		synctest.Wait()

		require.Len(t, told, 6)
		for i, term := range told {
			require.Equal(t, tokens[i], term.token)
			require.GreaterOrEqual(t, term.held, time.Second)
		}
		require.Equal(t, failure, told[0].err)
		require.ErrorIs(t, told[1].err, failure)
		require.ErrorContains(t, told[1].err, "panicked: it failed")
		require.ErrorContains(t, told[1].err, "lead_test.go", "the stack")
		require.ErrorContains(t, told[2].err, "panicked: a text")
		list, ok := told[2].err.(interface{ Unwrap() []error })
		require.True(t, ok)
		require.NotContains(t, list.Unwrap(), nil, "package errors forbids it")
		require.ErrorIs(t, told[3].err, etcdlock.ErrKeyDeleted)
		require.NoError(t, told[4].err)
		require.ErrorIs(t, told[5].err, context.Canceled)
		require.Equal(t, 4, strings.Count(log.String(), "a leader's function failed"), log.String())
	})
}

// A leader that ends its goroutine leaves the lock to others.
func TestALeaderThatExitsReleases(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var told error
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n", etcdlock.WithTrace(&etcdlock.Trace{
			Led: func(_ context.Context, e etcdlock.LedEvent) { told = e.Err },
		}))
		var exited sync.WaitGroup
		exited.Go(func() {
			_ = mu.Lead(context.Background(), func(context.Context) error { runtime.Goexit(); return nil })
			t.Error("Lead went on")
		})
		exited.Wait()
		synctest.Wait()
		require.ErrorContains(t, told, "Goexit")
		require.Empty(t, etcd.Keys("n/"))
	})
}

// Lead ends with its context and with its Mutex, whatever it is doing, and leaves nothing.
func TestWhatEndsLead(t *testing.T) {
	for _, at := range []string{"waiting", "leading", "resting"} {
		for _, by := range []string{"its context", "Close", "Close of the Session",
			"the end of the client"} {
			t.Run(at+"/"+by, func(t *testing.T) {
				tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
					client := etcd.Client("a")
					s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
					require.NoError(t, err)
					defer s.Close(context.Background())
					other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
					mu := contract.MutexOf(t, s, "n")
					if at == "waiting" {
						tests.LockWithin(t, other, time.Second)
					}
					end, over := leads(mu, func(ctx context.Context) error {
						if at == "resting" {
							return nil
						}
						return untilItEnds(ctx)
					})
					time.Sleep(10 * time.Minute) // by now it pauses for 30 s at a time
					start := time.Now()
					switch by {
					case "its context":
						err := end(errEnough)
						require.ErrorIs(t, err, errEnough)
						require.ErrorIs(t, err, context.Canceled)
					case "Close":
						require.NoError(t, mu.Close(context.Background()))
						require.ErrorIs(t, <-over, etcdlock.ErrClosed)
					case "Close of the Session":
						require.NoError(t, s.Close(context.Background()))
						require.ErrorIs(t, <-over, etcdlock.ErrClosed)
					case "the end of the client":
						client.Close()
						require.ErrorContains(t, <-over, "client")
						return // its key goes with the lease
					}
					require.Less(t, time.Since(start), time.Second)
					if at == "waiting" {
						require.NoError(t, other.Unlock(context.Background()))
					}
					synctest.Wait()
					require.Empty(t, etcd.Keys("n/"))
				})
			})
		}
	}
}

// If Lead cannot begin, it says so at once.
func TestLeadRefusesWhatCannotBe(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		s := tests.SessionOf(t, etcd, "a")
		mu := contract.MutexOf(t, s, "n", etcdlock.WithReentrancy())
		never := func(context.Context) error { t.Error("it leads"); return nil }
		var none *etcdlock.Mutex
		require.ErrorContains(t, none.Lead(context.Background(), never), "not made")
		var noContext context.Context
		require.ErrorContains(t, mu.Lead(noContext, never), `lead "n": nil context`)
		require.ErrorContains(t, mu.Lead(context.Background(), nil), `lead "n": nil function`)
		hold, cancel := context.WithTimeout(tests.LockWithin(t, mu, time.Second), time.Minute)
		defer cancel()
		require.ErrorIs(t, mu.Lead(hold, never), etcdlock.ErrDeadlock)
		require.NoError(t, mu.Unlock(context.Background()))
		require.NoError(t, mu.Close(context.Background()))
		require.ErrorIs(t, mu.Lead(context.Background(), never), etcdlock.ErrClosed)
	})
}

// The time of a wait runs out, and Lead queues again.
func TestAnAcquireTimeoutDoesNotEndLead(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		other := contract.MutexOf(t, tests.SessionOf(t, etcd, "b"), "n")
		tests.LockWithin(t, other, time.Second)
		gaveUp := 0
		led := make(chan struct{})
		end, _ := leads(contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "n",
			etcdlock.WithAcquireTimeout(time.Second),
			etcdlock.WithTrace(&etcdlock.Trace{GaveUp: func(_ context.Context, _ etcdlock.GaveUpEvent) {
				gaveUp++
			}})),
			func(ctx context.Context) error { close(led); return untilItEnds(ctx) })
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Greater(t, gaveUp, 10)
		require.Less(t, gaveUp, 40, "it rests between its waits")
		require.NoError(t, other.Unlock(context.Background()))
		<-led
		require.ErrorIs(t, end(errEnough), errEnough)
	})
}

// A leader ends its Lead by what its function returns. Then it holds nothing, and Lead returns that
// very error; an error of another kind, and a panic, do not end it.
func TestALeaderStopsLeading(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		done := fmt.Errorf("all is migrated: %w", etcdlock.ErrStopLeading)
		var log strings.Builder
		for name, ends := range map[string]func(etcd *fake.Server) error{
			"it returns": func(*fake.Server) error { return done },
			"it has lost it": func(etcd *fake.Server) error {
				etcd.DeleteKey(etcd.Keys("n/")[0])
				return done
			},
			"at the third term": nil,
		} {
			terms := 0
			s := tests.SessionOf(t, etcd, name,
				etcdlock.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
			err := contract.MutexOf(t, s, "n").Lead(t.Context(), func(context.Context) error {
				terms++
				switch {
				case ends != nil:
					return ends(etcd)
				case terms == 1:
					return errEnough
				case terms == 2:
					panic(done)
				}
				return done
			})
			require.Equal(t, done, err, name)
			require.Equal(t, ends == nil, terms == 3, name)
			synctest.Wait()
			require.Empty(t, etcd.Keys("n/"), name)
			require.Equal(t, ends == nil, strings.Contains(log.String(), "a leader's function failed"),
				"%s: %s", name, log.String())
			log.Reset()
		}
	})
}
