package etcdlockotel_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// kind: "orders/42" is one of the orders.
func kind(name string) string {
	kind, _, _ := strings.Cut(name, "/")
	return kind
}

// measuring returns hooks, and a reader of what they record.
func measuring(
	t *testing.T, opts ...etcdlockotel.MetricsOption,
) (*sdkmetric.ManualReader, *etcdlock.Trace) {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	provider := sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))
	hooks, err := etcdlockotel.NewMetrics(append(opts, etcdlockotel.WithMeterProvider(provider))...)
	require.NoError(t, err)
	return reader, hooks
}

// recorded returns the points of all instruments, by name and attributes: the value of a
// counter, the count and the sum of a histogram.
func recorded(t *testing.T, reader *sdkmetric.ManualReader) map[string]string {
	t.Helper()
	points := make(map[string]string)
	key := func(m metricdata.Metrics, of attribute.Set) string {
		var text []string
		for _, a := range of.ToSlice() {
			text = append(text, fmt.Sprintf("%s=%s",
				strings.TrimPrefix(string(a.Key), "etcdlock."), a.Value.String()))
		}
		return strings.TrimSuffix(fmt.Sprintf("%s %s", m.Name, strings.Join(text, " ")), " ")
	}
	for _, m := range instruments(t, reader) {
		switch data := m.Data.(type) {
		case metricdata.Sum[int64]:
			for _, p := range data.DataPoints {
				points[key(m, p.Attributes)] = fmt.Sprint(p.Value)
			}
		case metricdata.Histogram[float64]:
			for _, p := range data.DataPoints {
				points[key(m, p.Attributes)] = fmt.Sprintf("%d, %.0f s", p.Count, p.Sum)
			}
		case metricdata.Gauge[float64]:
			for _, p := range data.DataPoints {
				points[key(m, p.Attributes)] = fmt.Sprintf("%.0f s", p.Value)
			}
		default:
			t.Fatalf("%s is a %T", m.Name, data)
		}
	}
	return points
}

// instruments returns all instruments that have recorded something.
func instruments(t *testing.T, reader *sdkmetric.ManualReader) []metricdata.Metrics {
	t.Helper()
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(context.Background(), &all))
	require.Len(t, all.ScopeMetrics, 1)
	return all.ScopeMetrics[0].Metrics
}

// measured is an etcd in memory, and what the hooks record about the locks there.
type measured struct {
	t      *testing.T
	etcd   *etcdlocktest.Etcd
	reader *sdkmetric.ManualReader
	hooks  *etcdlock.Trace
}

// inVirtualTime runs a test on an etcd in memory that answers in no time.
func inVirtualTime(t *testing.T, test func(t *testing.T, m *measured)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		reader, hooks := measuring(t, etcdlockotel.WithLockKind(kind))
		test(t, &measured{t, etcdlocktest.New(t), reader, hooks})
	})
}

func (m *measured) session(client *clientv3.Client) *etcdlock.Session {
	m.t.Helper()
	s, err := etcdlock.NewSession(client, etcdlock.WithTrace(m.hooks))
	require.NoError(m.t, err)
	m.t.Cleanup(func() { _ = s.Close(context.Background()) })
	return s
}

func (m *measured) mutex(
	s *etcdlock.Session, name string, opts ...etcdlock.Option,
) *etcdlock.Mutex {
	m.t.Helper()
	mu, err := s.Mutex(name, opts...)
	require.NoError(m.t, err)
	return mu
}

// begins begins to wait for mu. The hooks have run when it returns.
func (m *measured) begins(ctx context.Context, mu *etcdlock.Mutex) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- mu.Lock(ctx) }()
	synctest.Wait()
	return ended
}

// recall asks the holder of name to give the lock back.
func (m *measured) recall(name string, grace time.Duration) {
	m.t.Helper()
	ctx, client := context.Background(), m.etcd.Client()
	line, err := etcdlock.Contenders(ctx, client, name)
	require.NoError(m.t, err)
	require.NotEmpty(m.t, line)
	require.NoError(m.t, etcdlock.Recall(ctx, client, line[0], etcdlock.RecallRequest{Grace: grace}))
	synctest.Wait()
}

// has requires these points, and no other point of the instruments whose names begin so.
func (m *measured) has(begin string, want map[string]string) {
	m.t.Helper()
	synctest.Wait()
	got := make(map[string]string)
	for point, value := range recorded(m.t, m.reader) {
		if after, ok := strings.CutPrefix(point, begin); ok {
			got[after] = value
		}
	}
	require.Equal(m.t, want, got)
}

// A call waits behind a holder, and gets in.
func TestAHandOverIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		first := m.mutex(m.session(m.etcd.Client()), "orders/1")
		second := m.mutex(m.session(m.etcd.Client()), "orders/1")
		require.NoError(t, first.Lock(t.Context()))
		time.Sleep(2 * time.Second)
		waits := m.begins(t.Context(), second)
		m.has("etcdlock.wait.queued ", map[string]string{"kind=orders": "1"})
		m.has("etcdlock.hold.active ", map[string]string{"kind=orders": "1"})
		time.Sleep(5 * time.Second)
		require.NoError(t, first.Unlock(t.Context()))
		require.NoError(t, <-waits)
		m.has("etcdlock.wait.queued ", map[string]string{"kind=orders": "0"})
		m.has("etcdlock.hold.active ", map[string]string{"kind=orders": "1"})
		time.Sleep(3 * time.Second)
		require.NoError(t, second.Unlock(t.Context()))

		m.has("etcdlock.wait", map[string]string{
			".duration acquired=true contended=false kind=orders": "1, 0 s",
			".duration acquired=true contended=true kind=orders":  "1, 5 s",
			".queued kind=orders":                                 "0",
		})
		m.has("etcdlock.hold", map[string]string{
			".duration kind=orders": "2, 10 s",
			".active kind=orders":   "0",

			".lost error.type=_OTHER kind=orders":   "0",
			".lost error.type=expired kind=orders":  "0",
			".lost error.type=max_hold kind=orders": "0",
			".lost error.type=taken kind=orders":    "0",
			".recalled kind=orders":                 "0",
		})
	})
}

// A call that gives up is measured by its reason. It is no error that TryLock found others.
func TestEachCallThatGivesUpIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		holder := m.mutex(m.session(m.etcd.Client()), "orders/1")
		require.NoError(t, holder.Lock(t.Context()))
		other := m.session(m.etcd.Client())
		mu := m.mutex(other, "orders/1")

		require.ErrorIs(t, mu.TryLock(t.Context()), etcdlock.ErrLocked)
		soon, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		require.ErrorIs(t, mu.Lock(soon), context.DeadlineExceeded)
		ctx, giveUp := context.WithCancel(t.Context())
		canceled := m.begins(ctx, mu)
		time.Sleep(3 * time.Second)
		giveUp()
		require.ErrorIs(t, <-canceled, context.Canceled)
		closed := m.begins(t.Context(), mu)
		time.Sleep(4 * time.Second)
		require.NoError(t, other.Close(t.Context()))
		require.ErrorIs(t, <-closed, etcdlock.ErrClosed)
		require.NoError(t, holder.Unlock(t.Context()))

		m.has("etcdlock.wait", map[string]string{
			".duration acquired=true contended=false kind=orders":                     "1, 0 s",
			".duration acquired=false contended=false kind=orders":                    "1, 0 s",
			".duration error.type=timeout acquired=false contended=true kind=orders":  "1, 2 s",
			".duration error.type=canceled acquired=false contended=true kind=orders": "1, 3 s",
			".duration error.type=closed acquired=false contended=true kind=orders":   "1, 4 s",
			".queued kind=orders": "0",
		})
		m.has("etcdlock.removal", map[string]string{".begun": "2", ".done": "2"})
	})
}

// Each loss adds one to hold.lost, and the hold's end in hold.duration has the same
// error.type.
func TestEachLossIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		s := m.session(m.etcd.Client())
		lost := func(mu *etcdlock.Mutex, by func()) {
			t.Helper()
			require.NoError(t, mu.Lock(t.Context()))
			time.Sleep(time.Second)
			by()
			<-mu.Context(t.Context()).Done()
			require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
		}
		taken := m.mutex(s, "orders/1")
		lost(taken, func() { m.etcd.Delete(taken.Key()) })
		lost(m.mutex(s, "orders/1", etcdlock.WithMaxHold(4*time.Second)), func() {})
		expired := m.mutex(s, "leader/1")
		lost(expired, func() {
			thaw := m.etcd.Freeze()
			<-expired.Context(t.Context()).Done()
			thaw()
		})

		m.has("etcdlock.hold", map[string]string{
			".duration error.type=taken kind=orders":    "1, 1 s",
			".duration error.type=max_hold kind=orders": "1, 4 s",
			".duration error.type=expired kind=leader":  "1, 13 s",
			".active kind=orders":                       "0",
			".active kind=leader":                       "0",

			".lost error.type=_OTHER kind=orders":   "0",
			".lost error.type=expired kind=orders":  "0",
			".lost error.type=max_hold kind=orders": "1",
			".lost error.type=taken kind=orders":    "1",
			".recalled kind=orders":                 "0",
			".recalled kind=leader":                 "0",
			".lost error.type=_OTHER kind=leader":   "0",
			".lost error.type=expired kind=leader":  "1",
			".lost error.type=max_hold kind=leader": "0",
			".lost error.type=taken kind=leader":    "0",
		})
	})
}

// A hold that shares its lock counts by its mode, beside all holds, and its permits add up.
func TestReadersAndPermitsAreMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		s := m.session(m.etcd.Client())
		rw, err := s.RWMutex("rw/1")
		require.NoError(t, err)
		sem, err := s.Semaphore("sem/1", 5)
		require.NoError(t, err)
		nothing := func(context.Context) error { return nil }
		require.NoError(t, rw.Do(t.Context(), nothing))
		require.NoError(t, rw.RDo(t.Context(), nothing))
		require.NoError(t, rw.RDo(t.Context(), nothing))
		for _, permits := range []int{5, 1, 2} {
			require.NoError(t, sem.Do(t.Context(), permits, nothing))
		}
		m.has("etcdlock.hold.shared ", map[string]string{
			"kind=rw mode=read": "2", "kind=sem mode=permit": "3",
		})
		m.has("etcdlock.hold.permits ", map[string]string{"kind=sem": "8"})
		m.has("etcdlock.hold.duration ", map[string]string{"kind=rw": "3, 0 s", "kind=sem": "3, 0 s"})
	})
}

// A recall counts when the hold has noticed it. A recalled hold that is unlocked is not
// lost, however late the Unlock comes.
func TestARecallIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		mu := m.mutex(m.session(m.etcd.Client()), "orders/1", etcdlock.WithRecall(time.Minute))
		require.NoError(t, mu.Lock(t.Context()))
		hold := mu.Context(t.Context())
		m.has("etcdlock.hold.recalled ", map[string]string{"kind=orders": "0"})
		time.Sleep(2 * time.Second) // its key is watched from then on
		m.recall("orders/1", 4*time.Second)
		m.has("etcdlock.hold.recalled ", map[string]string{"kind=orders": "1"})
		m.recall("orders/1", 2*time.Second) // sooner
		m.recall("orders/1", 3*time.Second) // changes nothing
		m.has("etcdlock.hold.recalled ", map[string]string{"kind=orders": "2"})
		<-hold.Done()
		require.ErrorIs(t, context.Cause(hold), etcdlock.ErrRecalled)
		m.has("etcdlock.hold.active ", map[string]string{"kind=orders": "1"})
		require.NoError(t, mu.Unlock(t.Context()))
		m.has("etcdlock.hold", map[string]string{
			".duration kind=orders": "1, 4 s",
			".active kind=orders":   "0",
			".recalled kind=orders": "2",

			".lost error.type=_OTHER kind=orders":   "0",
			".lost error.type=expired kind=orders":  "0",
			".lost error.type=max_hold kind=orders": "0",
			".lost error.type=taken kind=orders":    "0",
		})
	})
}

// A term of leadership is measured by how it ended.
func TestATermOfLeadershipIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		mu := m.mutex(m.session(m.etcd.Client()), "leader/1", etcdlock.WithRecall(time.Minute))
		ctx, end := context.WithCancelCause(t.Context())
		terms := []func(ctx context.Context) error{
			func(context.Context) error { return nil },
			func(context.Context) error { panic("no leader") },
			func(ctx context.Context) error { m.etcd.Delete(mu.Key()); <-ctx.Done(); return ctx.Err() },
			func(ctx context.Context) error {
				m.recall("leader/1", 2*time.Second)
				<-ctx.Done()
				return context.Cause(ctx)
			},
			func(ctx context.Context) error {
				m.recall("leader/1", 2*time.Second)
				<-ctx.Done()
				return ctx.Err()
			},
			func(ctx context.Context) error {
				end(errors.New("terminated signal received")) // as signal.NotifyContext does
				<-ctx.Done()
				return context.Cause(ctx)
			},
		}
		err := mu.Lead(ctx, func(ctx context.Context) error {
			term := terms[0]
			terms = terms[1:]
			time.Sleep(2 * time.Second)
			return term(ctx)
		})
		require.ErrorIs(t, err, context.Canceled)
		m.has("etcdlock.term", map[string]string{
			".duration kind=leader":                     "3, 8 s", // nil, recalled, canceled
			".duration error.type=_OTHER kind=leader":   "1, 2 s",
			".duration error.type=taken kind=leader":    "1, 2 s",
			".duration error.type=recalled kind=leader": "1, 4 s",
		})
	})
}

// The process has renewals, and an etcd that is silent, away, or set back.
func TestWhatHappensToLeasesAndEtcdIsMeasured(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, m *measured) {
		is := func(instrument, want string) {
			t.Helper()
			synctest.Wait()
			require.Regexp(t, "^("+want+")$", recorded(t, m.reader)["etcdlock."+instrument], instrument)
		}
		some := `[1-9]\d*`
		m.has("etcdlock.", map[string]string{ // from the start
			"lease.granted": "0", "lease.replaced": "0",
			"lease.renewal.failed": "0", "lease.renewal.at_risk": "0",
			"etcd.unavailable": "0", "etcd.set_back": "0", "removal.begun": "0", "removal.done": "0",
		})
		s := m.session(m.etcd.Client())
		mu := m.mutex(s, "leader/1")
		require.NoError(t, mu.Lock(t.Context()))
		is("lease.granted", "1")
		time.Sleep(time.Minute)
		is("lease.renewal.duration", some+", 0 s")
		is("lease.renewal.failed", "0")

		thaw := m.etcd.Freeze()
		ctx, giveUp := context.WithTimeout(t.Context(), 20*time.Second)
		defer giveUp()
		require.ErrorIs(t, m.mutex(s, "leader/2").Lock(ctx), etcdlock.ErrUnavailable)
		m.has("etcdlock.wait.duration error.type=unavailable ", map[string]string{
			"acquired=false contended=false kind=leader": "1, 20 s",
		})
		is("etcd.unavailable", "2") // after 2 and 12 s
		is("lease.renewal.failed", some)
		is("lease.renewal.at_risk", some)
		is("lease.replaced", "1")
		is("removal.begun", some)
		is("removal.done", "0")
		thaw()
		time.Sleep(time.Minute)
		begun := recorded(t, m.reader)["etcdlock.removal.begun"]
		is("removal.done", begun)
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)

		require.NoError(t, mu.Lock(t.Context()))
		is("lease.granted", "2")
		is("etcd.set_back", "0")
		m.etcd.SetBack()
		<-mu.Context(t.Context()).Done()
		require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)
		synctest.Wait() // the hold ended with its lease, and what follows of the answer came later
		is("etcd.set_back", "1")
	})
}

// All instruments have the module's scope and come from the global provider, unless the
// caller gives another.
func TestInstrumentsAreOfTheModulesScope(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	global := otel.GetMeterProvider()
	otel.SetMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)))
	defer otel.SetMeterProvider(global)
	_, err := etcdlockotel.NewMetrics()
	require.NoError(t, err)
	var all metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &all))
	scope := all.ScopeMetrics[0].Scope
	require.Equal(t, etcdlockotel.ScopeName, scope.Name)
	require.Equal(t, etcdlockotel.Version(), scope.Version)
	require.Equal(t, semconv.SchemaURL, scope.SchemaURL)
}

// If a provider refuses an instrument, that is an error.
func TestARefusedInstrumentIsAnError(t *testing.T) {
	unfit := sdkmetric.NewView(sdkmetric.Instrument{Name: "etcdlock.hold.active"},
		sdkmetric.Stream{Aggregation: sdkmetric.AggregationLastValue{}})
	hooks, err := etcdlockotel.NewMetrics(etcdlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(
		sdkmetric.WithReader(sdkmetric.NewManualReader()), sdkmetric.WithView(unfit))))
	require.ErrorContains(t, err, "etcdlockotel: ")
	require.ErrorContains(t, err, "incompatible aggregation")
	require.Nil(t, hooks)
}

// Each hook is measured, but for Start: of the call another hook tells how it ends.
func TestEachHookIsMeasured(t *testing.T) {
	_, trace := measuring(t)
	hooks := reflect.ValueOf(trace).Elem()
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		require.Equal(t, name == "Start", hooks.Field(i).IsNil(), name)
	}
}

// The longest wait of a kind is measured while it lasts.
func TestTheLongestWaitIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, hooks := measuring(t, etcdlockotel.WithLockKind(kind))
		is := func(want string) {
			t.Helper()
			require.Equal(t, want, recorded(t, reader)["etcdlock.wait.longest kind=orders"])
		}
		hooks.Waiting(t.Context(), etcdlock.WaitingEvent{Name: "orders/1", Waited: 30 * time.Second})
		hooks.Waiting(t.Context(), etcdlock.WaitingEvent{Name: "orders/2", Waited: 30 * time.Second})
		time.Sleep(10 * time.Second)
		is("40 s")
		for range 2 {
			hooks.GaveUp(t.Context(), etcdlock.GaveUpEvent{Name: "orders/1", Waited: 40 * time.Second})
		}
		is("0 s")
	})
}

// Each hook without a call adds to its own counter, and to no other.
func TestWhatHasNoCallHasItsCounter(t *testing.T) {
	for counter, tell := range map[string]func(*etcdlock.Trace){
		"lease.granted": func(h *etcdlock.Trace) {
			h.LeaseGranted(context.Background(), etcdlock.LeaseGrantedEvent{Lease: 1, TTL: time.Second})
		},
		"lease.replaced": func(h *etcdlock.Trace) {
			h.LeaseReplaced(context.Background(),
				etcdlock.LeaseReplacedEvent{Old: 1, Reason: etcdlock.ErrExpired})
		},
		"lease.renewal.failed": func(h *etcdlock.Trace) {
			h.RenewalFailed(context.Background(),
				etcdlock.RenewalFailedEvent{Lease: 1, Err: etcdlock.ErrUnavailable})
		},
		"lease.renewal.at_risk": func(h *etcdlock.Trace) {
			h.LeaseAtRisk(context.Background(), etcdlock.LeaseAtRiskEvent{Lease: 1, Remaining: time.Second})
		},
		"etcd.unavailable": func(h *etcdlock.Trace) {
			h.Unavailable(context.Background(), etcdlock.UnavailableEvent{Since: time.Second})
		},
		"etcd.set_back": func(h *etcdlock.Trace) {
			h.SetBack(context.Background(), etcdlock.SetBackEvent{Known: 2, Revision: 1})
		},
		"removal.begun": func(h *etcdlock.Trace) {
			h.CleanupPending(context.Background(), etcdlock.CleanupPendingEvent{Key: "key"})
		},
		"removal.done": func(h *etcdlock.Trace) {
			h.CleanupDone(context.Background(), etcdlock.CleanupDoneEvent{Key: "key"})
		},
	} {
		reader, hooks := measuring(t)
		want := recorded(t, reader)
		require.Equal(t, "0", want["etcdlock."+counter])
		tell(hooks)
		want["etcdlock."+counter] = "1"
		require.Equal(t, want, recorded(t, reader))
	}
}

// everything returns a reader of instruments that have all recorded something.
func everything(t *testing.T) *sdkmetric.ManualReader {
	t.Helper()
	reader, hooks := measuring(t, etcdlockotel.WithLockKind(kind))
	for i := range 100 {
		name := fmt.Sprintf("orders/%d", i)
		hooks.Queued(t.Context(),
			etcdlock.QueuedEvent{Name: name, Ahead: 1, Holder: etcdlock.Contender{}})
		hooks.GaveUp(t.Context(), etcdlock.GaveUpEvent{Name: name, Waited: time.Second, Ahead: 1,
			Err: context.Canceled})
		hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: name, Token: 1, Waited: time.Second,
			Mode: etcdlock.ModePermit, Weight: 2})
		hooks.Lost(t.Context(), etcdlock.LostEvent{Name: name, Token: 1, Held: time.Second,
			Reason: etcdlock.ErrExpired})
		hooks.Led(t.Context(), etcdlock.LedEvent{Name: name, Token: 1, Held: time.Second,
			Err: etcdlock.ErrRecalled})
	}
	hooks.Waiting(t.Context(), etcdlock.WaitingEvent{Name: "orders/1", Waited: 30 * time.Second})
	hooks.LeaseRenewed(context.Background(),
		etcdlock.LeaseRenewedEvent{Lease: 1, RoundTrip: time.Second})
	return reader
}

// Names and units are as OpenTelemetry requires, and those of the package comment.
func TestThePackageCommentHasEachInstrument(t *testing.T) {
	line := regexp.MustCompile(
		`(?m)^//\t(etcdlock\.\S+)\s+(histogram|updowncounter|counter|gauge)\s+(\S+) `)
	var documented, there []string
	for _, found := range line.FindAllStringSubmatch(packageComment(t, "Metrics"), -1) {
		documented = append(documented, strings.Join(found[1:], " "))
	}
	for _, m := range instruments(t, everything(t)) {
		kind, unit := "histogram", `s`
		if _, ok := m.Data.(metricdata.Gauge[float64]); ok {
			kind = "gauge"
		}
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			kind, unit = "updowncounter", `\{[a-z_]+\}`
			if sum.IsMonotonic {
				kind = "counter"
			}
		}
		require.Regexp(t, `^etcdlock(\.[a-z]+(_[a-z]+)*){2,3}$`, m.Name)
		require.Regexp(t, "^"+unit+"$", m.Unit, m.Name)
		require.Regexp(t, `^[A-Z].*\.$`, m.Description, m.Name)
		there = append(there, strings.Join([]string{m.Name, kind, m.Unit}, " "))
	}
	require.ElementsMatch(t, documented, there)
}

// However many names there are, each instrument has only a few points. Their attributes are
// those of the package comment.
func TestThePointsAreFewWhateverTheNames(t *testing.T) {
	reader := everything(t)
	require.LessOrEqual(t, len(recorded(t, reader)), 23)
	keys := make(map[string]bool)
	for point, value := range recorded(t, reader) {
		for _, attribute := range strings.Fields(point)[1:] {
			key, _, _ := strings.Cut(attribute, "=")
			keys[key] = true
		}
		require.NotContains(t, point, "/", value)
	}
	for _, documented := range documentedAttributes(t, "Metrics") {
		short := strings.TrimPrefix(documented, "etcdlock.")
		require.True(t, keys[short], documented)
		delete(keys, short)
	}
	require.Empty(t, keys)
}

// Without a kind there is no attribute for it.
func TestAKindIsLeftOutIfThereIsNone(t *testing.T) {
	for _, opts := range [][]etcdlockotel.MetricsOption{
		nil,
		{etcdlockotel.WithLockKind(func(string) string { return "" })},
		{etcdlockotel.WithLockKind(nil)},
	} {
		reader, hooks := measuring(t, opts...)
		hooks.Acquired(t.Context(),
			etcdlock.AcquiredEvent{Name: "orders/1", Token: 1, Waited: time.Second})
		require.Equal(t, "1", recorded(t, reader)["etcdlock.hold.active"])
	}
}

// A kind that cuts a name within a character is valid UTF-8 all the same: exporters by OTLP refuse
// all that they are to send if one text in it is not.
func TestAKindMayCutACharacter(t *testing.T) {
	kind := func(name string) string { return name[:4] }
	reader, hooks := measuring(t, etcdlockotel.WithLockKind(kind))
	hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "日本", Token: 1})
	require.Equal(t, "1", recorded(t, reader)["etcdlock.hold.active kind=日�"])
}

// A measurement of a request leads to the request's trace. The 0 before the first loss does
// not.
func TestExemplarsLeadToTheRequest(t *testing.T) {
	reader, hooks := measuring(t)
	ctx, request := sdktrace.NewTracerProvider().Tracer("test").Start(t.Context(), "request")
	defer request.End()
	exemplars := func() map[string]int {
		n := make(map[string]int)
		count := func(name string, trace []byte) {
			id := request.SpanContext().TraceID()
			require.Equal(t, id[:], trace, name)
			n[name]++
		}
		for _, m := range instruments(t, reader) {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					for _, e := range p.Exemplars {
						count(m.Name, e.TraceID)
					}
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					for _, e := range p.Exemplars {
						count(m.Name, e.TraceID)
					}
				}
			}
		}
		return n
	}
	hooks.Acquired(ctx, etcdlock.AcquiredEvent{Name: "a", Token: 1, Mode: etcdlock.ModePermit,
		Weight: 2, Waited: time.Second})
	require.Equal(t, map[string]int{
		"etcdlock.wait.duration": 1, "etcdlock.hold.active": 1, "etcdlock.hold.shared": 1,
		"etcdlock.hold.permits": 1,
	}, exemplars())
	hooks.Recalled(ctx, etcdlock.RecalledEvent{Name: "a", Token: 1})
	require.Equal(t, 1, exemplars()["etcdlock.hold.recalled"])
	hooks.Lost(ctx, etcdlock.LostEvent{Name: "a", Token: 1, Held: 2 * time.Second,
		Reason: etcdlock.ErrExpired})
	got := exemplars()
	require.Equal(t, 1, got["etcdlock.hold.lost"])
	require.Equal(t, 1, got["etcdlock.hold.duration"])
}

// The buckets have the advised boundaries. Upper bounds are inclusive.
func TestDurationsGoToTheirBuckets(t *testing.T) {
	reader, hooks := measuring(t)
	for _, lasted := range []time.Duration{
		time.Millisecond, 2 * time.Millisecond, 4 * time.Second, 10 * time.Minute,
	} {
		hooks.Acquired(t.Context(), etcdlock.AcquiredEvent{Name: "a", Token: 1, Waited: lasted})
		hooks.Released(t.Context(), etcdlock.ReleasedEvent{Name: "a", Token: 1, Held: lasted})
		hooks.Led(t.Context(), etcdlock.LedEvent{Name: "a", Token: 1, Held: lasted})
		hooks.LeaseRenewed(context.Background(), etcdlock.LeaseRenewedEvent{Lease: 1, RoundTrip: lasted})
	}
	histograms := 0
	for _, m := range instruments(t, reader) {
		if data, ok := m.Data.(metricdata.Histogram[float64]); ok {
			histograms++
			p := data.DataPoints[0]
			require.Equal(t, []float64{
				0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384, 65.536, 262.144,
			}, p.Bounds, m.Name)
			require.Equal(t, []uint64{1, 1, 0, 0, 0, 0, 1, 0, 0, 0, 1}, p.BucketCounts, m.Name)
			require.InDelta(t, 604.003, p.Sum, 1e-9, m.Name)
		}
	}
	require.Equal(t, 4, histograms)
}
