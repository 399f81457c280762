package observe_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/observe"
)

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
	metrics := observe.NewMetrics(registry, kind)
	told, signals := observer()
	replica := func() *etcdlock.Mutex {
		mu, err := etcdlock.New(client, "orders/42",
			etcdlock.WithTTL(time.Minute), // no renewal within this example
			etcdlock.WithTrace(observe.Join(metrics.Trace(), signals)))
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
	// etcdlock_gave_up_total{lock="orders"} 0
	// etcdlock_hold_seconds_count{lock="orders"} 2
	// etcdlock_holders{lock="orders"} 0
	// etcdlock_lease_at_risk_total 0
	// etcdlock_lease_renewal_failures_total 0
	// etcdlock_lease_renewal_seconds_count 0
	// etcdlock_lost_total{lock="orders",reason="expired"} 0
	// etcdlock_lost_total{lock="orders",reason="max_hold"} 0
	// etcdlock_lost_total{lock="orders",reason="other"} 0
	// etcdlock_lost_total{lock="orders",reason="taken"} 1
	// etcdlock_wait_seconds_count{contended="false",lock="orders"} 1
	// etcdlock_wait_seconds_count{contended="true",lock="orders"} 1
	// etcdlock_waiting{lock="orders"} 0
}

// A request waits for a lock, gets it, and loses it to an operator: the spans of that
// request.
func ExampleNewTrace() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()

	exporter := tracetest.NewInMemoryExporter() // or one of OTLP
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	defer provider.Shutdown(ctx)
	tracer := provider.Tracer("shop")

	told, signals := observer()
	other, err := etcdlock.New(client, "stock/7", etcdlock.WithOwner("worker-3"))
	must(err)
	defer other.Close(ctx)
	must(other.Lock(ctx))

	session, err := etcdlock.NewSession(client)
	must(err)
	defer session.Close(ctx)
	ctx, request := tracer.Start(ctx, "POST /buy")
	mu, err := session.Mutex("stock/7",
		etcdlock.WithTrace(observe.Join(observe.NewTrace(ctx, tracer), signals)))
	must(err)

	waited := make(chan error)
	go func() { waited <- mu.Lock(ctx) }()
	<-told.queued
	must(other.Unlock(ctx))
	must(<-waited)
	line, err := etcdlock.Contenders(ctx, client, "stock/7")
	must(err)
	must(etcdlock.Break(ctx, client, line[0]))
	<-told.lost
	fmt.Println("lost:", errors.Is(mu.Unlock(ctx), etcdlock.ErrLost))
	request.End()

	show(exporter.GetSpans(), line[0].Token)
	// Output:
	// lost: true
	// POST /buy
	//   event etcdlock.queued name=stock/7 ahead=1 holder=worker-3
	// etcdlock.wait in POST /buy: name=stock/7 token=T ahead=1
	// etcdlock.hold in POST /buy: name=stock/7 token=T
	//   event etcdlock.lost reason=its key was deleted
	//   status error: lock lost: its key was deleted
}

// Metrics and spans at once.
func ExampleJoin() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()

	registry := prometheus.NewRegistry()
	metrics := observe.NewMetrics(registry, nil)
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	defer provider.Shutdown(ctx)
	spans := observe.NewTrace(ctx, provider.Tracer("report"))

	told, signals := observer()
	mu, err := etcdlock.New(client, "cron/report",
		etcdlock.WithTrace(observe.Join(metrics.Trace(), spans, signals)))
	must(err)
	must(mu.Do(ctx, func(context.Context) error { return nil }))
	<-told.released
	must(mu.Close(ctx))

	held, err := testutil.GatherAndCount(registry, "etcdlock_hold_seconds")
	must(err)
	fmt.Println("histograms of holds:", held)
	for _, span := range exporter.GetSpans() {
		fmt.Println("span:", span.Name)
	}
	// Output:
	// histograms of holds: 1
	// span: etcdlock.wait
	// span: etcdlock.hold
}

// told has a channel for each thing that the tests wait for.
type told struct{ queued, acquired, released, lost chan struct{} }

// observer returns hooks that tell when something has happened. Hooks run some time after
// the event: joined behind others, these say that the others have run.
func observer() (told, *etcdlock.Trace) {
	const most = 4096
	t := told{
		queued: make(chan struct{}, most), acquired: make(chan struct{}, most),
		released: make(chan struct{}, most), lost: make(chan struct{}, most),
	}
	return t, &etcdlock.Trace{
		Queued:   func(string, int, etcdlock.Contender) { t.queued <- struct{}{} },
		Acquired: func(string, int64, time.Duration, int) { t.acquired <- struct{}{} },
		Released: func(string, int64, time.Duration) { t.released <- struct{}{} },
		Lost:     func(string, int64, time.Duration, error) { t.lost <- struct{}{} },
	}
}

// scrape prints what Prometheus would read, but for what depends on the machine's speed.
func scrape(metrics http.Handler) {
	answer := httptest.NewRecorder()
	metrics.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(answer.Body.String()) {
		if !strings.HasPrefix(line, "#") && !strings.Contains(line, "_bucket{") && !strings.Contains(line, "_sum") {
			fmt.Print(line)
		}
	}
}

// show prints spans, those without a parent first. T is the token.
func show(spans tracetest.SpanStubs, token int64) {
	text := func(attributes []attribute.KeyValue) (text string) {
		for _, a := range attributes {
			value := a.Value.String()
			if a.Key == "etcdlock.token" && a.Value.AsInt64() == token {
				value = "T"
			}
			text += fmt.Sprintf(" %s=%s", strings.TrimPrefix(string(a.Key), "etcdlock."), value)
		}
		return text
	}
	names := make(map[trace.SpanID]string)
	for _, span := range spans {
		names[span.SpanContext.SpanID()] = span.Name
	}
	slices.SortStableFunc(spans, func(a, b tracetest.SpanStub) int {
		return cmp.Compare(names[a.Parent.SpanID()], names[b.Parent.SpanID()])
	})
	for _, span := range spans {
		fmt.Print(span.Name)
		if span.Parent.IsValid() {
			fmt.Printf(" in %s:%s", names[span.Parent.SpanID()], text(span.Attributes))
		}
		fmt.Println()
		for _, event := range span.Events {
			fmt.Printf("  event %s%s\n", event.Name, text(event.Attributes))
		}
		if span.Status.Code == codes.Error {
			fmt.Println("  status error:", span.Status.Description)
		}
	}
}
