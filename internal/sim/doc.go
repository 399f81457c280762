// Package sim runs the lock, with the unmodified clientv3 and gRPC, in virtual time: in a
// bubble of testing/synctest, over a network in memory, against a cluster that behaves as
// etcd does. A run takes about 50 ms of a processor and goes through half a minute in which
// networks, members, processes and operators do what a seed makes of them. A judge sees
// every entry of the store and every belief, and compares them with what the lock
// promises.
//
//	go test ./internal/sim                                         # what CI runs
//	go test ./internal/sim -run 'TestSimulation$' -first 1000 -seeds 100000 -timeout 0
//	go test ./internal/sim -run 'TestSimulationOfTheFamily$' -family-seeds 3000 -timeout 0
//	go test ./internal/sim -run 'TestSimulation$' -side concurrency  # the peer, counted
//
// Who contends is the world's story: mutexes alone, or the family, in which mutexes, those who
// write, those who read, permits, holds of several names and leaders ask for the same names, and an
// operator recalls some, in some worlds beside a process that uses etcd's concurrency.Mutex. A
// further kind is a contender (contender.go), and a kind (kind.go), which is all that the judge knows
// of it.
//
// The files: net.go is the network; etcd.go the members, leaders and leases, on the store of
// package fake; server.go and watch.go their gRPC; schedule.go the faults; world.go the processes,
// worker.go what their goroutines do; contender.go the locks that they ask for; kind.go,
// judge.go and recalls.go the invariants; side.go the two libraries, by package side.
//
// Serve has one such etcd in real time, at an address: lock_test.go, the examples and the
// tests of cmd/etcdlock run on it.
//
// What is not the real thing: Raft is not acted out (see Cluster); a frozen process's
// timers run on, though its bytes and its work wait (see freezeProcess); a process has no
// clock of its own, so its leases live longer or shorter instead (see Cluster.Rate); there
// is no auth and no full disk. TestTheSimulatedEtcdsAreLikeTheRealOne (proof/conformance) asks
// both etcds the same. How far a seed repeats a run, TestASeedRepeatsItsFaultsAndWork says.
package sim
