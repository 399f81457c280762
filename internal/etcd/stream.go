package etcd

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
)

const (
	// streamKey is in the outgoing metadata of the library's watches. clientv3 tells its streams
	// apart by metadata: watches with the same metadata share a stream. etcd ignores the key.
	streamKey = "etcdlock-stream"

	// streamRest is the least age of a stream that is replaced because of its token: each new
	// stream may cost a login. DeniedRest is the least age if permission was denied: only an old
	// etcd says so about a token, and if the user may not watch, no other stream helps.
	streamRest = time.Second
	DeniedRest = time.Minute

	// leastSilence is how long new watches on a stream may have no answer before the stream is
	// replaced. It doubles with each stream that is replaced for it, up to mostSilence: another
	// stream does not make a slow etcd faster.
	leastSilence = 3 * time.Second
	mostSilence  = time.Minute
)

// A stream is the gRPC stream on which all Sessions of a client begin their watches. Watches
// that began on an earlier stream stay there until they end, and that stream ends with the last.
//
// Whenever a watch begins on a stream, etcd checks the token with which the stream was opened.
// Once that token has expired, etcd refuses each new watch, and clientv3 opens no other stream
// with the same metadata while an older watch lives there: one of the user's, if the stream were
// shared, or one of a long wait. So the library has its own stream, and begins another, for which
// clientv3 gets a new token, when etcd has refused a watch. It does the same when the stream is
// silent, because it may lead to a member that hangs.
//
// (Do not give each Session a stream: a thousand of one client would be a thousand streams
// and logins. TestTheSessionsOfAClientShareAStream.)
type stream struct {
	mu       sync.Mutex    // not held across anything
	name     int64         // of the stream for new watches; no two streams have the same
	own      metadata.MD   // of its watches: its name, and that it requires a leader
	since    time.Time     // when it was named
	heard    time.Time     // when a watch on it last reported something
	silent   time.Time     // when the first watch without an answer since then began
	patience time.Duration // how long it may be silent

	watches map[*Conn]int // of each Session, on this stream and earlier ones
}

var (
	streamNames atomic.Int64
	streams     attempt.Shared[stream] // of all clients that have a Session
)

// streamOf returns the stream of a client.
func streamOf(client *clientv3.Client) *stream {
	return attempt.SharedBy(&streams, client, func() *stream {
		s := &stream{patience: leastSilence, watches: make(map[*Conn]int)}
		s.renewLocked()
		s.since = time.Time{}
		return s
	})
}

// tokenRefusals are the answers to a watch or a renewal when the token of its stream has expired,
// is older than a change of users, or was not there yet. Before 3.4.22 and 3.5.6 etcd answered
// "permission denied" in each of these cases.
var tokenRefusals = []error{
	rpctypes.ErrInvalidAuthToken,
	rpctypes.ErrAuthOldRevision,
	rpctypes.ErrUserEmpty,
}

// IsOfToken reports whether err is among the tokenRefusals.
func IsOfToken(err error) bool {
	return slices.ContainsFunc(tokenRefusals, func(e error) bool { return attempt.Is(err, e) })
}

// context returns ctx for a watch on the stream, and the stream's name. Its outgoing metadata are
// the library's alone: a request id or a trace header of the caller would open a stream for each
// call, and with user and password log in for it.
func (s *stream) context(ctx context.Context) (context.Context, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return metadata.NewOutgoingContext(ctx, s.own), s.name
}

// tells notes that a watch on the named stream reported something: the stream lives.
func (s *stream) tells(name int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == s.name {
		s.heard, s.silent, s.patience = time.Now(), time.Time{}, leastSilence
	}
}

// fails notes why a watch on the named stream ended (nil for no reason). If etcd refused it, the
// next watch is on another stream.
func (s *stream) fails(name int64, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := streamRest
	switch {
	case attempt.Is(why, rpctypes.ErrPermissionDenied):
		rest = DeniedRest
	case !IsOfToken(why):
		return
	}
	if name == s.name && time.Since(s.since) >= rest {
		s.renewLocked()
	}
}

// begins counts a watch of a Session, until the returned function is called. It may be called any
// number of times. (Do not count Sessions instead: the stream would keep a client that is
// forgotten, and its Sessions.)
func (s *stream) begins(of *Conn) (ends func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[of]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watches[of]--; s.watches[of] == 0 {
			delete(s.watches, of)
		}
	})
}

// isSilent notes that a watch that began on the named stream at begun has no answer. If nothing
// else was heard on that stream for long, the next watch is on another stream, and isSilent returns
// the Sessions whose watches hear nothing either: all that have any.
func (s *stream) isSilent(name int64, begun time.Time) []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != s.name || !s.heard.Before(begun) {
		return nil
	}
	if s.silent.IsZero() {
		s.silent = begun
	}
	if time.Since(s.silent) < s.patience {
		return nil
	}
	s.patience = min(2*s.patience, mostSilence)
	s.renewLocked()
	return slices.Collect(maps.Keys(s.watches))
}

// moved makes the next watches begin on another stream, because the client may have been moved
// to another cluster: gRPC lets an open stream go on to the old one.
func (s *stream) moved() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.since) >= streamRest {
		s.renewLocked()
	}
}

// renewLocked names another stream.
func (s *stream) renewLocked() {
	s.name, s.since = streamNames.Add(1), time.Now()
	s.own = metadata.Pairs(streamKey, strconv.FormatInt(s.name, 10),
		rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)
	s.heard, s.silent = time.Time{}, time.Time{}
}
