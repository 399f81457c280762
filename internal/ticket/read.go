package ticket

import (
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Few is the number of predecessors up to which a ticket knows all of them. Behind more it reads
// only the nearest, so that the cost of a wait does not grow with the line. etcd sorts the
// whole line for it all the same.
const Few = 8

// nearest is how many keys a ticket reads, except in tests. One more than Few shows that there
// are more.
var nearest int64 = Few + 1

// mostNearest is how many keys a permit reads at most in its first reading.
const mostNearest = 1024

// few is how many of the keys before it t reads: the nearest ones. A permit reads so many
// that either they are all there are, or their weights are too much for its limit even if
// each is 1. It reads twice that many, so that it soon knows all for which it waits.
func (t *Ticket) few() int64 {
	return min(nearest+2*int64(t.Limit), max(nearest, mostNearest))
}

// wider is the factor by which a ticket reads more keys after keys that are no contenders have
// filled the first range.
const wider = 32

var (
	newestFirst = clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortDescend)
	oldestFirst = clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)
)

// newest reads the n newest keys of the line, in the form that line.Before expects. A
// reader's ticket has several ranges. There may be any number of other readers. It reads a few
// keys of their range, in case one is exclusive.
func (t *Ticket) newest(n int64, opts ...clientv3.OpOption) []clientv3.Op {
	const more = 2 // room for what a put adds
	if t.Kind != line.Read {
		return append(make([]clientv3.Op, 0, 1+more), t.whole(newestFirst, n, opts...))
	}
	ops := make([]clientv3.Op, 0, 3+more)
	for i, r := range line.Ranges(t.Name) {
		most := n
		if i == line.OfReads {
			most = min(n, nearest)
		}
		ops = append(ops, within(r, append(slices.Clip(opts), newestFirst, clientv3.WithLimit(most))))
	}
	return ops
}

// whole reads the first n keys of the whole line in an order. WithPrefix says the same as WithRange
// here, but has clientv3 apply all options once more.
func (t *Ticket) whole(order clientv3.OpOption, n int64, opts ...clientv3.OpOption) clientv3.Op {
	all := append(make([]clientv3.OpOption, 0, 4), clientv3.WithRange(line.End(t.Name)), order,
		clientv3.WithLimit(n))
	return clientv3.OpGet(line.Prefix(t.Name), append(all, opts...)...)
}

// CountBelow counts the keys below the name of a lock.
func CountBelow(name string) clientv3.Op {
	return clientv3.OpGet(line.Prefix(name), clientv3.WithPrefix(), clientv3.WithCountOnly())
}

// within reads a range.
func within(r line.Range, opts []clientv3.OpOption) clientv3.Op {
	return clientv3.OpGet(r.From, append(opts, clientv3.WithRange(r.To))...)
}

// exclusives are the ranges without readers.
func (t *Ticket) exclusives() []line.Range {
	ranges := line.Ranges(t.Name)
	return slices.Delete(ranges[:], line.OfReads, line.OfReads+1)
}

// byChance reads the nearest keys in the readers' range. One of them may be exclusive, and
// the exclusives do not include it.
func (t *Ticket) byChance() clientv3.Op {
	opts := []clientv3.OpOption{newestFirst, clientv3.WithLimit(nearest)}
	return within(line.Ranges(t.Name)[line.OfReads], opts)
}

// readAhead is what a transaction reads before it puts t's key: the n nearest keys at that
// time. The key that t puts after that is behind all of them. If the caller asks for the owner,
// it also reads the oldest key, which is one of the nearest only in a short line.
func (t *Ticket) readAhead(n int64, owner bool) []clientv3.Op {
	ops := t.newest(n)
	if owner {
		ops = append(ops, t.whole(oldestFirst, 1))
	}
	return ops
}

// aheadOf returns t's predecessors, by what readAhead has read.
func (t *Ticket) aheadOf(a Answer, owner bool) line.Ahead {
	newest := a.Read
	if owner && len(newest) > 0 {
		newest = newest[:len(newest)-1]
	}
	if len(newest) == 0 {
		return line.Ahead{}
	}
	ahead := line.Before(t.Name, line.Entry{Key: t.Key}, int(nearest), newest...)
	if owner && !ahead.Clear() {
		return ahead.HeldBy(t.Name, a.Read[len(newest)])
	}
	return ahead
}

// AskWhoHolds reads the holder, if ahead lacks the holder or has only its key. Otherwise it reads
// next to nothing. It reads more keys once the oldest one has turned out to be no contender. A
// crowd that goes round asks once a hand-over, so there it reads a few keys, and no more.
func (t *Ticket) AskWhoHolds(ahead line.Ahead) clientv3.Op {
	switch holder := ahead.Holder(); {
	case holder.Rev == 0 && ahead.Reading == line.Brief:
		return t.whole(oldestFirst, nearest)
	case holder.Rev == 0 && ahead.Strays:
		return t.whole(oldestFirst, nearest*wider)
	case holder.Rev == 0:
		return t.whole(oldestFirst, 1)
	case holder.Bare():
		return clientv3.OpGet(holder.Key)
	default:
		return clientv3.OpGet(t.Key, clientv3.WithCountOnly())
	}
}

// WhoHolds returns ahead with what AskWhoHolds has read.
func (t *Ticket) WhoHolds(ahead line.Ahead, read *pb.RangeResponse) line.Ahead {
	oldest := line.Of(t.Name, read.GetKvs()).Before(t.Entry())
	unknown := ahead.First.Rev == 0 && ahead.Reading != line.All
	if len(oldest) > 0 && (unknown || oldest[0].Rev == ahead.First.Rev) {
		ahead.First = oldest[0]
		ahead.Longest = max(ahead.Longest, oldest[0].Longest())
	}
	if ahead.Reading != line.Brief {
		ahead.Strays = ahead.Strays || unknown && len(oldest) == 0
	}
	return ahead
}

// Contends compares e, behind which t waits, with what is there: it is true if that very
// key is there and stands in line.
//
// A key that was put over keeps its create revision, but perhaps has no lease. Then it no
// longer stands in line, and no lease removes it.
func Contends(e line.Entry) []clientv3.Cmp {
	is, lease := "=", e.Lease
	if lease == 0 {
		lease = e.LeaseByKey()
	}
	if lease == 0 {
		is = "!="
	}
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.CreateRevision(e.Key), "=", e.Rev),
		clientv3.Compare(clientv3.LeaseValue(e.Key), is, lease),
	}
}

// A Look is a reading of the predecessors of a ticket that stands in line. It may take several
// ranges, if keys that are no contenders stand before it.
type Look struct {
	t    *Ticket
	n    int64
	keys bool // read only keys first
}

// Look begins to read t's predecessors. gone says that the nearest one is gone. There is mostly
// no other then, and the keys alone show that.
func (t *Ticket) Look(gone bool) Look { return Look{t, t.few(), gone && t.Kind == line.Exclusive} }

// Ranges is what to read together next, for a reader's ticket: its own key, and what line.Before
// asks for.
func (l *Look) Ranges(opts ...clientv3.OpOption) []clientv3.Op {
	own := clientv3.OpGet(l.t.Key, opts...)
	return append([]clientv3.Op{own},
		l.t.newest(l.n, append(opts, clientv3.WithMaxCreateRev(l.t.rev))...)...)
}

// Range is what to read below the Prefix next, for the ticket of a contender that does not read.
// If the ticket's own key is there, it is the newest that the range reads.
func (l *Look) Range() []clientv3.OpOption {
	opts := []clientv3.OpOption{
		clientv3.WithPrefix(),
		clientv3.WithMaxCreateRev(l.t.rev),
		newestFirst,
		clientv3.WithLimit(1 + l.n),
	}
	if l.keys {
		opts = append(opts, clientv3.WithKeysOnly())
	}
	return opts
}

// Judge says what an answer shows: what is ahead, and what is there under the key, which is to be
// observed. If t is not lost and ahead is Unread, the next Range is to be read.
func (l *Look) Judge(read ...*pb.RangeResponse) (ahead line.Ahead, own Observation) {
	if l.keys {
		l.keys = false
		if line.Only(l.t.Name, l.t.Entry(), read[0]) {
			ahead = line.None
			ahead.Keys = int(read[0].GetCount())
			return ahead, Observation{Entry: l.t.Entry()}
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
