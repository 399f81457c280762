package etcdlock

import "time"

// handOffLocked gives the key of h, which has ended whole, to the next waiter in the local line,
// unless the contenders behind the key have waited for long enough; see WithHandoff.
func (n *localLine) handOffLocked(h *hold) bool {
	p, most := h.place, h.m.cfg.handoff
	first := n.queue.First()
	if most == 0 || first == nil || !first.Value.exclusive() || first.Value.together || !h.claim.exclusive() ||
		!p.tellsOf(first.Value) || !p.lastsLocked() {
		return false
	}
	next, ok := n.queue.HandOff(p, most)
	if !ok {
		return false
	}
	n.markLocked()
	h.reportReleased()
	next.hasTurnLocked(p)
	return true
}

// lingerLocked keeps the key of h, which has ended whole, if no contender waits for it; see
// WithLinger.
//
// Invariant: a new claim takes over the key that lingers, or finds it given up; and the key is
// given up once a view shows other keys in line, or there is no view.
func (n *localLine) lingerLocked(h *hold) bool {
	p, linger := h.place, h.m.cfg.linger
	if linger == 0 || h.m.closed || !h.claim.exclusive() || n.queue.Waiting() > 0 || !p.lastsLocked() {
		return false
	}
	switch v := n.view; {
	case v == nil || v.partial:
		return false
	case v.state == viewBegun && n.queue.Owner().ahead == 0:
		// The first watch is under way. Its end, or a read that fails, takes the key back.
	case !v.isLiveLocked() || v.othersLocked():
		return false // if the first watch is under way, contenders from before may be there
	}
	h.reportReleased()
	p.unwatchLocked() // the view covers what lingers
	n.view.reliesLocked()
	if n.queue.Linger(p, time.Now().Add(linger)) {
		n.setDueLocked(linger)
	}
	return true
}

// setDueLocked makes the timer call lingered after a while, and no longer at an earlier time.
func (n *localLine) setDueLocked(after time.Duration) {
	if n.due != nil {
		n.due.Stop()
	}
	n.due = time.AfterFunc(after, n.lingered)
}

// lingered gives up the key that lingers if its time is over.
func (n *localLine) lingered() {
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	switch over, again := n.queue.Due(time.Now()); {
	case over:
		n.giveWayLocked()
	case again > 0:
		n.setDueLocked(again)
	}
}

// lingersLocked reports whether the line's key lingers, or will linger after its Unlock.
func (n *localLine) lingersLocked() bool {
	h := n.holdLocked()
	return n.queue.Lingering() != nil ||
		h != nil && h.state == holdWhole && h.m.cfg.linger > 0 && h.claim.exclusive() && h.place.recall == nil
}

// giveWayLocked gives up the key that lingers, if one does. It returns what abandonLocked does.
func (n *localLine) giveWayLocked() <-chan struct{} {
	if n.queue.Lingering() == nil {
		return nil
	}
	p := n.queue.Yield()
	p.spare = true
	return p.abandonLocked(false)
}
