// Package observe has the tests of what etcdlockprom offers besides its metrics: the
// dashboard, the alert rules, and the page docs/metrics.md. Locks run in virtual time, the
// real collector says what it has counted, and Prometheus' own promtool evaluates that:
// Debian has it in the package prometheus. Without it these tests are skipped.
//
// It needs both modules, so it is a module of its own.
package observe
