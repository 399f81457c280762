package etcdlockprom_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockprom"
)

// counted returns a Session whose locks are counted, by their kind: "orders/42" is one of the
// orders.
func counted(client *clientv3.Client, reg prometheus.Registerer) (*etcdlock.Session, error) {
	metrics := etcdlockprom.NewMetrics(etcdlockprom.WithLockLabel(func(name string) string {
		kind, _, _ := strings.Cut(name, "/")
		return kind
	}))
	if err := reg.Register(metrics); err != nil {
		return nil, err
	}
	return etcdlock.NewSession(client, etcdlock.WithTrace(metrics.Trace()))
}

// The wiring of a program.
func Example() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	registry := prometheus.NewRegistry()
	session, err := counted(client, registry)
	must(err)
	mu, err := session.Mutex("orders/7")
	must(err)
	must(mu.Do(ctx, func(context.Context) error { return nil }))
	must(session.Close(ctx))

	families, err := registry.Gather()
	must(err)
	for _, family := range families {
		if family.GetName() == "etcdlock_holders" {
			fmt.Println("of the lock", family.GetMetric()[0].GetLabel()[0].GetValue())
		}
	}
	// Output:
	// of the lock orders
}

// One replica holds, another waits for it, gets in, and is then thrown out by an
// operator: what Prometheus reads of that.
func ExampleMetrics() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()

	registry := prometheus.NewRegistry()
	kind := func(name string) string { // "orders/42" is one of the orders
		kind, _, _ := strings.Cut(name, "/")
		return kind
	}
	metrics := etcdlockprom.NewMetrics(etcdlockprom.WithLockLabel(kind))
	registry.MustRegister(metrics)
	told, signals := observer()
	replica := func() *etcdlock.Mutex {
		mu, err := etcdlock.NewMutex(client, "orders/42",
			etcdlock.WithTTL(time.Minute), // no renewal within this example
			etcdlock.WithTrace(etcdlock.JoinTraces(metrics.Trace(), signals)))
		must(err)
		return mu
	}

	first, second := replica(), replica()
	defer first.Close(ctx)
	defer second.Close(ctx)
	must(first.Lock(ctx))
	waited := make(chan error)
	go func() { waited <- second.Lock(ctx) }()
	<-told.queued
	must(first.Unlock(ctx))
	<-told.released
	must(<-waited)

	line, err := etcdlock.Contenders(ctx, client, "orders/42")
	must(err)
	must(etcdlock.Break(ctx, client, line[0]))
	<-told.lost
	fmt.Println("lost:", errors.Is(second.Unlock(ctx), etcdlock.ErrLost))

	scrape(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	// Output:
	// lost: true
	// etcdlock_contended_total{lock="orders"} 1
	// etcdlock_gave_up_total{lock="orders",reason="canceled"} 0
	// etcdlock_gave_up_total{lock="orders",reason="closed"} 0
	// etcdlock_gave_up_total{lock="orders",reason="locked"} 0
	// etcdlock_gave_up_total{lock="orders",reason="other"} 0
	// etcdlock_gave_up_total{lock="orders",reason="timeout"} 0
	// etcdlock_gave_up_total{lock="orders",reason="unavailable"} 0
	// etcdlock_hold_seconds_count{lock="orders"} 2
	// etcdlock_holders{lock="orders"} 0
	// etcdlock_lease_at_risk_total 0
	// etcdlock_lease_renewal_failures_total 0
	// etcdlock_lease_renewal_seconds_count 0
	// etcdlock_leases_granted_total 2
	// etcdlock_leases_replaced_total 0
	// etcdlock_longest_wait_seconds{lock="orders"} 0
	// etcdlock_lost_total{lock="orders",reason="expired"} 0
	// etcdlock_lost_total{lock="orders",reason="max_hold"} 0
	// etcdlock_lost_total{lock="orders",reason="other"} 0
	// etcdlock_lost_total{lock="orders",reason="taken"} 1
	// etcdlock_permits_total{lock="orders"} 0
	// etcdlock_recalls_total{lock="orders"} 0
	// etcdlock_set_backs_total 0
	// etcdlock_shared_total{lock="orders",mode="permit"} 0
	// etcdlock_shared_total{lock="orders",mode="read"} 0
	// etcdlock_terms_total{lock="orders",result="error"} 0
	// etcdlock_terms_total{lock="orders",result="lost"} 0
	// etcdlock_terms_total{lock="orders",result="ok"} 0
	// etcdlock_terms_total{lock="orders",result="recalled"} 0
	// etcdlock_unavailable_total 0
	// etcdlock_wait_seconds_count{contended="false",lock="orders"} 1
	// etcdlock_wait_seconds_count{contended="true",lock="orders"} 1
	// etcdlock_waiting{lock="orders"} 0
}

// told has a channel for each thing that the tests wait for.
type told struct{ queued, released, lost chan struct{} }

// observer returns hooks that tell when something has happened. Hooks run some time after
// the event: joined behind others, these say that the others have run.
func observer() (told, *etcdlock.Trace) {
	const most = 4096
	t := told{
		queued: make(chan struct{}, most), released: make(chan struct{}, most),
		lost: make(chan struct{}, most),
	}
	return t, &etcdlock.Trace{
		Queued:   func(_ context.Context, _ etcdlock.QueuedEvent) { t.queued <- struct{}{} },
		Released: func(_ context.Context, _ etcdlock.ReleasedEvent) { t.released <- struct{}{} },
		Lost:     func(_ context.Context, _ etcdlock.LostEvent) { t.lost <- struct{}{} },
	}
}

// scrape prints what Prometheus would read, but for what depends on the machine's speed.
func scrape(metrics http.Handler) {
	answer := httptest.NewRecorder()
	metrics.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "_bucket{") &&
			!strings.Contains(line, "_sum") && !strings.HasPrefix(line, "etcdlock_removals") {
			fmt.Print(line)
		}
	}
}
