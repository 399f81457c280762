package main

import (
	"context"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
)

// atOnce is how many requests about leases or holders are under way at a time.
const atOnce = 8

// each calls f for 0 to n-1, some at a time.
func each(n int, f func(i int)) {
	var asking sync.WaitGroup
	for first := range min(atOnce, n) {
		asking.Go(func() {
			for i := first; i < n; i += atOnce {
				f(i)
			}
		})
	}
	asking.Wait()
}

// A left is how much of a lease is left, in seconds. Without an error it has run out if that is
// negative.
type left struct {
	ttl, granted int64
	err          error
}

// late reports whether renewals are overdue.
func (l left) late() bool {
	return l.err == nil && board.Lease{Left: l.ttl, Granted: l.granted}.Late()
}

// leftOf asks what is left of each lease of the places. A lease may have many places.
func leftOf(
	ctx context.Context, client *clientv3.Client, places []place,
) map[clientv3.LeaseID]left {
	var leases []clientv3.LeaseID
	for _, p := range places {
		leases = append(leases, p.Lease)
	}
	slices.Sort(leases)
	leases = slices.Compact(leases)
	lefts := make([]left, len(leases))
	each(len(leases), func(i int) {
		resp, err := client.TimeToLive(ctx, leases[i])
		if lefts[i].err = err; err == nil {
			lefts[i].ttl, lefts[i].granted = resp.TTL, resp.GrantedTTL
		}
	})
	all := make(map[clientv3.LeaseID]left)
	for i, lease := range leases {
		all[lease] = lefts[i]
	}
	return all
}

// A hold is what tells a place from all others.
type hold struct {
	key   string
	token int64
}

// holds says since when places hold. It remembers what it has seen: a second look knows more.
type holds struct {
	since  map[hold]began // of the places that held at the last look
	looked bool
}

// A began is since when a place holds. The zero time is for one that has waited: etcd does not say
// when its turn came.
type began struct {
	at    time.Time
	known bool // etcd has answered
}

// look notes which places hold at a time. Of one that did not before it asks etcd whether it held
// from the start.
func (h *holds) look(ctx context.Context, kv clientv3.KV, places []place, now time.Time) {
	since := make(map[hold]began)
	var begun []place
	for _, p := range places {
		id := hold{p.Key, p.Token}
		if h.since[id].known {
			since[id] = h.since[id]
		} else if p.Holds {
			begun = append(begun, p)
		}
	}
	atOnce, errs := make([]bool, len(begun)), make([]error, len(begun))
	each(len(begun), func(i int) {
		atOnce[i], errs[i] = board.BeganAtOnce(ctx, kv, begun[i].Name, begun[i].Key, begun[i].Token)
	})
	for i, p := range begun {
		id := hold{p.Key, p.Token}
		_, held := h.since[id]
		switch {
		case errs[i] != nil: // the next look asks again
			since[id] = began{}
		case atOnce[i]:
			since[id] = began{p.Since, true}
		case h.looked && !held: // its turn came between the two looks
			since[id] = began{now, true}
		default:
			since[id] = began{known: true}
		}
	}
	h.since, h.looked = since, true
}
