package etcdlockprom_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockprom"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// registered returns metrics that are registered with registry.
func registered(registry *prometheus.Registry, opts ...etcdlockprom.Option) *etcdlockprom.Metrics {
	metrics := etcdlockprom.NewMetrics(opts...)
	registry.MustRegister(metrics)
	return metrics
}

func TestWaitsAndHoldsGoToTheirBuckets(t *testing.T) {
	registry := prometheus.NewRegistry()
	kind := etcdlockprom.WithLockLabel(func(string) string { return "orders" })
	hooks := registered(registry, kind).Trace()

	hooks.Acquired(context.Background(),
		etcdlock.AcquiredEvent{Name: "orders/1", Token: 11, Waited: 2 * time.Millisecond})
	hooks.Queued(context.Background(),
		etcdlock.QueuedEvent{Name: "orders/2", Ahead: 3, Holder: etcdlock.Contender{}})
	hooks.Acquired(context.Background(),
		etcdlock.AcquiredEvent{Name: "orders/2", Token: 12, Waited: 250 * time.Millisecond, Ahead: 3})
	hooks.Queued(context.Background(),
		etcdlock.QueuedEvent{Name: "orders/3", Ahead: 1, Holder: etcdlock.Contender{}})
	hooks.GaveUp(context.Background(), etcdlock.GaveUpEvent{Name: "orders/3", Waited: time.Second,
		Ahead: 1, Err: context.Canceled})
	hooks.Acquired(context.Background(),
		etcdlock.AcquiredEvent{Name: "orders/4", Token: 13, Waited: time.Millisecond})
	hooks.Released(context.Background(),
		etcdlock.ReleasedEvent{Name: "orders/2", Token: 12, Held: 10 * time.Minute})
	hooks.Lost(context.Background(), etcdlock.LostEvent{Name: "orders/4", Token: 13,
		Held: 4 * time.Second, Reason: etcdlock.ErrMaxHold})

	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP etcdlock_contended_total Waits that began behind others, whether or not they came to hold.
# TYPE etcdlock_contended_total counter
etcdlock_contended_total{lock="orders"} 2
# HELP etcdlock_gave_up_total Calls of Lock and TryLock that ended without a hold, by reason.
# TYPE etcdlock_gave_up_total counter
etcdlock_gave_up_total{lock="orders",reason="canceled"} 1
etcdlock_gave_up_total{lock="orders",reason="closed"} 0
etcdlock_gave_up_total{lock="orders",reason="locked"} 0
etcdlock_gave_up_total{lock="orders",reason="other"} 0
etcdlock_gave_up_total{lock="orders",reason="timeout"} 0
etcdlock_gave_up_total{lock="orders",reason="unavailable"} 0
# HELP etcdlock_hold_seconds Time from the hold's beginning to its release or loss.
# TYPE etcdlock_hold_seconds histogram
etcdlock_hold_seconds_bucket{lock="orders",le="0.001"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="0.004"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="0.016"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="0.064"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="0.256"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="1.024"} 0
etcdlock_hold_seconds_bucket{lock="orders",le="4.096"} 1
etcdlock_hold_seconds_bucket{lock="orders",le="16.384"} 1
etcdlock_hold_seconds_bucket{lock="orders",le="65.536"} 1
etcdlock_hold_seconds_bucket{lock="orders",le="262.144"} 1
etcdlock_hold_seconds_bucket{lock="orders",le="+Inf"} 2
etcdlock_hold_seconds_sum{lock="orders"} 604
etcdlock_hold_seconds_count{lock="orders"} 2
# HELP etcdlock_holders Holds of this process that have begun and were neither released nor lost.
# TYPE etcdlock_holders gauge
etcdlock_holders{lock="orders"} 1
# HELP etcdlock_lost_total Holds that ended without their release, by reason.
# TYPE etcdlock_lost_total counter
etcdlock_lost_total{lock="orders",reason="expired"} 0
etcdlock_lost_total{lock="orders",reason="max_hold"} 1
etcdlock_lost_total{lock="orders",reason="other"} 0
etcdlock_lost_total{lock="orders",reason="taken"} 0
# HELP etcdlock_wait_seconds Time from Lock to the hold. contended: whether others were before it.
# TYPE etcdlock_wait_seconds histogram
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="0.001"} 1
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="0.004"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="0.016"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="0.064"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="0.256"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="1.024"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="4.096"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="16.384"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="65.536"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="262.144"} 2
etcdlock_wait_seconds_bucket{contended="false",lock="orders",le="+Inf"} 2
etcdlock_wait_seconds_sum{contended="false",lock="orders"} 0.003
etcdlock_wait_seconds_count{contended="false",lock="orders"} 2
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="0.001"} 0
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="0.004"} 0
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="0.016"} 0
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="0.064"} 0
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="0.256"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="1.024"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="4.096"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="16.384"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="65.536"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="262.144"} 1
etcdlock_wait_seconds_bucket{contended="true",lock="orders",le="+Inf"} 1
etcdlock_wait_seconds_sum{contended="true",lock="orders"} 0.25
etcdlock_wait_seconds_count{contended="true",lock="orders"} 1
`), "etcdlock_contended_total", "etcdlock_gave_up_total", "etcdlock_hold_seconds",
		"etcdlock_holders", "etcdlock_lost_total", "etcdlock_wait_seconds"))
}

func TestNamesFollowTheConventions(t *testing.T) {
	problems, err := testutil.GatherAndLint(everyMetric(t))
	require.NoError(t, err)
	require.Empty(t, problems)
}

// everyMetric is a registry in which each metric has a value, and none is a loss.
func everyMetric(t *testing.T) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewRegistry()
	hooks := registered(registry).Trace()
	hooks.Acquired(context.Background(),
		etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second})
	hooks.Released(context.Background(),
		etcdlock.ReleasedEvent{Name: "a", Token: 1, Held: time.Second})
	return registry
}

// A waiter counts until its hold begins, or until it gives up. TryLock does not wait.
func TestWhoWaitsIsCountedWhileWaiting(t *testing.T) {
	registry := prometheus.NewRegistry()
	trace := registered(registry).Trace()
	is := func(metric string, want float64) {
		t.Helper()
		require.Eventually(t, func() bool { return values(t, registry)[metric] == want },
			time.Minute, time.Millisecond, "%s is not %v", metric, want)
	}
	mutex := func() *etcdlock.Mutex {
		mu, err := etcdlock.NewMutex(contract.ClientOf(t, endpoints), "waiting",
			etcdlock.WithTrace(trace))
		require.NoError(t, err)
		t.Cleanup(func() { mu.Close(context.Background()) })
		return mu
	}
	holder, waiter := mutex(), mutex()
	require.NoError(t, holder.Lock(t.Context()))
	ctx, giveUp := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- waiter.Lock(ctx) }()
	is("etcdlock_waiting", 1)
	require.ErrorIs(t, mutex().TryLock(t.Context()), etcdlock.ErrLocked)
	is("etcdlock_gave_up_total locked", 1)
	is("etcdlock_waiting", 1)
	giveUp()
	require.ErrorIs(t, <-done, context.Canceled)
	is("etcdlock_gave_up_total canceled", 1)
	is("etcdlock_waiting", 0)

	go func() { done <- waiter.Lock(context.Background()) }()
	is("etcdlock_waiting", 1)
	require.NoError(t, holder.Unlock(t.Context()))
	require.NoError(t, <-done)
	is("etcdlock_wait_seconds true", 1)
	is("etcdlock_waiting", 0)
}

// The first loss must be an increase from 0 to Prometheus: for each lock once it was held
// or waited for, and for all locks if their labels do not differ.
func TestLossesAreThereBeforeTheFirstOne(t *testing.T) {
	const zeros = `
# HELP etcdlock_lost_total Holds that ended without their release, by reason.
# TYPE etcdlock_lost_total counter
etcdlock_lost_total{lock="%[1]s",reason="expired"} 0
etcdlock_lost_total{lock="%[1]s",reason="max_hold"} 0
etcdlock_lost_total{lock="%[1]s",reason="other"} 0
etcdlock_lost_total{lock="%[1]s",reason="taken"} 0
`
	ungrouped := prometheus.NewRegistry()
	registered(ungrouped)
	require.NoError(t, testutil.GatherAndCompare(ungrouped,
		strings.NewReader(fmt.Sprintf(zeros, "")), "etcdlock_lost_total"))

	grouped := prometheus.NewRegistry()
	whole := etcdlockprom.WithLockLabel(func(name string) string { return name })
	hooks := registered(grouped, whole).Trace()
	hooks.Acquired(context.Background(),
		etcdlock.AcquiredEvent{Name: "orders", Token: 1, Waited: time.Millisecond})
	require.NoError(t, testutil.GatherAndCompare(grouped,
		strings.NewReader(fmt.Sprintf(zeros, "orders")), "etcdlock_lost_total"))
	require.Contains(t, values(t, grouped), "etcdlock_contended_total")
	require.Contains(t, values(t, grouped), "etcdlock_wait_seconds true")
}

// A label that is not valid UTF-8, since it cuts a name within a character, is counted too. To
// Prometheus it is an error, and to the Traces behind this one the panic of a hook.
func TestALabelMayCutACharacter(t *testing.T) {
	registry := prometheus.NewRegistry()
	cuts := etcdlockprom.WithLockLabel(func(name string) string { return name[:4] })
	behind := 0
	hooks := etcdlock.JoinTraces(registered(registry, cuts).Trace(), &etcdlock.Trace{
		Acquired: func(context.Context, etcdlock.AcquiredEvent) { behind++ },
	})
	require.NotPanics(t, func() {
		hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "日本", Token: 1})
	})
	require.Equal(t, 1, behind)
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP etcdlock_holders Holds of this process that have begun and were neither released nor lost.
# TYPE etcdlock_holders gauge
etcdlock_holders{lock="日�"} 1
`), "etcdlock_holders"))
}

// Each hook of the Trace counts something, or the test says why not.
func TestEachHookIsCounted(t *testing.T) {
	hooks := reflect.ValueOf(registered(prometheus.NewRegistry()).Trace()).Elem()
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		// Of a call that starts, another hook tells how it ends.
		require.Equal(t, name == "Start", hooks.Field(i).IsNil(), name)
	}
}

// The longest wait of a lock is shown while it lasts.
func TestTheLongestWaitIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		hooks := registered(registry).Trace()
		is := func(want string) {
			t.Helper()
			require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP etcdlock_longest_wait_seconds Time that the longest wait has lasted, of those of at least 30 s.
# TYPE etcdlock_longest_wait_seconds gauge
etcdlock_longest_wait_seconds{lock=""} `+want+`
`), "etcdlock_longest_wait_seconds"))
		}
		is("0")
		hooks.Waiting(t.Context(), etcdlock.WaitingEvent{Name: "n", Waited: 30 * time.Second})
		time.Sleep(10 * time.Second)
		is("40")
		hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "n", Waited: 40 * time.Second, Ahead: 1})
		is("0")
	})
}

func TestWhatBecomesOfLeasesAndEtcdIsCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	hooks := registered(registry).Trace()
	for n, tell := range []func(){
		func() {
			hooks.LeaseRenewed(context.Background(),
				etcdlock.LeaseRenewedEvent{Lease: 1, RoundTrip: 20 * time.Millisecond})
		},
		func() {
			hooks.RenewalFailed(context.Background(),
				etcdlock.RenewalFailedEvent{Lease: 1, Err: errors.New("no answer")})
		},
		func() {
			hooks.LeaseAtRisk(context.Background(),
				etcdlock.LeaseAtRiskEvent{Lease: 1, Remaining: time.Second})
		},
		func() {
			hooks.LeaseGranted(context.Background(), etcdlock.LeaseGrantedEvent{Lease: 1, TTL: time.Second})
		},
		func() {
			hooks.LeaseReplaced(context.Background(),
				etcdlock.LeaseReplacedEvent{Old: 1, Reason: errors.New("given back")})
		},
		func() {
			hooks.Unavailable(context.Background(),
				etcdlock.UnavailableEvent{Err: etcdlock.ErrUnavailable, Since: time.Second})
		},
		func() { hooks.SetBack(context.Background(), etcdlock.SetBackEvent{Known: 7, Revision: 1}) },
		func() { hooks.CleanupPending(context.Background(), etcdlock.CleanupPendingEvent{Key: "a"}) },
		func() { hooks.CleanupDone(context.Background(), etcdlock.CleanupDoneEvent{Key: "a"}) },
	} {
		for range n + 1 {
			tell()
		}
	}
	got := values(t, registry)
	for n, metric := range []string{
		"etcdlock_lease_renewal_seconds", "etcdlock_lease_renewal_failures_total",
		"etcdlock_lease_at_risk_total", "etcdlock_leases_granted_total",
		"etcdlock_leases_replaced_total", "etcdlock_unavailable_total", "etcdlock_set_backs_total",
		"etcdlock_removals_begun_total", "etcdlock_removals_done_total",
	} {
		require.Equal(t, float64(n+1), got[metric], metric)
	}
}

// If a wait ends while etcd is away, the reason is etcd, whatever ended the wait.
func TestACallThatGaveUpHasItsReason(t *testing.T) {
	for _, row := range []struct {
		err    error
		reason string
	}{
		{&etcdlock.LockedError{Name: "a"}, "locked"},
		{errors.Join(&etcdlock.LockedError{Name: "a"}, context.DeadlineExceeded), "timeout"},
		{errors.Join(&etcdlock.LockedError{Name: "a"}, context.Canceled), "canceled"},
		{errors.Join(etcdlock.ErrUnavailable, context.DeadlineExceeded), "unavailable"},
		{errors.Join(etcdlock.ErrClosed, &etcdlock.LockedError{Name: "a"}), "closed"},
		{errors.New("permission denied"), "other"},
	} {
		registry := prometheus.NewRegistry()
		registered(registry).Trace().GaveUp(t.Context(),
			etcdlock.GaveUpEvent{Name: "a", Waited: time.Second, Err: row.err})
		for metric, value := range values(t, registry) {
			if reason, ok := strings.CutPrefix(metric, "etcdlock_gave_up_total "); ok {
				require.Equal(t, reason == row.reason, value == 1, "%v: %s %v", row.err, reason, value)
			}
		}
	}
}

// The names in the package comment are those of the metrics.
func TestThePackageCommentHasEachMetric(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	documented := regexp.MustCompile(`(?m)^//\s+(etcdlock_\w+)\s+(histogram|gauge|counter) `).
		FindAllStringSubmatch(string(text), -1)
	kinds := make(map[string]string)
	for _, line := range documented {
		kinds[line[1]] = line[2]
	}
	families, err := everyMetric(t).Gather()
	require.NoError(t, err)
	require.Len(t, kinds, len(families))
	for _, family := range families {
		kind := strings.ToLower(family.GetType().String())
		require.Equal(t, kind, kinds[family.GetName()], family.GetName())
	}
}

func TestBucketsAreThoseAskedFor(t *testing.T) {
	registry := prometheus.NewRegistry()
	registered(registry, etcdlockprom.WithBuckets(1, 60, 3600)).Trace().
		Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: 30 * time.Second})
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		want := 3
		if family.GetName() == "etcdlock_lease_renewal_seconds" {
			want = 10
		}
		if family.GetType() == dto.MetricType_HISTOGRAM {
			require.Len(t, family.GetMetric()[0].GetHistogram().GetBucket(), want, family.GetName())
		}
	}
}

// Each row makes a real loss.
func TestEachLossHasItsReason(t *testing.T) {
	first := func(t *testing.T, client *clientv3.Client, name string) etcdlock.Contender {
		t.Helper()
		line, err := etcdlock.Contenders(t.Context(), client, name)
		require.NoError(t, err)
		require.NotEmpty(t, line)
		return line[0]
	}
	nothing := func(*testing.T, *clientv3.Client, string) {}
	for _, row := range []struct {
		what   string
		reason string
		opts   []etcdlock.SessionOption
		do     func(t *testing.T, client *clientv3.Client, name string)
		deaf   bool // it gets no renewal through
	}{
		{what: "key deleted", reason: "taken", do: func(
			t *testing.T, client *clientv3.Client, name string,
		) {
			require.NoError(t, etcdlock.Break(t.Context(), client, first(t, client, name)))
		}},
		{what: "key put over", reason: "taken", do: func(
			t *testing.T, client *clientv3.Client, name string,
		) {
			_, err := client.Put(t.Context(), first(t, client, name).Key, "mine")
			require.NoError(t, err)
		}},
		{what: "lease revoked", reason: "taken", do: func(
			t *testing.T, client *clientv3.Client, name string,
		) {
			_, err := client.Revoke(t.Context(), first(t, client, name).Lease)
			require.NoError(t, err)
		}},
		{
			what: "held too long", reason: "max_hold", do: nothing,
			opts: []etcdlock.SessionOption{etcdlock.WithMaxHold(50 * time.Millisecond)},
		},
		{
			what: "no renewal gets through", reason: "expired", do: nothing, deaf: true,
			opts: []etcdlock.SessionOption{etcdlock.WithTTL(2 * time.Second)},
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			t.Parallel()
			client := contract.ClientOf(t, endpoints)
			if row.deaf {
				client = deafClient(t)
			}
			registry := prometheus.NewRegistry()
			metrics := registered(registry)
			told, signals := observer()
			name := "reasons/" + strings.ReplaceAll(row.what, " ", "-")
			mu, err := etcdlock.NewMutex(client, name,
				append(row.opts, etcdlock.WithTrace(etcdlock.JoinTraces(metrics.Trace(), signals)))...)
			require.NoError(t, err)
			defer mu.Close(context.Background())

			require.NoError(t, mu.Lock(t.Context()))
			row.do(t, client, name)
			contract.Await(t, told.lost, 1)
			require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)

			values := values(t, registry)
			for _, reason := range []string{"expired", "taken", "max_hold", "other"} {
				want := 0.0
				if reason == row.reason {
					want = 1
				}
				require.Equal(t, want, values["etcdlock_lost_total "+reason], reason)
			}
			require.Equal(t, 0.0, values["etcdlock_holders"])
			if row.reason == "expired" {
				require.Positive(t, values["etcdlock_lease_renewal_failures_total"])
				require.Positive(t, values["etcdlock_lease_at_risk_total"])
			}
		})
	}
}

// A hold that shares its lock counts by its mode, beside all holds, and its permits add up.
func TestReadersAndPermitsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, registry := etcdlocktest.New(t), prometheus.NewRegistry()
		trace := registered(registry).Trace()
		session, err := etcdlock.NewSession(etcd.Client(), etcdlock.WithTrace(trace))
		require.NoError(t, err)
		defer session.Close(context.Background())
		rw, err := session.RWMutex("rw")
		require.NoError(t, err)
		sem, err := session.Semaphore("sem", 5)
		require.NoError(t, err)
		was := values(t, registry)
		require.Zero(t, was["etcdlock_shared_total read"]+was["etcdlock_shared_total permit"])
		require.Contains(t, was, "etcdlock_shared_total read")
		require.Contains(t, was, "etcdlock_shared_total permit")
		require.Contains(t, was, "etcdlock_permits_total")

		nothing := func(context.Context) error { return nil }
		require.NoError(t, rw.Do(t.Context(), nothing))
		require.NoError(t, rw.RDo(t.Context(), func(ctx context.Context) error {
			h, err := rw.RLock(context.WithoutCancel(t.Context()))
			require.NoError(t, err)
			return h.Unlock(ctx)
		}))
		for _, permits := range []int{5, 1, 2} {
			require.NoError(t, sem.Do(t.Context(), permits, nothing))
		}
		synctest.Wait()
		got := values(t, registry)
		require.Equal(t, 2.0, got["etcdlock_shared_total read"])
		require.Equal(t, 3.0, got["etcdlock_shared_total permit"])
		require.Equal(t, 8.0, got["etcdlock_permits_total"])
		require.Equal(t, 6.0, got["etcdlock_hold_seconds"]) // including the writer
	})
}

// A recall counts when the hold has noticed it. A recalled hold that is unlocked is not
// lost, however late the Unlock comes. A term of leadership counts by how it ended.
func TestRecallsAndTermsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd, registry := etcdlocktest.New(t), prometheus.NewRegistry()
		session, err := etcdlock.NewSession(etcd.Client(),
			etcdlock.WithTrace(registered(registry).Trace()), etcdlock.WithRecall(time.Minute))
		require.NoError(t, err)
		defer session.Close(context.Background())
		operator := etcd.Client()
		recall := func() {
			line, err := etcdlock.Contenders(context.Background(), operator, "leader")
			require.NoError(t, err)
			require.NotEmpty(t, line)
			require.NoError(t, etcdlock.Recall(context.Background(), operator, line[0],
				etcdlock.RecallRequest{Grace: 2 * time.Second}))
			synctest.Wait()
		}
		mu, err := session.Mutex("leader")
		require.NoError(t, err)
		ctx, end := context.WithCancelCause(t.Context())
		terms := []func(ctx context.Context) error{
			func(context.Context) error { return nil },
			func(context.Context) error { panic("no leader") },
			func(ctx context.Context) error { etcd.Delete(mu.Key()); <-ctx.Done(); return ctx.Err() },
			func(ctx context.Context) error {
				recall()
				require.Equal(t, 1.0, values(t, registry)["etcdlock_recalls_total"])
				<-ctx.Done()
				return context.Cause(ctx)
			},
			func(context.Context) error { return fmt.Errorf("done: %w", etcdlock.ErrStopLeading) },
			func(ctx context.Context) error {
				end(errors.New("terminated signal received")) // as signal.NotifyContext does
				<-ctx.Done()
				return context.Cause(ctx)
			},
		}
		count := len(terms)
		lead := func(ctx context.Context) error {
			term := terms[0]
			terms = terms[1:]
			time.Sleep(2 * time.Second) // the key is watched from then on
			return term(ctx)
		}
		require.ErrorIs(t, mu.Lead(ctx, lead), etcdlock.ErrStopLeading)
		require.ErrorIs(t, mu.Lead(ctx, lead), context.Canceled)
		synctest.Wait()

		got := values(t, registry)
		for result, want := range map[string]float64{"ok": 3, "error": 1, "lost": 1, "recalled": 1} {
			require.Equal(t, want, got["etcdlock_terms_total "+result], result)
		}
		require.EqualValues(t, count, got["etcdlock_hold_seconds"])
		require.Equal(t, 1.0, got["etcdlock_recalls_total"])
		require.Equal(t, 1.0, got["etcdlock_lost_total taken"])
		require.Zero(t, got["etcdlock_lost_total other"])
		require.Zero(t, got["etcdlock_holders"])
	})
}

// deafClient returns a client that gets no renewal through.
func deafClient(t *testing.T) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints,
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			if strings.HasSuffix(method, "/LeaseKeepAlive") {
				return nil, errors.New("deaf")
			}
			return open(ctx, desc, cc, method, opts...)
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// values returns the counters and gauges of a registry, summed over locks, by name and
// reason. For histograms it returns the count, by name and contended.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			key := []string{family.GetName()}
			for _, label := range metric.GetLabel() {
				if label.GetName() != "lock" {
					key = append(key, label.GetValue())
				}
			}
			values[strings.Join(key, " ")] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
				float64(metric.GetHistogram().GetSampleCount())
		}
	}
	return values
}

// Two Sessions share one Metrics and use many names. Their hooks run side by side.
func TestCountsAreExactAndSeriesFewWhateverRunsAtOnce(t *testing.T) {
	const workers, rounds = 8, 25
	registry := prometheus.NewRegistry()
	metrics := registered(registry, etcdlockprom.WithLockLabel(func(name string) string {
		kind, _, _ := strings.Cut(name, "/")
		return kind
	}))
	told, signals := observer()
	trace := etcdlock.JoinTraces(metrics.Trace(), signals)

	var running sync.WaitGroup
	for range 2 {
		session, err := etcdlock.NewSession(contract.ClientOf(t, endpoints), etcdlock.WithTrace(trace))
		require.NoError(t, err)
		t.Cleanup(func() { session.Close(context.Background()) })
		for worker := range workers {
			running.Go(func() {
				for round := range rounds {
					name := fmt.Sprintf("crowd/%d", (worker+round)%10)
					if mu, err := session.Mutex(name); err != nil {
						t.Error(err)
					} else if err := mu.Do(t.Context(), func(context.Context) error { return nil }); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	running.Wait()
	const all = 2 * workers * rounds
	contract.Await(t, told.released, all)

	values := values(t, registry)
	contended := values["etcdlock_wait_seconds true"]
	require.EqualValues(t, all, contended+values["etcdlock_wait_seconds false"])
	require.Equal(t, contended, values["etcdlock_contended_total"])
	require.EqualValues(t, all, values["etcdlock_hold_seconds"])
	require.Zero(t, values["etcdlock_holders"])
	require.Zero(t, values["etcdlock_waiting"])

	series, err := testutil.GatherAndCount(registry)
	require.NoError(t, err)
	require.LessOrEqual(t, series, 34) // for 10 names of one kind
}
