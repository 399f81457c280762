package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// A told is what hooks have told, in order.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (o *told) add(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.lines = append(o.lines, fmt.Sprintf(format, args...))
}

// take returns what was told since the last time.
func (o *told) take() []string {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	lines := o.lines
	o.lines = nil
	return lines
}

func (o *told) trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Queued: func(_ string, ahead int, holder etcdlock.Contender) {
			o.add("queued behind %d, %s", ahead, holder.Owner)
		},
		GaveUp: func(_ string, waited time.Duration, ahead int, err error) {
			o.add("gave up after %v behind %d: %s", waited, ahead, err)
		},
		Acquired: func(_ string, _ int64, waited time.Duration, ahead int) {
			o.add("acquired after %v behind %d", waited, ahead)
		},
		Released:       func(_ string, _ int64, held time.Duration) { o.add("released after %v", held) },
		Lost:           func(_ string, _ int64, held time.Duration, reason error) { o.add("lost after %v: %v", held, reason) },
		LeaseReplaced:  func(clientv3.LeaseID, error) { o.add("replaced") },
		CleanupPending: func(string) { o.add("pending") },
		CleanupDone:    func(string) { o.add("done") },
	}
}

// Each hold that begins ends once for the hooks: released or lost.
func TestEachHoldIsToldToBeginAndToEndOnce(t *testing.T) {
	const second = time.Second
	ends := map[string]struct {
		opts []etcdlock.Option
		end  func(etcd *fake.Server, s *etcdlock.Session, mu *etcdlock.Mutex)
		want []string
	}{
		"Unlock": {nil, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Unlock(context.Background())
		}, []string{"released after 1s"}},
		"Unlock that lingers": {[]etcdlock.Option{etcdlock.WithLinger(second)}, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Unlock(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Mutex": {nil, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			_ = mu.Close(context.Background())
		}, []string{"released after 1s"}},
		"Close of the Session": {nil, func(_ *fake.Server, s *etcdlock.Session, _ *etcdlock.Mutex) {
			_ = s.Close(context.Background())
		}, []string{"released after 1s", "replaced"}},
		"Unlock that is not confirmed": {nil, func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			etcd.Cut("a")
			ctx, cancel := context.WithTimeout(context.Background(), second)
			defer cancel()
			_ = mu.Unlock(ctx)
			etcd.Heal("a")
			time.Sleep(5 * second)
		}, []string{"replaced", "pending", "released after 2s", "done"}},
		"loss": {nil, func(etcd *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			etcd.DeleteKey(mu.Key())
			_ = mu.Unlock(context.Background())
		}, []string{"lost after 1s: etcdlock: its key was deleted"}},
		"MaxHold": {[]etcdlock.Option{etcdlock.WithMaxHold(2 * second)}, func(_ *fake.Server, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			time.Sleep(3 * second)
			_ = mu.Unlock(context.Background())
		}, []string{"lost after 2s: etcdlock: held for as long as WithMaxHold allows", "pending", "done"}},
	}
	for name, row := range ends {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var o told
				s := processIn(t, etcd, "a", etcdlock.WithTrace(o.trace()))
				mu := contract.MutexOf(t, s, "n", row.opts...)
				lockWithin(t, mu, second)
				require.Equal(t, []string{"acquired after 0s behind 0"}, o.take())
				time.Sleep(second)
				row.end(etcd, s, mu)
				got := o.take()
				if name == "MaxHold" {
					require.Len(t, got, 3)
					require.True(t, strings.HasPrefix(got[0], "lost after 2s: "), "%v", got)
					return
				}
				require.Equal(t, row.want, got)
			})
		})
	}
}

// A wait that ends without a hold is told, with what it waited for.
func TestAWaitWithoutAHoldIsToldToHaveGivenUp(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		holder := contract.MutexOf(t, processIn(t, etcd, "holder"), "n")
		lockWithin(t, holder, time.Second)
		var o told
		mu := contract.MutexOf(t, processIn(t, etcd, "a", etcdlock.WithTrace(o.trace())), "n")

		err := mu.TryLock(context.Background())
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		who := fmt.Sprintf("holder (%s:%d)", locked.Holder.Host, os.Getpid())
		require.Equal(t, []string{`gave up after 0s behind 0: etcdlock: lock "n": held by ` + who}, o.take())

		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(ctx), context.DeadlineExceeded)
		require.Equal(t, []string{
			"queued behind 1, holder", "pending", "done",
			`gave up after 3s behind 1: etcdlock: lock "n": 2nd in line, held by ` + who + `: context deadline exceeded`,
		}, o.take())
		require.NoError(t, holder.Unlock(context.Background()))
	})
}

// While etcd is silent no renewal fails. The loss is not the first that is heard, by the
// Trace or in the log.
func TestASilentEtcdIsToldOfBeforeTheLoss(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o told
		trace := o.trace()
		trace.LeaseAtRisk = func(_ clientv3.LeaseID, remaining time.Duration) {
			o.add("at risk, %t", 0 < remaining && remaining < virtualTTL/2)
		}
		logger := slog.New(slog.NewTextHandler(contract.WriterFunc(func(record []byte) (int, error) {
			_, message, _ := strings.Cut(string(record), `msg="`)
			message, _, _ = strings.Cut(message, `"`)
			o.add("%s", message)
			return len(record), nil
		}), nil))
		mu := contract.MutexOf(t, processIn(t, etcd, "a", etcdlock.WithTrace(trace), etcdlock.WithLogger(logger)), "n")
		lockWithin(t, mu, time.Second)
		etcd.Freeze()
		time.Sleep(2 * virtualTTL)
		got := o.take()
		require.Equal(t, []string{
			"acquired after 0s behind 0", "etcdlock: lease at risk", "at risk, true",
		}, got[:3])
		lost := slices.Index(got, "etcdlock: lock lost")
		require.Positive(t, lost, "%v", got)
		require.LessOrEqual(t, lost, 2+2*3+2, "few records: %v", got)
		require.NotContains(t, got[:lost], "etcdlock: lease not renewed", "it would tell by itself")
		require.NotContains(t, got[lost:], "etcdlock: lease at risk", "after the loss")
		require.ErrorIs(t, mu.Unlock(context.Background()), etcdlock.ErrLost)
	})
}

// With two goroutines that hold for a nanosecond in turn, every end is told after its
// beginning.
func TestHooksComeInTheOrderOfTheEvents(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		var o told
		s := processIn(t, etcd, "a", etcdlock.WithTrace(o.trace()), etcdlock.WithHandoff(1), etcdlock.WithLinger(time.Second))
		var wg sync.WaitGroup
		for range 3 {
			mu := contract.MutexOf(t, s, "n")
			wg.Go(func() {
				for range 200 {
					if err := mu.Lock(context.Background()); err != nil {
						t.Error(err)
					}
					if err := mu.Unlock(context.Background()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		holding, ends := 0, 0
		for _, line := range o.take() {
			switch strings.Fields(line)[0] {
			case "acquired":
				holding++
			case "released":
				holding--
				ends++
			}
			require.Contains(t, []int{0, 1}, holding, "after %s", line)
		}
		require.Equal(t, 600, ends)
	})
}
