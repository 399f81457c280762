package etcdlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
	"github.com/etcdlock/etcdlock/internal/contract"
)

func tracing(t *testing.T) (*tracetest.InMemoryExporter, *sdktrace.TracerProvider) {
	t.Helper()
	exporter := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { provider.Shutdown(context.Background()) })
	return exporter, provider
}

// attributes returns the attributes of a span or event, by key.
func attributes(list []attribute.KeyValue) map[string]any {
	values := make(map[string]any)
	for _, a := range list {
		values[string(a.Key)] = a.Value.AsInterface()
	}
	return values
}

func TestSpansAreAsLongAsWhatTheyTell(t *testing.T) {
	exporter, provider := tracing(t)
	hooks := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	before := time.Now()
	hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: 3 * time.Second})
	hooks.Released(t.Context(), etcdlock.ReleasedEvent{Name: "a", Token: 1, Held: 5 * time.Second})
	hooks.Lost(t.Context(), etcdlock.LostEvent{Name: "a", Token: 2, Held: 7 * time.Second, Reason: errors.New("because")})
	hooks.GaveUp(t.Context(), etcdlock.GaveUpEvent{Name: "a", Waited: 9 * time.Second, Ahead: 1, Err: context.Canceled})
	hooks.Led(t.Context(), etcdlock.LedEvent{Name: "a", Token: 2, Held: 11 * time.Second})

	spans := exporter.GetSpans()
	require.Len(t, spans, 5)
	for i, lasted := range []time.Duration{3, 5, 7, 9, 11} {
		lasted *= time.Second
		require.Equal(t, lasted, spans[i].EndTime.Sub(spans[i].StartTime))
		require.WithinRange(t, spans[i].EndTime, before, time.Now())
	}
	require.Equal(t, codes.Unset, spans[1].Status.Code)
	require.Equal(t, codes.Error, spans[2].Status.Code)
	require.Equal(t, spans[2].EndTime, spans[2].Events[0].Time)
}

// All spans have one instrumentation scope, with the module's name. They go to the global
// provider unless the caller gives another.
func TestSpansAreOfTheModulesScope(t *testing.T) {
	exporter, provider := tracing(t)
	global := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(global)
	etcdlockotel.NewTrace().Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second})
	scope := exporter.GetSpans()[0].InstrumentationScope
	require.Equal(t, reflect.TypeFor[etcdlockotel.Option]().PkgPath(), scope.Name)
	require.Equal(t, etcdlockotel.Version(), scope.Version)
	require.Equal(t, semconv.SchemaURL, scope.SchemaURL)
}

// Each end has its error.type, except those that are no errors. It is the same in spans and
// metrics.
func TestEachEndHasItsErrorType(t *testing.T) {
	locked := &etcdlock.LockedError{Name: "a"}
	for _, row := range []struct {
		err       error
		errorType string
		lost      bool
	}{
		{locked, "", false},
		{errors.Join(locked, context.DeadlineExceeded), "timeout", false},
		{errors.Join(locked, context.Canceled), "canceled", false},
		{errors.Join(etcdlock.ErrUnavailable, context.Canceled), "unavailable", false},
		{errors.Join(etcdlock.ErrClosed, locked), "closed", false},
		{errors.New("etcdlock: permission denied"), "_OTHER", false},
		{etcdlock.ErrMaxHold, "max_hold", true},
		{etcdlock.ErrExpired, "expired", true},
		{etcdlock.ErrSuspended, "expired", true},
		{etcdlock.ErrKeyDeleted, "taken", true},
		{etcdlock.ErrKeyOverwritten, "taken", true},
		{etcdlock.ErrLeaseRevoked, "taken", true},
		{errors.New("etcdlock: something else"), "_OTHER", true},
	} {
		exporter, provider := tracing(t)
		reader, metrics := measuring(t)
		hooks := etcdlock.JoinTraces(
			etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider)), metrics)
		if row.lost {
			hooks.Lost(t.Context(), etcdlock.LostEvent{Name: "a", Token: 1, Held: time.Second, Reason: row.err})
		} else {
			hooks.GaveUp(t.Context(), etcdlock.GaveUpEvent{Name: "a", Waited: time.Second, Ahead: 1, Err: row.err})
		}
		point := "etcdlock.wait.duration error.type=" + row.errorType + " acquired=false contended=true"
		switch {
		case row.lost:
			point = "etcdlock.hold.duration error.type=" + row.errorType
			require.Equal(t, "1", recorded(t, reader)["etcdlock.hold.lost error.type="+row.errorType])
		case row.errorType == "":
			point = "etcdlock.wait.duration acquired=false contended=true"
		}
		require.Equal(t, "1, 1 s", recorded(t, reader)[point], "%v", row.err)
		span := exporter.GetSpans()[0]
		got, failed := attributes(span.Attributes)["error.type"]
		require.Equal(t, row.errorType != "", failed, "%v", row.err)
		if !failed {
			require.Equal(t, codes.Unset, span.Status.Code)
			continue
		}
		require.Equal(t, row.errorType, got, "%v", row.err)
		require.Equal(t, codes.Error, span.Status.Code)
		require.False(t, strings.HasPrefix(span.Status.Description, "etcdlock:"))
	}
}

// Each term of a leader has a span below that of Lead, beside the hold's span. Its
// error.type is that of the metrics.
func TestATermOfLeadershipHasItsSpan(t *testing.T) {
	lost := &etcdlock.LostError{Name: "a", Reason: etcdlock.ErrExpired}
	for _, row := range []struct {
		err       error
		errorType string
		text      string
	}{
		{nil, "", ""},
		{context.Canceled, "", ""},
		{fmt.Errorf("work: %w", context.Canceled), "", ""},
		{context.DeadlineExceeded, "_OTHER", "context deadline exceeded"},
		{errors.New("etcdlock: lead: panicked\n\nstack"), "_OTHER", "lead: panicked"},
		{&etcdlock.RecalledError{Name: "a"}, "recalled", `lock "a" recalled (token 0)`},
		{errors.Join(context.Canceled, lost), "expired", "context canceled"},
		{lost, "expired", `lock "a" lost (token 0): not renewed in time`},
		{etcdlock.ErrUnconfirmed, "_OTHER", "release not confirmed"},
	} {
		exporter, provider := tracing(t)
		reader, metrics := measuring(t)
		ctx, request := provider.Tracer("test").Start(t.Context(), "main")
		etcdlock.JoinTraces(etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider)), metrics).
			Led(ctx, etcdlock.LedEvent{Name: "a", Token: 7, Held: time.Second, Err: row.err})
		span := exporter.GetSpans()[0]
		require.Equal(t, "etcdlock.term", span.Name)
		require.Equal(t, request.SpanContext().SpanID(), span.Parent.SpanID())
		require.Equal(t, row.text, span.Status.Description)
		want := map[string]any{"etcdlock.name": "a", "etcdlock.token": int64(7)}
		point := "etcdlock.term.duration"
		if row.errorType != "" {
			want["error.type"] = row.errorType
			point += " error.type=" + row.errorType
		}
		require.Equal(t, want, attributes(span.Attributes), "%v", row.err)
		require.Equal(t, "1, 1 s", recorded(t, reader)[point], "%v", row.err)
	}
}

// Each hook of a call makes a span or an event, or the test says why not.
func TestEachHookOfACallIsTold(t *testing.T) {
	hooks := reflect.ValueOf(etcdlockotel.NewTrace()).Elem()
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		told := []string{"Queued", "GaveUp", "Acquired", "Released", "Lost", "Led"} // the others are for metrics
		require.Equal(t, slices.Contains(told, name), !hooks.Field(i).IsNil(), name)
	}
}

// A wait that gives up is a failed span, and the trace of its request says for whom it
// waited.
func TestARequestThatGaveUpTellsWhoHeldTheLock(t *testing.T) {
	exporter, provider := tracing(t)
	client := contract.ClientOf(t, endpoints)
	holder, err := etcdlock.New(client, "given-up", etcdlock.WithOwner("worker-3"))
	require.NoError(t, err)
	defer holder.Close(context.Background())
	require.NoError(t, holder.Lock(t.Context()))

	told, signals := observer()
	spansOf := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	mu, err := etcdlock.New(client, "given-up",
		etcdlock.WithTrace(etcdlock.JoinTraces(spansOf, signals)))
	require.NoError(t, err)
	defer mu.Close(context.Background())
	ctx, request := provider.Tracer("test").Start(t.Context(), "request")
	waiting, giveUp := context.WithCancel(ctx)
	failed := make(chan error)
	go func() { failed <- mu.Lock(waiting) }()
	contract.Await(t, told.queued, 1)
	giveUp()
	require.ErrorIs(t, <-failed, context.Canceled)
	contract.Await(t, told.gaveUp, 1)
	request.End()

	spans := exporter.GetSpans()
	require.Len(t, spans, 2)
	require.Equal(t, "etcdlock.wait", spans[0].Name)
	require.Equal(t, spans[1].SpanContext.SpanID(), spans[0].Parent.SpanID())
	require.Equal(t, codes.Error, spans[0].Status.Code)
	require.Regexp(t, `2nd in line, held by worker-3 \(.+:\d+\): context canceled$`, spans[0].Status.Description)
	require.Equal(t, "canceled", attributes(spans[0].Attributes)["error.type"])
	require.Equal(t, "request", spans[1].Name)
	require.Len(t, spans[1].Events, 1)
	require.Equal(t, "etcdlock.queued", spans[1].Events[0].Name)
	queued := attributes(spans[1].Events[0].Attributes)
	require.Equal(t, "worker-3", queued["etcdlock.holder.owner"])
	require.Equal(t, int64(os.Getpid()), queued["etcdlock.holder.pid"])
	require.NotEmpty(t, queued["etcdlock.holder.host"])
}

// Every hold has its two spans, below the request to which it belongs. All requests share
// one Trace and one Mutex.
func TestEachRequestGetsItsOwnSpansWhateverRunsAtOnce(t *testing.T) {
	const requests = 60
	exporter, provider := tracing(t)
	tracer := provider.Tracer("test")
	told, signals := observer()
	spansOf := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	var running sync.WaitGroup
	for range 2 {
		session, err := etcdlock.NewSession(contract.ClientOf(t, endpoints),
			etcdlock.WithTrace(etcdlock.JoinTraces(spansOf, signals)))
		require.NoError(t, err)
		t.Cleanup(func() { session.Close(context.Background()) })
		for i := range requests / 2 {
			running.Go(func() {
				name := fmt.Sprintf("requests/%d", i%4)
				ctx, request := tracer.Start(t.Context(), name)
				defer request.End()
				mu, err := session.Mutex(name)
				if err != nil {
					t.Error(err)
				} else if err := mu.Do(ctx, func(context.Context) error { return nil }); err != nil {
					t.Error(err)
				}
			})
		}
	}
	running.Wait()
	contract.Await(t, told.released, requests)

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
			values := attributes(span.Attributes)
			require.Equal(t, roots[parent], values["etcdlock.name"])
			if below[parent] == nil {
				below[parent] = make(map[string]int64)
			}
			below[parent][span.Name] = values["etcdlock.token"].(int64)
		}
	}
	require.Len(t, below, requests)
	for _, tokens := range below {
		require.Len(t, tokens, 2)
		require.Equal(t, tokens["etcdlock.wait"], tokens["etcdlock.hold"])
		require.Positive(t, tokens["etcdlock.hold"])
	}
}

// documentedAttributes returns the attributes of a section of the package comment.
func documentedAttributes(t *testing.T, section string) (names []string) {
	t.Helper()
	for _, line := range regexp.MustCompile(`(?m)^//\t(\S+\.\S+)\s+(string|int|bool) `).
		FindAllStringSubmatch(packageComment(t, section), -1) {
		names = append(names, line[1])
	}
	slices.Sort(names)
	return names
}

// packageComment returns a section of the package comment.
func packageComment(t *testing.T, section string) string {
	t.Helper()
	text, err := os.ReadFile("doc.go")
	require.NoError(t, err)
	_, found, there := strings.Cut(string(text), "\n// # "+section+"\n")
	require.True(t, there)
	found, _, _ = strings.Cut(found, "\n// # ")
	return found
}

// The package comment names exactly the attributes that there are.
func TestThePackageCommentHasEachAttribute(t *testing.T) {
	documented := documentedAttributes(t, "Spans")
	exporter, provider := tracing(t)
	hooks := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second, Ahead: 1})
	hooks.GaveUp(t.Context(), etcdlock.GaveUpEvent{Name: "a", Waited: time.Second, Ahead: 1, Err: context.Canceled})
	hooks.Lost(t.Context(), etcdlock.LostEvent{Name: "a", Token: 1, Held: time.Second, Reason: etcdlock.ErrExpired})
	var there []string
	for _, span := range exporter.GetSpans() {
		for _, a := range span.Attributes {
			there = append(there, string(a.Key))
		}
	}
	slices.Sort(there)
	require.Equal(t, documented, slices.Compact(there))
}
