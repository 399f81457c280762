package board

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A contender that goes is remembered: since when it stood in line, since when it held, and why it
// went.
func TestTheBoardRemembersHolds(t *testing.T) {
	b := New()
	a, c, d, e := key("job", "", 1), key("job", "", 2), key("job", "", 3), key("job", "", 4)
	b.Read(at(0), 5, []*mvccpb.KeyValue{kv(a, 4, 1, owned("a", -60))})
	asked := kv(a, 4, 1, `{"owner":"a","host":"vm","pid":7,"recallable":true,`+
		`"since":"2026-11-27T11:59:00Z","recall":{"id":"1","by":"ops","grace_ms":30000}}`)
	asked.ModRevision, asked.Version = 7, 2
	b.Apply(at(10), 7, []*clientv3.Event{put(kv(c, 6, 2, owned("c", 10))), put(asked)})
	b.Apply(at(11), 8, []*clientv3.Event{put(kv(d, 8, 3, owned("d", 11)))})
	b.Apply(at(20), 9, []*clientv3.Event{deleted(a), deleted(d)})

	h := b.History(at(20), 0)
	require.Equal(t, at(0), h.Since)
	require.Empty(t, h.Blind)
	require.ElementsMatch(t, []Past{
		{Lock: "job", Owner: "a (vm:7)", Token: 4, Seen: at(0), Holds: true, Recalled: at(10),
			By: "ops", Gone: at(20)},
		{Lock: "job", Owner: "d (vm:7)", Token: 8, Seen: at(11), Gone: at(20)},
	}, h.Past)

	// c goes as its lease ends: it was late, and is over.
	b.Heard(at(30), 2, 3, 15)
	b.Apply(at(31), 10, []*clientv3.Event{put(kv(e, 10, 4, owned("e", 31)))})
	b.Apply(at(34), 11, []*clientv3.Event{deleted(c)})
	b.Heard(at(35), 4, 14, 15)
	b.Breaks(e, true)
	b.Apply(at(40), 12, []*clientv3.Event{deleted(e)})
	require.Equal(t, []Past{
		{Lock: "job", Owner: "c (vm:7)", Token: 6, Seen: at(10), Holds: true, Held: at(20), Gone: at(34),
			End: Lost},
		{Lock: "job", Owner: "e (vm:7)", Token: 10, Seen: at(31), Holds: true, Held: at(34), Gone: at(40),
			End: Broken},
	}, b.History(at(40), h.Next).Past)
	require.Empty(t, b.History(at(40), h.Next+2).Past)

	// A break that has failed breaks nothing. Vast texts are not remembered.
	f := key("job", "", 5)
	long := owned("a"+strings.Repeat("é", mostText*3/4), 50)
	b.Apply(at(50), 13, []*clientv3.Event{put(kv(f, 13, 5, long))})
	b.Breaks(f, true)
	b.Breaks(f, false)
	vast := key(strings.Repeat("n", mostText+1), "", 6)
	b.Apply(at(51), 14, []*clientv3.Event{put(kv(vast, 14, 6, owned("v", 51)))})
	b.Apply(at(52), 15, []*clientv3.Event{deleted(f), deleted(vast)})
	past := b.History(at(52), h.Next+2).Past
	require.Len(t, past, 1)
	require.Equal(t, Released, past[0].End)
	require.Equal(t, "a"+strings.Repeat("é", mostText/2-1), past[0].Owner)
	require.Empty(t, b.broken)
}

// A lease is over if it was late and would have ended. One that was only late, or of which nothing
// was heard for long, tells nothing.
func TestALeaseIsOver(t *testing.T) {
	for _, row := range []struct {
		left, granted int64
		seconds       int
		want          bool
	}{
		{0, 0, 1, false}, {10, 15, 12, false}, {3, 15, 1, false}, {3, 15, 2, true}, {0, 15, 0, true},
		{-1, 15, 1, true}, {3, 15, 16, false}, {-1, 0, 0, false},
	} {
		l := Lease{row.left, row.granted, at(0)}
		require.Equal(t, row.want, l.over(at(row.seconds)), row)
	}
}

// What went while etcd did not answer is not known, and the board says when that was.
func TestTheBoardSaysWhenItWasBlind(t *testing.T) {
	b := New()
	b.Read(at(0), 1, nil)
	b.Trouble(at(30), "etcd did not answer")
	b.Trouble(at(40), "")
	b.Trouble(at(50), "etcd did not answer")
	b.Read(at(100), 9, nil)
	h := b.History(at(100), 0)
	require.Equal(t, at(0), h.Since)
	require.Equal(t, []Blind{{at(40), at(100)}}, h.Blind)
	require.Len(t, b.History(at(650), 0).Blind, 1, "its end is not ten minutes ago")
	h = b.History(at(1000), 0)
	require.Equal(t, at(400), h.Since, "ten minutes ago")
	require.Empty(t, h.Blind)
	for n := range 2 * mostBlind {
		b.Read(at(2000+n), 9, nil)
	}
	require.Len(t, b.History(at(2100), 0).Blind, mostBlind)
}

// However many locks there are and however often they change hands, as many contenders are
// remembered, and the board says from when it knows.
func TestTheHistoryIsBounded(t *testing.T) {
	b := New()
	b.Read(at(0), 1, nil)
	rev := int64(1)
	for turn := range 3 {
		for n := range mostPast {
			rev++
			k := key(fmt.Sprint("lock/", n), "", int(rev))
			now := at(0).Add(time.Duration(rev) * time.Millisecond)
			b.Apply(now, rev, []*clientv3.Event{put(kv(k, rev, 1, "")), deleted(k)})
			if n%1000 == 0 {
				b.Tick(now)
			}
		}
		require.Len(t, b.history.ring, mostPast, turn)
	}
	now := at(0).Add(time.Duration(rev) * time.Millisecond)
	h := b.History(now, 0)
	require.Len(t, h.Past, mostPast)
	require.Equal(t, now.Add(-mostPast*time.Millisecond), h.Since)
	require.Equal(t, rev, h.Past[mostPast-1].Token)
	require.Equal(t, rev-mostPast+1, h.Past[0].Token)
	require.Len(t, b.History(now, h.Next-7).Past, 7)
	require.Empty(t, b.History(now.Add(2*Memory), 0).Past)
}

// What went at the moment from which the board knows is known.
func TestTheHistoryKnowsFromItsBeginning(t *testing.T) {
	b := New()
	b.Read(at(0), 1, nil)
	var events []*clientv3.Event
	for n := range int64(mostPast + 1) {
		k := key(fmt.Sprint("lock/", n), "", int(n))
		events = append(events, put(kv(k, n+2, 1, "")), deleted(k))
	}
	b.Apply(at(5), mostPast+2, events)
	h := b.History(at(6), 0)
	require.Equal(t, at(5), h.Since)
	require.Len(t, h.Past, mostPast)
}

// Of a long owner only the beginning stays in memory.
func TestTheHistoryKeepsNoLongOwner(t *testing.T) {
	const contenders, long = 4000, 2000
	b := New()
	b.Read(at(0), 1, nil)
	value := fmt.Sprintf(`{"owner":%q,"host":%q,"pid":7}`, strings.Repeat("o", long),
		strings.Repeat("h", long))
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	for n := range int64(contenders) {
		k := key("job", "", int(n))
		b.Apply(at(1), n+2, []*clientv3.Event{put(kv(k, n+2, 1, value)), deleted(k)})
	}
	grown := heap() - before
	require.Len(t, b.History(at(2), 0).Past, contenders)
	require.Less(t, grown, contenders*long)
}
