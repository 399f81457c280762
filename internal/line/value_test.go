package line_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Rule 17: what people read with etcdctl get --prefix, to the byte.
func TestTheValueIsSmallJSON(t *testing.T) {
	text, err := line.NewText(line.Value{Owner: "api-7:1234", Host: "h", PID: 1}, line.Exclusive)
	require.NoError(t, err)
	at := time.Date(2024, 1, 2, 4, 4, 5, 600_000_000, time.FixedZone("CET", 3600))
	value := text.Since(at, 15*time.Second, 0)
	require.Equal(t, ours, value)
	v := valueOf([]byte(value))
	require.True(t, at.Equal(v.Since))
	v.Since = time.Time{}
	require.Equal(t, line.Value{Owner: "api-7:1234", Host: "h", PID: 1, TTL: 15}, v)

	text, err = line.NewText(line.Value{Owner: "api-7:1234", Host: "h", PID: 1}, line.Read)
	require.NoError(t, err)
	require.Equal(t, strings.Replace(ours, `"since"`, `"mode":"read","since"`, 1),
		text.Since(at, 15*time.Second, 0))
}

// What a value tells of the TTL, whoever has put it, and whatever else it says.
func TestAValueTellsTheTTLOfItsLease(t *testing.T) {
	text, err := line.NewText(line.Value{
		Owner: `"ttl":1,"until":1`, Host: `\"ttl":2,`, PID: 1, Info: `{"ttl":3,"until":"x"}`,
	}, line.Exclusive)
	require.NoError(t, err)
	now := time.Now()
	entry := func(value string) line.Entry {
		return line.EntryOf(&mvccpb.KeyValue{Key: []byte(name + "/" + idA), Value: []byte(value)})
	}
	ttl := func(e line.Entry) any {
		if ttl, ok := e.TTL(); ok {
			return ttl
		}
		return "unknown"
	}
	put := entry(text.Since(now, 15*time.Second, 0))
	require.Equal(t, 15*time.Second, ttl(put))
	recalled, err := put.Recalled(line.Recall{ID: "1", By: `"ttl":4,`, Grace: time.Second})
	require.NoError(t, err)
	require.Equal(t, 15*time.Second, ttl(entry(recalled)))
	informed, err := entry(recalled).Informed(`"ttl":5}`)
	require.NoError(t, err)
	require.Equal(t, 15*time.Second, ttl(entry(informed)))
	require.Equal(t, 9_000_000_000*time.Second,
		ttl(entry(text.Since(now, 9_000_000_000*time.Second, 0))))

	kept := entry(text.Kept(now, now.Add(time.Hour)))
	require.Zero(t, ttl(kept), "its hold has ended")
	require.True(t, now.Add(time.Hour).Equal(kept.Value().Until))
	require.True(t, now.Equal(kept.Value().Since))
	for _, foreign := range []string{
		"", "x", `{"owner":"old","since":"2024-01-02T03:04:05.6Z"}`, `{"ttl":0}`, `{"ttl":-1}`,
		`{"ttl":1.5e`, `{"ttl":"15"}`, `{"ttl":9000000001}`, `{"ttl":99999999999999999999}`, `{"ttl":15`,
	} {
		require.Equal(t, "unknown", ttl(entry(foreign)), foreign)
	}
}

// What a range of the oldest keys tells of the TTLs of all that stand before a key.
func TestTTLsAreToldOfAllBeforeTheKey(t *testing.T) {
	text, err := line.NewText(line.Value{Owner: "o"}, line.Exclusive)
	require.NoError(t, err)
	put := func(id string, rev int64, ttl time.Duration) *mvccpb.KeyValue {
		e := kv(id, rev, 1)
		e.Value = []byte(text.Since(time.Now(), ttl, 0))
		return e
	}
	first, second := put(idA, 7, 15*time.Second), put(idB, 8, 30*time.Second)
	own := line.Entry{Key: name + "/" + idC, Rev: 9, Lease: 1}
	for _, row := range []struct {
		promise string
		read    *pb.RangeResponse
		longest time.Duration
		untold  bool
	}{
		{"all there are", rangeOf(2, false, keys{first, second}), 30 * time.Second, false},
		{"all before it", rangeOf(9, true, keys{first, second, put(idC, 9, time.Hour)}),
			30 * time.Second, false},
		{"not all before it", rangeOf(9, true, keys{first, second}), 30 * time.Second, true},
		{"one that tells none", rangeOf(2, false, keys{first, kv(idB, 8, 1)}), 15 * time.Second, true},
		{"none is before it", rangeOf(1, false, keys{put(idC, 9, time.Hour)}), 0, false},
		{"there is none", rangeOf(0, false, nil), 0, false},
	} {
		t.Run(row.promise, func(t *testing.T) {
			require.Equal(t, line.TTLs{Longest: row.longest, Untold: row.untold},
				line.TTLsBefore(name, own, row.read))
		})
	}
}
