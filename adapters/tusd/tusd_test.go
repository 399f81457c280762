package etcdlocktusd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlocktusd "github.com/etcdlock/etcdlock/adapters/tusd"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// lockerOf returns a Locker of a Session of its own, and the Session.
func lockerOf(t *testing.T, client *clientv3.Client) (*etcdlocktusd.Locker, *etcdlock.Session) {
	t.Helper()
	s := contract.NewSession(t, client)
	l, err := etcdlocktusd.NewLocker(s, "uploads/")
	require.NoError(t, err)
	return l, s
}

func newLock(t *testing.T, l *etcdlocktusd.Locker) handler.Lock {
	t.Helper()
	lock, err := l.NewLock("one")
	require.NoError(t, err)
	return lock
}

// unasked is the requestUnlock of a lock that nobody else wants.
func unasked(t *testing.T) func() { return func() { t.Error("asked to unlock") } }

// pairs runs a test with two Lockers: of one process, and of two.
func pairs(
	t *testing.T, test func(t *testing.T, etcd *etcdlocktest.Etcd, a, b *etcdlocktusd.Locker),
) {
	t.Run("one process", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			etcd := etcdlocktest.New(t)
			l, _ := lockerOf(t, etcd.Client())
			test(t, etcd, l, l)
		})
	})
	t.Run("two processes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			etcd := etcdlocktest.New(t)
			a, _ := lockerOf(t, etcd.Client())
			b, _ := lockerOf(t, etcd.Client())
			test(t, etcd, a, b)
		})
	})
}

func TestAnUploadIsLockedAndUnlocked(t *testing.T) {
	pairs(t, func(t *testing.T, _ *etcdlocktest.Etcd, a, b *etcdlocktusd.Locker) {
		for _, l := range []*etcdlocktusd.Locker{a, b, a} {
			lock := newLock(t, l)
			require.NoError(t, lock.Lock(t.Context(), unasked(t)))
			require.NoError(t, lock.Unlock())
			require.ErrorIs(t, lock.Unlock(), etcdlock.ErrNotHeld)
		}
	})
}

// A holder that takes its time keeps the lock, and the wait of the other one ends with its context.
func TestAWaitEndsWithItsContext(t *testing.T) {
	pairs(t, func(t *testing.T, _ *etcdlocktest.Etcd, a, b *etcdlocktusd.Locker) {
		first, second := newLock(t, a), newLock(t, b)
		var asked atomic.Int64
		require.NoError(t, first.Lock(t.Context(), func() { asked.Add(1) }))
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			require.Equal(t, handler.ErrLockTimeout, second.Lock(ctx, unasked(t)))
			cancel()
			require.Equal(t, handler.ErrLockTimeout, second.Lock(ctx, unasked(t)), "it has ended before")
		}
		require.EqualValues(t, 1, asked.Load())
		time.Sleep(2 * time.Hour) // the grace is over
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		require.Equal(t, handler.ErrLockTimeout, second.Lock(ctx, unasked(t)))
		cancel()
		require.NoError(t, first.Unlock())
		require.EqualValues(t, 1, asked.Load())
	})
}

// The holder is asked at once, whenever the wait begins, and the other one gets the lock when it
// has unlocked.
func TestTheHolderIsAskedAtOnce(t *testing.T) {
	for _, age := range []time.Duration{0, 100 * time.Millisecond, time.Minute} {
		pairs(t, func(t *testing.T, _ *etcdlocktest.Etcd, a, b *etcdlocktusd.Locker) {
			first, second := newLock(t, a), newLock(t, b)
			asked := make(chan time.Time, 1)
			require.NoError(t, first.Lock(t.Context(), func() {
				asked <- time.Now()
				time.Sleep(10 * time.Millisecond)
				require.NoError(t, first.Unlock())
			}))
			time.Sleep(age)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			begun := time.Now()
			require.NoError(t, second.Lock(ctx, unasked(t)))
			require.Less(t, (<-asked).Sub(begun), 100*time.Millisecond)
			require.Less(t, time.Since(begun), 200*time.Millisecond)
			require.NoError(t, second.Unlock())
		})
	}
}

// A lock that is lost asks for its Unlock, before another process gets it.
func TestALossAsksToUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		a, _ := lockerOf(t, client)
		b, _ := lockerOf(t, etcd.Client())
		first, second := newLock(t, a), newLock(t, b)
		asked := make(chan bool, 1)
		require.NoError(t, first.Lock(t.Context(), func() { asked <- true }))
		heal := etcd.Cut(client)
		require.NoError(t, second.Lock(t.Context(), unasked(t)))
		require.Len(t, asked, 1)
		heal()
		require.ErrorIs(t, first.Unlock(), etcdlock.ErrLost)
		time.Sleep(time.Minute)
		require.NoError(t, second.Unlock())
	})
}

// The locks of a machine that died are free when its lease is over.
func TestTheLocksOfADeadMachineComeFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		client := etcd.Client()
		session, err := etcdlock.NewSession(client) // the process dies: nobody closes it
		require.NoError(t, err)
		a, err := etcdlocktusd.NewLocker(session, "uploads/")
		require.NoError(t, err)
		require.NoError(t, newLock(t, a).Lock(t.Context(), func() {}))
		require.ErrorIs(t, client.Close(), context.Canceled)
		b, _ := lockerOf(t, etcd.Client())
		lock := newLock(t, b)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // tusd's AcquireLockTimeout
		defer cancel()
		require.NoError(t, lock.Lock(ctx, unasked(t)))
		require.NoError(t, lock.Unlock())
	})
}

func TestWhatALockCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		l, _ := lockerOf(t, etcd.Client())
		run := func() {
			lock := newLock(t, l)
			require.NoError(t, lock.Lock(t.Context(), unasked(t)))
			time.Sleep(500 * time.Millisecond)
			require.NoError(t, lock.Unlock())
			time.Sleep(10 * time.Second)
		}
		run() // with the grant of the Session's lease
		before := etcd.Counts()
		run()
		after := etcd.Counts()
		require.Equal(t, etcdlocktest.Counts{Range: 1, Txn: 2, Watch: 1}, etcdlocktest.Counts{
			Range: after.Range - before.Range, Txn: after.Txn - before.Txn,
			LeaseGrant: after.LeaseGrant - before.LeaseGrant, Watch: after.Watch - before.Watch,
		})
	})
}

func TestWhatALockerCannotUseIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := lockerOf(t, etcdlocktest.New(t).Client())
		for _, tc := range []struct {
			session *etcdlock.Session
			prefix  string
			opts    []etcdlock.Option
			says    string
		}{
			{nil, "uploads/", nil, "etcdlocktusd: nil Session"},
			{s, "up\x00loads/", nil, `"up\x00loads/"`},
			{s, "uploads/", []etcdlock.Option{nil}, "nil"},
		} {
			got, err := etcdlocktusd.NewLocker(tc.session, tc.prefix, tc.opts...)
			require.ErrorContains(t, err, tc.says)
			require.Nil(t, got)
		}
		lock := newLock(t, l)
		require.ErrorContains(t, lock.Lock(t.Context(), nil), "requestUnlock")
		var none context.Context
		require.ErrorContains(t, lock.Lock(none, func() {}), "nil context")
		require.ErrorIs(t, lock.Unlock(), etcdlock.ErrNotHeld)
	})
}

// IDs come from the URLs of clients, and tusd takes any but "". (handler.reValidUploadId bounds
// those that a hook chooses, not those of requests.) Different ones have different locks.
func TestEveryIDHasALock(t *testing.T) {
	pairs(t, func(t *testing.T, _ *etcdlocktest.Etcd, a, b *etcdlocktusd.Locker) {
		var held []handler.Lock
		for _, id := range []string{
			"a", "a/b", "a%2Fb", "a/", "/a", "a\x00b", "\xff", "ü", "0b5e+2~Tz.k-9_", "%",
		} {
			first, err := a.NewLock(id)
			require.NoError(t, err, "%q", id)
			require.NoError(t, first.Lock(t.Context(), func() {}), "%q", id)
			held = append(held, first)
			second, err := b.NewLock(id)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			require.Equal(t, handler.ErrLockTimeout, second.Lock(ctx, func() {}), "%q", id)
			cancel()
		}
		for _, lock := range held {
			require.NoError(t, lock.Unlock())
		}
	})
}

// Whatever a client asks for that is not there, the answer is that it is not there, as with tusd's
// own lockers.
func TestARequestForWhatIsNotThereIsNotFound(t *testing.T) {
	l, s := lockerOf(t, etcdlocktest.New(t).Client())
	composer := handler.NewStoreComposer()
	filestore.New(t.TempDir()).UseIn(composer)
	l.UseIn(composer)
	h, err := handler.NewHandler(handler.Config{BasePath: "/files/", StoreComposer: composer})
	require.NoError(t, err)
	head := func(path string) int {
		r := httptest.NewRequest(http.MethodHead, "http://tus.example/"+path, nil)
		r.Header.Set("Tus-Resumable", "1.0.0")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	for _, path := range []string{"0b5e", "%FF", "a%2F", strings.Repeat("n", 2000)} {
		require.Equal(t, http.StatusNotFound, head(path), path)
	}
	_, err = l.NewLock(strings.Repeat("n", 2000))
	require.ErrorContains(t, err, "2008 bytes, more than 1024")
	require.NoError(t, s.Close(t.Context()))
	require.Equal(t, http.StatusInternalServerError, head("0b5e"))
}

// A machine stops while an upload is open. It saves what has arrived, unlocks and closes its
// Session, and the upload goes on at another machine.
func TestAMachineThatStopsSavesItsUploads(t *testing.T) {
	etcd, dir := etcdlocktest.New(t), t.TempDir()
	session, err := etcdlock.NewSession(etcd.Client())
	require.NoError(t, err)
	h, err := newHandler(session, filestore.New(dir))
	require.NoError(t, err)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	over := contract.Async(func() error { return serve(ctx, listener, h, session) })
	at := "http://" + listener.Addr().String() + "/files/"
	send := func(method, url string, header http.Header, body io.Reader) (*http.Response, error) {
		request, err := http.NewRequestWithContext(t.Context(), method, url, body)
		if err != nil {
			return nil, err
		}
		request.Header = header
		request.Header.Set("Tus-Resumable", "1.0.0")
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return nil, err
		}
		return answer, answer.Body.Close()
	}
	made, err := send(http.MethodPost, at, http.Header{"Upload-Length": {"300"}}, nil)
	require.NoError(t, err)
	id := path.Base(made.Header.Get("Location"))

	body, arrives := io.Pipe()
	defer arrives.Close()
	patched := contract.Async(func() error {
		answer, err := send(http.MethodPatch, at+id, http.Header{
			"Upload-Offset": {"0"}, "Content-Type": {"application/offset+octet-stream"},
		}, body)
		if err != nil {
			return err
		}
		return errors.New(answer.Status)
	})
	_, err = arrives.Write(make([]byte, 100))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		saved, err := os.ReadFile(filepath.Join(dir, id)) // orders what tusd has written before the stop
		return err == nil && len(saved) == 100
	}, time.Minute, 10*time.Millisecond)
	stop()
	require.EqualError(t, <-patched, "503 Service Unavailable")
	require.NoError(t, <-over, "the locks were not released")

	_, b := lockerOf(t, etcd.Client())
	next, err := newHandler(b, filestore.New(dir))
	require.NoError(t, err)
	ask := httptest.NewRequest(http.MethodHead, at+id, nil)
	ask.URL.Path = id
	ask.Header.Set("Tus-Resumable", "1.0.0")
	told := httptest.NewRecorder()
	next.ServeHTTP(told, ask)
	require.Equal(t, "100", told.Header().Get("Upload-Offset"))
}
