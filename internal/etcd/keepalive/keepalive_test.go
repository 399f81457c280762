package keepalive

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
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

const (
	lease = clientv3.LeaseID(7)
	bound = 10 * time.Second // of a renewal
	login = 73 * time.Millisecond
)

// A wire is a stream whose other end is the test.
type wire struct {
	away     time.Duration // if not 0, etcd answers after that, and reads it itself
	each     time.Duration // and answers each after the one before, which takes as long
	last     time.Time     // when the last one is answered
	ctx      context.Context
	requests chan *pb.LeaseKeepAliveRequest
	replies  chan *pb.LeaseKeepAliveResponse
	due      chan time.Time // when the first of the requests is answered
	failure  chan error
}

func (w *wire) Send(r *pb.LeaseKeepAliveRequest) error {
	if w.ctx.Err() != nil {
		return io.EOF
	}
	w.requests <- r
	if w.away > 0 {
		w.last = later(time.Now(), w.last).Add(w.each)
		w.due <- w.last.Add(w.away)
	}
	return nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (w *wire) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case r := <-w.replies:
		return r, nil
	case at := <-w.due:
		select {
		case <-time.After(time.Until(at)):
		case err := <-w.failure:
			return nil, err
		}
		r := <-w.requests
		if r.ID == int64(noLease) {
			return &pb.LeaseKeepAliveResponse{}, nil
		}
		return &pb.LeaseKeepAliveResponse{ID: r.ID, TTL: 60}, nil
	case err := <-w.failure:
		return nil, err
	case <-w.ctx.Done():
		return nil, status.FromContextError(w.ctx.Err()).Err()
	}
}

// answers answers the next request: a TTL tells the answers apart.
func (w *wire) answers(ttl int64) {
	r := <-w.requests
	w.replies <- &pb.LeaseKeepAliveResponse{ID: r.ID, TTL: ttl}
}

// proves answers the question whether etcd itself reads the stream, if the Sender has asked
// it.
func (w *wire) proves(ttl int64) (asked bool) {
	synctest.Wait()
	select {
	case r := <-w.requests:
		w.replies <- &pb.LeaseKeepAliveResponse{ID: r.ID, TTL: ttl}
		synctest.Wait()
		return true
	default:
		return false
	}
}

// An outcome is the outcome of a renewal.
type outcome struct {
	ttl int64
	err error
}

// A world is a client with user and password in a bubble, with the Sender of one lease.
type world struct {
	ctx    context.Context
	client *client
	sender *Sender
	opened []*wire
	guard  sync.Mutex
	refuse error         // the error of opening a stream
	away   time.Duration // of new streams, each of which is opened after a login
	each   time.Duration // of new streams
}

func inWorld(t *testing.T, f func(t *testing.T, b *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(context.Background())
		b := &world{ctx: ctx, client: &client{streams: streams{login: true}}}
		b.sender = b.lease(lease)
		f(t, b)
		end()
		synctest.Wait()
		closeNow(b.sender)
		for i, w := range b.opened {
			require.Error(t, w.ctx.Err(), "stream %d is left open", i)
		}
	}) // the bubble fails if a goroutine is left
}

// becomes changes what new streams do.
func (b *world) becomes(refuse error, away time.Duration) {
	b.guard.Lock()
	defer b.guard.Unlock()
	b.refuse, b.away = refuse, away
}

// lease is the Sender of another lease of the client.
func (b *world) lease(id clientv3.LeaseID) *Sender {
	s := &Sender{id: id, client: b.client, period: time.Second}
	s.open = func(ctx context.Context) (rpc, error) {
		b.guard.Lock()
		refuse, away := b.refuse, b.away
		b.guard.Unlock()
		if refuse != nil {
			return nil, refuse
		}
		if away > 0 {
			time.Sleep(login)
		}
		b.guard.Lock()
		defer b.guard.Unlock()
		b.opened = append(b.opened, &wire{
			away:     away,
			each:     b.each,
			ctx:      ctx,
			requests: make(chan *pb.LeaseKeepAliveRequest, 2000),
			replies:  make(chan *pb.LeaseKeepAliveResponse, 9),
			due:      make(chan time.Time, 2000),
			failure:  make(chan error, 1),
		})
		return b.opened[len(b.opened)-1], nil
	}
	s.client.with(func(k *streams) { k.join(s.period) })
	return s
}

// wires are the streams so far, while others may be opened.
func (b *world) wires() []*wire {
	b.guard.Lock()
	defer b.guard.Unlock()
	return slices.Clone(b.opened)
}

// renew sends a renewal, anew if one has failed.
func (b *world) renew(anew bool) <-chan outcome {
	return b.send(b.sender, Renewal{Patience: bound, Anew: anew})
}

// send sends a renewal of a lease.
func (b *world) send(s *Sender, r Renewal) <-chan outcome {
	result := make(chan outcome, 1)
	go func() {
		ctx, cancel := context.WithTimeout(b.ctx, bound)
		defer cancel()
		resp, err := s.Renew(ctx, r)
		result <- outcome{resp.GetTTL(), err}
	}()
	synctest.Wait()
	return result
}

// renewed sends a renewal that is answered at once.
func (b *world) renewed(t *testing.T) {
	t.Helper()
	result := b.renew(false)
	b.opened[len(b.opened)-1].answers(60)
	require.Equal(t, outcome{60, nil}, <-result)
	b.opened[len(b.opened)-1].proves(0)
	time.Sleep(time.Second)
}

func TestRenewalsShareAStreamThatAnswers(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for range 100 {
			b.renewed(t)
		}
		require.Len(t, b.opened, 1)
	})
}

// The renewals of leases that were granted at any time go out at few times in a period, however
// long answers take, and each at about its own time.
func TestTheRenewalsOfAClientGoOutTogether(t *testing.T) {
	const leases, periods, period = 300, 20, time.Second
	c, times := &client{began: time.Now()}, make(map[time.Duration]int)
	for range leases {
		s := &Sender{client: c, period: period}
		due := c.began.Add(rand.N(time.Minute))
		for range periods {
			at := s.Together(due)
			require.LessOrEqual(t, at.Sub(due).Abs(), period/16)
			times[at.Sub(c.began)%period]++
			answered := at.Add(rand.N(5 * time.Millisecond)) // and the timer was as late
			due = answered.Add(period - rand.N(50*time.Millisecond))
			require.Equal(t, at.Add(period), s.Together(due))
		}
	}
	require.Len(t, times, together)
}

// A member answers the renewals on a stream one after the other, as one that does not lead: it asks
// the leader for each. A thousand leases of a client are renewed in time all the same, though many
// renewals go out together: more streams are opened while the oldest waits.
func TestRenewalsThatGoOutTogetherAreInTimeAtASerialMember(t *testing.T) {
	const leases, periods, period = 1000, 6, time.Second
	for _, ms := range []time.Duration{1, 5, 10} {
		each := ms * time.Millisecond
		inWorld(t, func(t *testing.T, b *world) {
			b.client.began, b.client.streams.login, b.each = time.Now(), false, each
			b.becomes(nil, time.Millisecond)
			first, longest := make([]time.Duration, leases), make([]time.Duration, leases)
			var all sync.WaitGroup
			for i := range leases {
				s := b.lease(clientv3.LeaseID(i + 1))
				due := s.Together(b.client.began.Add(period * time.Duration(i) / leases))
				all.Go(func() {
					defer closeNow(s)
					for n := range periods {
						sent := due.Add(time.Duration(n) * period)
						time.Sleep(time.Until(sent))
						_, err := s.Renew(b.ctx, Renewal{Patience: period / 2, Until: sent.Add(2 * period)})
						if err != nil {
							t.Errorf("lease %d: %v", i, err)
						}
						if took := time.Since(sent); n == 0 {
							first[i] = took // when nothing is known of the member
						} else {
							longest[i] = max(longest[i], took)
						}
					}
				})
			}
			all.Wait()
			t.Logf("%v each: the longest took %v, and %v at first, on %d streams",
				each, slices.Max(longest), slices.Max(first), len(b.opened))
			require.Less(t, slices.Max(longest), period/4*3)
			require.Less(t, slices.Max(first), period)
		})
	}
}

// The renewals of a thousand leases that are due one after the other need one stream. Nobody's end
// disturbs the others.
func TestTheLeasesOfAClientShareAStream(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for id := range clientv3.LeaseID(1000) {
			s := b.lease(id + 1)
			result := b.send(s, Renewal{})
			b.opened[0].answers(60)
			require.Equal(t, outcome{60, nil}, <-result)
			b.opened[0].proves(0)
			closeNow(s)
			time.Sleep(time.Millisecond)
		}
		b.renewed(t)
		require.Len(t, b.opened, 1)
	})
}

// Two renewals of a lease are under way, each on its own stream. They are answered in either order.
// The older stream ends with its answer.
func TestEachRenewalIsToldItsOwnAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		late := b.renew(false)
		time.Sleep(time.Second)
		next := b.renew(false)
		require.Len(t, b.opened, 2)
		b.opened[1].answers(2)
		require.Equal(t, outcome{2, nil}, <-next)
		require.True(t, b.opened[1].proves(0))
		require.NoError(t, b.opened[0].ctx.Err(), "left while its answer may come")
		time.Sleep(time.Second)
		b.opened[0].answers(1)
		require.Equal(t, outcome{1, nil}, <-late)
		synctest.Wait()
		require.Error(t, b.opened[0].ctx.Err(), "needed no more")
		b.renewed(t)
		require.Len(t, b.opened, 2)
	})
}

// A stream that does not lead to etcd itself serves no second renewal. No other stream does
// either, and the Sender no longer asks where one leads. (A proxy has answered with -1, the
// TTL of a lease that does not exist.)
func TestBehindAProxyNoStreamIsKept(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		for i := range 10 {
			result := b.renew(false)
			require.Len(t, b.opened, i+1)
			b.opened[i].answers(60)
			require.Equal(t, outcome{60, nil}, <-result)
			require.Equal(t, i == 0, b.opened[i].proves(-1), "asked")
			synctest.Wait()
			require.Error(t, b.opened[i].ctx.Err(), "stream %d is left open", i)
			time.Sleep(time.Second)
		}
	})
}

// If nothing shows where a stream leads, it is left for the next one.
func TestAStreamThatIsNotProvenIsLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		result := b.renew(false)
		b.opened[0].answers(60)
		require.Equal(t, outcome{60, nil}, <-result)
		time.Sleep(bound)
		b.renewed(t)
		require.Len(t, b.opened, 2)
		require.Error(t, b.opened[0].ctx.Err())
		b.opened[0].replies <- &pb.LeaseKeepAliveResponse{} // too late
		b.renewed(t)
		require.Len(t, b.opened, 2)
	})
}

// The answer to a renewal that was given up is on its way when the next one is sent. The stream
// stays, as another lease awaits an answer there.
func TestNoAnswerIsTakenForThatToALaterRenewal(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		began := time.Now()
		given := b.renew(false)
		time.Sleep(bound / 2)
		company := b.lease(lease + 1)
		defer closeNow(company)
		other := b.send(company, Renewal{})
		require.ErrorIs(t, (<-given).err, context.DeadlineExceeded)
		require.Equal(t, bound, time.Since(began))
		next := b.renew(false)
		b.opened[0].answers(1)
		synctest.Wait()
		require.Empty(t, next)
		require.Len(t, b.opened, 2)
		b.opened[1].answers(2)
		require.Equal(t, outcome{2, nil}, <-next)
		b.opened[0].answers(3)
		require.Equal(t, outcome{3, nil}, <-other)
	})
}

// A stream on which no renewal is awaited any more is silent: it is left.
func TestASilentStreamIsLeft(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		require.ErrorIs(t, (<-b.renew(false)).err, context.DeadlineExceeded)
		synctest.Wait()
		require.Error(t, b.opened[0].ctx.Err())
		b.renewed(t)
		require.Len(t, b.opened, 2)
	})
}

// A renewal that comes as its lease is about to be revoked is not sent: its context has ended.
func TestALeaseThatIsGivenBackIsNotRenewed(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		ended, end := context.WithCancel(b.ctx)
		end()
		_, err := b.sender.Renew(ended, Renewal{Patience: bound})
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		require.Empty(t, b.opened[0].requests)
		require.NoError(t, b.opened[0].ctx.Err(), "the stream of the other leases has ended")
	})
}

// A message that no renewal asked for, or one for another lease, answers no renewal.
func TestWhatNobodyAskedForIsNobodysAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		b.opened[0].replies <- &pb.LeaseKeepAliveResponse{ID: int64(lease), TTL: 1}
		synctest.Wait()
		result := b.renew(false)
		b.opened[0].replies <- &pb.LeaseKeepAliveResponse{ID: int64(lease) - 1, TTL: 2}
		synctest.Wait()
		require.Empty(t, result)
		b.opened[0].answers(3)
		require.Equal(t, outcome{3, nil}, <-result)
	})
}

func TestALeaseThatIsGoneIsNotFound(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		result := b.renew(false)
		b.opened[0].answers(0)
		err := (<-result).err
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		require.NotErrorIs(t, err, ErrStreamEnded, "etcd has said so of the lease")
	})
}

// If a stream that had answered before ends under a renewal, that says nothing about the
// next stream.
func TestTheEndOfAStreamIsToldFromAFailure(t *testing.T) {
	gone := status.Error(codes.Unavailable, "gone")
	inWorld(t, func(t *testing.T, b *world) {
		result := b.renew(false)
		b.opened[0].failure <- gone
		err := (<-result).err
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, ErrStreamEnded, "it has never answered")

		b.renewed(t)
		result = b.renew(false)
		b.opened[1].failure <- gone
		err = (<-result).err
		require.ErrorIs(t, err, ErrStreamEnded)
		require.Equal(t, codes.Unavailable, status.Code(errors.Unwrap(err)))

		b.renewed(t)
		b.opened[2].failure <- gone
		synctest.Wait()
		b.renewed(t) // no renewal is under way when a stream at rest ends
		require.Len(t, b.opened, 4)

		b.opened[3].failure <- gone
		synctest.Wait()
		b.becomes(gone, 0)
		err = (<-b.renew(false)).err
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, ErrStreamEnded)
		require.Len(t, b.opened, 4, "no other is opened until the next renewal")
	})
}

// A stream ends because etcd refuses the renewal of one lease. The others that are under way there
// were not refused.
func TestTheRefusalOfOneLeaseIsNotThatOfOthers(t *testing.T) {
	refused := status.Error(codes.PermissionDenied, "etcdserver: permission denied")
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		first := b.renew(false)
		company := b.lease(lease + 1)
		defer closeNow(company)
		second := b.send(company, Renewal{})
		b.opened[0].failure <- refused
		err := (<-first).err
		require.True(t, attempt.Refused(err), "%v", err)
		err = (<-second).err
		require.False(t, attempt.Refused(err), "%v", err)
		require.ErrorIs(t, err, ErrStreamEnded)
	})
}

// closeNow closes s, and waits for what that ends.
func closeNow(s *Sender) { s.Close()(context.Background()) }

// A fallible stream falls where the test says.
type fallible struct {
	*wire
	fall map[string]func() // by method
}

func (f *fallible) Send(r *pb.LeaseKeepAliveRequest) error {
	f.at("Send")
	return f.wire.Send(r)
}

func (f *fallible) Recv() (*pb.LeaseKeepAliveResponse, error) {
	resp, err := f.wire.Recv()
	f.at("Recv")
	return resp, err
}

func (f *fallible) at(method string) {
	if fall := f.fall[method]; fall != nil {
		fall()
	}
}

// The user's code falls as a stream is opened, or in one of its methods. The renewals that are
// under way fail at once, the next one is sent on another stream, and nothing is left of the first.
func TestAStreamThatFallsFailsItsRenewals(t *testing.T) {
	for how, fall := range map[string]func(){
		"panic": func() { panic("boom") }, "Goexit": runtime.Goexit,
	} {
		for _, method := range []string{"open", "Send", "Recv"} {
			t.Run(method+" "+how, func(t *testing.T) {
				inWorld(t, func(t *testing.T, b *world) {
					first := &fallible{fall: map[string]func(){method: fall}}
					open := b.sender.open
					b.sender.open = func(ctx context.Context) (rpc, error) {
						b.sender.open = open
						first.at("open")
						opened, err := open(ctx)
						first.wire = opened.(*wire)
						return first, err
					}
					result := b.renew(false)
					if method == "Recv" {
						b.opened[0].answers(60)
					}
					select {
					case o := <-result:
						require.Error(t, attempt.Fallen(o.err), "%v", o.err)
					case <-time.After(bound / 2):
						require.Fail(t, "it still waits")
					}
					synctest.Wait()
					require.Empty(t, b.client.streams.open)
					b.renewed(t)
				})
			})
		}
	}
}
