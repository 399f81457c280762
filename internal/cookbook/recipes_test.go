package cookbook_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
)

// slotsWithin is above the time between two slots, and above the longest outage of all machines. A
// slot further from the last one is of a clock that is wrong.
const slotsWithin = 8 * 24 * time.Hour

// runSlot runs job once for a slot. It waits while another machine runs the slot.
func runSlot(ctx context.Context, client *clientv3.Client, name string, slot time.Time,
	job func(context.Context) error,
) error {
	mu, err := etcdlock.NewMutex(client, "cron/"+name)
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	done, this := "cron-done/"+name, slot.UTC().Truncate(time.Second)
	return mu.Do(ctx, func(ctx context.Context) error {
		before, err := client.Get(ctx, done)
		if err != nil {
			return err
		}
		for _, kv := range before.Kvs { // there is one, or none
			last, err := time.Parse(time.RFC3339, string(kv.Value))
			if err != nil || this.Sub(last).Abs() > slotsWithin {
				return fmt.Errorf("%s: %v is far from the last slot, %s: is a clock wrong?",
					done, this, kv.Value)
			}
			if !this.After(last) {
				return nil // another machine has run it
			}
		}
		if err := job(ctx); err != nil {
			return err
		}
		noted, err := client.Txn(ctx).If(mu.IsOwner()).Then(
			clientv3.OpPut(done, this.Format(time.RFC3339))).Commit()
		if err == nil && !noted.Succeeded {
			err = etcdlock.ErrLost
		}
		return err
	})
}

// runOnce runs job unless another machine has begun it within the last minute. It reports whether
// this machine has run it.
func runOnce(ctx context.Context, s *etcdlock.Session, name string, job func(context.Context) error,
) (ran bool, err error) {
	err = s.TryDo(ctx, "cron/"+name, job, etcdlock.WithMinHold(time.Minute))
	if errors.Is(err, etcdlock.ErrNotRun) && errors.Is(err, etcdlock.ErrLocked) {
		return false, nil
	}
	return !errors.Is(err, etcdlock.ErrNotRun), err
}

// A candidate is a replica that leads when its turn comes.
type candidate struct {
	mu            *etcdlock.Mutex
	begun, queued atomic.Bool
}

func newCandidate(s *etcdlock.Session, name string) (c *candidate, err error) {
	c = &candidate{}
	c.mu, err = s.Mutex(name, etcdlock.WithTrace(&etcdlock.Trace{
		Queued:   func(context.Context, etcdlock.QueuedEvent) { c.queued.Store(true) },
		Acquired: func(context.Context, etcdlock.AcquiredEvent) { c.queued.Store(true) },
	}))
	return c, err
}

// lead calls work whenever this process leads, until ctx ends.
func (c *candidate) lead(ctx context.Context, work func(context.Context) error) error {
	c.begun.Store(true)
	defer c.begun.Store(false)
	return c.mu.Lead(ctx, work) // errors of work go to the logger, and to Trace.Led
}

// ready is a readiness probe: 200 where the process leads, or will when its turn comes. It costs
// etcd nothing.
func (c *candidate) ready(w http.ResponseWriter, _ *http.Request) {
	if !c.begun.Load() || !c.queued.Load() {
		http.Error(w, "not in line", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "can lead; leads:", c.mu.Status().Held)
}

// leadInSteps does step after step while this process leads. A recall ends it between two steps. mu
// has WithRecall.
func leadInSteps(ctx context.Context, mu *etcdlock.Mutex, step func(context.Context) error) error {
	return mu.Lead(ctx, func(ctx context.Context) error {
		for {
			select {
			case <-etcdlock.RecallFrom(ctx): // the next leader begins when this returns
				return nil
			case <-ctx.Done(): // lost, the grace is over, or the caller has ended it
				return context.Cause(ctx)
			default:
			}
			if err := step(ctx); err != nil {
				return err
			}
		}
	})
}

// handOver recalls the leader, and waits until it has given the lead back.
func handOver(
	ctx context.Context, client *clientv3.Client, name string, grace time.Duration,
) error {
	var asked int64
	for leader, err := range etcdlock.WatchHolder(ctx, client, name) {
		if err != nil {
			return err
		}
		if leader.Token == 0 || asked != 0 { // nobody leads, or another one does
			return nil
		}
		err := etcdlock.Recall(ctx, client, leader, etcdlock.RecallRequest{
			By: "deploy", Reason: "rolling update", Grace: grace,
		})
		if err != nil { // such as ErrNotRecallable: no WithRecall
			return err
		}
		asked = leader.Token
	}
	return context.Cause(ctx)
}

// leadOn leads until ctx ends. work gets the state that the leader before has left. When work has
// to end, by its context or a recall, it returns the state that it leaves.
func leadOn(ctx context.Context, client *clientv3.Client, mu *etcdlock.Mutex,
	work func(ctx context.Context, state string) (left string, err error),
) error {
	key := "state/" + mu.Name()
	return mu.Lead(ctx, func(ctx context.Context) error {
		var state string
		read, err := client.Get(ctx, key)
		if err != nil {
			return err
		}
		for _, kv := range read.Kvs { // there is one, or none
			state = string(kv.Value)
		}
		left, err := work(ctx, state)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		saved, err := client.Txn(ctx).If(mu.IsOwner()).Then(clientv3.OpPut(key, left)).Commit()
		if err == nil && !saved.Succeeded {
			err = etcdlock.ErrLost
		}
		return err
	})
}

// deploy waits until a process of the new version is in line, and recalls each leader before it.
func deploy(
	ctx context.Context, client *clientv3.Client, name, version string, grace time.Duration,
) error {
	if err := standsInLine(ctx, client, name, version); err != nil {
		return err
	}
	for leader, err := range etcdlock.WatchHolder(ctx, client, name) {
		if err != nil || leader.Info == version {
			return err
		}
		if leader.Token == 0 { // nobody leads at this moment
			continue
		}
		err := etcdlock.Recall(ctx, client, leader, etcdlock.RecallRequest{
			By: "deploy", Reason: version, Grace: grace,
		})
		if err != nil { // such as ErrNotRecallable: no WithRecall
			return err
		}
	}
	return context.Cause(ctx)
}

// standsInLine waits until a process of a version leads, or waits for the lead.
func standsInLine(ctx context.Context, client *clientv3.Client, name, version string) error {
	for {
		line, err := etcdlock.Contenders(ctx, client, name)
		if err != nil {
			return err
		}
		for _, c := range line {
			if c.Info == version {
				return nil
			}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// accept enqueues a job, unless one of that name is queued or under way.
func accept(ctx context.Context, s *etcdlock.Session, name string,
	enqueue func(ctx context.Context) error,
) (accepted bool, err error) {
	err = s.TryDo(ctx, "jobs/"+name, enqueue, etcdlock.WithMinHold(10*time.Second))
	if errors.Is(err, etcdlock.ErrNotRun) && errors.Is(err, etcdlock.ErrLocked) {
		return false, nil
	}
	return err == nil, err
}

// finish runs a job unless it has come to its end before, however often the queue delivers it.
func finish(ctx context.Context, client *clientv3.Client, s *etcdlock.Session, name, id string,
	run func(ctx context.Context) error,
) error {
	mu, err := s.Mutex("jobs/" + name)
	if err != nil {
		return err
	}
	done := "jobs-done/" + id
	return mu.Do(ctx, func(ctx context.Context) error {
		before, err := client.Get(ctx, done, clientv3.WithCountOnly())
		if err != nil || before.Count > 0 {
			return err
		}
		if err := run(ctx); err != nil {
			return err
		}
		noted, err := client.Txn(ctx).If(mu.IsOwner()).Then(clientv3.OpPut(done, "")).Commit()
		if err == nil && !noted.Succeeded {
			err = etcdlock.ErrLost
		}
		return err
	})
}

// A follower sends requests to the leader. The leader's info is its URL.
type follower struct{ leader atomic.Pointer[url.URL] }

// follow learns who leads, until ctx ends.
func (f *follower) follow(ctx context.Context, client *clientv3.Client, name string) error {
	for leader, err := range etcdlock.WatchHolder(ctx, client, name) {
		if err != nil {
			return err // asking again would not help
		}
		var to *url.URL
		if leader.Info != "" { // "": nobody leads, or the leader is not ready
			if to, err = url.Parse(leader.Info); err != nil {
				return err
			}
		}
		f.leader.Store(to)
	}
	return context.Cause(ctx)
}

// ServeHTTP is a proxy to the leader.
func (f *follower) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	to := f.leader.Load()
	if to == nil {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "nobody leads", http.StatusServiceUnavailable)
		return
	}
	proxy := httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	proxy.ServeHTTP(w, r)
}

// leadAt serves h at a free port whenever this process leads, until ctx ends.
func leadAt(ctx context.Context, mu *etcdlock.Mutex, host string, h http.Handler) error {
	return mu.Lead(ctx, func(ctx context.Context) error {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return err
		}
		server := &http.Server{Handler: leading(mu, h)}
		defer context.AfterFunc(ctx, func() { server.Close() })()
		defer listener.Close()
		if err := mu.SetInfo(ctx, "http://"+listener.Addr().String()); err != nil {
			return err
		}
		return server.Serve(listener)
	})
}

// leading lets requests through while mu is held: a proxy may not know of a loss yet.
func leading(mu *etcdlock.Mutex, h http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !mu.Status().Held {
			http.Error(w, "another one leads", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r.WithContext(mu.Context(r.Context())))
	}
}

// A cache has a copy, which is good while this process holds the name for reading.
type cache[T any] struct {
	reads   *etcdlock.RWMutex // with WithRecall: how long a load may take
	changes *etcdlock.RWMutex // of the same name, with WithAsk: it asks for the copies
	load    func(ctx context.Context) (T, error)

	mu   sync.Mutex
	copy T
	good context.Context // of the hold
}

// get returns the copy. It waits for etcd only if there is no good one.
func (c *cache[T]) get(ctx context.Context) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good != nil && c.good.Err() == nil {
		return c.copy, nil
	}
	var none T
	hold, err := c.reads.RLock(ctx)
	if err != nil {
		return none, err
	}
	good := hold.Context(context.Background())
	loaded, err := c.load(good)
	if err == nil {
		err = context.Cause(good) // lost: old and new may be mixed
	}
	if err != nil {
		return none, errors.Join(err, hold.Unlock(ctx))
	}
	c.copy, c.good = loaded, good
	go func() {
		select {
		case <-etcdlock.RecallFrom(good): // a writer wants to change it
		case <-good.Done(): // lost
		}
		hold.Unlock(good) // ends good, and so the copy
	}()
	return loaded, nil
}

// change calls fn when no process has a copy, and no other process changes the original.
func (c *cache[T]) change(ctx context.Context, fn func(context.Context) error) error {
	return c.changes.Do(ctx, fn)
}

var errOvertaken = errors.New("a newer holder was here, or there is no such row")

// balance reads. ctx comes from a hold. The token stays in the row, so that no late write of an
// older hold can come between balance and setBalance.
func balance(ctx context.Context, db *sql.DB, account string) (balance int, err error) {
	token, held := etcdlock.TokenFrom(ctx)
	if !held {
		return 0, etcdlock.ErrNotHeld
	}
	err = db.QueryRowContext(ctx,
		`UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance`,
		token, account).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errOvertaken
	}
	return balance, err
}

// setBalance writes. ctx comes from a hold.
func setBalance(ctx context.Context, db *sql.DB, account string, balance int) error {
	token, held := etcdlock.TokenFrom(ctx)
	if !held {
		return etcdlock.ErrNotHeld
	}
	result, err := db.ExecContext(ctx,
		`UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2`,
		balance, token, account)
	if err != nil {
		return err
	}
	if updated, err := result.RowsAffected(); err != nil || updated == 0 {
		return errors.Join(err, errOvertaken)
	}
	return nil
}

// transfer moves an amount between two accounts. No other process changes them while check runs.
func transfer(
	ctx context.Context, session *etcdlock.Session, db *sql.DB, from, to string, amount int,
	check func(ctx context.Context) error,
) error {
	names := []string{"accounts/" + from, "accounts/" + to} // in any order
	return session.DoAll(ctx, names, func(ctx context.Context) error {
		if err := check(ctx); err != nil {
			return err
		}
		token, _ := etcdlock.TokenFrom(ctx)
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		for account, change := range map[string]int{from: -amount, to: amount} {
			result, err := tx.ExecContext(ctx,
				`UPDATE accounts SET balance = balance + $1, token = $2 WHERE id = $3 AND token <= $2`,
				change, token, account)
			if err != nil {
				return err
			}
			if updated, err := result.RowsAffected(); err != nil || updated == 0 {
				return errors.Join(err, errOvertaken)
			}
		}
		return tx.Commit()
	})
}

// buy sells all items of a basket, or none. While it holds them no other process can take one.
func buy(ctx context.Context, session *etcdlock.Session, db *sql.DB, basket []string,
	pay func(ctx context.Context) error,
) error {
	names := make([]string, len(basket)) // 1 to 32 different ones
	for i, item := range basket {
		names[i] = "stock/" + item
	}
	return session.DoAll(ctx, names, func(ctx context.Context) error {
		token, _ := etcdlock.TokenFrom(ctx)
		err := forEach(ctx, db, basket, token,
			`UPDATE stock SET token = $1 WHERE item = $2 AND token <= $1 AND remaining > 0`)
		if err != nil {
			return err
		}
		if err := pay(ctx); err != nil {
			return err
		}
		return forEach(ctx, db, basket, token,
			`UPDATE stock SET remaining = remaining - 1 WHERE item = $2 AND token = $1`)
	})
}

var errNotSold = errors.New("sold out, or a newer holder was here")

// forEach executes a statement for all items, in one SQL transaction, or for none.
func forEach(ctx context.Context, db *sql.DB, items []string, token int64, statement string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	for _, item := range items {
		result, err := tx.ExecContext(ctx, statement, token, item)
		if err != nil {
			return err
		}
		if updated, err := result.RowsAffected(); err != nil || updated == 0 {
			return errors.Join(err, fmt.Errorf("%s: %w", item, errNotSold))
		}
	}
	return tx.Commit()
}

// A job is work for a pool. Its weight is how many permits it takes.
type job struct {
	weight int
	run    func(ctx context.Context) error
}

// work runs jobs in n goroutines until the channel is closed. done gets the error of each job.
func work(
	ctx context.Context, pool *etcdlock.Semaphore, n int, jobs <-chan job, done func(job, error),
) {
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() {
			for j := range jobs {
				done(j, pool.Do(ctx, j.weight, j.run))
			}
		})
	}
	workers.Wait()
}

// booking serves POST /seats/{seat}, one request at a time for each seat, on all machines.
func booking(
	session *etcdlock.Session, book func(ctx context.Context, seat string) error,
) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seat := r.PathValue("seat")
		mu, err := session.Mutex("seats/"+seat, etcdlock.WithAcquireTimeout(2*time.Second))
		if err != nil { // not a valid name
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err = mu.Do(r.Context(), func(ctx context.Context) error { return book(ctx, seat) })
		switch {
		case errors.Is(err, etcdlock.ErrNotRun): // nothing has happened
			status := http.StatusServiceUnavailable
			if errors.Is(err, etcdlock.ErrLocked) && !errors.Is(err, etcdlock.ErrUnavailable) {
				status = http.StatusConflict // another request has had the seat all the time
			}
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), status)
		case err != nil: // something may have happened
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

// migrate brings a schema up to date, once, however many processes start at the same time.
func migrate(ctx context.Context, client *clientv3.Client, db *sql.DB, steps []string) error {
	mu, err := etcdlock.NewMutex(client, "migrations/shop", etcdlock.WithAcquireTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, func(ctx context.Context) error {
		var version int
		row := db.QueryRowContext(ctx, `SELECT version FROM schema_version`)
		if err := row.Scan(&version); err != nil {
			return err
		}
		for ; version < len(steps); version++ {
			if err := step(ctx, db, version, steps[version]); err != nil {
				return fmt.Errorf("step %d: %w", version+1, err)
			}
		}
		return nil
	})
}

func step(ctx context.Context, db *sql.DB, version int, statement string) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if _, err := tx.ExecContext(ctx, statement); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx,
		`UPDATE schema_version SET version = $1 WHERE version = $2`, version+1, version)
	if err != nil {
		return err
	}
	if updated, err := result.RowsAffected(); err != nil || updated == 0 {
		return errors.Join(err, errOvertaken)
	}
	return tx.Commit()
}

// schedule starts a scheduler on one of many machines. Each time that report is due one of them
// runs it.
func schedule(
	session *etcdlock.Session, due gocron.JobDefinition, report func(ctx context.Context) error,
) (gocron.Scheduler, error) {
	locker, err := etcdlockgocron.NewLocker(session, "cron/", 5*time.Second)
	if err != nil {
		return nil, err
	}
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return nil, err
	}
	_, err = scheduler.NewJob(due, gocron.NewTask(func(ctx context.Context) error {
		return report(locker.Context(ctx, "report")) // this context ends if the lock is lost
	}), gocron.WithName("report")) // the name of the lock: the same on all machines
	if err != nil {
		return nil, errors.Join(err, scheduler.Shutdown())
	}
	scheduler.Start()
	return scheduler, nil
}

// scheduleWhereLed returns a scheduler whose jobs run while this process holds mu, by Lock or Lead.
func scheduleWhereLed(mu *etcdlock.Mutex) (gocron.Scheduler, error) {
	elector, err := etcdlockgocron.NewElector(mu)
	if err != nil {
		return nil, err
	}
	return gocron.NewScheduler(gocron.WithDistributedElector(elector))
}

// command is the main of a program that runs once at a time.
func command(client *clientv3.Client, work func(context.Context) error) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	mu, err := etcdlock.NewMutex(client, "reindex", etcdlock.WithAcquireTimeout(5*time.Second))
	if err != nil {
		fmt.Fprintln(os.Stderr, "reindex:", err)
		return 2
	}
	defer mu.Close(ctx) // also when ctx has ended
	switch err := mu.TryDo(ctx, work); {
	case err == nil:
		return 0
	case errors.Is(err, etcdlock.ErrLocked) && errors.Is(err, etcdlock.ErrNotRun):
		fmt.Fprintln(os.Stderr, "reindex: runs already:", err) // by whom, on which host
		return 75
	default:
		fmt.Fprintln(os.Stderr, "reindex:", err)
		return 1
	}
}
