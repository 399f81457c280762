package sim

import (
	"slices"
	"time"

	"github.com/etcdlock/etcdlock/internal/line"
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

// byWaiter is who makes the requests of waits that ask the holder.
const byWaiter = "waiter"

// askedLocked judges that a process has asked for a key, which is now e, for a wait: it holds and
// listens, and no wait has asked for it before. (All ask for the same grace.)
func (j *judge) askedLocked(process string, life *keyLife, e line.Entry) {
	j.wrote++
	if barred(life, j.lives) || !e.Value().Recallable || life.asked {
		j.violatedLocked(noReason, "%s asked for %s of %s, put at %d, asked before: %v",
			process, life.key, life.owner, life.rev, life.asked)
	}
	life.asked = true
	if j.calm {
		j.recalled(life.key, life.rev, noticeable+4*j.slow)
	}
}

// asksBack records that a recall is about to ask for a key, with some grace.
func (j *judge) asksBack(token int64, grace time.Duration) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.graces[token] = append(j.graces[token], grace)
}

// notices records when a hold has noticed a recall.
func (j *judge) notices(b *belief) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b.noticesLocked()
}

func (b *belief) noticesLocked() {
	if !b.heard.IsZero() {
		return
	}
	b.heard = time.Now()
	for _, other := range b.others {
		other.heard = b.heard
	}
}

// hears records that a holder knows of a recall. If it heeds the recall, it unlocks. If
// not, the hold must end by itself within the longest grace that was asked for, or within
// the Session's most if that is shorter.
func (j *judge) hears(b *belief, heeds bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	b.noticesLocked()
	if heeds {
		j.heeded++
		return
	}
	most := slices.Max(append([]time.Duration{j.grace}, j.graces[b.hold.token]...))
	time.AfterFunc(min(most, b.who.most)+soon, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if b.whole() && !j.over {
			j.violatedLocked(noGrace,
				"%s believes to hold %s, token %d, %v after it was recalled with at most %v, of at most %v",
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
	graces := slices.Clone(j.graces[b.hold.token])
	if j.asking {
		graces = append(graces, j.grace)
	}
	for _, grace := range graces {
		least = min(least, grace.Truncate(time.Millisecond)) // as etcd has it
	}
	if had < least {
		j.violatedLocked(noGrace, "%s of %s, token %d, had %v of %v", b.who, b.name, b.hold.token, had,
			least)
	}
}
