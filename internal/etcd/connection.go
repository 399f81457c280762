package etcd

import (
	"context"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
)

// A connection is a client's connection, as its Sessions follow it: by one goroutine.
//
// (Do not call a Session's functions in it. They take the Session's mutex, for which 20,000 calls
// may wait, and the other Sessions have to know, too.
// TestASessionThatIsBusyKeepsNoOtherInTheDark.)
type connection struct {
	mu        sync.Mutex
	followers map[*follower]struct{}
	end       func() // ends follow
}

type follower struct {
	tasks       *guard.Group
	lost, found func()
}

// connections are the connections of all clients that are followed.
var connections attempt.Shared[connection]

// follow tells the followers of each change after state, until ctx ends.
func (n *connection) follow(ctx context.Context, conn *grpc.ClientConn, state connectivity.State) {
	for conn.WaitForStateChange(ctx, state) {
		was := state
		state = conn.GetState()
		n.mu.Lock()
		told := slices.Collect(maps.Keys(n.followers))
		n.mu.Unlock()
		for _, f := range told {
			n.tell(f, was == connectivity.Ready, state == connectivity.Ready)
		}
	}
}

// tell tells f, unless it was forgotten.
func (n *connection) tell(f *follower, lost, found bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, follows := n.followers[f]; !follows {
		return
	}
	if lost {
		f.tasks.Go(f.lost)
	}
	if found {
		f.tasks.Go(f.found)
	}
}

// forget ends f's following.
func (n *connection) forget(f *follower) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.followers, f)
	if len(n.followers) == 0 {
		n.end()
	}
}
