package line

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// An Entry is a key as it was read. A key that was not there has no revision.
type Entry struct {
	Key   string
	Rev   int64 // create revision; no other use of the key has it
	Lease int64
	Mod   int64 // mod revision, at which its value was put; 0 if e was not read

	value []byte // parsed on demand
}

// EntryOf is the key that was read. The event of a deletion has nothing but the key's name.
func EntryOf(kv *mvccpb.KeyValue) Entry {
	return Entry{string(kv.Key), kv.CreateRevision, kv.Lease, kv.ModRevision, kv.Value}
}

// Find returns the entry of a key, in line or not, among the keys that were read.
func Find(kvs []*mvccpb.KeyValue, key string) (e Entry, there bool) {
	for _, kv := range kvs {
		if string(kv.Key) == key {
			return EntryOf(kv), true
		}
	}
	return Entry{Key: key}, false
}

// Prefix is the prefix of all keys in the line for the lock name. Not every key with this
// prefix is a contender; see Entry.StandsIn.
func Prefix(name string) string { return name + "/" }

// Whole is the range of all keys with the Prefix of a name.
func Whole(name string) Range { return Range{From: Prefix(name), To: name + string('/'+1)} }

// Key is the key of a contender for the lock name, as this library puts it.
func Key(name string, id uuid.UUID) string { return Prefix(name) + id.String() }

// ParseKey splits what Key has put together. ok is false for any other key.
func ParseKey(key string) (name string, id uuid.UUID, ok bool) {
	name, tail := cut(key)
	if !isUUID(tail) {
		return "", uuid.UUID{}, false
	}
	id, err := uuid.Parse(tail)
	return name, id, err == nil
}

// StandsIn reports whether e stands in line for the lock name: whether the rest of its key is a
// canonical UUID in lower case, of whatever version, as this library puts it, or its own lease in
// hexadecimal, as concurrency.Mutex, etcdctl lock and the server's lock service put it. See Kind
// for the versions. Other keys block no contender: keys without a lease, keys of nested names, and
// whatever else people keep below the prefix.
func (e Entry) StandsIn(name string) bool {
	tail, below := strings.CutPrefix(e.Key, name)
	return below && e.Lease != 0 && tail != "" && tail[0] == '/' &&
		(isUUID(tail[1:]) || tail[1:] == strconv.FormatInt(e.Lease, 16))
}

// MayStandIn reports whether e, whose lease is unknown, could stand in line for the lock
// name. (A range that reads only keys returns no lease.) It is true for every contender.
func (e Entry) MayStandIn(name string) bool {
	tail, below := strings.CutPrefix(e.Key, name)
	return below && tail != "" && tail[0] == '/' && (isUUID(tail[1:]) || leaseIn(tail[1:]) != 0)
}

// LeaseByKey is the lease with which e would stand in line, for an e that may. It is the
// lease that the key tells, or 0 if any lease will do.
func (e Entry) LeaseByKey() int64 {
	_, tail := cut(e.Key)
	return leaseIn(tail)
}

// leaseIn is the lease that tail writes in hexadecimal, or 0 if it writes none.
func leaseIn(tail string) int64 {
	lease, err := strconv.ParseInt(tail, 16, 64)
	if err != nil || strconv.FormatInt(lease, 16) != tail {
		return 0
	}
	return lease
}

// Name is the lock in whose line e stands. ok is false if it stands in none.
func (e Entry) Name() (name string, ok bool) {
	name, _ = cut(e.Key)
	if name == "" || !e.StandsIn(name) {
		return "", false
	}
	return name, true
}

// cut cuts a key at its last "/".
func cut(key string) (name, tail string) {
	slash := strings.LastIndexByte(key, '/')
	return key[:max(slash, 0)], key[slash+1:]
}

// isUUID reports whether tail is a UUID as this library puts it: canonical, in lower case.
func isUUID(tail string) bool {
	if len(tail) != 36 {
		return false
	}
	for i := range len(tail) {
		switch c := tail[i]; {
		case i == 8 || i == 13 || i == 18 || i == 23:
			if c != '-' {
				return false
			}
		case c < '0' || c > 'f' || c > '9' && c < 'a':
			return false
		}
	}
	return true
}

// Kind is the kind of e.
func (e Entry) Kind() Kind { return ShapeOf(e.Key).Kind }

// Shape is the shape of e.
func (e Entry) Shape() Shape { return ShapeOf(e.Key) }

// MaxInfo is the greatest length of a Value's Info, in bytes.
const MaxInfo = 1024

// maxValue is the longest value that this package parses, in bytes. Ours are shorter: each
// byte takes at most six in JSON, the label has at most 1,024, the info too, a host's name
// 253, and a recall twice 256.
const maxValue = 20 * 1024

// DropLong drops the values that are too long to be parsed. They tell nothing, and may be many.
func DropLong(kvs ...*mvccpb.KeyValue) {
	for _, kv := range kvs {
		if len(kv.Value) > maxValue {
			kv.Value = nil
		}
	}
}

// A Value is what a contender's key holds, for people and operators.
type Value struct {
	Owner string `json:"owner"`
	Host  string `json:"host"`
	PID   int    `json:"pid"`
	Mode  string `json:"mode,omitempty"` // of a key that is not exclusive; the key itself decides

	Info       string `json:"info,omitempty"`
	Recallable bool   `json:"recallable,omitempty"` // its holder heeds a Recall

	After int64 `json:"after,omitempty"` // the token of the hold within which it was asked for

	TTL   int64     `json:"ttl,omitempty"`  // of its lease, in seconds; see Entry.TTL
	Until time.Time `json:"until,omitzero"` // of a key that outlasts its hold
	Since time.Time `json:"since"`          // the last one
}

// Value is e's parsed value, or the zero Value if it is not ours.
func (e Entry) Value() Value {
	var v Value
	if len(e.value) > maxValue || json.Unmarshal(e.value, &v) != nil || v.Owner == "" {
		return Value{}
	}
	return v
}

// A Text is the value of a key without the time and the TTL, which stand at its end: the part that
// does not change from one key of a contender to the next.
type Text string

// NewText is the Text for a contender of a kind, with all of v but its mode, its time and its TTL.
func NewText(v Value, k Kind) (Text, error) {
	if k != Exclusive {
		v.Mode = k.String()
	}
	text, err := json.Marshal(v)
	return Text(strings.TrimSuffix(string(text), `"0001-01-01T00:00:00Z"}`)), err
}

// sinceField is how a Text ends.
const sinceField = `"since":`

// within is t for a key that is asked for within the hold of a token.
func (t Text) within(token int64) Text {
	text := strings.TrimSuffix(string(t), sinceField)
	return Text(text + `"after":` + strconv.FormatInt(token, 10) + "," + sinceField)
}

// Since is the value of a key that is put at a time, with a lease of a TTL, and within the
// hold of a token, 0 if there is none.
func (t Text) Since(at time.Time, ttl time.Duration, after int64) string {
	if after != 0 {
		t = t.within(after)
	}
	last := make([]byte, 0, len(`"`+time.RFC3339Nano+`"`+ttlField+`9000000000}`))
	last = append(append(appendTime(last, at), ','), ttlField...)
	// with one allocation
	return string(t) + string(strconv.AppendInt(last, int64(ttl/time.Second), 10)) + "}"
}

// Kept is the value of a key that was put at a time and stays until another, though its hold has
// ended. It tells no TTL: see Entry.TTL.
func (t Text) Kept(since, until time.Time) string {
	last := append(appendTime(nil, since), ","+untilField...)
	return string(t) + string(appendTime(last, until)) + "}"
}

// appendTime appends a time to b, as JSON.
func appendTime(b []byte, at time.Time) []byte {
	return append(at.UTC().AppendFormat(append(b, '"'), time.RFC3339Nano), '"')
}

// TTLs is what is known of e's TTL.
func (e Entry) TTLs() TTLs {
	ttl, told := e.TTL()
	return TTLs{ttl, !told}
}

// The fields that Entry.TTL looks for. In a value that is JSON nothing else looks like them: in a
// string, a quotation mark has a backslash before it.
const (
	ttlField   = `"ttl":`
	untilField = `"until":`
)

// maxTTL is the longest TTL that etcd grants, in seconds.
const maxTTL = 9_000_000_000

// TTL is the TTL of e's lease, as e's value tells it. A hold at e is over at the latest that long
// after its holder last heard from etcd. It is 0 for a key that stays though its hold has ended: no
// hold is left. ok is false if the value does not tell: it was not read, or it is not ours.
//
// It is asked of each key that is read, and so it does not parse the value.
func (e Entry) TTL() (ttl time.Duration, ok bool) {
	if bytes.Contains(e.value, []byte(untilField)) {
		return 0, true
	}
	_, rest, ok := bytes.Cut(e.value, []byte(ttlField))
	digits := bytes.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if !ok || digits < 0 || rest[digits] != ',' && rest[digits] != '}' {
		return 0, false
	}
	seconds, err := strconv.ParseInt(string(rest[:digits]), 10, 64)
	if err != nil || seconds < 1 || seconds > maxTTL {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}

// Stored is the value as it was read.
func (e Entry) Stored() string { return string(e.value) }

// Bare reports whether e has no value: it is not this library's key, or only the key was read.
func (e Entry) Bare() bool { return len(e.value) == 0 }

// MaxRecallText is the greatest length of a Recall's By and Reason, in bytes.
const MaxRecallText = 256

// A Recall is a request to the holder, in the value of its key, to give the lock back. A
// transaction puts it there that keeps the key's lease and place.
type Recall struct {
	ID         string // tells requests apart
	By, Reason string // for people
	Grace      time.Duration
}

// storedRecall is a Recall in a value.
type storedRecall struct {
	ID     string `json:"id"`
	By     string `json:"by"`
	Reason string `json:"reason"`
	Grace  *int64 `json:"grace_ms"`
}

// Check returns an error if r cannot be made.
func (r Recall) Check() error {
	switch {
	case r.Grace < 0:
		return fmt.Errorf("the grace %v is negative", r.Grace)
	case len(r.By) > MaxRecallText || len(r.Reason) > MaxRecallText:
		return errors.New("who asks, or why, is longer than 256 bytes")
	case !utf8.ValidString(r.By) || !utf8.ValidString(r.Reason):
		return errors.New("who asks, or why, is not valid UTF-8")
	}
	return nil
}

// Recall is the request in e's value. ok is false if there is none, or one that is not well
// formed: that counts for nothing.
func (e Entry) Recall() (r Recall, ok bool) {
	var v struct {
		Recall json.RawMessage `json:"recall"`
	}
	if len(e.value) > maxValue || !bytes.Contains(e.value, []byte(`"recall"`)) ||
		json.Unmarshal(e.value, &v) != nil {
		return Recall{}, false
	}
	var stored storedRecall
	if json.Unmarshal(v.Recall, &stored) != nil || stored.ID == "" || stored.Grace == nil {
		return Recall{}, false
	}
	const most = math.MaxInt64 / int64(time.Millisecond)
	r = Recall{ID: stored.ID, By: stored.By, Reason: stored.Reason}
	r.Grace = time.Duration(min(*stored.Grace, most)) * time.Millisecond
	if *stored.Grace < 0 || r.Check() != nil {
		return Recall{}, false
	}
	return r, true
}

// Recalled is e's value with the request r in place of any earlier one. r's Grace is rounded up to
// milliseconds.
func (e Entry) Recalled(r Recall) (string, error) {
	ms := int64((r.Grace-1)/time.Millisecond) + 1
	if r.Grace == 0 {
		ms = 0
	}
	return e.with("recall", storedRecall{r.ID, r.By, r.Reason, &ms})
}

// Informed is e's value with another Info.
func (e Entry) Informed(info string) (string, error) { return e.with("info", info) }

// With is e as it is once a transaction has put a value over it at a revision.
func (e Entry) With(value string, at int64) Entry {
	e.value, e.Mod = []byte(value), at
	return e
}

// with is e's value with another field. Everything else in the value stays as it is, whether this
// version knows it or not.
func (e Entry) with(field string, what any) (string, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(e.value, &fields); err != nil {
		return "", err
	}
	if fields == nil {
		return "", errors.New("the value is null")
	}
	stored, err := json.Marshal(what)
	if err != nil {
		return "", err
	}
	fields[field] = stored
	value, err := json.Marshal(fields)
	return string(value), err
}

// CheckInfo returns an error if info cannot be an Info.
func CheckInfo(info string) error {
	switch {
	case len(info) > MaxInfo:
		return fmt.Errorf("%d bytes, more than %d", len(info), MaxInfo)
	case !utf8.ValidString(info):
		return errors.New("not valid UTF-8")
	}
	return nil
}
