package etcdlockotel_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
)

// traced returns a Session whose calls show below the spans of their callers.
func traced(client *clientv3.Client, provider trace.TracerProvider) (*etcdlock.Session, error) {
	spans := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	return etcdlock.NewSession(client, etcdlock.WithTrace(spans))
}

// metered returns a Session whose locks are measured, by their kind: "orders/42" is one of the
// orders.
func metered(client *clientv3.Client, provider metric.MeterProvider) (*etcdlock.Session, error) {
	metrics, err := etcdlockotel.NewMetrics(
		etcdlockotel.WithMeterProvider(provider),
		etcdlockotel.WithLockKind(func(name string) string {
			kind, _, _ := strings.Cut(name, "/")
			return kind
		}))
	if err != nil {
		return nil, err
	}
	return etcdlock.NewSession(client, etcdlock.WithTrace(metrics))
}

// The wiring of a program: the work is below the hold. A hook, which ends a span, runs some time
// after the event.
func Example() {
	client := exampleClient()
	defer client.Close()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	session, err := traced(client, provider)
	must(err)

	shop := provider.Tracer("shop")
	ctx, request := shop.Start(context.Background(), "POST /buy")
	mu, err := session.Mutex("stock/1")
	must(err)
	must(mu.Do(ctx, func(ctx context.Context) error {
		_, work := shop.Start(ctx, "charge")
		defer work.End()
		return nil
	}))
	request.End()
	must(session.Close(ctx))

	for len(recorder.Ended()) < 4 {
		runtime.Gosched()
	}
	names := make(map[trace.SpanID]string)
	for _, span := range recorder.Started() { // they are in the order of their beginning
		names[span.SpanContext().SpanID()] = span.Name()
		fmt.Println(span.Name(), "in", cmp.Or(names[span.Parent().SpanID()], "nothing"))
	}
	// Output:
	// POST /buy in nothing
	// etcdlock.wait in POST /buy
	// etcdlock.hold in POST /buy
	// charge in etcdlock.hold
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

	told, signals := observer()
	other, err := etcdlock.NewMutex(client, "stock/7", etcdlock.WithOwner("worker-3"))
	must(err)
	defer other.Close(ctx)
	must(other.Lock(ctx))

	spans := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	session, err := etcdlock.NewSession(client,
		etcdlock.WithTrace(etcdlock.JoinTraces(spans, signals)))
	must(err)
	defer session.Close(ctx)
	mu, err := session.Mutex("stock/7")
	must(err)
	ctx, request := provider.Tracer("shop").Start(ctx, "POST /buy")

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
	// etcdlock.wait in POST /buy: name=stock/7 token=T acquired=true ahead=1
	//   event etcdlock.queued name=stock/7 ahead=1 holder.owner=worker-3
	// etcdlock.hold in POST /buy: name=stock/7 token=T error.type=taken
	//   event etcdlock.lost error.type=taken
	//   status error: lock lost: its key was deleted
}

// Two orders are worked on, each under its lock: the holds of the kind "orders".
func ExampleNewMetrics() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	reader := sdkmetric.NewManualReader() // or a PeriodicReader with an exporter of OTLP
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	session, err := metered(client, provider)
	must(err)
	defer session.Close(ctx)
	for _, name := range []string{"orders/7", "orders/42"} {
		mu, err := session.Mutex(name)
		must(err)
		must(mu.Do(ctx, func(context.Context) error { return nil }))
	}

	var orders metricdata.HistogramDataPoint[float64]
	for orders.Count < 2 { // a hook runs some time after the event
		runtime.Gosched()
		var told metricdata.ResourceMetrics
		must(reader.Collect(ctx, &told))
		for _, m := range told.ScopeMetrics[0].Metrics {
			if m.Name == "etcdlock.hold.duration" {
				orders = m.Data.(metricdata.Histogram[float64]).DataPoints[0]
			}
		}
	}
	kind, _ := orders.Attributes.Value("etcdlock.kind")
	fmt.Println("holds of", kind.AsString()+":", orders.Count)
	// Output:
	// holds of orders: 2
}

// told has a channel for each thing that the tests wait for.
type told struct{ queued, gaveUp, released, lost chan struct{} }

// observer returns hooks that tell when something has happened. Hooks run some time after
// the event: joined behind others, these say that the others have run.
func observer() (told, *etcdlock.Trace) {
	t := told{
		queued: make(chan struct{}, 4096), gaveUp: make(chan struct{}, 4096),
		released: make(chan struct{}, 4096), lost: make(chan struct{}, 4096),
	}
	return t, &etcdlock.Trace{
		Queued: func(_ context.Context, _ etcdlock.QueuedEvent) {
			t.queued <- struct{}{}
		},
		GaveUp: func(_ context.Context, _ etcdlock.GaveUpEvent) { t.gaveUp <- struct{}{} },
		Released: func(_ context.Context, _ etcdlock.ReleasedEvent) {
			t.released <- struct{}{}
		},
		Lost: func(_ context.Context, _ etcdlock.LostEvent) { t.lost <- struct{}{} },
	}
}

// show prints spans, those without a parent first. T is the token.
func show(spans tracetest.SpanStubs, token int64) {
	machine := []attribute.Key{"etcdlock.holder.host", "etcdlock.holder.pid"}
	text := func(attributes []attribute.KeyValue) (text string) {
		for _, a := range attributes {
			if slices.Contains(machine, a.Key) {
				continue
			}
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
