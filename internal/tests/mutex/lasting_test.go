package mutex

import (
	"context"
	"log/slog"
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

// lasts is a call of Lock that waits in the background; it unlocks at once.
func lasts(t *testing.T, s *etcdlock.Session, name string) (over <-chan error) {
	mu := contract.MutexOf(t, s, name)
	return contract.Async(func() error {
		if err := mu.Lock(context.Background()); err != nil {
			return err
		}
		return mu.Unlock(context.Background())
	})
}

// A wait that lasts is told after 30 s and each time it has doubled, with the holder that it knows:
// in etcd's line, and in that of its Session. It is not told before, nor once it is over.
func TestAWaitThatLastsIsToldEachTimeItHasDoubled(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := tests.SessionOf(t, etcd, "holder")
		h, err := holder.Lock(t.Context(), "n")
		require.NoError(t, err)
		var o tests.Told
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
			Waiting: o.Trace().Waiting, Acquired: o.Trace().Acquired,
		}))
		first := lasts(t, s, "n")
		time.Sleep(10 * time.Second)
		second := lasts(t, s, "n") // in the local line
		short, err := holder.Lock(t.Context(), "short")
		require.NoError(t, err)
		third := lasts(t, s, "short")
		time.Sleep(20*time.Second - time.Nanosecond)
		require.NoError(t, short.Unlock(t.Context()))
		require.NoError(t, <-third)
		require.Equal(t, []string{"acquired after 19.999999999s behind 1"}, o.Take())

		at := func(d time.Duration) []string { time.Sleep(d); return o.Take() }
		require.Equal(t, []string{"waits since 30s behind 1, holder"}, at(time.Nanosecond))
		require.Equal(t, []string{"waits since 30s behind 2, holder"}, at(10*time.Second))
		require.Equal(t, []string{"waits since 1m0s behind 1, holder"}, at(20*time.Second))
		require.Equal(t, []string{"waits since 1m0s behind 2, holder"}, at(10*time.Second))
		require.Empty(t, at(50*time.Second-time.Nanosecond))
		require.Equal(t, []string{"waits since 2m0s behind 1, holder"}, at(time.Nanosecond))
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		require.Len(t, o.Take(), 2)
		require.Empty(t, at(time.Hour))
	})
}

// The log says what a wait waits for, and is silent of those of several names that are free.
func TestTheLogTellsWhatAWaitWaitsFor(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		h, err := tests.SessionOf(t, etcd, "holder").Lock(t.Context(), "n")
		require.NoError(t, err)
		since := time.Now().UTC()
		var o tests.Told
		logger := slog.New(slog.NewTextHandler(&o, nil))
		s := tests.SessionOf(t, etcd, "a", etcdlock.WithLogger(logger))
		over := contract.Async(func() error {
			return s.DoAll(context.Background(), []string{"free", "n"},
				func(context.Context) error { return nil })
		})
		time.Sleep(time.Minute)
		var lines []string
		for _, line := range o.Take() {
			if strings.Contains(line, "a wait lasts") {
				_, line, _ = strings.Cut(strings.TrimSpace(line), " level=")
				lines = append(lines, line)
			}
		}
		require.Len(t, lines, 2)
		require.Contains(t, lines[0], `INFO msg="etcdlock: a wait lasts" name=n waited=30s ahead=1 `+
			`holder=holder since=`+since.Format(time.RFC3339)+` key=`+h.Key())
		require.Contains(t, lines[1], "waited=1m0s")
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, <-over)
	})
}

// Each of many waits is told once, and the timer is there for waits alone.
func TestEachOfManyWaitsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const many = 2000
		etcd := fake.NewServer()
		var mu sync.Mutex
		told := make(map[int]int)
		s, err := etcdlock.NewSession(etcd.Client("a"), etcdlock.WithTrace(&etcdlock.Trace{
			Waiting: func(_ context.Context, e etcdlock.WaitingEvent) {
				mu.Lock()
				defer mu.Unlock()
				told[int(e.Waited/time.Second)]++
			},
		}))
		require.NoError(t, err)
		h, err := s.Lock(t.Context(), "n")
		require.NoError(t, err)
		var waits sync.WaitGroup
		for range many {
			waits.Go(func() {
				_, err := s.Lock(context.Background(), "n")
				require.ErrorIs(t, err, etcdlock.ErrClosed)
			})
		}
		time.Sleep(100 * time.Second)
		synctest.Wait()
		require.Equal(t, map[int]int{30: many, 60: many}, told)
		require.True(t, h.Status().Held)
		require.NoError(t, s.Close(t.Context()))
		waits.Wait()
		time.Sleep(time.Hour)
		require.Equal(t, map[int]int{30: many, 60: many}, told)
	})
}
