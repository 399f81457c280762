// Package observe has the tests of what etcdlockprom offers beside its metrics: the dashboard, the
// alert rules, and the page docs/metrics.md. They run on what the real collector says of locks in
// virtual time, read as Prometheus reads it, by Prometheus' own engine. That is a dependency
// which users of etcdlockprom are not to get, so this is a module of its own.
package observe
