// Package cookbook is the tested code of docs/cookbook.md, and tests the manifests of
// docs/kubernetes.md. It is a module of its own, since users of the library should not have to
// download a database and a scheduler.
package cookbook
