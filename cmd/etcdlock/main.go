// Etcdlock runs a command under a lock that is kept in etcd, and tells who holds which lock.
//
//	go install github.com/etcdlock/etcdlock/cmd/etcdlock@latest
//
//	etcdlock run -n nightly -- /usr/local/bin/report    by one machine of many
//	etcdlock who                                        who holds, and who waits
//	etcdlock break orders/42                            take a place away
//	etcdlock doctor                                     is this etcd fit for locks
//
// etcdlock help tells the rest, and docs/command.md the reasons.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
