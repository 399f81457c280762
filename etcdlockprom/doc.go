// Package etcdlockprom exports metrics of etcdlock's locks to Prometheus.
//
//	metrics := etcdlockprom.NewMetrics()
//	prometheus.MustRegister(metrics)
//	session, err := etcdlock.NewSession(client, etcdlock.WithTrace(metrics.Trace()))
//
// One Metrics serves any number of Sessions and Mutexes of a process. Use [etcdlock.JoinTraces] to
// combine it with other hooks.
//
// # Metrics
//
// Per lock, by the label lock. [WithLockLabel] derives the label from the lock's name; without it
// the label is empty:
//
//	etcdlock_wait_seconds           histogram  from Lock to the hold; contended: behind others
//	etcdlock_waiting                gauge      calls that wait behind others
//	etcdlock_longest_wait_seconds   gauge      how long the longest wait lasts, from 30 s on
//	etcdlock_contended_total        counter    waits that began behind others
//	etcdlock_gave_up_total          counter    calls that ended without a hold; reason
//	etcdlock_hold_seconds           histogram  from the hold's beginning to its end
//	etcdlock_holders                gauge      holds that have begun and have not ended
//	etcdlock_lost_total             counter    holds that ended without their release; reason
//	etcdlock_shared_total           counter    holds that began and share their lock; mode
//	etcdlock_permits_total          counter    permits that such holds have had, together
//	etcdlock_recalls_total          counter    recalls that a hold has noticed
//	etcdlock_terms_total            counter    terms of leadership that are over; result
//
// Per process, about its leases and its etcd:
//
//	etcdlock_lease_renewal_seconds           histogram  round trip of a renewal
//	etcdlock_lease_renewal_failures_total    counter    attempts to renew that failed
//	etcdlock_lease_at_risk_total             counter    attempts begun with little time left
//	etcdlock_leases_granted_total            counter    leases that a Session began to use
//	etcdlock_leases_replaced_total           counter    leases that get no new hold any more
//	etcdlock_unavailable_total               counter    reports that calls wait for etcd
//	etcdlock_set_backs_total                 counter    times that etcd had an older state
//	etcdlock_removals_begun_total            counter    keys to remove in the background
//	etcdlock_removals_done_total             counter    those of them that are gone
//
// The reason of etcdlock_gave_up_total is unavailable (etcd was not answering when the call
// ended), timeout, canceled, locked (TryLock found others), closed or other. The reason of
// etcdlock_lost_total is expired (etcd, the network, or a pause of the process), taken (an
// operator), max_hold ([etcdlock.WithMaxHold]) or other.
//
// The mode of etcdlock_shared_total is read ([etcdlock.RWMutex.RLock]) or permit
// ([etcdlock.Semaphore.Acquire]). etcdlock_wait_seconds counts these holds with all others.
//
// A recalled hold ends as any does: it is released, or it is lost. etcdlock_recalls_total counts
// one for each hold that listens, so several for readers that share a key.
//
// The result of etcdlock_terms_total ([etcdlock.Mutex.Lead]) is ok (the function returned nil, or
// why the context of Lead had ended), recalled (it returned the [*etcdlock.RecalledError] of a
// recall), lost (the lock was lost meanwhile) or error (the function failed or panicked, or etcd
// did not confirm the release). How long a term was is in etcdlock_hold_seconds.
//
// All counters start as 0: those of a lock once it was held or waited for, the others at once. So
// the first loss is an increase.
//
// The directory dashboard has a Grafana dashboard and alert rules for Prometheus.
// docs/metrics.md explains both.
package etcdlockprom
