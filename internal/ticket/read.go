package ticket

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// wider is how many times as many keys a ticket reads after keys that are no contenders have filled
// the first range.
const wider = 32

// CountBelow counts the keys below the name of a lock.
func CountBelow(name string) *pb.RequestOp {
	return Range(&pb.RangeRequest{
		Key: []byte(line.Prefix(name)), RangeEnd: []byte(line.Whole(name).To), CountOnly: true,
	})
}

// AskWhoHolds reads the holder, if ahead lacks the holder or has only its key: then asks is true.
// It reads more keys once the oldest one has turned out to be no contender. A crowd that goes round
// asks once a hand-over, so there it reads a few keys, and no more.
func (t *Ticket) AskWhoHolds(ahead line.Ahead) (op *pb.RequestOp, asks bool) {
	switch holder := ahead.Holder(); {
	case holder.Rev == 0 && ahead.Reading == line.Brief:
		return within(line.Whole(t.Name), oldestFirst, nearest), true
	case holder.Rev == 0 && ahead.Strays:
		return within(line.Whole(t.Name), oldestFirst, nearest*wider), true
	case holder.Rev == 0:
		return within(line.Whole(t.Name), oldestFirst, 1), true
	case holder.Bare():
		return Get(holder.Key), true
	}
	return nil, false
}

// WhoHolds returns ahead with what AskWhoHolds has read.
func (t *Ticket) WhoHolds(ahead line.Ahead, read *pb.RangeResponse) line.Ahead {
	oldest := line.Of(t.Name, read.GetKvs()).Before(t.Entry())
	unknown := ahead.First == nil && ahead.Reading != line.All
	if len(oldest) > 0 && (unknown || ahead.First != nil && oldest[0].Rev == ahead.First.Rev) {
		ahead.First = &oldest[0]
		ahead.Longest = max(ahead.Longest, oldest[0].TTLs().Longest)
	}
	if ahead.Reading != line.Brief {
		ahead.Strays = ahead.Strays || unknown && len(oldest) == 0
	}
	return ahead
}

// MostTold is how many contenders before a ticket are read for their TTLs.
const MostTold = 64

// AskTTLs reads all contenders of a line of at most MostTold keys, with their values. (Do not read
// only those before t. The waiters of a client could not share it. TestWhatIsEqualMeetsOnce.)
func (t *Ticket) AskTTLs() *pb.RequestOp {
	return within(line.Whole(t.Name), oldestFirst, MostTold)
}

// A Known is what is known of a contender: its very key is there, and stands in line. If Mod is not
// 0 the key was last changed then.
//
// A key that was put over keeps its create revision, but perhaps has no lease. Then it no
// longer stands in line, and no lease removes it.
type Known struct {
	Key             string
	Rev, Lease, Mod int64 // any Lease if it is 0
}

// Contend returns what is known of contenders, but for their Mod.
func Contend(contenders ...line.Entry) (known []Known) {
	for _, e := range contenders {
		lease := e.Lease
		if lease == 0 {
			lease = e.LeaseByKey()
		}
		known = append(known, Known{Key: e.Key, Rev: e.Rev, Lease: lease})
	}
	return known
}

// Compare compares what is known with what is there.
func Compare(known ...Known) (ifs []*pb.Compare) {
	for _, k := range known {
		leased := onLease(k.Key, k.Lease)
		if k.Lease == 0 {
			leased.Result = pb.Compare_NOT_EQUAL
		}
		if ifs = append(ifs, created(k.Key, k.Rev), leased); k.Mod != 0 {
			ifs = append(ifs, modified(k.Key, k.Mod))
		}
	}
	return ifs
}

// Compares is how many of these k takes.
func (k Known) Compares() int {
	if k.Mod != 0 {
		return 3
	}
	return 2
}

// Absent compares that no key is there.
func Absent(keys []string) []*pb.Compare {
	ifs := make([]*pb.Compare, len(keys))
	for i, key := range keys {
		ifs[i] = created(key, 0)
	}
	return ifs
}

// A Look is a reading of the predecessors of a ticket that stands in line. It may take several
// ranges, if keys that are no contenders stand before it.
type Look struct {
	t    *Ticket
	n    int64
	keys bool // read only keys first
}

// Look begins to read t's predecessors. With keys it reads only keys first, if t is exclusive: they
// show the nearest of many, and also that there is none, as is mostly so once the nearest has gone.
// etcd takes a fifth of the time for them.
func (t *Ticket) Look(keys bool) Look { return Look{t, t.few(), keys && t.Kind == line.Exclusive} }

// Keys reports whether l reads only keys next, and how many.
func (l *Look) Keys() (most int64, only bool) { return 1 + l.n, l.keys }

// Ranges is what to read together next, for a reader's ticket: its own key, and what line.Before
// asks for: as of a revision, of which any member may tell, or as of now.
func (l *Look) Ranges(at int64) []*pb.RequestOp {
	all := append([]*pb.RequestOp{Get(l.t.Key)}, l.t.some(newestFirst, l.n)...)
	for i, op := range all {
		r := op.GetRequestRange()
		if r.Revision, r.Serializable = at, at != 0; i > 0 {
			r.MaxCreateRevision = l.t.rev
		}
	}
	return all
}

// Range is what to read below the Prefix next, for the ticket of a contender that does not read, as
// Ranges does. If the ticket's own key is there, it is the newest that the range reads.
func (l *Look) Range(at int64) []clientv3.OpOption {
	opts := []clientv3.OpOption{
		clientv3.WithPrefix(),
		clientv3.WithMaxCreateRev(l.t.rev),
		clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend),
		clientv3.WithLimit(1 + l.n),
	}
	if l.keys {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	if at != 0 {
		opts = append(opts, clientv3.WithRev(at), clientv3.WithSerializable())
	}
	return opts
}

// Judge says what an answer shows: what is ahead, and what is there under the key, which is to be
// observed. If t is not lost and ahead is Unread, the next Range is to be read.
func (l *Look) Judge(read ...*pb.RangeResponse) (ahead line.Ahead, own Observation) {
	if l.keys {
		l.keys = false
		own.Entry = l.t.Entry()
		ahead = line.ByKeys(l.t.Name, own.Entry, int(nearest), read[0])
		if ahead.Reading != line.Unread {
			return ahead, own
		}
		return line.Ahead{}, Observation{} // only a reading with their leases shows more
	}
	own.Entry, _ = line.Find(read[0].GetKvs(), l.t.Key)
	if !l.t.Is(own.Entry) {
		return line.Ahead{}, own
	}
	l.n *= wider
	if l.t.Kind == line.Read {
		read = read[1:]
	}
	return line.Before(l.t.Name, own.Entry, int(nearest), read...), own
}
