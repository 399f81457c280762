// Package tusd_test runs adapters/tusd on etcd's own server, and in processes.
package tusd_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlocktusd "github.com/etcdlock/etcdlock/adapters/tusd"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// serverEnv makes this binary a server of tusd: the endpoint of etcd.
const serverEnv = "ETCDLOCK_TUSD_ETCD"

func TestMain(m *testing.M) {
	if endpoint := os.Getenv(serverEnv); endpoint != "" {
		contract.Must(serve(endpoint, os.Args[1]))
		return
	}
	os.Exit(m.Run())
}

func newLocker(t *testing.T, client *clientv3.Client) *etcdlocktusd.Locker {
	t.Helper()
	l, err := etcdlocktusd.NewLocker(contract.NewSession(t, client), "uploads/")
	require.NoError(t, err)
	return l
}

func newLock(t *testing.T, l handler.Locker, id string) handler.Lock {
	t.Helper()
	lock, err := l.NewLock(id)
	require.NoError(t, err)
	return lock
}

// unasked is the requestUnlock of a lock that nobody else wants.
func unasked(t *testing.T) func() { return func() { t.Error("asked to unlock") } }

// The cases of the tests of tusd's filelocker and memorylocker, which cannot be imported, for two
// Lockers: of one process, and of two.
func TestTheCasesOfTusdsOwnTests(t *testing.T) {
	cases := []struct {
		name string
		test func(t *testing.T, a, b handler.Locker)
	}{
		{"LockAndUnlock", func(t *testing.T, a, b handler.Locker) {
			for _, l := range []handler.Locker{a, b} {
				lock := newLock(t, l, "one")
				require.NoError(t, lock.Lock(context.Background(), unasked(t)))
				require.NoError(t, lock.Unlock())
			}
		}},
		{"Timeout", func(t *testing.T, a, b handler.Locker) {
			first, second := newLock(t, a, "one"), newLock(t, b, "one")
			// it goes on though it may be asked
			require.NoError(t, first.Lock(context.Background(), func() {}))
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			require.Equal(t, handler.ErrLockTimeout, second.Lock(ctx, unasked(t)))
			require.NoError(t, first.Unlock())
		}},
		{"RequestUnlock", func(t *testing.T, a, b handler.Locker) {
			first, second := newLock(t, a, "one"), newLock(t, b, "one")
			var asked atomic.Bool
			require.NoError(t, first.Lock(context.Background(), func() {
				asked.Store(true)
				time.Sleep(10 * time.Millisecond) // what is left to do
				if err := first.Unlock(); err != nil {
					t.Error(err)
				}
			}))
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			require.NoError(t, second.Lock(ctx, unasked(t)))
			require.NoError(t, second.Unlock())
			require.True(t, asked.Load())
		}},
		{"NestedID", func(t *testing.T, a, b handler.Locker) { // filelocker has no directory for it
			outer, inner := newLock(t, a, "nested"), newLock(t, b, "nested/folder/upload")
			require.NoError(t, outer.Lock(context.Background(), unasked(t)))
			require.NoError(t, inner.Lock(context.Background(), unasked(t)))
			require.NoError(t, outer.Unlock())
			require.NoError(t, inner.Unlock())
		}},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			etcdtest.VerifyNoLeaks(t)
			adapters.InMemoryAndOnEtcd(t, func(t *testing.T, newClient func() *clientv3.Client) {
				contract.VerifyClean(t, newClient(), "")
				a, b := newLocker(t, newClient()), newLocker(t, newClient())
				t.Run("one process", func(t *testing.T) { tc.test(t, a, a) })
				t.Run("two processes", func(t *testing.T) { tc.test(t, a, b) })
			})
		})
	}
}

// serve is a server of tusd with its files in dir. It prints its address, and runs until it is
// killed.
func serve(endpoint, dir string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(2*time.Second))
	if err != nil {
		return err
	}
	locker, err := etcdlocktusd.NewLocker(session, "uploads/")
	if err != nil {
		return err
	}
	composer := handler.NewStoreComposer()
	filestore.New(dir).UseIn(composer)
	locker.UseIn(composer)
	h, err := handler.NewHandler(handler.Config{BasePath: "/", StoreComposer: composer})
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	return http.Serve(listener, h)
}

// A server is a process that runs tusd.
type server struct {
	url string
	*adapters.Process
}

// start starts a server. It ends with t.
func start(t *testing.T, etcd *etcdtest.Cluster, dir string) *server {
	t.Helper()
	p := adapters.Start(t, serverEnv+"="+etcd.Client(t).Endpoints()[0], dir)
	return &server{"http://" + p.Says(t) + "/", p}
}

// request makes a request of tus, and returns its answer.
func (s *server) request(t *testing.T, method, id string, header map[string]string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(contract.Patient(t), method, s.url+id, nil)
	require.NoError(t, err)
	r.Header.Set("Tus-Resumable", "1.0.0")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	require.NoError(t, answer.Body.Close())
	return answer
}

// upload makes an upload of 300 bytes, sends 100 of them, and leaves the request open. It waits
// until they have arrived.
func (s *server) upload(t *testing.T, dir string) (id string) {
	t.Helper()
	made := s.request(t, http.MethodPost, "", map[string]string{"Upload-Length": "300"})
	require.Equal(t, http.StatusCreated, made.StatusCode)
	id = made.Header.Get("Location")
	id = id[strings.LastIndex(id, "/")+1:]
	conn, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(s.url, "http://"), "/"))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	_, err = fmt.Fprintf(conn,
		"PATCH /%s HTTP/1.1\r\nHost: tus\r\nTus-Resumable: 1.0.0\r\nUpload-Offset: 0\r\n"+
			"Content-Type: application/offset+octet-stream\r\nContent-Length: 300\r\n\r\n%s", id,
		strings.Repeat("x", 100))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stored, err := os.Stat(dir + "/" + id)
		return err == nil && stored.Size() == 100
	}, contract.Patience, time.Millisecond)
	return id
}

// The connection of a client broke, and its server does not know yet. The client asks another
// machine how far it got: that one has the request of the first end, and tells.
func TestAnUploadIsResumedOnAnotherMachine(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	first, second := start(t, etcd, dir), start(t, etcd, dir)
	id := first.upload(t, dir)
	answer := second.request(t, http.MethodHead, id, nil)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "100", answer.Header.Get("Upload-Offset"))
}

// A machine is killed within an upload. Its locks are free when its lease is over.
func TestAnUploadIsResumedWhenItsMachineIsKilled(t *testing.T) {
	etcd, dir := etcdtest.Start(t, 1), t.TempDir()
	first, second := start(t, etcd, dir), start(t, etcd, dir)
	id := first.upload(t, dir)
	require.NoError(t, first.Process.Process.Kill())
	answer := second.request(t, http.MethodHead, id, nil)
	require.Equal(t, http.StatusOK, answer.StatusCode)
	require.Equal(t, "100", answer.Header.Get("Upload-Offset"))
}
