package sim

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/race"
)

const renewTTL = 9 * time.Second // a renewal is due each 3 s

// A renewer is a process whose renewals the test watches as they leave its client.
type renewer struct {
	net     *Net
	cluster *Cluster
	client  *clientv3.Client
	s       *etcdlock.Session
	mu      *etcdlock.Mutex

	guard   sync.Mutex // never held across a wait
	streams []*renewals
	reads   int          // Range and Txn
	proxy   bool         // a proxy ends each new stream
	ended   int          // streams that it has ended
	fails   func() error // fails a request, or the opening of a stream; nil if none fails

	swallows  bool // one of the reads under way gets no answer
	swallowed int  // how many reads get none now
}

// renewals are the renewals on one stream.
type renewals struct {
	grpc.ClientStream
	by     *renewer
	opened context.Context // with which it was opened
	sent   int             // guarded by by.guard
}

func (s *renewals) SendMsg(m any) error {
	s.by.guard.Lock()
	s.sent++
	s.by.guard.Unlock()
	return s.ClientStream.SendMsg(m)
}

func (w *renewer) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	if err := w.failure(); err != nil {
		return nil, err
	}
	if !strings.HasSuffix(method, "/LeaseKeepAlive") {
		return open(ctx, desc, cc, method, opts...)
	}
	if w.endsStream() {
		return nil, status.Error(codes.Unavailable, "no upstream")
	}
	opened, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	s := &renewals{ClientStream: opened, by: w, opened: ctx}
	w.guard.Lock()
	defer w.guard.Unlock()
	w.streams = append(w.streams, s)
	return s, nil
}

// endsStream reports whether a proxy ends a new stream at once, and counts that.
func (w *renewer) endsStream() bool {
	w.guard.Lock()
	defer w.guard.Unlock()
	if w.proxy {
		w.ended++
	}
	return w.proxy
}

// failure is the error with which a request, or the opening of a stream, fails, or nil.
func (w *renewer) failure() error {
	w.guard.Lock()
	defer w.guard.Unlock()
	if w.fails == nil {
		return nil
	}
	return w.fails()
}

// proxied makes a proxy end each new stream, or none.
func (w *renewer) proxied(ends bool) {
	w.guard.Lock()
	defer w.guard.Unlock()
	w.proxy = ends
}

func (w *renewer) unary(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
) error {
	if err := w.failure(); err != nil {
		return err
	}
	if strings.HasSuffix(method, "/Range") || strings.HasSuffix(method, "/Txn") {
		w.guard.Lock()
		w.reads++
		swallowed := w.swallows && w.swallowed == 0
		if swallowed {
			w.swallowed++
		}
		w.guard.Unlock()
		if swallowed {
			<-ctx.Done()
			w.guard.Lock()
			w.swallowed--
			w.guard.Unlock()
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

// swallow leaves one of the reads under way without an answer, or none.
func (w *renewer) swallow(on bool) {
	w.guard.Lock()
	defer w.guard.Unlock()
	w.swallows = on
}

// opened returns how many streams were opened so far, how many renewals they carried, and
// how many streams are open.
func (w *renewer) opened() (streams, sent, open int) {
	w.guard.Lock()
	defer w.guard.Unlock()
	for _, s := range w.streams {
		sent += s.sent
		if s.opened.Err() == nil {
			open++
		}
	}
	return len(w.streams) + w.ended, sent, open
}

// asked returns how many requests were sent, without renewals and reads of the lease.
func (w *renewer) asked() int {
	w.guard.Lock()
	defer w.guard.Unlock()
	return w.reads
}

// at returns the number of the member to which the stream leads.
func (w *renewer) at(t *testing.T) (member int) {
	w.guard.Lock()
	defer w.guard.Unlock()
	found := 0
	for _, s := range w.streams {
		if s.opened.Err() == nil {
			to, _ := peer.FromContext(s.Context())
			_, err := fmt.Sscanf(to.Addr.String(), "m%d", &member)
			require.NoError(t, err)
			found++
		}
	}
	require.Equal(t, 1, found, "streams that are open at rest")
	return member
}

// holding makes a process hold a lock of a cluster of three members, some of which it
// knows.
func holding(
	t *testing.T, seed uint64, known int, f func(t *testing.T, w *renewer, hold context.Context),
) {
	require.NoError(t, inBubble(t, seed, func(t *testing.T) {
		w := &renewer{net: NewNet(seed)}
		w.cluster = NewCluster(seed, w.net, members)
		w.cluster.ExpireInTime()
		var endpoints []string
		for m := range known {
			endpoints = append(endpoints, fmt.Sprint("http://m", m))
		}
		var err error
		w.client, err = w.net.Client("one", endpoints,
			grpc.WithChainStreamInterceptor(w.stream), grpc.WithChainUnaryInterceptor(w.unary))
		require.NoError(t, err)
		w.s, err = etcdlock.NewSession(w.client, etcdlock.WithTTL(renewTTL))
		require.NoError(t, err)
		w.mu, err = w.s.Mutex("n")
		require.NoError(t, err)
		require.NoError(t, w.mu.Lock(t.Context()))
		f(t, w, w.mu.Context(context.Background()))
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_ = w.s.Close(ctx) // a process that is cut off cannot say so
		cancel()
		synctest.Wait()
		_, _, open := w.opened()
		require.Zero(t, open, "streams are open after Close")
		_ = w.client.Close()
		w.net.Close()
		w.cluster.Stop()
	}))
}

// slow slows the ways to all members and back.
func (w *renewer) slow(d time.Duration) {
	for m := range members {
		w.net.Slow("one", fmt.Sprint("m", m), d)
		w.net.Slow(fmt.Sprint("m", m), "one", d)
	}
}

// hole loses what is sent between the process and a member, both ways.
func (w *renewer) hole(member int) {
	w.net.Lose("one", fmt.Sprint("m", member))
	w.net.Lose(fmt.Sprint("m", member), "one")
}

func (w *renewer) mend(member int) {
	w.net.Find("one", fmt.Sprint("m", member))
	w.net.Find(fmt.Sprint("m", member), "one")
}

// At rest a lease costs one message per period, on one stream, and an audit in four periods. No
// read is needed to find out what the answer is worth. That holds for any number of endpoints,
// however far away they are.
func TestAtRestALeaseCostsOneStreamAndOneMessageAPeriod(t *testing.T) {
	const periods = 100
	for _, row := range []struct {
		what  string
		known int
		away  time.Duration
	}{
		{"one endpoint", 1, 0},
		{"three endpoints", 3, 0},
		{"three endpoints, 120 ms away", 3, 60 * time.Millisecond},
	} {
		t.Run(row.what, func(t *testing.T) {
			holding(t, 1, row.known, func(t *testing.T, w *renewer, hold context.Context) {
				w.slow(row.away)
				time.Sleep(renewTTL) // by then the hold is watched, and its key was read for that
				before := w.asked()
				_, earlier, _ := w.opened()
				time.Sleep(periods*renewTTL/3 + renewTTL/6)
				streams, sent, open := w.opened()
				sent -= earlier
				require.Equal(t, 1, streams)
				require.Equal(t, 1, open)
				require.GreaterOrEqual(t, sent, periods-1)
				require.LessOrEqual(t, sent, periods*105/100, "slow answers are asked for sooner")
				require.LessOrEqual(t, w.asked()-before, periods/4, "reads, those of audits among them")
				require.NoError(t, hold.Err())
			})
		})
	}
}

// The member to which the stream leads is frozen, or what is sent to it and back vanishes,
// or only its answers do. This happens again and again, at any moment between two renewals.
// The other member keeps the lease alive.
func TestASilentStreamIsReplacedInTime(t *testing.T) {
	const rounds, least, last = 10, 2 * renewTTL, 8 * renewTTL
	for what, faults := range map[string]struct {
		begin, end func(w *renewer, member int)
	}{
		"a black hole": {(*renewer).hole, (*renewer).mend},
		"a frozen one": {
			func(w *renewer, m int) { w.cluster.Freeze(m) },
			func(w *renewer, m int) { w.cluster.Thaw(m) },
		},
		"no answers": {
			func(w *renewer, m int) { w.net.Lose(fmt.Sprint("m", m), "one") },
			func(w *renewer, m int) { w.net.Find(fmt.Sprint("m", m), "one") },
		},
		"answers wait": {
			func(w *renewer, m int) { w.net.Hold(fmt.Sprint("m", m), "one") },
			func(w *renewer, m int) { w.net.Release(fmt.Sprint("m", m), "one") },
		},
		"a killed one": {
			func(w *renewer, m int) { w.cluster.Kill(m) },
			func(w *renewer, m int) { w.cluster.Boot(m) },
		},
		"a cut off one": {
			func(w *renewer, m int) { w.cluster.Cut(m) },
			func(w *renewer, m int) { w.cluster.Heal(m) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			for seed := range uint64(race.Fewer(10, 2)) {
				holding(t, seed, 2, func(t *testing.T, w *renewer, hold context.Context) {
					r := generator(seed, "silent")
					for range rounds {
						time.Sleep(renewTTL + time.Duration(r.Int64N(int64(renewTTL/3))))
						before, _, _ := w.opened()
						member := w.at(t)
						faults.begin(w, member)
						time.Sleep(least + time.Duration(r.Int64N(int64(last))))
						require.NoError(t, hold.Err(), "seed %d, %v", seed, context.Cause(hold))
						after, _, _ := w.opened()
						require.Greater(t, after, before, "the stream stays at the silent member")
						faults.end(w, member)
						w.net.ResetHoles(func(string, string) bool { return false })
					}
					time.Sleep(renewTTL)
					_, _, open := w.opened()
					require.Equal(t, 1, open)
				})
			}
		})
	}
}

// A renewal after one without an answer is in doubt, so a read asks what it is worth. If
// that read has no answer either, it may have met the very member that is silent. Then one
// more read asks.
func TestAReadOfDoubtMeetsAnotherMember(t *testing.T) {
	holding(t, 1, 2, func(t *testing.T, w *renewer, hold context.Context) {
		for range 3 {
			time.Sleep(2 * renewTTL)
			silent := fmt.Sprint("m", w.at(t))
			w.swallow(true)
			w.net.Hold(silent, "one")
			time.Sleep(4 * renewTTL)
			require.NoError(t, hold.Err(), "%v", context.Cause(hold))
			w.swallow(false)
			w.net.Release(silent, "one")
			w.net.ResetHoles(func(string, string) bool { return false })
		}
	})
}

// While no member can be reached, or none answers, streams are opened as seldom as renewals
// are sent: there is no loop. After the outage one stream stays.
func TestAnOutageOpensFewStreams(t *testing.T) {
	const (
		outage = 60 * time.Second
		late   = renewTTL / 6
		again  = renewTTL / 3 * 3 / 16 * 3 / 4 // with the most jitter
		atOnce = renewTTL / 3 / 30 * 3 / 4     // after an error that comes back at once
	)
	for what, row := range map[string]struct {
		begin, end func(w *renewer, member int)
		pause      time.Duration // the least pause between two that fail
	}{
		"refused": {
			func(w *renewer, m int) {
				w.net.Refuse("one", fmt.Sprint("m", m), true)
				w.net.Reset("one", fmt.Sprint("m", m))
			},
			func(w *renewer, m int) { w.net.Refuse("one", fmt.Sprint("m", m), false) },
			again,
		},
		"black holes": {(*renewer).hole, (*renewer).mend, late},
		"no leader": {
			func(w *renewer, m int) { w.cluster.Cut(m) },
			func(w *renewer, m int) { w.cluster.Heal(m) }, late,
		},
		"a proxy ends each": {
			func(w *renewer, m int) {
				w.proxied(true)
				w.net.Reset("one", fmt.Sprint("m", m))
			},
			func(w *renewer, m int) { w.proxied(false) }, atOnce,
		},
	} {
		t.Run(what, func(t *testing.T) {
			holding(t, 1, 3, func(t *testing.T, w *renewer, hold context.Context) {
				time.Sleep(renewTTL)
				before, sentBefore, _ := w.opened()
				for m := range members {
					row.begin(w, m)
				}
				begun := time.Now()
				time.Sleep(outage)
				streams, sent, open := w.opened()
				t.Logf("%d streams, %d renewals", streams-before, sent-sentBefore)
				require.ErrorIs(t, context.Cause(hold), etcdlock.ErrExpired)
				require.LessOrEqual(t, streams-before, 2*int(renewTTL/row.pause), "two at a time")
				require.Zero(t, open, "%v after the lease was lost", time.Since(begun))
				for m := range members {
					row.end(w, m)
				}
				w.net.ResetHoles(func(string, string) bool { return false })
				require.ErrorIs(t, w.mu.Unlock(context.Background()), etcdlock.ErrLost)
				require.NoError(t, w.mu.Lock(t.Context()))
				time.Sleep(renewTTL)
				_, _, open = w.opened()
				require.Equal(t, 1, open)
			})
		})
	}
}

// Answers take long, as where clientv3 repeats most reads. A renewal that fails at once is sent
// again soon all the same: thirty times in a third of the TTL.
func TestARenewalThatFailsAtOnceIsSentAgainSoonWhereAnswersAreSlow(t *testing.T) {
	holding(t, 1, 1, func(t *testing.T, w *renewer, hold context.Context) {
		w.slow(100 * time.Millisecond)
		other, err := w.s.Mutex("other")
		require.NoError(t, err)
		for range 4 {
			require.NoError(t, other.Lock(t.Context()))
			require.NoError(t, other.Unlock(t.Context()))
		}
		w.proxied(true)
		w.net.Reset("one", "m0")
		time.Sleep(renewTTL / 6) // the first renewal after that fails
		before, _, _ := w.opened()
		time.Sleep(renewTTL / 6)
		failed, _, _ := w.opened()
		require.GreaterOrEqual(t, failed-before, 12)
		require.LessOrEqual(t, failed-before, 18)
		w.proxied(false)
		time.Sleep(renewTTL)
		require.NoError(t, hold.Err())
	})
}

// Two of three requests fail at once, and two of three streams cannot be opened. The connections
// break again and again, so that streams have to be opened. No hold is lost.
func TestStreamsThatCannotBeOpenedLoseNoHold(t *testing.T) {
	for _, known := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d endpoints", known), func(t *testing.T) {
			for seed := range uint64(3) {
				holding(t, seed, known, func(t *testing.T, w *renewer, hold context.Context) {
					r := generator(seed, "openings")
					w.guard.Lock()
					w.fails = func() error {
						if r.IntN(3) == 0 {
							return nil
						}
						return status.Error(codes.Unavailable, "no upstream")
					}
					w.guard.Unlock()
					for range 10 * time.Minute / renewTTL {
						time.Sleep(renewTTL)
						for m := range known {
							w.net.Reset("one", fmt.Sprint("m", m))
						}
						require.NoError(t, hold.Err(), "seed %d, %v", seed, context.Cause(hold))
					}
					w.guard.Lock()
					w.fails = nil
					w.guard.Unlock()
				})
			}
		})
	}
}

// The renewals of many Sessions of a client go on few streams, though each lease has a message in
// each period. When these streams end, as at the restart of a member, few others take their place:
// with user and password each would be a login.
func TestALostStreamIsReplacedOnceForAllLeases(t *testing.T) {
	const sessions, few = 100, 8
	for _, known := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d endpoints", known), func(t *testing.T) {
			holding(t, 1, known, func(t *testing.T, w *renewer, hold context.Context) {
				w.slow(time.Millisecond)
				holds := []context.Context{hold}
				r := generator(1, "sessions")
				for i := range sessions - 1 {
					s, err := etcdlock.NewSession(w.client, etcdlock.WithTTL(renewTTL))
					require.NoError(t, err)
					defer func() { require.NoError(t, s.Close(context.Background())) }()
					mu, err := s.Mutex(fmt.Sprint(i))
					require.NoError(t, err)
					require.NoError(t, mu.Lock(t.Context()))
					holds = append(holds, mu.Context(context.Background()))
					time.Sleep(time.Duration(r.Int64N(int64(renewTTL / 3 * 2 / sessions))))
				}
				time.Sleep(2 * renewTTL)
				before, sent, open := w.opened()
				require.LessOrEqual(t, open, few)
				time.Sleep(renewTTL)
				after, sentAfter, _ := w.opened()
				require.InDelta(t, 3*sessions, sentAfter-sent, sessions/10)
				require.LessOrEqual(t, after-before, 1)
				for range 5 {
					before, _, _ = w.opened()
					for m := range known {
						w.net.Reset("one", fmt.Sprint("m", m))
					}
					time.Sleep(renewTTL)
					after, _, _ = w.opened()
					require.LessOrEqual(t, after-before, few)
					for _, hold := range holds {
						require.NoError(t, hold.Err(), "%v", context.Cause(hold))
					}
				}
			})
		})
	}
}

// A lease that nobody uses is given back after two TTLs, with its stream.
func TestWithoutALeaseThereIsNoStream(t *testing.T) {
	holding(t, 1, 3, func(t *testing.T, w *renewer, hold context.Context) {
		time.Sleep(renewTTL)
		_, _, open := w.opened()
		require.Equal(t, 1, open)
		require.NoError(t, w.mu.Unlock(context.Background()))
		time.Sleep(3 * renewTTL)
		require.Equal(t, clientv3.LeaseID(clientv3.NoLease), w.s.Lease())
		_, _, open = w.opened()
		require.Zero(t, open)
	})
}

// gRPC keeps a stream open to an endpoint even after the client was moved away from it.
// There the lease may live on, while the lock is given to others where the client is now.
func TestRenewalsGoWhereTheClientGoes(t *testing.T) {
	holding(t, 1, 1, func(t *testing.T, w *renewer, hold context.Context) {
		time.Sleep(renewTTL)
		require.Equal(t, 0, w.at(t))
		w.client.SetEndpoints("http://m1", "http://m2")
		time.Sleep(renewTTL / 2) // a renewal
		require.NotEqual(t, 0, w.at(t))
		time.Sleep(renewTTL)
		streams, _, open := w.opened()
		require.Equal(t, 2, streams)
		require.Equal(t, 1, open)
		require.NoError(t, hold.Err())
	})
}

// The context of a client's Config has ended, as at the shutdown of a process that gives the same
// one to all that it starts. clientv3 does not end any request for it, so holds are released, and
// the Session goes on. With the client closed it does not.
func TestTheEndOfTheClientsContextBlocksNobody(t *testing.T) {
	require.NoError(t, inBubble(t, 1, func(t *testing.T) {
		net := NewNet(1)
		cluster := NewCluster(1, net, members)
		endpoints := []string{"http://m0", "http://m1", "http://m2"}
		ctx, end := context.WithCancel(context.Background())
		client, err := net.clientIn(ctx, "one", endpoints)
		require.NoError(t, err)
		s, err := etcdlock.NewSession(client, etcdlock.WithTTL(renewTTL))
		require.NoError(t, err)
		h, err := s.Lock(t.Context(), "n")
		require.NoError(t, err)
		waits := make(chan error, 1)
		go func() { waits <- s.Do(t.Context(), "n", func(context.Context) error { return nil }) }()
		time.Sleep(time.Second)
		end()
		time.Sleep(2 * renewTTL)
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, <-waits)
		h, err = s.Lock(t.Context(), "n")
		require.NoError(t, err)
		require.NoError(t, h.Unlock(t.Context()))
		require.NoError(t, client.Close())
		_, err = s.Lock(t.Context(), "n")
		require.ErrorContains(t, err, "the etcd client is closed")
		require.ErrorIs(t, s.Close(t.Context()), etcdlock.ErrUnconfirmed)
		net.Close()
		cluster.Stop()
	}))
}

// A stream of the renewals hangs in the user's code, which does not look at its context. That
// delays no Close of any Session of the client: the lease is revoked, and the call ends in time.
func TestAStreamThatHangsInTheUsersCodeDelaysNoClose(t *testing.T) {
	require.NoError(t, inBubble(t, 1, func(t *testing.T) {
		net := NewNet(1)
		cluster := NewCluster(1, net, members)
		hangs := make(chan struct{})
		var opened atomic.Int64
		time.AfterFunc(time.Minute, func() { close(hangs) })
		client, err := net.Client("one", []string{"http://m0"}, grpc.WithChainStreamInterceptor(func(
			ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			open grpc.Streamer, opts ...grpc.CallOption,
		) (grpc.ClientStream, error) {
			if strings.HasSuffix(method, "/LeaseKeepAlive") {
				if opened.Add(1) == 1 {
					<-hangs
				}
			}
			return open(ctx, desc, cc, method, opts...)
		}))
		require.NoError(t, err)
		var all []*etcdlock.Session
		for _, name := range []string{"a", "b"} {
			s, err := etcdlock.NewSession(client, etcdlock.WithTTL(renewTTL))
			require.NoError(t, err)
			_, err = s.Lock(t.Context(), name)
			require.NoError(t, err)
			all = append(all, s)
			time.Sleep(renewTTL / 6)
		}
		time.Sleep(renewTTL)
		for _, s := range all {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			began := time.Now()
			closed := s.Close(ctx)
			cancel()
			require.LessOrEqual(t, time.Since(began), time.Second)
			require.NoError(t, closed)
		}
		other, err := net.Client("two", []string{"http://m0"})
		require.NoError(t, err)
		keys, err := other.Get(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCountOnly())
		require.NoError(t, err)
		require.Zero(t, keys.Count)
		time.Sleep(time.Minute)
		require.NoError(t, other.Close())
		require.NoError(t, client.Close())
		net.Close()
		cluster.Stop()
	}))
}
