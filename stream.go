package etcdlock

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/etcdlock/etcdlock/internal/attempt"
)

const (
	// streamKey is what the library adds to the outgoing metadata of its watches. clientv3
	// tells its streams apart by that: watches of the same metadata share one. etcd ignores
	// it.
	streamKey = "etcdlock-stream"

	// streamRest is the least age of a stream that is given up for its token, since each new
	// one may cost a login; deniedRest that of one on which permission was denied: only an
	// old etcd says so of a token, and where the user may not watch no other stream helps.
	streamRest = time.Second
	deniedRest = time.Minute

	// leastSilence is for how long watches that are begun on a stream have no answer until it
	// is given up. It doubles with each stream that is given up so, up to mostSilence: an etcd
	// that is slow has no less to do for another stream.
	leastSilence = 3 * time.Second
	mostSilence  = time.Minute
)

// A stream is the gRPC stream on which all Sessions of a client begin their watches. Watches
// that were begun on an earlier one stay there until they end, and it ends with the last.
//
// etcd looks at the token with which a stream was opened whenever a watch is begun on it.
// Once that has expired it refuses each new watch, and clientv3 opens no other stream of the
// same metadata while an older watch lives there: that of the user, if it were shared with
// those, or one that waits for long. So the library has a stream of its own, and begins
// another one, for which clientv3 gets a token, when etcd has refused a watch. It does the
// same when the stream is silent: it may be one to a member that hangs.
//
// (Do not give each Session a stream: a thousand of one client would be a thousand streams
// and logins. TestTheSessionsOfAClientShareAStream.)
type stream struct {
	mu       sync.Mutex    // not held across anything
	name     int64         // of the stream for new watches; no two streams have the same
	since    time.Time     // when it was named
	heard    time.Time     // when a watch on it last told something
	silent   time.Time     // when the first watch was begun that had no answer since
	patience time.Duration // for how long it may be silent
}

var (
	streamNames atomic.Int64

	// streams are those of all clients that have a Session. They keep no client alive.
	streams struct {
		mu sync.Mutex
		of map[weak.Pointer[clientv3.Client]]*stream
	}
)

// streamOf returns the stream of a client.
func streamOf(client *clientv3.Client) *stream {
	streams.mu.Lock()
	defer streams.mu.Unlock()
	of := weak.Make(client)
	s := streams.of[of]
	if s == nil {
		s = &stream{name: streamNames.Add(1), patience: leastSilence}
		if streams.of == nil {
			streams.of = make(map[weak.Pointer[clientv3.Client]]*stream)
		}
		streams.of[of] = s
		runtime.AddCleanup(client, forgetStream, of)
	}
	return s
}

func forgetStream(of weak.Pointer[clientv3.Client]) {
	streams.mu.Lock()
	defer streams.mu.Unlock()
	delete(streams.of, of)
}

// tokenRefusals are the answers to a watch, or a renewal, when the token of its stream has
// expired, is older than a change of users, or was not there yet. Before 3.4.22 and 3.5.6 etcd
// said in each case that permission is denied.
var tokenRefusals = []error{
	rpctypes.ErrInvalidAuthToken,
	rpctypes.ErrAuthOldRevision,
	rpctypes.ErrUserEmpty,
}

// isOfToken reports whether err is one of the tokenRefusals.
func isOfToken(err error) bool {
	return slices.ContainsFunc(tokenRefusals, func(e error) bool { return attempt.Is(err, e) })
}

// context returns ctx for a watch on the stream, and the name of that.
func (s *stream) context(ctx context.Context) (context.Context, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return metadata.AppendToOutgoingContext(ctx, streamKey, strconv.FormatInt(s.name, 10)), s.name
}

// tells notes that a watch on the stream of a name told something: the stream lives.
func (s *stream) tells(name int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name == s.name {
		s.heard, s.silent, s.patience = time.Now(), time.Time{}, leastSilence
	}
}

// fails notes why a watch on the stream of a name ended, nil for no reason. The next one is
// on another stream if etcd has refused it.
func (s *stream) fails(name int64, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rest := streamRest
	switch {
	case attempt.Is(why, rpctypes.ErrPermissionDenied):
		rest = deniedRest
	case !isOfToken(why):
		return
	}
	if name == s.name && time.Since(s.since) >= rest {
		s.renewLocked()
	}
}

// isSilent notes that a watch, begun on the stream of a name at a time, has no answer. It
// reports whether the next one is on another stream for that, since nothing else was heard
// for long on this one.
func (s *stream) isSilent(name int64, begun time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if name != s.name || !s.heard.Before(begun) {
		return false
	}
	if s.silent.IsZero() {
		s.silent = begun
	}
	if time.Since(s.silent) < s.patience {
		return false
	}
	s.patience = min(2*s.patience, mostSilence)
	s.renewLocked()
	return true
}

// moved has the next watches begun on another stream, since the client may have been moved
// to another cluster: gRPC lets a stream that is open go on to the old one.
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
	s.heard, s.silent = time.Time{}, time.Time{}
}

// watch begins a watch of what will happen. It returns when etcd has answered; if that takes
// too long, with a channel that is closed, and the next one may take longer, by broken. stop
// ends the watch, on is the name of its stream.
func (s *Session) watch(ctx context.Context, broken *attempt.Backoff, key string, opts ...clientv3.OpOption) (
	events clientv3.WatchChan, on int64, stop context.CancelFunc,
) {
	watching, on := s.stream.context(clientv3.WithRequireLeader(ctx))
	watching, stop = context.WithCancel(watching)
	started, before := time.Now(), *broken
	const opening, open, given = 0, 1, 2
	var state atomic.Int32
	var look func()
	look = func() { // what answers take may have become less since
		left := s.calls.WatchTimeout(before) - time.Since(started)
		switch {
		case state.Load() != opening:
		case left > 0:
			time.AfterFunc(min(left, attempt.ReadTimeout), look)
		case state.CompareAndSwap(opening, given):
			stop() // while it is not there, nobody looks
		}
	}
	look()
	events = s.client.Watch(watching, key, append(opts, clientv3.WithCreatedNotify())...)
	if !state.CompareAndSwap(opening, open) {
		broken.Unanswered()
		if s.stream.isSilent(on, started) {
			// The others on it hear nothing either. (It makes one watch at a time, so many
			// that are begun at once take long. Then it is not silent.)
			s.watchAnew()
		}
	}
	return events, on, stop
}
