package attempt

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

func TestAWindowGrowsWhileAnswersAreBriskAndItIsUsed(t *testing.T) {
	var w window
	now := time.Unix(1e9, 0)
	answered := func(took time.Duration) { w.answered(now.Add(-took), now, true) }
	require.Equal(t, firstWindow, w.limit())

	w.under = firstWindow
	require.True(t, w.full())
	answered(brisk - 1)
	require.Equal(t, firstWindow+1, w.limit())
	require.False(t, w.full())

	answered(brisk)
	answered(slow)
	require.Equal(t, firstWindow+1, w.limit(), "neither brisk nor slow")

	w.under = firstWindow / 2
	answered(0)
	require.Equal(t, firstWindow+1, w.limit(), "more than half is not used")

	w.under = w.limit()
	w.answered(now, now, false)
	require.Equal(t, firstWindow+1, w.limit(), "it has not let that begin")
}

func TestAWindowIsHalvedOnceForWhatWasSentBefore(t *testing.T) {
	start := time.Unix(1e9, 0)
	at := func(seconds float64) time.Time { return start.Add(time.Duration(seconds * float64(second))) }
	m := limiter{puts: window{size: 100}, others: window{size: 10}}
	w := &m.puts
	w.answered(at(0), at(3), true)
	w.answered(at(2), at(4.5), false) // sent before 3
	require.Equal(t, 50, w.limit())
	require.Equal(t, 10, m.others.limit(), "another kind may be as brisk as ever")
	m.overloaded(at(2.9), at(5))
	require.Equal(t, 50, w.limit())
	require.Equal(t, 5, m.others.limit())
	m.overloaded(at(3.5), at(5))
	require.Equal(t, 25, w.limit())
	require.Equal(t, 5, m.others.limit())

	for i := range 10 {
		now := at(float64(10 + 3*i))
		w.answered(now, now.Add(2*slow), true)
	}
	require.Equal(t, slowWindow, w.limit(), "each answer may take long, however few are asked for")
	for i := range 10 {
		now := at(float64(100 + i))
		m.overloaded(now, now.Add(second/2))
	}
	require.Equal(t, 1, w.limit(), "one is left to find out that etcd is well again")
	w.answered(at(200), at(203), true)
	require.Equal(t, 1, w.limit(), "a slow answer does not let more begin")

	m.began(at(300))
	require.Equal(t, firstWindow, w.limit())
	require.Equal(t, firstWindow, m.others.limit())
}

func TestWhatSaysThatEtcdHasTooMuchToDo(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, ErrNoAnswer: true, rpctypes.ErrTooManyRequests: true, rpctypes.ErrTimeout: true,
		rpctypes.ErrNoLeader: false, rpctypes.ErrLeaseNotFound: false, errBusy: false, ErrUnreachable: false,
	} {
		require.Equal(t, want, Overloaded(err), "%v", err)
	}
	require.True(t, NotApplied(errBusy), "nothing was sent")
}

// Attempts that the window does not let begin do so in turn, as earlier ones end. An attempt
// that leaves costs no other attempt its turn.
func TestAttemptsBeginInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{}
		ctx := context.Background()
		for range firstWindow {
			waited, begun := l.begin(ctx, Ordinary)
			require.False(t, waited)
			require.True(t, begun)
		}
		var order []int
		queue := func(ctx context.Context, i int) {
			go func() {
				if waited, begun := l.begin(ctx, Ordinary); begun {
					require.True(t, waited)
					order = append(order, i)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancelCause(ctx)
		queue(ctx, 1)
		queue(leaving, 2)
		queue(ctx, 3)
		leave(errors.New("no more"))
		synctest.Wait()
		require.Empty(t, order)
		for range 2 {
			l.end(Ordinary)
			synctest.Wait()
		}
		require.Equal(t, []int{1, 3}, order)
		waited, begun := l.begin(ctx, Put)
		require.False(t, waited, "another kind waits for nobody of this one")
		require.True(t, begun)
		for range firstWindow {
			l.end(Ordinary)
		}
		require.Zero(t, l.limiter.others.under)
	})
}

// An attempt that gives up just as its turn comes hands the turn on.
func TestATurnThatNobodyTakesIsHandedOn(t *testing.T) {
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l := &link{limiter: limiter{others: window{size: 1}}}
			ctx := context.Background()
			l.begin(ctx, Ordinary)
			leaving, leave := context.WithCancel(ctx)
			var over atomic.Int64
			for _, ctx := range []context.Context{leaving, ctx} {
				go func() {
					if _, begun := l.begin(ctx, Ordinary); begun {
						l.end(Ordinary)
					}
					over.Add(1)
				}()
				synctest.Wait()
			}
			leave()
			l.end(Ordinary) // most of the time before it has seen that it is to leave
			synctest.Wait()
			require.EqualValues(t, 2, over.Load())
			require.Zero(t, l.limiter.others.under)
		})
	}
}

func TestABackoffIsLongerWhileEtcdHasTooMuchToDo(t *testing.T) {
	for _, tt := range []struct {
		err     error
		several bool
		policy  Policy
		pauses  []time.Duration // in milliseconds
	}{
		{err: rpctypes.ErrTooManyRequests, several: true, pauses: []time.Duration{1000, 2000, 4000, 8000, 8000}},
		{err: rpctypes.ErrTooManyRequests, policy: Urgent, pauses: []time.Duration{1000, 2000, 4000}},
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

// A call that gives up between two attempts learns that etcd does not answer.
func TestASilenceOutlastsThePauses(t *testing.T) {
	var b Backoff
	for range 10 {
		b.note(ErrNoAnswer, false)
		require.Less(t, b.next()*5/4, forgetSilence)
	}
}
