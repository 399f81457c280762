// Package faults is the proof: each fault that the library survives as a test on a
// real etcd, which is made for this library and for etcd's own concurrency.Mutex, or
// recipe.RWMutex, by the same code, and judged by the same rules. README.md has the table
// that the tests write, and the commands.
//
// A row tells a story, in verbs, about parties that contend for one lock. What must
// hold is checked beside it: no two parties believe at once that they hold the lock,
// and tokens grow. Where a promise is broken, the trial counts as broken and ends; on
// our side that fails the test.
//
// Everything is started by the tests on the loopback interface: clusters in this
// process (internal/proof/etcdtest), and, where something must be killed or frozen, etcd
// and parties as processes of their own, which are this test binary run again.
package faults
