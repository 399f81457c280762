package line

import (
	"maps"
	"slices"
)

// A Watched is what a watch of a line has shown, with the reads beside it. The zero Watched has
// shown nothing: its first event comes after its first read.
//
// Invariant: keys is what stood in line at the revision at. Events are applied in order, whole
// revisions at a time, and an event that a read has overtaken is left out.
//
// A contender that stood in line when another key was put is proven gone in two ways: by its
// DELETE, if that is newer than the other key, or by a read that shows the other key and not the
// contender. That keys lacks it proves nothing: etcd may have been set back unnoticed, and the rest
// be from another epoch. (TestAViewFromBeforeASetBackLetsNobodyIn.)
type Watched struct {
	keys map[string]Entry // the contenders, as they were last put
	gone []Entry          // the last deletions, for a put whose answer they overtake
	at   int64            // the revision of keys, 0 before they are known
	read int64            // the revision of the last read
}

// At is the revision up to which w has shown the line, 0 if it has shown nothing.
func (w *Watched) At() int64 { return w.at }

// Len is how many contenders stand in line.
func (w *Watched) Len() int { return len(w.keys) }

// Remembers is the greater number of the two: the keys in line, and the deletions that w keeps.
func (w *Watched) Remembers() int { return max(len(w.keys), len(w.gone)) }

// Shows reports whether w shows the very key e.
func (w *Watched) Shows(e Entry) bool { return w.keys[e.Key].Rev == e.Rev }

// AnyBut reports whether a contender of another kind stands in line.
func (w *Watched) AnyBut(kind Kind) bool {
	for key := range w.keys {
		if ShapeOf(key).Kind != kind {
			return true
		}
	}
	return false
}

// TTLs is what is known of the TTLs of the contenders.
func (w *Watched) TTLs() (t TTLs) {
	for _, e := range w.keys {
		t = t.And(e.TTLs())
	}
	return t
}

// mostGone is how many deletions a Watched remembers, beside those of the last Apply. A waiter that
// asks for them stands behind fewer contenders.
const mostGone = 63

// Apply brings w up to date with events of keys below the lock name, up to a revision. It returns
// the ones that are news, in the array of told.
func (w *Watched) Apply(name string, told []Entry, upTo int64) (news []Entry) {
	w.gone, news = slices.Delete(w.gone, 0, max(0, len(w.gone)-mostGone)), told[:0]
	for _, e := range told {
		if e.Mod <= w.at {
			continue // known from the read
		}
		if news = append(news, e); e.StandsIn(name) {
			w.keys[e.Key] = e
		} else {
			delete(w.keys, e.Key)
			w.gone = append(w.gone, e)
		}
	}
	w.at = max(w.at, upTo)
	return news
}

// Read brings w up to date with the keys that a read of the line has shown at a revision. It does
// nothing, and is not fresh, if events have told more. changed says that the line is not as w had
// it.
func (w *Watched) Read(name string, keys []Entry, at int64) (changed, fresh bool) {
	if at < w.at {
		return false, false
	}
	known := w.keys
	w.keys = make(map[string]Entry, len(keys))
	for _, e := range keys {
		if e.StandsIn(name) {
			w.keys[e.Key] = e
		}
	}
	w.at, w.read = at, at
	same := func(a, b Entry) bool { return a.Mod == b.Mod }
	return !maps.EqualFunc(known, w.keys, same), true
}

// Own is what is known of the key own since it was put, and a revision at which that was so. The
// key is there, or was deleted, or is not in a read of after the put. The revision is 0 if w has
// not come as far as the put: events may overtake the answer to it, and may come after it.
func (w *Watched) Own(own Entry) (e Entry, at int64) {
	if e, there := w.keys[own.Key]; there {
		return e, e.Mod
	}
	if e := w.deletedSince(own.Rev, own.Key); e.Mod != 0 {
		return e, e.Mod
	}
	if w.read >= own.Rev {
		return Entry{Key: own.Key}, w.at
	}
	return Entry{}, 0
}

// Gone reports whether e, which stood in line when own was put, is proven gone.
func (w *Watched) Gone(e, own Entry) bool {
	return w.read >= own.Rev && w.Shows(own) && !w.Shows(e) ||
		w.deletedSince(own.Rev, e.Key).Mod != 0
}

// deletedSince returns the last deletion of a key that is newer than a revision. It has no revision
// if w remembers none.
func (w *Watched) deletedSince(rev int64, key string) Entry {
	for _, g := range slices.Backward(w.gone) {
		if g.Key == key && g.Mod > rev {
			return g
		}
	}
	return Entry{}
}
