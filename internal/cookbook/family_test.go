package cookbook_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// Baskets share items, in opposed orders. No item is sold twice, and no basket is sold in
// part.
func TestABasketIsSoldAsAWholeOrNotAtAll(t *testing.T) {
	db := newStock(t)
	remaining := func() (of [3]int) {
		for i := range of {
			require.NoError(t, db.QueryRow(`SELECT remaining FROM stock WHERE item = $1`,
				fmt.Sprint(i)).Scan(&of[i]))
		}
		return of
	}
	paid := func(context.Context) error { return nil }
	baskets := [][]string{{"0", "1"}, {"1", "0"}, {"1", "2"}, {"2", "0", "1"}}
	var sold [3]atomic.Int64
	var soldOut atomic.Int64
	var buyers sync.WaitGroup
	for i := range 8 {
		session, basket := contract.NewSession(t, newClient(t)), baskets[i%len(baskets)]
		buyers.Go(func() {
			for range 4 {
				err := buy(contract.Patient(t), session, db, basket, paid)
				switch {
				case errors.Is(err, errNotSold):
					soldOut.Add(1)
				case err != nil:
					t.Error(err)
				default:
					for _, item := range basket {
						sold[item[0]-'0'].Add(1)
					}
				}
			}
		})
	}
	buyers.Wait()
	for i, left := range remaining() {
		require.EqualValues(t, 10, int64(left)+sold[i].Load(), "of item %d", i)
	}
	require.Zero(t, remaining()[1], "all want it")
	require.Positive(t, soldOut.Load())

	// One item is sold out, and nobody pays for the others.
	session, before := contract.NewSession(t, newClient(t)), remaining()
	require.ErrorIs(t, buy(t.Context(), session, db, []string{"0", "1"}, func(context.Context) error {
		t.Error("paid for what is sold out")
		return nil
	}), errNotSold)
	require.Equal(t, before, remaining())
}

// The payment fails, or it takes so long that a newer holder has come to one of the rows.
func TestABasketThatIsNotPaidInTimeIsNotSold(t *testing.T) {
	db := newStock(t)
	session := contract.NewSession(t, newClient(t))
	untouched := func() {
		var left int
		require.NoError(t, db.QueryRow(`SELECT sum(remaining) FROM stock`).Scan(&left))
		require.Equal(t, 30, left)
	}
	refused := errors.New("card refused")
	require.ErrorIs(t, buy(t.Context(), session, db, []string{"0", "1"}, func(context.Context) error {
		return refused
	}), refused)
	untouched()
	require.ErrorIs(t, buy(t.Context(), session, db, []string{"0", "1"}, func(context.Context) error {
		_, err := db.Exec(`UPDATE stock SET token = token + 1 WHERE item = '1'`)
		return err
	}), errNotSold)
	untouched()
}

func newStock(t *testing.T) *sql.DB {
	return newDB(t,
		`CREATE TABLE stock (item TEXT PRIMARY KEY, remaining INTEGER, token INTEGER NOT NULL DEFAULT 0)`,
		`INSERT INTO stock (item, remaining) VALUES ('0', 10), ('1', 10), ('2', 10)`)
}

// Three processes have four workers each, and the limit is five. Heavy jobs get through,
// too.
func TestAPoolStaysWithinItsLimit(t *testing.T) {
	var inside, most, done atomic.Int64
	run := func(weight int) func(context.Context) error {
		return func(context.Context) error {
			now := inside.Add(int64(weight))
			for before := most.Load(); now > before &&
				!most.CompareAndSwap(before, now); before = most.Load() {
			}
			time.Sleep(time.Millisecond) // the work
			inside.Add(int64(-weight))
			return nil
		}
	}
	jobs := make(chan job)
	var processes sync.WaitGroup
	for range 3 {
		pool, err := contract.NewSession(t, newClient(t)).Semaphore("pool", 5)
		require.NoError(t, err)
		processes.Go(func() {
			work(contract.Patient(t), pool, 4, jobs, func(_ job, err error) {
				if err != nil {
					t.Error(err)
				}
				done.Add(1)
			})
		})
	}
	for i := range 60 {
		weight := 1 + i%5
		jobs <- job{weight, run(weight)}
	}
	close(jobs)
	processes.Wait()
	require.EqualValues(t, 60, done.Load())
	require.LessOrEqual(t, most.Load(), int64(5))
	require.Greater(t, most.Load(), int64(1), "one after the other")
}

// A job that waited in vain has not run. A job whose permits were taken away learns of
// that.
func TestAPoolTellsWhatBecameOfAJob(t *testing.T) {
	client := newClient(t)
	pool, err := contract.NewSession(t, client).Semaphore("pool/told", 1)
	require.NoError(t, err)
	jobs, results := make(chan job, 2), make(chan error, 2)
	ctx, cancel := context.WithCancel(t.Context())
	jobs <- job{1, func(ctx context.Context) error {
		line, err := etcdlock.Contenders(t.Context(), client, "pool/told")
		if err != nil {
			return err
		}
		if err := etcdlock.Break(t.Context(), client, line[0]); err != nil {
			return err
		}
		<-ctx.Done()
		cancel()
		return nil
	}}
	jobs <- job{1, func(context.Context) error { t.Error("ran after the end"); return nil }}
	close(jobs)
	work(ctx, pool, 1, jobs, func(_ job, err error) { results <- err })
	require.ErrorIs(t, <-results, etcdlock.ErrLost)
	err = <-results
	require.ErrorIs(t, err, etcdlock.ErrNotRun)
	require.ErrorIs(t, err, context.Canceled)
}

// The lead moves between two steps, without an overlap, and without a loss.
func TestTheLeadIsHandedOverBetweenTwoSteps(t *testing.T) {
	const name = "leader/stepping"
	var o overlaps
	var lead atomic.Int64 // the process that has done the last step
	ctx, cancel := context.WithCancel(t.Context())
	var replicas sync.WaitGroup
	for i := range 2 {
		mu := contract.NewMutex(t, newClient(t), name, etcdlock.WithRecall(time.Minute),
			etcdlock.WithTrace(&etcdlock.Trace{Led: func(_ context.Context, e etcdlock.LedEvent) {
				if e.Err != nil && ctx.Err() == nil {
					t.Error(e.Err)
				}
			}}))
		replicas.Go(func() {
			err := leadInSteps(ctx, mu, func(ctx context.Context) error {
				o.run(2 * time.Millisecond)
				lead.Store(int64(i + 1))
				return ctx.Err()
			})
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	client := newClient(t)
	for range 2 { // there, and back
		contract.WaitForLine(t, client, name, 2)
		require.Eventually(t, func() bool { return lead.Load() > 0 }, contract.Patience, time.Millisecond)
		before := lead.Load()
		require.NoError(t, handOver(contract.Patient(t), client, name, time.Minute))
		require.Eventually(t, func() bool {
			return lead.Load() != before
		}, contract.Patience, time.Millisecond)
	}
	cancel()
	replicas.Wait()
	require.EqualValues(t, 1, o.most.Load())
	require.NoError(t, handOver(contract.Patient(t), client, name, time.Minute), "nobody leads")

	deaf := contract.NewMutex(t, client, name)
	require.NoError(t, deaf.Lock(t.Context()))
	require.ErrorIs(t, handOver(contract.Patient(t), client, name, 0), etcdlock.ErrNotRecallable)
}

func TestAProxyFollowsTheLeader(t *testing.T) {
	const name = "leader/proxied"
	var f follower
	ctx, cancel := context.WithCancel(t.Context())
	client := newClient(t)
	follows := make(chan error, 1)
	go func() { follows <- f.follow(ctx, client, name) }()
	get := func() (status int, body string) {
		w := httptest.NewRecorder()
		f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/work", nil))
		text, err := io.ReadAll(w.Body)
		require.NoError(t, err)
		return w.Code, string(text)
	}
	answers := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool {
			status, body := get()
			return status == http.StatusOK && body == want
		},
			contract.Patience, time.Millisecond)
	}
	status, _ := get()
	require.Equal(t, http.StatusServiceUnavailable, status)
	var replicas []*etcdlock.Mutex
	for _, answer := range []string{"one", "two"} {
		var mu atomic.Pointer[etcdlock.Mutex]
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			leading(mu.Load(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				token, _ := etcdlock.TokenFrom(r.Context())
				require.Positive(t, token)
				fmt.Fprint(w, answer)
			}))(w, r)
		}))
		t.Cleanup(server.Close)
		mu.Store(contract.NewMutex(t, newClient(t), name, etcdlock.WithInfo(server.URL)))
		replicas = append(replicas, mu.Load())
	}
	require.NoError(t, replicas[0].Lock(t.Context()))
	answers("one")
	require.NoError(t, replicas[0].Unlock(t.Context()))
	require.NoError(t, replicas[1].Lock(t.Context()))
	answers("two")
	require.NoError(t, replicas[1].Unlock(t.Context()))
	require.Eventually(t, func() bool {
		return f.leader.Load() == nil
	}, contract.Patience, time.Millisecond)
	status, _ = get()
	require.Equal(t, http.StatusServiceUnavailable, status)
	cancel()
	require.ErrorIs(t, <-follows, context.Canceled)

	w := httptest.NewRecorder() // the proxy is behind
	leading(replicas[0], http.NotFoundHandler())(w, httptest.NewRequest(http.MethodGet, "/work", nil))
	require.Equal(t, http.StatusServiceUnavailable, w.Code)
}

// The follower reaches each leader at the port that it has opened, and nobody before.
func TestALeaderTellsWhereItServes(t *testing.T) {
	const name = "leader/served"
	var f follower
	following, end := context.WithCancel(t.Context())
	follows := make(chan error, 1)
	client := newClient(t)
	go func() { follows <- f.follow(following, client, name) }()
	for i := range 3 {
		mu := contract.NewMutex(t, newClient(t), name)
		leads, stop := context.WithCancel(t.Context())
		over := make(chan error, 1)
		go func() {
			over <- leadAt(leads, mu, "127.0.0.1",
				http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					fmt.Fprint(w, i)
				}))
		}()
		require.Eventually(t, func() bool {
			w := httptest.NewRecorder()
			f.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/work", nil))
			return w.Code == http.StatusOK && w.Body.String() == fmt.Sprint(i)
		}, contract.Patience, time.Millisecond)
		stop()
		require.ErrorIs(t, <-over, context.Canceled)
		require.Eventually(t, func() bool {
			return f.leader.Load() == nil
		}, contract.Patience, time.Millisecond)
	}
	end()
	require.ErrorIs(t, <-follows, context.Canceled)
}

// Some processes have a copy each, and two of them make changes. No process reads what is
// no longer true.
func TestACopyIsGoodUntilTheOriginalChanges(t *testing.T) {
	const name = "catalog"
	var original, loads atomic.Int64
	var caches []*cache[int64]
	for range 3 {
		s, err := etcdlock.NewSession(newClient(t))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close(context.Background())) })
		reads, err := s.RWMutex(name, etcdlock.WithRecall(time.Minute))
		require.NoError(t, err)
		changes, err := s.RWMutex(name,
			etcdlock.WithAsk(etcdlock.RecallRequest{Reason: "a change", Grace: time.Second}))
		require.NoError(t, err)
		caches = append(caches, &cache[int64]{reads: reads, changes: changes,
			load: func(context.Context) (int64, error) {
				loads.Add(1)
				return original.Load(), nil
			}})
	}
	read := func(c *cache[int64]) {
		before := original.Load()
		got, err := c.get(contract.Patient(t))
		if err != nil {
			t.Error(err)
		}
		if got < before {
			t.Errorf("read %d, when %d was there already", got, before)
		}
	}
	for range 1000 {
		for _, c := range caches {
			read(c)
		}
	}
	require.EqualValues(t, len(caches), loads.Load(), "the other 997 reads of each were of its copy")

	changed := make(chan struct{})
	var readers sync.WaitGroup
	for _, c := range caches {
		readers.Go(func() {
			for {
				select {
				case <-changed:
					return
				default:
					read(c)
				}
			}
		})
	}
	for i := range 3 {
		err := caches[i%2].change(contract.Patient(t), func(context.Context) error {
			original.Add(1)
			return nil
		})
		require.NoError(t, err)
	}
	close(changed)
	readers.Wait()
	for _, c := range caches {
		got, err := c.get(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 3, got)
	}
}

// A copy that fails to load is not kept, and leaves nothing for which a writer would wait.
func TestACopyThatCannotBeLoadedIsNone(t *testing.T) {
	client := newClient(t)
	rw, err := etcdlock.NewRWMutex(client, "catalog/broken", etcdlock.WithRecall(time.Minute))
	require.NoError(t, err)
	defer rw.Close(t.Context())
	broken := errors.New("disk full")
	c := &cache[int]{reads: rw, load: func(context.Context) (int, error) { return 1, broken }}
	_, err = c.get(t.Context())
	require.ErrorIs(t, err, broken)
	require.NoError(t, rw.TryLock(t.Context()))
	require.NoError(t, rw.Unlock(t.Context()))
	c.load = func(ctx context.Context) (int, error) { // the hold was lost meanwhile
		line, err := etcdlock.Contenders(t.Context(), client, "catalog/broken")
		if err != nil {
			return 0, err
		}
		return 2, errors.Join(etcdlock.Break(t.Context(), client, line[0]), wait(ctx))
	}
	_, err = c.get(t.Context())
	require.ErrorIs(t, err, etcdlock.ErrLost)
}

// wait waits until ctx ends.
func wait(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
