package matrix

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(holderEnv); how != "" {
		fmt.Fprintln(os.Stderr, hold(how, os.Stdout))
		os.Exit(1)
	}
	flag.Parse()
	lanes := false
	flag.Visit(func(f *flag.Flag) { lanes = lanes || f.Name == "test.parallel" })
	if !lanes { // what takes long is only waiting
		_ = flag.Set("test.parallel", "4")
	}
	var err error
	if scratch, err = os.MkdirTemp("", "etcdlock-matrix"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(scratch)
	os.Exit(code)
}

// lockName is the name of a story's lock.
func lockName(st story) string {
	return fmt.Sprintf("matrix/%d", slices.IndexFunc(stories, func(other story) bool {
		return other.name == st.name
	}))
}

func lockNames() (names []string) {
	for _, st := range stories {
		names = append(names, lockName(st), second(lockName(st)))
	}
	return names
}

// Every version with every setup tells every story the same way.
func TestMatrix(t *testing.T) {
	for _, v := range columns(t) {
		v.program(t, "etcd")
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for _, s := range setups {
				t.Run(s.name, func(t *testing.T) {
					t.Parallel()
					w := s.open(t, v, lockNames())
					c := w.tells(t)
					c.Version, c.Setup, c.Etcd, c.Date = v.name, s.name, w.cluster.version(),
						time.Now().Format(time.DateOnly)
					save(t, c)
				})
			}
		})
	}
}

// tells tells all stories of the setup: first side by side; then those that harm it; then,
// with members that were started anew, those that a dead token may have spoilt.
func (w *world) tells(t *testing.T) (c cell) {
	if w.door.LoneAuth {
		c.Notes = append(c.Notes, "with [2]")
	}
	var mu sync.Mutex
	var spoilt []story
	judge := func(t *testing.T, st story, why []string) {
		mu.Lock()
		defer mu.Unlock()
		c.Stories++
		switch f := w.known(st); {
		case f != nil && f.isMet(why):
			c.Stories--
			c.Notes = append(c.Notes, f.String())
		case w.tokenDied(st, why):
			c.Stories--
			c.Notes = append(c.Notes, tokenDied.String())
		case f != nil:
			t.Errorf("etcd's flaw %s has become another: %s", f.number, strings.Join(why, "\n"))
			c.Not = append(c.Not, st.name+": not as in "+f.number)
		case len(why) > 0:
			t.Errorf("%s", strings.Join(why, "\n"))
			c.Not = append(c.Not, st.name+": "+why[0])
		}
	}
	tell := func(st story) {
		t.Run(st.name, func(t *testing.T) {
			why := w.plays(t, lockName(st), st, ours)
			if w.known(st) == nil && w.tokenDied(st, why) {
				t.Logf("told again later: %s", why[0])
				mu.Lock()
				defer mu.Unlock()
				spoilt = append(spoilt, st)
				return
			}
			judge(t, st, why)
		})
	}
	var all sync.WaitGroup
	for _, st := range stories {
		if !st.alone && (st.where == nil || st.where(w.setup)) {
			all.Go(func() { tell(st) })
		}
	}
	all.Wait()
	for _, st := range stories {
		if st.alone {
			tell(st)
		}
	}
	for _, st := range spoilt {
		t.Run(st.name+", again", func(t *testing.T) {
			why := w.plays(t, lockName(st)+"/1", st, ours)
			for again := 2; again < 5 && w.tokenDied(st, why); again++ {
				why = w.plays(t, fmt.Sprintf("%s/%d", lockName(st), again), st, ours)
			}
			judge(t, st, why)
		})
	}
	slices.Sort(c.Not)
	slices.Sort(c.Notes)
	c.Notes = slices.Compact(c.Notes)
	return c
}
