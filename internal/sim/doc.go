// Package sim runs the lock, with the unmodified clientv3 and gRPC, in virtual time: in a
// bubble of testing/synctest, over a network in memory, against a cluster that behaves as
// etcd does. A run takes about 0.1 s of a processor. It goes through half a minute in which
// networks, members, processes and operators do what a seed says. A judge sees every entry
// of the store and every belief, and compares them with what the lock promises.
//
//	go test ./internal/sim                                         # what CI runs
//	go test ./internal/sim -run 'TestSimulation$' -first 1000 -seeds 100000 -timeout 0
//	go test ./internal/sim -run 'TestSimulationOfTheFamily$' -family-seeds 3000 -timeout 0
//	go test ./internal/sim -run 'TestSimulation$' -side concurrency  # the peer, counted
//	go test ./internal/sim -run 'TestSimulationOfEtcdsBugs$' -bug-seeds 100
//	go test ./internal/sim -run 'TestTraces$' -traces 50           # quint follows them: spec/README
//
// The world's story says who contends. In one story these are mutexes alone. In the other,
// the family, mutexes, writers, readers, permits, holds of several names and leaders ask
// for the same names, and an operator recalls some of them, by a network with faults of its own.
// Some holders change their infos, some waits ask the holder, some holds have a least or a longest
// time, and some processes follow who holds. In some worlds a process beside them uses etcd's
// concurrency.Mutex. To add another sort of contender, write a contender (contender.go)
// and its kind (kind.go). The kind is all that the judge knows of it.
//
// The files: net.go is the network; etcd.go the members, leaders and leases, on the store of
// package fake; server.go and watch.go their gRPC; bugs.go bugs that etcd had; schedule.go the
// faults; world.go the processes, worker.go what their goroutines do, meeting.go the instants
// at which they end their waits and holds together; contender.go the locks that they ask for;
// sessions.go the Sessions; kind.go, judge.go, recalls.go, infos.go, outlast.go and
// followers.go the invariants; side.go the two libraries, by package side; trace.go runs that are
// written down for the specification, and traced.go their worlds.
//
// Serve has one such etcd in real time, at an address: lock_test.go, the examples and the
// tests of cmd/etcdlock run on it.
//
// What differs from the real thing: Raft is not acted out (see Cluster). The timers of a
// frozen process run on, though its bytes and its work wait (see freezeProcess). A process
// has no clock of its own; its leases live longer or shorter instead (see Cluster.Rate).
// There is no auth and no full disk. TestTheSimulatedEtcdsAreLikeTheRealOne
// (proof/conformance) asks both etcds the same. TestASeedRepeatsItsFaultsAndWork says how
// far a seed repeats a run.
package sim
