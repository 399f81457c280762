package etcdlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
	"github.com/etcdlock/etcdlock/etcdlocktest"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/events"
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

// begins is the context of a call that begins, as a Session has it from Start.
func begins(t *testing.T, hooks *etcdlock.Trace, names ...string) context.Context {
	t.Helper()
	e := etcdlock.StartEvent{Name: names[0], Mode: etcdlock.ModeExclusive, Weight: 1}
	if len(names) > 1 {
		e.Names = names
	}
	return hooks.Start(t.Context(), e)
}

// A span begins and ends when what it tells of does, whenever the hooks run.
func TestSpansAreAsLongAsWhatTheyTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exporter, provider := tracing(t)
		hooks := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
		began := time.Now()
		first, second, third := begins(t, hooks, "a"), begins(t, hooks, "a"), begins(t, hooks, "a")
		time.Sleep(time.Minute)
		hooks.Acquired(first, etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: 3 * time.Second})
		hooks.Released(first, etcdlock.ReleasedEvent{Name: "a", Token: 1, Held: 5 * time.Second})
		hooks.Led(first, etcdlock.LedEvent{Name: "a", Token: 1, Held: 4 * time.Second})
		hooks.Acquired(second, etcdlock.AcquiredEvent{Name: "a", Token: 2, Waited: 6 * time.Second})
		hooks.Lost(second, etcdlock.LostEvent{Name: "a", Token: 2, Held: 7 * time.Second,
			Reason: errors.New("because")})
		hooks.GaveUp(third, etcdlock.GaveUpEvent{Name: "a", Waited: 9 * time.Second, Ahead: 1,
			Err: context.Canceled})

		var got []string
		spans := exporter.GetSpans()
		for _, s := range spans {
			got = append(got, fmt.Sprint(s.Name, " ", s.StartTime.Sub(began), "-", s.EndTime.Sub(began)))
		}
		require.Equal(t, []string{
			"etcdlock.wait 0s-3s", "etcdlock.hold 3s-8s", "etcdlock.term 3s-7s",
			"etcdlock.wait 0s-6s", "etcdlock.hold 6s-13s", "etcdlock.wait 0s-9s",
		}, got)
		require.Equal(t, codes.Unset, spans[1].Status.Code)
		require.Equal(t, codes.Error, spans[4].Status.Code)
		require.Equal(t, spans[4].EndTime, spans[4].Events[0].Time)
	})
}

// All spans have one instrumentation scope, with the module's name. They go to the global
// provider unless the caller gives another.
func TestSpansAreOfTheModulesScope(t *testing.T) {
	exporter, provider := tracing(t)
	global := otel.GetTracerProvider()
	otel.SetTracerProvider(provider)
	defer otel.SetTracerProvider(global)
	hooks := etcdlockotel.NewTrace()
	hooks.Acquired(begins(t, hooks, "a"),
		etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second})
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
		ctx := begins(t, hooks, "a")
		if row.lost {
			hooks.Acquired(ctx,
				etcdlock.AcquiredEvent{Name: "a", Token: 1, Mode: etcdlock.ModeExclusive, Weight: 1})
			exporter.Reset()
			hooks.Lost(ctx, etcdlock.LostEvent{Name: "a", Token: 1, Held: time.Second, Reason: row.err})
		} else {
			hooks.GaveUp(ctx, etcdlock.GaveUpEvent{Name: "a", Waited: time.Second, Ahead: 1, Err: row.err})
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

// Each term of a leader has a span below that of its hold. Its error.type is that of the metrics.
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
		{fmt.Errorf("done: %w", etcdlock.ErrStopLeading), "", ""},
		{errors.Join(etcdlock.ErrStopLeading, lost), "expired", "stop leading"},
		{context.DeadlineExceeded, "_OTHER", "context deadline exceeded"},
		{errors.New("etcdlock: lead: panicked\n\nstack"), "_OTHER", "lead: panicked"},
		{&etcdlock.RecalledError{Name: "a"}, "recalled", `lock "a" recalled (token 0)`},
		{errors.Join(context.Canceled, lost), "expired", "context canceled"},
		{lost, "expired", `lock "a" lost (token 0): not renewed in time`},
		{etcdlock.ErrUnconfirmed, "_OTHER", "release not confirmed"},
	} {
		exporter, provider := tracing(t)
		reader, metrics := measuring(t)
		hooks := etcdlock.JoinTraces(etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider)),
			metrics)
		ctx := begins(t, hooks, "a")
		hooks.Acquired(ctx,
			etcdlock.AcquiredEvent{Name: "a", Token: 7, Mode: etcdlock.ModeExclusive, Weight: 1})
		hooks.Released(ctx, etcdlock.ReleasedEvent{Name: "a", Token: 7, Held: time.Second})
		hooks.Led(ctx, etcdlock.LedEvent{Name: "a", Token: 7, Held: time.Second, Err: row.err})
		spans := exporter.GetSpans()
		require.Len(t, spans, 3)
		hold, span := spans[1], spans[2]
		require.Equal(t, "etcdlock.term", span.Name)
		require.Equal(t, hold.SpanContext.SpanID(), span.Parent.SpanID())
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

// A function that returns why the context of Lead has ended has not failed, whatever that is.
func TestATermThatEndsWithTheContextOfLeadIsNoError(t *testing.T) {
	exporter, provider := tracing(t)
	hooks := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	why := errors.New("terminated signal received") // as signal.NotifyContext has it
	caller, cancel := context.WithCancelCause(t.Context())
	ctx := hooks.Start(caller, etcdlock.StartEvent{Name: "a"})
	hooks.Acquired(ctx, etcdlock.AcquiredEvent{Name: "a", Token: 7})
	cancel(why)
	hooks.Led(ctx, etcdlock.LedEvent{Name: "a", Token: 7, Err: fmt.Errorf("work: %w", why)})
	hooks.Led(ctx, etcdlock.LedEvent{Name: "a", Token: 7, Err: errors.New("broken")})
	spans := exporter.GetSpans()
	require.Empty(t, spans[1].Status.Description)
	require.Equal(t, "broken", spans[2].Status.Description)
}

// Each hook of a call makes a span or an event, or the test says why not.
func TestEachHookOfACallIsTold(t *testing.T) {
	untold := []string{
		// a hold that was recalled ends as any other, and a wait that lasts too
		"Recalled", "Waiting",
		// of no call, as the rest
		"LeaseGranted", "LeaseRenewed", "RenewalFailed", "LeaseAtRisk", "LeaseReplaced",
		"Unavailable", "SetBack", "CleanupPending", "CleanupDone",
	}
	hooks := reflect.ValueOf(etcdlockotel.NewTrace()).Elem()
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		require.Equal(t, slices.Contains(untold, name), hooks.Field(i).IsNil(), name)
	}
}

// A wait that gives up is a failed span, and the trace of its request says for whom it
// waited.
func TestARequestThatGaveUpTellsWhoHeldTheLock(t *testing.T) {
	exporter, provider := tracing(t)
	client := contract.ClientOf(t, endpoints)
	holder, err := etcdlock.NewMutex(client, "given-up", etcdlock.WithOwner("worker-3"))
	require.NoError(t, err)
	defer holder.Close(context.Background())
	require.NoError(t, holder.Lock(t.Context()))

	told, signals := observer()
	spansOf := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	mu, err := etcdlock.NewMutex(client, "given-up",
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
	require.Regexp(t, `2nd in line, held by worker-3 \(.+:\d+\): context canceled$`,
		spans[0].Status.Description)
	require.Equal(t, "canceled", attributes(spans[0].Attributes)["error.type"])
	require.Equal(t, "request", spans[1].Name)
	require.Len(t, spans[0].Events, 1)
	require.Equal(t, "etcdlock.queued", spans[0].Events[0].Name)
	queued := attributes(spans[0].Events[0].Attributes)
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

// tracedEtcd is an etcd in memory, and the spans of the locks there.
type tracedEtcd struct {
	t        *testing.T
	etcd     *etcdlocktest.Etcd
	recorder *tracetest.SpanRecorder
	provider *sdktrace.TracerProvider
	hooks    *etcdlock.Trace
}

// tracedInVirtualTime runs a test on an etcd in memory that answers in no time. In its end each
// span that began has ended, once the Sessions of the test are closed.
func tracedInVirtualTime(t *testing.T, test func(t *testing.T, w *tracedEtcd)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		recorder := tracetest.NewSpanRecorder()
		provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
		w := &tracedEtcd{t, etcdlocktest.New(t), recorder, provider,
			etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))}
		t.Cleanup(func() { // the Sessions' come first
			synctest.Wait()
			require.NotEmpty(t, recorder.Started())
			require.ElementsMatch(t, ids(recorder.Started()), ids(recorder.Ended()))
		})
		test(t, w)
	})
}

func ids[S sdktrace.ReadOnlySpan](spans []S) (ids []string) {
	for _, s := range spans {
		ids = append(ids, s.Name()+" "+s.SpanContext().SpanID().String())
	}
	return ids
}

func (w *tracedEtcd) session(opts ...etcdlock.SessionOption) *etcdlock.Session {
	w.t.Helper()
	s, err := etcdlock.NewSession(w.etcd.Client(),
		append([]etcdlock.SessionOption{etcdlock.WithTrace(w.hooks)}, opts...)...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

// begun are the spans that have begun so far, with their parents, and the ends of those that are
// over.
func (w *tracedEtcd) begun() (lines []string) {
	names := make(map[trace.SpanID]string)
	for _, s := range w.recorder.Started() {
		names[s.SpanContext().SpanID()] = s.Name()
		line := s.Name()
		if s.Parent().IsValid() {
			line += " in " + names[s.Parent().SpanID()]
		}
		if end := s.EndTime(); !end.IsZero() {
			line += fmt.Sprint(" for ", end.Sub(s.StartTime()))
		}
		lines = append(lines, line)
	}
	return lines
}

// The work of each call is a child of the span of its hold, which goes on as long as that, though
// no hook but Start has run yet: hooks may be blocked.
func TestTheWorkIsAChildOfItsHold(t *testing.T) {
	type fn = func(context.Context) error
	names := []string{"n", "o"}
	for how, do := range map[string]func(context.Context, *etcdlock.Session, fn) error{
		"Do": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			mu, err := s.Mutex("n")
			return errors.Join(err, mu.Do(ctx, fn))
		},
		"TryDo": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			mu, err := s.Mutex("n")
			return errors.Join(err, mu.TryDo(ctx, fn))
		},
		"Lead": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			mu, err := s.Mutex("n")
			err = errors.Join(err, mu.Lead(ctx, func(ctx context.Context) error {
				return errors.Join(fn(ctx), etcdlock.ErrStopLeading)
			}))
			if errors.Is(err, etcdlock.ErrStopLeading) {
				return nil
			}
			return err
		},
		"RDo": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			rw, err := s.RWMutex("n")
			return errors.Join(err, rw.RDo(ctx, fn))
		},
		"RDo beside another": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			rw, err := s.RWMutex("n")
			if err != nil {
				return err
			}
			beside, err := rw.RLock(context.Background())
			if err != nil {
				return err
			}
			defer beside.Unlock(context.Background())
			return rw.RDo(ctx, fn)
		},
		"a key that lingers": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			mu, err := s.Mutex("n", etcdlock.WithLinger(time.Second))
			if err != nil {
				return err
			}
			if err := mu.Do(context.Background(), func(context.Context) error { return nil }); err != nil {
				return err
			}
			return mu.Do(ctx, fn)
		},
		"Semaphore.Do": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			sem, err := s.Semaphore("n", 3)
			return errors.Join(err, sem.Do(ctx, 2, fn))
		},
		"Session.Do": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			return s.Do(ctx, "n", fn)
		},
		"Session.TryDo": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			return s.TryDo(ctx, "n", fn)
		},
		"DoAll": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			return s.DoAll(ctx, names, fn)
		},
		"TryDoAll": func(ctx context.Context, s *etcdlock.Session, fn fn) error {
			return s.TryDoAll(ctx, names, fn)
		},
	} {
		t.Run(how, func(t *testing.T) {
			tracedInVirtualTime(t, func(t *testing.T, w *tracedEtcd) {
				goOn := make(chan struct{})
				blocks := &etcdlock.Trace{LeaseGranted: func(context.Context, etcdlock.LeaseGrantedEvent) {
					<-goOn
				}}
				s := w.session(etcdlock.WithTrace(etcdlock.JoinTraces(blocks, w.hooks)))
				tracer := w.provider.Tracer("test")
				ctx, request := tracer.Start(t.Context(), "request")
				require.NoError(t, do(ctx, s, func(ctx context.Context) error {
					hold, _ := trace.SpanFromContext(ctx).(sdktrace.ReadOnlySpan)
					require.Equal(t, "etcdlock.hold", hold.Name())
					require.Equal(t, request.SpanContext().SpanID(), hold.Parent().SpanID())
					require.True(t, trace.SpanFromContext(ctx).IsRecording())
					_, work := tracer.Start(ctx, "work")
					time.Sleep(2 * time.Second)
					work.End()
					return nil
				}))
				request.End()
				close(goOn)
				synctest.Wait()
				want := []string{
					"request for 2s", "etcdlock.wait in request for 0s", "etcdlock.hold in request for 2s",
					"work in etcdlock.hold for 2s",
				}
				if how == "Lead" {
					want = append(want, "etcdlock.term in etcdlock.hold for 2s")
				}
				require.Equal(t, want, slices.DeleteFunc(w.begun(), func(line string) bool {
					return strings.HasPrefix(line, "etcdlock") && !strings.Contains(line, " in ") // prepares
				}))
			})
		})
	}
}

// A hold that nobody holds on to, a wait that gives up, a loss, the end of a Session: each ends its
// spans. (tracedInVirtualTime looks for those that have not ended.)
func TestEachEndEndsItsSpans(t *testing.T) {
	tracedInVirtualTime(t, func(t *testing.T, w *tracedEtcd) {
		a, b := w.session(), w.session()
		requireSpans := func(want ...string) {
			t.Helper()
			synctest.Wait()
			begun := w.begun()
			require.Equal(t, want, begun[max(0, len(begun)-len(want)):])
		}
		locks := func(s *etcdlock.Session, name string) <-chan error {
			ended := make(chan error, 1)
			go func() {
				_, err := s.Lock(t.Context(), name)
				ended <- err
			}()
			synctest.Wait()
			return ended
		}
		h, err := a.Lock(t.Context(), "n")
		require.NoError(t, err)
		requireSpans("etcdlock.wait for 0s", "etcdlock.hold")
		_, err = b.TryLock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrLocked)
		requireSpans("etcdlock.hold", "etcdlock.wait for 0s")

		in := locks(b, "n")
		requireSpans("etcdlock.wait")
		time.Sleep(3 * time.Second)
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, <-in)
		requireSpans("etcdlock.hold for 3s", "etcdlock.wait for 0s", "etcdlock.wait for 3s",
			"etcdlock.hold")

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = a.LockAll(ctx, "m", "n")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		requireSpans("etcdlock.hold", "etcdlock.wait for 1s")

		time.Sleep(4 * time.Second)
		line, err := etcdlock.Contenders(t.Context(), w.etcd.Client(), "n")
		require.NoError(t, err)
		require.NoError(t, etcdlock.Break(t.Context(), w.etcd.Client(), line[0]))
		requireSpans("etcdlock.hold for 5s", "etcdlock.wait for 1s")

		_, err = a.LockAll(t.Context(), "k", "l", "m")
		require.NoError(t, err)
		in = locks(a, "l")
		requireSpans("etcdlock.wait for 0s", "etcdlock.hold", "etcdlock.wait")
		time.Sleep(2 * time.Second)
		require.NoError(t, a.Close(t.Context()))
		require.ErrorIs(t, <-in, etcdlock.ErrClosed)
		requireSpans("etcdlock.wait for 0s", "etcdlock.hold for 2s", "etcdlock.wait for 2s")
		_, err = a.Lock(t.Context(), "n")
		require.ErrorIs(t, err, etcdlock.ErrClosed)
	})
}

// Many calls at once, whatever becomes of them, leave no span behind.
func TestNoSpanIsLeftBehind(t *testing.T) {
	tracedInVirtualTime(t, func(t *testing.T, w *tracedEtcd) {
		var running sync.WaitGroup
		random := rand.New(rand.NewPCG(1, 2))
		for range 3 {
			s := w.session(etcdlock.WithTTL(5 * time.Second))
			for range 8 {
				seed := random.Uint64()
				running.Go(func() {
					random := rand.New(rand.NewPCG(seed, 0))
					pause := func() { time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond) }
					work := func(context.Context) error { pause(); return nil }
					for range 20 {
						name := fmt.Sprint(random.IntN(2))
						ctx, cancel := context.WithTimeout(t.Context(),
							time.Duration(random.IntN(4000))*time.Millisecond)
						switch random.IntN(5) {
						case 0:
							_ = s.Do(ctx, name, work, etcdlock.WithHandoff(3))
						case 1:
							_ = s.TryDo(ctx, name, work, etcdlock.WithLinger(time.Second))
						case 2:
							_ = s.DoAll(ctx, []string{"0", "1"}, work)
						case 3:
							_, _ = s.TryLock(ctx, name) // until Close
						case 4:
							_ = s.Do(ctx, name, work, etcdlock.WithMaxHold(500*time.Millisecond))
						}
						cancel()
						pause()
					}
				})
			}
			open := time.Duration(random.IntN(20)) * time.Second
			running.Go(func() {
				time.Sleep(open)
				_ = s.Close(context.Background())
			})
		}
		running.Wait()
	})
}

// Several names are one wait and one hold: of the call, not of each name.
func TestSeveralNamesAreOneWaitAndOneHold(t *testing.T) {
	tracedInVirtualTime(t, func(t *testing.T, w *tracedEtcd) {
		a, b := w.session(), w.session()
		first, err := a.Lock(t.Context(), "m")
		require.NoError(t, err)
		go func() {
			time.Sleep(time.Second)
			_ = first.Unlock(context.Background())
		}()
		require.NoError(t, b.DoAll(t.Context(), []string{"m", "n"}, func(context.Context) error {
			return nil
		}))
		synctest.Wait()
		spans := w.recorder.Ended()
		require.Len(t, spans, 4)
		// What the other Session tells of its Unlock may come before or after these two.
		spans = slices.DeleteFunc(spans, func(s sdktrace.ReadOnlySpan) bool {
			return attributes(s.Attributes())["etcdlock.names"] == nil
		})
		require.Len(t, spans, 2)
		wait, hold := attributes(spans[0].Attributes()), attributes(spans[1].Attributes())
		require.Positive(t, hold["etcdlock.token"])
		want := map[string]any{
			"etcdlock.name": "m", "etcdlock.names": []string{"m", "n"},
			"etcdlock.token": hold["etcdlock.token"],
		}
		require.Equal(t, want, hold)
		want["etcdlock.acquired"], want["etcdlock.ahead"] = true, int64(1)
		require.Equal(t, want, wait)
	})
}

// A hold may be over before the goroutine of its call runs on: the hooks have its spans begin and
// end. The work is below it all the same.
func TestAHoldThatIsOverAtOnceHasOneSpan(t *testing.T) {
	exporter, provider := tracing(t)
	hooks := etcdlockotel.NewTrace(etcdlockotel.WithTracerProvider(provider))
	ctx := begins(t, hooks, "a")
	hooks.Acquired(ctx, etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second})
	hooks.Lost(ctx, etcdlock.LostEvent{Name: "a", Token: 1, Reason: etcdlock.ErrExpired})
	work := ctx.Value(events.CallKey{}).(events.Call).Holds(ctx, time.Second)
	spans := exporter.GetSpans()
	require.Len(t, spans, 2)
	require.Equal(t, "etcdlock.hold", spans[1].Name)
	require.Equal(t, spans[1].SpanContext, trace.SpanContextFromContext(work))
}

// A call inside the work of another one has its own spans, below it. If its Trace makes none, what
// its caller has stays the parent.
func TestACallInsideAHoldHasItsOwnSpans(t *testing.T) {
	tracedInVirtualTime(t, func(t *testing.T, w *tracedEtcd) {
		own := false
		other := w.session(etcdlock.WithTrace(&etcdlock.Trace{
			Start: func(ctx context.Context, _ etcdlock.StartEvent) context.Context {
				own = true
				return ctx
			},
		}))
		s, tracer := w.session(), w.provider.Tracer("test")
		require.NoError(t, s.Do(t.Context(), "a", func(ctx context.Context) error {
			ctx, work := tracer.Start(ctx, "work")
			defer work.End()
			return errors.Join(
				s.Do(ctx, "b", func(ctx context.Context) error {
					_, inner := tracer.Start(ctx, "inner")
					inner.End()
					return nil
				}),
				other.Do(ctx, "c", func(ctx context.Context) error {
					require.Equal(t, work, trace.SpanFromContext(ctx))
					return nil
				}),
			)
		}))
		require.True(t, own)
		synctest.Wait()
		require.Equal(t, []string{
			"etcdlock.wait for 0s", "etcdlock.hold for 0s", "work in etcdlock.hold for 0s",
			"etcdlock.wait in work for 0s", "etcdlock.hold in work for 0s", "inner in etcdlock.hold for 0s",
		}, w.begun())
	})
}

// documentedAttributes returns the attributes of a section of the package comment.
func documentedAttributes(t *testing.T, section string) (names []string) {
	t.Helper()
	for _, line := range regexp.MustCompile(`(?m)^//\t(\S+\.\S+)\s+(?:string|strings|int|bool) `).
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
	held, failed := begins(t, hooks, "a"), begins(t, hooks, "a", "b")
	hooks.Acquired(held, etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: time.Second, Ahead: 1})
	for _, name := range []string{"a", "b"} {
		hooks.GaveUp(failed, etcdlock.GaveUpEvent{Name: name, Waited: time.Second, Ahead: 1,
			Err: context.Canceled})
	}
	hooks.Lost(held,
		etcdlock.LostEvent{Name: "a", Token: 1, Held: time.Second, Reason: etcdlock.ErrExpired})
	var there []string
	for _, span := range exporter.GetSpans() {
		for _, a := range span.Attributes {
			there = append(there, string(a.Key))
		}
	}
	slices.Sort(there)
	require.Equal(t, documented, slices.Compact(there))
}
