// Package conformance compares the etcd in memory with the real one.
package conformance

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// A transcript is what etcd answered to a row of requests. It counts revisions from the
// row's first, and names leases in the order in which they come up, so that the test can
// compare two etcds.
type transcript struct {
	t      *testing.T
	c      *clientv3.Client
	prefix string // of the row's keys
	base   int64
	leases map[int64]string
	lines  []string
}

func (tr *transcript) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), contract.Patience)
	tr.t.Cleanup(cancel)
	return ctx
}

func (tr *transcript) k(key string) string { return tr.prefix + key }

func (tr *transcript) rev(r int64) int64 {
	if r == 0 {
		return 0
	}
	return r - tr.base
}

func (tr *transcript) lease(id int64) string {
	if id == 0 {
		return "-"
	}
	if tr.leases[id] == "" {
		tr.leases[id] = fmt.Sprint("L", len(tr.leases)+1)
	}
	return tr.leases[id]
}

func (tr *transcript) kv(kv *mvccpb.KeyValue) string {
	if kv == nil {
		return "nil"
	}
	return fmt.Sprintf("%s=%q c%d m%d v%d %s", strings.TrimPrefix(string(kv.Key), tr.prefix), kv.Value,
		tr.rev(kv.CreateRevision), tr.rev(kv.ModRevision), kv.Version, tr.lease(kv.Lease))
}

func (tr *transcript) kvs(r *pb.RangeResponse) string {
	var text strings.Builder
	fmt.Fprintf(&text, "count %d more %v", r.Count, r.More)
	for _, kv := range r.Kvs {
		text.WriteString(" | " + tr.kv(kv))
	}
	return text.String()
}

func (tr *transcript) prevs(kvs []*mvccpb.KeyValue) string {
	var text strings.Builder
	for _, kv := range kvs {
		text.WriteString(" | prev " + tr.kv(kv))
	}
	return text.String()
}

// ops returns the answer to a transaction as text.
func (tr *transcript) ops(a *pb.TxnResponse) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%v @%d", a.Succeeded, tr.rev(a.GetHeader().GetRevision()))
	for _, r := range a.Responses {
		switch r := r.Response.(type) {
		case *pb.ResponseOp_ResponseRange:
			fmt.Fprintf(&text, " [range @%d %s]", tr.rev(r.ResponseRange.GetHeader().GetRevision()),
				tr.kvs(r.ResponseRange))
		case *pb.ResponseOp_ResponseDeleteRange:
			fmt.Fprintf(&text, " [deleted %d @%d%s]", r.ResponseDeleteRange.Deleted,
				tr.rev(r.ResponseDeleteRange.GetHeader().GetRevision()),
				tr.prevs(r.ResponseDeleteRange.PrevKvs))
		case *pb.ResponseOp_ResponsePut:
			fmt.Fprintf(&text, " [put @%d prev %s]", tr.rev(r.ResponsePut.GetHeader().GetRevision()),
				tr.kv(r.ResponsePut.PrevKv))
		case *pb.ResponseOp_ResponseTxn:
			text.WriteString(" [txn " + tr.ops(r.ResponseTxn) + "]")
		}
	}
	return text.String()
}

// say writes down an answer.
func (tr *transcript) say(answer any, err error) {
	tr.t.Helper()
	text := ""
	switch a := answer.(type) {
	case *clientv3.GetResponse:
		if err == nil {
			text = fmt.Sprintf("get @%d %s", tr.rev(a.Header.Revision), tr.kvs((*pb.RangeResponse)(a)))
		}
	case *clientv3.PutResponse:
		if err == nil {
			text = fmt.Sprintf("put @%d prev %s", tr.rev(a.Header.Revision), tr.kv(a.PrevKv))
		}
	case *clientv3.DeleteResponse:
		if err == nil {
			text = fmt.Sprintf("deleted %d @%d", a.Deleted, tr.rev(a.Header.Revision)) + tr.prevs(a.PrevKvs)
		}
	case *clientv3.TxnResponse:
		if err == nil {
			text = "txn " + tr.ops((*pb.TxnResponse)(a))
		}
	case *clientv3.LeaseGrantResponse:
		if err == nil {
			text = fmt.Sprintf("granted %s %d s @%d", tr.lease(int64(a.ID)), a.TTL,
				tr.rev(a.ResponseHeader.Revision))
		}
	case *clientv3.LeaseRevokeResponse:
		if err == nil {
			text = fmt.Sprintf("revoked @%d", tr.rev(a.Header.Revision))
		}
	case *clientv3.LeaseKeepAliveResponse:
		if err == nil {
			text = fmt.Sprintf("kept %s %d s", tr.lease(int64(a.ID)), a.TTL)
		}
	case *clientv3.LeaseTimeToLiveResponse:
		if err == nil {
			left := "some" // how much depends on the machine
			if a.TTL < 0 {
				left = "none"
			}
			text = fmt.Sprintf("ttl %s %s of %d", tr.lease(int64(a.ID)), left, a.GrantedTTL)
			slices.SortFunc(a.Keys, bytes.Compare)
			for _, key := range a.Keys {
				text += " " + strings.TrimPrefix(string(key), tr.prefix)
			}
		}
	case clientv3.WatchResponse:
		text = fmt.Sprintf("watch created %v canceled %v", a.Created, a.Canceled)
		if a.Created || len(a.Events) > 0 {
			text += fmt.Sprintf(" @%d", tr.rev(a.Header.Revision))
		}
		if a.CompactRevision != 0 {
			text += fmt.Sprintf(" compacted %d", tr.rev(a.CompactRevision))
		}
		for _, event := range a.Events {
			text += fmt.Sprintf(" | %s %s prev %s", event.Type, tr.kv(event.Kv), tr.kv(event.PrevKv))
		}
		err = a.Err()
	default:
		text = fmt.Sprint(answer)
	}
	if err != nil {
		text += "error: " + err.Error()
	}
	tr.lines = append(tr.lines, text)
}

func (tr *transcript) put(key, value string, opts ...clientv3.OpOption) {
	tr.t.Helper()
	resp, err := tr.c.Put(tr.ctx(), tr.k(key), value, opts...)
	tr.say(resp, err)
}

func (tr *transcript) get(key string, opts ...clientv3.OpOption) {
	tr.t.Helper()
	resp, err := tr.c.Get(tr.ctx(), tr.k(key), opts...)
	tr.say(resp, err)
}

func (tr *transcript) del(key string, opts ...clientv3.OpOption) {
	tr.t.Helper()
	resp, err := tr.c.Delete(tr.ctx(), tr.k(key), opts...)
	tr.say(resp, err)
}

func (tr *transcript) txn(ifs []clientv3.Cmp, then, otherwise []clientv3.Op) {
	tr.t.Helper()
	resp, err := tr.c.Txn(tr.ctx()).If(ifs...).Then(then...).Else(otherwise...).Commit()
	tr.say(resp, err)
}

func (tr *transcript) grant(ttl int64) clientv3.LeaseID {
	tr.t.Helper()
	resp, err := tr.c.Grant(tr.ctx(), ttl)
	tr.say(resp, err)
	if err != nil {
		return 0
	}
	return resp.ID
}

func (tr *transcript) ttl(id clientv3.LeaseID) {
	tr.t.Helper()
	resp, err := tr.c.TimeToLive(tr.ctx(), id, clientv3.WithAttachedKeys())
	tr.say(resp, err)
}

func (tr *transcript) revoke(id clientv3.LeaseID) {
	tr.t.Helper()
	resp, err := tr.c.Revoke(tr.ctx(), id)
	tr.say(resp, err)
}

// next writes down the next response of a watch.
func (tr *transcript) next(ch clientv3.WatchChan) {
	tr.t.Helper()
	select {
	case resp, open := <-ch:
		if !open {
			tr.say("watch closed", nil)
			return
		}
		tr.say(resp, nil)
	case <-time.After(contract.Patience):
		tr.say("nothing came", nil)
	}
}

// until waits until etcd has deleted a key.
func (tr *transcript) until(key string) {
	gone := func() bool {
		resp, err := tr.c.Get(tr.ctx(), tr.k(key))
		return err != nil || len(resp.Kvs) == 0
	}
	if !contract.Poll(gone) {
		tr.say("still there: "+key, nil)
	}
}

// created compares a create revision.
func (tr *transcript) created(key, op string, rev int64) clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(tr.k(key)), op, rev)
}

func (tr *transcript) opPut(key, value string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpPut(tr.k(key), value, opts...)
}

func (tr *transcript) opGet(key string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(tr.k(key), opts...)
}

func (tr *transcript) opDel(key string, opts ...clientv3.OpOption) clientv3.Op {
	return clientv3.OpDelete(tr.k(key), opts...)
}

var prefixed = clientv3.WithPrefix()

// conformance has what the library and its peer rely on.
var conformance = []struct {
	name string
	ask  func(tr *transcript)
}{
	{"put and put over", func(tr *transcript) {
		tr.put("k", "1")
		tr.put("k", "2")
		tr.get("k")
	}},
	{"a key that was deleted is created anew", func(tr *transcript) {
		tr.put("k", "1")
		tr.del("k")
		tr.get("k")
		tr.put("k", "2")
		tr.get("k")
	}},
	{"delete of nothing makes no revision", func(tr *transcript) {
		tr.del("k")
		tr.put("k", "1")
	}},
	{"delete of a range is one revision", func(tr *transcript) {
		tr.put("b", "1")
		tr.put("a", "1")
		tr.del("", prefixed)
		tr.get("", prefixed)
	}},
	{"an empty key is refused", func(tr *transcript) {
		resp, err := tr.c.Put(tr.ctx(), "", "1")
		tr.say(resp, err)
	}},
	{"a transaction that holds", func(tr *transcript) {
		tr.txn([]clientv3.Cmp{tr.created("k", "=", 0)},
			[]clientv3.Op{tr.opPut("k", "1"), tr.opGet("", prefixed)}, []clientv3.Op{tr.opGet("", prefixed)})
		tr.txn([]clientv3.Cmp{tr.created("k", "=", 0)},
			[]clientv3.Op{tr.opPut("k", "2"), tr.opGet("", prefixed)}, []clientv3.Op{tr.opGet("", prefixed)})
	}},
	{"delete and put of two keys is one revision", func(tr *transcript) {
		tr.put("a", "1")
		tr.txn(nil, []clientv3.Op{tr.opDel("a"), tr.opPut("b", "1"), tr.opGet("", prefixed)}, nil)
		tr.get("", prefixed)
	}},
	{"a transaction may not write a key twice", func(tr *transcript) {
		tr.txn(nil, []clientv3.Op{tr.opPut("a", "1"), tr.opPut("a", "2")}, nil)
		tr.txn(nil, []clientv3.Op{tr.opPut("a", "1"), tr.opDel("a")}, nil)
		tr.txn(nil, []clientv3.Op{tr.opPut("a", "1"), tr.opDel("", prefixed)}, nil)
		tr.txn(nil, nil, []clientv3.Op{tr.opPut("a", "1"), tr.opDel("a")})
		tr.txn(nil, []clientv3.Op{tr.opDel("a"), tr.opDel("a")}, nil)
		tr.get("", prefixed)
	}},
	{"a deletion from a key on, and a put of what it covers", func(tr *transcript) {
		fromKey := clientv3.WithFromKey()
		tr.put("a", "1")
		tr.txn(nil, []clientv3.Op{tr.opPut("b", "1"), tr.opDel("a", fromKey)}, nil)
		tr.txn(nil, []clientv3.Op{tr.opDel("a", fromKey), tr.opPut("b", "1")}, nil)
		tr.get("a", fromKey)
		tr.put("b", "1")
		tr.del("a", fromKey)
		tr.get("", prefixed)
	}},
	{"a put with a lease that is not there refuses the whole transaction", func(tr *transcript) {
		tr.put("a", "1")
		tr.txn(nil, []clientv3.Op{tr.opDel("a"), tr.opPut("b", "1", clientv3.WithLease(12345))}, nil)
		tr.put("c", "1", clientv3.WithLease(12345))
		tr.get("", prefixed)
	}},
	{"a put with a dead lease in the other branch harms nobody", func(tr *transcript) {
		tr.txn(nil, []clientv3.Op{tr.opPut("a", "1")},
			[]clientv3.Op{tr.opPut("b", "1", clientv3.WithLease(12345))})
		tr.get("", prefixed)
	}},
	{"a read of the future in a transaction refuses it whole", func(tr *transcript) {
		tr.txn(nil, []clientv3.Op{tr.opPut("a", "1"), tr.opGet("a", clientv3.WithRev(tr.base+100))}, nil)
		tr.get("", prefixed)
	}},
	{"comparisons with a key that is not there", func(tr *transcript) {
		for _, cmp := range []clientv3.Cmp{
			tr.created("k", "=", 0), tr.created("k", ">", 0), tr.created("k", "=", -1),
			tr.created("k", "<", 1),
			clientv3.Compare(clientv3.ModRevision(tr.k("k")), "=", 0),
			clientv3.Compare(clientv3.Version(tr.k("k")), "=", 0),
			clientv3.Compare(clientv3.Value(tr.k("k")), "=", ""),
			clientv3.Compare(clientv3.LeaseValue(tr.k("k")), "=", 0),
		} {
			tr.txn([]clientv3.Cmp{cmp}, []clientv3.Op{tr.opGet("k")}, []clientv3.Op{tr.opGet("k")})
		}
	}},
	{"comparisons with a range", func(tr *transcript) {
		ask := func(cmp clientv3.Cmp) {
			tr.txn([]clientv3.Cmp{cmp.WithPrefix()},
				[]clientv3.Op{tr.opGet("", prefixed, clientv3.WithCountOnly())}, nil)
		}
		ask(tr.created("", "=", 0))
		ask(clientv3.Compare(clientv3.ModRevision(tr.k("")), "<", tr.base))
		tr.put("a", "1")
		tr.put("b", "1")
		ask(tr.created("", "=", 0))
		ask(tr.created("", ">", 0))
		ask(clientv3.Compare(clientv3.ModRevision(tr.k("")), "<", tr.base+2))
		ask(clientv3.Compare(clientv3.ModRevision(tr.k("")), "<", tr.base+3))
		ask(clientv3.Compare(clientv3.Value(tr.k("")), "=", "1"))
	}},
	{"comparisons with what was put", func(tr *transcript) {
		lease := tr.grant(60)
		tr.put("k", "v", clientv3.WithLease(lease))
		for _, cmp := range []clientv3.Cmp{
			tr.created("k", "=", tr.base+1), tr.created("k", "!=", tr.base+1), tr.created("k", ">", tr.base),
			clientv3.Compare(clientv3.LeaseValue(tr.k("k")), "=", lease),
			clientv3.Compare(clientv3.LeaseValue(tr.k("k")), "=", lease+1),
			clientv3.Compare(clientv3.Value(tr.k("k")), "=", "v"),
			clientv3.Compare(clientv3.Value(tr.k("k")), "<", "w"),
			clientv3.Compare(clientv3.Version(tr.k("k")), ">", 0),
		} {
			tr.txn([]clientv3.Cmp{cmp}, []clientv3.Op{tr.opGet("k")}, nil)
		}
	}},
	{"reads at a revision", func(tr *transcript) {
		tr.put("k", "1")
		tr.put("k", "2")
		tr.del("k")
		tr.put("k", "3")
		for rev := tr.base + 1; rev <= tr.base+5; rev++ {
			tr.get("k", clientv3.WithRev(rev))
			tr.get("k", clientv3.WithRev(rev), clientv3.WithSerializable())
		}
	}},
	{"reads that are sorted, limited and filtered", func(tr *transcript) {
		for _, key := range []string{"c", "a", "b"} {
			tr.put(key, key)
		}
		tr.put("c", "0")
		for _, opts := range [][]clientv3.OpOption{
			clientv3.WithFirstCreate(), clientv3.WithLastCreate(), clientv3.WithFirstKey(),
			clientv3.WithLastKey(),
			clientv3.WithFirstRev(), clientv3.WithLastRev(),
			{prefixed, clientv3.WithSort(clientv3.SortByValue, clientv3.SortDescend)},
			{prefixed, clientv3.WithSort(clientv3.SortByVersion, clientv3.SortNone)},
			{prefixed, clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortNone), clientv3.WithLimit(1)},
			{prefixed, clientv3.WithLimit(2)}, {prefixed, clientv3.WithLimit(3)},
			{prefixed, clientv3.WithCountOnly()}, {prefixed, clientv3.WithKeysOnly()},
			{prefixed, clientv3.WithCountOnly(), clientv3.WithMaxCreateRev(tr.base + 1)},
			{prefixed, clientv3.WithMaxCreateRev(tr.base + 2)}, {prefixed, clientv3.WithMinCreateRev(tr.base + 2)},
			{prefixed, clientv3.WithMaxModRev(tr.base + 3)}, {prefixed, clientv3.WithMinModRev(tr.base + 3)},
			{prefixed, clientv3.WithMaxCreateRev(tr.base + 2), clientv3.WithLimit(1)},
			{clientv3.WithRange(tr.k("b"))}, {clientv3.WithRange(tr.k("b\x00"))},
			append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(tr.base+2)),
		} {
			tr.get("", opts...)
		}
	}},
	{"the nearest and the oldest, read before a put and after a deletion", func(tr *transcript) {
		lease := clientv3.WithLease(tr.grant(60))
		for _, key := range []string{"c", "a", "config", "e", "b"} {
			tr.put(key, key, lease)
		}
		newest := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)
		oldest := clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
		readAhead := func() []clientv3.Op {
			return []clientv3.Op{
				tr.opGet("", prefixed, newest, clientv3.WithLimit(2)),
				tr.opGet("", prefixed, oldest, clientv3.WithLimit(1)),
				tr.opGet("", prefixed, oldest, clientv3.WithLimit(1), clientv3.WithKeysOnly()),
				tr.opGet("", prefixed, newest, clientv3.WithLimit(9)),
			}
		}
		// None of the reads has a put that comes last; its revision is the answer's.
		tr.txn([]clientv3.Cmp{tr.created("d", "=", 0)}, append(readAhead(), tr.opPut("d", "d", lease)),
			nil)
		tr.get("d")
		release := append([]clientv3.Op{tr.opDel("c")}, readAhead()...)
		tr.txn(nil, append(release, tr.opPut("f", "f", lease)), nil)
		tr.get("f")
		for _, keys := range [][]clientv3.OpOption{nil, {clientv3.WithKeysOnly()}} {
			for _, up := range []int64{4, 6, 7} { // created later, and gone
				opts := append(keys, prefixed, newest, clientv3.WithMaxCreateRev(tr.base+up))
				for _, limit := range []int64{1, 3, 4, 5} {
					tr.get("", append(opts, clientv3.WithLimit(limit))...)
					tr.get("", append(opts, clientv3.WithLimit(limit), clientv3.WithRev(tr.base+6),
						clientv3.WithSerializable())...)
				}
			}
		}
	}},
	{"keys only know no lease", func(tr *transcript) {
		tr.put("k", "v", clientv3.WithLease(tr.grant(60)))
		tr.get("k", clientv3.WithKeysOnly())
	}},
	{"a lease with its keys", func(tr *transcript) {
		lease := tr.grant(60)
		tr.ttl(lease)
		tr.put("b", "1", clientv3.WithLease(lease))
		tr.put("a", "1", clientv3.WithLease(lease))
		tr.ttl(lease)
		tr.del("b")
		tr.ttl(lease)
		tr.put("a", "2")
		tr.ttl(lease)
		other := tr.grant(30)
		tr.put("a", "3", clientv3.WithLease(lease))
		tr.put("a", "4", clientv3.WithLease(other))
		tr.ttl(lease)
		tr.ttl(other)
	}},
	{"a revocation deletes all keys at one revision", func(tr *transcript) {
		lease := tr.grant(60)
		tr.put("b", "1", clientv3.WithLease(lease))
		tr.put("a", "1", clientv3.WithLease(lease))
		ch := tr.c.Watch(tr.ctx(), tr.k(""), prefixed, clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.revoke(lease)
		tr.next(ch)
		tr.get("", prefixed)
		tr.ttl(lease)
		tr.revoke(lease)
		resp, err := tr.c.KeepAliveOnce(tr.ctx(), lease)
		tr.say(resp, err)
		tr.put("c", "1", clientv3.WithLease(lease))
	}},
	{"a lease without keys makes no revision", func(tr *transcript) {
		tr.revoke(tr.grant(60))
		tr.get("k")
	}},
	{"a lease that expires deletes all keys at one revision", func(tr *transcript) {
		lease := tr.grant(3)
		tr.put("b", "1", clientv3.WithLease(lease))
		tr.put("a", "1", clientv3.WithLease(lease))
		ch := tr.c.Watch(tr.ctx(), tr.k(""), prefixed, clientv3.WithCreatedNotify(),
			clientv3.WithFilterPut())
		tr.next(ch)
		tr.until("a")
		tr.next(ch)
		tr.ttl(lease)
		resp, err := tr.c.KeepAliveOnce(tr.ctx(), lease)
		tr.say(resp, err)
	}},
	{"a renewal", func(tr *transcript) {
		lease := tr.grant(600)
		left := func() int64 {
			resp, err := tr.c.TimeToLive(tr.ctx(), lease)
			if err != nil {
				tr.say(nil, err)
				return 0
			}
			return resp.TTL
		}
		tr.say(fmt.Sprint("it gets less: ", contract.Poll(func() bool { return left() < 599 })), nil)
		least := left()
		resp, err := tr.c.KeepAliveOnce(tr.ctx(), lease)
		tr.say(resp, err)
		tr.say(fmt.Sprint("and more again: ", contract.Poll(func() bool {
			_, err := tr.c.KeepAliveOnce(tr.ctx(), lease)
			return err == nil && left() > least
		})), nil)
		tr.revoke(lease)
	}},
	{"leases that are not there", func(tr *transcript) {
		tr.ttl(4711)
		tr.revoke(4711)
		resp, err := tr.c.KeepAliveOnce(tr.ctx(), 4711)
		tr.say(resp, err)
	}},
	{"a watch from now", func(tr *transcript) {
		tr.put("k", "0")
		ch := tr.c.Watch(tr.ctx(), tr.k("k"), clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.put("k", "1")
		tr.next(ch)
		tr.put("other", "1")
		tr.del("k")
		tr.next(ch)
		tr.put("k", "2")
		tr.next(ch)
	}},
	{"a watch of deletions in a range, with a leader required", func(tr *transcript) {
		tr.put("a", "0")
		tr.put("b", "0")
		ch := tr.c.Watch(clientv3.WithRequireLeader(tr.ctx()), tr.k("a"),
			clientv3.WithRange(tr.k("b\x00")), clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.put("a", "1")
		tr.del("b")
		tr.next(ch)
		tr.txn(nil, []clientv3.Op{tr.opDel("a"), tr.opPut("b", "2")}, nil)
		tr.next(ch)
	}},
	{"a watch of puts", func(tr *transcript) {
		tr.put("a", "0")
		ch := tr.c.Watch(tr.ctx(), tr.k("a"), clientv3.WithFilterDelete(), clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.del("a")
		tr.put("a", "1")
		tr.next(ch)
	}},
	{"a watch from the past", func(tr *transcript) {
		tr.put("k", "0")
		tr.put("k", "1")
		tr.del("k")
		ch := tr.c.Watch(tr.ctx(), tr.k("k"), clientv3.WithRev(tr.base+2))
		tr.next(ch)
		tr.put("k", "2")
		tr.next(ch)
	}},
	{"a watch from the future", func(tr *transcript) {
		ch := tr.c.Watch(tr.ctx(), tr.k("k"), clientv3.WithRev(tr.base+3), clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.put("k", "1")
		tr.put("k", "2")
		tr.put("k", "3")
		tr.next(ch)
	}},
	{"two watches of one client", func(tr *transcript) {
		one := tr.c.Watch(tr.ctx(), tr.k("a"), clientv3.WithCreatedNotify())
		two := tr.c.Watch(tr.ctx(), tr.k("b"), clientv3.WithCreatedNotify())
		tr.next(one)
		tr.next(two)
		tr.put("b", "1")
		tr.next(two)
		tr.put("a", "1")
		tr.next(one)
	}},
	{"a watch that is cancelled", func(tr *transcript) {
		ctx, cancel := context.WithCancel(tr.ctx())
		ch := tr.c.Watch(ctx, tr.k("a"), clientv3.WithCreatedNotify())
		tr.next(ch)
		cancel()
		tr.next(ch)
	}},
	{"progress on request", func(tr *transcript) {
		ctx := tr.ctx()
		ch := tr.c.Watch(ctx, tr.k("a"), clientv3.WithCreatedNotify())
		tr.next(ch)
		tr.say("asked", tr.c.RequestProgress(ctx))
		tr.next(ch)
	}},
	// This row is the last one, since etcd forgets what was before it.
	{"compaction", func(tr *transcript) {
		tr.put("k", "1")
		tr.put("k", "2")
		tr.put("k", "3")
		compact := func(rev int64) {
			_, err := tr.c.Compact(tr.ctx(), rev)
			tr.say("compact", err)
		}
		compact(tr.base + 2)
		compact(tr.base + 2)
		compact(tr.base + 1)
		compact(tr.base + 9)
		tr.get("k", clientv3.WithRev(tr.base+1))
		tr.get("k", clientv3.WithRev(tr.base+2))
		tr.txn(nil, []clientv3.Op{tr.opGet("k", clientv3.WithRev(tr.base+1))}, nil)
		ch := tr.c.Watch(tr.ctx(), tr.k("k"), clientv3.WithRev(tr.base+1))
		tr.next(ch)
		tr.next(ch)
		ch = tr.c.Watch(tr.ctx(), tr.k("k"), clientv3.WithRev(tr.base+2))
		tr.next(ch)
	}},
}

// askAll asks an etcd every row.
func askAll(t *testing.T, client *clientv3.Client) map[string][]string {
	answers := make(map[string][]string)
	for i, row := range conformance {
		tr := &transcript{t: t, c: client, prefix: fmt.Sprintf("row%02d/", i),
			leases: make(map[int64]string)}
		now, err := client.Get(tr.ctx(), "none")
		require.NoError(t, err)
		tr.base = now.Header.Revision
		row.ask(tr)
		answers[row.name] = tr.lines
	}
	return answers
}

// The simulated etcd answers as the real one does, and so does the one in memory.
func TestTheSimulatedEtcdsAreLikeTheRealOne(t *testing.T) {
	endpoint, etcd, err := sim.Serve()
	require.NoError(t, err)
	t.Cleanup(etcd.Stop)
	simulated, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint},
		Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { simulated.Close() })
	real := askAll(t, etcdtest.Start(t, 1).Client(t))
	for name, client := range map[string]*clientv3.Client{
		"simulated": simulated,
		"in memory": etcdlocktest.New(t).Client(),
	} {
		answers := askAll(t, client)
		for _, row := range conformance {
			t.Run(name+"/"+row.name, func(t *testing.T) {
				require.Equal(t, real[row.name], answers[row.name], "left the real one, right the other")
			})
		}
	}
}
