package keepalive

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// What becomes of the streams, step by step. In a step the renewal of that letter is sent: "b", of
// the lease b; or "b:a", of the lease a; or "b!a", of the lease a, whose last one has failed; or
// "b?", of a lease whose last one was refused; or elsewhere: "b@". Or etcd answers on its stream
// ("a ok"), or the stream ends ("a end"). "later" is a while. Or it turns out that etcd itself
// reads the stream ("a yes"), or that it does not ("a no"), or that is late ("a late"). "a is"
// stands for "a ok, a yes". A stream has the name of the renewal for which it was opened.
func TestWhichStreamARenewalGoesOn(t *testing.T) {
	for _, row := range []struct{ what, steps, want string }{
		{"the first one opens a stream", "a", "a opens"},
		{"the second one goes on it, once it is proven", "a, a is, b", "a opens, b on a"},
		{"so do all others", "a, a is, b, c, b ok, d", "a opens, b on a, c on a, d on a"},
		{
			"if eight are under way there, for long, one opens another one",
			"a, a is, b, c, d, e, f, g, h, i, later, j, j is, k",
			"a opens, b on a, c on a, d on a, e on a, f on a, g on a, h on a, i on a, " +
				"j opens, k on j",
		},
		{
			"others wait for that meanwhile, and go where there is room first",
			"a, a is, b, c, d, e, f, g, h, i, later, j, k, l, m, n, b ok, c ok",
			"a opens, b on a, c on a, d on a, e on a, f on a, g on a, h on a, i on a, " +
				"j opens, k opens, l opens, m opens, n on a",
		},
		{
			"eight that go out together do not wait, nor seven, for however long",
			"a, a is, b, c, d, e, f, g, h, later, i, j",
			"a opens, b on a, c on a, d on a, e on a, f on a, g on a, h on a, i on a, j opens",
		},
		{
			"nor more, where they go out together",
			"a, a is, b, c, d, e, f, g, h, i, j, k",
			"a opens, b on a, c on a, d on a, e on a, f on a, g on a, h on a, i on a, j on a, k on a",
		},
		{"not two of a lease", "a, a is, b:a, c:a", "a opens, b on a, c opens"},
		{"not on one that has never answered", "a, b", "a opens, b opens"},
		{"it waits for one that is about to be", "a, a ok, b, a yes", "a opens, b on a"},
		{"but not for long", "a, a ok, b, a late, c", "a opens, b opens, a left, c opens"},
		{
			"on the one that was opened last, and the other ends",
			"a, b, a is, b is, c", "a opens, b opens, a left, c on b",
		},
		{"not on one that leads to a proxy", "a, a ok, a no, b", "a opens, a left, b opens"},
		{
			"no other is kept then", "a, a ok, a no, b, b ok, c, c ok",
			"a opens, a left, b opens, b left, c opens, c left",
		},
		{
			"except elsewhere", "a, a ok, a no, b@, b is, c@", "a opens, a left, b opens, c on b",
		},
		{"not on one that has ended", "a, a is, a end, b", "a opens, a left, b opens"},
		{"not on one that leads elsewhere", "a, a is, b@", "a opens, a left, b opens"},
		{
			"one that leads elsewhere ends when it has answered",
			"a, a is, b, c@, b ok", "a opens, b on a, c opens, a left",
		},
		{"after a failure on another one", "a, a is, b!a", "a opens, b opens"},
		{
			"which another lease has opened since",
			"a, a is, b, b ok, c!a, c is, d!b", "a opens, b on a, c opens, a left, d on c",
		},
		{"one that was refused on its own", "a, a is, b?", "a opens, b opens"},
		{
			"the answer of a silent one counts, and it ends",
			"a, a is, b:a, c!a, c is, b ok, d", "a opens, b on a, c opens, a left, d on c",
		},
		{
			"one that is not needed ends, whatever is under way elsewhere",
			"a, a is, b, c!a, c is, d!c, d is", "a opens, b on a, c opens, d opens, c left",
		},
		{"the fifth of those that begin at once waits", "a, b, c, d, e",
			"a opens, b opens, c opens, d opens"},
		{
			"for one that is proven",
			"a, b, c, d, e, f, b is", "a opens, b opens, c opens, d opens, e on b, f on b",
		},
		{
			"one of a lease whose other renewal there is answered", "a, b, c, d, a is, e, f:e, g:e, e ok",
			"a opens, b opens, c opens, d opens, e on a, f opens, g on a",
		},
		{
			"if one fails it opens one",
			"a, b, c, d, e, f, b end, c is",
			"a opens, b opens, c opens, d opens, b left, e opens, f on c",
		},
		{
			"one that was refused opens one after the others",
			"a, b, c, d, e?, f, b end", "a opens, b opens, c opens, d opens, b left, f opens",
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			var k streams
			k.join(2 * time.Second)
			var told []string
			now := time.Unix(1e9, 0)
			opened := map[*stream]string{} // by the renewal that opened it
			of := map[string]*wait{}
			tell := func() {
				for _, s := range slices.Clone(k.open) {
					if s.left {
						told = append(told, opened[s]+" left")
						k.open = slices.DeleteFunc(k.open, func(o *stream) bool { return o == s })
					}
				}
				k.admit(now)
				for _, who := range slices.Sorted(maps.Keys(of)) {
					w := of[who]
					if w.on == nil || w.gone {
						continue
					}
					w.gone = true // it was told
					if opened[w.on] == "" {
						opened[w.on] = who
						told = append(told, who+" opens")
					} else {
						told = append(told, who+" on "+opened[w.on])
					}
				}
			}
			for step := range strings.SplitSeq(row.steps, ", ") {
				if step == "later" {
					now = now.Add(time.Second / 4)
					tell()
					continue
				}
				who, what, _ := strings.Cut(step, " ")
				w := of[who[:1]]
				header := func(id clientv3.LeaseID, ttl int64) *pb.LeaseKeepAliveResponse {
					return &pb.LeaseKeepAliveResponse{ID: int64(id), TTL: ttl}
				}
				switch what {
				case "ok", "is":
					k.answered(w.on, header(w.by.id, 60))
					require.Len(t, w.answer, 1)
					if what == "is" {
						k.answered(w.on, header(noLease, 0))
					}
				case "late":
					k.opened(w.on)
				case "end":
					k.failed(w.on, errors.New("gone"))
				case "yes", "no":
					k.answered(w.on, header(noLease, map[string]int64{"yes": 0, "no": -1}[what]))
				default:
					now = now.Add(time.Millisecond)
					w = &wait{answer: make(chan answer, 1)}
					w.Anew = strings.Contains(who, "!")
					w.Refused = strings.HasSuffix(who, "?")
					if strings.HasSuffix(who, "@") {
						w.Where.Endpoints = "elsewhere"
					}
					if len(who) == 3 {
						w.by = of[who[2:]].by
					} else {
						w.by = &Sender{id: clientv3.LeaseID(who[0]), period: time.Second}
					}
					of[who[:1]] = w
					k.put(w)
				}
				tell()
			}
			require.Equal(t, row.want, strings.Join(told, ", "))
		})
	}
}

// Whatever fails, whenever, and for which leases: no more streams are begun than the answers and
// the time pay for, and no renewal waits where it could be sent.
func TestTheCreditIsKept(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		k, silent := streams{login: seed%2 == 0}, seed%3 == 0
		now := time.Unix(1e9, 0)
		var leases []*Sender
		for i := range 1 + r.IntN(60) {
			k.join(time.Duration(1+r.IntN(60)) * time.Second)
			leases = append(leases, &Sender{id: clientv3.LeaseID(i + 1)})
		}
		k.admit(now)
		began, answers := now, 0
		for step := range 3000 {
			now = now.Add(time.Duration(r.IntN(50)) * time.Millisecond)
			if len(k.open) > 0 && r.IntN(3) > 0 {
				on := k.open[r.IntN(len(k.open))]
				switch {
				case silent || r.IntN(3) == 0:
					k.failed(on, errors.New("gone"))
				case len(on.underWay) == 0:
					k.answered(on, &pb.LeaseKeepAliveResponse{})
				case r.IntN(20) == 0:
					k.opened(on) // its time is over
				default:
					answers++
					k.answered(on, &pb.LeaseKeepAliveResponse{ID: int64(on.underWay[0].by.id)})
				}
			} else {
				w := &wait{by: leases[r.IntN(len(leases))], answer: make(chan answer, 1)}
				w.Anew, w.Until = r.IntN(2) == 0, now.Add(time.Duration(r.IntN(60))*time.Second)
				k.put(w)
			}
			k.admit(now)
			k.open = slices.DeleteFunc(k.open, func(on *stream) bool { return on.left })
			paid := mostFailures + k.rate()*now.Sub(began).Seconds() + float64(answers*(1+perAnswer))
			if k.opening > mostOpenings || float64(k.begins) > paid {
				require.Fail(t, "too many", "seed %d: %d begun, %d opening", seed, k.begins, k.opening)
			}
			if len(k.waits) > 0 && k.mayOpen() {
				require.Fail(t, "kept waiting", "seed %d", seed)
			}
			if step%20 == 0 && slices.ContainsFunc(k.waits, k.carries) {
				require.Fail(t, "kept waiting beside a stream", "seed %d", seed)
			}
			require.True(t, slices.IsSortedFunc(k.waits, func(a, b *wait) int {
				return a.Until.Compare(b.Until)
			}))
		}
	}
}

// A client has few streams to lose while its leases live long, whatever leases it had before.
func TestOnlyTheLeasesThereAreCountForTheCredit(t *testing.T) {
	var k streams
	k.join(10 * time.Second)
	k.join(10 * time.Millisecond)
	require.InDelta(t, perPeriod/0.01, k.rate(), 0.01)
	k.join(time.Minute)
	k.leave(10 * time.Millisecond)
	require.InDelta(t, perPeriod/10, k.rate(), 0.01)
}

// etcd refuses lease after lease. The first refusal of each costs the others no stream.
func TestARefusalIsNoFailureOfAStream(t *testing.T) {
	for refused, most := range map[bool]int{false: 5 * mostFailures, true: mostFailures} {
		var k streams
		k.join(time.Hour)
		now := time.Unix(1e9, 0)
		for range 5 * mostFailures {
			w := &wait{by: &Sender{}, answer: make(chan answer, 1), Renewal: Renewal{Refused: refused}}
			k.put(w)
			k.admit(now)
			if w.on != nil {
				k.failed(w.on, rpctypes.ErrGRPCPermissionDenied)
			}
		}
		require.Equal(t, most, k.begins, "refused before: %v", refused)
	}
}

// A renewal goes on no stream that was opened before its lease was granted, or before a set-back
// that its Session has noticed: it may lead to an etcd that does not know the lease.
func TestAStreamFromBeforeASetBackIsNotUsed(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		result := b.send(b.sender, Renewal{Where: Where{Since: time.Now()}})
		require.Len(t, b.opened, 2)
		b.opened[1].answers(60)
		<-result
		b.opened[1].proves(0)

		young := b.lease(lease + 1)
		defer closeNow(young)
		young.since = time.Now()
		time.Sleep(time.Second)
		result = b.send(young, Renewal{})
		require.Len(t, b.opened, 3)
		b.opened[2].answers(60)
		<-result
	})
}

// Each stream fails as it is opened, where a thousand leases are to be renewed. Some are opened at
// once, and then ten a second: the leases whose trust ends first open them. The first one that is
// proven serves all leases.
func TestFewStreamsAreOpenedWhereAllFail(t *testing.T) {
	const leases, seconds = 1000, 3
	inWorld(t, func(t *testing.T, b *world) {
		b.becomes(status.Error(codes.Unavailable, "no upstream"), 0)
		began := time.Now()
		failed, renewed := make(chan time.Time, leases), make(chan struct{}, leases)
		for i := range clientv3.LeaseID(leases) {
			s := b.lease(i + 1)
			defer closeNow(s)
			until := began.Add(time.Hour + time.Duration(i*7%leases)*time.Second)
			go func() {
				r := Renewal{Until: until, Patience: 2 * seconds * time.Second}
				ctx, cancel := context.WithTimeout(b.ctx, bound)
				defer cancel()
				if _, err := s.Renew(ctx, r); err != nil {
					failed <- until
				} else {
					renewed <- struct{}{}
				}
			}()
		}
		synctest.Wait()
		require.Len(t, failed, mostFailures)
		for range mostFailures {
			<-failed // in whatever order they came
		}
		time.Sleep(seconds * time.Second)
		synctest.Wait()
		require.InDelta(t, seconds*mostLogins, len(failed), 1)
		var last time.Time
		for range len(failed) {
			until := <-failed
			require.True(t, until.After(last))
			last = until
		}

		b.becomes(nil, time.Millisecond)
		time.Sleep(time.Second)
		synctest.Wait()
		require.Empty(t, failed)
		require.InDelta(t, leases-mostFailures-seconds*mostLogins, len(renewed), 1)
		require.LessOrEqual(t, len(b.opened), mostOpenings)
	})
}

// A member restarts, and with it the stream ends on which the renewals of hundreds of leases are
// under way. None of them is a login, and answers take long. Few streams are opened all the same,
// and all leases are renewed within two round trips.
func TestTheRestartOfAMemberOpensFewStreams(t *testing.T) {
	const leases, away = 300, 385 * time.Millisecond
	inWorld(t, func(t *testing.T, b *world) {
		b.client.streams.login = false
		b.becomes(nil, away)
		var senders []*Sender
		for i := range clientv3.LeaseID(leases) {
			senders = append(senders, b.lease(i+1))
			defer closeNow(senders[i])
		}
		renewAll := func() (results []<-chan outcome) {
			for _, s := range senders {
				results = append(results, b.send(s, Renewal{Patience: time.Second}))
			}
			return results
		}
		for range 3 {
			before, began := len(b.wires()), time.Now()
			for _, result := range renewAll() {
				require.Equal(t, outcome{60, nil}, <-result)
			}
			require.LessOrEqual(t, time.Since(began), login+2*away)
			// The first ones have no answer for long, so others are opened.
			require.LessOrEqual(t, len(b.wires())-before, 2*mostOpenings)

			underWay := renewAll()
			for _, w := range b.wires() {
				if w.ctx.Err() == nil && len(w.requests) > 0 {
					w.failure <- status.Error(codes.Unavailable, "the member stops")
				}
			}
			good := 0
			for _, result := range underWay {
				if err := (<-result).err; err == nil {
					good++
				} else {
					require.ErrorIs(t, err, ErrStreamEnded)
				}
			}
			require.LessOrEqual(t, good, 1, "on a stream that was just being opened")
		}
	})
}

// Streams that hang hold up no others for long.
func TestStreamsThatHangHoldUpNoOthers(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for range mostOpenings {
			b.renew(false)
		}
		began := time.Now()
		b.becomes(nil, time.Millisecond)
		require.Equal(t, outcome{60, nil}, <-b.renew(false))
		require.Equal(t, openingTime+login+time.Millisecond, time.Since(began))
	})
}

// A renewal that gets no stream in time was not sent.
func TestARenewalThatGetsNoStreamWasNotSent(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for range mostOpenings {
			b.renew(false)
		}
		began := time.Now()
		result := b.send(b.sender, Renewal{Patience: openingTime / 2})
		err := (<-result).err
		require.True(t, attempt.NotApplied(err), "%v", err)
		require.ErrorIs(t, err, attempt.ErrUnreachable)
		require.NotErrorIs(t, err, ErrStreamEnded)
		require.Equal(t, openingTime/2, time.Since(began))
		time.Sleep(openingTime)
		require.Len(t, b.opened, mostOpenings, "nor is one opened for it later")
	})
}
