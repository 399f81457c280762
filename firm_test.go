package etcdlock

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// What a renewal is worth depends on the others that may have reached another leader. Each step
// comes 100 ms after the one before; what is wanted is the step from whose beginning the trust
// counts in the end.
func TestWhatARenewalIsWorth(t *testing.T) {
	const (
		step = 100 * time.Millisecond
		ttl  = 3 * time.Second
	)
	type steps []func(*renewals)
	late := func(n int, member, term uint64) func(*renewals) {
		return func(r *renewals) { r.answer(n, member, term) }
	}
	send := func(r *renewals) { r.send() }
	prompt := func(member, term uint64) func(*renewals) {
		return func(r *renewals) { r.answer(r.send(), member, term) }
	}
	ask := func(r *renewals) { r.asked = r.l.s.asks() }
	told := func(term uint64) func(*renewals) {
		return func(r *renewals) { r.l.s.proved(&pb.ResponseHeader{RaftTerm: term}, r.asked) }
	}
	confirmed := steps{prompt(2, 2), ask, told(2)}
	twice := func(r *renewals) { r.send(); r.send() }
	setBack := func(r *renewals) { r.l.s.era.Store(&era{}) }

	for _, tt := range []struct {
		name  string
		steps steps
		want  int
	}{
		{"one after another, of one member", steps{prompt(1, 2), prompt(1, 2)}, 1},
		{"one after another, of two members", steps{prompt(1, 2), prompt(2, 2)}, 1},
		{"late, of one member", steps{send, late(0, 1, 2), prompt(1, 2)}, 2},
		{"under way at once, of one member", steps{send, send, late(0, 1, 2), late(1, 1, 2)}, 1},
		{"under way at once, of two members", steps{send, send, late(0, 1, 2), late(1, 2, 2)}, 0},
		{"under way at once, and the later one first", steps{send, send, late(1, 1, 2), late(0, 1, 2)}, 0},
		{"late, of another member", steps{send, late(0, 1, 2), prompt(2, 2)}, 0},
		{"late, and a read between them", steps{send, late(0, 1, 2), ask, told(2), prompt(2, 2)}, 4},
		{"late, and a read that was asked too soon", steps{send, ask, late(0, 1, 2), told(2), prompt(2, 2)}, 0},
		{"another one is under way", steps{send, prompt(2, 2)}, 0},
		{"another one is under way, and a read between them", steps{send, ask, told(2), prompt(2, 2)}, 0},
		{"another one is under way, and a read afterwards", steps{send, prompt(2, 2), ask, told(2)}, 1},
		{"another one is under way, and a read that was asked too soon", steps{send, ask, prompt(2, 2), told(2)}, 0},
		{"a read tells of a newer leader", steps{send, prompt(2, 2), ask, told(3)}, 0},
		{"the newer one answers, too", steps{send, prompt(2, 2), ask, told(3), prompt(3, 3), ask, told(3)}, 4},
		{"sent at once", steps{twice, late(1, 2, 2)}, 0},
		{"a member that does not know of the newer leader", steps{prompt(1, 3), prompt(2, 2)}, 0},
		{"nor does etcd any more", steps{prompt(1, 3), prompt(2, 2), ask, told(2)}, 1},
		{"nor does etcd any more, the next one", steps{prompt(1, 3), prompt(2, 2), ask, told(2), prompt(2, 2)}, 4},
		{"a read beside it", steps{ask, prompt(1, 3), told(3), prompt(2, 2)}, 1},
		{"of before a set-back", steps{send, prompt(1, 9), setBack, ask, told(2)}, 0},
		{"after a set-back", steps{prompt(1, 9), setBack, prompt(1, 2)}, 2},
		{"another one was under way 8 s ago", append(append(steps{send}, slices.Repeat(confirmed, 27)...), prompt(2, 2)), 79},
		{"another one was under way 10 s ago", append(append(steps{send}, slices.Repeat(confirmed, 33)...), prompt(2, 2)), 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, err := NewSession(fake.NewServer().Client("a"), WithTTL(ttl))
				require.NoError(t, err)
				span := ttl - s.cfg.marginOf(ttl)
				began := time.Now()
				l := &lease{s: s, ttl: ttl, trustedUntil: began.Add(span - time.Second)}
				l.expiry = time.AfterFunc(time.Hour, func() {})
				defer l.expiry.Stop()
				s.leases[l] = struct{}{}
				r := &renewals{l: l}
				for _, do := range tt.steps {
					do(r)
					time.Sleep(step)
				}
				require.NoError(t, l.ended)
				require.Equal(t, time.Duration(tt.want)*step, l.trustedUntil.Add(-span).Sub(began))
			})
		})
	}
}

type renewals struct {
	l     *lease
	sent  []*try
	asked asking
}

func (r *renewals) send() int {
	r.l.s.mu.Lock()
	defer r.l.s.unlock()
	r.sent = append(r.sent, r.l.sendsLocked(time.Now()))
	return len(r.sent) - 1
}

func (r *renewals) answer(n int, member, term uint64) {
	h := &pb.ResponseHeader{MemberId: member, RaftTerm: term}
	r.l.answered(r.sent[n], &clientv3.LeaseKeepAliveResponse{ResponseHeader: h, TTL: int64(r.l.ttl / time.Second)})
}
