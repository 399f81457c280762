// Package adapters holds the tests of the modules below adapters/ that need etcd's own server, a
// database or processes. It is a module of its own, with all that the hosts require.
package adapters
