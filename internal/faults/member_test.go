package faults

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	grpcpeer "google.golang.org/grpc/peer"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// S19. A waiter whose member falls silent gets in by another one. Its client gets no sign
// of this: its connection just delivers nothing any more.
//
//	a holds, b waits by one of three members | that is frozen, or black-holed | a unlocks |
//	b gets in
func TestS19AWaiterWhoseMemberFallsSilentGetsIn(t *testing.T) {
	t.Parallel()
	// A silence makes two clients, and a way to silence the member at an address. The
	// client away stays away from that member.
	type silence func(tr *trial, opt contract.ClientOption) (away, client *clientv3.Client,
		silences func(addr string))
	frozen := func(leads bool) silence {
		return func(tr *trial, opt contract.ClientOption) (_, _ *clientv3.Client, _ func(string)) {
			s := startServers(tr, 3)
			away := s.client(tr)
			return away, s.client(tr, opt), func(addr string) {
				m := s.memberAt(addr)
				others := []int{(m + 1) % 3, (m + 2) % 3}
				if leads {
					s.moveLeader(m)
				} else if s.leader() == m {
					s.moveLeader(others[0])
				}
				away.SetEndpoints(s.endpoints(others...)...)
				s.freeze(m)
				tr.Cleanup(func() { s.thaw(m) })
				s.serves(others...)
			}
		}
	}
	blackHole := func(tr *trial, opt contract.ClientOption) (_, _ *clientv3.Client, _ func(string)) {
		c := etcdtest.Start(tr, 3)
		proxies := []*etcdtest.Proxy{c.Proxy(tr, 0), c.Proxy(tr, 1), c.Proxy(tr, 2)}
		return c.Client(tr), c.Client(tr, etcdtest.Via(proxies...), opt), func(addr string) {
			for _, p := range proxies {
				if p.Addr() == addr {
					p.BlackHole()
					tr.Cleanup(p.Heal)
				}
			}
		}
	}
	for _, how := range []struct {
		name    string
		silence silence
		lanes   int
	}{
		{"follower frozen", frozen(false), 2},
		{"leader frozen", frozen(true), 2},
		{"black-holed", blackHole, 8},
	} {
		t.Run(how.name, func(t *testing.T) {
			prove(t, row{
				id: "S19", name: how.name, quick: 2, lanes: how.lanes,
				fault: "the waiter's member: " + how.name + "; 3 endpoints, default client configuration",
				must:  "in <= 5 s after the release",
			}, func(tr *trial) {
				watch := new(route)
				away, client, silences := how.silence(tr, watch.option())
				a := tr.partyOf("a", away, 10*ttl)
				b := tr.partyOf("b", client, 10*ttl)

				a.locks()
				next := b.starts(context.Background())
				require.True(tr, contract.Eventually(patience, watch.known), "b does not watch")
				silences(watch.addr())
				a.unlocks()
				next.follows("release", now(), 5*time.Second)
				b.unlocks()
			})
		})
	}
}

// A route is the way that a client's latest watch takes.
type route struct {
	mu   sync.Mutex
	last string // address, host:port
}

func (r *route) addr() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}

func (r *route) known() bool { return r.addr() != "" }

func (r *route) option() contract.ClientOption {
	return func(cfg *clientv3.Config) {
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithChainStreamInterceptor(r.intercept))
	}
}

func (r *route) intercept(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
	streamer grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || !strings.HasSuffix(method, "/Watch") {
		return s, err
	}
	return routed{s, r}, nil
}

type routed struct {
	grpc.ClientStream
	route *route
}

// RecvMsg records where the message came from. Before that it is not known.
func (s routed) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if p, ok := grpcpeer.FromContext(s.Context()); ok && err == nil {
		s.route.mu.Lock()
		defer s.route.mu.Unlock()
		s.route.last = p.Addr.String()
	}
	return err
}

// S22. Nothing that happens to the members of a cluster costs a hold, or a waiter its turn.
//
//	a holds, b and c wait | it happens | a still holds, longer than its lease would last
//	without a renewal after that | a unlocks | b gets in, then c
func TestS22WhatHappensToTheMembersCostsNoHold(t *testing.T) {
	t.Parallel()
	type world func(tr *trial) (client func() *clientv3.Client, happens func())
	processes := func(happens func(s *servers)) world {
		return func(tr *trial) (func() *clientv3.Client, func()) {
			s := startServers(tr, 3)
			return func() *clientv3.Client { return s.client(tr) }, func() { happens(s) }
		}
	}
	faults := []struct {
		name   string
		leader bool // an election follows, which may take as long as a short TTL
		outage bool // nobody serves until it is over
		world  world
	}{
		{name: "leader killed", leader: true, world: processes(func(s *servers) { s.kill(s.leader()) })},
		{name: "leader frozen for 3 s", leader: true, world: processes(func(s *servers) {
			leader := s.leader()
			s.freeze(leader)
			time.Sleep(3 * time.Second)
			s.thaw(leader)
		})},
		{name: "leader moved", leader: true, world: processes(func(s *servers) { s.moveLeader((s.leader() + 1) % 3) })},
		// This one is in this process, where a member can be cut from its peers and not
		// from clients.
		{name: "leader cut from its peers", leader: true,
			world: func(tr *trial) (func() *clientv3.Client, func()) {
				c := etcdtest.Start(tr, 3)
				return func() *clientv3.Client { return c.Client(tr) }, func() {
					leader := c.Leader(tr)
					c.Isolate(leader)
					tr.Cleanup(func() { c.Rejoin(leader) })
				}
			}},
		{name: "rolling restart", world: processes(func(s *servers) {
			for m := range s.members {
				s.retire(m)
				s.restart(m)
				s.serves(m)
			}
		})},
		{name: "all members killed and restarted", outage: true, world: processes(func(s *servers) {
			for m := range s.members {
				s.kill(m)
			}
			for m := range s.members {
				s.restart(m)
			}
			s.serves()
		})},
	}
	survives := func(tr *trial, ttl time.Duration, world world, promised, outage bool) {
		client, happens := world(tr)
		admin := client()
		a := tr.partyOf("a", client(), ttl)
		b := tr.partyOf("b", client(), ttl)
		c := tr.partyOf("c", client(), ttl)

		a.locks()
		first := b.starts(context.Background())
		tr.lineIs(admin, 2)
		second := c.starts(context.Background())
		tr.lineIs(admin, 3)
		tr.phase(ttl / 3)
		began := now()
		happens()
		if outage {
			away := now() - began
			tr.figures.longest("time without etcd", away)
			// When a renewal is due, two thirds of the TTL are left, less the margin.
			promised = promised && away < ttl/2
		}
		a.holdsFor(began + ttl + time.Second - now())

		whole := a.lock.Holds()
		if !whole {
			tr.figures.add("holds lost", 1)
		}
		tr.must(whole || !promised, "a lost the lock")
		// A leader that was stopped for longer than the TTL revokes leases that its successor has
		// renewed (etcd 15247), also while a hold counts. Its Unlock says so.
		unlocks := (*party).unlocks
		if !promised {
			unlocks = (*party).endsItsHold
		}
		if whole {
			unlocks(a)
		} else {
			_ = a.releases(patience)
		}
		released := now()
		if !promised { // b may have lost its place, too, and stand behind c
			select {
			case <-first.done:
			case <-second.done:
				first, second = second, first
			case <-time.After(5 * time.Second):
			}
		}
		first.follows("release", released, 5*time.Second)
		unlocks(first.p)
		second.follows("release", now(), 5*time.Second)
		unlocks(second.p)
	}

	var all sync.WaitGroup
	free := make(chan struct{}, 3) // how many clusters run at once
	for _, fault := range faults {
		free <- struct{}{}
		all.Go(func() {
			defer func() { <-free }()
			t.Run(fault.name, func(t *testing.T) {
				must := "no hold lost; every waiter in <= 5 s after the release"
				if fault.outage {
					must += " (where etcd serves again within half a TTL)"
				}
				prove(t, row{
					id: "S22", name: fault.name + ", TTL 5 s", lanes: 1,
					fault: fault.name + ", of 3; TTL 5 s", must: must,
				}, func(tr *trial) { survives(tr, 5*time.Second, fault.world, true, fault.outage) })
			})
			if fault.leader && *trials > 0 { // for comparison, in full runs
				t.Run(fault.name+", TTL 2 s", func(t *testing.T) {
					prove(t, row{
						id: "S22", name: fault.name + ", TTL 2 s", lanes: 1,
						fault: fault.name + ", of 3; TTL 2 s, no longer than it may take to elect another",
						must:  "every waiter in <= 5 s after the release (that no hold is lost is not promised: see the figure)",
					}, func(tr *trial) { survives(tr, 2*time.Second, fault.world, false, fault.outage) })
				})
			}
		})
	}
	all.Wait()
}
