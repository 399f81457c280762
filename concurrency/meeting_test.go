package concurrency_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/concurrency"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// A crossing is the KV of a client. Something happens before or after one of its requests.
type crossing struct {
	clientv3.KV

	mu     sync.Mutex
	left   int    // sides of requests that pass before
	happen func() // nil once it was called
}

// around has c between a client and etcd.
func (c *crossing) around(client *clientv3.Client) {
	c.KV = client.KV
	client.KV = c
}

// arm has happen called beside a later request, after n sides of requests.
func (c *crossing) arm(n int, happen func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.happen = n, happen
}

// disarm has nothing happen any more, and reports whether it would have.
func (c *crossing) disarm() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.happen != nil
	c.happen = nil
	return was
}

// side is one side of a request.
func (c *crossing) side() {
	c.mu.Lock()
	happen := c.happen
	if happen != nil && c.left > 0 {
		c.left--
		happen = nil
	} else {
		c.happen = nil
	}
	c.mu.Unlock()
	if happen != nil {
		happen()
	}
}

func (c *crossing) Get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	c.side()
	resp, err := c.KV.Get(ctx, key, opts...)
	c.side()
	return resp, err
}

func (c *crossing) Txn(ctx context.Context) clientv3.Txn { return crossingTxn{c.KV.Txn(ctx), c} }

type crossingTxn struct {
	clientv3.Txn
	c *crossing
}

func (t crossingTxn) If(cs ...clientv3.Cmp) clientv3.Txn {
	return crossingTxn{t.Txn.If(cs...), t.c}
}

func (t crossingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	return crossingTxn{t.Txn.Then(ops...), t.c}
}

func (t crossingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	return crossingTxn{t.Txn.Else(ops...), t.c}
}

func (t crossingTxn) Commit() (*clientv3.TxnResponse, error) {
	t.c.side()
	resp, err := t.Txn.Commit()
	t.c.side()
	return resp, err
}

// A meeting is a Session with a lock, a call of which meets an end.
type meeting struct {
	t       *testing.T
	etcd    *etcdlocktest.Etcd
	client  *clientv3.Client // of the Session
	others  *clientv3.Client
	c       crossing
	s       *concurrency.Session
	endsAll context.CancelFunc // of the context of the Session
	m       *concurrency.Mutex
	ahead   *concurrency.Mutex // of another process, nil if none holds the lock; with its key
	theirs  string
	ctx     context.Context // of the call
	endsIt  context.CancelFunc
}

// behind has another process hold the lock.
func (w *meeting) behind() {
	w.ahead = lock(w.t, open(w.t, w.others), "a")
	w.theirs = w.ahead.Key()
}

// keys are those of the Session's lock in etcd.
func (w *meeting) keys() (keys []string) {
	for _, key := range keysOf(w.t, w.others, "a/") {
		if key != w.theirs {
			keys = append(keys, key)
		}
	}
	return keys
}

// An end is of what a call relies on.
type end struct {
	name string
	does func(w *meeting)

	ofCall  bool // not of the Session
	away    bool // etcd is, for a time, so a key may stay until its lease expires
	forGood bool // and comes back no more
	closes  bool // what is locked is released beside the call's return
}

var ends = []end{
	{name: "Close", closes: true, does: func(w *meeting) { go w.s.Close() }},
	{name: "Orphan", does: func(w *meeting) { w.s.Orphan() }},
	{name: "the Session's context ends", does: func(w *meeting) { w.endsAll() }},
	{name: "the call's context ends", ofCall: true, does: func(w *meeting) { w.endsIt() }},
	{name: "the keys are deleted", does: func(w *meeting) {
		for _, key := range w.keys() {
			w.etcd.Delete(key)
		}
	}},
	{name: "the lease is revoked", does: func(w *meeting) { w.etcd.Expire(w.s.Lease()) }},
	{name: "the trust ends", away: true, does: func(w *meeting) {
		heal := w.etcd.Cut(w.client)
		time.Sleep((ttl - 2) * time.Second)
		heal()
	}},
	{name: "the call's context ends while etcd is away", ofCall: true, away: true,
		does: func(w *meeting) {
			time.AfterFunc(10*time.Second, w.etcd.Cut(w.client))
			w.endsIt()
		}},
	{name: "the client is closed", away: true, forGood: true,
		does: func(w *meeting) { w.client.Close() }},
}

// A call is what meets the end.
type call struct {
	name    string
	ahead   bool // another process holds the lock
	held    bool // the Session does
	does    func(w *meeting) error
	unlocks bool
}

var calls = []call{
	{name: "Lock", does: func(w *meeting) error { return w.m.Lock(w.ctx) }},
	{name: "Lock behind another", ahead: true,
		does: func(w *meeting) error { return w.m.Lock(w.ctx) }},
	{name: "TryLock", does: func(w *meeting) error { return w.m.TryLock(w.ctx) }},
	{name: "TryLock behind another", ahead: true,
		does: func(w *meeting) error { return w.m.TryLock(w.ctx) }},
	{name: "Unlock", held: true, unlocks: true,
		does: func(w *meeting) error { return w.m.Unlock(w.ctx) }},
}

// When an end comes. The other ones are after so many sides of requests of the call.
const (
	waiting = -2 // the call waits, if it does
	turning = -1 // its turn has just come
)

// Whatever ends, and wherever a call is then: nil says that the lock is held, another error is one
// that etcd's package has, and after it no key blocks others.
func TestACallThatMeetsAnEndTellsTheTruth(t *testing.T) {
	for _, call := range calls {
		for _, end := range ends {
			t.Run(call.name+", "+end.name, func(t *testing.T) {
				when := 0
				if call.ahead {
					when = waiting
				}
				for met := true; met && !t.Failed(); when++ {
					t.Run(fmt.Sprint(when), func(t *testing.T) {
						met = false
						inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
							met = meet(t, etcd, call, end, when)
						})
					})
				}
			})
		}
	}
}

// What is under way when a Session is orphaned goes on: the lease is not revoked, so a key that is
// left would block others until it expires.
func TestAnOrphanedSessionRemovesTheKeysOfCallsThatEnd(t *testing.T) {
	for range 20 { // the calls end in any order
		inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
			client, others := etcd.Client(), etcd.Client()
			waits, unlocks := open(t, client), open(t, client)
			lock(t, open(t, others), "a")
			waiting, held := later(concurrency.NewMutex(waits, "a")), lock(t, unlocks, "b")
			etcd.Delay(client, 2*time.Second)
			waits.Orphan()
			unlocking := make(chan error, 1)
			go func() { unlocking <- held.Unlock(context.Background()) }()
			time.Sleep(time.Second)
			unlocks.Orphan()
			require.ErrorIs(t, <-waiting, concurrency.ErrSessionExpired)
			require.NoError(t, <-unlocking)
			time.Sleep(3 * time.Second)
			require.Len(t, keysOf(t, others, ""), 1)
		})
	}
}

// The read for the header finds that the key is gone before the watch tells it. As etcd's package,
// Lock then does not return nil.
func TestAKeyThatIsGoneAsItsTurnComesIsNoLock(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		w := &meeting{t: t, etcd: etcd, client: etcd.Client(), others: etcd.Client()}
		w.c.around(w.client)
		w.s = open(t, w.client)
		w.m = concurrency.NewMutex(w.s, "a")
		w.behind()
		done := later(w.m)
		key := w.keys()[0]
		w.c.arm(0, func() { w.etcd.Delete(key) })
		require.NoError(t, w.ahead.Unlock(t.Context()))
		require.Equal(t, concurrency.ErrSessionExpired, <-done)
		require.ErrorIs(t, context.Cause(w.s.Ctx()), etcdlock.ErrKeyDeleted)
		require.Equal(t, concurrency.ErrLockReleased, w.m.Unlock(t.Context()))
	})
}

// Or the watch comes first: the goroutine of the Lock runs when the hold is lost, and has no key.
func TestAKeyThatIsDeletedAsItsTurnComesEndsTheSession(t *testing.T) {
	for yields := range 1000 {
		inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
			w := &meeting{t: t, etcd: etcd, others: etcd.Client()}
			w.s = open(t, etcd.Client())
			w.m = concurrency.NewMutex(w.s, "a")
			w.behind()
			done := later(w.m)
			key := w.keys()[0]
			w.etcd.Delete(w.theirs)
			for range yields % 100 {
				runtime.Gosched()
			}
			w.etcd.Delete(key)
			err := <-done
			if err == nil && w.owns() { // it has queued anew
				require.NoError(t, w.m.Unlock(t.Context()))
				return
			}
			if err != nil {
				require.Equal(t, concurrency.ErrSessionExpired, err)
				require.True(t, isOver(w.s))
			}
			<-w.s.Done()
			require.ErrorIs(t, context.Cause(w.s.Ctx()), etcdlock.ErrKeyDeleted)
		})
	}
}

// Its context is another one, which goes on. But nothing renews its lease any more.
func TestASessionEndsWithItsClientWhateverItsContext(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, etcd *etcdlocktest.Etcd) {
		client := etcd.Client()
		s := open(t, client, concurrency.WithContext(context.Background()))
		m := lock(t, s, "a")
		require.NoError(t, m.Unlock(t.Context()))
		client.Close()
		require.Equal(t, concurrency.ErrSessionExpired, m.TryLock(t.Context()))
	})
}

// meet has a call meet an end, and reports whether it has.
func meet(t *testing.T, etcd *etcdlocktest.Etcd, call call, end end, when int) bool {
	w := &meeting{t: t, etcd: etcd, client: etcd.Client(), others: etcd.Client()}
	w.c.around(w.client)
	var all context.Context
	all, w.endsAll = context.WithCancel(context.Background())
	t.Cleanup(w.endsAll)
	w.ctx, w.endsIt = context.WithCancel(context.Background())
	defer w.endsIt()
	w.s = open(t, w.client, concurrency.WithContext(all))
	w.m = concurrency.NewMutex(w.s, "a")
	if call.held {
		require.NoError(t, w.m.Lock(t.Context()))
	}
	if call.ahead {
		w.behind()
	}
	var ended time.Time
	happens := func() {
		end.does(w)
		ended = time.Now()
	}
	if when >= 0 {
		w.c.arm(when, func() {
			happens()
			synctest.Wait()
			w.owns()
		})
	}
	var over bool
	var returned time.Time
	done := make(chan error, 1)
	go func() {
		err := call.does(w)
		over, returned = isOver(w.s), time.Now()
		done <- err
	}()
	time.Sleep(time.Millisecond)
	if when == waiting {
		happens()
	}
	if call.ahead {
		time.Sleep(3 * time.Second)
		require.NoError(t, w.ahead.Unlock(t.Context()))
	}
	if when == turning {
		happens()
	}
	err := <-done
	if when >= 0 && w.c.disarm() {
		return false
	}
	if end.ofCall {
		require.LessOrEqual(t, returned.Sub(ended), 100*time.Millisecond)
	}
	if err == nil && !call.unlocks {
		require.False(t, over && when != turning, "it is locked in a Session that has ended")
		require.NotEmpty(t, w.m.Key())
		require.NotZero(t, w.m.Header().Revision)
	}
	w.judge(call, end, err)
	time.Sleep((ttl + 1) * time.Second) // what is left to expire has
	return true
}

// owns reports what etcd says of the lock's IsOwner.
func (w *meeting) owns() bool {
	resp, err := w.others.Txn(context.Background()).If(w.m.IsOwner()).Commit()
	require.NoError(w.t, err, "IsOwner")
	return resp.Succeeded
}

// judge judges what a call returned.
func (w *meeting) judge(call call, end end, err error) {
	t := w.t
	switch {
	case err == nil:
	case call.unlocks:
		require.True(t, err == concurrency.ErrLockReleased ||
			errors.Is(err, concurrency.ErrSessionExpired) && errors.Is(err, etcdlock.ErrLost) ||
			errors.Is(err, etcdlock.ErrUnconfirmed), "%v", err)
	case end.ofCall:
		require.True(t, err == context.Canceled || err == concurrency.ErrLocked, "%v", err)
	default:
		require.True(t, err == concurrency.ErrSessionExpired || err == concurrency.ErrLocked ||
			errors.Is(err, concurrency.ErrSessionExpired) && strings.Contains(err.Error(), "orphaned"),
			"%v", err)
	}
	began := time.Now()
	if !call.unlocks && err == nil {
		if end.forGood || !w.owns() {
			<-w.s.Done()
			require.Less(t, time.Since(began), 2*time.Second, "the loss is told late")
			return
		}
		err := w.m.Unlock(t.Context())
		require.True(t, err == nil || end.closes && err == concurrency.ErrLockReleased, "%v", err)
	}
	next := lock(t, open(t, w.others), "a")
	most := 100 * time.Millisecond
	if end.away {
		most = (ttl + 1) * time.Second
	}
	require.Less(t, time.Since(began), most, "a key was left")
	require.NoError(t, next.Unlock(t.Context()))
	require.Equal(t, concurrency.ErrLockReleased, w.m.Unlock(t.Context()))
}
