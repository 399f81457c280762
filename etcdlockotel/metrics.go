package etcdlockotel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/events"
)

// The attributes of metrics, besides error.type and etcdlock.acquired, which spans have too.
const (
	kindKey      = attribute.Key("etcdlock.kind")
	contendedKey = attribute.Key("etcdlock.contended")
	modeKey      = attribute.Key("etcdlock.mode")
)

// boundaries of the buckets, in seconds: from one request to etcd (1 ms) to about four minutes,
// as etcdlockprom has them. They are advice: a View of the SDK sets others.
var boundaries = []float64{
	0.001, 0.004, 0.016, 0.064, 0.256, 1.024, 4.096, 16.384, 65.536, 262.144,
}

// lossTypes are the values that whyLost returns.
var lossTypes = []string{"expired", "taken", "max_hold", semconv.ErrorTypeOther.Value.AsString()}

// A MetricsOption is an option of [NewMetrics].
type MetricsOption func(*metricsOptions)

type metricsOptions struct {
	provider metric.MeterProvider
	kind     func(name string) string
}

// WithMeterProvider sets who makes the instruments. The default is the global one, of package otel.
// Set it before: what is recorded until then is dropped.
func WithMeterProvider(provider metric.MeterProvider) MetricsOption {
	return func(o *metricsOptions) { o.provider = provider }
}

// WithLockKind derives the attribute etcdlock.kind from a lock's name. Each value that kind returns
// makes up to forty points that stay until the process ends, so there must be few: return the kind
// of the lock ("orders"), not its name ("orders/42"), unless you have few names. kind must always
// return the same for a name. If it returns "", or without this option, the attribute is left out.
// Several hooks may call kind at once.
func WithLockKind(kind func(name string) string) MetricsOption {
	return func(o *metricsOptions) { o.kind = kind }
}

// NewMetrics returns hooks for [etcdlock.WithTrace] that record metrics. They keep no
// state, and serve any number of Sessions and Mutexes of a process at once. Give them to
// NewMutex or NewSession: events of leases and etcd go to the Trace of whatever has the lease,
// and the Mutexes of a Session inherit its Trace. [etcdlock.JoinTraces] combines them with
// those of [NewTrace].
//
// The error is the MeterProvider's, if it refuses an instrument: because a View does not
// fit it, say.
func NewMetrics(opts ...MetricsOption) (*etcdlock.Trace, error) {
	o := metricsOptions{provider: otel.GetMeterProvider()}
	for _, opt := range opts {
		opt(&o)
	}
	i, err := newInstruments(o)
	if err != nil {
		return nil, fmt.Errorf("etcdlockotel: %w", err)
	}
	return i.trace(), nil
}

// instruments are those of the package comment, in its order.
type instruments struct {
	kind func(name string) string // may be nil

	wait    metric.Float64Histogram
	queued  metric.Int64UpDownCounter
	longest events.Longest
	hold    metric.Float64Histogram
	active  metric.Int64UpDownCounter
	lost    metric.Int64Counter

	shared   metric.Int64Counter
	permits  metric.Int64Counter
	recalled metric.Int64Counter
	term     metric.Float64Histogram

	renewal        metric.Float64Histogram
	renewalsFailed metric.Int64Counter
	atRisk         metric.Int64Counter
	granted        metric.Int64Counter
	replaced       metric.Int64Counter
	unavailable    metric.Int64Counter
	setBack        metric.Int64Counter
	removalsBegun  metric.Int64Counter
	removalsDone   metric.Int64Counter
}

func newInstruments(o metricsOptions) (*instruments, error) {
	meter := o.provider.Meter(ScopeName,
		metric.WithInstrumentationVersion(Version()), metric.WithSchemaURL(semconv.SchemaURL))
	var refused error
	seconds := func(name, description string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
			metric.WithExplicitBucketBoundaries(boundaries...))
		refused = errors.Join(refused, err)
		return h
	}
	upDown := func(name, unit, description string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name,
			metric.WithUnit(unit), metric.WithDescription(description))
		refused = errors.Join(refused, err)
		return c
	}
	counter := func(name, unit, description string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithUnit(unit), metric.WithDescription(description))
		refused = errors.Join(refused, err)
		return c
	}
	i := &instruments{
		kind: o.kind,
		wait: seconds("etcdlock.wait.duration",
			"Time from the call to its hold, or to its end without one."),
		queued: upDown("etcdlock.wait.queued", "{wait}",
			"Calls of Lock of this process that wait behind others."),
		hold: seconds("etcdlock.hold.duration",
			"Time from the hold's beginning to its release or loss."),
		active: upDown("etcdlock.hold.active", "{hold}",
			"Holds of this process that have begun and were neither released nor lost."),
		lost: counter("etcdlock.hold.lost", "{hold}",
			"Holds that ended without their release."),
		shared: counter("etcdlock.hold.shared", "{hold}",
			"Holds that began and let others hold beside them."),
		permits: counter("etcdlock.hold.permits", "{permit}",
			"Permits that the holds of the mode permit have had, together."),
		recalled: counter("etcdlock.hold.recalled", "{recall}",
			"Recalls that a hold has noticed; one that ends a hold sooner counts again."),
		term: seconds("etcdlock.term.duration",
			"Time that a term of leadership took, by Lead."),
		renewal: seconds("etcdlock.lease.renewal.duration",
			"Round trip of a renewal that etcd acknowledged."),
		renewalsFailed: counter("etcdlock.lease.renewal.failed", "{attempt}",
			"Attempts to renew a lease that failed; further ones follow."),
		atRisk: counter("etcdlock.lease.renewal.at_risk", "{attempt}",
			"Attempts to renew a lease that began with less than half of its time left."),
		granted: counter("etcdlock.lease.granted", "{lease}",
			"Leases that a Session began to use."),
		replaced: counter("etcdlock.lease.replaced", "{lease}",
			"Leases that get no new hold: lost, in doubt, or given back."),
		unavailable: counter("etcdlock.etcd.unavailable", "{report}",
			"Reports that calls wait for an etcd that does not answer: after the first attempt, "+
				"then one each 10 s and Session."),
		setBack: counter("etcdlock.etcd.set_back", "{set_back}",
			"Times that etcd was found with an older state: restored, wiped, or another cluster."),
		removalsBegun: counter("etcdlock.removal.begun", "{key}",
			"Keys that are to be removed in the background, after a wait or a hold."),
		removalsDone: counter("etcdlock.removal.done", "{key}",
			"Keys removed in the background that are gone for certain."),
	}
	_, err := meter.Float64ObservableGauge("etcdlock.wait.longest", metric.WithUnit("s"),
		metric.WithDescription("Time that the longest wait has lasted, of those of at least 30 s."),
		metric.WithFloat64Callback(func(_ context.Context, o metric.Float64Observer) error {
			i.longest.All(func(kind string, waited time.Duration) {
				o.Observe(waited.Seconds(), ofKind(kind))
			})
			return nil
		}))
	if refused = errors.Join(refused, err); refused != nil {
		return nil, refused
	}
	for _, c := range []metric.Int64Counter{
		i.renewalsFailed, i.atRisk, i.granted, i.replaced,
		i.unavailable, i.setBack, i.removalsBegun, i.removalsDone,
	} {
		c.Add(context.Background(), 0) // as begin does for a lock
	}
	return i, nil
}

// trace returns the hooks. What belongs to a call is measured with its context, so that exemplars
// lead to its trace.
func (i *instruments) trace() *etcdlock.Trace {
	count := func(c metric.Int64Counter) { c.Add(context.Background(), 1) }
	return &etcdlock.Trace{
		Queued: func(ctx context.Context, e etcdlock.QueuedEvent) {
			i.queued.Add(ctx, 1, i.of(e.Name))
		},
		Waiting: func(_ context.Context, e etcdlock.WaitingEvent) {
			kind := i.kindOf(e.Name)
			i.longest.Begin(kind)
			i.longest.Told(kind, e.Waited)
		},
		GaveUp: func(ctx context.Context, e etcdlock.GaveUpEvent) {
			attributes := []attribute.KeyValue{acquiredKey.Bool(false)}
			if why := whyGivenUp(e.Err); why != "" {
				attributes = append(attributes, semconv.ErrorTypeKey.String(why))
			}
			i.waited(ctx, e.Name, e.Waited, e.Ahead, attributes...)
		},
		Acquired: func(ctx context.Context, e etcdlock.AcquiredEvent) {
			i.waited(ctx, e.Name, e.Waited, e.Ahead, acquiredKey.Bool(true))
			i.active.Add(ctx, 1, i.of(e.Name))
			i.begin(e.Name)
			if e.Mode != etcdlock.ModeExclusive {
				i.shared.Add(ctx, 1, i.of(e.Name, modeKey.String(string(e.Mode))))
			}
			if e.Mode == etcdlock.ModePermit {
				i.permits.Add(ctx, int64(e.Weight), i.of(e.Name))
			}
		},
		Released: func(ctx context.Context, e etcdlock.ReleasedEvent) {
			i.ended(ctx, e.Name, e.Held)
		},
		Lost: func(ctx context.Context, e etcdlock.LostEvent) {
			why := semconv.ErrorTypeKey.String(whyLost(e.Reason))
			i.lost.Add(ctx, 1, i.of(e.Name, why))
			i.ended(ctx, e.Name, e.Held, why)
		},
		Recalled: func(ctx context.Context, e etcdlock.RecalledEvent) {
			i.recalled.Add(ctx, 1, i.of(e.Name))
		},
		Led: func(ctx context.Context, e etcdlock.LedEvent) {
			var attributes []attribute.KeyValue
			if why := whyFailed(ctx, e.Err); why != "" {
				attributes = append(attributes, semconv.ErrorTypeKey.String(why))
			}
			i.term.Record(ctx, e.Held.Seconds(), i.of(e.Name, attributes...))
		},
		LeaseGranted: func(_ context.Context, _ etcdlock.LeaseGrantedEvent) { count(i.granted) },
		LeaseRenewed: func(_ context.Context, e etcdlock.LeaseRenewedEvent) {
			i.renewal.Record(context.Background(), e.RoundTrip.Seconds())
		},
		RenewalFailed: func(_ context.Context, _ etcdlock.RenewalFailedEvent) {
			count(i.renewalsFailed)
		},
		LeaseAtRisk:   func(_ context.Context, _ etcdlock.LeaseAtRiskEvent) { count(i.atRisk) },
		LeaseReplaced: func(_ context.Context, _ etcdlock.LeaseReplacedEvent) { count(i.replaced) },
		Unavailable:   func(_ context.Context, _ etcdlock.UnavailableEvent) { count(i.unavailable) },
		SetBack:       func(_ context.Context, _ etcdlock.SetBackEvent) { count(i.setBack) },
		CleanupPending: func(_ context.Context, _ etcdlock.CleanupPendingEvent) {
			count(i.removalsBegun)
		},
		CleanupDone: func(_ context.Context, _ etcdlock.CleanupDoneEvent) { count(i.removalsDone) },
	}
}

// of are the attributes of a measurement of a lock.
func (i *instruments) of(name string, attributes ...attribute.KeyValue) metric.MeasurementOption {
	return ofKind(i.kindOf(name), attributes...)
}

// kindOf is the kind of a lock, "" if it has none.
func (i *instruments) kindOf(name string) string {
	if i.kind == nil {
		return ""
	}
	return strings.ToValidUTF8(i.kind(name), "\uFFFD")
}

// ofKind are the attributes of a measurement of a kind of lock.
func ofKind(kind string, attributes ...attribute.KeyValue) metric.MeasurementOption {
	if kind != "" {
		attributes = append(attributes, kindKey.String(kind))
	}
	return metric.WithAttributeSet(attribute.NewSet(attributes...))
}

// begin makes the losses and recalls of a lock appear as 0. To a backend that knows no
// start times (Prometheus), a counter that appears as 1 has not increased, and the first
// loss would raise no alarm. The context is not that of the call: a 0 is no exemplar.
func (i *instruments) begin(name string) {
	i.recalled.Add(context.Background(), 0, i.of(name))
	for _, why := range lossTypes {
		i.lost.Add(context.Background(), 0, i.of(name, semconv.ErrorTypeKey.String(why)))
	}
}

// waited records the end of a call's wait, which was behind ahead others.
func (i *instruments) waited(
	ctx context.Context, name string, waited time.Duration, ahead int,
	attributes ...attribute.KeyValue,
) {
	i.longest.Ended(i.kindOf(name), waited)
	if ahead > 0 {
		i.queued.Add(ctx, -1, i.of(name))
	}
	i.wait.Record(ctx, waited.Seconds(),
		i.of(name, append(attributes, contendedKey.Bool(ahead > 0))...))
}

// ended records the end of a hold.
func (i *instruments) ended(
	ctx context.Context, name string, held time.Duration, attributes ...attribute.KeyValue,
) {
	i.active.Add(ctx, -1, i.of(name))
	i.hold.Record(ctx, held.Seconds(), i.of(name, attributes...))
}
