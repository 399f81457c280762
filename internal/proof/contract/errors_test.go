package contract_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// theHolder is how errors name the holder of a line: by its label and its process.
func theHolder(t *testing.T, sameSession bool) string {
	t.Helper()
	host, err := os.Hostname()
	require.NoError(t, err)
	holder := fmt.Sprintf("api-7:1234 (%s:%d)", host, os.Getpid())
	if sameSession {
		holder += " in this Session"
	}
	return holder
}

// line is a world for the errors of waits: api-7:1234 holds "orders/42", and one contender
// waits behind it.
type line struct {
	client *clientv3.Client
	faults *etcdtest.Faults
	holder *etcdlock.Mutex
	third  *etcdlock.Session // for contenders that come now; its lease is granted
}

// newLine makes a line. Its second contender is in another Session, or in the holder's.
func newLine(t *testing.T, sameSession bool) line {
	t.Helper()
	etcdtest.VerifyNoLeaks(t)
	l := line{faults: etcdtest.NewFaults(t)}
	l.client = etcdtest.Start(t, 1).Client(t, contract.With(l.faults))
	contract.VerifyClean(t, l.client, "")
	ctx, cancel := context.WithCancel(t.Context())

	first := contract.NewSession(t, l.client, etcdlock.WithOwner("api-7:1234"))
	l.holder = contract.MutexOf(t, first, "orders/42")
	require.NoError(t, l.holder.Lock(ctx))

	second := first
	if !sameSession {
		second = contract.NewSession(t, l.client, etcdlock.WithOwner("api-8:99"))
	}
	queued := make(chan struct{})
	waiter := contract.MutexOf(t, second, "orders/42", etcdlock.WithTrace(&etcdlock.Trace{
		Queued: func(_ context.Context, _ etcdlock.QueuedEvent) { close(queued) },
	}))
	waited := contract.Async(func() error { return waiter.Lock(ctx) })
	<-queued

	l.third = first
	if !sameSession {
		l.third = contract.NewSession(t, l.client, etcdlock.WithOwner("api-9:5"))
		warm := contract.MutexOf(t, l.third, "warm")
		require.NoError(t, warm.Lock(ctx))
		require.NoError(t, warm.Unlock(ctx))
	}
	t.Cleanup(func() {
		cancel()
		require.ErrorIs(t, <-waited, context.Canceled)
		require.NoError(t, l.holder.Unlock(context.Background()))
	})
	return l
}

// isOfTwo waits until only the holder and the one behind it are left in etcd.
func (l line) isOfTwo(t *testing.T) {
	t.Helper()
	own := func(c etcdlock.Contender) bool { return c.Owner == "api-9:5" }
	require.True(t, contract.Poll(func() bool {
		line, err := etcdlock.Contenders(t.Context(), l.client, "orders/42")
		return err == nil && !slices.ContainsFunc(line, own)
	}))
}

// The whole text is a promise: it is what people see in their logs. (The root has the waits that
// end by a time-out, in virtual time.)
func TestAWaitThatEndsTellsWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	closing := errors.New("the shop is closing")
	cases := []struct {
		name string
		// ctx makes the context of the wait, and what ends that.
		ctx  func(parent context.Context) (ctx context.Context, end func(mu *etcdlock.Mutex))
		text string
		is   []error
	}{
		{
			name: "the caller",
			ctx: func(parent context.Context) (context.Context, func(*etcdlock.Mutex)) {
				ctx, cancel := context.WithCancel(parent)
				return ctx, func(*etcdlock.Mutex) { cancel() }
			},
			text: "context canceled", is: []error{context.Canceled},
		},
		{
			name: "the caller with a cause",
			ctx: func(parent context.Context) (context.Context, func(*etcdlock.Mutex)) {
				ctx, cancel := context.WithCancelCause(parent)
				return ctx, func(*etcdlock.Mutex) { cancel(closing) }
			},
			text: "the shop is closing", is: []error{context.Canceled, closing},
		},
		{
			name: "the caller with a cause that wraps",
			ctx: func(parent context.Context) (context.Context, func(*etcdlock.Mutex)) {
				ctx, cancel := context.WithCancelCause(parent)
				return ctx, func(*etcdlock.Mutex) { cancel(fmt.Errorf("at night: %w", closing)) }
			},
			text: "at night: the shop is closing", is: []error{context.Canceled, closing},
		},
		{
			name: "the end of another hold that the context comes from",
			ctx: func(parent context.Context) (context.Context, func(*etcdlock.Mutex)) {
				ctx, cancel := context.WithCancelCause(parent)
				return ctx, func(*etcdlock.Mutex) { cancel(etcdlock.ErrUnlocked) }
			},
			text: "unlocked", is: []error{context.Canceled}, // the error is not about that hold
		},
		{
			name: "Close",
			ctx: func(parent context.Context) (context.Context, func(*etcdlock.Mutex)) {
				return parent, func(mu *etcdlock.Mutex) { require.NoError(t, mu.Close(context.Background())) }
			},
			text: "closed", is: []error{etcdlock.ErrClosed},
		},
	}
	for where, sameSession := range map[string]bool{"across Sessions": false,
		"in the local line": true} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			l := newLine(t, sameSession)
			place := `etcdlock: lock "orders/42": 3rd in line, held by ` + theHolder(t, sameSession) + `: `
			for _, c := range cases {
				t.Run("ended by "+c.name, func(t *testing.T) {
					l.isOfTwo(t) // etcd may not have removed the key of the wait before yet
					queued := make(chan int, 1)
					trace := etcdlock.WithTrace(&etcdlock.Trace{
						Queued: func(_ context.Context, e etcdlock.QueuedEvent) { queued <- e.Ahead },
					})
					mu := contract.MutexOf(t, l.third, "orders/42", trace)
					ctx, end := c.ctx(t.Context())
					waited := contract.Async(func() error { return mu.Lock(ctx) })
					require.Equal(t, 2, <-queued)
					end(mu)
					err := <-waited
					require.EqualError(t, err, place+c.text)
					contract.RequireIs(t, err, append(c.is, etcdlock.ErrLocked)...)
					requireThird(t, l, err)
				})
			}
		})
	}
}

// requireThird checks what an error says about the two in l.
func requireThird(t *testing.T, l line, err error) {
	t.Helper()
	locked, ok := errors.AsType[*etcdlock.LockedError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, "orders/42", locked.Name)
	require.Equal(t, 2, locked.Ahead, "the holder and the one that waits")
	require.Equal(t, "orders/42", locked.Holder.Name)
	require.Equal(t, "api-7:1234", locked.Holder.Owner)
	require.Equal(t, l.holder.Key(), locked.Holder.Key)
	require.Equal(t, l.holder.Token(), locked.Holder.Token)
	require.WithinDuration(t, time.Now(), locked.Holder.Since, time.Hour)
}

func TestTryLockTellsHowManyStandBefore(t *testing.T) {
	t.Parallel()
	for where, sameSession := range map[string]bool{"across Sessions": false,
		"in the local line": true} {
		t.Run(where, func(t *testing.T) {
			l := newLine(t, sameSession)
			err := contract.MutexOf(t, l.third, "orders/42").TryLock(t.Context())
			held := `etcdlock: lock "orders/42": held by ` + theHolder(t, sameSession)
			require.EqualError(t, err, held+`, 1 waiting`)
			contract.RequireIs(t, err, etcdlock.ErrLocked)
			requireThird(t, l, err)
			err = contract.MutexOf(t, l.third, "orders/42").TryDo(t.Context(), nothing(t))
			contract.RequireIs(t, err, etcdlock.ErrLocked, etcdlock.ErrNotRun)
			requireThird(t, l, err)
		})
	}
}

// A claim behind a Session that itself waits stands behind all that the Session waits for,
// and behind those that wait in it.
func TestAPlaceBehindALocalWaiterCountsBothLines(t *testing.T) {
	t.Parallel()
	l := newLine(t, false)
	waits := map[int]func() error{}
	for _, before := range []int{2, 3, 4} {
		err := contract.MutexOf(t, l.third, "orders/42").TryLock(t.Context())
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, before, locked.Ahead)
		require.Equal(t, "api-7:1234", locked.Holder.Owner)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		waited := queueAs(ctx, t, l.third, before)
		waits[before] = func() error { cancel(); return <-waited }
	}
	require.Len(t, contract.WaitForLine(t, l.client, "orders/42", 3), 3, "a Session has one key")
	for _, before := range []int{4, 3, 2} { // the last one first, so that nobody moves up
		err := waits[before]()
		want := []error{context.Canceled, etcdlock.ErrLocked}
		if errors.Is(err, etcdlock.ErrUnavailable) {
			want = append(want, etcdlock.ErrUnavailable) // a slow etcd may owe the answer to a recheck
		}
		contract.RequireIs(t, err, want...)
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, before, locked.Ahead)
	}
}

// queueAs makes a Mutex of s wait for "orders/42". It returns once that waits behind ahead
// others.
func queueAs(
	ctx context.Context, t *testing.T, s *etcdlock.Session, ahead int,
) (waited <-chan error) {
	t.Helper()
	queued := make(chan int, 1)
	mu := contract.MutexOf(t, s, "orders/42", etcdlock.WithTrace(&etcdlock.Trace{
		Queued: func(_ context.Context, e etcdlock.QueuedEvent) { queued <- e.Ahead },
	}))
	waited = contract.Async(func() error { return mu.Lock(ctx) })
	require.Equal(t, ahead, <-queued)
	return waited
}

// A process that shuts down cancels all its waits at once. Another held the lock all the
// time. Each of the errors says so, whichever of the waiters moved up meanwhile.
func TestWaitersThatAreCancelledTogetherAllTellWhoHeld(t *testing.T) {
	t.Parallel()
	l := newLine(t, false)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var waits []<-chan error
	for i := range 20 {
		waits = append(waits, queueAs(ctx, t, l.third, 2+i))
	}
	cancel()
	for _, waited := range waits {
		err := <-waited
		contract.RequireIs(t, err, context.Canceled, etcdlock.ErrLocked)
		locked, ok := errors.AsType[*etcdlock.LockedError](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, "api-7:1234", locked.Holder.Owner)
	}
}

func TestAForeignHolderIsNamedByItsKey(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := t.Context()
	lease, err := client.Grant(ctx, 60)
	require.NoError(t, err)
	defer client.Revoke(context.Background(), lease.ID)
	key := fmt.Sprintf("orders/42/%x", lease.ID)
	put, err := client.Put(ctx, key, "", clientv3.WithLease(lease.ID))
	require.NoError(t, err)

	err = contract.NewMutex(t, client, "orders/42").TryLock(ctx)
	require.EqualError(t, err, fmt.Sprintf("etcdlock: lock \"orders/42\": held by %q", key))
	locked, ok := errors.AsType[*etcdlock.LockedError](err)
	require.True(t, ok)
	want := etcdlock.Contender{Name: "orders/42", Key: key, Token: put.Header.Revision,
		Lease: lease.ID, Mode: "exclusive", Holds: true}
	require.Equal(t, &etcdlock.LockedError{Name: "orders/42", Holder: want, Ahead: 1}, locked)
}

// A wait for etcd itself ends with the cause of the context, says why etcd did not serve
// it, and does not count as a wait for another holder. The deadline of one attempt is the
// library's own affair: a caller who cancelled must not read about a deadline.
func TestAWaitForEtcdTellsTheCauseAndEtcdsLastError(t *testing.T) {
	t.Parallel()
	closing := errors.New("the shop is closing")
	lanes := make(chan struct{}, 4) // each has an etcd of its own
	for about, c := range map[string]struct {
		fault   etcdtest.Fault
		strikes int // after which etcd has given its reason
		says    string
	}{
		"the lease is not granted":   {etcdtest.DropRequest("LeaseGrant", codes.Unavailable), 2, ""},
		"the key is not put":         {etcdtest.DropRequest("Txn", codes.Unavailable), 2, "Unavailable"},
		"the key is put, perhaps":    {etcdtest.DropReply("Txn", codes.Unavailable), 2, "Unavailable"},
		"too many ask for a lease":   {etcdtest.DropRequest("LeaseGrant", codes.ResourceExhausted), 2, "ResourceExhausted"},
		"nobody answers for a lease": {etcdtest.SwallowRequest("LeaseGrant"), 2, ""},
		"nobody answers for a key":   {etcdtest.SwallowRequest("Txn"), 2, ""},
	} {
		for op, lock := range map[string]func(*etcdlock.Mutex, context.Context) error{
			"Lock": (*etcdlock.Mutex).Lock, "TryLock": (*etcdlock.Mutex).TryLock,
		} {
			t.Run(about+" to "+op, func(t *testing.T) {
				t.Parallel()
				lanes <- struct{}{}
				t.Cleanup(func() { <-lanes })
				faults := etcdtest.NewFaults(t)
				client := etcdtest.Start(t, 1).Client(t, contract.With(faults))
				contract.VerifyClean(t, client, "")
				told := make(chan struct{}) // an attempt had no answer
				tell := sync.OnceFunc(func() { close(told) })
				mu := contract.NewMutex(t, client, "a", etcdlock.WithTTL(2*time.Second),
					etcdlock.WithTrace(&etcdlock.Trace{Unavailable: func(_ context.Context,
						_ etcdlock.UnavailableEvent) {
						tell()
					}}))
				down := faults.Inject(c.fault)
				t.Cleanup(down.Heal)
				// The answer to an audit of the lease's keys would end the silence after it
				// was reported.
				t.Cleanup(faults.Inject(etcdtest.SwallowRequest("LeaseTimeToLive")).Heal)
				ctx, cancel := context.WithCancelCause(t.Context())
				// It has a deadline, so that TryLock's own bound does not end it.
				ctx, stop := context.WithTimeout(ctx, time.Hour)
				defer stop()
				waited := contract.Async(func() error { return lock(mu, ctx) })
				down.Await(c.strikes)
				if c.says != "ResourceExhausted" { // which is an answer
					receive(t, told, "to be told that etcd does not answer")
				}
				cancel(closing)
				err := <-waited
				require.Regexp(t, `^etcdlock: lock "a": .+: the shop is closing$`, err.Error())
				require.ErrorContains(t, err, c.says)
				want := []error{closing, context.Canceled}
				if c.says != "ResourceExhausted" {
					want = append(want, etcdlock.ErrUnavailable)
				}
				contract.RequireIs(t, err, want...)
			})
		}
	}
}

func TestALockOfAClosedClientSaysSo(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	mu := contract.NewMutex(t, client, "a")
	require.NoError(t, client.Close())
	for op, lock := range map[string]func(context.Context) error{"Lock": mu.Lock,
		"TryLock": mu.TryLock} {
		err := lock(t.Context())
		require.EqualError(t, err, `etcdlock: lock "a": the etcd client is closed`, op)
		contract.RequireIs(t, err)
	}
}

// A release that etcd did not confirm is ErrUnconfirmed. It is not a loss, since nobody
// knows.
func TestTheErrorsOfAReleaseThatIsNotConfirmed(t *testing.T) {
	t.Parallel()
	closing := errors.New("the shop is closing")
	faults := etcdtest.NewFaults(t)
	client := etcdtest.Start(t, 1).Client(t, contract.With(faults))
	contract.VerifyClean(t, client, "")

	t.Run("by Unlock", func(t *testing.T) {
		mu := contract.NewMutex(t, client, "a")
		require.NoError(t, mu.Lock(t.Context()))
		hold := mu.Context(t.Context())
		lost := faults.Inject(etcdtest.SwallowRequest("Txn").When(etcdtest.Deletes))
		defer lost.Heal()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		unlocked := contract.Async(func() error { return mu.Unlock(ctx) })
		lost.Await(1)
		cancel(closing)
		err := <-unlocked
		require.ErrorContains(t, err, `etcdlock: unlock "a": release not confirmed: `)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.ErrorIs(t, err, closing)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		require.NotErrorIs(t, err, etcdlock.ErrNotHeld)
		require.Equal(t, etcdlock.ErrUnlocked, context.Cause(hold))
		contract.RequireIs(t, mu.Unlock(t.Context()), etcdlock.ErrNotHeld)
	})
	t.Run("by Do", func(t *testing.T) {
		full := errors.New("disk full")
		mu := contract.NewMutex(t, client, "a")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		lost := faults.Inject(etcdtest.SwallowRequest("Txn").When(etcdtest.Deletes))
		defer lost.Heal()
		done := contract.Async(func() error {
			return mu.Do(ctx, func(context.Context) error { return full })
		})
		lost.Await(1)
		cancel()
		err := <-done
		require.ErrorIs(t, err, full)
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
	})
	t.Run("by Close", func(t *testing.T) {
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(time.Second))
		require.NoError(t, err)
		require.NoError(t, contract.MutexOf(t, s, "a").Lock(t.Context()))
		lost := faults.Inject(etcdtest.SwallowRequest("LeaseRevoke"))
		defer lost.Heal()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		closed := contract.Async(func() error { return s.Close(ctx) })
		lost.Await(1)
		cancel()
		err = <-closed
		require.ErrorContains(t, err, "etcdlock: close")
		require.ErrorIs(t, err, etcdlock.ErrUnconfirmed)
		require.NotErrorIs(t, err, etcdlock.ErrLost)
		require.NoError(t, s.Close(t.Context()), "closed again")
	})
}

// What etcd refuses comes back as etcd's own error, at once.
func TestARefusalIsEtcdsOwnError(t *testing.T) {
	t.Parallel()
	faults := etcdtest.NewFaults(t)
	client := etcdtest.Start(t, 1).Client(t, contract.With(faults))
	contract.VerifyClean(t, client, "")
	mu := contract.NewMutex(t, client, "a")
	for _, method := range []string{"LeaseGrant", "Txn"} {
		for op, lock := range map[string]func(context.Context) error{"Lock": mu.Lock,
			"TryLock": mu.TryLock} {
			t.Run(method+" of "+op, func(t *testing.T) {
				refused := faults.Inject(etcdtest.DropRequest(method, codes.PermissionDenied))
				defer refused.Heal()
				err := lock(t.Context())
				require.ErrorContains(t, err, `etcdlock: lock "a": `)
				require.ErrorContains(t, err, "PermissionDenied")
				contract.RequireIs(t, err)
				require.Equal(t, 1, refused.Strikes(), "one attempt")
			})
		}
	}
	require.NotErrorIs(t, mu.Lock(t.Context()), rpctypes.ErrPermissionDenied)
	require.NoError(t, mu.Unlock(t.Context()))
}
