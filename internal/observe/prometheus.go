package observe

import (
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// seconds are the buckets of waits and holds: from one request to etcd (1 ms) to about
// four minutes. Whoever holds for hours wants three more.
var seconds = prometheus.ExponentialBuckets(0.001, 4, 10)

// reasons are the values of the label reason, see reasonOf.
var reasons = []string{"expired", "taken", "max_hold", "other"}

// Metrics are counted from a [etcdlock.Trace]. One value serves any number of Mutexes
// and Sessions of a process. All of it is safe for concurrent use, and it keeps no state
// per hold: the hooks of two Sessions run side by side.
type Metrics struct {
	group func(name string) string

	wait      *prometheus.HistogramVec
	hold      *prometheus.HistogramVec
	contended *prometheus.CounterVec
	gaveUp    *prometheus.CounterVec
	lost      *prometheus.CounterVec
	holders   *prometheus.GaugeVec
	waiting   *prometheus.GaugeVec

	renewal         prometheus.Observer
	renewalFailures prometheus.Counter
	atRisk          prometheus.Counter
}

// NewMetrics registers the metrics with reg, and panics if they are there already.
//
// group makes the label lock of a lock's name. Each value it returns is some 45 time
// series that stay until the process ends, so there must be few: return the kind of the
// lock ("orders"), not the name ("orders/42"), unless your names are few. A nil group
// leaves the label empty, which to Prometheus is no label.
func NewMetrics(reg prometheus.Registerer, group func(name string) string) *Metrics {
	auto := promauto.With(reg)
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return auto.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: seconds}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return auto.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return auto.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		group: group,
		wait: histogram("etcdlock_wait_seconds",
			"Time from Lock to the hold. contended: whether others were before it.", "lock", "contended"),
		hold: histogram("etcdlock_hold_seconds",
			"Time from the hold's beginning to its release or loss.", "lock"),
		contended: counter("etcdlock_contended_total",
			"Waits that began behind others, whether or not they came to hold.", "lock"),
		gaveUp: counter("etcdlock_gave_up_total",
			"Calls of Lock and TryLock that ended without a hold.", "lock"),
		lost: counter("etcdlock_lost_total",
			"Holds that ended without their release, by reason.", "lock", "reason"),
		holders: gauge("etcdlock_holders",
			"Holds of this process that have begun and were neither released nor lost.", "lock"),
		waiting: gauge("etcdlock_waiting",
			"Calls of Lock of this process that wait behind others.", "lock"),
		renewal: histogram("etcdlock_lease_renewal_seconds",
			"Round trip of a renewal that etcd acknowledged.").WithLabelValues(),
		renewalFailures: counter("etcdlock_lease_renewal_failures_total",
			"Attempts to renew a lease that failed; further ones follow.").WithLabelValues(),
		atRisk: counter("etcdlock_lease_at_risk_total",
			"Attempts to renew a lease that began with less than half of its time left.").WithLabelValues(),
	}
	if group == nil {
		m.group = func(string) string { return "" }
		m.begin("")
	}
	return m
}

// Trace returns hooks for [etcdlock.WithTrace]. The lease hooks work where a lease is
// made: give it to New or to NewSession, whose Mutexes then have it too.
func (m *Metrics) Trace() *etcdlock.Trace {
	return &etcdlock.Trace{
		Queued: func(name string, _ int, _ etcdlock.Contender) {
			lock := m.group(name)
			m.begin(lock)
			m.contended.WithLabelValues(lock).Inc()
			m.waiting.WithLabelValues(lock).Inc()
		},
		GaveUp: func(name string, _ time.Duration, ahead int, _ error) {
			lock := m.group(name)
			m.begin(lock)
			m.waited(lock, ahead)
			m.gaveUp.WithLabelValues(lock).Inc()
		},
		Acquired: func(name string, _ int64, waited time.Duration, ahead int) {
			lock := m.group(name)
			m.begin(lock)
			m.waited(lock, ahead)
			m.wait.WithLabelValues(lock, strconv.FormatBool(ahead > 0)).Observe(waited.Seconds())
			m.holders.WithLabelValues(lock).Inc()
		},
		Released: func(name string, _ int64, held time.Duration) { m.end(m.group(name), held) },
		Lost: func(name string, _ int64, held time.Duration, reason error) {
			lock := m.group(name)
			m.lost.WithLabelValues(lock, reasonOf(reason)).Inc()
			m.end(lock, held)
		},
		LeaseRenewed: func(_ clientv3.LeaseID, roundTrip time.Duration) {
			m.renewal.Observe(roundTrip.Seconds())
		},
		RenewalFailed: func(clientv3.LeaseID, error) { m.renewalFailures.Inc() },
		LeaseAtRisk:   func(clientv3.LeaseID, time.Duration) { m.atRisk.Inc() },
	}
}

// begin makes what is counted of a lock appear as 0. One that appears as 1 has not
// increased, to Prometheus, and the first loss would raise no alarm.
func (m *Metrics) begin(lock string) {
	m.wait.WithLabelValues(lock, "true")
	m.wait.WithLabelValues(lock, "false")
	m.hold.WithLabelValues(lock)
	m.waiting.WithLabelValues(lock)
	m.holders.WithLabelValues(lock)
	m.contended.WithLabelValues(lock)
	m.gaveUp.WithLabelValues(lock)
	for _, reason := range reasons {
		m.lost.WithLabelValues(lock, reason)
	}
}

// waited counts the end of a wait, if there was one: behind ahead others.
func (m *Metrics) waited(lock string, ahead int) {
	if ahead > 0 {
		m.waiting.WithLabelValues(lock).Dec()
	}
}

// end counts the end of a hold.
func (m *Metrics) end(lock string, held time.Duration) {
	m.hold.WithLabelValues(lock).Observe(held.Seconds())
	m.holders.WithLabelValues(lock).Dec()
}

// reasonOf puts the reason of a loss into one of a few classes, since an error's text is
// no label.
func reasonOf(reason error) string {
	is := func(reasons ...error) bool {
		return slices.ContainsFunc(reasons, func(r error) bool { return errors.Is(reason, r) })
	}
	switch {
	case is(etcdlock.ErrMaxHold):
		return "max_hold"
	case is(etcdlock.ErrExpired, etcdlock.ErrSuspended):
		return "expired"
	case is(etcdlock.ErrKeyDeleted, etcdlock.ErrKeyOverwritten, etcdlock.ErrLeaseRevoked):
		return "taken" // by an operator
	default:
		return "other"
	}
}
