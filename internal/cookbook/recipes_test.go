package cookbook_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-co-op/gocron/v2"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// runSlot runs job for one slot of its schedule, once on all machines. It waits while another
// machine runs the slot, and returns nil if that succeeds.
func runSlot(ctx context.Context, client *clientv3.Client, name string, slot time.Time,
	job func(context.Context) error,
) error {
	mu, err := etcdlock.New(client, "cron/"+name)
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	done, this := "cron-done/"+name, slot.UTC().Format(time.RFC3339)
	return mu.Do(ctx, func(ctx context.Context) error {
		last, err := client.Get(ctx, done)
		if err != nil {
			return err
		}
		if len(last.Kvs) > 0 && string(last.Kvs[0].Value) >= this {
			return nil // another machine has run it
		}
		if err := job(ctx); err != nil {
			return err
		}
		noted, err := client.Txn(ctx).If(mu.IsOwner()).Then(clientv3.OpPut(done, this)).Commit()
		if err == nil && !noted.Succeeded {
			err = etcdlock.ErrLost
		}
		return err
	})
}

// lead calls work whenever this process leads, until ctx ends.
func lead(ctx context.Context, mu *etcdlock.Mutex, work func(context.Context) error) error {
	return mu.Lead(ctx, work) // errors of work go to the logger and the Trace of mu
}

// ready is a readiness probe: 200 where the process leads. It costs etcd nothing.
func ready(mu *etcdlock.Mutex) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !mu.Held() {
			http.Error(w, "another one leads", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "leading, with token", mu.Token())
	}
}

var errOvertaken = errors.New("a newer holder was here, or there is no such row")

// balance reads under the lock whose hold ctx comes from. The read leaves the token in the row, so
// that no late write of an older holder can come between it and setBalance.
func balance(ctx context.Context, db *sql.DB, account string) (balance int, err error) {
	token, held := etcdlock.TokenFrom(ctx)
	if !held {
		return 0, etcdlock.ErrNotHeld
	}
	err = db.QueryRowContext(ctx,
		`UPDATE accounts SET token = $1 WHERE id = $2 AND token <= $1 RETURNING balance`, token, account).Scan(&balance)
	if errors.Is(err, sql.ErrNoRows) {
		err = errOvertaken
	}
	return balance, err
}

// setBalance writes under the lock whose hold ctx comes from.
func setBalance(ctx context.Context, db *sql.DB, account string, balance int) error {
	token, held := etcdlock.TokenFrom(ctx)
	if !held {
		return etcdlock.ErrNotHeld
	}
	result, err := db.ExecContext(ctx,
		`UPDATE accounts SET balance = $1, token = $2 WHERE id = $3 AND token <= $2`, balance, token, account)
	if err != nil {
		return err
	}
	if updated, err := result.RowsAffected(); err != nil || updated == 0 {
		return errors.Join(err, errOvertaken)
	}
	return nil
}

// transfer moves an amount between two accounts, in one SQL transaction, while it holds both. check
// may take its time: nobody else changes them meanwhile.
func transfer(ctx context.Context, session *etcdlock.Session, db *sql.DB, from, to string, amount int,
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

// booking serves POST /seats/{seat}, one request at a time for each seat, on any number of
// machines. The Session is made once.
func booking(session *etcdlock.Session, book func(ctx context.Context, seat string) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		seat := r.PathValue("seat")
		mu, err := session.Mutex("seats/"+seat, etcdlock.WithAcquireTimeout(2*time.Second))
		if err != nil { // the name cannot be a lock's
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		err = mu.Do(r.Context(), func(ctx context.Context) error { return book(ctx, seat) })
		switch {
		case errors.Is(err, etcdlock.ErrNotRun): // nothing has happened
			status := http.StatusServiceUnavailable
			if errors.Is(err, etcdlock.ErrLocked) && !errors.Is(err, etcdlock.ErrUnavailable) {
				status = http.StatusConflict // somebody else had the seat all the time
			}
			w.Header().Set("Retry-After", "1")
			http.Error(w, err.Error(), status)
		case err != nil: // something may have happened
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

// migrate brings a schema up to date, once, however many processes start at the same time.
// Each step and its number are one transaction, so that a process that was overtaken undoes its own.
func migrate(ctx context.Context, client *clientv3.Client, db *sql.DB, steps []string) error {
	mu, err := etcdlock.New(client, "migrations/shop", etcdlock.WithAcquireTimeout(time.Minute))
	if err != nil {
		return err
	}
	defer mu.Close(ctx)
	return mu.Do(ctx, func(ctx context.Context) error {
		var version int
		if err := db.QueryRowContext(ctx, `SELECT version FROM schema_version`).Scan(&version); err != nil {
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

// A cronLocker makes each job of gocron run on one scheduler at a time. A *etcdlock.Mutex is a
// gocron.Lock.
type cronLocker struct{ session *etcdlock.Session }

func (l cronLocker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	mu, err := l.session.Mutex("gocron/" + key)
	if err != nil {
		return nil, err
	}
	return mu, mu.TryLock(ctx)
}

// A cronElector lets the scheduler that leads run all jobs. Someone has to lead: see lead.
type cronElector struct{ mu *etcdlock.Mutex }

func (e cronElector) IsLeader(context.Context) error {
	if !e.mu.Held() {
		return errors.New("another scheduler leads")
	}
	return nil
}

// command is the main of a program of which one may run at a time.
func command(client *clientv3.Client, work func(context.Context) error) (status int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	mu, err := etcdlock.New(client, "reindex", etcdlock.WithAcquireTimeout(5*time.Second))
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
