// Package faults is the proof: it has each fault that the library survives as a test on a
// real etcd. The same code runs each test with this library and with etcd's own
// concurrency.Mutex or recipe.RWMutex, and the same rules judge both. README.md has the
// table that the tests write, and the commands.
//
// A row tells a story, in verbs, about parties that contend for one lock. Beside it the
// trial checks what must hold: no two parties believe at once that they hold the lock, and
// tokens grow. If a promise is broken, the trial counts as broken and ends. On our side
// that fails the test.
//
// The tests start everything on the loopback interface: clusters in this process
// (internal/proof/etcdtest), and, if something must be killed or frozen, etcd and parties
// as processes of their own. Those run this test binary again.
package faults
