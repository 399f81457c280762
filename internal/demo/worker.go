package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/etcdlock/etcdlock"
)

const (
	// workerEnv in the environment makes this program a worker.
	workerEnv = "ETCDLOCK_DEMO_WORKER"

	// payment is the time between reading the stock and writing it back. It is the same
	// with the lock and without.
	payment = 5 * time.Millisecond

	// closeTimeout bounds how long a worker takes to close its Session.
	closeTimeout = 3 * time.Second
)

// The parent writes one setup and then requests to a worker's standard input,
// and the worker writes messages to its standard output, all as JSON lines.
// The end of its input tells the worker to end.

type setup struct {
	Worker   int
	Dir      string // of the shop
	Articles int    // of the shop
	Endpoint string // of etcd, "" without a lock
	TTL      time.Duration
}

type request struct {
	ID    int
	Stall bool // say Holding inside the lock, before writing, and stay there
}

// A message has one field set, or Answer and ReleaseError.
type message struct {
	Ready        bool
	Holding      int64 // the token
	Answer       *record
	ReleaseError string // what the lock had to say after Answer was recorded
	Error        string // the worker cannot go on
}

// A guard runs fn in a critical section of some articles.
type guard func(ctx context.Context, basket []int, fn func(hold context.Context) error) error

// lockOf names the lock of an article.
func lockOf(article int) string { return fmt.Sprintf("%s%d", lockPrefix, article) }

// unlocked is the guard that guards nothing.
func unlocked(ctx context.Context, _ []int, fn func(hold context.Context) error) error {
	return fn(ctx)
}

// locked returns the guard that a Session is. It locks all articles of a basket, or waits.
func locked(session *etcdlock.Session) guard {
	return func(ctx context.Context, basket []int, fn func(hold context.Context) error) error {
		if len(basket) == 1 {
			return session.Do(ctx, lockOf(basket[0]), fn)
		}
		var names []string
		for _, article := range basket {
			names = append(names, lockOf(article))
		}
		return session.DoAll(ctx, names, fn)
	}
}

// worker is the child process. It has one goroutine for each request that the parent lets
// be in flight. They compete among themselves as the processes do.
type worker struct {
	number  int
	shop    shop
	journal *os.File

	// guard runs the critical section: under the lock, or without it by nothing but the
	// call. The context that it hands on is the hold's.
	guard guard

	mu  sync.Mutex // guards out: messages are whole lines
	out *json.Encoder
}

func workerMain() int {
	// A terminal sends Ctrl-C to all its processes. The parent decides what that means, and
	// ends this process by closing its input. If this process died here, its lock would
	// stay held for a TTL. (Ignore does not work on Windows, this does.)
	signal.Notify(make(chan os.Signal, 1), os.Interrupt, syscall.SIGTERM)

	w := &worker{out: json.NewEncoder(os.Stdout)}
	if err := w.run(os.Stdin); err != nil {
		w.say(message{Error: err.Error()})
		return exitFailed
	}
	return exitGood
}

// run serves requests until in ends. It returns when everything that it started has ended
// and nothing of it is left in etcd.
func (w *worker) run(in io.Reader) (err error) {
	requests := json.NewDecoder(in)
	var conf setup
	if err := requests.Decode(&conf); err != nil {
		return fmt.Errorf("setup: %w", err)
	}
	w.number, w.shop = conf.Worker, shop{dir: conf.Dir, articles: conf.Articles}
	if w.journal, err = w.shop.openJournal(); err != nil {
		return err
	}
	defer w.journal.Close()

	w.guard = unlocked
	if conf.Endpoint != "" {
		client, err := connect(conf.Endpoint)
		if err != nil {
			return err
		}
		defer client.Close()
		session, err := etcdlock.NewSession(client, etcdlock.WithTTL(conf.TTL),
			etcdlock.WithOwner(fmt.Sprintf("demo worker %d, pid %d", w.number, os.Getpid())))
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
			defer cancel()
			if closeErr := session.Close(ctx); err == nil {
				err = closeErr
			}
		}()
		w.guard = locked(session)
	}

	// It ends the waits and the stalled sale when the input has ended.
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	defer serving.Wait() // before the lock and the journal are closed
	defer cancel()

	w.say(message{Ready: true})
	for {
		var req request
		if err := requests.Decode(&req); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		// It ends by itself, at the latest with ctx; serving waits for it.
		serving.Go(func() { w.serve(ctx, req) })
	}
}

// serve answers one request. If ctx ended first it says nothing: the parent knows that, and
// that the request is unanswered.
func (w *worker) serve(ctx context.Context, req request) {
	r := record{Request: req.ID, Worker: w.number}
	for {
		asked := time.Now()
		recorded := false
		err := w.guard(ctx, w.shop.basket(req.ID), func(hold context.Context) error {
			r.Waited = time.Since(asked)
			r.Token, _ = etcdlock.TokenFrom(hold)
			err := w.sell(hold, &r, req.Stall)
			recorded = err == nil
			return err
		})
		switch {
		case recorded:
			m := message{Answer: &r}
			if err != nil {
				m.ReleaseError = err.Error()
			}
			w.say(m)
			return
		case ctx.Err() != nil:
			return
		case !errors.Is(err, etcdlock.ErrLost):
			w.say(message{Error: err.Error()})
			return
		}
		r.Retries++ // nothing was written: the request is as good as new
	}
}

// sell is the critical section: one item of each article of the basket, or nothing. After
// an error no file has changed, unless the error is that of a file.
func (w *worker) sell(hold context.Context, r *record, stall bool) error {
	r.Entered, r.Read = time.Now(), nil
	basket := w.shop.basket(r.Request)
	for _, article := range basket {
		left, err := w.shop.readStock(article)
		if err != nil {
			return err
		}
		r.Read = append(r.Read, left)
	}
	r.Sold = slices.Min(r.Read) > 0
	if stall {
		w.say(message{Holding: r.Token})
		<-hold.Done()
	}
	if r.Sold {
		time.Sleep(payment)
	}
	// The last look before writing. A process that was stopped for longer than the TTL
	// wakes up here, while another one has the lock.
	if hold.Err() != nil {
		return context.Cause(hold)
	}
	for i, article := range basket {
		if !r.Sold {
			break
		}
		if err := w.shop.writeStock(article, r.Read[i]-1); err != nil {
			return err
		}
	}
	return r.appendTo(w.journal)
}

// say sends m to the parent. If the parent is gone, the worker notices that on its input.
func (w *worker) say(m message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.out.Encode(m)
}
