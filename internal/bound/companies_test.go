//go:build bound

package bound_test

import (
	"context"
	"fmt"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
)

// A company is n others.
type company struct {
	name string
	come func(w *world)

	slow  bool // it takes long to come: there are fewer
	waits bool // some of them wait
	holds bool // some of them hold in the Session
	other bool // they wait for another process
	spare bool // they are keys that linger
	puts  bool // their puts are under way
	alien bool // one waits for keys that are of no process
	blind bool // the Session hears no event: it has more keys than it would watch

	nested bool // they are keys of nested names, all on one lease
}

const most = 65_535 // permits

var companies = []company{
	{name: "nobody", come: func(w *world) {}},

	// Reads.
	{name: "reads hold", holds: true, come: func(w *world) {
		rw := w.rw()
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
	}},
	{name: "reads hold, each of an RWMutex of its own", holds: true, come: func(w *world) {
		w.each(func(ctx context.Context, _ int) { w.came(w.rw().RLock(ctx)) })
	}},
	{name: "reads hold, and listen", holds: true, come: func(w *world) {
		rw := w.rw(etcdlock.WithRecall(time.Hour))
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
	}},
	{name: "reads hold, a lock waits, and reads behind it", holds: true, waits: true,
		come: func(w *world) {
			rw := w.rw()
			w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
			w.left.Go(func() { w.lock(w.waits, name) })
			synctest.Wait()
			w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
		}},
	{name: "reads hold, and locks wait", holds: true, waits: true, come: func(w *world) {
		rw := w.rw()
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
		w.each(func(ctx context.Context, _ int) { w.lock(ctx, name) })
	}},
	{name: "reads wait for another process", waits: true, other: true, come: func(w *world) {
		w.another(name)
		rw := w.rw()
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
	}},
	{name: "reads wait for the put of the first", waits: true, come: func(w *world) {
		w.etcd.Delay("a", time.Second)
		rw := w.rw()
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
	}},
	{name: "tries to read wait for the put of the first", waits: true, come: func(w *world) {
		w.etcd.Delay("a", time.Second)
		rw := w.rw()
		w.left.Go(func() { w.came(rw.RLock(w.waits)) })
		synctest.Wait()
		w.each(func(ctx context.Context, _ int) { w.came(rw.TryRLock(ctx)) })
	}},
	{name: "tries to read wait for the put of the first, which has to wait", waits: true,
		other: true, come: func(w *world) {
			w.another(name)
			w.etcd.Delay("a", time.Second)
			rw := w.rw()
			w.left.Go(func() { w.came(rw.RLock(w.waits)) })
			synctest.Wait()
			w.each(func(ctx context.Context, _ int) { w.came(rw.TryRLock(ctx)) })
		}},
	{name: "reads were lost", come: func(w *world) {
		rw := w.rw()
		w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
		w.etcd.RevokeLease(w.s.Lease())
		time.Sleep(ttl)
	}},
	{name: "reads nest", holds: true, come: func(w *world) {
		rw := w.rw(etcdlock.WithReentrancy())
		h, err := rw.RLock(w.waits)
		w.came(h, err)
		ctx := h.Context(context.Background())
		w.each(func(context.Context, int) {
			w.came(w.rw(etcdlock.WithReentrancy()).RLock(ctx))
		})
	}},

	// Locks.
	{name: "locks wait", holds: true, waits: true, come: func(w *world) {
		w.each(func(ctx context.Context, _ int) { w.lock(ctx, name) })
	}},
	{name: "locks wait, and hand off", holds: true, waits: true, come: func(w *world) {
		w.each(func(ctx context.Context, _ int) { w.lock(ctx, name, etcdlock.WithHandoff(1000)) })
	}},
	{name: "locks wait for another process", waits: true, other: true, come: func(w *world) {
		w.another(name)
		w.each(func(ctx context.Context, _ int) { w.lock(ctx, name) })
	}},
	// (In turn: a wait passes its place on as it ends if it is the first of its Mutex then.)
	{name: "locks of one Mutex wait for another process", waits: true, other: true,
		come: func(w *world) {
			w.another(name)
			m, err := w.s.Mutex(name)
			require.NoError(w, err)
			w.uses(m)
			w.inTurn(func(ctx context.Context) { w.came(m, m.Lock(ctx)) })
		}},
	{name: "locks ask, and wait for another process", waits: true, other: true,
		come: func(w *world) {
			w.another(name)
			w.each(func(ctx context.Context, _ int) {
				w.lock(ctx, name, etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Hour}))
			})
		}},
	{name: "reads hold and listen, and locks wait that ask", holds: true, waits: true,
		come: func(w *world) {
			rw := w.rw(etcdlock.WithRecall(time.Hour))
			w.each(func(ctx context.Context, _ int) { w.came(rw.RLock(ctx)) })
			w.each(func(ctx context.Context, _ int) {
				w.lock(ctx, name, etcdlock.WithAsk(etcdlock.RecallRequest{Grace: time.Hour}))
			})
		}},
	{name: "contexts of a hold", holds: true, come: func(w *world) {
		w.lock(w.waits, name)
		type key struct{}
		for i := range w.n {
			w.holds[0].Context(context.WithValue(context.Background(), key{}, i))
		}
	}},

	// Permits.
	{name: "permits hold", slow: true, holds: true, come: func(w *world) {
		sem := w.semaphore(most)
		w.each(func(ctx context.Context, _ int) { w.came(sem.Acquire(ctx, 1)) })
	}},
	{name: "permits hold, and permits wait", slow: true, holds: true, waits: true,
		come: func(w *world) {
			sem := w.semaphore(w.n)
			w.each(func(ctx context.Context, _ int) { w.came(sem.Acquire(ctx, 1)) })
			w.each(func(ctx context.Context, _ int) { w.came(sem.Acquire(ctx, 1)) })
		}},
	{name: "permits wait for another process", waits: true, other: true, slow: true,
		come: func(w *world) {
			sem, err := w.session("b").Semaphore(name, most)
			require.NoError(w, err)
			_, err = sem.Acquire(w.waits, most)
			require.NoError(w, err)
			sem = w.semaphore(most)
			w.inTurn(func(ctx context.Context) { w.came(sem.Acquire(ctx, 1)) })
		}},
	{name: "tries for permits wait for the put of the first, which has to wait", waits: true,
		other: true, come: func(w *world) {
			w.another(name)
			w.etcd.Delay("a", time.Second)
			sem := w.semaphore(most)
			w.left.Go(func() { w.came(sem.Acquire(w.waits, 1)) })
			synctest.Wait()
			w.each(func(ctx context.Context, _ int) { w.came(sem.TryAcquire(ctx, 1)) })
		}},

	// Other names.
	{name: "names are held", holds: true, come: (*world).holdNames},
	{name: "names are held, and listen", holds: true, come: func(w *world) {
		names := w.names()
		w.each(func(ctx context.Context, i int) {
			w.lock(ctx, names[i], etcdlock.WithRecall(time.Hour))
		})
	}},
	{name: "names are held together", holds: true, come: func(w *world) {
		names := w.names()
		w.each(func(ctx context.Context, i int) {
			if i%10 == 0 {
				w.came(w.s.LockAll(ctx, names[i:i+10]...))
			}
		})
	}},
	{name: "names are waited for", slow: true, waits: true, other: true, come: func(w *world) {
		names := w.names()
		w.another(names...)
		w.each(func(ctx context.Context, i int) { w.lock(ctx, names[i]) })
	}},
	{name: "names are put", waits: true, puts: true, come: func(w *world) {
		names := w.names()
		w.each(func(ctx context.Context, i int) {
			w.lock(ctx, names[i])
			if i == 0 {
				w.etcd.Delay("a", time.Second)
			}
		})
	}},
	{name: "names wait for a lease", waits: true, come: func(w *world) {
		names := w.names()
		w.etcd.Cut("a")
		w.each(func(ctx context.Context, i int) { w.lock(ctx, names[i]) })
	}},
	{name: "names linger", slow: true, spare: true, come: func(w *world) {
		for _, name := range w.names() {
			h, err := w.s.Lock(w.waits, name, etcdlock.WithLinger(time.Hour))
			require.NoError(w, err)
			require.NoError(w, h.Unlock(context.Background()))
			synctest.Wait()
		}
	}},
	{name: "names were held", come: func(w *world) {
		names := w.names()
		w.each(func(ctx context.Context, i int) {
			h, err := w.s.Lock(ctx, names[i])
			require.NoError(w, err)
			require.NoError(w, h.Unlock(context.Background()))
		})
	}},
	{name: "names are held, and no event comes", holds: true, blind: true, come: func(w *world) {
		w.hearsNoEvent()
		w.holdNames()
	}},
	{name: "names wait for the lock delay of a doubt", waits: true, come: func(w *world) {
		w.hearsNoEvent()
		w.holdNames()
		w.losesKeys()
		w.etcd.Compact() // etcd's history does not tell
		time.Sleep(ttl / 2)
		for _, h := range w.holds {
			require.ErrorIs(w, h.Unlock(context.Background()), etcdlock.ErrLost)
		}
		w.holds, w.ends = nil, nil
		w.holdNames()
		require.Empty(w, w.holds)
	}},
	{name: "names are being removed", slow: true, come: func(w *world) {
		w.holdNames()
		w.etcd.Intercept(func(c fake.Call) fake.Effect {
			return fake.Effect{Drop: c.Process == "a" && c.Method == fake.Txn && len(c.Deletes) > 0}
		})
		for _, h := range w.holds {
			w.left.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				require.ErrorIs(w, h.Unlock(ctx), etcdlock.ErrUnconfirmed)
			})
		}
		time.Sleep(2 * time.Second)
		w.holds = nil
	}},
	{name: "a crowd wants a few names in all ways", holds: true, waits: true, come: func(w *world) {
		w.each(func(ctx context.Context, i int) {
			name := fmt.Sprint("crowd-", i%3)
			switch i / 3 % 4 {
			case 0:
				w.lock(ctx, name)
			case 1:
				rw, _ := w.s.RWMutex(name)
				w.came(rw.RLock(ctx))
			case 2:
				rw, _ := w.s.RWMutex(name)
				w.came(rw.TryRLock(ctx))
			case 3:
				sem, _ := w.s.Semaphore(name, most)
				w.came(sem.Acquire(ctx, 1))
			}
		})
	}},

	// Other processes.
	{name: "another process has permits", slow: true, come: func(w *world) {
		w.strangers(line.Shape{Kind: line.Permit, Weight: 1, Limit: most})
	}},
	{name: "a permit waits behind those of other processes", slow: true, waits: true, alien: true,
		come: func(w *world) {
			w.strangers(line.Shape{Kind: line.Permit, Weight: 1, Limit: uint16(w.n)})
			sem := w.semaphore(w.n)
			w.each(func(ctx context.Context, i int) {
				if i == 0 {
					w.came(sem.Acquire(ctx, 1))
				}
			})
		}},
	{name: "other processes read", come: func(w *world) { w.strangers(line.Shape{Kind: line.Read}) }},
	{name: "a lock lingers beside keys of nested names", holds: true, nested: true,
		come: func(w *world) {
			w.nested()
			w.lock(w.waits, name, etcdlock.WithLinger(time.Hour))
		}},
	{name: "reads hold beside keys of nested names", holds: true, nested: true,
		come: func(w *world) {
			w.nested()
			rw := w.rw()
			for range 2 {
				w.came(rw.RLock(w.waits))
			}
		}},
	{name: "other processes lock", come: func(w *world) { w.strangers(line.Shape{}) }},
}
