//go:build bound

package bound_test

import (
	"context"
	"slices"
	"testing/synctest"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/bound/steps"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// An event happens to a Session, beside others.
type event struct {
	name    string
	fits    func(c company) bool
	kind    kind
	happens func(w *world)
}

func always(company) bool    { return true }
func holds(c company) bool   { return c.holds }
func waits(c company) bool   { return c.waits }
func another(c company) bool { return c.other }
func spare(c company) bool   { return c.spare }
func alien(c company) bool   { return c.alien }
func nested(c company) bool  { return c.nested }
func blind(c company) bool   { return c.blind }
func inUse(c company) bool   { return !c.spare }
func puts(c company) bool    { return c.puts }
func inLine(c company) bool  { return c.waits && !c.puts }

var events = []event{
	// Of one of the others.
	{"one is unlocked", holds, one, func(w *world) { w.holds[0].unlock() }},
	{"the wait of the first ends", waits, one, func(w *world) { w.ends[0]() }},
	{"the wait of the last ends", inLine, one, func(w *world) { w.ends[len(w.ends)-1]() }},
	// Its put may come late: then no place is taken on the lease any more.
	{"the wait of the last ends, whose put is under way", puts, each, func(w *world) {
		w.ends[len(w.ends)-1]()
	}},

	{"another hold is recalled", always, one, func(w *world) {
		w.holdsAnother(func(key string) { w.recall(key) })
	}},
	{"the key of another hold is deleted", always, one, func(w *world) {
		w.holdsAnother(w.etcd.DeleteKey)
	}},

	// Of the lease.
	{"a renewal is answered", always, one, func(w *world) { w.renews(fake.Effect{}) }},
	// The renewals may be late from here on, and then each key that lingers is given up.
	{"a renewal fails", always, each, func(w *world) {
		w.renews(fake.Effect{Before: fake.Unavailable})
	}},
	// No place is taken on the lease any more, which may concern whatever waits beside a place there.
	{"the answer to a put is lost", inUse, each, losesAnAnswer},
	{"the answer to a put is lost, and what lingers goes", spare, each, losesAnAnswer},
	{"renewals are late", always, each, func(w *world) {
		w.etcd.Cut("a")
		time.Sleep(ttl / 2)
		w.etcd.Heal("a")
		time.Sleep(ttl / 2)
	}},
	{"etcd freezes", always, each, func(w *world) {
		w.etcd.Freeze()
		time.Sleep(ttl / 2)
		w.etcd.Thaw()
		time.Sleep(ttl / 2)
	}},
	{"the lease runs out", always, each, func(w *world) { w.etcd.Cut("a"); time.Sleep(2 * ttl) }},
	{"the lease is revoked", always, each, func(w *world) {
		w.etcd.RevokeLease(w.s.Lease())
		time.Sleep(ttl / 2)
	}},
	{"a minute passes", always, each, func(w *world) { time.Sleep(time.Minute) }},

	// Of the line.
	{"the other process goes", another, each, func(w *world) {
		_ = w.all[1].Close(context.Background())
		time.Sleep(5 * time.Second)
	}},
	{"a key is deleted", holds, each, func(w *world) {
		time.Sleep(2 * time.Second) // from then on it is watched
		w.etcd.DeleteKey(w.holds[0].Key())
		time.Sleep(5 * time.Second)
	}},
	{"a key is recalled", holds, each, func(w *world) {
		time.Sleep(2 * time.Second)
		w.recall(w.holds[0].Key())
		time.Sleep(5 * time.Second)
	}},
	{"a key before them is deleted", alien, one, func(w *world) {
		time.Sleep(time.Second)
		countFromHere()
		w.etcd.DeleteKey(w.etcd.Keys(name)[0])
	}},
	{"keys of nested names go", nested, one, func(w *world) {
		time.Sleep(time.Second)
		countFromHere()
		w.etcd.RevokeLease(w.alien)
	}},
	{"all keys go", blind, each, func(w *world) {
		w.losesKeys()
		w.doubts(w.n/100 + 1) // an audit reads them by hundreds
	}},
	{"all keys go with their lease", blind, each, func(w *world) {
		w.etcd.RevokeLease(w.s.Lease())
		w.doubts(2)
	}},
	{"all watches end", always, each, func(w *world) {
		w.etcd.CancelWatches()
		time.Sleep(time.Second)
	}},
	{"etcd is set back", always, each, func(w *world) {
		w.etcd.Restore(w.etcd.Snapshot(), 2)
		time.Sleep(ttl / 2)
	}},

	// Of all others.
	{"all waits end", waits, each, func(w *world) { w.end(); time.Sleep(time.Second) }},
	{"each wait ends, the first first", waits, each, func(w *world) {
		for _, end := range w.ends {
			end()
			synctest.Wait()
		}
	}},
	{"each wait ends, the last first", waits, each, func(w *world) {
		for _, end := range slices.Backward(w.ends) {
			end()
			synctest.Wait()
		}
	}},
	{"all are unlocked", holds, each, func(w *world) {
		for _, h := range w.holds {
			w.left.Go(h.unlock)
		}
		time.Sleep(time.Second)
	}},
	{"each is unlocked, the first first", holds, each, func(w *world) {
		for _, h := range w.holds {
			h.unlock()
		}
	}},
	{"each is unlocked, the last first", holds, each, func(w *world) {
		for _, h := range slices.Backward(w.holds) {
			h.unlock()
		}
	}},
	{"all handles are closed", always, each, func(w *world) {
		for _, c := range w.handles {
			w.left.Go(func() { _ = c.Close(context.Background()) })
		}
		time.Sleep(5 * time.Second)
	}},
	{"Close", always, each, func(w *world) { _ = w.s.Close(context.Background()) }},
	{"Close, by each", always, each, func(w *world) {
		for range w.n {
			w.left.Go(func() { _ = w.s.Close(context.Background()) })
		}
		time.Sleep(5 * time.Second)
	}},
}

// doubts lets time pass until keys were missed, and requires that etcd's history was asked, and at
// most so often.
func (w *world) doubts(most int) {
	w.etcd.Delay("a", time.Millisecond)
	time.Sleep(ttl / 2)
	if w.asked < 1 || w.asked > most {
		w.Errorf("etcd's history was asked %d times, and not 1 to %d", w.asked, most)
	}
}

// losesAnAnswer loses the answer to a put. The lease gets no more keys then.
func losesAnAnswer(w *world) {
	w.etcd.LoseAnswers("a", 1)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, _ = w.s.Lock(ctx, "free")
}

// renews lets time pass until a renewal, which has an effect, is about to be answered, and counts
// what follows at once. The answer takes longer than the keeper's tick, so that what is due once a
// period, such as an audit, is over by then.
func (w *world) renews(effect fake.Effect) {
	const delay = 400 * time.Millisecond
	effect.Delay = delay
	w.etcd.Intercept(func(c fake.Call) fake.Effect {
		if c.Process != "a" || c.Method != fake.KeepAlive {
			return fake.Effect{}
		}
		return effect
	})
	time.Sleep(ttl/3 + delay - time.Millisecond)
	countFromHere()
	time.Sleep(2 * time.Millisecond)
}

// countFromHere forgets what was counted.
func countFromHere() {
	synctest.Wait()
	steps.Reset()
}

// holdsAnother holds another name, with a key that is watched, and counts what follows from does at
// once.
func (w *world) holdsAnother(does func(key string)) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	h, err := w.s.Lock(ctx, "free", etcdlock.WithRecall(time.Hour))
	if err != nil { // there is no lease
		countFromHere()
		return
	}
	time.Sleep(2 * time.Second)
	countFromHere()
	does(h.Key())
}
