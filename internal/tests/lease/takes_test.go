//go:build !race

package lease

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// What a Session takes while nothing happens: without a hold no goroutine, with one that of its
// watch, and so many bytes, with those of the etcd in memory. (These vary by a tenth, as dead
// goroutines leave stacks; docs/scale.md has those with etcd.)
func TestWhatASessionTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const sessions, names = 500, 5000
		etcd := fake.NewServer()
		client := etcd.Client("a")
		held := func(s *etcdlock.Session, name string) *etcdlock.Mutex {
			m, err := s.Mutex(name)
			require.NoError(t, err)
			require.NoError(t, m.Lock(t.Context()))
			return m
		}
		of := make([]*etcdlock.Session, sessions)
		holds := make([]*etcdlock.Mutex, sessions)
		session := func(i int) {
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
			of[i], holds[i] = s, held(s, fmt.Sprint(i))
		}
		settle := func() {
			time.Sleep(tests.RenewalPeriod + tests.RenewalPeriod/2)
			synctest.Wait()
		}
		session(0)
		settle()

		bytes, goroutines := takes()
		for i := range of[1:] {
			session(i + 1)
		}
		settle()
		more, running := takes()
		assert.Equal(t, sessions-1, running-goroutines, "the watches of the holds")
		t.Logf("a Session with a hold: %d bytes", (more-bytes)/(sessions-1))
		assert.Less(t, (more-bytes)/(sessions-1), mostBytes())

		for _, m := range holds {
			require.NoError(t, m.Unlock(t.Context()))
		}
		settle()
		_, running = takes()
		assert.Zero(t, running, "an idle Session")

		bytes, _ = takes()
		all := make([]*etcdlock.Mutex, names)
		for i := range all {
			all[i] = held(of[0], fmt.Sprint("name-", i))
		}
		settle()
		more, running = takes()
		assert.Zero(t, running, "one that holds many names")
		t.Logf("a held name: %d bytes", (more-bytes)/names)
		assert.Less(t, (more-bytes)/names, 4000)
		runtime.KeepAlive(all)
	})
}

// mostBytes is how many bytes a Session with a hold may take. Before 3.7 a watch of clientv3 takes
// more.
func mostBytes() int {
	if _, is := reflect.TypeFor[clientv3.Client]().FieldByName("Token"); !is {
		return 45_000
	}
	return 33_500
}

// takes is how many bytes are in use, of heap and stacks, and how many goroutines the library has.
func takes() (inUse, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	return int(m.HeapAlloc + m.StackInuse),
		strings.Count(all.String(), "created by github.com/etcdlock/etcdlock/internal/guard.")
}
