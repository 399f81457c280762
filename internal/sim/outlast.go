package sim

import (
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

// A key may outlast its hold, after an Unlock before the hold's least time. The library then moves
// it, once, to a lease of its own. That is the only put over a key, besides those of holders that
// set their info, of waits that ask, and of an operator.

// An ending is the end of a hold before its least time, which may leave its key in line.
type ending struct {
	began time.Time // the call of Unlock
	until time.Time // until when the name is to stay taken
}

// outlastsLocked records that b is about to end. If it leaves its key in line, it has an ending.
func (j *judge) outlastsLocked(b *belief) {
	now, least := time.Now(), b.began.Add(b.hold.least)
	if b.life == nil || !now.Before(least) {
		return
	}
	b.ending = &ending{began: now, until: least}
	b.life.ending = b.ending
}

// movedLocked judges a put that takes a key to another lease, by a process. Cluster.mu is held.
func (j *judge) movedLocked(by string, life *keyLife, kv *mvccpb.KeyValue) {
	granted, _, _ := j.cluster.store.Now().Lease(kv.Lease)
	lasts := time.Duration(granted)*time.Second*11/10 + expiryStep
	own := by == life.owner && kv.Lease != life.lease && j.cluster.grants[kv.Lease] == by
	believes := slices.ContainsFunc(j.beliefs[nameOf(life.key)], func(b *belief) bool {
		return b.life == life && b.whole()
	})
	switch {
	case own && life.ending != nil && !believes:
		life.ending, life.goes = nil, time.Now().Add(lasts)
	case own && life.revived: // by a copy of what the set-back has undone
	default:
		j.violatedLocked(harm, "%s put over %s of %s", by, life.key, life.owner)
	}
	was := life.values[:min(int(kv.Version-1), len(life.values))] // a set-back may have undone some
	life.lease, life.values, life.asked = kv.Lease, append(was, kv.Value), false
}

// backLocked is the life of a key that a set-back has put back on another lease, nil if it is on
// the same. Its hold has ended.
func (j *judge) backLocked(life *keyLife, kv *mvccpb.KeyValue) *keyLife {
	if life.lease == kv.Lease {
		return nil
	}
	return &keyLife{
		key: life.key, owner: j.cluster.grants[kv.Lease], rev: life.rev, put: life.put, lease: kv.Lease,
		revived: true, values: [][]byte{kv.Value},
	}
}

// keptLocked judges a nil of Unlock for a hold that leaves its key in line. It is false if that was
// not moved: then the key must be gone, as ever.
//
// A set-back and an operator end the promise. The rest of the time counts by etcd's clock.
func (j *judge) keptLocked(b *belief, said outcome) bool {
	end, life := b.ending, b.life
	if end == nil || said != done || life.revived {
		return false
	}
	if j.taken(b) {
		return life.ending != end // by an operator after it was moved: the hold was whole until then
	}
	rest := float64(end.until.Sub(end.began)) * min(1, b.who.p.rate)
	until := end.began.Add(time.Duration(rest))
	switch {
	case life.removedBy == "" && life.ending == end:
		return false // it was not moved
	case life.removedBy != "":
		if life.removed.Before(until) {
			j.tooEarlyLocked(life, end)
		}
	default:
		life.until, life.promised = until, end
		j.kept[b.name] = append(j.kept[b.name], life)
		if b.who.p.w.scenario == calm && !b.who.brief {
			j.mustBeFree(life, end.until)
		}
	}
	j.outlasted++
	return true
}

// tooEarlyLocked says that the key of a hold went before the time until which it was to stay.
func (j *judge) tooEarlyLocked(life *keyLife, end *ending) {
	j.violatedLocked(early,
		"%s, token %d, which was to stay for %v, was removed by %s %v after its hold had ended",
		life.key, life.rev, end.until.Sub(end.began), life.removedBy, life.removed.Sub(end.began))
}

// mustBeFree makes sure that the Session gives a name free at the end of its least time.
func (j *judge) mustBeFree(life *keyLife, at time.Time) {
	time.AfterFunc(max(0, time.Until(at))+known+j.slow, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if life.removedBy == "" && !j.over {
			j.violatedLocked(left, "%s, put at %d, whose least time was over %v ago", life.key, life.rev,
				time.Since(at))
		}
	})
}

// pastKeptLocked judges that b has not got in while the name was to stay taken. A hold whose key an
// operator has deleted, of which its process has not heard yet, is not in.
func (j *judge) pastKeptLocked(b *belief) {
	if j.taken(b) {
		return
	}
	j.kept[b.name] = slices.DeleteFunc(j.kept[b.name], func(life *keyLife) bool {
		return !time.Now().Before(life.until) || life.removedBy == byOperator
	})
	for _, life := range j.kept[b.name] {
		j.violatedLocked(early, "%s with token %d of %s, %v before the key of %d was to go",
			b.who, b.hold.token, b.name, time.Until(life.until), life.rev)
	}
}

// stays reports whether a key has a reason to be in line without a hold.
func (life *keyLife) stays() bool {
	now := time.Now()
	return now.Before(life.goes) || life.ending != nil && now.Before(life.ending.until)
}
