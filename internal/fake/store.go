package fake

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// A Store is what the members of etcd agree on: a sequence of entries. Each entry is a
// transaction, a grant or a revocation of a lease, or a compaction. A Store forgets
// nothing, so there is a View of it as it was after any entry. It does not decide when
// leases expire. It is not safe for concurrent use.
//
// Invariant: what was at a revision, or after an entry, never changes.
type Store struct {
	entries  []state
	versions map[string][]*mvccpb.KeyValue // oldest first; Version 0 is a deletion
	keys     []string                      // of versions, sorted
	events   map[int64][]*mvccpb.Event     // by revision
	leases   map[int64]*leaseRecord        // ended ones, too
	lastID   int64
}

// A state is what is known after an entry, besides the keys.
type state struct{ rev, compacted int64 }

// A leaseRecord is the life of a lease, in numbers of entries.
type leaseRecord struct {
	ttl            int64
	granted, ended int // ended is 0 while it lives
}

// NewStore returns an empty Store, at revision 1 as etcd's.
func NewStore() *Store {
	return &Store{
		entries:  []state{{rev: 1}},
		versions: make(map[string][]*mvccpb.KeyValue),
		events:   make(map[int64][]*mvccpb.Event),
		leases:   make(map[int64]*leaseRecord),
		lastID:   0x1000,
	}
}

// Index returns the number of entries so far.
func (s *Store) Index() int { return len(s.entries) - 1 }

// Rev returns the current revision.
func (s *Store) Rev() int64 { return s.last().rev }

func (s *Store) last() state { return s.entries[s.Index()] }

// Now returns the Store as it is.
func (s *Store) Now() View { return s.At(s.Index()) }

// At returns the Store as it was after an entry.
func (s *Store) At(index int) View { return View{s: s, index: index, state: s.entries[index]} }

// Restored returns another Store that goes on from what s was after an entry. It gives out
// no lease id that s has given out.
func (s *Store) Restored(index int) *Store {
	at := s.entries[index]
	restored := &Store{
		entries:  slices.Clone(s.entries[:index+1]),
		versions: make(map[string][]*mvccpb.KeyValue),
		events:   make(map[int64][]*mvccpb.Event),
		leases:   make(map[int64]*leaseRecord),
		lastID:   s.lastID,
	}
	for _, versions := range s.versions {
		for _, kv := range versions {
			if kv.ModRevision <= at.rev {
				restored.add(kv)
			}
		}
	}
	for rev, events := range s.events {
		if rev <= at.rev {
			restored.events[rev] = events
		}
	}
	for id, l := range s.leases {
		if l.granted > index {
			continue
		}
		kept := *l
		if kept.ended > index {
			kept.ended = 0
		}
		restored.leases[id] = &kept
	}
	return restored
}

// Before returns the key of an event as it was before the event. It is nil if the key was
// not there or is forgotten.
func (s *Store) Before(event *mvccpb.Event) *mvccpb.KeyValue {
	before := event.Kv.ModRevision - 1
	if event.Type == clientv3.EventTypePut && event.Kv.CreateRevision > before ||
		before < s.last().compacted {
		return nil
	}
	return s.latest(string(event.Kv.Key), before)
}

// Events returns the changes from one revision to another, both included, in order.
func (s *Store) Events(from, to int64) []*mvccpb.Event {
	var events []*mvccpb.Event
	for rev := from; rev <= to; rev++ {
		if to-rev > int64(len(s.events)) { // there are gaps, as after Raise
			for _, rev := range slices.Sorted(maps.Keys(s.events)) {
				if from <= rev && rev <= to {
					events = append(events, s.events[rev]...)
				}
			}
			return events
		}
		events = append(events, s.events[rev]...)
	}
	return events
}

// Raise raises the revision, as a restore with --bump-revision does.
func (s *Store) Raise(by int64) {
	next := s.last()
	next.rev += by
	s.entries = append(s.entries, next)
}

// Txn carries out a transaction, or refuses it whole.
func (s *Store) Txn(in *pb.TxnRequest) (*pb.TxnResponse, error) {
	w := &writer{put: s.put, delete: s.delete}
	reply, err := s.Now().carryOut(in, w)
	s.append(state{}, w.events) // a refusal is an entry, too
	return reply, err
}

// Grant grants a lease. For an id of 0 it chooses one.
func (s *Store) Grant(id, ttl int64) (int64, error) {
	s.append(state{}, nil)
	if id == 0 {
		s.lastID++
		id = s.lastID
	}
	if l := s.leases[id]; l != nil && l.ended == 0 {
		return 0, rpctypes.ErrGRPCLeaseExist
	}
	s.leases[id] = &leaseRecord{ttl: ttl, granted: s.Index()}
	return id, nil
}

// Revoke ends a lease and deletes its keys, all at one revision. It reports whether
// the lease was there.
func (s *Store) Revoke(id int64) (known bool) {
	_, keys, known := s.Now().Lease(id)
	var events []*mvccpb.Event
	for _, key := range keys {
		events = append(events, s.delete([]byte(key), nil)...)
	}
	s.append(state{}, events)
	if known {
		s.leases[id].ended = s.Index()
	}
	return known
}

// Compact forgets what was before a revision.
func (s *Store) Compact(rev int64) error {
	switch now := s.last(); {
	case rev <= now.compacted:
		return rpctypes.ErrGRPCCompacted
	case rev > now.rev:
		return rpctypes.ErrGRPCFutureRev
	}
	s.append(state{compacted: rev}, nil)
	return nil
}

// append ends an entry. If there are events, the entry is a revision.
func (s *Store) append(change state, events []*mvccpb.Event) {
	next := s.last()
	next.compacted = max(next.compacted, change.compacted)
	if len(events) > 0 {
		next.rev++
		s.events[next.rev] = events
	}
	s.entries = append(s.entries, next)
}

// put puts a key at the next revision.
func (s *Store) put(in *pb.PutRequest) *mvccpb.Event {
	next := s.Rev() + 1
	kv := &mvccpb.KeyValue{
		Key: in.Key, Value: in.Value, Lease: in.Lease,
		CreateRevision: next, ModRevision: next, Version: 1,
	}
	if old := s.latest(string(in.Key), next); old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
		if in.IgnoreValue {
			kv.Value = old.Value
		}
		if in.IgnoreLease {
			kv.Lease = old.Lease
		}
	}
	s.add(kv)
	return &mvccpb.Event{Type: clientv3.EventTypePut, Kv: kv}
}

// delete deletes keys at the next revision.
func (s *Store) delete(key, end []byte) []*mvccpb.Event {
	next := s.Rev() + 1
	var events []*mvccpb.Event
	for _, kv := range s.within(key, end, next) {
		gone := &mvccpb.KeyValue{Key: kv.Key, ModRevision: next}
		s.add(gone)
		events = append(events, &mvccpb.Event{Type: clientv3.EventTypeDelete, Kv: gone})
	}
	return events
}

// add adds a version of a key.
func (s *Store) add(kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if s.versions[key] == nil {
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, at, key)
	}
	s.versions[key] = append(s.versions[key], kv)
}

// latest returns a key as it was at a revision, and nil if it was not there.
func (s *Store) latest(key string, at int64) *mvccpb.KeyValue {
	for _, kv := range slices.Backward(s.versions[key]) {
		switch {
		case kv.ModRevision > at:
		case kv.Version == 0:
			return nil
		default:
			return kv
		}
	}
	return nil
}

// within returns the keys in [key, end) as they were at a revision, sorted by key.
func (s *Store) within(key, end []byte, at int64) []*mvccpb.KeyValue {
	var kvs []*mvccpb.KeyValue
	if len(end) == 0 {
		if kv := s.latest(string(key), at); kv != nil {
			kvs = append(kvs, kv)
		}
		return kvs
	}
	first, _ := slices.BinarySearch(s.keys, string(key))
	for _, k := range s.keys[first:] {
		if !Within([]byte(k), key, end) {
			break
		}
		if kv := s.latest(k, at); kv != nil {
			kvs = append(kvs, kv)
		}
	}
	return kvs
}

// clone returns a copy that the caller may change.
func clone(kv *mvccpb.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return &mvccpb.KeyValue{
		Key: bytes.Clone(kv.Key), Value: bytes.Clone(kv.Value), Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version,
	}
}

// Within reports whether k is in [key, end). An end of one zero byte means no bound, and no
// end means the one key.
func Within(k, key, end []byte) bool {
	if len(end) == 0 {
		return bytes.Equal(k, key)
	}
	return bytes.Compare(k, key) >= 0 && (string(end) == "\x00" || bytes.Compare(k, end) < 0)
}

// A View is the Store as it was after an entry: what a member has that has carried out that
// many.
type View struct {
	s     *Store
	index int
	state
}

// Rev returns the revision of the View.
func (v View) Rev() int64 { return v.rev }

// Compacted returns the revision below which the View knows nothing.
func (v View) Compacted() int64 { return v.compacted }

// Leases returns the leases that live, sorted.
func (v View) Leases() []int64 {
	var ids []int64
	for id := range v.s.leases {
		if v.lives(id) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Lease returns the TTL of a lease in seconds, and its keys, sorted.
func (v View) Lease(id int64) (ttl int64, keys []string, known bool) {
	if !v.lives(id) {
		return 0, nil, false
	}
	for _, key := range v.s.keys {
		if kv := v.s.latest(key, v.rev); kv != nil && kv.Lease == id {
			keys = append(keys, key)
		}
	}
	return v.s.leases[id].ttl, keys, true
}

// lives reports whether a lease was granted and has not ended.
func (v View) lives(id int64) bool {
	l := v.s.leases[id]
	return l != nil && l.granted <= v.index && (l.ended == 0 || l.ended > v.index)
}

// Range carries out a read.
func (v View) Range(in *pb.RangeRequest) (*pb.RangeResponse, error) {
	if len(in.Key) == 0 {
		return nil, rpctypes.ErrGRPCEmptyKey
	}
	if err := v.checkRange(in); err != nil {
		return nil, err
	}
	return v.read(in), nil
}

func (v View) checkRange(in *pb.RangeRequest) error {
	switch {
	case in.Revision > v.rev:
		return rpctypes.ErrGRPCFutureRev
	case in.Revision > 0 && in.Revision < v.compacted:
		return rpctypes.ErrGRPCCompacted
	}
	return nil
}

func (v View) read(in *pb.RangeRequest) *pb.RangeResponse {
	at := v.rev
	if in.Revision > 0 {
		at = in.Revision
	}
	kvs := v.s.within(in.Key, in.RangeEnd, at)
	reply := &pb.RangeResponse{Header: &pb.ResponseHeader{Revision: v.rev}, Count: int64(len(kvs))}
	if in.CountOnly {
		return reply
	}
	kvs = slices.DeleteFunc(kvs, func(kv *mvccpb.KeyValue) bool {
		return in.MaxCreateRevision > 0 && kv.CreateRevision > in.MaxCreateRevision ||
			kv.CreateRevision < in.MinCreateRevision ||
			in.MaxModRevision > 0 && kv.ModRevision > in.MaxModRevision ||
			kv.ModRevision < in.MinModRevision
	})
	kvs = withinLimit(kvs, in)
	sortRange(kvs, in)
	if in.Limit > 0 && int64(len(kvs)) > in.Limit {
		kvs, reply.More = kvs[:in.Limit], true
	}
	if in.KeysOnly {
		for i, kv := range kvs {
			kvs[i] = clone(kv)
			kvs[i].Value = nil
			if in.SortTarget != pb.RangeRequest_VALUE {
				kvs[i].Lease = 0 // since 3.7 etcd reads these from its index, which knows no leases
			}
		}
	}
	reply.Kvs = kvs
	return reply
}

// withinLimit returns the keys that etcd reads. Without an order and a filter it reads only
// the first ones, one more than the limit, and sorts those.
func withinLimit(kvs []*mvccpb.KeyValue, in *pb.RangeRequest) []*mvccpb.KeyValue {
	filtered := in.MinCreateRevision != 0 || in.MaxCreateRevision != 0 ||
		in.MinModRevision != 0 || in.MaxModRevision != 0
	if in.SortOrder != pb.RangeRequest_NONE || filtered || in.Limit <= 0 ||
		in.Limit >= int64(len(kvs)) {
		return kvs
	}
	return kvs[:in.Limit+1]
}

func sortRange(kvs []*mvccpb.KeyValue, in *pb.RangeRequest) {
	if in.SortTarget == pb.RangeRequest_KEY && in.SortOrder != pb.RangeRequest_DESCEND {
		return
	}
	slices.SortStableFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		var order int
		switch in.SortTarget {
		case pb.RangeRequest_KEY:
			order = bytes.Compare(a.Key, b.Key)
		case pb.RangeRequest_VERSION:
			order = cmp.Compare(a.Version, b.Version)
		case pb.RangeRequest_CREATE:
			order = cmp.Compare(a.CreateRevision, b.CreateRevision)
		case pb.RangeRequest_MOD:
			order = cmp.Compare(a.ModRevision, b.ModRevision)
		case pb.RangeRequest_VALUE:
			order = bytes.Compare(a.Value, b.Value)
		}
		if in.SortOrder == pb.RangeRequest_DESCEND {
			return -order
		}
		return order
	})
}

// ReadOnly reports whether a transaction writes nothing on either of its sides.
func ReadOnly(in *pb.TxnRequest) bool {
	return !slices.ContainsFunc(slices.Concat(in.Success, in.Failure), func(op *pb.RequestOp) bool {
		return op.GetRequestRange() == nil
	})
}

// Txn carries out a transaction that is ReadOnly.
func (v View) Txn(in *pb.TxnRequest) (*pb.TxnResponse, error) {
	return v.carryOut(in, &writer{})
}

// A branch is what a transaction does on a View: the operations of one of its two sides,
// and the branches of the transactions among them, in order.
type branch struct {
	succeeded bool
	ops       []*pb.RequestOp
	nested    []branch
}

// choose makes the comparisons. It makes those of nested transactions, too, before anything
// is written.
func (v View) choose(in *pb.TxnRequest) branch {
	b := branch{ops: in.Success}
	b.succeeded = !slices.ContainsFunc(in.Compare, func(c *pb.Compare) bool { return !v.holds(c) })
	if !b.succeeded {
		b.ops = in.Failure
	}
	for _, op := range b.ops {
		if nested := op.GetRequestTxn(); nested != nil {
			b.nested = append(b.nested, v.choose(nested))
		}
	}
	return b
}

// check refuses a branch that cannot be carried out on v.
func (v View) check(b branch) error {
	nested := b.nested
	for _, op := range b.ops {
		var err error
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = v.checkRange(r.RequestRange)
		case *pb.RequestOp_RequestPut:
			err = v.checkPut(r.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = v.check(nested[0])
			nested = nested[1:]
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (v View) checkPut(put *pb.PutRequest) error {
	switch {
	case put.Lease != 0 && !v.lives(put.Lease):
		return rpctypes.ErrGRPCLeaseNotFound
	case (put.IgnoreValue || put.IgnoreLease) && v.s.latest(string(put.Key), v.rev) == nil:
		return rpctypes.ErrGRPCKeyNotFound
	}
	return nil
}

// A writer puts and deletes at a revision.
type writer struct {
	put    func(*pb.PutRequest) *mvccpb.Event
	delete func(key, end []byte) []*mvccpb.Event
	at     int64
	events []*mvccpb.Event
}

// carryOut carries out a transaction on v, and w writes for it. It carries out all of it or
// nothing.
func (v View) carryOut(in *pb.TxnRequest, w *writer) (*pb.TxnResponse, error) {
	if err := checkTxn(in); err != nil {
		return nil, err
	}
	b := v.choose(in)
	if err := v.check(b); err != nil {
		return nil, err
	}
	w.at = v.rev + 1
	reply, after := v.run(b, w)
	reply.Header.Revision = after.rev
	return reply, nil
}

// run carries out a branch on v, and returns the View after it.
func (v View) run(b branch, w *writer) (*pb.TxnResponse, View) {
	reply := &pb.TxnResponse{Succeeded: b.succeeded, Header: &pb.ResponseHeader{}}
	nested := b.nested
	for _, op := range b.ops {
		answer := &pb.ResponseOp{}
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestPut:
			var old *mvccpb.KeyValue
			if r.RequestPut.PrevKv {
				old = v.s.latest(string(r.RequestPut.Key), v.rev)
			}
			w.events = append(w.events, w.put(r.RequestPut))
			v.rev = w.at
			answer.Response = &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{
				Header: &pb.ResponseHeader{Revision: v.rev}, PrevKv: old,
			}}
		case *pb.RequestOp_RequestDeleteRange:
			del := r.RequestDeleteRange
			var old []*mvccpb.KeyValue
			if del.PrevKv {
				old = v.s.within(del.Key, del.RangeEnd, v.rev)
			}
			deleted := w.delete(del.Key, del.RangeEnd)
			if w.events = append(w.events, deleted...); len(w.events) > 0 {
				v.rev = w.at
			}
			answer.Response =
				&pb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: &pb.DeleteRangeResponse{
					Header: &pb.ResponseHeader{Revision: v.rev}, Deleted: int64(len(deleted)), PrevKvs: old,
				}}
		case *pb.RequestOp_RequestRange:
			answer.Response = &pb.ResponseOp_ResponseRange{ResponseRange: v.read(r.RequestRange)}
		case *pb.RequestOp_RequestTxn:
			var inner *pb.TxnResponse
			inner, v = v.run(nested[0], w)
			nested = nested[1:]
			answer.Response = &pb.ResponseOp_ResponseTxn{ResponseTxn: inner}
		}
		reply.Responses = append(reply.Responses, answer)
	}
	return reply, v
}

// checkTxn refuses a transaction that no etcd would carry out, whatever keys it has.
func checkTxn(in *pb.TxnRequest) error {
	if err := checkRequests(in); err != nil {
		return err
	}
	_, _, err := checkOverlaps(in.Success)
	if err == nil {
		_, _, err = checkOverlaps(in.Failure)
	}
	return err
}

// checkRequests checks each request of both branches by itself.
func checkRequests(in *pb.TxnRequest) error {
	for _, c := range in.Compare {
		if len(c.Key) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
	}
	for _, op := range slices.Concat(in.Success, in.Failure) {
		var err error
		switch r := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			err = checkKey(r.RequestRange.Key)
		case *pb.RequestOp_RequestDeleteRange:
			err = checkKey(r.RequestDeleteRange.Key)
		case *pb.RequestOp_RequestPut:
			err = checkPutAlone(r.RequestPut)
		case *pb.RequestOp_RequestTxn:
			err = checkRequests(r.RequestTxn)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func checkKey(key []byte) error {
	if len(key) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

func checkPutAlone(put *pb.PutRequest) error {
	switch {
	case len(put.Key) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case put.IgnoreValue && len(put.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case put.IgnoreLease && put.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

// Size returns the most operations, or comparisons, that a transaction has on one path down
// to a nested one. etcd bounds that number.
func Size(in *pb.TxnRequest) int {
	below := 0
	for _, op := range slices.Concat(in.Success, in.Failure) {
		if nested := op.GetRequestTxn(); nested != nil {
			below = max(below, Size(nested))
		}
	}
	return max(len(in.Compare), len(in.Success), len(in.Failure)) + below
}

// checkOverlaps refuses a branch that puts a key twice, or that both puts and deletes a
// key. It returns what the branch writes. The two sides of a nested transaction may put the
// same key.
func checkOverlaps(
	ops []*pb.RequestOp,
) (puts map[string]bool, dels []*pb.DeleteRangeRequest, err error) {
	puts = make(map[string]bool)
	twice := func(key string) bool {
		return puts[key] || slices.ContainsFunc(dels, func(d *pb.DeleteRangeRequest) bool {
			return Within([]byte(key), d.Key, d.RangeEnd)
		})
	}
	for _, op := range ops {
		// Here etcd takes a deletion without an upper bound for an empty range.
		if d := op.GetRequestDeleteRange(); d != nil && string(d.RangeEnd) != "\x00" {
			dels = append(dels, d)
		}
	}
	for _, op := range ops {
		nested := op.GetRequestTxn()
		if nested == nil {
			continue
		}
		then, thenDels, err := checkOverlaps(nested.Success)
		if err != nil {
			return nil, nil, err
		}
		otherwise, otherDels, err := checkOverlaps(nested.Failure)
		if err != nil {
			return nil, nil, err
		}
		either := maps.Clone(then)
		maps.Copy(either, otherwise)
		for key := range either {
			if twice(key) {
				return nil, nil, rpctypes.ErrGRPCDuplicateKey
			}
		}
		maps.Copy(puts, either)
		dels = slices.Concat(dels, thenDels, otherDels)
	}
	for _, op := range ops {
		put := op.GetRequestPut()
		if put == nil {
			continue
		}
		if twice(string(put.Key)) {
			return nil, nil, rpctypes.ErrGRPCDuplicateKey
		}
		puts[string(put.Key)] = true
	}
	return puts, dels, nil
}

// holds reports whether a comparison is true of every key in its range. For a range without
// a key it compares one key that is all zeros.
func (v View) holds(c *pb.Compare) bool {
	kvs := v.s.within(c.Key, c.RangeEnd, v.rev)
	if len(kvs) == 0 {
		if c.Target == pb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !compares(c, kv) })
}

func compares(c *pb.Compare, kv *mvccpb.KeyValue) bool {
	var order int
	switch c.Target {
	case pb.Compare_VERSION:
		order = cmp.Compare(kv.Version, c.GetVersion())
	case pb.Compare_CREATE:
		order = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case pb.Compare_MOD:
		order = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case pb.Compare_LEASE:
		order = cmp.Compare(kv.Lease, c.GetLease())
	case pb.Compare_VALUE:
		order = bytes.Compare(kv.Value, c.GetValue())
	}
	switch c.Result {
	case pb.Compare_EQUAL:
		return order == 0
	case pb.Compare_NOT_EQUAL:
		return order != 0
	case pb.Compare_GREATER:
		return order > 0
	default:
		return order < 0
	}
}
