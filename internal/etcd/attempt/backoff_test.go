package attempt

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestABackoffDoublesUpToHalfASecond(t *testing.T) {
	var b Backoff
	for _, want := range []time.Duration{20, 40, 80, 160, 320, 500, 500} {
		require.Equal(t, want*time.Millisecond, b.next())
	}
	b.Reset()
	require.Equal(t, 20*time.Millisecond, b.next())
}

func TestABackoffIsLongerWhileEtcdHasTooMuchToDo(t *testing.T) {
	for _, tt := range []struct {
		err     error
		several bool
		policy  Policy
		pauses  []time.Duration // in milliseconds
	}{
		{err: rpctypes.ErrTooManyRequests, several: true, pauses: []time.Duration{1000, 1000, 1000}},
		{err: rpctypes.ErrTooManyRequests, policy: Urgent, pauses: []time.Duration{1000, 1000}},
		{err: rpctypes.ErrTimeout, pauses: []time.Duration{1000, 2000, 2000}},
		{err: ErrNoAnswer, pauses: []time.Duration{1000, 2000, 2000}},
		{err: rpctypes.ErrTimeout, several: true, pauses: []time.Duration{20, 40, 80}},
		{err: rpctypes.ErrTimeout, policy: Urgent, pauses: []time.Duration{20, 40, 80}},
		{err: rpctypes.ErrLeaderChanged, pauses: []time.Duration{20, 40, 80}},
	} {
		b := Backoff{Policy: tt.policy}
		for i, want := range tt.pauses {
			b.note(tt.err, tt.several)
			require.Equal(t, want*time.Millisecond, b.next(), "%v, %d", tt, i)
		}
		b.note(nil, tt.several)
		require.LessOrEqual(t, b.next(), second/2)
	}
}

func TestAnAttemptAfterOneWithoutAnAnswerMayTakeTwiceAsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		c := caller(ctx)
		var b Backoff
		for _, answer := range []error{
			nil, ErrNoAnswer, ErrNoAnswer, rpctypes.ErrNoLeader, ErrNoAnswer, nil, nil,
		} {
			most := Patience * c.Timeout
			if b.unanswered > 0 {
				most *= 2
			}
			_, _, err := Do(ctx, c, &b, time.Hour, func(ctx context.Context, _ bool) (struct{}, error) {
				until, bounded := ctx.Deadline()
				require.True(t, bounded)
				require.Equal(t, most, time.Until(until))
				if answer == ErrNoAnswer {
					<-ctx.Done()
					return struct{}{}, ctx.Err()
				}
				return struct{}{}, answer
			}, nil)
			require.Equal(t, answer, err)
			require.Equal(t, err == ErrNoAnswer, b.unanswered > 0)
		}
	})
}

// While a window stands still, because etcd has failed other attempts, the error of one that waits
// names and has theirs. Otherwise it is an error like any of a request that was not sent.
func TestAnAttemptThatWaitsForThePaceNamesWhyItDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := caller(context.Background())
		down := status.Error(codes.Unavailable, "etcdserver: request timed out")
		answers := func(err error) func(context.Context, bool) (int, error) {
			return func(context.Context, bool) (int, error) { return 0, err }
		}
		_, _, err := Do(t.Context(), c, &Backoff{Policy: Put}, time.Hour, answers(down), nil)
		require.Equal(t, down, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err = Do(ctx, c, &Backoff{Policy: Put}, time.Hour, answers(nil), nil)
		require.EqualError(t, err, "etcd is busy: no request was sent: "+down.Error())
		require.ErrorIs(t, err, ErrUnreachable)
		require.ErrorIs(t, err, down)
		require.True(t, NotApplied(err) && Absent(err))
		require.False(t, Overloaded(err) || Refused(err) || Settles(err) || IsAnswer(err))
		require.False(t, Is(err, rpctypes.ErrTimeout))
	})
}

// An answer about one call, whatever it says, has the others wait for nothing.
func TestAnAnswerThatIsAnErrorMakesNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := caller(context.Background())
		for _, answer := range []error{rpctypes.ErrLeaseNotFound, rpctypes.ErrPermissionDenied, nil} {
			start := time.Now()
			_, _, err := Do(t.Context(), c, &Backoff{Policy: Put}, time.Hour,
				func(context.Context, bool) (int, error) { return 0, answer }, nil)
			require.Equal(t, answer, err)
			require.Zero(t, time.Since(start))
		}
	})
}

// A call that gives up between two attempts learns that etcd does not answer.
func TestASilenceOutlastsThePauses(t *testing.T) {
	var b Backoff
	for range 10 {
		b.note(ErrNoAnswer, false)
		require.Less(t, b.next()*5/4, forgetSilence)
	}
}

func TestJitterStaysWithinAQuarterAndUsesIt(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, 4, 5, time.Millisecond, 20 * time.Millisecond,
		time.Second, 1500 * time.Millisecond, time.Hour} {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 1000 {
			j := Jitter(d)
			least, most = min(least, j), max(most, j)
		}
		// Nanoseconds are whole, so the quarters are rounded.
		require.GreaterOrEqual(t, least, d*3/4, "%v", d)
		require.LessOrEqual(t, most, d*5/4+1, "%v", d)
		if d >= time.Millisecond {
			require.Less(t, least, d*85/100, "%v: it spreads", d)
			require.Greater(t, most, d*115/100, "%v: it spreads", d)
		}
	}
}
