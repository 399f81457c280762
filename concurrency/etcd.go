package concurrency

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	etcd "go.etcd.io/etcd/client/v3/concurrency"
)

// What is no lock is etcd's own.
type (
	// An Election is etcd's.
	Election = etcd.Election

	// STM is etcd's.
	STM = etcd.STM

	// An Isolation is etcd's.
	Isolation = etcd.Isolation
)

// The isolations of an STM.
const (
	SerializableSnapshot = etcd.SerializableSnapshot
	Serializable         = etcd.Serializable
	RepeatableReads      = etcd.RepeatableReads
	ReadCommitted        = etcd.ReadCommitted
)

// The errors of an Election, and the functions of an STM. The types of these differ among the
// versions of etcd's client.
var (
	ErrElectionNotLeader = etcd.ErrElectionNotLeader
	ErrElectionNoLeader  = etcd.ErrElectionNoLeader

	NewSTM           = etcd.NewSTM
	WithIsolation    = etcd.WithIsolation
	WithAbortContext = etcd.WithAbortContext
	WithPrefetch     = etcd.WithPrefetch

	NewSTMRepeatable    = etcd.NewSTMRepeatable
	NewSTMSerializable  = etcd.NewSTMSerializable
	NewSTMReadCommitted = etcd.NewSTMReadCommitted
)

// NewElection is etcd's, for a Session of this package or one of etcd's.
func NewElection[S *Session | *etcd.Session](s S, pfx string) *Election {
	return etcd.NewElection(etcdSessionOf(s), pfx)
}

// ResumeElection is etcd's, for a Session of this package or one of etcd's.
func ResumeElection[S *Session | *etcd.Session](
	s S, pfx, leaderKey string, leaderRev int64,
) *Election {
	return etcd.ResumeElection(etcdSessionOf(s), pfx, leaderKey, leaderRev)
}

// etcdSessionOf is the Session for an Election: that of etcd's package.
func etcdSessionOf(s any) *etcd.Session {
	if s, ok := s.(*Session); ok {
		return s.etcds()
	}
	return s.(*etcd.Session)
}

// etcdSession is s as one of etcd's package: on its lease, and with its end.
func (s *Session) etcdSession() *etcd.Session {
	client := clientv3.NewCtxClient(s.client.Ctx())
	client.KV, client.Watcher, client.Lease = s.client.KV, s.client.Watcher, kept{s.client.Lease, s}
	same, err := etcd.NewSession(client, etcd.WithLease(s.lease), etcd.WithContext(s.ctx))
	if err != nil {
		panic(err) // which KeepAlive does not return
	}
	return same
}

// kept is the Lease of a client, where the lease of a Session needs no other renewals.
type kept struct {
	clientv3.Lease
	s *Session
}

// KeepAlive is as in clientv3.Lease. Its channel has nothing, and is closed as the Session ends.
func (k kept) KeepAlive(
	context.Context, clientv3.LeaseID,
) (<-chan *clientv3.LeaseKeepAliveResponse, error) {
	renewals := make(chan *clientv3.LeaseKeepAliveResponse)
	context.AfterFunc(k.s.ctx, func() { close(renewals) })
	return renewals, nil
}
