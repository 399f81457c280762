package line_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock/internal/line"
)

// canonical is what a UUID in a key looks like, by its grammar.
var canonical = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\z`)

// Rule 14: which keys are contenders, and which block no contender.
func TestWhoStandsInLine(t *testing.T) {
	rows := []struct {
		promise string
		tail    string
		lease   int64
		stands  bool
	}{
		{"a UUID of version 4", idA, 1, true},
		{"one of version 8, whose kind another version knows",
			"ffffffff-6ba7-8dad-81d1-80b400c04fd4", 1, true},
		{"one of no version", idB, 1, true},
		{"the key's own lease in hexadecimal", hex, lease, true},
		{"another lease in hexadecimal", hex, lease + 1, false},
		{"a lease with a zero before it", "0" + hex, lease, false},
		{"a lease in upper case", strings.ToUpper(hex), lease, false},
		{"a UUID without a lease", idA, 0, false},
		{"no lease, in hexadecimal", "0", 0, false},
		{"a UUID in upper case", strings.ToUpper(idA), 1, false},
		{"a UUID without hyphens", strings.ReplaceAll(idA, "-", ""), 1, false},
		{"a UUID in braces", "{" + idA + "}", 1, false},
		{"a UUID and more", idA + "\n", 1, false},
		{"36 bytes that are none", strings.Replace(idA, "-", "_", 1), 1, false},
		{"a digit that is none", strings.Replace(idA, "b", "g", 1), 1, false},
		{"what lies between digits and letters", strings.Replace(idA, "b", ":", 1), 1, false},
		{"a stray key", "config", 1, false},
		{"nothing", "", 1, false},
		{"a key of a nested name", "sub/" + idA, 1, false},
		{"a key below an empty name", "/" + idA, 1, false},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			e := line.EntryOf(kv(row.tail, 7, row.lease))
			require.Equal(t, row.stands, e.StandsIn(name))
			require.False(t, e.StandsIn("orders"), "the name around it")
			require.False(t, e.StandsIn("orders/4"), "a name that its own begins with")
			require.False(t, e.StandsIn(e.Key))
		})
	}
}

// ParseKey takes a key that was drawn apart into its parts, and no other key.
func TestKeysAreTakenApart(t *testing.T) {
	id := uuid.MustParse(idA)
	for _, name := range []string{"a", "a/b", "orders/42", "🔒"} {
		key := line.Key(name, id)
		require.Equal(t, name+"/"+idA, key)
		require.True(t, strings.HasPrefix(key, line.Prefix(name)))
		gotName, gotID, ok := line.ParseKey(key)
		require.True(t, ok)
		require.Equal(t, name, gotName)
		require.Equal(t, id, gotID)
		require.True(t, line.Entry{Key: key, Lease: 1}.StandsIn(name))
	}
	for _, key := range []string{
		"", "/", "a", "a/", "a/" + hex, "a/{" + idA + "}", "a/" + strings.ToUpper(idA),
		"a/" + idA + "/",
	} {
		_, _, ok := line.ParseKey(key)
		require.False(t, ok, "key %q", key)
	}
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
