package lease

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// To know what a renewal is worth costs etcd nothing at rest, and otherwise at most one
// read per renewal. A lost renewal matters while etcd may still carry it out: for 5 s and
// two election timeouts. These are at most four thirds of the TTL, or five renewals here.
func TestADoubtCostsOneReadForARenewalAtMost(t *testing.T) {
	const most = 30
	silent := fake.Effect{DropReply: true}
	far := always(fake.Effect{DelayReply: 100 * time.Millisecond})
	for name, row := range map[string]struct {
		member  func(renewed int) uint64 // the member that answers
		network func(renewed int) fake.Effect
		term    func(renewed int) uint64
		most    int  // reads
		least   int  // reads
		lost    bool // etcd is away for so long that the hold is lost
	}{
		"at rest, one member":     {member: only(2)},
		"at rest, three in turn":  {member: inTurn(3)},
		"far away, one member":    {member: only(2), network: far},
		"far away, three in turn": {member: inTurn(3), network: far, most: most, least: 1},
		// Its stream ends, and the next one leads to another member.
		"far away, another member from the tenth on": {
			member: fromTenth(1, 2), network: far, most: 1, least: 1,
		},
		// The audits are more frequent then, and show as much as a read.
		"slow, three in turn": {
			member:  inTurn(3),
			network: always(fake.Effect{DelayReply: 6 * time.Second}), most: most,
		},
		"a renewal is lost":        {member: inTurn(3), network: nth(10, silent), most: 5, least: 1},
		"etcd is away":             {member: inTurn(3), network: always(silent), lost: true},
		"a new leader":             {member: inTurn(3), term: fromTenth(4, 5)},
		"etcd has an earlier term": {member: inTurn(3), term: fromTenth(4, 1), most: 1, least: 1},
	} {
		t.Run(name, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				mu := contract.MutexOf(t, tests.SessionOf(t, etcd, "a"), "x")
				hold := tests.LockWithin(t, mu, time.Second)
				before := len(etcd.Calls(fake.Range))
				var renewals atomic.Int64
				etcd.Intercept(func(c fake.Call) fake.Effect {
					var e fake.Effect
					if c.Method == fake.KeepAlive {
						renewals.Store(int64(c.N))
						if row.network != nil {
							e = row.network(c.N)
						}
					}
					renewed := int(renewals.Load())
					e.Edit = func(reply any) {
						switch reply := reply.(type) {
						case *clientv3.LeaseKeepAliveResponse:
							reply.MemberId = row.member(c.N)
							if row.term != nil {
								reply.RaftTerm = row.term(renewed)
							}
						case *clientv3.GetResponse:
							if row.term != nil {
								reply.Header.RaftTerm = row.term(renewed)
							}
						}
					}
					return e
				})
				for renewals.Load() < most && hold.Err() == nil {
					time.Sleep(time.Second)
				}
				reads := len(etcd.Calls(fake.Range)) - before
				t.Logf("%d reads for %d renewals", reads, renewals.Load())
				require.LessOrEqual(t, reads, row.most)
				require.GreaterOrEqual(t, reads, row.least)
				require.Equal(t, row.lost, hold.Err() != nil, "%v", context.Cause(hold))
				etcd.Intercept(nil)
				_ = mu.Unlock(context.Background())
			})
		})
	}
}

// always makes each renewal meet the same effect.
func always(e fake.Effect) func(int) fake.Effect {
	return func(int) fake.Effect { return e }
}

// nth makes the nth renewal meet an effect.
func nth(n int, e fake.Effect) func(int) fake.Effect {
	return func(renewed int) fake.Effect {
		if renewed != n {
			return fake.Effect{}
		}
		return e
	}
}

// fromTenth returns one number for ten renewals, and then another one: a term, or a member.
func fromTenth(first, then uint64) func(int) uint64 {
	return func(renewed int) uint64 {
		if renewed <= 10 {
			return first
		}
		return then
	}
}

// only makes one member answer each renewal, as on a stream that stays open, however many
// members there are.
func only(member uint64) func(int) uint64 {
	return func(int) uint64 { return member }
}

// inTurn makes the members answer in turn, as a proxy may that handles single messages.
func inTurn(members uint64) func(int) uint64 {
	return func(renewed int) uint64 { return uint64(renewed) % members }
}
