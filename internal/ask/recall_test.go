package ask_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/ask"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const token = 7

// entry is the key of a contender as it is read at a revision.
func entry(t *testing.T, recallable bool, mod int64) line.Entry {
	t.Helper()
	text, err := line.NewText(line.Value{Owner: "api", Recallable: recallable}, line.Exclusive)
	require.NoError(t, err)
	value := text.Since(time.Now(), time.Second, 0)
	e := line.EntryOf(&mvccpb.KeyValue{
		Key: []byte("n/2a"), Value: []byte(value), CreateRevision: token, ModRevision: mod, Lease: 42,
	})
	require.Equal(t, recallable, e.Value().Recallable)
	return e
}

// asked is e once a request with a grace was put into it, at a revision.
func asked(t *testing.T, e line.Entry, grace time.Duration, at int64) line.Entry {
	t.Helper()
	value, err := e.Recalled(line.Recall{ID: "earlier", Grace: grace})
	require.NoError(t, err)
	return e.With(value, at)
}

// What needs no request sends none.
func TestNothingIsWrittenForNothing(t *testing.T) {
	one := entry(t, true, token)
	other := one
	other.Rev++
	leaseless := one
	leaseless.Lease = 0
	for name, row := range map[string]struct {
		e       line.Entry
		listens bool
	}{
		"it is gone":                 {line.Entry{}, true},
		"it is another contender":    {other, true},
		"it does not listen":         {entry(t, false, token), false},
		"it stands in no line":       {leaseless, false},
		"it has as short a grace":    {asked(t, one, time.Second, 8), true},
		"it has one that is shorter": {asked(t, one, time.Millisecond, 8), true},
	} {
		now, listens, err := ask.Recall(token, row.e, line.Recall{ID: "x", Grace: time.Second},
			func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
				require.Fail(t, "sent", name)
				return 0, nil, nil
			})
		require.NoError(t, err, name)
		require.Equal(t, row.listens, listens, name)
		require.Equal(t, row.e, now, name)
	}
}

// A key that has changed since it was read is judged again, by what is there then.
func TestARequestIsWrittenOverWhatIsThere(t *testing.T) {
	read := entry(t, true, token)
	changed := asked(t, read, time.Minute, 8)
	sent := 0
	now, listens, err := ask.Recall(token, read, line.Recall{ID: "x", Grace: time.Second},
		func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) {
			if sent++; sent == 1 {
				return 0, []*mvccpb.KeyValue{{
					Key: []byte(read.Key), Value: []byte(changed.Stored()), CreateRevision: token,
					ModRevision: 8, Lease: 42,
				}}, nil
			}
			return 9, nil, nil
		})
	require.NoError(t, err)
	require.True(t, listens)
	require.Equal(t, 2, sent)
	require.EqualValues(t, 9, now.Mod)
	r, recalled := now.Recall()
	require.True(t, recalled)
	require.Equal(t, line.Recall{ID: "x", Grace: time.Second}, r)

	gone := func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) { return 0, nil, nil }
	now, _, err = ask.Recall(token, read, line.Recall{ID: "x"}, gone)
	require.NoError(t, err)
	require.Zero(t, now.Rev)

	refused := errors.New("refused")
	fails := func(ticket.Txn) (int64, []*mvccpb.KeyValue, error) { return 0, nil, refused }
	_, _, err = ask.Recall(token, read, line.Recall{ID: "x"}, fails)
	require.Equal(t, refused, err)
}
