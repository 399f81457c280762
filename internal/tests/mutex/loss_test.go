package mutex

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// held is a Mutex that holds, and what belongs to it.
type held struct {
	etcd *fake.Server
	s    *etcdlock.Session
	mu   *etcdlock.Mutex
}

// Whoever takes a lock away, the context of the hold, Unlock and Trace give the same
// reason, by errors.Is. (ErrSuspended has a test of its own: a bubble has no wall clock.)
func TestALossHasAReasonThatErrorsIsTells(t *testing.T) {
	deleted := func(h *held) { h.etcd.DeleteKey(h.mu.Key()) }
	putOver := func(h *held) { _ = h.etcd.PutKey(h.mu.Key(), 0) }
	revoked := func(h *held) { h.etcd.RevokeLease(h.s.Lease()) }
	refused := fake.Effect{Before: tests.PermissionDenied}
	silent := fake.Effect{Drop: true}
	renewals := func(effects ...fake.Effect) func(fake.Call) fake.Effect {
		return func(c fake.Call) fake.Effect {
			if c.Method != fake.KeepAlive {
				return fake.Effect{}
			}
			return effects[min(c.N, len(effects))-1]
		}
	}
	byAnother := fake.Effect{Edit: func(reply any) {
		reply.(*clientv3.LeaseKeepAliveResponse).MemberId = 2
	}}
	for name, row := range map[string]struct {
		opts    []etcdlock.Option
		network func(fake.Call) fake.Effect
		lose    func(*held)
		unseen  bool // Unlock notices first
		want    []error
		text    string // instead of theirs
	}{
		"no renewal is answered": {
			network: renewals(silent), want: []error{etcdlock.ErrExpired},
		},
		"renewals fail": {
			network: renewals(fake.Effect{Before: fake.Unavailable}),
			want:    []error{etcdlock.ErrExpired},
		},
		"renewals are refused": {
			network: renewals(refused),
			want:    []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"renewals are refused, then not answered": {
			network: renewals(refused, silent),
			want:    []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"a renewal is refused and the next one is not; then none is answered": {
			network: renewals(refused, fake.Effect{}, silent), want: []error{etcdlock.ErrExpired},
		},
		"a renewal is refused, and a read tells what an earlier one was worth": {
			network: renewals(silent, byAnother, byAnother, refused, silent),
			lose: func(h *held) {
				time.Sleep(tests.TTL/3*5/2 + 100*time.Millisecond) // the fourth has been sent
				other := contract.MutexOf(t, h.s, "y")
				_ = other.Lock(context.Background())
				_ = other.Unlock(context.Background())
			},
			want: []error{etcdlock.ErrExpired, rpctypes.ErrPermissionDenied},
		},
		"its key is deleted": {
			lose: deleted,
			want: []error{etcdlock.ErrKeyDeleted},
		},
		"its key is deleted, and a watch tells": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Second)},
			lose: deleted,
			want: []error{etcdlock.ErrKeyDeleted},
		},
		"its key is deleted, and Unlock is the first to notice": {
			lose:   deleted,
			unseen: true,
			want:   []error{etcdlock.ErrKeyDeleted},
		},
		"its key is put over": {
			lose: putOver,
			want: []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is put over, and a watch tells": {
			opts: []etcdlock.Option{etcdlock.WithLinger(time.Second)},
			lose: putOver,
			want: []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is put over, and Unlock is the first to notice": {
			lose:   putOver,
			unseen: true,
			want:   []error{etcdlock.ErrKeyOverwritten},
		},
		"its key is taken, and etcd does not answer how": {
			lose: func(h *held) {
				deleted(h)
				h.etcd.Intercept(tests.FromNth(len(h.etcd.Calls(fake.Txn))+2, fake.Txn, silent))
			},
			unseen: true,
			want:   []error{etcdlock.ErrKeyDeleted, etcdlock.ErrKeyOverwritten},
			text:   "its key was deleted, or put over",
		},
		"its lease is revoked, and a look at the keys tells": {
			lose: revoked,
			want: []error{etcdlock.ErrLeaseRevoked},
		},
		"its lease is revoked, and a renewal tells": {
			network: func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Method == fake.TimeToLive || c.Method == fake.Watch}
			},
			lose: revoked,
			want: []error{etcdlock.ErrLeaseRevoked, rpctypes.ErrLeaseNotFound},
		},
		"its lease is revoked, and the next Lock tells": {
			lose: func(h *held) {
				revoked(h)
				other, _ := h.s.Mutex("y")
				_ = other.Lock(context.Background())
			},
			want: []error{etcdlock.ErrLeaseRevoked, rpctypes.ErrLeaseNotFound},
		},
		"it is held for too long": {
			opts: []etcdlock.Option{etcdlock.WithMaxHold(time.Second)},
			want: []error{etcdlock.ErrMaxHold},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				told := make(chan error, 1)
				s := tests.SessionOf(t, etcd, "a", etcdlock.WithTrace(&etcdlock.Trace{
					Lost: func(_ context.Context, e etcdlock.LostEvent) { told <- e.Reason },
				}))
				mu := contract.MutexOf(t, s, "x", row.opts...)
				etcd.Intercept(row.network)
				hold := tests.LockWithin(t, mu, time.Second)
				synctest.Wait() // for the watch
				if row.lose != nil {
					row.lose(&held{etcd: etcd, s: s, mu: mu})
				}
				if !row.unseen {
					tests.EndsAfter(t, hold, time.Now())
					contract.RequireReasons(t, context.Cause(hold), row.want...)
				}
				err := mu.Unlock(tests.Within(t, 3*time.Second))
				require.ErrorIs(t, err, etcdlock.ErrLost)
				contract.RequireReasons(t, err, row.want...)
				contract.RequireReasons(t, tests.SoonOr(t, told, "no loss is told"), row.want...)
				for _, reason := range row.want {
					text := strings.TrimPrefix(reason.Error(), "etcdlock: ")
					if row.text != "" {
						text = row.text
					}
					require.ErrorContains(t, err, text)
				}
				etcd.Intercept(nil)
				synctest.Wait() // for the removal
			})
		})
	}
}

// An operator that takes a right away may give it back. As long as the lease lives, so does
// the hold.
func TestRenewalsThatAreRefusedForAWhileLoseNothing(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
		etcd.Intercept(tests.FromNth(1, fake.KeepAlive, fake.Effect{Before: tests.PermissionDenied}))
		hold := tests.LockWithin(t, mu, time.Second)
		time.Sleep(tests.TTL * 3 / 4)
		require.Greater(t, len(etcd.Calls(fake.KeepAlive)), 1)
		etcd.Intercept(nil)
		time.Sleep(10 * tests.TTL)
		require.NoError(t, hold.Err(), context.Cause(hold))
		require.NoError(t, mu.Unlock(context.Background()))
	})
}

// Do joins what its function says with the loss, which is told once, and afterwards the Mutex is
// as good as new.
func TestDoTellsOfALossBesideTheErrorOfItsFunction(t *testing.T) {
	full := errors.New("disk full")
	for reason, lose := range map[error]func(h *held){
		etcdlock.ErrKeyDeleted:   func(h *held) { h.etcd.DeleteKey(h.mu.Key()) },
		etcdlock.ErrLeaseRevoked: func(h *held) { h.etcd.RevokeLease(h.s.Lease()) },
		etcdlock.ErrMaxHold:      func(*held) {},
	} {
		tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
			s := tests.SessionOf(t, etcd, "a")
			mu := contract.MutexOf(t, s, "a", etcdlock.WithMaxHold(time.Minute))
			h := &held{etcd: etcd, s: s, mu: mu}
			var token int64
			loses := func(returns func(context.Context) error) error {
				return mu.Do(context.Background(), func(ctx context.Context) error {
					token = mu.Token()
					lose(h)
					<-ctx.Done()
					return returns(ctx)
				})
			}
			for _, row := range []struct {
				returns func(context.Context) error
				is      []error
			}{
				{func(context.Context) error { return nil }, nil},
				{func(context.Context) error { return full }, []error{full}},
				{func(ctx context.Context) error { return ctx.Err() }, []error{context.Canceled}},
				{func(ctx context.Context) error { return fmt.Errorf("work: %w", context.Cause(ctx)) }, nil},
			} {
				err := loses(row.returns)
				contract.RequireIs(t, err, append(row.is, etcdlock.ErrLost, reason)...)
				var lost *etcdlock.LostError
				ok := errors.As(err, &lost)
				require.True(t, ok, "%v", err)
				require.Equal(t, token, lost.Token)
				require.Equal(t, "a", lost.Name)
				require.ErrorContains(t, err, fmt.Sprintf(`etcdlock: lock "a" lost (token %d): `, token))
				require.Equal(t, 1, strings.Count(err.Error(), "lost"), "told once: %v", err)
				contract.RequireIs(t, mu.Unlock(context.Background()), etcdlock.ErrNotHeld)
			}
			require.Equal(t, full, mu.Do(context.Background(), func(context.Context) error {
				return full
			}), "fn's error as it is")
		})
	}
}
