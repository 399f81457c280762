// Etcdlock runs a command under a lock kept in etcd, and shows who holds which lock.
//
//	go install github.com/etcdlock/etcdlock/cmd/etcdlock@latest
//
//	etcdlock run -n nightly -- /usr/local/bin/report    on one machine of many
//	etcdlock who                                        who holds and who waits
//	etcdlock break orders/42                            delete a place in the line
//	etcdlock doctor                                     is this etcd fit for locks
//
// etcdlock help has the rest, and docs/command.md the reasons. What a package of it has beside the
// binary, it writes itself:
//
//	etcdlock completion bash    also zsh, fish, powershell: a script, to stdout
//	etcdlock man DIRECTORY      a man page for each command
//
// The directory must exist. SOURCE_DATE_EPOCH sets the month that the pages name.
package main

import "os"

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
