// Package matrix runs the library, and the other clients of etcd's locks, against every
// etcd that people run: each version with each setup, by the same stories. README.md has
// the table that the tests write, and the commands.
//
// Servers, proxies and etcdctl are the real programs, as processes of their own on the
// loopback interface. Those of 3.5 and later are built from the modules etcd35, etcd36 and
// etcd37 beside this file. Those of 3.4 come from Debian's packages.
package matrix
