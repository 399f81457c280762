package keepalive

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	lease = clientv3.LeaseID(7)
	bound = 10 * time.Second // of a renewal
)

// A wire is a stream whose other end is the test.
type wire struct {
	ctx      context.Context
	requests chan *pb.LeaseKeepAliveRequest
	replies  chan *pb.LeaseKeepAliveResponse
	failure  chan error
}

func (w *wire) Send(r *pb.LeaseKeepAliveRequest) error {
	if w.ctx.Err() != nil {
		return io.EOF
	}
	w.requests <- r
	return nil
}

func (w *wire) Recv() (*pb.LeaseKeepAliveResponse, error) {
	select {
	case r := <-w.replies:
		return r, nil
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

// A world is a Sender in a bubble.
type world struct {
	ctx    context.Context
	sender *Sender
	opened []*wire
	refuse error // the error of opening a stream
}

func inWorld(t *testing.T, f func(t *testing.T, b *world)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(context.Background())
		b := &world{ctx: ctx}
		b.sender = &Sender{ctx: ctx, id: lease, spawn: func(f func()) { go f() }}
		b.sender.open = func(ctx context.Context) (rpc, error) {
			if b.refuse != nil {
				return nil, b.refuse
			}
			b.opened = append(b.opened, &wire{
				ctx:      ctx,
				requests: make(chan *pb.LeaseKeepAliveRequest, 9),
				replies:  make(chan *pb.LeaseKeepAliveResponse, 9),
				failure:  make(chan error, 1),
			})
			return b.opened[len(b.opened)-1], nil
		}
		f(t, b)
		end()
		synctest.Wait()
		for i, w := range b.opened {
			require.Error(t, w.ctx.Err(), "stream %d is left open", i)
		}
	}) // the bubble fails if a goroutine is left
}

// renew sends a renewal.
func (b *world) renew(anew bool) <-chan outcome {
	result := make(chan outcome, 1)
	sent := time.Now()
	go func() {
		ctx, cancel := context.WithTimeout(b.ctx, bound)
		defer cancel()
		resp, err := b.sender.Renew(ctx, Renewal{Sent: sent, Anew: anew})
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

// Two renewals are under way, each on its own stream. They are answered in either order.
func TestEachRenewalIsToldItsOwnAnswer(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		late := b.renew(false)
		time.Sleep(time.Second)
		next := b.renew(true)
		require.Len(t, b.opened, 2)
		b.opened[1].answers(2)
		require.Equal(t, outcome{2, nil}, <-next)
		require.True(t, b.opened[1].proves(0))
		require.NoError(t, b.opened[0].ctx.Err(), "left while its answer may come")
		time.Sleep(bound / 2)
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

// If nothing shows where a stream leads, the Sender leaves it at the time at which it would
// give up a renewal.
func TestAStreamThatIsNotProvenIsLeftInTime(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		result := b.renew(false)
		b.opened[0].answers(60)
		require.Equal(t, outcome{60, nil}, <-result)
		time.Sleep(bound - 1)
		require.NoError(t, b.opened[0].ctx.Err())
		b.renewed(t)
		require.Len(t, b.opened, 2)
		require.Error(t, b.opened[0].ctx.Err())
		b.opened[0].replies <- &pb.LeaseKeepAliveResponse{} // too late
		b.renewed(t)
		require.Len(t, b.opened, 2)
	})
}

// The answer to a renewal that was given up is on its way when the next one is sent.
func TestNoAnswerIsTakenForThatToALaterRenewal(t *testing.T) {
	inWorld(t, func(t *testing.T, b *world) {
		b.renewed(t)
		began := time.Now()
		require.ErrorIs(t, (<-b.renew(false)).err, context.DeadlineExceeded)
		require.Equal(t, bound, time.Since(began))
		next := b.renew(false)
		b.opened[0].answers(1)
		synctest.Wait()
		require.Empty(t, next)
		require.Len(t, b.opened, 2)
		b.opened[1].answers(2)
		require.Equal(t, outcome{2, nil}, <-next)
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
		b.refuse = gone
		err = (<-b.renew(false)).err
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.NotErrorIs(t, err, ErrStreamEnded)
		require.Len(t, b.opened, 4, "no other is opened until the next renewal")
	})
}
