package ticket

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/line"
)

// Removal is the transaction that removes t's key for certain. Without a known revision it
// removes whatever is there under t's name, which is nobody else's and will not be used again.
func (t *Ticket) Removal() Txn {
	read := t.readLine()
	gone, there := []clientv3.Op{clientv3.OpDelete(t.Key), read}, []clientv3.Op{read}
	if t.rev == 0 {
		gone, there = there, gone // Exists compares with 0
	}
	return Txn{If: []clientv3.Cmp{t.Exists()}, Then: gone, Else: there, Again: read}
}

// RemovedBy notes an answer to the removal. It returns who was before t then.
func (t *Ticket) RemovedBy(a Answer) (ahead []line.Entry) {
	if t.rev == 0 {
		t.doubt = true
	} else {
		ahead = line.Of(t.Name, a.Read).Blocking(t.Entry())
	}
	t.Remove(a.Revision)
	return ahead
}
