package keepalive

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// What becomes of the streams, step by step. In a step the renewal of that letter is sent: "b"; or
// at the same time as the one before: "b!!"; or because the renewal a has failed: "b!a"; or
// elsewhere: "b@". Or etcd answers on its stream ("a ok"), or the stream ends ("a end"). Or it
// turns out that etcd itself reads the stream ("a yes"), or that it does not ("a no"). "a is"
// stands for "a ok, a yes". With a number it is that member which answers: "a ok 2". A stream has
// the name of the renewal for which it was opened.
func TestWhichStreamARenewalGoesOn(t *testing.T) {
	for _, row := range []struct{ what, steps, want string }{
		{"the first one opens a stream", "a", "a opens"},
		{"the second one goes on it, once it is proven", "a, a is, b", "a opens, b on a"},
		{"so do all others", "a, a is, b, b ok, c, c ok, d", "a opens, b on a, c on a, d on a"},
		{"not on one that has never answered", "a, b", "a opens, b opens"},
		{"not on one that is not proven yet", "a, a ok, b", "a opens, b opens"},
		{
			"rather on the one that was opened last",
			"a, a ok, b, b is, a yes, c", "a opens, b opens, c on b",
		},
		{
			"rather on one to the member that has answered last",
			"a, b, a is 1, b is 2, c, d, c ok 2, d ok 1, e",
			"a opens, b opens, c on b, d on a, e on a",
		},
		{"not on one that leads to a proxy", "a, a ok, a no, b", "a opens, a left, b opens"},
		{
			"no other is kept then", "a, a ok, a no, b, b ok, c, c ok",
			"a opens, a left, b opens, b left, c opens, c left",
		},
		{
			"except elsewhere", "a, a ok, a no, b@, b is, c@", "a opens, a left, b opens, c on b",
		},
		{"not beside another", "a, a is, b, c", "a opens, b on a, c opens"},
		{"not on one that has ended", "a, a is, a end, b", "a opens, a left, b opens"},
		{"not on one that leads elsewhere", "a, a is, b@", "a opens, b opens, a left"},
		{
			"one that leads elsewhere ends when it has answered",
			"a, a is, b, c@, b ok", "a opens, b on a, c opens, a left",
		},
		{"after a failure on another one", "a, a is, b, c!b", "a opens, b on a, c opens"},
		{
			"which another lease has opened since",
			"a, a is, b, c, c is, d!b", "a opens, b on a, c opens, d on c",
		},
		{
			"not one that was open before",
			"a, b, a is, b is, c, d!c", "a opens, b opens, c on b, d opens",
		},
		{"the next one on any", "a, a is, b!a, b is, c, d", "a opens, b opens, c on b, d on a"},
		{
			"the answer of a silent one counts, and it serves again",
			"a, a is, b, c!b, c is, d, b ok, e", "a opens, b on a, c opens, d on c, e on a",
		},
		{
			"one that is not needed for two periods ends",
			"a, a is, b!a, b is, c, c ok, d, d ok, e, e ok, f",
			"a opens, b opens, c on b, d on b, e on b, a left, f on b",
		},
		{
			"the fifth of those that begin at once waits",
			"a, b!!, c!!, d!!, e!!", "a opens, b opens, c opens, d opens",
		},
		{
			"for one that is proven, or until it may open one",
			"a, b!!, c!!, d!!, e!!, f!!, b is",
			"a opens, b opens, c opens, d opens, e on b, f opens",
		},
		{
			"if one fails it opens one",
			"a, b!!, c!!, d!!, e!!, f!!, b end, c is",
			"a opens, b opens, c opens, d opens, e opens, b left, f on c",
		},
	} {
		t.Run(row.what, func(t *testing.T) {
			k := streams{senders: 1, most: mostLogins}
			var told []string
			now := time.Unix(1e9, 0)
			by := &Sender{period: 2 * time.Second}
			opened := map[*stream]string{} // by the renewal that opened it
			on := map[string]*stream{}     // by the renewal that was sent on it
			sent := map[string]time.Time{}
			waits := []*wait{}
			names := map[*wait]string{}
			goes := func(who string, s *stream) {
				require.Equal(t, carrying, s.state)
				on[who] = s
				if s.rpc == nil {
					s.rpc, opened[s] = &wire{}, who
					told = append(told, who+" opens")
				} else {
					told = append(told, who+" on "+opened[s])
				}
			}
			for step := range strings.SplitSeq(row.steps, ", ") {
				of, what, _ := strings.Cut(step, " ")
				what, member, _ := strings.Cut(what, " ")
				who := of[:1]
				ok := answer{resp: &pb.LeaseKeepAliveResponse{Header: &pb.ResponseHeader{}}}
				if member != "" {
					ok.resp.Header.MemberId = uint64(member[0])
				}
				switch s := on[who]; what {
				case "ok", "is":
					require.True(t, k.answered(s, ok, now))
					if what == "is" {
						k.proved(s, true, now)
					}
				case "end":
					awaited := s.state == carrying
					require.Equal(t, awaited, k.answered(s, answer{err: errors.New("gone")}, now))
				case "yes", "no":
					k.proved(s, what == "yes", now)
				default:
					if !strings.HasSuffix(of, "!!") {
						now = now.Add(time.Second)
					}
					r := Renewal{Sent: now, by: by}
					if strings.HasSuffix(of, "@") {
						r.Where.Endpoints = "elsewhere"
					}
					if _, failed, again := strings.Cut(of, "!"); again && failed != "!" {
						r.After = sent[failed]
					}
					sent[who] = now
					w := &wait{r: r, turn: make(chan *stream, 1)}
					if s := k.take(w, now); s != nil {
						goes(who, s)
					} else {
						waits, names[w] = append(waits, w), who
					}
				}
				for _, w := range waits {
					if len(w.turn) > 0 {
						goes(names[w], <-w.turn)
					}
				}
				for _, s := range k.ended {
					require.Equal(t, over, s.state)
					told = append(told, opened[s]+" left")
				}
				k.ended = nil
			}
			require.Equal(t, row.want, strings.Join(told, ", "))
		})
	}
}

// A renewal whose lease knows of a set-back goes on no stream from before, whatever others do.
func TestAStreamFromBeforeASetBackIsNotUsed(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		r := Renewal{Sent: time.Now(), Where: Where{Since: time.Now()}}
		result := b.send(b.sender, r)
		require.Len(t, b.opened, 2)
		b.opened[1].answers(60)
		<-result
	})
}

// Each stream fails as it is opened, where a thousand leases are to be renewed. Some are opened at
// once, four at a time, and then ten a second. The first one that is answered serves all leases,
// those first whose trust ends first.
func TestFewStreamsAreOpenedWhereAllFail(t *testing.T) {
	const leases, seconds = 1000, 3
	inWorld(t, func(t *testing.T, b *world) {
		b.becomes(status.Error(codes.Unavailable, "no upstream"), false)
		began := time.Now()
		until := make(map[clientv3.LeaseID]time.Time)
		var senders []*Sender
		failed, renewed := make(chan struct{}, leases), make(chan clientv3.LeaseID, leases)
		for i := range clientv3.LeaseID(leases) {
			s := b.lease(i + 1)
			senders = append(senders, s)
			ends := began.Add(time.Hour + time.Duration(i*7%leases)*time.Second)
			until[s.id] = ends
			go func() {
				r := Renewal{Sent: began, Until: ends, Patience: 2 * seconds * time.Second}
				ctx, cancel := context.WithTimeout(b.ctx, bound)
				defer cancel()
				if _, err := s.Renew(ctx, r); err != nil {
					failed <- struct{}{}
				} else {
					renewed <- s.id
				}
			}()
		}
		synctest.Wait()
		require.Len(t, failed, mostFailures)
		time.Sleep(seconds * time.Second)
		require.InDelta(t, mostFailures+seconds*failuresASecond, len(failed), 1)

		b.becomes(nil, true)
		time.Sleep(time.Second)
		synctest.Wait()
		require.InDelta(t, mostFailures+seconds*failuresASecond, len(failed), 1)
		require.Len(t, renewed, leases-len(failed))
		require.LessOrEqual(t, len(b.opened), 4*mostLogins)
		half, early := len(renewed)/2, 0
		for range half {
			if until[<-renewed].Before(began.Add(time.Hour + leases/2*time.Second)) {
				early++
			}
		}
		require.Greater(t, early, half*9/10)
		for _, s := range senders {
			s.Close()
		}
	})
}

// Streams that hang hold up no others for long.
func TestStreamsThatHangHoldUpNoOthers(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for range mostLogins {
			b.renew(false)
		}
		began := time.Now()
		b.becomes(nil, true)
		require.Equal(t, outcome{60, nil}, <-b.renew(false))
		require.Equal(t, openingTime+login+time.Millisecond, time.Since(began))
	})
}

// Without a login to pay, a stream is opened for each of the renewals that are under way at once.
func TestStreamsThatHangHoldUpNobodyWhereNoneIsALogin(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.client.streams.most = mostOpenings
		for range 4 * mostLogins {
			b.renew(false)
		}
		began := time.Now()
		b.becomes(nil, true)
		require.Equal(t, outcome{60, nil}, <-b.renew(false))
		require.Equal(t, login+time.Millisecond, time.Since(began))
	})
}

// A renewal that gets no stream in time was not sent.
func TestARenewalThatGetsNoStreamWasNotSent(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for range mostLogins {
			b.renew(false)
		}
		began := time.Now()
		result := b.send(b.sender, Renewal{Sent: began, Patience: openingTime / 2})
		err := (<-result).err
		require.True(t, attempt.NotApplied(err), "%v", err)
		require.ErrorIs(t, err, attempt.ErrUnreachable)
		require.NotErrorIs(t, err, ErrStreamEnded)
		require.Equal(t, openingTime/2, time.Since(began))
		time.Sleep(openingTime)
		require.Len(t, b.opened, mostLogins, "nor is one opened for it later")
	})
}
