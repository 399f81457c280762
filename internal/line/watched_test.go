package line_test

import (
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/line"
)

// A lineInEtcd is a line as keys come and go, with what a Watched has been told of it.
type lineInEtcd struct {
	watched line.Watched
	rev     int64
	stands  map[string]line.Entry
	coming  []line.Entry // events that the watch has not told yet
	before  []line.Entry // what stood in line when own was put
	own     line.Entry   // without a revision before it was put
}

func (l *lineInEtcd) put(key string, lease int64) line.Entry {
	l.rev++
	e := line.Entry{Key: key, Rev: l.rev, Mod: l.rev, Lease: lease}
	l.stands[key] = e
	l.coming = append(l.coming, e)
	return e
}

func (l *lineInEtcd) remove(key string) {
	l.rev++
	delete(l.stands, key)
	l.coming = append(l.coming, line.Entry{Key: key, Mod: l.rev})
}

func (l *lineInEtcd) all() (all []line.Entry) {
	for _, e := range l.stands {
		all = append(all, e)
	}
	return all
}

func (l *lineInEtcd) read() { l.watched.Read("x", l.all(), l.rev) }

// tell has the watch tell the first n events that it has not told.
func (l *lineInEtcd) tell(n int) {
	if n > 0 {
		l.watched.Apply("x", append([]line.Entry(nil), l.coming[:n]...), l.coming[n-1].Mod)
		l.coming = l.coming[n:]
	}
}

// gone are the contenders before own that the Watched proves gone.
func (l *lineInEtcd) gone() (gone []line.Entry) {
	for _, e := range l.before {
		if l.watched.Gone(e, l.own) {
			gone = append(gone, e)
		}
	}
	return gone
}

// In whatever order events and the answers of reads come: a contender is proven gone only if it has
// gone, and once all has come, each that has gone is. The names of keys are used again.
func TestAWatchedProvesGoneWhatHasGone(t *testing.T) {
	proven := 0
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 0))
		keys := make([]string, 4)
		for i := range keys {
			shape := line.Shape{Kind: line.Read}
			if random.IntN(4) == 0 {
				shape = line.Shape{Kind: line.Permit, Weight: 1, Limit: 2}
			}
			id, _ := line.Draw(uuid.New(), shape)
			keys[i] = line.Key("x", id)
		}
		l := &lineInEtcd{stands: map[string]line.Entry{}}
		l.read()
		for range 30 {
			key := keys[random.IntN(len(keys))]
			switch _, stands := l.stands[key]; {
			case l.own.Rev == 0 && random.IntN(8) == 0:
				l.before = l.all()
				l.own = l.put(line.Key("x", uuid.New()), 7)
			case random.IntN(4) == 0:
				l.tell(random.IntN(len(l.coming) + 1))
			case random.IntN(6) == 0:
				l.read()
			case stands:
				l.remove(key)
			default:
				l.put(key, 8)
			}
			for _, e := range l.gone() {
				require.NotEqual(t, e.Rev, l.stands[e.Key].Rev, "seed %d: %v stands", seed, e)
			}
			if found, at := l.watched.Own(l.own); l.own.Rev != 0 && at != 0 {
				require.Equal(t, l.own, found, "seed %d", seed)
			}
		}
		l.tell(len(l.coming))
		others := 0
		for key := range l.stands {
			if line.ShapeOf(key).Kind != line.Read {
				others++
			}
		}
		require.Equal(t, others > 0, l.watched.AnyBut(line.Read), "seed %d", seed)
		require.Equal(t, len(l.stands), l.watched.Len(), "seed %d", seed)
		for _, e := range l.before {
			gone := l.stands[e.Key].Rev != e.Rev
			require.Equal(t, gone, l.watched.Gone(e, l.own), "seed %d: %v", seed, e)
			if gone {
				proven++
			}
		}
	}
	require.Greater(t, proven, 1000)
}

// What was read before own was put may be of another epoch: it proves nothing.
func TestAWatchedFromBeforeAPutProvesNothing(t *testing.T) {
	l := &lineInEtcd{stands: map[string]line.Entry{}}
	l.read()
	ahead := l.put(line.Key("x", uuid.New()), 8)
	l.before, l.own = l.all(), l.put(line.Key("x", uuid.New()), 7)
	require.Empty(t, l.gone())
	_, at := l.watched.Own(l.own)
	require.Zero(t, at)
	l.watched.Apply("x", []line.Entry{l.own}, l.own.Mod)
	require.True(t, l.watched.Shows(l.own))
	require.Empty(t, l.gone(), "of revisions that are lost between the two")
	l.watched.Read("x", nil, l.rev)
	require.Empty(t, l.gone(), "of an etcd that may have been set back: it lacks both")
	l.remove(l.own.Key)
	l.read()
	found, at := l.watched.Own(l.own)
	require.Equal(t, line.Entry{Key: l.own.Key}, found, "a read of after the put lacks it")
	require.Equal(t, l.rev, at)
	require.Empty(t, l.gone(), "which stands in the read")
	require.True(t, l.watched.Shows(ahead))
	l.remove(ahead.Key)
	l.tell(len(l.coming))
	require.Equal(t, []line.Entry{ahead}, l.gone())
}

// Keys that come and go do not fill the memory, and what an Apply tells is known until the next.
func TestAWatchedRemembersTheLastDeletions(t *testing.T) {
	l := &lineInEtcd{stands: map[string]line.Entry{}}
	l.read()
	for range 100 {
		l.remove(l.put(line.Key("x", uuid.New()), 8).Key)
		l.tell(2)
		require.LessOrEqual(t, l.watched.Remembers(), 64)
	}
	require.Equal(t, 64, l.watched.Remembers())
}
