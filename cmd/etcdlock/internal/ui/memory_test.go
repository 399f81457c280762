package ui

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
)

// 10,000 locks that change hands 1,000 times a second take 40 MB at most: in top, which has only
// the board, and in ui with pages that have just been opened. Once as many holds are remembered as
// may be, it grows no more. What is counted is what the collector leaves. A process takes about
// twice as much, by GOGC.
func TestTenThousandLocksThatChangeHands(t *testing.T) {
	const locks, turns, seconds, pages = 10_000, 1000, 30, 3
	s := &Server{Board: board.New()}
	start := time.Now()
	rev := int64(0)
	put := func(n int) *clientv3.Event {
		rev++
		value := fmt.Sprintf(`{"owner":"api-%d:1234","host":"vm-%[1]d.example.net","pid":1234,`+
			`"info":"10.0.0.7:8080","ttl":15,"since":%q}`, rev%5000, start.Format(time.RFC3339Nano))
		return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
			Key:            fmt.Appendf(nil, "orders/%06d/%08x-0000-4000-8000-%012[2]x", n, rev),
			CreateRevision: rev, ModRevision: rev, Version: 1, Lease: rev, Value: []byte(value)}}
	}
	before := live()
	held := make([][]byte, locks) // the keys; small beside the rest
	var kvs []*mvccpb.KeyValue
	for n := range locks {
		kvs = append(kvs, put(n).Kv)
		held[n] = kvs[n].Key
	}
	s.Board.Read(start, rev, kvs)
	kvs = nil
	atRest := live() - before

	end := start.Add(seconds * time.Second)
	var heard [pages]told
	full := 0 // memory once the history is full
	for n, now := 0, start; now.Before(end); now = now.Add(time.Second) {
		for range turns { // from one message to the next
			lock := n * 7919 % locks
			n++
			next := put(lock) // which waits until the holder goes
			gone := &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: &mvccpb.KeyValue{Key: held[lock]}}
			held[lock] = next.Kv.Key
			s.Board.Apply(now, rev, []*clientv3.Event{next, gone})
			s.Board.Heard(now, rev, 14, 15)
		}
		s.Board.Tick(now)
		for page := range pages {
			m := s.message(now, heard[page])
			for part := range m.parts() {
				require.NoError(t, json.NewEncoder(io.Discard).Encode(part))
			}
			heard[page] = m.told
		}
		if n == turns*seconds/2 {
			full = live() - before
		}
	}
	inTop := live() - before
	var all []message // of pages that are opened at the same time
	for range pages {
		m := s.message(end, told{})
		require.Len(t, m.Locks, locks)
		require.Len(t, m.Past, locks)
		require.Len(t, m.Leases, locks)
		all = append(all, m)
	}
	inUI := live() - before
	runtime.KeepAlive(held)
	runtime.KeepAlive(s)
	runtime.KeepAlive(all)
	t.Logf("%d locks: %d kB at rest, %d kB and then %d kB with %d turns, %d kB with %d pages", locks,
		atRest>>10, full>>10, inTop>>10, turns*seconds, inUI>>10, pages)
	require.Less(t, inTop, full+full/100)
	require.Less(t, inUI, locks*4000)
}

// live is how many bytes of memory are in use.
func live() int {
	runtime.GC()
	runtime.GC() // and what pools have kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
