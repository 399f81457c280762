package observe_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/observe"
)

func tracing(t *testing.T) (*tracetest.InMemoryExporter, *sdktrace.TracerProvider) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { provider.Shutdown(context.Background()) })
	return exporter, provider
}

func TestSpansAreAsLongAsWhatTheyTell(t *testing.T) {
	exporter, provider := tracing(t)
	hooks := observe.NewTrace(t.Context(), provider.Tracer("test"))
	before := time.Now()
	hooks.Acquired("a", 1, 3*time.Second, 0)
	hooks.Released("a", 1, 5*time.Second)
	hooks.Lost("a", 2, 7*time.Second, errors.New("because"))

	spans := exporter.GetSpans()
	require.Len(t, spans, 3)
	for i, lasted := range []time.Duration{3 * time.Second, 5 * time.Second, 7 * time.Second} {
		require.Equal(t, lasted, spans[i].EndTime.Sub(spans[i].StartTime))
		require.WithinRange(t, spans[i].EndTime, before, time.Now())
	}
	require.Equal(t, codes.Unset, spans[1].Status.Code)
	require.Equal(t, codes.Error, spans[2].Status.Code)
	require.Equal(t, spans[2].EndTime, spans[2].Events[0].Time)
}

// A wait that gives up is a span that failed, and its request tells whom it waited for.
func TestARequestThatGaveUpTellsWhoHeldTheLock(t *testing.T) {
	exporter, provider := tracing(t)
	client := client(t)
	holder, err := etcdlock.New(client, "given-up", etcdlock.WithOwner("worker-3"))
	require.NoError(t, err)
	defer holder.Close(context.Background())
	require.NoError(t, holder.Lock(t.Context()))

	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	told, signals := observer()
	mu, err := etcdlock.New(client, "given-up",
		etcdlock.WithTrace(observe.Join(observe.NewTrace(ctx, provider.Tracer("test")), signals)))
	require.NoError(t, err)
	defer mu.Close(context.Background())
	waiting, giveUp := context.WithCancel(ctx)
	failed := make(chan error)
	go func() { failed <- mu.Lock(waiting) }()
	await(t, told.queued, 1)
	giveUp()
	require.ErrorIs(t, <-failed, context.Canceled)
	request.End()

	require.Eventually(t, func() bool { return len(exporter.GetSpans()) == 2 }, 20*time.Second, time.Millisecond)
	spans := exporter.GetSpans()
	slices.SortFunc(spans, func(a, b tracetest.SpanStub) int { return strings.Compare(a.Name, b.Name) })
	require.Equal(t, "etcdlock.wait", spans[0].Name)
	require.Equal(t, codes.Error, spans[0].Status.Code)
	require.Regexp(t, `2nd in line, held by worker-3 \(.+:\d+\): context canceled$`, spans[0].Status.Description)
	require.Equal(t, "request", spans[1].Name)
	require.Len(t, spans[1].Events, 1)
	require.Equal(t, "etcdlock.queued", spans[1].Events[0].Name)
	attributes := spans[1].Events[0].Attributes
	require.Equal(t, "worker-3", attributes[len(attributes)-1].Value.AsString())
}

// Every hold has its two spans, below the request that it belongs to.
func TestEachRequestGetsItsOwnSpansWhateverRunsAtOnce(t *testing.T) {
	const requests = 60
	exporter, provider := tracing(t)
	tracer := provider.Tracer("test")
	told, signals := observer()
	var running sync.WaitGroup
	for range 2 {
		session, err := etcdlock.NewSession(client(t))
		require.NoError(t, err)
		t.Cleanup(func() { session.Close(context.Background()) })
		for i := range requests / 2 {
			running.Go(func() {
				name := fmt.Sprintf("requests/%d", i%4)
				ctx, request := tracer.Start(t.Context(), name)
				defer request.End()
				mu, err := session.Mutex(name,
					etcdlock.WithTrace(observe.Join(observe.NewTrace(ctx, tracer), signals)))
				if err != nil {
					t.Error(err)
				} else if err := mu.Do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
	}
	running.Wait()
	await(t, told.released, requests)

	roots := make(map[string]string) // names, by span
	below := make(map[string]map[string]int64)
	spans := exporter.GetSpans()
	require.Len(t, spans, 3*requests)
	for _, span := range spans {
		if !span.Parent.IsValid() {
			roots[span.SpanContext.SpanID().String()] = span.Name
		}
	}
	require.Len(t, roots, requests)
	for _, span := range spans {
		if span.Parent.IsValid() {
			parent := span.Parent.SpanID().String()
			require.Equal(t, roots[parent], span.Attributes[0].Value.AsString())
			if below[parent] == nil {
				below[parent] = make(map[string]int64)
			}
			below[parent][span.Name] = span.Attributes[1].Value.AsInt64()
		}
	}
	require.Len(t, below, requests)
	for _, tokens := range below {
		require.Len(t, tokens, 2)
		require.Equal(t, tokens["etcdlock.wait"], tokens["etcdlock.hold"])
		require.Positive(t, tokens["etcdlock.hold"])
	}
}
