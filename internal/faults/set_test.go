package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"

	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// S11. A set in etcd is one value. Each writer reads it, adds to it and writes it back
// under the lock, by a transaction that its hold guards. No acknowledged add is lost,
// whatever becomes of the writers.
//
//	4 clients add | their connections break, they are frozen, most of all between the read
//	and the write, a member is cut off with a client | the faults end | the set is read
func TestS11NoAcknowledgedAddIsLost(t *testing.T) {
	t.Parallel()
	const clients, members, length = 4, 3, 8 * time.Second
	adds, refusals := 1000, 1
	if raceDetector {
		// The race detector makes all of it several times slower, and few writes late.
		adds, refusals = 200, 0
	}
	prove(t, row{
		id: "S11", full: min(5, *trials), lanes: 2,
		fault: "a set in etcd, read, modified and written under the lock, the write guarded by the hold: S1 to S4 at random",
		must: fmt.Sprintf(
			"no acknowledged add lost in >= %d for each trial, some late writes refused, porcupine says Ok",
			adds),
	}, func(tr *trial) {
		c := etcdtest.Start(tr, members)
		acknowledged, refused := []event{}, 0
		set := "set/" + tr.name
		for nth := uint64(0); nth < 40 && (len(acknowledged) < adds || refused < refusals); nth++ {
			s := tr.storm(length, nth)
			for i := range clients {
				var network []*etcdtest.Proxy
				for m := range members {
					network = append(network, c.Proxy(tr, m))
				}
				w := s.contender(fmt.Sprintf("client %d", i), time.Second, network,
					order{Set: set, Guards: true, Stops: true})
				s.strikes(w.who, 4, w.faults(true)...)
				w.wakes()
			}
			s.strikes("etcd", 2, s.cutOff(c))
			s.passes()
			s.everybodyGetsInOnce()
			acknowledged = append(acknowledged, s.said("added")...)
			refused += len(s.said("refused"))
		}
		tr.figures.add("adds acknowledged", len(acknowledged))
		tr.figures.add("writes refused by the guard", refused)

		elements := elementsOf(tr, c.Client(tr), set)
		var lost []string
		for _, e := range acknowledged {
			if !slices.Contains(elements, e.Value) {
				lost = append(lost, e.Value)
			}
		}
		tr.figures.add("adds lost", len(lost))
		tr.must(len(lost) == 0, "%d of %d acknowledged adds are lost", len(lost), len(acknowledged))
		tr.must(len(acknowledged) >= adds, "only %d adds", len(acknowledged))
		tr.must(refused >= refusals, "the guard had nothing to refuse")
	})
}

// S11, the control: the guard is what protects the set. A writer that is frozen between the
// read and the write comes too late, and no lock can prevent that. Without the guard it
// undoes what others have added.
//
//	a holds, and reads the set | a is frozen, its lease expires | b gets in, adds, unlocks |
//	a wakes and writes
func TestS11AWriteThatComesTooLateIsRefusedByTheGuardOnly(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		name, must := "a late write, guarded", "it is refused, and the add of the next owner stays"
		if !guarded {
			name, must = "a late write, not guarded", "(the control: it undoes the add of the next owner)"
		}
		t.Run(name, func(t *testing.T) {
			prove(t, row{
				id: "S11", name: name, quick: 2,
				fault: "a writer frozen between the read and the write, until the next owner has added",
				must:  must,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				add := order{Do: "add", Set: "set/" + tr.name, Guards: guarded}
				a := tr.process("a", ttl, c.Endpoint(0))
				b := tr.process("b", ttl, c.Endpoint(0))
				a.locks()
				late := add
				late.Stops = true
				a.order(late)
				_, ok := a.says("stopped", 0, patience)
				tr.must(ok, "a has not read the set")
				b.locks()
				b.order(add)
				added, ok := b.says("added", 0, patience)
				tr.must(ok, "b has not added")
				a.thaw()
				a.releases() // after that its write is done
				_, refused := a.says("refused", 0, 0)
				tr.must(refused == guarded, "refused: %v", refused)
				stays := slices.Contains(elementsOf(tr, c.Client(tr), add.Set), added.Value)
				tr.must(stays == guarded, "the add of the next owner stays: %v", stays)
			})
		})
	}
}

// S11. A write whose outcome is unknown may still come. The guard tells holds apart, but
// not the order of the writes in one hold. So the hold has to end before the next write, as
// in the tests above.
//
//	a writes, no answer, the request is still on its way | a unlocks, and locks again, or
//	not | a writes anew | the request arrives
func TestS11AWriteOfUnknownOutcomeIsRefusedOnceItsHoldHasEnded(t *testing.T) {
	t.Parallel()
	for _, ends := range []bool{true, false} {
		name, must := "a write of unknown outcome, then a new hold",
			"it is refused when it comes, and the next write stays"
		if !ends {
			name, must = "a write of unknown outcome, then another in the same hold",
				"(the control: it undoes the next write)"
		}
		t.Run(name, func(t *testing.T) {
			prove(t, row{
				id: "S11", name: name, quick: 2,
				fault: "a write under the lock fails as Unavailable, and reaches etcd after the next one",
				must:  must,
			}, func(tr *trial) {
				c := etcdtest.Start(tr, 1)
				a := tr.party("a", c, 10*ttl)
				set := "set/" + tr.name
				writes := func(value string) error {
					_, err := a.client.Txn(tr.bounded(patience)).If(a.lock.IsOwner()).Then(clientv3.OpPut(set,
						value)).Commit()
					return err
				}
				a.locks()
				a.faults.Inject(etcdtest.LateRequest("Txn", codes.Unavailable).Times(1))
				require.Error(tr, writes("late"))
				if ends {
					a.unlocks()
					a.locks()
				}
				require.NoError(tr, writes("next"))
				a.faults.Heal() // when it returns, the late request has its answer
				stays := slices.Equal(elementsOf(tr, c.Client(tr), set), []string{"next"})
				tr.must(stays == ends, "the next write stays: %v", stays)
				a.unlocks()
			})
		})
	}
}

// elementsOf reads a set.
func elementsOf(tr *trial, admin *clientv3.Client, set string) []string {
	tr.Helper()
	resp, err := admin.Get(tr.bounded(patience), set)
	require.NoError(tr, err)
	require.Len(tr, resp.Kvs, 1)
	return strings.Fields(string(resp.Kvs[0].Value))
}

// cutOff cuts a member off from its peers, and confines a client to it.
func (s *storm) cutOff(c *etcdtest.Cluster) fault {
	return fault{"a member is cut off with a client", 0, 3 * time.Second, func(r *rand.Rand) func() {
		client := s.contenders[r.IntN(len(s.contenders))]
		cut := r.IntN(len(client.network))
		for m, p := range client.network {
			if m != cut {
				p.Refuse()
				p.Reset()
			}
		}
		c.Isolate(cut)
		return func() {
			c.Rejoin(cut)
			for _, p := range client.network {
				p.Heal()
			}
		}
	}}
}

// wakes thaws c, each time that it was frozen between a read and a write, after some time.
func (c *contender) wakes() {
	p := c.life()
	r := rand.New(rand.NewPCG(c.s.seed, hashed(c.who+" wakes")))
	go func() { // ends with the process
		for since := time.Duration(0); ; {
			e, stopped := p.says("stopped", since, time.Second)
			if stopped {
				time.Sleep(between(r, c.ttl, 3*c.ttl))
				p.thaw()
				since = e.At + 1
			}
			select {
			case <-p.over:
				return
			default:
			}
		}
	}()
}

// ---- the child's side

// addsMany adds to the set until its time is up or its hold is in doubt.
func (w *worker) addsMany(o order, r *rand.Rand) {
	for end := now() + between(r, 0, 400*time.Millisecond); now() < end && w.asks(); {
		if !w.adds(o, o.Stops && r.IntN(250) == 0) {
			return
		}
	}
}

// adds reads the set, adds to it and writes it back, and reports whether etcd has
// acknowledged that. A write with an unknown outcome may still come. As long as the hold
// lasts, that write would undo whatever is added after it, guard or not. So the hold has to
// end.
func (w *worker) adds(o order, stops bool) bool {
	guard := []clientv3.Cmp{w.lock.IsOwner()} // of this hold, whatever becomes of it
	value := fmt.Sprintf("%d.%d", w.lock.Token(), now())
	if !o.Guards {
		guard = nil
	}
	reading, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	set, err := w.client.Get(reading, o.Set)
	if err != nil {
		return false
	}
	if stops {
		w.tell(event{What: "stopped"})
		stopHere()
	}
	var elements []string
	for _, kv := range set.Kvs {
		elements = strings.Fields(string(kv.Value))
	}
	writing, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	resp, err := w.client.Txn(writing).If(guard...).
		Then(clientv3.OpPut(o.Set, strings.Join(append(elements, value), " "))).Commit()
	switch {
	case err != nil:
		return false
	case !resp.Succeeded:
		w.tell(event{What: "refused"})
		return false
	}
	w.tell(event{What: "added", Value: value})
	return true
}

// stopHere freezes this process. A signal to the calling thread stops it before the next
// line; a signal to the process might come a little later.
func stopHere() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGSTOP) // cannot fail
}
