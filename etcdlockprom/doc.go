// Package etcdlockprom counts what the locks of package etcdlock do, for Prometheus.
//
//	metrics := etcdlockprom.NewMetrics()
//	prometheus.MustRegister(metrics)
//	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(metrics.Trace()))
//
// One Metrics serves any number of Sessions and Mutexes of a process. Together with other hooks
// it is given by [etcdlock.JoinTraces].
//
// # Metrics
//
// Of each lock, by the label lock, which [WithLockLabel] makes of its name and which is empty
// without it:
//
//	etcdlock_wait_seconds           histogram  from Lock to the hold; contended: behind others
//	etcdlock_waiting                gauge      calls that wait behind others
//	etcdlock_contended_total        counter    waits that began behind others
//	etcdlock_gave_up_total          counter    calls that ended without a hold; reason
//	etcdlock_hold_seconds           histogram  from the hold's beginning to its end
//	etcdlock_holders                gauge      holds that have begun and have not ended
//	etcdlock_lost_total             counter    holds that ended without their release; reason
//
// Of the process, that is, of its leases and its etcd:
//
//	etcdlock_lease_renewal_seconds           histogram  round trip of a renewal
//	etcdlock_lease_renewal_failures_total    counter    attempts to renew that failed
//	etcdlock_lease_at_risk_total             counter    attempts begun with little time left
//	etcdlock_leases_granted_total            counter    leases that a Session began to use
//	etcdlock_leases_replaced_total           counter    leases that get no new hold any more
//	etcdlock_unavailable_total               counter    reports that calls wait for etcd
//	etcdlock_set_backs_total                 counter    times that etcd had an older state
//	etcdlock_removals_begun_total            counter    keys to be removed in the background
//	etcdlock_removals_done_total             counter    keys of these that are gone
//
// The reason of etcdlock_gave_up_total is unavailable (etcd did not answer when the call ended),
// timeout, canceled, locked (TryLock found others), closed or other. That of
// etcdlock_lost_total is expired (etcd, the network, or a pause of the process), taken (an
// operator), max_hold ([etcdlock.WithMaxHold]) or other.
//
// All counters are there from the start as 0, those of a lock once it was held or waited for, so
// that the first loss is an increase.
//
// The directory dashboard has a dashboard for Grafana and alert rules for Prometheus.
// docs/metrics.md explains both.
package etcdlockprom
