package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/side"
)

// bench is the bench command with its flags.
type bench struct {
	prefix, format string
	long           time.Duration
	maxRate        int
	judged         bool
	processes      int
	ttl            time.Duration
	variables      []string // of the connection
}

func (a *app) benchCommand() *cobra.Command {
	b := new(bench)
	c := &cobra.Command{
		Use:   "bench [flags]",
		Short: "measure locks on this etcd, or judge them while you restart it",
		Long: `Measure locks on this etcd, each case beside etcd's own concurrency.Mutex.

It loads etcd for --for, with as many transactions as etcd takes: what else uses etcd is slower
meanwhile, and the history grows until the next compaction. --max-rate bounds the operations a
second of each case. It locks names below --prefix and a random text, and removes what it has put.

The cases: Lock and Unlock of 1, 8, 64 and 1,000 names, each by a goroutine of its own; a hand-over
between 2 and 64 contenders for one name, from the call of Unlock to the next holder; and the round
trip of a renewal, of eight leases that are renewed at once. A column has how many a second, the
median, and the 99th percentile.

-o json writes an array. An element has case, side, count, per_second, p50_us, p99_us and error.

With --judge, holders in --processes processes take turns for one name until --for is over, or ^C.
Each notes on the monotonic clock of this machine when it believed that it held. In the end the
verdict says whether two ever did. Restart members of etcd, or stop them, meanwhile.

Exit status: 0; 1 if two held at a time; 64 usage; 125 no answer from etcd.`,
		Args: atMost(0),
		RunE: func(c *cobra.Command, _ []string) error {
			b.variables = variables(c.Root().PersistentFlags())
			return b.run(a)
		},
	}
	c.Flags().StringVar(&b.prefix, "prefix", "etcdlock-bench", "prefix of the names")
	c.Flags().StringVarP(&b.format, "output", "o", "table", "table or json")
	c.Flags().DurationVar(&b.long, "for", time.Minute, "how long it takes")
	c.Flags().IntVar(&b.maxRate, "max-rate", 0, "operations a second at most; 0 for no bound")
	c.Flags().BoolVar(&b.judged, "judge", false, "say whether two ever held at a time")
	c.Flags().IntVar(&b.processes, "processes", 4, "holders with --judge")
	c.Flags().DurationVar(&b.ttl, "ttl", 5*time.Second, "TTL of the holders with --judge")
	_ = c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (b *bench) run(a *app) error {
	switch {
	case b.format != "table" && b.format != "json":
		return misused("-o %q: must be table or json", b.format)
	case b.maxRate < 0:
		return misused("--max-rate %d: negative", b.maxRate)
	case b.long <= 0:
		return misused("--for %v: not positive", b.long)
	case b.processes < 2:
		return misused("--processes %d: two at least", b.processes)
	}
	b.prefix += "/" + uuid.NewString() + "/" // of this run alone
	if b.judged {
		return b.judge(a)
	}
	client, err := a.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := a.etcd.bounded()
	defer cancel()
	if _, err := client.Get(ctx, b.prefix); err != nil {
		return ends(exitFailed, a.etcd.noAnswer(err))
	}
	a.say("loads etcd for %v; what else uses it is slower meanwhile (--max-rate bounds it)", b.long)
	results := b.measure(a, client)
	ctx, cancel = a.etcd.bounded()
	defer cancel()
	if _, err := client.Delete(ctx, b.prefix, clientv3.WithPrefix()); err != nil {
		a.say("keys below %s are left: %v", b.prefix, err)
	}
	return show(a, b.format, results)
}

// A result is what a case has measured of a side.
type result struct {
	Case      string  `json:"case"`
	Side      string  `json:"side"`
	Count     int     `json:"count"`
	PerSecond float64 `json:"per_second"`
	P50       int64   `json:"p50_us"`
	P99       int64   `json:"p99_us"`
	Error     string  `json:"error,omitempty"`
}

// A benchCase measures a side with n names, or n contenders, until ctx ends.
type benchCase struct {
	name string
	n    int
	run  func(ctx context.Context, r *round) error
}

var benchCases = []benchCase{
	{"Lock and Unlock, 1 name", 1, alone}, {"Lock and Unlock, 8 names", 8, alone},
	{"Lock and Unlock, 64 names", 64, alone}, {"Lock and Unlock, 1,000 names", 1000, alone},
	{"hand-over, 2 contenders", 2, handOver}, {"hand-over, 64 contenders", 64, handOver},
	{"renewal", 1, renewal},
}

// measure measures each case on both sides, one after the other.
func (b *bench) measure(a *app, client *clientv3.Client) (results []result) {
	slice := b.long / time.Duration(2*len(benchCases))
	for i, c := range benchCases {
		for _, of := range []side.Side{side.Ours, side.Theirs} {
			r := &round{
				client: client, of: of, n: c.n, prefix: fmt.Sprintf("%s%d-%s-", b.prefix, i, of.Name),
			}
			if b.maxRate > 0 {
				r.every = time.Second / time.Duration(b.maxRate)
			}
			ctx, cancel := context.WithTimeout(context.Background(), slice)
			err := c.run(ctx, r)
			cancel()
			results = append(results, r.result(c.name, err))
		}
	}
	return results
}

// A round is a case that is measured on one side.
type round struct {
	client *clientv3.Client
	of     side.Side
	n      int
	prefix string
	every  time.Duration // between two operations at least, if not 0

	mu    sync.Mutex
	next  time.Time // when the next operation may begin
	took  []time.Duration
	began time.Time // the first operation
	ended time.Time // the last one
}

// pace waits until the next operation may begin. It reports false if ctx ends before.
func (r *round) pace(ctx context.Context) bool {
	r.mu.Lock()
	now := time.Now()
	if r.began.IsZero() {
		r.began = now
	}
	r.next = now.Add(max(0, r.next.Sub(now)))
	wait := r.next.Sub(now)
	r.next = r.next.Add(r.every)
	r.mu.Unlock()
	if wait > 0 {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

// add adds an operation that has ended now.
func (r *round) add(took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.took, r.ended = append(r.took, took), time.Now()
}

func (r *round) result(name string, err error) result {
	slices.Sort(r.took)
	of := func(percent int) int64 {
		if len(r.took) == 0 {
			return 0
		}
		return r.took[(len(r.took)-1)*percent/100].Microseconds()
	}
	out := result{Case: name, Side: r.of.Name, Count: len(r.took), P50: of(50), P99: of(99)}
	if spent := r.ended.Sub(r.began).Seconds(); spent > 0 {
		out.PerSecond = float64(out.Count) / spent
	}
	if err != nil {
		out.Error = plainly(err)
	}
	return out
}

// benchTTL is that of a measured lock.
const benchTTL = 15 * time.Second

// with calls f with sessions that are closed after it.
func (r *round) with(n int, f func([]side.Session) error) error {
	sessions := make([]side.Session, n)
	for i := range sessions {
		s, err := r.of.Open(r.client, benchTTL)
		if err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), benchTTL)
			defer cancel()
			_ = s.Close(ctx) // what it could not give back expires
		}()
		sessions[i] = s
	}
	return f(sessions)
}

// together calls f in n goroutines until ctx ends, and returns an error that is not that.
func together(ctx context.Context, n int, f func(i int) error) error {
	failed := make(chan error, n)
	for i := range n {
		go func() { failed <- f(i) }() // awaited below
	}
	var errs []error
	for range n {
		if err := <-failed; err != nil && ctx.Err() == nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return errs[0]
	}
	return nil
}

// unlock unlocks what was locked, also if ctx has ended meanwhile.
func unlock(ctx context.Context, mu side.Mutex) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), benchTTL)
	defer cancel()
	return mu.Unlock(ctx)
}

// alone is Lock and Unlock of names that no other contender wants.
func alone(ctx context.Context, r *round) error {
	return r.with(1, func(s []side.Session) error {
		return together(ctx, r.n, func(i int) error {
			mu, err := s[0].Mutex(fmt.Sprint(r.prefix, i))
			if err != nil {
				return err
			}
			for r.pace(ctx) {
				began := time.Now()
				if err := mu.Lock(ctx); err != nil {
					return err
				}
				if err := unlock(ctx, mu); err != nil {
					return err
				}
				r.add(time.Since(began))
			}
			return nil
		})
	})
}

// handOver is a name that each contender wants all the time, each with a session of its own.
func handOver(ctx context.Context, r *round) error {
	return r.with(r.n, func(s []side.Session) error {
		var released atomic.Pointer[time.Time]
		return together(ctx, r.n, func(i int) error {
			mu, err := s[i].Mutex(r.prefix + "one")
			if err != nil {
				return err
			}
			for ctx.Err() == nil {
				if err := mu.Lock(ctx); err != nil {
					return err
				}
				if at := released.Swap(nil); at != nil {
					r.add(time.Since(*at))
				}
				goesOn := r.pace(ctx)
				now := time.Now()
				released.Store(&now)
				if err := unlock(ctx, mu); err != nil || !goesOn {
					return err
				}
			}
			return nil
		})
	})
}

// renewal is the round trip of a renewal, with eight leases that are renewed at once: as the
// library reports it of short leases, and of etcd's own client as often.
//
// (Do not renew one side's leases more often, or one by one. An idle machine has to be woken, which
// takes several times as long as a renewal.)
func renewal(ctx context.Context, r *round) error {
	ttl, leases := renewedAt(r.every)
	renews := renewsOurs
	if r.of.Name == side.Theirs.Name {
		renews = renewsTheirs
	}
	return together(ctx, leases, func(i int) error {
		r.pace(ctx)
		return renews(ctx, r, ttl, fmt.Sprint(r.prefix, i))
	})
}

// renewedAt is the TTL and the number of the leases of which one is renewed in each of a time, 0
// for no bound: each lease is, each third of its TTL.
func renewedAt(every time.Duration) (ttl time.Duration, leases int) {
	const least, most = 2 * time.Second, 8
	if every == 0 {
		return least, most
	}
	return max(least, 3*every), max(1, min(most, int(least/3/every)))
}

// renewsOurs has a Session renew its lease, which a hold of a name needs.
func renewsOurs(ctx context.Context, r *round, ttl time.Duration, name string) error {
	s, err := etcdlock.NewSession(r.client, etcdlock.WithTTL(ttl),
		etcdlock.WithTrace(&etcdlock.Trace{
			LeaseRenewed: func(_ context.Context, e etcdlock.LeaseRenewedEvent) { r.add(e.RoundTrip) },
		}))
	if err != nil {
		return err
	}
	err = s.Do(ctx, name, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	return errors.Join(err, s.Close(context.WithoutCancel(ctx)))
}

// renewsTheirs renews a lease of etcd's own client, each third of its TTL.
func renewsTheirs(ctx context.Context, r *round, ttl time.Duration, _ string) error {
	lease, err := r.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return err
	}
	due := time.NewTicker(ttl / 3)
	defer due.Stop()
	for ctx.Err() == nil && err == nil {
		select {
		case <-due.C:
			began := time.Now()
			if _, err = r.client.KeepAliveOnce(ctx, lease.ID); err == nil {
				r.add(time.Since(began))
			}
		case <-ctx.Done():
		}
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), ttl)
	defer cancel()
	_, revokeErr := r.client.Revoke(bounded, lease.ID)
	return errors.Join(err, revokeErr)
}

// show writes the results.
func show(a *app, format string, results []result) error {
	if format == "json" {
		return json.NewEncoder(a.stdout).Encode(results)
	}
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CASE\tSIDE\tPER SECOND\tP50\tP99")
	for _, r := range results {
		if r.Error != "" {
			fmt.Fprintf(w, "%s\t%s\t%s\t\t\n", r.Case, r.Side, r.Error)
			continue
		}
		micro := func(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%v\t%v\n", r.Case, r.Side, r.PerSecond, micro(r.P50), micro(r.P99))
	}
	return w.Flush()
}
