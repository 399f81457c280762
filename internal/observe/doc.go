// Package observe has the tests of what etcdlockprom offers besides its metrics: the
// dashboard, the alert rules, and the page docs/metrics.md. Locks run in virtual time,
// Prometheus' own format reads what the real collector says about them, and Prometheus' own
// engine evaluates it. Users of etcdlockprom should not get that dependency, so this is a
// module of its own.
package observe
