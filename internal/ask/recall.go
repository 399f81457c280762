package ask

import (
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// Recall writes request into the value of the key of the contender with a token, by e, which was
// read of it, unless the contender is gone or has a request with no longer a grace. It returns the
// key as it is then, as far as is known. If the contender does not listen it writes nothing. commit
// sends a transaction, and returns the revision at which it has put something, or what its Else has
// read.
func Recall(
	token int64, e line.Entry, request line.Recall,
	commit func(ticket.Txn) (put int64, read []*mvccpb.KeyValue, err error),
) (now line.Entry, listens bool, err error) {
	for {
		if e.Rev != token {
			return e, true, nil
		}
		if e.Lease == 0 || !e.Value().Recallable {
			return e, false, nil
		}
		if earlier, ok := e.Recall(); ok && earlier.Grace <= request.Grace { // or it is this very one
			return e, true, nil
		}
		value, err := e.Recalled(request)
		if err != nil {
			return e, true, err
		}
		put, read, err := commit(ticket.Edit(e, value))
		switch {
		case err != nil:
			return e, true, err
		case put != 0:
			return e.With(value, put), true, nil
		}
		e, _ = line.Find(read, e.Key)
	}
}
