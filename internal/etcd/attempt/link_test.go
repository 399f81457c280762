package attempt

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

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
