//go:build !race

package lease

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// What a Session takes while nothing happens: without a hold no goroutine, with one that of its
// watch, and so many bytes of heap, with those of the etcd in memory. (Stacks are counted as
// goroutines: those that have ended leave some 10 KB a Session, or none, as it comes. docs/scale.md
// has what a Session takes in all.)
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
		assert.Less(t, (more-bytes)/(sessions-1), 17_000)

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
		assert.Less(t, (more-bytes)/names, 2300) // the etcd in memory has 900 of them
		runtime.KeepAlive(all)
	})
}

// takes is how many bytes of heap are in use, and how many goroutines the library has.
func takes() (inUse, goroutines int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var all bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&all, 2)
	return int(m.HeapAlloc),
		strings.Count(all.String(), "created by github.com/etcdlock/etcdlock/internal/guard.")
}
