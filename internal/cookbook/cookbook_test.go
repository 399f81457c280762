package cookbook_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	_ "modernc.org/sqlite"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// endpoints are the endpoints of an etcd in memory that all recipes share.
var endpoints []string

func TestMain(m *testing.M) { os.Exit(sim.Serving(&endpoints, m.Run)) }

func newClient(t *testing.T, opts ...contract.ClientOption) *clientv3.Client {
	t.Helper()
	return contract.ClientOf(t, endpoints, opts...)
}

// newDB is a database in memory.
func newDB(t *testing.T, schema ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", ":memory:")
	require.NoError(t, err)
	db.SetMaxOpenConns(1) // each connection would have a memory of its own
	t.Cleanup(func() { db.Close() })
	for _, statement := range schema {
		_, err := db.Exec(statement)
		require.NoError(t, err)
	}
	return db
}

// overlaps counts runs, and how many of them were under way at once.
type overlaps struct{ inside, most, runs atomic.Int64 }

func (o *overlaps) run(d time.Duration) {
	o.runs.Add(1)
	inside := o.inside.Add(1)
	for most := o.most.Load(); inside > most &&
		!o.most.CompareAndSwap(most, inside); most = o.most.Load() {
	}
	time.Sleep(d) // the work
	o.inside.Add(-1)
}

// neverRan makes etcd forget the slots of a job that an earlier run of a test has recorded.
func neverRan(t *testing.T, name string) {
	t.Helper()
	_, err := newClient(t).Delete(t.Context(), "cron-done/"+name)
	require.NoError(t, err)
}

func TestEachSlotRunsOnceThoughClocksDiffer(t *testing.T) {
	neverRan(t, "report")
	var o overlaps
	job := func(context.Context) error { o.run(10 * time.Millisecond); return nil }
	slot := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	for day := range 3 {
		var machines sync.WaitGroup
		for range 4 {
			machines.Go(func() {
				err := runSlot(t.Context(), newClient(t), "report", slot.AddDate(0, 0, day), job)
				if err != nil {
					t.Error(err)
				}
			})
		}
		machines.Wait()
		// The clock of this machine is behind, and the first machine has long released.
		require.NoError(t, runSlot(t.Context(), newClient(t), "report", slot.AddDate(0, 0, day), job))
		require.EqualValues(t, day+1, o.runs.Load())
	}
}

// The job fails on one machine while another one waits.
func TestASlotWhoseJobFailsIsRunByTheNextMachine(t *testing.T) {
	neverRan(t, "invoices")
	slot := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	failed := errors.New("printer on fire")
	began, waits := make(chan struct{}), make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- runSlot(t.Context(), newClient(t), "invoices", slot, func(context.Context) error {
			close(began)
			<-waits
			return failed
		})
	}()
	<-began
	second, runs := make(chan error, 1), 0
	client := newClient(t)
	go func() {
		second <- runSlot(t.Context(), client, "invoices", slot, func(context.Context) error {
			runs++
			return nil
		})
	}()
	require.Eventually(t, func() bool {
		line, err := etcdlock.Contenders(t.Context(), client, "cron/invoices")
		return err == nil && len(line) == 2
	}, time.Minute, time.Millisecond)
	close(waits)
	require.ErrorIs(t, <-first, failed)
	require.NoError(t, <-second)
	require.Equal(t, 1, runs)
}

// A slot of a clock that is ten years ahead, or behind, is refused. If it comes first, so is each
// other slot, until its record is deleted: no slot is skipped in silence.
func TestASlotOfAWrongClockIsRefused(t *testing.T) {
	neverRan(t, "backup")
	client, runs := newClient(t), 0
	run := func(slot time.Time) error {
		return runSlot(t.Context(), client, "backup", slot, func(context.Context) error {
			runs++
			return nil
		})
	}
	night := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	require.NoError(t, run(night))
	for _, years := range []int{10, -10} {
		require.ErrorContains(t, run(night.AddDate(years, 0, 0)), "is a clock wrong?")
	}
	require.NoError(t, run(night.AddDate(0, 0, 1)))
	require.NoError(t, run(night.AddDate(0, 0, 1)))
	require.Equal(t, 2, runs, "the next night, once")

	neverRan(t, "backup")
	require.NoError(t, run(night.AddDate(10, 0, 0)), "the first slot that there is")
	require.ErrorContains(t, run(night.AddDate(0, 0, 2)), "is a clock wrong?")
	neverRan(t, "backup") // an operator deletes the record
	require.NoError(t, run(night.AddDate(0, 0, 2)))
	require.Equal(t, 4, runs)
}

// A replica is a process with a candidate.
type replica struct {
	*candidate
	end  context.CancelFunc
	over chan error
}

func newReplica(t *testing.T, name string, leads chan<- *candidate) *replica {
	t.Helper()
	return newReplicaOf(t, newClient(t), name, leads)
}

func newReplicaOf(
	t *testing.T, client *clientv3.Client, name string, leads chan<- *candidate,
) *replica {
	t.Helper()
	c, err := newCandidate(contract.NewSession(t, client), name)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	r := &replica{c, cancel, make(chan error, 1)}
	go func() {
		r.over <- c.lead(ctx, func(ctx context.Context) error {
			leads <- c
			<-ctx.Done()
			return context.Cause(ctx)
		})
	}()
	return r
}

func (r *replica) stops(t *testing.T) {
	t.Helper()
	r.end()
	require.ErrorIs(t, <-r.over, context.Canceled)
	require.False(t, r.isReady())
}

func (r *replica) isReady() bool {
	w := httptest.NewRecorder()
	r.ready(w, httptest.NewRequest(http.MethodGet, "/ready", nil))
	return w.Code == http.StatusOK
}

func (r *replica) becomesReady(t *testing.T) {
	t.Helper()
	require.Eventually(t, r.isReady, 20*time.Second, time.Millisecond)
}

func TestOneLeadsAndTheNextOneTakesOver(t *testing.T) {
	const name = "leader/billing"
	leads := make(chan *candidate, 10)
	replicas := []*replica{newReplica(t, name, leads), newReplica(t, name, leads)}
	client, first := newClient(t), <-leads
	contract.WaitForLine(t, client, name, 2)
	line, err := etcdlock.Contenders(t.Context(), client, name)
	require.NoError(t, err)
	require.NoError(t, etcdlock.Break(t.Context(), client, line[0]))
	require.NotSame(t, first, <-leads)
	contract.WaitForLine(t, client, name, 2) // the first one stands in line again
	for _, r := range replicas {
		r.becomesReady(t)
		r.stops(t)
	}
}

// A rolling update waits until a new replica is ready, and then stops an old one. It comes to its
// end, since a replica is ready that does not lead; and somebody is next in line all the time.
func TestARollingUpdateOfCandidatesComesToItsEnd(t *testing.T) {
	const name = "leader/shipping"
	leads := make(chan *candidate, 10)
	var old []*replica
	for range 3 {
		r := newReplica(t, name, leads)
		r.becomesReady(t)
		old = append(old, r)
	}
	var updated []*replica
	for _, r := range old {
		surge := newReplica(t, name, leads)
		surge.becomesReady(t)
		require.False(t, surge.mu.Status().Held, "a probe for the leader would wait for ever")
		updated = append(updated, surge)
		r.stops(t)
	}
	var last *candidate
	require.Eventually(t, func() bool {
		select {
		case last = <-leads:
		default:
		}
		return slices.ContainsFunc(updated, func(r *replica) bool { return r.candidate == last })
	}, 20*time.Second, time.Millisecond)
	for _, r := range updated {
		require.True(t, r.isReady())
	}
	for _, r := range updated {
		r.stops(t)
	}
}

// A candidate that etcd keeps out is not ready.
func TestACandidateThatIsNotInLineIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		thaw := etcd.Freeze()
		c, err := newCandidate(contract.NewSession(t, etcd.Client()), "leader/mail")
		require.NoError(t, err)
		r := &replica{c, nil, make(chan error, 1)}
		require.False(t, r.isReady())
		ctx, cancel := context.WithCancel(t.Context())
		r.end = cancel
		go func() {
			r.over <- c.lead(ctx, func(ctx context.Context) error { <-ctx.Done(); return nil })
		}()
		time.Sleep(time.Minute)
		require.False(t, r.isReady())
		thaw()
		time.Sleep(time.Minute)
		require.True(t, r.isReady())
		r.stops(t)
	})
}

func TestTheDatabaseRefusesWhoWasOvertaken(t *testing.T) {
	db := newDB(t,
		`CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, token INTEGER NOT NULL DEFAULT 0)`,
		`INSERT INTO accounts (id, balance) VALUES ('a', 0)`)
	stored := func() (b int) {
		require.NoError(t, db.QueryRow(`SELECT balance FROM accounts`).Scan(&b))
		return b
	}
	mu := contract.NewMutex(t, newClient(t), "accounts/a")
	var paused context.Context
	require.NoError(t, mu.Do(t.Context(), func(ctx context.Context) error {
		paused = context.WithoutCancel(ctx) // a process that does not notice the time
		return setBalance(ctx, db, "a", 10)
	}))
	require.Equal(t, 10, stored())
	require.NoError(t, mu.Do(t.Context(), func(ctx context.Context) error {
		if err := setBalance(ctx, db, "a", 20); err != nil {
			return err
		}
		return setBalance(ctx, db, "a", 30) // a second time in one hold
	}))
	require.ErrorIs(t, setBalance(paused, db, "a", 11), errOvertaken)
	require.Equal(t, 30, stored())
	require.ErrorIs(t, setBalance(t.Context(), db, "a", 12), etcdlock.ErrNotHeld)
	require.ErrorIs(t, mu.Do(t.Context(), func(ctx context.Context) error {
		return setBalance(ctx, db, "b", 1)
	}), errOvertaken)
}

// The late write of an older holder comes between the read and the write of the new one.
func TestALateWriteDoesNotComeBetweenAReadAndItsWrite(t *testing.T) {
	db := newDB(t,
		`CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, token INTEGER NOT NULL DEFAULT 0)`,
		`INSERT INTO accounts (id, balance) VALUES ('a', 10)`)
	mu := contract.NewMutex(t, newClient(t), "accounts/a")
	var paused context.Context
	read := 0
	require.NoError(t, mu.Do(t.Context(), func(ctx context.Context) (err error) {
		paused = context.WithoutCancel(ctx) // a process that does not notice the time
		read, err = balance(ctx, db, "a")
		return err
	}))
	require.NoError(t, mu.Do(t.Context(), func(ctx context.Context) error {
		now, err := balance(ctx, db, "a")
		if err != nil {
			return err
		}
		require.ErrorIs(t, setBalance(paused, db, "a", read-1), errOvertaken)
		_, err = balance(paused, db, "a")
		require.ErrorIs(t, err, errOvertaken)
		return setBalance(ctx, db, "a", now-1)
	}))
	left := 0
	require.NoError(t, mu.Do(t.Context(), func(ctx context.Context) (err error) {
		left, err = balance(ctx, db, "a")
		return err
	}))
	require.Equal(t, 9, left)
	_, err := balance(t.Context(), db, "a")
	require.ErrorIs(t, err, etcdlock.ErrNotHeld)
}

// Transfers between the same accounts in both directions get through, and a late one is refused.
func TestTransfersInBothDirectionsGetThrough(t *testing.T) {
	db := newDB(t,
		`CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER, token INTEGER NOT NULL DEFAULT 0)`,
		`INSERT INTO accounts (id, balance) VALUES ('a', 100), ('b', 100)`)
	balances := func() (a, b int) {
		require.NoError(t, db.QueryRow(`SELECT balance FROM accounts WHERE id = 'a'`).Scan(&a))
		require.NoError(t, db.QueryRow(`SELECT balance FROM accounts WHERE id = 'b'`).Scan(&b))
		return a, b
	}
	fine := func(context.Context) error { return nil }
	var wg sync.WaitGroup
	for i := range 4 {
		session := contract.NewSession(t, newClient(t))
		from, to, amount := "a", "b", 3
		if i%2 == 1 {
			from, to, amount = "b", "a", 1
		}
		wg.Go(func() {
			for range 10 {
				if err := transfer(contract.Patient(t), session, db, from, to, amount, fine); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	a, b := balances()
	require.Equal(t, []int{60, 140}, []int{a, b})

	session := contract.NewSession(t, newClient(t))
	_, err := db.Exec(`UPDATE accounts SET token = 1000000000 WHERE id = 'b'`) // a newer holder
	require.NoError(t, err)
	require.ErrorIs(t, transfer(t.Context(), session, db, "a", "b", 3, fine), errOvertaken)
	unsure := errors.New("unsure")
	require.ErrorIs(t, transfer(t.Context(), session, db, "a", "b", 3, func(context.Context) error {
		return unsure
	}), unsure)
	a, b = balances()
	require.Equal(t, []int{60, 140}, []int{a, b})
}

func TestASeatIsBookedByOneRequestAtATime(t *testing.T) {
	session := contract.NewSession(t, newClient(t))
	var o overlaps
	mux := http.NewServeMux()
	mux.Handle("POST /seats/{seat}", booking(session, func(_ context.Context, seat string) error {
		o.run(time.Millisecond)
		if seat == "13" {
			return errors.New("there is no row 13")
		}
		return nil
	}))
	post := func(seat string) int {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/seats/"+seat, nil))
		return w.Code
	}
	var guests sync.WaitGroup
	for range 20 {
		guests.Go(func() {
			if code := post("7"); code != http.StatusOK {
				t.Error(code)
			}
		})
	}
	guests.Wait()
	require.EqualValues(t, 20, o.runs.Load())
	require.EqualValues(t, 1, o.most.Load())
	require.Equal(t, http.StatusInternalServerError, post("13"))
	require.Equal(t, http.StatusBadRequest, post("%00"))

	other := contract.NewMutex(t, newClient(t), "seats/8")
	require.NoError(t, other.Lock(t.Context()))
	before := o.runs.Load()
	require.Equal(t, http.StatusConflict, post("8"))
	require.Equal(t, before, o.runs.Load(), "nothing has happened")
}

// docs/cookbook.md says what a Mutex per request costs.
func TestAMutexPerRequestCostsWhatItsLockCosts(t *testing.T) {
	const requests = 20
	counter := contract.NewCounter()
	client := newClient(t, contract.With(counter))
	session := contract.NewSession(t, client)
	use := func(mu *etcdlock.Mutex, err error) *etcdlock.Mutex {
		require.NoError(t, err)
		require.NoError(t, mu.Do(t.Context(), func(context.Context) error { return nil }))
		return mu
	}
	use(session.Mutex("warm")) // the lease

	before := counter.Counts()
	for i := range requests {
		use(session.Mutex(fmt.Sprintf("orders/%d", i)))
	}
	require.Equal(t, fmt.Sprintf("Txn %d", 2*requests), counter.Since(before).String())

	before = counter.Counts()
	for i := range requests {
		mu := use(etcdlock.NewMutex(client, fmt.Sprintf("orders/%d", i)))
		require.NoError(t, mu.Close(t.Context()))
	}
	require.Equal(t, fmt.Sprintf("LeaseGrant %d, LeaseRevoke %d, Txn %d", requests, requests,
		2*requests),
		counter.Since(before).String())
}

func TestASchemaIsMigratedOnce(t *testing.T) {
	db := newDB(t,
		`CREATE TABLE schema_version (version INTEGER)`, `INSERT INTO schema_version VALUES (0)`)
	steps := []string{
		`CREATE TABLE goods (id INTEGER)`, // fails if it runs twice
		`ALTER TABLE goods ADD COLUMN price INTEGER`,
	}
	for _, known := range [][]string{steps,
		append(steps, `ALTER TABLE goods ADD COLUMN colour TEXT`)} {
		var processes sync.WaitGroup
		for range 5 {
			processes.Go(func() {
				if err := migrate(t.Context(), newClient(t), db, known); err != nil {
					t.Error(err)
				}
			})
		}
		processes.Wait()
		var version int
		require.NoError(t, db.QueryRow(`SELECT version FROM schema_version`).Scan(&version))
		require.Equal(t, len(known), version)
	}
	_, err := db.Exec(`INSERT INTO goods (id, price, colour) VALUES (1, 2, 'red')`)
	require.NoError(t, err)

	err = step(t.Context(), db, 1, `DROP TABLE goods`) // a process that was overtaken calls it
	require.ErrorIs(t, err, errOvertaken)
	var goods int
	require.NoError(t, db.QueryRow(`SELECT count(*) FROM goods`).Scan(&goods))
	require.Equal(t, 1, goods)
}

// The job of one tick runs once on all machines, however short it is.
func TestAShortJobRunsOnceThoughClocksDiffer(t *testing.T) {
	var ran atomic.Int64
	for range 5 { // one after the other: each comes when the job before is over
		s := contract.NewSession(t, newClient(t))
		did, err := runOnce(t.Context(), s, t.Name(), func(context.Context) error {
			ran.Add(1)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, ran.Load() == 1 && did, did)
		require.NoError(t, s.Close(t.Context()), "the machine exits")
	}
	require.EqualValues(t, 1, ran.Load())
	c, err := etcdlock.Contenders(t.Context(), newClient(t), "cron/"+t.Name())
	require.NoError(t, err)
	require.NoError(t, etcdlock.Break(t.Context(), newClient(t), c[0]))

	did, err := runOnce(t.Context(), contract.NewSession(t, newClient(t)),
		t.Name(), func(context.Context) error {
			return os.ErrInvalid
		})
	require.ErrorIs(t, err, os.ErrInvalid)
	require.True(t, did)
	c, err = etcdlock.Contenders(t.Context(), newClient(t), "cron/"+t.Name())
	require.NoError(t, err)
	require.NoError(t, etcdlock.Break(t.Context(), newClient(t), c[0]))
}

// A deploy waits for the new version, and then each term begins as the one before has ended, with
// what that one has left. The one that came after the new version does not get in before it.
func TestADeployKeepsTheLead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		terms, ended := make(chan string, 10), time.Time{}
		start := func(who, version string) {
			client := etcd.Client()
			mu := contract.MutexOf(t, contract.NewSession(t, client), "n",
				etcdlock.WithInfo(version), etcdlock.WithRecall(time.Minute))
			running.Go(func() {
				err := leadOn(ctx, client, mu, func(ctx context.Context, state string) (string, error) {
					if !ended.IsZero() {
						require.Equal(t, ended, time.Now())
					}
					terms <- who + " goes on with " + state
					select {
					case <-etcdlock.RecallFrom(ctx):
					case <-ctx.Done():
					}
					time.Sleep(time.Second) // for its last step
					ended = time.Now()
					return "that of " + who, nil
				})
				require.ErrorIs(t, err, context.Canceled)
			})
			synctest.Wait()
		}
		start("a", "v1")
		start("b", "v1")
		time.Sleep(time.Minute)
		deployed := contract.Async(func() error {
			return deploy(ctx, etcd.Client(), "n", "v2", time.Minute)
		})
		time.Sleep(time.Minute)
		require.Len(t, terms, 1, "a is asked before another can lead")
		require.Equal(t, "a goes on with ", <-terms)

		start("c", "v2")
		late := contract.Async(func() error {
			return contract.MutexOf(t, contract.NewSession(t, etcd.Client()), "n").Lock(ctx)
		})
		require.NoError(t, <-deployed)
		synctest.Wait()
		require.Equal(t, "b goes on with that of a", <-terms)
		require.Equal(t, "c goes on with that of b", <-terms)
		time.Sleep(time.Minute)
		require.Empty(t, terms)
		require.Empty(t, late)

		stop() // the process of c ends
		running.Wait()
		require.ErrorIs(t, <-late, context.Canceled)
		read, err := etcd.Client().Get(t.Context(), "state/n")
		require.NoError(t, err)
		require.Equal(t, "that of c", string(read.Kvs[0].Value))
	})
}

// A job is accepted once until a worker has run it, though the machine that has accepted it is cut
// off, and though the queue delivers it again.
func TestAJobIsFinishedByAnotherProcess(t *testing.T) {
	machines(t, func(t *testing.T, a, b machine, cut func() func()) {
		accepts := func(m machine, want bool) {
			t.Helper()
			got, err := accept(t.Context(), m.session, "video/1", func(context.Context) error { return nil })
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		runs, ran := 0, make(chan struct{})
		work := func(id string) <-chan error {
			return contract.Async(func() error {
				return finish(contract.Patient(t), b.client, b.session, "video/1", id,
					func(context.Context) error {
						runs++
						<-ran
						return nil
					})
			})
		}
		began := time.Now()
		accepts(a, true)
		accepts(b, false)
		done := work("1")
		heal := cut() // 20 s have passed: the worker has got in
		require.Equal(t, 1, runs)
		accepts(b, false)
		ran <- struct{}{}
		require.NoError(t, <-done)
		require.NoError(t, <-work("1"), "it is delivered again")
		require.Equal(t, 1, runs)
		require.Less(t, time.Since(began), 25*time.Second)
		heal()

		accepts(b, true)
		first := work("2") // of two deliveries one runs it, if it succeeds
		second := work("2")
		ran <- struct{}{}
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		require.Equal(t, 2, runs)
		accepts(a, true)
		time.Sleep(time.Minute)
	})
}

// A job of a millisecond runs once in each slot, though a scheduler begins the slots 20 ms after
// the other one, when the job is over.
func TestGocronRunsEachSlotOnceThoughASchedulerIsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := etcdlocktest.New(t)
		start := time.Now()
		ran := make(chan time.Duration, 100) // when
		report := func(context.Context) error {
			ran <- time.Since(start)
			time.Sleep(time.Millisecond)
			return nil
		}
		var want []time.Duration
		for slot := range 8 {
			want = append(want, time.Duration(slot+1)*time.Minute)
		}
		for _, behind := range []time.Duration{0, 20 * time.Millisecond} {
			var due []time.Time
			for _, slot := range want {
				due = append(due, start.Add(slot+behind))
			}
			session := contract.NewSession(t, etcd.Client())
			scheduler, err := schedule(session, gocron.OneTimeJob(gocron.OneTimeJobStartDateTimes(due...)),
				report)
			require.NoError(t, err)
			defer scheduler.Shutdown()
		}
		time.Sleep(10 * time.Minute)
		require.Len(t, ran, len(want))
		for _, slot := range want {
			require.Equal(t, slot, <-ran)
		}
	})
}

func TestGocronRunsJobsOnTheMachineThatLeads(t *testing.T) {
	mutexes := []*etcdlock.Mutex{
		contract.NewMutex(t, newClient(t), "leader/cron"),
		contract.NewMutex(t, newClient(t), "leader/cron"),
	}
	require.NoError(t, mutexes[1].Lock(t.Context()))
	var ran [2]atomic.Int64
	for machine, mu := range mutexes {
		scheduler, err := scheduleWhereLed(mu)
		require.NoError(t, err)
		_, err = scheduler.NewJob(gocron.DurationJob(20*time.Millisecond), gocron.NewTask(func() {
			ran[machine].Add(1)
		}))
		require.NoError(t, err)
		scheduler.Start()
		t.Cleanup(func() { require.NoError(t, scheduler.Shutdown()) })
	}
	require.Eventually(t, func() bool { return ran[1].Load() >= 5 }, 20*time.Second, time.Millisecond)
	require.Zero(t, ran[0].Load())
	require.NoError(t, mutexes[1].Unlock(t.Context()))
	require.NoError(t, mutexes[0].Lock(t.Context()))
	require.Eventually(t, func() bool { return ran[0].Load() >= 5 }, 20*time.Second, time.Millisecond)
}

func TestTheCommandRunsOnce(t *testing.T) {
	client := newClient(t)
	status := command(client, func(context.Context) error {
		require.Equal(t, 75, command(newClient(t), func(context.Context) error {
			t.Error("two at once")
			return nil
		}))
		return nil
	})
	require.Zero(t, status)
	require.Equal(t, 1, command(client, func(context.Context) error {
		return errors.New("disk full")
	}))
	// The error of its work is about another lock, and says nothing about this one.
	require.Equal(t, 1, command(client, func(ctx context.Context) error {
		return &etcdlock.LockedError{Name: "other"}
	}))
}
