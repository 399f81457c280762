//go:build bound

package bound_test

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/etcdlock/etcdlock/internal/bound/steps"
	"github.com/etcdlock/etcdlock/internal/fake"
)

var (
	others = flag.Int("others", 5000, "how many others there are; a tenth of that is compared with it")
	whole  = flag.Bool("whole", false, "print what is within its bound, too")
)

// A kind is what a count is bounded by.
type kind int

const (
	one  kind = iota // a call, or something that concerns one: the same steps beside few and many
	each             // it concerns each of the others: a constant number of steps for each
)

// longest is how many steps are made at most from a Lock to an Unlock: it may touch some hundred
// places, holds or waiters, with some steps for each.
const longest = 8_000

// exceeds says in which way the counts of a mutex are beyond their bound, beside few and many.
func (k kind) exceeds(few, many steps.Counts, n [2]int) (how []string) {
	switch {
	case k == one && many.Steps > few.Steps*3/2+200:
		how = append(how, "grows with the others")
	case k == each && many.Steps/n[1] > few.Steps/n[0]*3/2+10:
		how = append(how, "grows with their square")
	}
	if many.Longest > longest || many.Longest > 1000 && many.Longest > 2*few.Longest {
		how = append(how, "at once")
	}
	return how
}

// An event happens to a Session beside others.
type event struct {
	name string
	fits func(c company) bool
	of   kind
	does func(w *world)
}

func always(company) bool    { return true }
func waits(c company) bool   { return c.waits }
func holds(c company) bool   { return c.holds }
func another(c company) bool { return c.other }

var events = []event{
	{"Close", always, each, func(w *world) { _ = w.s.Close(context.Background()) }},
	{"the lease runs out", always, each, func(w *world) { w.etcd.Cut("a"); time.Sleep(2 * ttl) }},
	{"the lease is revoked", always, each, func(w *world) {
		w.etcd.RevokeLease(w.s.Lease())
		time.Sleep(ttl / 2)
	}},
	{"the waits end", waits, each, func(w *world) { w.end(); time.Sleep(5 * time.Second) }},
	{"the holds are unlocked", holds, each, func(w *world) {
		for _, h := range w.holds {
			w.left.Go(func() { _ = h.Unlock(context.Background()) })
		}
		time.Sleep(5 * time.Second)
	}},
	{"each is unlocked after the other", holds, each, func(w *world) {
		for _, h := range w.holds {
			_ = h.Unlock(context.Background())
		}
	}},
	{"one is unlocked", holds, one, func(w *world) { _ = w.holds[0].Unlock(context.Background()) }},
	{"the first wait ends", waits, one, func(w *world) { w.ends[0](); time.Sleep(time.Second / 2) }},
	{"the last wait ends", waits, one, func(w *world) {
		w.ends[len(w.ends)-1]()
		time.Sleep(time.Second / 2)
	}},
	{"handles are closed", always, each, func(w *world) {
		for _, c := range w.handles {
			w.left.Go(func() { _ = c.Close(context.Background()) })
		}
		time.Sleep(5 * time.Second)
	}},
	{"the other process goes", another, each, func(w *world) {
		_ = w.all[1].Close(context.Background())
		time.Sleep(5 * time.Second)
	}},
	{"a key is deleted", holds, each, func(w *world) {
		w.etcd.DeleteKey(w.holds[0].Key())
		time.Sleep(5 * time.Second)
	}},
	{"a key is recalled", holds, each, func(w *world) {
		w.recall(w.holds[0].Key())
		time.Sleep(5 * time.Second)
	}},
	{"etcd is set back", always, each, func(w *world) {
		w.etcd.Restore(w.etcd.Snapshot(), 2)
		time.Sleep(ttl / 2)
	}},
	{"etcd is away, and comes back", always, each, func(w *world) {
		w.etcd.Cut("a")
		time.Sleep(ttl / 2)
		w.etcd.Heal("a")
		time.Sleep(ttl / 2)
	}},
	{"watches end", always, each, func(w *world) { w.etcd.CancelWatches(); time.Sleep(time.Second) }},
	{"the answer to a put is lost", always, one, func(w *world) {
		w.etcd.LoseAnswers("a", 1)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = w.s.Lock(ctx, "free")
	}},
	{"a minute passes", always, each, func(w *world) { time.Sleep(time.Minute) }},
	{"Close, by many", always, each, func(w *world) {
		for range w.n {
			w.left.Go(func() { _ = w.s.Close(context.Background()) })
		}
		time.Sleep(5 * time.Second)
	}},
}

// renewals is a renewal that is answered, an audit, and a renewal that fails.
func renewals(w *world) {
	w.count("a renewal is answered", one, func() { untilNext(w, fake.KeepAlive, fake.Effect{}) })
	w.count("a renewal fails", one, func() {
		untilNext(w, fake.KeepAlive, fake.Effect{Before: fake.Unavailable})
	})
	w.count("a renewal is late", each, func() {
		untilNext(w, fake.KeepAlive, fake.Effect{Delay: ttl / 3})
		time.Sleep(ttl / 3)
	})
}

// untilNext lets time pass until the next call of the Session with a method, which has an effect.
func untilNext(w *world, method string, effect fake.Effect) {
	sent := make(chan struct{})
	once := false
	w.etcd.Intercept(func(c fake.Call) fake.Effect {
		if c.Process != "a" || c.Method != method || once {
			return fake.Effect{}
		}
		once = true
		close(sent)
		return effect
	})
	select {
	case <-sent:
		steps.Reset()
	case <-time.After(2 * ttl):
	}
	synctest.Wait()
	w.etcd.Intercept(nil)
}

// What runs under a mutex is bounded: a call makes the same steps beside few others and beside
// many, what concerns each of the others makes a constant number of steps for each, and nothing
// makes more than some thousand at once.
func TestBound(t *testing.T) {
	for _, c := range companies {
		t.Run(c.name, func(t *testing.T) {
			n := [2]int{*others / 10, *others}
			if c.slow {
				n[0], n[1] = n[0]*2/5, n[1]*2/5
			}
			compare(t, "they come, and calls", n, func(w *world) {
				w.count("they come", each, func() { c.come(w) })
				besides(w)
				renewals(w)
			})
			for _, e := range events {
				if e.fits(c) {
					compare(t, e.name, n, func(w *world) {
						c.come(w)
						w.count(e.name, e.of, func() { e.does(w) })
					})
				}
			}
		})
	}
}

// compare counts what happens beside few and beside many, and requires that it is bounded.
func compare(t *testing.T, what string, n [2]int, happens func(w *world)) {
	t.Run(what, func(t *testing.T) {
		var rows [2][]row
		for i := range n {
			inWorld(t, n[i], func(w *world) {
				happens(w)
				rows[i] = w.rows
			})
		}
		for i := range max(len(rows[0]), len(rows[1])) {
			if i >= len(rows[0]) || i >= len(rows[1]) || rows[0][i].what != rows[1][i].what {
				t.Errorf("beside %d others other things happen than beside %d", n[0], n[1])
				return
			}
			few, many := rows[0][i], rows[1][i]
			for _, mutex := range slices.Sorted(maps.Keys(many.counts)) {
				few, many := few.counts[mutex], many.counts[mutex]
				how := rows[0][i].kind.exceeds(few, many, n)
				text := fmt.Sprintf("%s, %s: %d -> %d steps, at once %d -> %d", rows[0][i].what, mutex,
					few.Steps, many.Steps, few.Longest, many.Longest)
				if len(how) > 0 {
					t.Errorf("%s: %s%s", text, strings.Join(how, ", "), where(many))
				} else if *whole {
					t.Log(text)
				}
			}
		}
	})
}

// where is where most steps were made: in loops, above all.
func where(c steps.Counts) string {
	loops := func(all []steps.Site) (text string) {
		n := 0
		for _, site := range all {
			if n < 3 && !strings.HasSuffix(site.Name, " must") && strings.Count(site.Name, " ") == 2 {
				text += fmt.Sprintf(" %s %d,", site.Name, site.Steps)
				n++
			}
		}
		return text
	}
	return "\n\t\tin all" + loops(c.Sites) + "\n\t\tat once" + loops(c.Of)
}
