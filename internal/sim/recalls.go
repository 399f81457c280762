package sim

import (
	"slices"
	"time"
)

// recalled makes sure that the holder learns of a recall that has put over its key, while
// nothing is wrong.
func (j *judge) recalled(key string, token int64, within time.Duration) {
	time.AfterFunc(within, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		for _, b := range j.beliefs[nameOf(key)] {
			of := b.life != nil && b.life.key == key && b.hold.token == token
			if of && b.whole() && !j.over && !b.hold.recalled() {
				j.violatedLocked(noticed, "%s has not heard of the recall of %s, token %d", b.who, key, token)
			}
		}
	})
}

// asksBack records that a recall is about to ask for a key, with some grace.
func (j *judge) asksBack(token int64, grace time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.graces[token] = append(j.graces[token], grace)
}

// hears records that a holder knows of a recall. If it heeds the recall, it unlocks. If
// not, the hold must end by itself within the longest grace that was asked for, or within
// the Session's most if that is shorter.
func (j *judge) hears(b *belief, heeds bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b.heard = time.Now()
	for _, other := range b.others {
		other.heard = b.heard
	}
	if heeds {
		j.heeded++
		return
	}
	most := slices.Max(append([]time.Duration{0}, j.graces[b.hold.token]...))
	time.AfterFunc(min(most, b.who.most)+soon, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if b.whole() && !j.over {
			j.violatedLocked(noGrace, "%s believes to hold %s, token %d, %v after it was recalled with at most %v, of at most %v",
				b.who, b.name, b.hold.token, time.Since(b.heard), most, b.who.most)
		}
	})
}

// recalledLocked judges the end of a hold by a recall: it must not come before the shortest
// grace that was asked for.
func (j *judge) recalledLocked(b *belief) {
	var had time.Duration
	if !b.heard.IsZero() { // else it has ended at the instant at which it was recalled
		had = time.Since(b.heard)
	}
	least := b.who.most
	for _, grace := range j.graces[b.hold.token] {
		least = min(least, grace.Truncate(time.Millisecond)) // as etcd has it
	}
	if had < least {
		j.violatedLocked(noGrace, "%s of %s, token %d, had %v of %v", b.who, b.name, b.hold.token, had, least)
	}
}
