// Package hold is the engine of holds: what a Session has of its locks, of the calls that lock, and
// of the holds that these get. It stands on internal/queue, which has the keys in etcd's line, and
// on internal/lease.
//
// The package at the root is the API. The engine does not know it: it gets what the options say
// (Config), the errors (Errors) and the hooks (Hooks). The API checks the arguments.
// ARCHITECTURE.md says what each file does.
package hold
