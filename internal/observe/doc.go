// Package observe shows how a program sees what its locks do: a [etcdlock.Trace] wired
// to Prometheus, and one wired to OpenTelemetry. It is to be copied rather than
// imported: prometheus.go, opentelemetry.go and join.go each stand alone.
//
// README.md has the queries for a dashboard, the alert rules, and what a Trace cannot
// tell.
package observe
