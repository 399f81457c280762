package line_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
