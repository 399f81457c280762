package ticket_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// both are tickets for two names, with their keys.
func both(t *testing.T) (tickets []*ticket.Ticket, keys []string) {
	t.Helper()
	for _, n := range []string{"x", "y"} {
		k := ticket.New(n, mine, &ticket.Slot{}, func(name string) string {
			return line.Prefix(name) + ownID
		})
		tickets, keys = append(tickets, &k), append(keys, k.Key)
	}
	return tickets, keys
}

// keyAt is the result of a range of one key.
func keyAt(key string, rev, lease int64) *pb.RangeResponse {
	kv := kv(ownID, rev, lease)
	kv.Key = []byte(key)
	return read(kv)
}

// The put of several sends what each would send, in one transaction. That is 2 operations
// each, and 3 with the owner, so that 32 names are below etcd's limit of 128.
func TestWhatAPutOfSeveralSends(t *testing.T) {
	tickets, keys := both(t)
	e := ticket.EnterAll(tickets, false, false)
	txn := e.Txn("1", "2")
	require.Len(t, txn.If, 2)
	require.Len(t, txn.Then, 4)
	require.Len(t, txn.Else, 2)
	for i, key := range keys {
		require.Equal(t, key, string(txn.If[i].Key))
		require.NotNil(t, txn.Then[2*i+1].GetRequestPut())
		require.Equal(t, key, string(txn.Then[2*i+1].GetRequestPut().Key))
		require.Equal(t, key, string(txn.Else[i].GetRequestRange().Key))
	}
	e = ticket.EnterAll(tickets, true, false)
	txn = e.Txn("1", "2")
	require.Len(t, txn.If, 4, "that neither its key nor another is there, of each")
	for i, n := range []string{"x", "y"} {
		c := wireOf(txn, false).in.Compare[2*i+1]
		require.Equal(t, line.Prefix(n), string(c.Key))
		require.NotEmpty(t, c.RangeEnd)
	}
}

// It may not be sent together with another of one of these locks.
func TestATransactionOfSeveralLocksHasNoName(t *testing.T) {
	tickets, _ := both(t)
	several := ticket.EnterAll(tickets, false, false)
	require.Empty(t, several.Txn("", "").Name)
	require.Equal(t, ticket.Queued, several.Says(ticket.Answer{Succeeded: true, Revision: 20}))
	for _, k := range tickets {
		k.Hold()
	}
	both := tickets[0].Release(nil, tickets[1])
	require.Empty(t, both.Txn("").Name)

	one := held(t).Release(nil)
	require.NotEmpty(t, one.Txn("").Name)
}

// If a repeat finds keys, one transaction has put all of them, or the call gives all of them
// up.
func TestKeysOfUnequalRevisionsAreGivenUp(t *testing.T) {
	for _, row := range []struct {
		name string
		x, y int64 // create revisions that the repeat finds; 0 for a key that is not there
		is   ticket.Entrance
	}{
		{"both, as put", 20, 20, ticket.Queued},
		{"of two transactions", 20, 21, ticket.Useless},
		{"only the first", 20, 0, ticket.Useless},
		{"only the second", 0, 20, ticket.Useless},
	} {
		for _, try := range []bool{false, true} {
			tickets, keys := both(t)
			e := ticket.EnterAll(tickets, try, false)
			e.Txn("1", "2")
			require.Equal(t, ticket.Unsure, e.Says(ticket.Answer{Outcome: ticket.Unknown}))
			e.Txn("1", "2")
			a := ticket.Answer{Revision: 30}
			for i, rev := range []int64{row.x, row.y} {
				found := read()
				if rev != 0 {
					found = keyAt(keys[i], rev, mine)
				}
				a.Read = append(a.Read, found)
				if try { // the oldest of its line
					a.Read = append(a.Read, found)
				}
			}
			require.Equal(t, row.is, e.Says(a), "%s, try %v", row.name, try)
			if row.is == ticket.Queued && try {
				require.True(t, e.Ahead(0).Clear() && e.Ahead(1).Clear())
			}
		}
	}
}

// A put of several is Taken if one of the names is, and says which.
func TestAPutOfSeveralIsTakenByOne(t *testing.T) {
	tickets, _ := both(t)
	e := ticket.EnterAll(tickets, true, false)
	e.Txn("1", "2")
	require.Equal(t, ticket.Taken, e.Says(ticket.Answer{Revision: 30, Read: []*pb.RangeResponse{
		read(), read(), read(), keyAt(line.Prefix("y")+oldID, 3, mine+1),
	}}))
	require.Zero(t, e.Ahead(0).Count())
	require.Equal(t, 1, e.Ahead(1).Count())
}

// The release of several deletes all keys or none. The keys that the answer shows tell
// whether an earlier copy was carried out.
func TestWhatAReleaseOfSeveralSays(t *testing.T) {
	const lost = -1 // put over
	for _, row := range []struct {
		name    string
		x, y    int64 // as found
		copies  bool
		seen    bool
		verdict ticket.Verdict
		of      int
		reason  ticket.Reason
	}{
		{"the first is gone", 0, 20, false, false, ticket.Lost, 0, ticket.Deleted},
		{"the second is gone", 20, 0, false, false, ticket.Lost, 1, ticket.Deleted},
		{"the second is another", 20, 25, false, false, ticket.Lost, 1, ticket.Deleted},
		{"the second is put over", 20, lost, false, false, ticket.Lost, 1, ticket.Overwritten},
		{"all are gone", 0, 0, false, false, ticket.Lost, 0, ticket.Deleted},
		{"one is gone, whatever a copy did", 20, 0, true, false, ticket.Lost, 1, ticket.Deleted},
		{"all are gone, by a copy", 0, 0, true, false, ticket.Unconfirmed, 0, ticket.Untold},
		{"all are gone, by a copy, as was seen", 0, 0, true, true, ticket.Done, 0, ticket.Untold},
	} {
		tickets, keys := both(t)
		e := ticket.EnterAll(tickets, false, false)
		e.Txn("1", "2")
		require.Equal(t, ticket.Queued,
			e.Says(ticket.Answer{Succeeded: true, Revision: 20, Read: []*pb.RangeResponse{
				read(), read(),
			}}))
		for _, k := range tickets {
			require.EqualValues(t, 20, k.Rev())
			k.Hold()
		}
		r := tickets[0].Release(nil, tickets[1])
		txn := r.Txn("")
		require.Len(t, txn.If, 4)
		require.Len(t, txn.Then, 2)
		require.Len(t, txn.Else, 2)
		if row.copies {
			require.Equal(t, ticket.Again,
				r.Says(ticket.Answer{Outcome: ticket.Unknown}, ticket.Now{Certain: true}).Verdict)
		}
		a := ticket.Answer{Revision: 40}
		for i, rev := range []int64{row.x, row.y} {
			switch rev {
			case 0:
				a.Read = append(a.Read, read())
			case lost:
				a.Read = append(a.Read, keyAt(keys[i], 20, 0))
			default:
				a.Read = append(a.Read, keyAt(keys[i], rev, mine))
			}
		}
		f := r.Says(a, ticket.Now{Certain: true, Witnessed: row.seen})
		require.Equal(t, row.verdict, f.Verdict, row.name)
		require.Equal(t, row.reason, f.Reason, row.name)
		for i, rev := range []int64{row.x, row.y} {
			if rev == 0 || rev == 25 {
				require.Equal(t, ticket.Removed, tickets[i].State(), row.name)
			} else {
				require.Equal(t, ticket.Leaving, tickets[i].State(), row.name)
			}
		}
		if f.Verdict == ticket.Lost {
			require.Same(t, tickets[row.of], f.Of, row.name)
		}
	}
}
