package etcd

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/test/bufconn"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A told Listener has what it was told.
type told struct {
	mu         *guard.Mutex
	setBack    []*Epoch // that have ended
	limits     []int
	unreadable []string
	silent     int
	uncombined int
	fell       int
}

func (l *told) SetBackLocked(ended, _ *Epoch) {
	if l.mu.TryLock() {
		panic("SetBackLocked without the mutex")
	}
	l.setBack = append(l.setBack, ended)
}
func (l *told) Unavailable(error, time.Duration) {}
func (l *told) Limited(most int)                 { l.limits = append(l.limits, most) }
func (l *told) Unreadable(key string, _ error)   { l.unreadable = append(l.unreadable, key) }
func (l *told) Fell(*guard.Fall)                 {}

func (l *told) Uncombined(error) { l.uncombined++ }

func (l *told) StreamSilent() { l.silent++ }

func (l *told) TermFell(_, _ uint64) { l.fell++ }

// conn returns a Conn with a client, and what it tells.
func conn(t *testing.T, client *clientv3.Client) (*Conn, *told) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	l := &told{mu: new(guard.Mutex)}
	return New(ctx, client, 10*time.Second, l.mu, new(guard.Group), l), l
}

// A Session has heard of a term, and no later linearizable answer knows it. Then it was
// the term of a leader that was not elected, or of one before a restore.
func TestATermThatEtcdDoesNotKnowAnyMoreIsForgotten(t *testing.T) {
	c, _ := conn(t, fake.NewServer().Client("a"))
	term := func(term uint64) *pb.ResponseHeader { return &pb.ResponseHeader{RaftTerm: term} }
	epoch := c.Epoch()
	now := func() sending {
		return sending{epoch: epoch, revision: epoch.Revision(), term: epoch.term.Load()}
	}
	before := now()
	c.heard(term(3), c.sendingToAny())
	_, _ = c.judge(Reading{Header: term(2)}, nil, before)
	require.EqualValues(t, 3, epoch.term.Load(), "asked before")
	c.heard(term(2), c.sendingToAny())
	require.EqualValues(t, 3, epoch.term.Load(), "a member that is behind")
	_, _ = c.judge(Reading{Header: term(2)}, nil, now())
	require.EqualValues(t, 2, epoch.term.Load())
	_, _ = c.judge(Reading{Header: term(4)}, nil, now())
	require.EqualValues(t, 4, epoch.term.Load())
}

// A linearizable answer has a lower term than one before it was asked for: that is told once, and
// delays holds. What any member says of terms does not count.
func TestATermThatFallsIsADoubt(t *testing.T) {
	c, told := conn(t, fake.NewServer().Client("a"))
	term := func(term uint64) *pb.ResponseHeader { return &pb.ResponseHeader{RaftTerm: term} }
	epoch := c.Epoch()
	early := c.sending()
	_, _ = c.judge(Reading{Header: term(5)}, nil, c.sending())
	_, _ = c.judge(Reading{Header: term(4)}, nil, early)
	c.heard(term(3), c.sendingToAny())
	require.Zero(t, epoch.Doubted())
	for range 2 { // of members whose terms differ
		asked := c.sending()
		_, _ = c.judge(Reading{Header: term(2)}, nil, asked)
		_, _ = c.judge(Reading{Header: term(2)}, nil, asked)
		_, _ = c.judge(Reading{Header: term(5)}, nil, c.sending())
	}
	require.NotZero(t, epoch.Doubted())
	require.Equal(t, 1, told.fell)
	require.Empty(t, told.setBack)
}

// Two Sessions of a client. One has heard of a revision; the other has not, and is then answered by
// an etcd that was set back below it.
func TestASetBackShowsInWhatAnotherSessionHasHeard(t *testing.T) {
	server := fake.NewServer()
	client := server.Client("a")
	a, told := conn(t, client)
	b, _ := conn(t, client)
	restore := server.Save()
	for range 3 {
		_, err := client.Put(t.Context(), "k", "v")
		require.NoError(t, err)
	}
	_, err := b.Ask(t.Context(), Range("k"))
	require.NoError(t, err)
	restore(1)
	_, err = a.Ask(t.Context(), Range("k"))
	require.NoError(t, err)
	require.Len(t, told.setBack, 1)
}

// An answer with an older revision than was known when its request was sent, or from another
// cluster, ends the epoch, once. It belongs to the epoch that has ended.
func TestAnAnswerFromBeforeItsRequestEndsTheEpoch(t *testing.T) {
	of := func(cluster uint64, revision int64) *pb.ResponseHeader {
		return &pb.ResponseHeader{ClusterId: cluster, Revision: revision}
	}
	for name, row := range map[string]struct {
		answer *pb.ResponseHeader
		weak   bool // the answer may have an older revision
		ends   bool
	}{
		"the same revision":           {answer: of(1, 10)},
		"a later one":                 {answer: of(1, 11)},
		"an earlier one":              {answer: of(1, 9), ends: true},
		"of a member that is behind":  {answer: of(1, 9), weak: true},
		"of another cluster":          {answer: of(2, 10), ends: true},
		"of a member of another one":  {answer: of(2, 10), weak: true, ends: true},
		"of a proxy without a header": {answer: of(0, 10)},
	} {
		t.Run(name, func(t *testing.T) {
			c, l := conn(t, fake.NewServer().Client("a"))
			c.heard(of(1, 10), c.sendingToAny())
			sent, asked := c.Epoch(), c.sending()
			if row.weak {
				asked = c.sendingToAny()
			}
			for range 2 {
				c.heard(row.answer, asked)
			}
			if !row.ends {
				require.Empty(t, l.setBack)
				require.Same(t, sent, c.Epoch())
				require.Equal(t, max(10, row.answer.GetRevision()), c.Epoch().Revision())
				return
			}
			require.Equal(t, []*Epoch{sent}, l.setBack)
			require.NotSame(t, sent, c.Epoch())
			require.Equal(t, row.answer.GetRevision(), c.Epoch().Revision())
			require.Equal(t, row.answer.GetClusterId(), c.Epoch().Cluster())
			require.EqualValues(t, 10, sent.Revision(), "the answer says nothing about it")
		})
	}
}

// A server takes connections, in memory, and can be started anew.
type server struct {
	*grpc.Server
	kv   pb.KVServer // nil for none
	pipe atomic.Pointer[bufconn.Listener]
}

func (s *server) start() {
	s.Server = grpc.NewServer()
	if s.kv != nil {
		pb.RegisterKVServer(s.Server, s.kv)
	}
	pipe := bufconn.Listen(1 << 10)
	s.pipe.Store(pipe)
	go func() { _ = s.Serve(pipe) }() // until Stop
}

// connected returns a server, and a client whose connection to it is ready.
func connected(t *testing.T, kv pb.KVServer) (*server, *clientv3.Client) {
	s := &server{kv: kv}
	s.start()
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return s.pipe.Load().DialContext(ctx)
	}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{"passthrough:///memory"},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	link := c.ActiveConnection()
	link.Connect()
	for state := link.GetState(); state != connectivity.Ready; state = link.GetState() {
		require.True(t, link.WaitForStateChange(t.Context(), state))
	}
	return s, c
}

// A stuck etcd answers no transaction.
type stuck struct {
	pb.UnimplementedKVServer
	bounded bool          // it was told of a deadline
	ended   chan struct{} // closed once the context of the request has ended
}

func (s *stuck) Txn(ctx context.Context, _ *pb.TxnRequest) (*pb.TxnResponse, error) {
	_, s.bounded = ctx.Deadline()
	<-ctx.Done()
	close(s.ended)
	return nil, ctx.Err()
}

func TestEtcdLearnsThatARequestHasEndedAndOfNoDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		etcd := &stuck{ended: make(chan struct{})}
		s, client := connected(t, etcd)
		defer s.Stop()
		c, _ := conn(t, client)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := c.Ask(ctx, Ranges(nil, ticket.Get("k")))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		<-etcd.ended
		require.Equal(t, time.Second, time.Since(began))
		require.False(t, etcd.bounded)
	})
}

// Two Sessions follow the connection of a client. One waits for its mutex; the other is told of the
// loss and of the new connection all the same, until its context ends.
func TestASessionThatIsBusyKeepsNoOtherInTheDark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client := connected(t, nil)
		busy, free := make(chan struct{}, 2), make(chan struct{})
		a, _ := conn(t, client)
		b, _ := conn(t, client)
		defer a.FollowConnection(func() { busy <- struct{}{}; <-free }, func() {})()
		lost, found := make(chan struct{}, 2), make(chan struct{}, 2)
		end := b.FollowConnection(func() { lost <- struct{}{} }, func() { found <- struct{}{} })
		s.Stop()
		<-busy
		<-lost
		s.start()
		<-found
		end()
		s.Stop()
		synctest.Wait()
		require.Empty(t, lost, "b has ended its following")
		close(free)
	})
}

// A connection is lost while the goroutine that follows it has yet to run. It tells the loss.
func TestALossBeforeItsFollowerRunsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, client := connected(t, nil)
		c, _ := conn(t, client)
		told := make(chan struct{}, 1)
		lost := func() { told <- struct{}{} }
		n := &connection{followers: map[*follower]struct{}{{c.tasks, lost, func() {}}: {}}}
		s.Stop()
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go n.follow(ctx, client.ActiveConnection(), connectivity.Ready) // as it was
		<-told
	})
}

// A removal that has failed pauses, though etcd answers another one. If it becomes needless
// meanwhile, for its lease is being revoked, it is not sent again.
func TestARemovalThatBecomesNeedlessInItsPauseIsNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		server.Intercept(func(c fake.Call) (effect fake.Effect) {
			if c.Method == fake.Txn && c.N == 1 {
				effect.Before = fake.Unavailable
			}
			return effect
		})
		c, _ := conn(t, server.Client("a"))
		needless := make(chan struct{})
		removal := func() ticket.Txn { return ticket.Deletion(line.Entry{Key: "k", Rev: 1}) }
		var closed time.Time
		done := c.Remove(t.Context(), needless, removal, func(error) {
			require.NoError(t, c.Remove(t.Context(), nil, removal, func(error) {}).Err)
			closed = time.Now()
			close(needless)
		})
		require.ErrorIs(t, done.Err, fake.Unavailable)
		require.Len(t, server.Calls(fake.Txn), 2)
		require.Zero(t, time.Since(closed), "its pause is over")
	})
}
