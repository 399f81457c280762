// Package wire checks docs/wire.md: its test vectors, against the library's own parsers and what
// its verbs send, and with a client in another language that knows nothing but the page.
package wire_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

const file = "../../../docs/wire.json"

var recording = flag.Bool("record", false,
	"write the transactions of "+file+" as this library sends them")

// Vectors are the test vectors. Numbers of 64 bits are strings, as in the JSON of protobuf.
type Vectors struct {
	Keys         []Key         `json:"keys"`
	Values       []Value       `json:"values"`
	Lines        []Line        `json:"lines"`
	Transactions []Transaction `json:"transactions"`
}

// A Key is a key on a lease: a contender of a kind for a name, or none.
type Key struct {
	Key    string `json:"key"`
	Lease  int64  `json:"lease,string"`
	Name   string `json:"name,omitempty"`
	Kind   string `json:"kind,omitempty"`
	Weight uint16 `json:"weight,omitempty"`
	Limit  uint16 `json:"limit,omitempty"`
	None   string `json:"none,omitempty"` // why it is no contender
}

// A Value is what the value of a key says. TTL is in seconds: 0 if no hold is left at the key, and
// null if the value does not tell.
type Value struct {
	Value  string  `json:"value"`
	Says   *Says   `json:"says"` // null: it is not this library's
	TTL    *int64  `json:"ttl"`
	Recall *Recall `json:"recall"`
}

// Says is what people are told.
type Says struct {
	Owner      string    `json:"owner"`
	Host       string    `json:"host"`
	PID        int       `json:"pid"`
	Mode       string    `json:"mode,omitempty"`
	Info       string    `json:"info,omitempty"`
	Recallable bool      `json:"recallable,omitempty"`
	After      int64     `json:"after,omitempty"`
	Since      time.Time `json:"since"`
	Until      time.Time `json:"until,omitzero"`
}

// A Recall is the request in a value.
type Recall struct {
	ID     string `json:"id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
	Grace  int64  `json:"grace_ms"`
}

// A Line is what a read of the keys below "n/" has returned, in the order of the keys, and what
// follows. Keys are told by their place there, from 0.
type Line struct {
	Is    string     `json:"is"`
	Read  []Standing `json:"read"`
	Order []int      `json:"order"` // of the contenders
	Holds []int      `json:"holds"`
	Waits [][]int    `json:"waits"` // for whom each of Order waits
}

// A Standing is a key that was read.
type Standing struct {
	Key    string `json:"key"`
	Create int64  `json:"create_revision,string"`
	Lease  int64  `json:"lease,string"`
}

func read(t *testing.T) (v Vectors) {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

// The parser of keys says of each what the vector says.
func TestTheKeysOfThePage(t *testing.T) {
	kinds := make(map[string]int)
	for _, k := range read(t).Keys {
		e := line.EntryOf(&mvccpb.KeyValue{Key: []byte(k.Key), CreateRevision: 2, Lease: k.Lease})
		got := Key{Key: k.Key, Lease: k.Lease, None: k.None}
		if name, stands := e.Name(); stands {
			shape := e.Shape()
			got.Name, got.Kind, got.None = name, shape.Kind.String(), ""
			got.Weight, got.Limit = shape.Weight, shape.Limit
		}
		require.Equal(t, k, got)
		require.NotEqual(t, k.None == "", k.Kind == "", k.Key)
		kinds[k.Kind]++
	}
	require.Len(t, kinds, 1+line.Kinds, "of each kind, and of none")
}

// The parsers of values say of each what the vector says.
func TestTheValuesOfThePage(t *testing.T) {
	values := read(t).Values
	require.NotEmpty(t, values)
	for _, v := range values {
		e := line.EntryOf(&mvccpb.KeyValue{Value: []byte(v.Value)})
		got := Value{Value: v.Value}
		if o := e.Value(); o != (line.Value{}) {
			got.Says = &Says{o.Owner, o.Host, o.PID, o.Mode, o.Info, o.Recallable, o.After,
				o.Since, o.Until}
		}
		if ttl, told := e.TTL(); told {
			seconds := int64(ttl / time.Second)
			got.TTL = &seconds
		}
		if r, ok := e.Recall(); ok {
			got.Recall = &Recall{r.ID, r.By, r.Reason, r.Grace.Milliseconds()}
		}
		require.Equal(t, v, got)
	}
}

// The rule of entry says of each line what the vector says.
func TestTheLinesOfThePage(t *testing.T) {
	lines := read(t).Lines
	require.NotEmpty(t, lines)
	for _, l := range lines {
		kvs := make([]*mvccpb.KeyValue, len(l.Read))
		place := make(map[int64]int) // by the create revision
		for i, k := range l.Read {
			kvs[i] = &mvccpb.KeyValue{Key: []byte(k.Key), CreateRevision: k.Create, Lease: k.Lease}
			place[k.Create] = i
			require.True(t, i == 0 || l.Read[i-1].Key < k.Key, "%s: etcd reads in order", l.Is)
		}
		places := func(of line.Line) []int {
			at := make([]int, len(of))
			for i, e := range of {
				at[i] = place[e.Rev]
			}
			return at
		}
		stands := line.Of("n", kvs)
		got := Line{Is: l.Is, Read: l.Read, Order: places(stands), Holds: places(stands.Holding()),
			Waits: [][]int{}}
		for _, e := range stands {
			got.Waits = append(got.Waits, places(stands.Blocking(e)))
		}
		require.Equal(t, l, got)
	}
}

// Each verb sends what the vector says.
func TestTheTransactionsOfThePage(t *testing.T) {
	made := record(t)
	v := read(t)
	if *recording {
		v.Transactions = made
		write(t, v)
	}
	require.Len(t, v.Transactions, len(made))
	for i, sent := range made {
		require.Equal(t, v.Transactions[i].Verb, sent.Verb)
		require.JSONEq(t, string(v.Transactions[i].Txn), string(sent.Txn), sent.Verb)
	}
}
