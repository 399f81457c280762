package line_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
)

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
