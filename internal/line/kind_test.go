package line_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
)

// The key shows the kind of its contender. A key that is not written as its kind requires
// is exclusive: versions that know less, and etcd's own Mutex, take it for that, too.
func TestTheKeyTellsTheKind(t *testing.T) {
	for tail, kind := range map[string]line.Kind{
		"ffffffff-6ba7-8dad-81d1-80b400c04fd4": line.Read,
		"ffffffff-0000-8000-8000-000000000000": line.Read,
		"ffffffff-ffff-8fff-bfff-ffffffffffff": line.Read,
		"ffffffff-6ba7-8dad-91d1-80b400c04fd4": line.Read,
		"ffffffff-6ba7-8dad-a1d1-80b400c04fd4": line.Read,

		"ffffffff-6ba7-4dad-81d1-80b400c04fd4":  line.Exclusive, // version 4, by chance
		"ffffffff-6ba7-7dad-81d1-80b400c04fd4":  line.Exclusive,
		"ffffffff-6ba7-9dad-81d1-80b400c04fd4":  line.Exclusive,
		"ffffffff-6ba7-8dad-71d1-80b400c04fd4":  line.Exclusive, // another variant
		"ffffffff-6ba7-8dad-c1d1-80b400c04fd4":  line.Exclusive,
		"FFFFFFFF-6BA7-8DAD-81D1-80B400C04FD4":  line.Exclusive, // no contender at all
		"ffffffff-6ba7-8dad-81d1-80b400c04fd":   line.Exclusive,
		"ffffffff-6ba7-8dad-81d1-80b400c04fd40": line.Exclusive,
		"fffffffe-0001-8dad-81d1-00020c04fd43":  line.Permit,
		"fffffffe-0001-8000-8000-000100000000":  line.Permit,
		"fffffffe-ffff-8fff-bfff-ffffffffffff":  line.Permit,
		"fffffffe-0000-8dad-81d1-00020c04fd43":  line.Exclusive, // no weight
		"fffffffe-0000-8dad-81d1-00000c04fd43":  line.Exclusive,
		"fffffffe-0001-8dad-81d1-00000c04fd43":  line.Exclusive, // no limit
		"fffffffe-0003-8dad-81d1-00020c04fd43":  line.Exclusive, // more than the limit
		"fffffffe-0001-4dad-81d1-00020c04fd43":  line.Exclusive, // version 4, by chance
		"fffffffe-0001-8dad-71d1-00020c04fd43":  line.Exclusive, // another variant
		"fffffffd-6ba7-8dad-81d1-80b400c04fd4":  line.Exclusive,
		"6ba7b810-9dad-81d1-80b4-00c04fd430c8":  line.Exclusive,
		idA:                                     line.Exclusive, hex: line.Exclusive,
		"ffffffff0": line.Exclusive, "": line.Exclusive,
	} {
		require.Equal(t, kind, line.Entry{Key: name + "/" + tail}.Kind(), "%s", tail)
	}
	require.Equal(t, "exclusive", line.Exclusive.String())
	require.Equal(t, "read", line.Read.String())
	require.Equal(t, "permit", line.Permit.String())
}

// An id that was drawn is of its kind, wherever the random bits lie. Otherwise another is
// drawn.
func TestWhatIsDrawnIsOfItsKind(t *testing.T) {
	for range 1000 {
		id := uuid.New()
		of, ok := line.Draw(id, line.Shape{Kind: line.Read})
		require.True(t, ok)
		key := line.Key(name, of)
		require.Equal(t, line.Read, line.ShapeOf(key).Kind, "%s", key)
		require.NotEqual(t, of, uuid.MustParse("ffffffff-ffff-ffff-ffff-ffffffffffff"))
		of, ok = line.Draw(id, line.Shape{})
		require.Equal(t, !strings.HasPrefix(id.String(), "fffffff"), ok)
		require.Equal(t, id, of)
	}
	for block, ok := range map[string]bool{"ffffffff": false, "fffffffe": false, "fffffffd": true} {
		_, usable := line.Draw(uuid.MustParse(block+"-6ba7-4dad-81d1-80b400c04fd4"), line.Shape{})
		require.Equal(t, ok, usable, "%s", block)
	}
}

// A permit's key tells its weight and its limit.
func TestTheKeyOfAPermitTellsWeightAndLimit(t *testing.T) {
	for _, s := range []line.Shape{
		{line.Permit, 1, 1}, {line.Permit, 1, 2}, {line.Permit, 255, 256}, {line.Permit, 0x9abc, 0xdef0},
		{line.Permit, 1, 65535}, {line.Permit, 65535, 65535}, {Kind: line.Read}, {},
	} {
		for range 100 {
			id, ok := line.Draw(uuid.New(), s)
			require.True(t, ok)
			key := line.Key(name, id)
			require.Equal(t, s, line.ShapeOf(key), "%s", key)
			permits := line.Permits(name)
			require.Equal(t, s.Kind == line.Permit, permits.From <= key && key < permits.To, "%s", key)
			_, _, ok = line.ParseKey(key)
			require.True(t, ok)
		}
	}
	id := uuid.MustParse("fffffffe-0102-8333-8444-0a0b0c0d0e0f")
	require.Equal(t, line.Shape{line.Permit, 0x0102, 0x0a0b}, line.ShapeOf(line.Key(name, id)))
	require.Equal(t, 12, line.Told(id))
	require.Equal(t, 8, line.Told(uuid.New()))
	require.Equal(t, "fffffffe-", strings.TrimPrefix(line.Permits(name).From, name+"/"))
}

// The three ranges have all keys below the name, each key in one of them. The middle one
// has all readers.
func TestTheRangesAreAllThereIs(t *testing.T) {
	ranges := line.Ranges(name)
	require.Equal(t, name+"/", ranges[0].From)
	require.Equal(t, name+"0", ranges[2].To)
	for i := range 2 {
		require.Equal(t, ranges[i].To, ranges[i+1].From)
	}
	within := func(r line.Range, key string) bool { return r.From <= key && key < r.To }
	for _, tail := range []string{
		"", "config", idA, idB, idC, hex, "ffffffff", "ffffffff0", "ffffffffffffffff", "g", "\xff",
		"ffffffff-6ba7-8dad-81d1-80b400c04fd4", "ffffffff-ffff-8fff-bfff-ffffffffffff",
		"ffffffff-6ba7-4dad-81d1-80b400c04fd4", "fffffffe-0001-8dad-81d1-00020c04fd43",
		"ffffffff-", "ffffffff-\xff", "ffffffff.",
	} {
		key, in := name+"/"+tail, 0
		for i, r := range ranges {
			if within(r, key) {
				in++
				require.False(t, i != 1 && line.ShapeOf(key).Kind == line.Read, "%s", tail)
			}
		}
		require.Equal(t, 1, in, "%q", tail)
	}
	for _, key := range []string{name, name + "0", name + ".", "orders/420", "orders/4"} {
		for _, r := range ranges {
			require.False(t, within(r, key), "%q", key)
		}
	}
}
