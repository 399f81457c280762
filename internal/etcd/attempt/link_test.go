package attempt

import (
	"context"
	"errors"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// caller returns a Caller of a client without a connection.
func caller(ctx context.Context) *Caller {
	return NewCaller(ctx, &clientv3.Client{}, 6*time.Second,
		func(f func()) { go f() }, func(error, time.Duration) {})
}

// begins begins an attempt, which waits for its turn at most until ctx ends.
func begins(ctx context.Context, c *Caller, p Policy) (a *flight, err error) {
	a = &flight{c: c, policy: p, first: time.Hour}
	if err = a.begin(ctx, time.Hour, func() {}); err != nil {
		a.done(err)
	}
	return a, err
}

// Attempts that the window does not let begin do so in turn, as earlier ones end. An attempt
// that leaves costs no other attempt its turn. One that waited has all its time for the answer.
func TestAttemptsBeginInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		c := caller(ctx)
		var under []*flight
		for range firstWindow {
			a, err := begins(ctx, c, Ordinary)
			require.NoError(t, err)
			under = append(under, a)
		}
		var order []int
		queue := func(ctx context.Context, i int) {
			go func() {
				if a, err := begins(ctx, c, Ordinary); err == nil {
					until, _ := a.ctx.Deadline()
					require.Equal(t, time.Hour, time.Until(until))
					order = append(order, i)
					under = append(under, a)
				} else {
					require.Equal(t, &busyError{}, err)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancelCause(ctx)
		queue(ctx, 1)
		queue(leaving, 2)
		queue(ctx, 3)
		time.Sleep(time.Minute)
		leave(errors.New("no more"))
		synctest.Wait()
		require.Empty(t, order)
		for _, a := range under[:2] {
			a.done(&busyError{})
			synctest.Wait()
		}
		require.Equal(t, []int{1, 3}, order)
		for _, p := range []Policy{Put, Urgent} {
			a, err := begins(ctx, c, p)
			require.NoError(t, err, "another kind waits for nobody of this one")
			a.done(nil)
		}
		for _, a := range under[2:] {
			a.done(nil)
		}
		require.Zero(t, c.link.limiter.others.under)
		require.Zero(t, c.link.limiter.puts.under)
		require.Zero(t, c.link.flights)
		require.Zero(t, c.asking)
	})
}

// A repeat that is answered ends the attempt. It counts as one answer, from its own sending, and
// what was spent on repeats is paid back.
func TestARepeatThatIsAnsweredEndsTheAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		c := caller(ctx) // which counts as one of several endpoints
		started := time.Now()
		f := func(ctx context.Context, again bool) (string, error) {
			if again {
				time.Sleep(time.Millisecond)
				return "again", nil
			}
			<-ctx.Done()
			return "", ctx.Err()
		}
		r, several, err := Do(ctx, c, &Backoff{}, time.Second, f, nil)
		require.NoError(t, err)
		require.Equal(t, "again", r)
		require.True(t, several)
		require.Equal(t, time.Second+time.Millisecond, time.Since(started))
		m := &c.link.limiter
		require.Equal(t, 1, m.answers)
		require.Equal(t, time.Millisecond, m.latest[0])
		require.Zero(t, m.spent)
		require.Zero(t, m.others.under)
		require.NoError(t, c.Unavailable())
	})
}

// The first request meets a dead endpoint. The answer to a repeat is not final, so the others are
// heard out for a while. etcd has taken no longer for that: what meets the dead endpoint next is
// repeated as soon as ever.
func TestWhatIsHeardOutDoesNotCountAsSlow(t *testing.T) {
	const other = 100 * time.Millisecond
	for name, row := range map[string]struct {
		other time.Duration // how long the final answer takes, 0 if none comes
		want  string
		took  time.Duration
	}{
		"the other answer does not come": {0, "gone", time.Second + time.Millisecond + ReadTimeout},
		"the other answer is final":      {other, "released", time.Second + other},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(context.Background())
				defer stop()
				c := caller(ctx) // which counts as one of several endpoints
				for range 4 {
					began := time.Now()
					var copies atomic.Int64
					r, several, err := Do(ctx, c, &Backoff{}, time.Second,
						func(ctx context.Context, _ bool) (string, error) {
							switch n := copies.Add(1); {
							case n == 2:
								time.Sleep(time.Millisecond)
								return "gone", nil
							case n == 3 && row.other > 0:
								time.Sleep(row.other)
								return "released", nil
							}
							<-ctx.Done()
							return "", ctx.Err()
						}, func(answer string) bool { return answer == "released" })
					require.NoError(t, err)
					require.Equal(t, row.want, r)
					require.True(t, several)
					require.Equal(t, row.took, time.Since(began))
					require.EqualValues(t, 3, copies.Load())
				}
				m := &c.link.limiter
				require.LessOrEqual(t, m.took(), other)
				require.Equal(t, time.Second, m.usual(time.Second))
				require.Zero(t, m.spent)
				require.Zero(t, m.others.under)
				require.Zero(t, c.link.flights)
			})
		})
	}
}

// A Session whose attempt waits its turn is not told that etcd is silent as long as etcd answers
// the client's other Sessions; once that has ended, it is. If etcd has said why it cannot serve,
// that is told in any case.
func TestAnEtcdThatAnswersOthersIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		client, told := &clientv3.Client{}, new(atomic.Int64)
		of := func(tell func(error, time.Duration)) *Caller {
			c := NewCaller(ctx, client, 6*time.Second, func(f func()) { go f() }, tell)
			c.Waits.Add(1)
			return c
		}
		c, other := of(func(error, time.Duration) { told.Add(1) }), of(func(error, time.Duration) {})
		serve := func(seconds int) {
			for range seconds * 10 {
				a, err := begins(ctx, other, Urgent)
				require.NoError(t, err)
				time.Sleep(100 * time.Millisecond)
				a.done(nil)
			}
		}
		c.link.limiter.others.size = 0
		go func() { _, _ = begins(ctx, c, Ordinary) }()
		serve(30)
		synctest.Wait()
		require.Zero(t, told.Load())
		require.NoError(t, c.Unavailable())
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, told.Load())
		require.Equal(t, ErrNoAnswer, c.Unavailable())

		serve(1)
		require.NoError(t, c.Unavailable())
		a, err := begins(ctx, c, Urgent)
		require.NoError(t, err)
		a.done(a.fails(ctx, ErrUnreachable))
		serve(20)
		synctest.Wait()
		require.EqualValues(t, 3, told.Load())
		require.Equal(t, ErrUnreachable, c.Unavailable())
		stop()
	})
}

// An attempt that gives up just as its turn comes hands the turn on.
func TestATurnThatNobodyTakesIsHandedOn(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			ctx := context.Background()
			c := caller(ctx)
			first, err := begins(ctx, c, Ordinary)
			require.NoError(t, err)
			c.link.limiter.others.size = 1
			leaving, leave := context.WithCancel(ctx)
			var over atomic.Int64
			for _, ctx := range []context.Context{leaving, ctx} {
				go func() {
					if a, err := begins(ctx, c, Ordinary); err == nil {
						a.done(&busyError{})
					}
					over.Add(1)
				}()
				synctest.Wait()
			}
			leave()
			first.done(&busyError{}) // most of the time before it has seen that it is to leave
			synctest.Wait()
			require.EqualValues(t, 2, over.Load())
			require.Zero(t, c.link.limiter.others.under)
		})
	}
}

// A report of a connection that is up and silent names the pings once in a silence: when a client
// with the pings of the pages would have given the connection up. Other reports do not.
func TestAReportOfASilentConnectionNamesThePingsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := caller(context.Background())
		names := func(reason error, silent time.Duration) bool {
			told := c.namePings(reason, silent)
			require.ErrorIs(t, told, reason)
			return strings.Contains(told.Error(), "DialKeepAliveTime")
		}
		require.False(t, names(ErrNoAnswer, time.Hour), "of a client without a connection")

		c.conn = fake.Nowhere(t.Context())
		for range 2 { // in each silence
			require.False(t, names(ErrUnreachable, time.Hour))
			require.False(t, names(&busyError{}, time.Hour))
			require.False(t, names(ErrNoAnswer, 13*time.Second), "pings may be on their way")
			require.True(t, names(ErrNoAnswer, 22*time.Second))
			require.False(t, names(ErrNoAnswer, 32*time.Second), "it did")
			a, err := begins(context.Background(), c, Urgent)
			require.NoError(t, err)
			a.done(nil)
		}
	})
}

// The requests of a client that end when no endpoint is connected need one goroutine, which ends
// with the last of them. It cancels all of them, and says so to each.
func TestOneGoroutineFollowsTheConnectionForAllRequests(t *testing.T) {
	dials, fails := make(chan struct{}, 1), make(chan struct{})
	conn, err := grpc.Dial("passthrough:///etcd", // gRPC 1.59 has no NewClient
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case dials <- struct{}{}:
			default:
			}
			<-fails
			return nil, errors.New("no route")
		}))
	require.NoError(t, err)
	defer conn.Close()
	<-dials
	c := caller(context.Background())
	c.conn = conn
	const requests = 100
	overs, cancelled := make([]func() bool, requests), make(chan int, requests)
	follow := func() {
		for i := range overs {
			overs[i] = c.CancelWhenUnreachable(func() { cancelled <- i })
		}
	}
	before := runtime.NumGoroutine()
	follow()
	require.LessOrEqual(t, runtime.NumGoroutine(), before+1)
	for _, over := range overs {
		require.False(t, over(), "nothing has failed")
	}
	require.Empty(t, c.link.cancels)
	ends := func() {
		require.Eventually(t, func() bool {
			return !slices.ContainsFunc(stacks(), func(stack string) bool {
				return strings.Contains(stack, "WhenUnreachable") // also of one that has yet to run
			})
		}, 5*time.Second, time.Millisecond)
	}
	ends()

	follow()
	close(fails)
	for range requests {
		<-cancelled
	}
	for _, over := range overs {
		require.True(t, over())
	}
	ends()
}

// stacks are those of all goroutines.
func stacks() []string {
	text := make([]byte, 1<<20)
	return strings.Split(string(text[:runtime.Stack(text, true)]), "\n\n")
}
