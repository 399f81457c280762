package sim

import (
	"errors"
	"io"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// A watchStream is one stream with its watches. Its fields are guarded by Cluster.mu.
type watchStream struct {
	m              *member
	requiresLeader bool
	watches        []*watch
	lastID         int64
	queue          []*pb.WatchResponse
	more           chan struct{} // tells the sender that queue is not empty
	failed         chan error
}

// A watch delivers the events of a range, in order, and none twice.
//
// Invariant: all below next has been delivered.
type watch struct {
	id             int64
	key, end       []byte
	next           int64
	behind         bool // past events are delivered at the member's next step
	noPut, noDelet bool
}

func (s *watchServer) Watch(stream pb.Watch_WatchServer) error {
	ctx, m := stream.Context(), s.m
	c := m.c
	if err := c.awake(ctx, m); err != nil {
		return err
	}
	w := &watchStream{
		m:              m,
		requiresLeader: requiresLeader(ctx),
		more:           make(chan struct{}, 1),
		failed:         make(chan error, 2),
	}
	c.mu.Lock()
	if w.requiresLeader && m.lead == nil {
		c.mu.Unlock()
		return rpctypes.ErrGRPCNoLeader
	}
	m.streams = append(m.streams, w)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		m.streams = slices.DeleteFunc(m.streams, func(other *watchStream) bool { return other == w })
	}()

	go func() { // ends with the stream
		for {
			in, err := stream.Recv()
			if err == nil {
				err = c.awake(ctx, m)
			}
			if err != nil {
				w.failed <- err
				return
			}
			w.handle(in)
		}
	}()
	for {
		select {
		case <-w.more:
			if err := c.awake(ctx, m); err != nil {
				return err
			}
			for _, reply := range w.take() {
				if err := stream.Send(reply); err != nil {
					return err
				}
			}
		case err := <-w.failed:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *watchStream) take() []*pb.WatchResponse {
	w.m.c.mu.Lock()
	defer w.m.c.mu.Unlock()
	queue := w.queue
	w.queue = nil
	return queue
}

func (w *watchStream) addLocked(reply *pb.WatchResponse) {
	reply.Header = w.m.fillLocked(&pb.ResponseHeader{})
	w.queue = append(w.queue, reply)
	select {
	case w.more <- struct{}{}:
	default: // the sender knows already
	}
}

func (w *watchStream) handle(in *pb.WatchRequest) {
	c := w.m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case in.GetCreateRequest() != nil:
		w.createLocked(in.GetCreateRequest())
	case in.GetCancelRequest() != nil:
		id := in.GetCancelRequest().WatchId
		if w.removeLocked(id) {
			w.addLocked(&pb.WatchResponse{WatchId: id, Canceled: true})
		}
	case in.GetProgressRequest() != nil:
		// Only if no watch is behind.
		if !slices.ContainsFunc(w.watches, func(watch *watch) bool { return watch.behind }) {
			w.addLocked(&pb.WatchResponse{WatchId: clientv3.InvalidWatchID})
		}
	}
}

func (w *watchStream) removeLocked(id int64) bool {
	before := len(w.watches)
	w.watches = slices.DeleteFunc(w.watches, func(watch *watch) bool { return watch.id == id })
	return len(w.watches) < before
}

func (w *watchStream) createLocked(in *pb.WatchCreateRequest) {
	now := w.m.viewLocked().Rev()
	made := &watch{
		id: w.lastID, key: in.Key, end: in.RangeEnd, next: in.StartRevision,
		noPut:   slices.Contains(in.Filters, pb.WatchCreateRequest_NOPUT),
		noDelet: slices.Contains(in.Filters, pb.WatchCreateRequest_NODELETE),
	}
	w.lastID++
	w.watches = append(w.watches, made)
	w.addLocked(&pb.WatchResponse{WatchId: made.id, Created: true})
	switch {
	case made.next == 0, made.next > now+1 && w.m.c.strikesLocked(oldEvents, true):
		made.next = now + 1
	case made.next <= now:
		made.behind = true
		time.AfterFunc(time.Duration(1+w.m.rand.Int64N(int64(syncStep))), func() { w.catchUp(made) })
	}
}

// catchUp delivers the events from before a watch began.
func (w *watchStream) catchUp(behind *watch) {
	c := w.m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(w.watches, behind) {
		return
	}
	view := w.m.viewLocked()
	if behind.next < view.Compacted() {
		w.removeLocked(behind.id)
		w.addLocked(&pb.WatchResponse{WatchId: behind.id, Canceled: true,
			CompactRevision: view.Compacted()})
		return
	}
	behind.behind = false
	from := behind.next
	behind.next = view.Rev() + 1
	if !w.m.losesLocked(true) {
		w.deliverLocked(behind, c.store.Events(from, view.Rev()))
	}
}

// notifyLocked delivers the events of what m has just carried out.
func (m *member) notifyLocked(events []*mvccpb.Event) {
	for _, w := range m.streams {
		for _, watch := range w.watches {
			if watch.behind {
				continue
			}
			// One reply for each revision, as etcd does for a watch that is not behind.
			for i := 0; i < len(events); {
				rev, j := events[i].Kv.ModRevision, i+1
				for j < len(events) && events[j].Kv.ModRevision == rev {
					j++
				}
				if rev >= watch.next {
					if !m.losesLocked(false) {
						w.deliverLocked(watch, events[i:j])
					}
					watch.next = rev + 1
				}
				i = j
			}
		}
	}
}

func (w *watchStream) deliverLocked(to *watch, events []*mvccpb.Event) {
	reply := &pb.WatchResponse{WatchId: to.id}
	for _, event := range events {
		isPut := event.Type == clientv3.EventTypePut
		if isPut && to.noPut || !isPut && to.noDelet || !fake.Within(event.Kv.Key, to.key, to.end) {
			continue
		}
		reply.Events = append(reply.Events, event)
	}
	if len(reply.Events) > 0 {
		w.sendLocked(to, reply.Events)
		w.againLocked(to, reply.Events)
	}
}

func (w *watchStream) sendLocked(to *watch, events []*mvccpb.Event) {
	w.addLocked(&pb.WatchResponse{WatchId: to.id, Events: events})
}

// cancelLeaderlessLocked ends the streams that require a leader.
func (m *member) cancelLeaderlessLocked() {
	for _, w := range m.streams {
		if w.requiresLeader {
			select {
			case w.failed <- rpctypes.ErrGRPCNoLeader:
			default: // it is failing already
			}
		}
	}
}
