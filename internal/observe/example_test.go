package observe

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
	"github.com/etcdlock/etcdlock/etcdlockprom"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// observed returns a Session with metrics and spans.
func observed(
	client *clientv3.Client, metrics *etcdlockprom.Metrics, provider trace.TracerProvider,
) (*etcdlock.Session, error) {
	spans := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	return etcdlock.NewSession(client,
		etcdlock.WithTrace(etcdlock.JoinTraces(metrics.Trace(), spans)))
}

// Metrics and spans of one Session.
func Example() {
	endpoint, etcd, err := sim.Serve()
	must(err)
	defer etcd.Stop()
	client, err := clientv3.New(clientv3.Config{
		Endpoints:            []string{endpoint},
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
	})
	must(err)
	defer client.Close()
	ctx := context.Background()

	registry := prometheus.NewRegistry()
	metrics := etcdlockprom.NewMetrics()
	registry.MustRegister(metrics)
	exporter := tracetest.NewInMemoryExporter()
	ended := make(chan struct{}, 2) // a span is exported when it ends, after the metrics were counted
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithSyncer(exporter), sdktrace.WithSpanProcessor(endings(ended)))
	defer provider.Shutdown(ctx)

	session, err := observed(client, metrics, provider)
	must(err)
	mu, err := session.Mutex("cron/report")
	must(err)
	must(mu.Do(ctx, func(context.Context) error { return nil }))
	<-ended
	<-ended
	must(session.Close(ctx))

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

// endings gets a value for each span that ends.
type endings chan struct{}

func (e endings) OnEnd(sdktrace.ReadOnlySpan)                   { e <- struct{}{} }
func (endings) OnStart(context.Context, sdktrace.ReadWriteSpan) {}
func (endings) Shutdown(context.Context) error                  { return nil }
func (endings) ForceFlush(context.Context) error                { return nil }

// must ends an example that went wrong.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
