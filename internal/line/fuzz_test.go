package line_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// This file needs no other of the tests: continuous fuzzing compiles it by itself, see build.sh in
// .github/clusterfuzzlite.

const (
	name  = "orders/42"
	lease = 0x694d8a6e5bd0a31f
	hex   = "694d8a6e5bd0a31f"
	idA   = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
)

// ours is a value as this library puts it.
const ours = `{"owner":"api-7:1234","host":"h","pid":1,"since":"2024-01-02T03:04:05.6Z","ttl":15}`

// canonical is what a UUID in a key looks like, by its grammar.
var canonical = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z`)

// kv is a key below the name as etcd reads it. Lease 0 means no lease.
func kv(tail string, rev, lease int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(name + "/" + tail), CreateRevision: rev, Lease: lease}
}

// valueOf is what a key with a value tells.
func valueOf(value []byte) line.Value {
	return line.EntryOf(&mvccpb.KeyValue{Key: []byte(name + "/" + idA), Value: value}).Value()
}

// entryWith is a key with a value.
func entryWith(value string) line.Entry {
	return line.EntryOf(&mvccpb.KeyValue{Key: []byte(name + "/" + idA), Value: []byte(value)})
}

// A contender's key ends in a canonical UUID in lower case or in the hexadecimal of its
// own lease, and has a lease. Everything else blocks no contender.
func FuzzContenderKey(f *testing.F) {
	for _, tail := range []string{
		"", "config", hex, strings.ToUpper(hex), "0" + hex, "0x" + hex, idA, strings.ToUpper(idA),
		"6ba7b8109dad41d180b400c04fd430c8", "{" + idA + "}", "urn:uuid:" + idA, idA + "\n",
		"6ba7b810-9dad-41d1-80b4-00c04fd430cg", "6ba7b810_9dad_41d1_80b4_00c04fd430c8",
		"sub/" + idA, "/" + idA,
	} {
		f.Add(tail, int64(lease))
		f.Add(tail, int64(0))
	}
	f.Add("1", int64(1))
	f.Add("-1", int64(-1))
	f.Add("0", int64(0))
	isTail := func(tail string, lease int64) bool {
		return lease != 0 && (canonical.MatchString(tail) || tail == fmt.Sprintf("%x", lease))
	}
	f.Fuzz(func(t *testing.T, tail string, lease int64) {
		read := []*mvccpb.KeyValue{kv(tail, 7, lease)}
		e := line.EntryOf(read[0])
		want := isTail(tail, lease)
		require.Equal(t, want, e.StandsIn(name), "tail %q, lease %x", tail, lease)
		if want {
			require.Equal(t, line.Line{e}, line.Of(name, read))
			require.Equal(t, map[string]line.Line{name: {e}}, line.ByName(read))
		} else {
			require.Empty(t, line.Of(name, read))
			require.NotContains(t, line.ByName(read), name)
		}
		for _, other := range []string{"orders", "orders/4", "orders/42/", "other"} {
			tail, below := strings.CutPrefix(e.Key, line.Prefix(other))
			want := below && isTail(tail, lease)
			require.Equal(t, want, e.StandsIn(other), "contender of %q", other)
		}
		inLine, ok := e.Name()
		require.Equal(t, ok, inLine != "" && e.StandsIn(inLine))
		require.True(t, ok || !want)
	})
}

var (
	reader = regexp.MustCompile(
		`^ffffffff-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\z`)
	permit = regexp.MustCompile(
		`^fffffffe-([0-9a-f]{4})-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-([0-9a-f]{4})[0-9a-f]{8}\z`)
)

// The kind of a key is what its grammar says. Each key lies in one of the ranges, a reader's in the
// readers'; and what was drawn can be drawn again.
func FuzzKeyKind(f *testing.F) {
	for _, tail := range []string{
		"", idA, hex, "ffffffff-6ba7-8dad-81d1-80b400c04fd4", "ffffffff-6ba7-4dad-81d1-80b400c04fd4",
		"ffffffff-6ba7-8dad-c1d1-80b400c04fd4", "fffffffe-0001-8dad-81d1-00020c04fd43",
		"fffffffe-0003-8dad-81d1-00020c04fd43", "fffffffe-0000-8dad-81d1-00000c04fd43",
		"fffffffd-0001-8dad-81d1-00020c04fd43", "ffffffff.", "ffffffff-\xff", "sub/" + idA,
	} {
		f.Add(tail)
	}
	f.Fuzz(func(t *testing.T, tail string) {
		key, last := name+"/"+tail, tail[strings.LastIndexByte(tail, '/')+1:]
		var want line.Shape
		if reader.MatchString(last) {
			want.Kind = line.Read
		} else if p := permit.FindStringSubmatch(last); p != nil {
			weight, _ := strconv.ParseUint(p[1], 16, 16)
			limit, _ := strconv.ParseUint(p[2], 16, 16)
			if 0 < weight && weight <= limit {
				want = line.Shape{Kind: line.Permit, Weight: uint16(weight), Limit: uint16(limit)}
			}
		}
		require.Equal(t, want, line.ShapeOf(key), "tail %q", tail)
		var in []int
		for i, r := range line.Ranges(name) {
			if r.From <= key && key < r.To {
				in = append(in, i)
			}
		}
		require.Len(t, in, 1)
		if last == tail && want.Kind == line.Read {
			require.Equal(t, line.OfReads, in[0])
		}
		if _, id, ok := line.ParseKey(key); ok {
			require.Equal(t, key[:len(key)-len(last)]+id.String(), key)
			again, ok := line.Draw(id, want)
			require.Equal(t, id, again)
			block := strings.HasPrefix(last, "ffffffff-") || strings.HasPrefix(last, "fffffffe-")
			require.Equal(t, want.Kind != line.Exclusive || !block, ok)
		}
	})
}

// contenders makes a line of three bytes for each: its kind, its weight and its limit.
func contenders(text []byte) (l line.Line) {
	var read []*mvccpb.KeyValue
	for i := 0; i+2 < len(text) && i < 3*64; i += 3 {
		s := line.Shape{Kind: line.Kind(text[i] % line.Kinds)}
		if s.Kind == line.Permit {
			s.Limit = uint16(text[i+2])%8 + 1
			s.Weight = uint16(text[i+1])%s.Limit + 1
		}
		id, _ := line.Draw(uuid.UUID{15: byte(i)}, s)
		read = append(read, kv(id.String(), int64(i+1), 1))
	}
	return line.Of(name, read)
}

// The contenders that wait for none are the first in line, they may hold beside each other, and
// whoever may hold still may once another is gone.
func FuzzLine(f *testing.F) {
	for _, text := range [][]byte{
		nil, {0, 0, 0}, {1, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0},
		{2, 1, 4, 2, 2, 4, 2, 0, 4, 2, 0, 4}, {2, 0, 1, 2, 1, 7, 2, 0, 7, 0, 0, 0},
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		l := contenders(text)
		holds := l.Holding()
		sum, least := 0, 1<<16
		for i, e := range l {
			require.Equal(t, i < len(holds), len(l.Blocking(e)) == 0, "%d of %v", i, l)
		}
		for _, e := range holds {
			require.True(t, len(holds) == 1 || e.Kind() != line.Exclusive)
			require.Equal(t, holds[0].Kind(), e.Kind())
			s := e.Shape()
			sum, least = sum+int(s.Weight), min(least, int(s.Limit))
		}
		require.True(t, len(holds) < 2 || sum <= least || holds[0].Kind() == line.Read)
		require.Equal(t, len(l) == 0, len(holds) == 0)
		for i := range l {
			rest := slices.Delete(slices.Clone(l), i, i+1)
			for j, e := range holds {
				require.True(t, i == j || len(rest.Blocking(e)) == 0, "%d lets %d in no more", i, j)
			}
		}
	})
}

// Values of other programs do no harm, and this package reads what it writes.
func FuzzStoredValue(f *testing.F) {
	for _, value := range []string{
		"", "{}", "null", "[]", ours, `{"owner":1}`, `{"owner":"a"`, `{"OWNER":"a"}`, "\xff\xfe",
		`{"owner":"","since":"2024-01-02T03:04:05.6Z"}`, `{"since":"2024-01-02T03:04:05.6Z"}`,
		`{"owner":"a","since":"yesterday"}`, `{"owner":"\ud800"}`,
		strings.Repeat("[", 10000), `{"owner":"` + strings.Repeat("o", 9000) + `"}`,
	} {
		f.Add([]byte(value), "api-7:1234")
	}
	f.Add([]byte(nil), "\x00\"\\\n<&>\u2028\uFFFD🔒")
	f.Add([]byte(nil), strings.Repeat("\x01", 1024))
	f.Add([]byte(nil), strings.Repeat("<", 1024))
	f.Add([]byte(nil), "\xff")
	f.Fuzz(func(t *testing.T, value []byte, label string) {
		v := valueOf(value)
		if v.Owner == "" {
			require.Zero(t, v, "of a foreign key nothing is known")
		}

		if label == "" || len(label) > 1024 || !utf8.ValidString(label) {
			return // WithOwner refuses it
		}
		text, err := line.NewText(line.Value{Owner: label, Host: "host", PID: 42}, line.Exclusive)
		require.NoError(t, err)
		now := time.Now()
		stored := []byte(text.Since(now, time.Minute, 0))
		v = valueOf(stored)
		require.Equal(t, label, v.Owner)
		require.Equal(t, "host", v.Host)
		require.Equal(t, 42, v.PID)
		require.True(t, now.Equal(v.Since), "%v is not %v", v.Since, now)
		require.Equal(t, time.UTC, v.Since.Location())
		require.True(t, json.Valid(stored))
		ttl, ok := line.EntryOf(&mvccpb.KeyValue{Value: stored}).TTL()
		require.True(t, ok)
		require.Equal(t, time.Minute, ttl)
	})
}

// A text that is no request counts for nothing, and does not hide the rest of the value.
func FuzzRecall(f *testing.F) {
	for _, request := range []string{
		`null`, `7`, `{}`, `[]`, `""`, `{"id":"x"}`, `{"id":"","grace_ms":1}`, `{"id":"x","grace_ms":-1}`,
		`{"id":"x","grace_ms":1.5}`, `{"id":"x","grace_ms":1e30}`,
		`{"id":"x","grace_ms":9223372036854775807}`,
		`{"id":"x","grace_ms":1,"by":"` + strings.Repeat("b", 257) + `"}`,
		`{"id":"x","grace_ms":1,"reason":7}`,
		`{"id":"x","grace_ms":1}`, `{"id":"x","by":"op","reason":"why","grace_ms":0}`,
	} {
		f.Add(request)
	}
	f.Fuzz(func(t *testing.T, request string) {
		e := entryWith(strings.TrimSuffix(ours, "}") + `,"recall":` + request + `}`)
		r, ok := e.Recall()
		if !ok {
			require.Zero(t, r.ID+r.By+r.Reason)
			return
		}
		require.NoError(t, r.Check())
		require.NotEmpty(t, r.ID)
		value, err := e.Recalled(r)
		require.NoError(t, err)
		again, ok := entryWith(value).Recall()
		require.True(t, ok)
		require.Equal(t, r, again)
	})
}

// decoded is JSON of whatever kind, with its numbers as they are written.
func decoded(t require.TestingT, text json.RawMessage) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	return v
}

// To change one field of a value leaves the others as they are, whoever has put them.
func FuzzEditedValue(f *testing.F) {
	for _, value := range []string{
		"", "{}", "null", ours, `{"owner":"a","future":{"a":[1,2.50,1e999]}}`, `{"info":1,"INFO":"x"}`,
		`{"a":"\u2028<&>"}`, `{"recall":{"id":"x","grace_ms":1},"ttl":15}`, `{"until":"x"}`,
		` {"ttl" : 15} `,
	} {
		f.Add([]byte(value), "10.0.0.7:80")
	}
	f.Fuzz(func(t *testing.T, value []byte, info string) {
		e := entryWith(string(value))
		edited, err := e.Informed(info)
		var was, is map[string]json.RawMessage
		require.Equal(t, json.Unmarshal(value, &was) != nil || was == nil, err != nil)
		if err != nil {
			return
		}
		require.NoError(t, json.Unmarshal([]byte(edited), &is))
		if utf8.ValidString(info) {
			var stored string
			require.NoError(t, json.Unmarshal(is["info"], &stored))
			require.Equal(t, info, stored)
		}
		for field, what := range was {
			if field != "info" {
				require.Equal(t, decoded(t, what), decoded(t, is[field]), field)
			}
		}
		delete(was, "info")
		delete(is, "info")
		require.Len(t, is, len(was))
		if ttl, ok := e.TTL(); ok && strings.Count(string(value), `"ttl":`) == 1 {
			after, _ := e.With(edited, 1).TTL()
			require.Equal(t, ttl, after)
		}
	})
}
