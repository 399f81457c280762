package wire_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/hold"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A Transaction is what one verb sends.
type Transaction struct {
	Verb string          `json:"verb"`
	Txn  json.RawMessage `json:"txn"`
}

// A recorder is the KV of a client. It records the transactions.
type recorder struct {
	clientv3.KV
	verb string // of the next transaction that writes, "" for one that is not recorded
	as   names
	made []Transaction
}

// recorded is a Txn of a recorder's.
type recorded struct {
	clientv3.Txn
	r   *recorder
	its [3]any // If, Then, Else
}

func (r *recorder) Txn(ctx context.Context) clientv3.Txn {
	return &recorded{Txn: r.KV.Txn(ctx), r: r}
}

func (t *recorded) If(cs ...clientv3.Cmp) clientv3.Txn {
	t.Txn, t.its[0] = t.Txn.If(cs...), cs
	return t
}

func (t *recorded) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.its[1] = t.Txn.Then(ops...), ops
	return t
}

func (t *recorded) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.its[2] = t.Txn.Else(ops...), ops
	return t
}

func (t *recorded) Commit() (*clientv3.TxnResponse, error) {
	cs, _ := t.its[0].([]clientv3.Cmp)
	then, _ := t.its[1].([]clientv3.Op)
	if writes := func(op clientv3.Op) bool { return op.IsPut() || op.IsDelete() }; t.r.verb == "" ||
		!slices.ContainsFunc(then, writes) {
		return t.Txn.Commit()
	}
	rest, _ := t.its[2].([]clientv3.Op)
	var sent asSent
	_, _ = clientv3.NewKVFromKVClient(&sent, nil).
		Txn(context.Background()).If(cs...).Then(then...).Else(rest...).Commit()
	text, err := protojson.Marshal(t.r.as.in(sent.txn))
	if err != nil {
		return nil, err
	}
	t.r.made = append(t.r.made, Transaction{t.r.verb, text})
	t.r.verb = ""
	return t.Txn.Commit()
}

// asSent is the service of an etcd that notes a transaction.
type asSent struct {
	pb.KVClient
	txn *pb.TxnRequest
}

func (s *asSent) Txn(
	_ context.Context, in *pb.TxnRequest, _ ...grpc.CallOption,
) (*pb.TxnResponse, error) {
	s.txn = in
	return nil, errors.New("noted")
}

// names are what stands in the vectors for what differs from run to run: random UUIDs, leases, and
// the process.
type names struct {
	uuids  map[string]string
	leases map[int64]int64
}

var (
	anyUUID  = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	fraction = regexp.MustCompile(`("since":"[^".]+)\.\d+Z`)
)

// bytes is a key or a value with these names, at a whole second.
func (n names) bytes(b []byte) []byte {
	host, pid := hold.Identity()
	process, _ := json.Marshal(host)
	text := strings.NewReplacer(fmt.Sprintf(`"host":%s`, process), `"host":"h"`,
		fmt.Sprintf(`"pid":%d`, pid), `"pid":7`).Replace(string(b))
	text = fraction.ReplaceAllString(text, "${1}Z")
	return []byte(anyUUID.ReplaceAllStringFunc(text, func(id string) string {
		if n.uuids[id] == "" {
			drawn := uuid.UUID{6: 0x40, 8: 0x80, 15: byte(len(n.uuids) + 1)}
			drawn, _ = line.Draw(drawn, line.ShapeOf(line.Key("n", uuid.MustParse(id))))
			n.uuids[id] = drawn.String()
		}
		return n.uuids[id]
	}))
}

func (n names) lease(id int64) int64 {
	if n.leases[id] == 0 {
		n.leases[id] = 0x694d81417acd4700 + int64(len(n.leases)+1)
	}
	return n.leases[id]
}

// in puts these names into a message.
func (n names) in(m protoreflect.ProtoMessage) protoreflect.ProtoMessage {
	n.inMessage(m.ProtoReflect())
	return m
}

func (n names) inMessage(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case field.IsList() && field.Message() != nil:
			for i := range v.List().Len() {
				n.inMessage(v.List().Get(i).Message())
			}
		case field.Message() != nil:
			n.inMessage(v.Message())
		case field.Kind() == protoreflect.BytesKind:
			m.Set(field, protoreflect.ValueOfBytes(n.bytes(v.Bytes())))
		case field.Name() == "lease" && v.Int() != 0:
			m.Set(field, protoreflect.ValueOfInt64(n.lease(v.Int())))
		}
		return true
	})
}

// A verbs is the process whose verbs are recorded.
type verbs struct {
	*recorder
	t    *testing.T
	etcd *fake.Server
	s    *etcdlock.Session
}

// does records the transaction that a call sends.
func (v *verbs) does(verb string, call func() error) {
	v.t.Helper()
	v.verb = verb
	require.NoError(v.t, call(), verb)
	require.Empty(v.t, v.verb, "no transaction of "+verb)
}

// holds is does for a call that returns a Hold, and for its Unlock if that has a name, too.
func (v *verbs) holds(verb, unlock string, call func(context.Context) (*etcdlock.Hold, error)) {
	v.t.Helper()
	var h *etcdlock.Hold
	v.does(verb, func() (err error) {
		h, err = call(context.Background())
		return err
	})
	if unlock != "" {
		v.does(unlock, func() error { return h.Unlock(context.Background()) })
		return
	}
	require.NoError(v.t, h.Unlock(context.Background()))
}

// record has a process use each verb, and returns what it sends.
func record(t *testing.T) (made []Transaction) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		ctx := context.Background()
		client := etcd.Client("a")
		v := &verbs{t: t, etcd: etcd, recorder: &recorder{
			KV: client.KV, as: names{make(map[string]string), make(map[int64]int64)}},
		}
		client.KV = v.recorder
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(15*time.Second),
			etcdlock.WithOwner("api-7"), etcdlock.WithRecall(time.Minute), etcdlock.WithInfo("10.0.0.7:80"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(ctx)) })
		v.s = s
		v.oneName(ctx)
		v.kinds()
		v.others(ctx)
		made = v.made
	})
	return made
}

// oneName records the verbs of a Mutex.
func (v *verbs) oneName(ctx context.Context) {
	t, mu := v.t, contract.MutexOf(v.t, v.s, "n")
	v.does("Lock", func() error { return mu.Lock(ctx) })
	v.does("SetInfo", func() error { return mu.SetInfo(ctx, "10.0.0.7:81") })
	v.does("Unlock", func() error { return mu.Unlock(ctx) })
	v.does("TryLock", func() error { return mu.TryLock(ctx) })

	next := contract.MutexOf(t, v.s, "n")
	locked := tests.LockLater(next)
	v.does("Unlock, and the next Lock of the process", func() error { return mu.Unlock(ctx) })
	require.NoError(t, <-locked)
	require.NoError(t, next.Unlock(ctx))

	keys, _ := tests.Strangers(t, v.etcd, "m", 1)
	ended, cancel := context.WithCancel(ctx)
	gone := contract.Async(func() error { return contract.MutexOf(t, v.s, "m").Lock(ended) })
	synctest.Wait()
	v.does("a wait that is given up", func() error {
		cancel()
		require.ErrorIs(t, <-gone, context.Canceled)
		synctest.Wait()
		return nil
	})
	v.etcd.DeleteKey(keys[0])

	kept := contract.MutexOf(t, v.s, "k", etcdlock.WithMinHold(time.Minute))
	require.NoError(t, kept.Lock(ctx))
	v.does("Unlock before the least time of a hold is over", func() error { return kept.Unlock(ctx) })
}

// kinds records the verbs of readers, permits and several names.
func (v *verbs) kinds() {
	t := v.t
	rw := tests.RWMutexOf(t, v.s)
	v.holds("RLock", "Unlock of a reader", rw.RLock)
	v.holds("TryRLock", "", rw.TryRLock)
	sem := tests.SemaphoreOf(t, v.s, 5)
	acquire := func(ctx context.Context) (*etcdlock.Hold, error) { return sem.Acquire(ctx, 2) }
	try := func(ctx context.Context) (*etcdlock.Hold, error) { return sem.TryAcquire(ctx, 2) }
	v.holds("Acquire", "Unlock of a permit", acquire)
	v.holds("TryAcquire", "", try)
	v.holds("LockAll", "Unlock of several names", func(ctx context.Context) (*etcdlock.Hold, error) {
		return v.s.LockAll(ctx, "a", "b")
	})
	v.holds("TryLockAll", "", func(ctx context.Context) (*etcdlock.Hold, error) {
		return v.s.TryLockAll(ctx, "a", "b")
	})
}

// others records what others do to a holder.
func (v *verbs) others(ctx context.Context) {
	t, mu := v.t, contract.MutexOf(v.t, v.s, "n")
	holder := func() etcdlock.Contender {
		require.NoError(t, mu.Lock(ctx))
		return tests.PlaceOf(t, v.etcd, "n", 0)
	}
	c := holder()
	v.does("Recall", func() error {
		return etcdlock.Recall(ctx, v.recorder, c, etcdlock.RecallRequest{
			By: "op", Reason: "update", Grace: 1500 * time.Millisecond})
	})
	require.NoError(t, mu.Unlock(ctx))
	c = holder()
	v.does("Break", func() error { return etcdlock.Break(ctx, v.recorder, c) })
	synctest.Wait()
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)

	v.etcd.LoseAnswers("a", 1)
	again := contract.MutexOf(t, v.s, "l")
	locked := tests.LockLater(again)
	v.does("Lock, sent again as the answer was lost", func() error { return <-locked })
	require.NoError(t, again.Unlock(ctx))
}

// write writes vectors as they are checked in: one a line.
func write(t *testing.T, v Vectors) {
	t.Helper()
	var text bytes.Buffer
	lines := func(name string, n int, at func(i int) any, end string) {
		fmt.Fprintf(&text, " %q: [", name)
		for i := range n {
			one := json.NewEncoder(&text)
			one.SetEscapeHTML(false)
			text.WriteString([]string{"\n  ", "  "}[min(i, 1)])
			require.NoError(t, one.Encode(at(i)))
			if i < n-1 {
				text.Truncate(text.Len() - 1)
				text.WriteString(",\n")
			}
		}
		text.WriteString(" ]" + end + "\n")
	}
	text.WriteString("{\n")
	lines("keys", len(v.Keys), func(i int) any { return v.Keys[i] }, ",")
	lines("values", len(v.Values), func(i int) any { return v.Values[i] }, ",")
	lines("lines", len(v.Lines), func(i int) any { return v.Lines[i] }, ",")
	lines("transactions", len(v.Transactions), func(i int) any { return v.Transactions[i] }, "")
	text.WriteString("}\n")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o644))
}
