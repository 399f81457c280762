package etcdlockprom

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/events"
)

// seconds are the buckets of waits, holds and renewals: from one request to etcd (1 ms) to about
// four minutes.
var seconds = prometheus.ExponentialBuckets(0.001, 4, 10)

// The values of the labels reason and result; see whyLost, whyGivenUp and howLed.
var (
	lossReasons   = []string{"expired", "taken", "max_hold", "other"}
	giveUpReasons = []string{"unavailable", "timeout", "canceled", "locked", "closed", "other"}
	modes         = []string{"read", "permit"}
	termResults   = []string{"ok", "recalled", "lost", "error"}
)

// Metrics counts what an [etcdlock.Trace] reports. It is a [prometheus.Collector]: register it
// once. One value serves any number of Mutexes and Sessions of a process. It is safe for
// concurrent use and keeps no state per hold: the hooks of two Sessions run side by side.
type Metrics struct {
	label func(name string) string

	wait      *prometheus.HistogramVec
	hold      *prometheus.HistogramVec
	contended *prometheus.CounterVec
	gaveUp    *prometheus.CounterVec
	lost      *prometheus.CounterVec
	shared    *prometheus.CounterVec
	permits   *prometheus.CounterVec
	recalls   *prometheus.CounterVec
	terms     *prometheus.CounterVec
	holders   *prometheus.GaugeVec
	waiting   *prometheus.GaugeVec
	longest   *longest

	renewal         prometheus.Histogram
	renewalFailures prometheus.Counter
	atRisk          prometheus.Counter
	granted         prometheus.Counter
	replaced        prometheus.Counter
	unavailable     prometheus.Counter
	setBacks        prometheus.Counter
	removalsBegun   prometheus.Counter
	removalsDone    prometheus.Counter
}

var _ prometheus.Collector = (*Metrics)(nil)

// longest is the gauge of the waits that last.
type longest struct {
	events.Longest
	desc *prometheus.Desc
}

// Describe is as in [prometheus.Collector].
func (l *longest) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- l.desc }

// Collect is as in [prometheus.Collector].
func (l *longest) Collect(metrics chan<- prometheus.Metric) {
	l.All(func(lock string, waited time.Duration) {
		metrics <- prometheus.MustNewConstMetric(
			l.desc, prometheus.GaugeValue, waited.Seconds(), lock)
	})
}

// An Option of [NewMetrics].
type Option func(*options)

type options struct {
	label   func(name string) string
	buckets []float64
}

// valid is the label of a name: to package prometheus one that is not valid UTF-8 is a panic.
func (o *options) valid(name string) string {
	if o.label == nil {
		return ""
	}
	return strings.ToValidUTF8(o.label(name), "\uFFFD")
}

// WithLockLabel derives the label lock from a lock's name. Each value that label returns makes
// some sixty time series that stay until the process ends, so there must be few: return the kind
// of the lock ("orders"), not its name ("orders/42"), unless you have few names. Without this
// option the label is empty, which to Prometheus is no label. Several hooks may call label at
// once.
func WithLockLabel(label func(name string) string) Option {
	return func(o *options) { o.label = label }
}

// WithBuckets sets the upper bounds, in seconds, of the buckets of waits and holds. The default
// is ten bounds from 1 ms to 262 s, each four times the one before.
func WithBuckets(bounds ...float64) Option {
	return func(o *options) { o.buckets = slices.Clone(bounds) }
}

// NewMetrics returns metrics. Register them with a [prometheus.Registerer] and give their
// [Metrics.Trace] to Sessions and Mutexes. Like package prometheus it panics if the bounds of
// buckets do not grow.
func NewMetrics(opts ...Option) *Metrics {
	o := options{buckets: seconds}
	for _, opt := range opts {
		opt(&o)
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &Metrics{
		label: o.valid,
		wait: prometheus.NewHistogramVec(histogram("etcdlock_wait_seconds",
			"Time from Lock to the hold. contended: whether others were before it.",
			o.buckets), []string{"lock", "contended"}),
		hold: prometheus.NewHistogramVec(histogram("etcdlock_hold_seconds",
			"Time from the hold's beginning to its release or loss.",
			o.buckets), []string{"lock"}),
		contended: counters("etcdlock_contended_total",
			"Waits that began behind others, whether or not they came to hold.", "lock"),
		gaveUp: counters("etcdlock_gave_up_total",
			"Calls of Lock and TryLock that ended without a hold, by reason.", "lock", "reason"),
		lost: counters("etcdlock_lost_total",
			"Holds that ended without their release, by reason.", "lock", "reason"),
		shared: counters("etcdlock_shared_total",
			"Holds that began and let others hold beside them, by mode.", "lock", "mode"),
		permits: counters("etcdlock_permits_total",
			"Permits that the holds of the mode permit have had, together.", "lock"),
		recalls: counters("etcdlock_recalls_total",
			"Recalls that a hold has noticed; one that ends a hold sooner counts again.", "lock"),
		terms: counters("etcdlock_terms_total",
			"Terms of leadership, by Lead, that are over, by result.", "lock", "result"),
		holders: gauge("etcdlock_holders",
			"Holds of this process that have begun and were neither released nor lost.", "lock"),
		waiting: gauge("etcdlock_waiting",
			"Calls of Lock of this process that wait behind others.", "lock"),
		longest: &longest{desc: prometheus.NewDesc("etcdlock_longest_wait_seconds",
			"Time that the longest wait has lasted, of those of at least 30 s.",
			[]string{"lock"}, nil)},
		renewal: prometheus.NewHistogram(histogram("etcdlock_lease_renewal_seconds",
			"Round trip of a renewal that etcd acknowledged.", seconds)),
		renewalFailures: counter("etcdlock_lease_renewal_failures_total",
			"Attempts to renew a lease that failed; further ones follow."),
		atRisk: counter("etcdlock_lease_at_risk_total",
			"Attempts to renew a lease that began with less than half of its time left."),
		granted: counter("etcdlock_leases_granted_total",
			"Leases that a Session began to use."),
		replaced: counter("etcdlock_leases_replaced_total",
			"Leases that get no new hold: lost, in doubt, or given back."),
		unavailable: counter("etcdlock_unavailable_total",
			"Reports that calls wait for an etcd that does not answer: after the first attempt, "+
				"then one each 10 s and Session."),
		setBacks: counter("etcdlock_set_backs_total",
			"Times that etcd was found with an older state: restored, wiped, or another cluster."),
		removalsBegun: counter("etcdlock_removals_begun_total",
			"Keys that are to be removed in the background, after a wait or a hold."),
		removalsDone: counter("etcdlock_removals_done_total",
			"Keys removed in the background that are gone for certain."),
	}
	if o.label == nil {
		m.begin("")
	}
	return m
}

// collectors are all metrics.
func (m *Metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{
		m.wait, m.hold, m.contended, m.gaveUp, m.lost,
		m.shared, m.permits, m.recalls, m.terms, m.holders, m.waiting, m.longest,
		m.renewal, m.renewalFailures, m.atRisk, m.granted, m.replaced,
		m.unavailable, m.setBacks, m.removalsBegun, m.removalsDone,
	}
}

// Describe is as in [prometheus.Collector].
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(descriptions)
	}
}

// Collect is as in [prometheus.Collector].
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(metrics)
	}
}

// Trace returns hooks for [etcdlock.WithTrace]. The hooks about leases and etcd belong to the
// Session: give the Trace to NewMutex, or to NewSession, whose Mutexes then have it too.
func (m *Metrics) Trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Queued: func(_ context.Context, e etcdlock.QueuedEvent) {
			lock := m.label(e.Name)
			m.begin(lock)
			m.contended.WithLabelValues(lock).Inc()
			m.waiting.WithLabelValues(lock).Inc()
		},
		Waiting: func(_ context.Context, e etcdlock.WaitingEvent) {
			lock := m.label(e.Name)
			m.begin(lock)
			m.longest.Told(lock, e.Waited)
		},
		GaveUp: func(_ context.Context, e etcdlock.GaveUpEvent) {
			lock := m.label(e.Name)
			m.begin(lock)
			m.waited(lock, e.Ahead, e.Waited)
			m.gaveUp.WithLabelValues(lock, whyGivenUp(e.Err)).Inc()
		},
		Acquired: func(_ context.Context, e etcdlock.AcquiredEvent) {
			lock := m.label(e.Name)
			m.begin(lock)
			m.waited(lock, e.Ahead, e.Waited)
			m.wait.WithLabelValues(lock, strconv.FormatBool(e.Ahead > 0)).Observe(e.Waited.Seconds())
			m.holders.WithLabelValues(lock).Inc()
			if e.Mode != etcdlock.ModeExclusive {
				m.shared.WithLabelValues(lock, string(e.Mode)).Inc()
			}
			if e.Mode == etcdlock.ModePermit {
				m.permits.WithLabelValues(lock).Add(float64(e.Weight))
			}
		},
		Released: func(_ context.Context, e etcdlock.ReleasedEvent) { m.end(m.label(e.Name), e.Held) },
		Lost: func(_ context.Context, e etcdlock.LostEvent) {
			lock := m.label(e.Name)
			m.lost.WithLabelValues(lock, whyLost(e.Reason)).Inc()
			m.end(lock, e.Held)
		},
		Recalled: func(_ context.Context, e etcdlock.RecalledEvent) {
			m.recalls.WithLabelValues(m.label(e.Name)).Inc()
		},
		Led: func(ctx context.Context, e etcdlock.LedEvent) {
			m.terms.WithLabelValues(m.label(e.Name), howLed(ctx, e.Err)).Inc()
		},
		LeaseGranted: func(_ context.Context, _ etcdlock.LeaseGrantedEvent) { m.granted.Inc() },
		LeaseRenewed: func(_ context.Context, e etcdlock.LeaseRenewedEvent) {
			m.renewal.Observe(e.RoundTrip.Seconds())
		},
		RenewalFailed: func(_ context.Context, _ etcdlock.RenewalFailedEvent) {
			m.renewalFailures.Inc()
		},
		LeaseAtRisk:    func(_ context.Context, _ etcdlock.LeaseAtRiskEvent) { m.atRisk.Inc() },
		LeaseReplaced:  func(_ context.Context, _ etcdlock.LeaseReplacedEvent) { m.replaced.Inc() },
		Unavailable:    func(_ context.Context, _ etcdlock.UnavailableEvent) { m.unavailable.Inc() },
		SetBack:        func(_ context.Context, _ etcdlock.SetBackEvent) { m.setBacks.Inc() },
		CleanupPending: func(_ context.Context, _ etcdlock.CleanupPendingEvent) { m.removalsBegun.Inc() },
		CleanupDone:    func(_ context.Context, _ etcdlock.CleanupDoneEvent) { m.removalsDone.Inc() },
	}
}

// begin makes the counters of a lock appear as 0. To Prometheus a counter that appears as 1 has
// not increased, and the first loss would raise no alert.
func (m *Metrics) begin(lock string) {
	m.wait.WithLabelValues(lock, "true")
	m.wait.WithLabelValues(lock, "false")
	m.hold.WithLabelValues(lock)
	m.waiting.WithLabelValues(lock)
	m.holders.WithLabelValues(lock)
	m.longest.Begin(lock)
	m.contended.WithLabelValues(lock)
	m.permits.WithLabelValues(lock)
	m.recalls.WithLabelValues(lock)
	for _, reason := range giveUpReasons {
		m.gaveUp.WithLabelValues(lock, reason)
	}
	for _, reason := range lossReasons {
		m.lost.WithLabelValues(lock, reason)
	}
	for _, mode := range modes {
		m.shared.WithLabelValues(lock, mode)
	}
	for _, result := range termResults {
		m.terms.WithLabelValues(lock, result)
	}
}

// waited counts the end of a wait behind ahead others, if there was one.
func (m *Metrics) waited(lock string, ahead int, waited time.Duration) {
	m.longest.Ended(lock, waited)
	if ahead > 0 {
		m.waiting.WithLabelValues(lock).Dec()
	}
}

// end counts the end of a hold.
func (m *Metrics) end(lock string, held time.Duration) {
	m.hold.WithLabelValues(lock).Observe(held.Seconds())
	m.holders.WithLabelValues(lock).Dec()
}

// whyLost puts the reason of a loss into one of a few classes: an error's text is no label.
func whyLost(reason error) string {
	switch {
	case is(reason, etcdlock.ErrMaxHold):
		return "max_hold"
	case is(reason, etcdlock.ErrExpired, etcdlock.ErrSuspended):
		return "expired"
	case is(reason, etcdlock.ErrKeyDeleted, etcdlock.ErrKeyOverwritten, etcdlock.ErrLeaseRevoked):
		return "taken" // by an operator
	default:
		return "other"
	}
}

// whyGivenUp classifies the error of a call that got no hold. An error may be in several
// classes: a wait that ran out while etcd was away counts as etcd's fault, not the lock's.
func whyGivenUp(err error) string {
	switch {
	case is(err, etcdlock.ErrUnavailable):
		return "unavailable"
	case is(err, context.DeadlineExceeded):
		return "timeout"
	case is(err, context.Canceled):
		return "canceled"
	case is(err, etcdlock.ErrClosed):
		return "closed"
	case is(err, etcdlock.ErrLocked):
		return "locked"
	default:
		return "other"
	}
}

// howLed classifies the error of a term of leadership, by Lead with ctx. A function that has
// returned because its context ended, with ctx for whatever cause or after a recall, has not
// failed, nor has one that ends Lead. A loss comes before whatever else the function says.
func howLed(ctx context.Context, err error) string {
	switch {
	case is(err, etcdlock.ErrLost):
		return "lost"
	case is(err, etcdlock.ErrRecalled):
		return "recalled"
	case err == nil, is(err, context.Canceled, etcdlock.ErrStopLeading):
		return "ok"
	case ctx.Err() != nil && is(err, ctx.Err(), context.Cause(ctx)):
		return "ok"
	default:
		return "error"
	}
}

func is(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
