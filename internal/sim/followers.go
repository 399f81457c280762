package sim

import (
	"slices"

	"github.com/etcdlock/etcdlock"
)

// A follower is a loop of a process over WatchHolder: it follows who holds a name, through whatever
// happens to its process.
type follower struct {
	p    *process
	name string

	// Guarded by judge.mu.
	seen []etcdlock.Contender // the changes, from the first state on
}

// follow makes a process follow a name until the run is over.
func (w *world) follow(p *process, name string) {
	f := &follower{p: p, name: name}
	w.mu.Lock()
	w.followers = append(w.followers, f)
	w.mu.Unlock()
	w.following.Go(func() {
		for c, err := range etcdlock.WatchHolder(w.ctx, p.client, name) {
			w.judge.follows(f, c, err)
		}
	})
}

// follows judges a change that a follower sees: it is one, and the tokens never go back.
func (j *judge) follows(f *follower, c etcdlock.Contender, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch n := len(f.seen); {
	case err != nil:
		j.violatedLocked(astray, "%s, of %s: %v", f.p.name, f.name, err)
	case n > 0 && f.seen[n-1] == c:
		j.violatedLocked(astray, "%s, of %s: token %d twice in a row", f.p.name, f.name, c.Token)
	case c.Token != 0 && slices.ContainsFunc(f.seen, func(s etcdlock.Contender) bool {
		return s.Token > c.Token
	}):
		j.violatedLocked(astray, "%s, of %s: token %d after a greater one", f.p.name, f.name, c.Token)
	}
	f.seen = append(f.seen, c)
}

// followed judges, when nobody holds any more, that every follower knows it.
func (w *world) followed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.mu.Lock()
	defer w.judge.mu.Unlock()
	for _, f := range w.followers {
		w.judge.seen += len(f.seen)
		if n := len(f.seen); !f.p.isDead() && (n == 0 || f.seen[n-1] != (etcdlock.Contender{})) {
			w.judge.violatedLocked(astray, "%s, of %s, saw %d changes, and not the last one", f.p.name,
				f.name, n)
		}
	}
}
