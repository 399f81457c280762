package etcd

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

// ErrUntold says that a lease may have been granted: only etcd knows its ID.
var ErrUntold = errors.New("etcd has not told which lease it granted")

// A granter grants a lease of an ID that is asked for. The Lease of a client that was not made with
// clientv3.New may be one, as in etcdlocktest.
type granter interface {
	LeaseGrant(
		context.Context, *pb.LeaseGrantRequest, ...grpc.CallOption,
	) (*pb.LeaseGrantResponse, error)
}

// granterOf returns what grants leases of drawn IDs to a client, nil if nothing does.
func granterOf(client *clientv3.Client) granter {
	if client.ActiveConnection() != nil {
		return clientv3.RetryLeaseClient(client)
	}
	g, _ := client.Lease.(granter)
	return g
}

// A Loan is a lease that is not renewed: it lasts until a time that may be hours away. Its ID is
// drawn before it is asked for. So the requests for it make one lease, whatever becomes of their
// answers, and it can be given back without any.
//
// Only this Loan has the 63 random bits of its ID. If etcd answers that such a lease exists, an
// earlier request for it was carried out. Each request asks for the time that is left as it is
// sent, so the lease lasts until then whichever of them was carried out.
//
// A client that was not made with clientv3.New has no connection, and clientv3.Lease takes no ID.
// Then, unless its Lease is a granter, etcd draws one, and a lease whose answer was lost stays.
// So no request follows one that may have been carried out: there is one such lease at most.
// (TestAnUnlockThatHasNoAnswerLeavesOneLeaseAtMost.)
//
// One call at a time may use a Loan.
type Loan struct {
	conn    *Conn
	id      clientv3.LeaseID // 0 while etcd is yet to draw it
	granted bool             // it may have been granted
	late    bool             // a request for it may yet be carried out
}

// NewLoan draws the ID of a Loan.
func NewLoan(c *Conn) Loan {
	if c.leases == nil {
		return Loan{conn: c}
	}
	id := uuid.New() // which has a few fixed bits, in either half
	drawn := binary.BigEndian.Uint64(id[:8]) ^ binary.BigEndian.Uint64(id[8:])
	return Loan{conn: c, id: clientv3.LeaseID(max(1, drawn>>1))}
}

// Grant is one of a call's attempts to get the lease, which lasts until a time at least.
func (l *Loan) Grant(
	ctx context.Context, retry *attempt.Backoff, until time.Time,
) (clientv3.LeaseID, error) {
	c := l.conn
	if c.leases == nil {
		return l.grantOnce(ctx, retry, until)
	}
	grant := func(ctx context.Context, _ bool) (none struct{}, err error) {
		sent := c.sendingToAny()
		resp, err := apart(c, func() (*pb.LeaseGrantResponse, error) {
			return c.leases.LeaseGrant(ctx, &pb.LeaseGrantRequest{
				ID: int64(l.id), TTL: int64(secondsUntil(until) / time.Second),
			}, grpc.WaitForReady(true)) // as clientv3 does
		})
		if err = clientv3.ContextError(ctx, err); err == nil {
			c.heard(resp.Header, sent)
		}
		if attempt.Is(err, rpctypes.ErrLeaseExist) {
			return none, nil
		}
		return none, err
	}
	_, several, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, grant, nil)
	l.late = l.late || several || err != nil && !attempt.NotApplied(err)
	l.granted = l.granted || l.late || err == nil
	return l.id, err
}

// grantOnce is Grant where etcd draws the ID: the attempt has no repeats.
func (l *Loan) grantOnce(
	ctx context.Context, retry *attempt.Backoff, until time.Time,
) (clientv3.LeaseID, error) {
	if l.late {
		return 0, ErrUntold
	}
	c := l.conn
	grant := func(ctx context.Context, again bool) (Grant, error) {
		if again {
			<-ctx.Done()
			return Grant{}, ctx.Err()
		}
		return c.grant(ctx, secondsUntil(until))
	}
	g, _, err := attempt.Do(ctx, c.Caller, retry, c.Timeout, grant, nil)
	l.id, l.granted, l.late = g.ID, err == nil, err != nil && !attempt.NotApplied(err)
	return l.id, err
}

// secondsUntil is the time that is left, at least a second.
func secondsUntil(until time.Time) time.Duration {
	return WholeSeconds(max(time.Second, time.Until(until)))
}

// WholeSeconds is d in the unit in which etcd counts, rounded up.
func WholeSeconds(d time.Duration) time.Duration {
	if part := d % time.Second; part > 0 {
		d += time.Second - part
	}
	return d
}

// Granted reports whether the lease may have been granted.
func (l *Loan) Granted() bool { return l.granted }

// MayComeLate reports whether a request for the lease may be carried out once it was given back.
func (l *Loan) MayComeLate() bool { return l.late }

// GiveBack revokes the lease, and with it the keys on it, until etcd has answered or refused, or
// ctx ends. A lease that etcd does not know has been given back.
func (l *Loan) GiveBack(ctx context.Context) error {
	retry := attempt.Backoff{Policy: attempt.Removal}
	for {
		err := l.conn.Revoke(ctx, &retry, l.id)
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil || l.conn.isOver(ctx, err):
			return err
		}
	}
}

// Hex is the ID of the lease as etcdctl writes it.
func (l *Loan) Hex() string { return fmt.Sprintf("%x", int64(l.id)) }
