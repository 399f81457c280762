package sim

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/etcdlock/etcdlock"
)

// A key may outlast its hold: after an Unlock before the hold's least time, and after a Detach. The
// library then moves it, once, to a lease of its own. An Adopt moves a key that was detached to the
// lease of its Session, once for each Detach. These are the only puts over a key, besides those of
// an operator.

// An ending is the end of a hold that may leave its key in line.
type ending struct {
	began time.Time // the call of Unlock or Detach
	until time.Time // until when the name is to stay taken
	keeps bool      // for an Adopt; else for the rest of the least time
}

// A parcel is a hold on its way from one worker to others.
type parcel struct {
	text  etcdlock.Detached
	name  string
	token int64
	key   string
	keep  time.Duration
}

// outlastsLocked records that b is about to end. If it leaves its key in line, it has an ending.
func (j *judge) outlastsLocked(b *belief, keep time.Duration) {
	if b.life == nil {
		return
	}
	now := time.Now()
	switch least := b.began.Add(b.hold.least); {
	case keep > 0:
		b.ending = &ending{began: now, until: now.Add(keep), keeps: true}
	case now.Before(least):
		b.ending = &ending{began: now, until: least}
	default:
		return
	}
	b.life.ending = b.ending
}

// movedLocked judges a put that takes a key to another lease, by a process. Cluster.mu is held.
func (j *judge) movedLocked(by string, life *keyLife, kv *mvccpb.KeyValue) {
	granted, _, _ := j.cluster.store.Now().Lease(kv.Lease)
	lasts := time.Duration(granted)*time.Second*11/10 + expiryStep
	own := kv.Lease != life.lease && j.cluster.grants[kv.Lease] == by
	believes := slices.ContainsFunc(j.beliefs[nameOf(life.key)], func(b *belief) bool {
		return b.life == life && b.whole()
	})
	switch end := life.ending; {
	case own && by == life.owner && end != nil && !believes:
		life.ending, life.waits, life.goes = nil, end.keeps, time.Now().Add(lasts)
		if life.waits {
			life.detached++
		}
	case own && life.waits && j.adopting[adoption{by, placeOf(kv)}] > 0:
		j.given[life.lease] = by
		life.owner, life.waits, life.goes, life.until = by, false, time.Time{}, time.Time{}
	case own && life.revived: // by a copy, or an Adopt, of what the set-back has undone
		if j.adopting[adoption{by, placeOf(kv)}] > 0 {
			j.given[life.lease] = by
		}
		life.owner = by
	default:
		j.violatedLocked(harm, "%s put over %s of %s", by, life.key, life.owner)
	}
	was := life.values[:min(int(kv.Version-1), len(life.values))] // a set-back may have undone some
	life.lease, life.values, life.asked = kv.Lease, append(was, kv.Value), false
}

// backLocked is the life of a key that a set-back has put back on another lease, nil if it is on
// the same. Its holder has lost the key.
func (j *judge) backLocked(life *keyLife, kv *mvccpb.KeyValue) *keyLife {
	if life.lease == kv.Lease {
		return nil
	}
	return &keyLife{
		key: life.key, owner: j.cluster.grants[kv.Lease], rev: life.rev, put: life.put, lease: kv.Lease,
		revived: true, values: [][]byte{kv.Value},
		waits: bytes.Contains(kv.Value, []byte(`"detached":true`)),
	}
}

// keptLocked judges a nil of Unlock or Detach for a hold that leaves its key in line. It is false
// if that was not moved: then the key must be gone, as ever.
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
	case end.keeps && !life.waits: // it was adopted before Detach had its answer
	default:
		life.until, life.promised = until, end
		j.kept[b.name] = append(j.kept[b.name], life)
		if !end.keeps && b.who.p.w.scenario == calm && !b.who.brief {
			j.mustBeFree(life, end.until)
		}
	}
	if end.keeps {
		j.detached++
	} else {
		j.outlasted++
	}
	return true
}

// tooEarlyLocked says that the key of a hold went before the time until which it was to stay.
func (j *judge) tooEarlyLocked(life *keyLife, end *ending) {
	what := early
	if end.keeps {
		what = between
	}
	j.violatedLocked(what,
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
		what := early
		if life.promised.keeps {
			what = between
		}
		j.violatedLocked(what, "%s with token %d of %s, %v before the key of %d was to go",
			b.who, b.hold.token, b.name, time.Until(life.until), life.rev)
	}
}

// stays reports whether a key has a reason to be in line without a hold.
func (life *keyLife) stays() bool {
	now := time.Now()
	return now.Before(life.goes) || life.ending != nil && !life.ending.keeps &&
		now.Before(life.ending.until)
}

// ---- adoptions

// givenBack reports whether a process has revoked a lease from which it has adopted a hold. Only a
// set-back can have put a key back there.
func (j *judge) givenBack(change Change) bool {
	return change.Ended != 0 && j.given[change.Ended] == change.By &&
		!slices.ContainsFunc(change.Events, func(e *mvccpb.Event) bool {
			return !j.keys[string(e.Kv.Key)].revived
		})
}

// An adoption is what a process asks for by Adopt.
type adoption struct {
	process string
	of      place
}

// adopts records that a worker calls Adopt.
func (j *judge) adopts(w *worker, p parcel, ctx context.Context) *call {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked("%s adopts %s, token %d", w, p.name, p.token)
	of := place{p.name, p.token}
	j.adopting[adoption{w.p.name, of}]++
	c := &call{kind: alone{}, ctx: ctx, began: time.Now(), adopts: &p}
	if life := j.lives[of]; life != nil {
		// else it is of an earlier Detach
		if life.waits && strings.Contains(string(p.text), fmt.Sprintf(":%x:", life.lease)) {
			c.waits = life.detached
		}
		if life.adoptions == nil {
			life.adoptions = make(map[*etcdlock.Session]int)
		}
		life.adoptions[w.whole]++
	}
	return c
}

// adoptedLocked judges a hold that an Adopt has returned.
func (j *judge) adoptedLocked(b *belief, p *parcel) {
	j.adopted++
	if b.hold.token != p.token || b.hold.key != p.key {
		j.violatedLocked(strange, "%s adopts %s, token %d, as %s, token %d", b.who, p.key, p.token,
			b.hold.key, b.hold.token)
	}
	if b.life == nil || b.life.revived || j.taken(b) {
		return
	}
	b.life.shared = 1 // the Session keeps it for nobody else
	if b.life.adopted++; b.life.adopted > b.life.detached {
		j.violatedLocked(twice, "%s with token %d of %s: detached %d times, adopted %d times",
			b.who, b.hold.token, b.name, b.life.detached, b.life.adopted)
	}
}

// displacesLocked reports whether b has adopted what a set-back revived, of which its process may
// have known before, and other has held behind it since before that. Other must notice that.
func (j *judge) displacesLocked(b, other *belief) bool {
	if !b.adopted || other.adopted || b.life == nil || other.life == nil ||
		!b.life.revived || other.life.rev < b.life.rev || other.life.put.After(j.lastSetBack) {
		return false
	}
	j.displaced++
	j.mustNotice(other)
	return true
}

// refused judges the error of an Adopt.
func (j *judge) refused(w *worker, c *call, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.noteLocked("%s does not adopt %s, token %d: %v", w, c.adopts.name, c.adopts.token, err)
	if w.p.isDead() {
		return
	}
	j.refusals++
	switch said := outcomeOf(err); said {
	case lost:
		life := j.lives[place{c.adopts.name, c.adopts.token}]
		if life == nil || !life.waits || life.revived || life.removedBy != "" ||
			c.waits != life.detached {
			return
		}
		if life.adoptions[w.whole] == 1 { // a Session that asks twice knows only of the first
			j.violatedLocked(untruth, "%s: %v, but %s waits to be adopted", w, err, life.key)
		}
	case unconfirmed:
	case ended:
		if c.ctx.Err() == nil {
			j.violatedLocked(gaveUp, "%s: %v", w, err)
		}
	default:
		j.violatedLocked(gaveUp, "%s: %v", w, err)
	}
}
