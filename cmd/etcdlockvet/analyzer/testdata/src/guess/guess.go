// Package guess has what may be a mistake, each beside three right functions like it.
package guess

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/etcdlock/etcdlock"
)

func work(ctx context.Context) error { return nil }

// A Session is made for each request and never closed.

func requestWrong(ctx context.Context, client any) error {
	s, err := etcdlock.NewSession(client) // want `s is never closed`
	if err != nil {
		return err
	}
	return s.Do(ctx, "name", work)
}

func requestRight1(ctx context.Context, client any) error {
	s, err := etcdlock.NewSession(client)
	if err != nil {
		return err
	}
	defer s.Close(ctx)
	return s.Do(ctx, "name", work)
}

func requestRight2(ctx context.Context, client any) (*etcdlock.Session, error) {
	return etcdlock.NewSession(client)
}

func requestRight3(ctx context.Context, s *etcdlock.Session) error {
	return s.Do(ctx, "name", work)
}

// SQL in Do goes without the token.

func tokenWrong(ctx context.Context, mu *etcdlock.Mutex, db *sql.DB) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, "UPDATE stock SET n = n - 1") // want `no fencing token`
		return err
	})
}

func tokenRight1(ctx context.Context, mu *etcdlock.Mutex, db *sql.DB) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		_, err := db.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE t <= ?", mu.Token())
		return err
	})
}

func tokenRight2(ctx context.Context, mu *etcdlock.Mutex, db *sql.DB) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		return db.PingContext(ctx)
	})
}

func tokenRight3(ctx context.Context, mu *etcdlock.Mutex, db *sql.DB) error {
	_, err := db.ExecContext(ctx, "UPDATE visits SET n = n + 1")
	return errors.Join(err, mu.Do(ctx, work))
}

func tokenRight4(ctx context.Context, mu *etcdlock.Mutex, tx *sql.Tx) error {
	return mu.Do(ctx, func(ctx context.Context) error {
		token, _ := etcdlock.TokenFrom(ctx)
		_, err := tx.Exec("UPDATE stock SET n = n - 1 WHERE t <= ?", token)
		return err
	})
}

// A Mutex with a Session of its own is never closed.

func mutexWrong(ctx context.Context, client any) error {
	mu, err := etcdlock.New(client, "name") // want `mu is never closed`
	if err != nil {
		return err
	}
	return mu.Do(ctx, work)
}

type service struct{ mu *etcdlock.Mutex }

func mutexRight1(client any) (s service, err error) {
	s.mu, err = etcdlock.New(client, "name")
	return s, err
}

func mutexRight2(ctx context.Context, client any) error {
	mu, err := etcdlock.New(client, "name")
	if err != nil {
		return err
	}
	defer func() { _ = mu.Close(ctx) }()
	return mu.Do(ctx, work)
}

func mutexRight3(client any, all map[string]*etcdlock.Mutex) error {
	mu, err := etcdlock.New(client, "name")
	all["name"] = mu
	return err
}

// A job that is to run once in a period waits, and runs again.

func againWrong(ctx context.Context, s *etcdlock.Session) error {
	return s.Do(ctx, "job", work, etcdlock.WithMinHold(time.Minute)) // want `use TryDo`
}

func againWrong2(ctx context.Context, s *etcdlock.Session) error {
	mu, err := s.Mutex("job", etcdlock.WithMinHold(time.Minute))
	if err != nil {
		return err
	}
	if err := mu.Lock(ctx); err != nil { // want `use TryLock`
		return err
	}
	defer mu.Unlock(ctx)
	return work(mu.Context(ctx))
}

func againRight1(ctx context.Context, s *etcdlock.Session) error {
	return s.TryDo(ctx, "job", work, etcdlock.WithMinHold(time.Minute))
}

func againRight2(ctx context.Context, s *etcdlock.Session) error {
	mu, err := s.Mutex("job", etcdlock.WithMinHold(time.Minute))
	if err != nil {
		return err
	}
	return mu.TryDo(ctx, work)
}

func againRight3(ctx context.Context, s *etcdlock.Session) error {
	return s.Do(ctx, "job", work, etcdlock.WithMinHold(time.Minute),
		etcdlock.WithAcquireTimeout(time.Second))
}

func againRight4(ctx context.Context, s *etcdlock.Session) error {
	mu, err := s.Mutex("job", etcdlock.WithMinHold(time.Minute))
	if err != nil {
		return err
	}
	return mu.Lead(ctx, work) // each leader leads for a minute at least
}
