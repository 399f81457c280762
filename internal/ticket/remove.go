package ticket

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Removal is the transaction that removes t's key for certain. Without a known revision it
// removes whatever is there under t's name. That name belongs to t alone and is not used again.
//
// With tell it reads what is ahead of t, for the error of a wait that ends: in a short line
// the few contenders that known has, in a longer one only the holder's key, since a crowd may give
// up at once.
func (t *Ticket) Removal(tell bool, known line.Ahead) Txn {
	gone, there := []clientv3.Op{clientv3.OpDelete(t.Key)}, []clientv3.Op(nil)
	if tell && t.rev != 0 {
		read := t.oldest(1, clientv3.WithKeysOnly())
		if known.Whole {
			read = t.oldest(nearest)
		}
		gone, there = append(gone, read), append(there, read)
	}
	if t.rev == 0 {
		gone, there = there, gone // Exists compares with 0
	}
	txn := Txn{If: []clientv3.Cmp{t.Exists()}, Then: gone, Else: there}
	txn.own, txn.count = t.Key, true // so that a copy has something to do
	return txn
}

// RemovedBy records an answer to the removal. It returns what was ahead of t then, if the
// removal has read that, and otherwise what was known before.
func (t *Ticket) RemovedBy(a Answer, known line.Ahead) line.Ahead {
	if t.rev == 0 {
		t.doubt = true
	} else if read := a.read(0); read != nil {
		ahead := line.Ahead{About: int(read.Count)}.HeldBy(t.Name, read)
		if known.Whole {
			ahead, _ = line.Among(t.Name, t.Entry(), read)
		} else if ahead.First.Rev == known.First.Rev {
			ahead.First = known.First // with its value
		}
		known = ahead.Since(known)
	}
	t.Remove(a.Revision)
	return known
}
