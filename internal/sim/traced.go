package sim

import (
	"math/rand/v2"
	"time"
)

// newTraced draws a seed's world of what the specification has: exclusives, readers and permits of
// one lock, each in a Session of its own. There are no faults that make a leader believe that it
// still leads, since the specification has one member.
func newTraced(seed uint64) *world {
	w := newWorld(seed, Ours)
	r := generator(seed, "traced")
	w.story, w.names, w.each, w.crowd, w.many = traced, []string{"a"}, 1, 0, false
	w.reading, w.permits, w.limit = r.IntN(5), r.IntN(5), 2
	w.ttl, w.ends = tracedTTL, time.Now().Add(tracedLast)
	w.mostTTL, w.cluster.leastTTL, w.raises = w.ttl, 0, false
	j := w.judge
	j.names, j.sharing, j.calm, j.peaceful, j.strict, j.stale = w.names, false, false, false, false, 0
	w.scenario, w.schedule = mixed, nil
	back := r.IntN(4) == 0 // then no process begins: see tracedFault
	at := 600*time.Millisecond + upTo(r, time.Second)
	for ; at < tracedLast; at += upTo(r, 2*time.Second) {
		f := tracedFault(r, w.ttl, back)
		if back && len(w.schedule) == 1 {
			w.scenario, f = setBack, goBack(r, w.ttl, true)
		}
		f.at, f.lasts = at, min(f.lasts, tracedLast-at)
		w.schedule = append(w.schedule, f)
	}
	w.brisk = r.IntN(2) == 0
	w.cluster.onlyReleases = true // another put would be one that its client does not know of
	w.cluster.Repeat(tracedLast)
	j.trace = newTracer(w.ttl)
	j.trace.listens(w.cluster)
	return w
}

const (
	tracedTTL  = 2 * time.Second // with a margin of 250 ms
	tracedLast = 4 * time.Second // then there are no faults
)

// tracedFault draws a fault of the network, of a process, or of a member that does not go on. After
// a set-back no process begins: it could not know of that.
func tracedFault(r *rand.Rand, ttl time.Duration, back bool) fault {
	most := 10
	if back {
		most--
	}
	switch r.IntN(most) {
	case 0, 1:
		return swallow(r, somePath(r), ttl)
	case 2, 3, 4:
		return holdUp(r, somePath(r), ttl)
	case 5:
		return slowThenCut(r, ttl)
	case 6:
		return refuse(r, ttl)
	case 7:
		return freezeProcess(r, ttl)
	case 8:
		return restart(r, ttl)
	default:
		return kill(r, ttl)
	}
}
