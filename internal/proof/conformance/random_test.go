package conformance

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
	"github.com/etcdlock/etcdlock/internal/race"
)

var (
	seed  = flag.Uint64("seed", 0, "of the random calls; 0 for one of the time")
	calls = flag.Int("calls", race.Fewer(4000, 1000), "how many there are")
)

// The etcd in memory answers whatever a client asks as a real one does. Each call is drawn,
// and so are its keys. There are few keys, so that the calls meet.
func TestRandomCallsAreAnsweredAlike(t *testing.T) {
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-seed %d -calls %d", *seed, *calls)
	real := askAtRandom(t, etcdtest.Start(t, 1).Client(t))
	inMemory := askAtRandom(t, etcdlocktest.New(t).Client())
	for i := range min(len(real), len(inMemory)) {
		require.Equal(t, real[i], inMemory[i], "answer %d: the first is the real one's\nbefore: %v", i,
			real[max(0, i-1)])
	}
	require.Len(t, inMemory, len(real))
}

// A drawer draws calls. What it draws depends only on the seed and on the answers.
type drawer struct {
	*transcript
	r         *rand.Rand
	granted   []clientv3.LeaseID // in the order of their numbers; the first one was never granted
	at        int64              // the revision, as far as is known
	compacted int64
	watches   []watched
}

type watched struct {
	ch      clientv3.WatchChan
	deletes bool // it delivers deletions, too
}

// askAtRandom makes the calls. Before each compaction and in the end it writes down what
// the watches saw.
func askAtRandom(t *testing.T, client *clientv3.Client) []string {
	tr := &transcript{t: t, c: client, prefix: "random/", leases: make(map[int64]string)}
	now, err := client.Get(tr.ctx(), "none")
	require.NoError(t, err)
	tr.base = now.Header.Revision
	d := &drawer{transcript: tr, r: rand.New(rand.NewPCG(*seed, 1)), at: tr.base,
		granted: []clientv3.LeaseID{1}}
	d.watch()
	for range *calls {
		d.ask()
	}
	d.catchUp()
	return tr.lines
}

// ask makes one call.
func (d *drawer) ask() {
	ctx := d.ctx()
	switch n := d.r.IntN(100); {
	case n < 25:
		resp, err := d.c.Put(ctx, d.key(), d.value(), d.putOpts()...)
		d.note(resp, err)
	case n < 45:
		resp, err := d.c.Get(ctx, d.key(), d.getOpts()...)
		d.note(resp, err)
	case n < 55:
		resp, err := d.c.Delete(ctx, d.key(), d.deleteOpts()...)
		d.note(resp, err)
	case n < 85:
		cmps, then, otherwise := d.txnOf(2)
		resp, err := d.c.Txn(ctx).If(cmps...).Then(then...).Else(otherwise...).Commit()
		d.note(resp, err)
	case n < 89:
		resp, err := d.c.Grant(ctx, []int64{300, 600, 9_000_000_001}[d.r.IntN(3)])
		d.note(resp, err)
		if err == nil {
			d.granted = append(d.granted, resp.ID)
		}
	case n < 92:
		resp, err := d.c.Revoke(ctx, d.lease())
		d.note(resp, err)
	case n < 94:
		resp, err := d.c.KeepAliveOnce(ctx, d.lease())
		d.note(resp, err)
	case n < 97:
		var opts []clientv3.LeaseOption
		if d.half() {
			opts = append(opts, clientv3.WithAttachedKeys())
		}
		resp, err := d.c.TimeToLive(ctx, d.lease(), opts...)
		if err == nil && resp.TTL > 0 {
			resp.TTL = 0 // time passes
		}
		d.note(resp, err)
	case n < 98:
		d.catchUp()                             // a watch that is behind may deliver in time, or not
		rev := max(1, d.at-int64(d.r.IntN(20))) // there is no revision before
		_, err := d.c.Compact(ctx, rev)
		d.note("compact", err)
		if err == nil {
			d.compacted = rev
		}
	case n < 99:
		resp, err := d.c.Leases(ctx)
		known := 0
		if err == nil {
			known = len(resp.Leases)
		}
		d.note(fmt.Sprint(known, " leases"), err)
	default:
		d.watch()
	}
}

// note is say, and records the revision.
func (d *drawer) note(resp any, err error) {
	d.t.Helper()
	if err == nil {
		switch resp := resp.(type) {
		case *clientv3.PutResponse:
			d.at = resp.Header.Revision
		case *clientv3.GetResponse:
			d.at = resp.Header.Revision
		case *clientv3.DeleteResponse:
			d.at = resp.Header.Revision
		case *clientv3.TxnResponse:
			d.at = resp.Header.Revision
		}
	}
	d.say(resp, err)
}

func (d *drawer) half() bool { return d.r.IntN(2) == 0 }

func (d *drawer) one(in int) bool { return d.r.IntN(in) == 0 }

func (d *drawer) key() string { return d.k(string(rune('a' + d.r.IntN(6)))) }

func (d *drawer) value() string { return []string{"", "1", "2", "3"}[d.r.IntN(4)] }

func (d *drawer) lease() clientv3.LeaseID { return d.granted[d.r.IntN(len(d.granted))] }

// rev draws a revision, mostly of the past.
func (d *drawer) rev() int64 { return max(1, d.at-int64(d.r.IntN(25))+2) }

func (d *drawer) putOpts() (opts []clientv3.OpOption) {
	if d.one(4) {
		opts = append(opts, clientv3.WithLease(d.lease()))
	}
	if d.one(3) {
		opts = append(opts, clientv3.WithPrevKV())
	}
	if d.one(8) {
		opts = append(opts, clientv3.WithIgnoreLease())
	}
	if d.one(8) {
		opts = append(opts, clientv3.WithIgnoreValue())
	}
	return opts
}

// rangeOpts draws what may follow a key. No call asks for keys beyond the prefix.
func (d *drawer) rangeOpts() (opts []clientv3.OpOption) {
	switch d.r.IntN(3) {
	case 0:
		opts = append(opts, clientv3.WithRange(d.key()))
	case 1:
		opts = append(opts, clientv3.WithRange(d.k("\xff")))
	}
	return opts
}

func (d *drawer) getOpts() []clientv3.OpOption {
	opts := d.rangeOpts()
	if d.one(3) {
		target := clientv3.SortTarget(d.r.IntN(5))
		opts = append(opts, clientv3.WithSort(target, clientv3.SortOrder(d.r.IntN(3))))
	}
	for _, option := range []func() clientv3.OpOption{
		func() clientv3.OpOption { return clientv3.WithLimit(int64(d.r.IntN(4))) },
		func() clientv3.OpOption { return clientv3.WithRev(d.rev()) },
		func() clientv3.OpOption { return clientv3.WithMinCreateRev(d.rev()) },
		func() clientv3.OpOption { return clientv3.WithMaxCreateRev(d.rev()) },
		func() clientv3.OpOption { return clientv3.WithMinModRev(d.rev()) },
		func() clientv3.OpOption { return clientv3.WithMaxModRev(d.rev()) },
		clientv3.WithCountOnly,
		clientv3.WithKeysOnly,
		clientv3.WithSerializable,
	} {
		if d.one(6) {
			opts = append(opts, option())
		}
	}
	return opts
}

func (d *drawer) deleteOpts() []clientv3.OpOption {
	opts := d.rangeOpts()
	if d.half() {
		opts = append(opts, clientv3.WithPrevKV())
	}
	return opts
}

// txnOf draws a transaction, with nested ones down to a depth.
func (d *drawer) txnOf(depth int) (cmps []clientv3.Cmp, then, otherwise []clientv3.Op) {
	for range d.r.IntN(3) {
		cmps = append(cmps, d.cmp())
	}
	for range d.r.IntN(4) {
		then = append(then, d.op(depth))
	}
	for range d.r.IntN(4) {
		otherwise = append(otherwise, d.op(depth))
	}
	return cmps, then, otherwise
}

func (d *drawer) op(depth int) clientv3.Op {
	switch n := d.r.IntN(10); {
	case n < 4:
		return clientv3.OpPut(d.key(), d.value(), d.putOpts()...)
	case n < 6:
		return clientv3.OpGet(d.key(), d.getOpts()...)
	case n < 8 || depth == 0:
		return clientv3.OpDelete(d.key(), d.deleteOpts()...)
	}
	return clientv3.OpTxn(d.txnOf(depth - 1))
}

func (d *drawer) cmp() clientv3.Cmp {
	op := []string{"=", "!=", "<", ">"}[d.r.IntN(4)]
	var cmp clientv3.Cmp
	switch key := d.key(); d.r.IntN(5) {
	case 0:
		cmp = clientv3.Compare(clientv3.Value(key), op, d.value())
	case 1:
		cmp = clientv3.Compare(clientv3.Version(key), op, d.r.IntN(4))
	case 2:
		cmp = clientv3.Compare(clientv3.CreateRevision(key), op, d.rev()*int64(d.r.IntN(2)))
	case 3:
		cmp = clientv3.Compare(clientv3.ModRevision(key), op, d.rev()*int64(d.r.IntN(2)))
	default:
		cmp = clientv3.Compare(clientv3.LeaseValue(key), op, d.lease())
	}
	if d.one(3) {
		cmp = cmp.WithRange(d.k("\xff"))
	}
	return cmp
}

// watch begins a watch of all keys. Its options are drawn, and its first revision may be
// past, compacted or to come.
func (d *drawer) watch() {
	opts := []clientv3.OpOption{clientv3.WithRange(d.k("\xff")), clientv3.WithCreatedNotify()}
	switch d.r.IntN(4) {
	case 0, 1:
		opts = append(opts, clientv3.WithRev(d.rev()))
	case 2:
		opts = append(opts, clientv3.WithRev(d.compacted)) // the oldest that there is
	}
	if d.half() {
		opts = append(opts, clientv3.WithPrevKV())
	}
	w := watched{deletes: true}
	switch d.r.IntN(4) {
	case 0:
		opts = append(opts, clientv3.WithFilterPut())
	case 1:
		w.deletes, opts = false, append(opts, clientv3.WithFilterDelete())
	}
	w.ch = d.c.Watch(d.t.Context(), d.key(), opts...)
	d.say(<-w.ch, nil)
	d.watches = append(d.watches, w)
}

// catchUp writes down what the watches deliver up to now. It makes two puts and deletions
// of a key, so that even a watch that begins at a revision to come sees them.
func (d *drawer) catchUp() {
	var last struct{ put, deleted int64 }
	for range 2 {
		put, err := d.c.Put(d.ctx(), d.k("~"), "")
		require.NoError(d.t, err)
		deleted, err := d.c.Delete(d.ctx(), d.k("~"))
		require.NoError(d.t, err)
		last.put, last.deleted = put.Header.Revision, deleted.Header.Revision
	}
	d.at = last.deleted
	d.watches = slices.DeleteFunc(d.watches, func(w watched) (over bool) {
		if w.deletes {
			return d.drain(w.ch, last.deleted)
		}
		return d.drain(w.ch, last.put)
	})
}

// drain writes down what a watch delivers, up to a revision or to its end. It ignores how
// events are grouped, which differs: past events come at once.
func (d *drawer) drain(ch clientv3.WatchChan, until int64) (over bool) {
	d.t.Helper()
	d.lines = append(d.lines, "a watch:")
	for {
		select {
		case resp, open := <-ch:
			if !open {
				d.lines = append(d.lines, "closed")
				return true
			}
			if resp.Canceled {
				d.say(resp, nil)
			}
			for _, event := range resp.Events {
				d.lines = append(d.lines,
					fmt.Sprintf("%s %s prev %s", event.Type, d.kv(event.Kv), d.kv(event.PrevKv)))
				if event.Kv.ModRevision == until {
					return false
				}
			}
		case <-time.After(contract.Patience):
			d.t.Fatalf("a watch does not tell what was at revision %d", until)
		}
	}
}
