package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/fake"
)

// What an answer says goes by whether there is one, by its error, by its cluster, and by what came
// before it. Each good answer shows that the stream lives, and a refused token or another cluster
// makes the next watch begin on another stream.
func TestWhatAnAnswerOfAWatchSays(t *testing.T) {
	in := func(cluster uint64) *pb.ResponseHeader { return &pb.ResponseHeader{ClusterId: cluster} }
	created := func(cluster uint64) clientv3.WatchResponse {
		return fake.Answered(in(cluster), clientv3.WatchResponse{Created: true})
	}
	some := []*clientv3.Event{{Kv: &mvccpb.KeyValue{}}}
	events := func(cluster uint64) clientv3.WatchResponse {
		return fake.Answered(in(cluster), clientv3.WatchResponse{Events: some})
	}
	compacted := fake.Answered(in(1), clientv3.WatchResponse{CompactRevision: 7, Canceled: true})
	for name, row := range map[string]struct {
		answer  clientv3.WatchResponse
		closed  bool
		later   bool // it is not the first one
		says    Notice
		another bool // stream
	}{
		"the first one":      {answer: created(1), says: Notice{Kind: Created}},
		"the first, unasked": {answer: events(1), says: Notice{Created, some, nil}},
		"a later one":        {answer: events(1), later: true, says: Notice{Events, some, nil}},
		"of a proxy":         {answer: events(0), later: true, says: Notice{Events, some, nil}},
		"of another cluster": {answer: events(2), later: true, says: Notice{Kind: Ended}, another: true},
		"the first, of one":  {answer: created(2), says: Notice{Kind: Ended}, another: true},
		"none":               {closed: true, later: true, says: Notice{Kind: Ended}},
		"compacted": {
			answer: compacted, later: true, says: Notice{Kind: Ended, Err: rpctypes.ErrCompacted},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, l := conn(t, fake.NewServer().Client(name))
				c.heard(in(1), c.sendingToAny())
				epoch, on := c.Epoch(), c.stream.name
				w := &Watch{Epoch: epoch, c: c, on: on, created: row.later}
				time.Sleep(2 * streamRest)
				require.Equal(t, row.says, w.Notice(row.answer, !row.closed))
				require.Equal(t, row.another, c.stream.name != on)
				require.Equal(t, row.says.Kind != Ended, c.stream.heard.Equal(time.Now()), "the stream lives")
				require.Empty(t, l.setBack)
				require.Same(t, epoch, c.Epoch(), "a read tells")
			})
		})
	}
}

// A watch of which the token has been refused ends, and the next one begins on another stream, but
// not before the stream is a second old: each may cost a login.
func TestARefusedTokenChangesTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, row := range []struct {
			why  error
			rest time.Duration
		}{
			{rpctypes.ErrInvalidAuthToken, streamRest}, {rpctypes.ErrAuthOldRevision, streamRest},
			{rpctypes.ErrUserEmpty, streamRest}, {rpctypes.ErrPermissionDenied, DeniedRest},
		} {
			s := &stream{}
			s.renewLocked()
			name := s.name
			time.Sleep(row.rest - time.Nanosecond)
			s.fails(name, row.why)
			require.Equal(t, name, s.name, "%v", row.why)
			time.Sleep(time.Nanosecond)
			s.fails(name-1, row.why)
			require.Equal(t, name, s.name, "%v of an earlier stream", row.why)
			s.fails(name, rpctypes.ErrCompacted)
			require.Equal(t, name, s.name, "another reason")
			s.fails(name, row.why)
			require.NotEqual(t, name, s.name, "%v", row.why)
		}
	})
}

// A watch that has no answer for long is given up, with closed Answers. Once the stream has been
// silent for long the Listener is told, and the next watch begins on another stream.
func TestASilentStreamIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewServer()
		c, l := conn(t, server.Client("a"))
		var broken attempt.Backoff
		w := c.Watch(t.Context(), &broken, "x")
		answer, open := <-w.Answers
		require.Equal(t, Created, w.Notice(answer, open).Kind)
		require.Same(t, c.Epoch(), w.Epoch)
		w.Stop()
		time.Sleep(time.Second)

		server.Intercept(func(call fake.Call) fake.Effect {
			if call.Method == fake.Watch {
				return fake.Effect{Drop: true}
			}
			return fake.Effect{}
		})
		on := c.stream.name
		for l.silent == 0 {
			w := c.Watch(t.Context(), &broken, "x")
			answer, open := <-w.Answers
			require.Equal(t, Ended, w.Notice(answer, open).Kind)
			w.Stop()
			require.NotZero(t, broken)
		}
		require.Equal(t, 1, l.silent)
		require.NotEqual(t, on, c.stream.name)
		require.Empty(t, c.stream.watches, "watches that have ended keep their Sessions")
	})
}
