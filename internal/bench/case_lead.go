package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/etcdlock/etcdlock/internal/side"
)

// resignCase is handoverCase for leaders.
func resignCase(term time.Duration) benchCase {
	return benchCase{
		name: "lead-resign", kind: resign, n: 2, etcd: true,
		title: fmt.Sprintf("the leader resigns after a term of %v; how long until the next leads", term),
		note:  resignNote,
		start: startResign(term),
	}
}

// leaderCrashCase is the case crash for leaders.
var leaderCrashCase = benchCase{
	name: "lead-crash", kind: leaderCrash, most: 3, whole: true, etcd: true,
	title: fmt.Sprintf("the leader's process is killed by SIGKILL; "+
		"how long until the next leads (TTL %v)", crashTTL),
	note:  leaderCrashNote,
	start: startCrash(aTerm),
}

const (
	resignNote = `client-go's leaderelection is not measured: it keeps its record in a Kubernetes API
server. With the RetryPeriod of 2 s that Kubernetes' components have, a candidate looks at the record
each 2 to 4.4 s. So with ReleaseOnCancel the next one leads after up to 4.4 s, and without it as if
the leader had been killed.`

	leaderCrashNote = `Both have the same TTL here. By default it is 15 s for this library, and 60 s
for a concurrency.Session.

client-go's leaderelection is not measured: it keeps its record in a Kubernetes API server. With the
values that Kubernetes' components have (LeaseDuration 15 s, RenewDeadline 10 s, RetryPeriod 2 s) a
candidate looks at the record each 2 to 4.4 s (RetryPeriod, and up to 1.2 times as much at random).
It takes over at its first look 15 s or more after the one that saw the last renewal, and the leader
renews each 2 s. So the next one leads 13 to 24 s after the leader was killed.`
)

// startResign is startHandover with candidates. A candidate that resigns is back in line only for
// the next hand-over.
func startResign(term time.Duration) func(context.Context, *arena) (*event, error) {
	return func(ctx context.Context, a *arena) (*event, error) {
		parties, end, err := a.parties(ctx, 2, ttl)
		if err != nil {
			return nil, err
		}
		name, w := a.name(), &witness{}
		var s [2]*section
		for i := range s {
			l, err := candidateOf(ctx, parties[i], name)
			if err != nil {
				end()
				return nil, err
			}
			s[i] = &section{lock: l, witness: w, who: int64(i + 1)}
		}
		p := &pingPong{hold: term, holder: s[0], waiter: s[1]}
		return &event{func(ctx context.Context) (measure, error) { return p.piece(ctx, a) }, end}, nil
	}
}

func candidateOf(ctx context.Context, p party, name string) (side.Lock, error) {
	c, ok := p.(candidateParty)
	if !ok {
		return nil, errors.New("it has no leaders")
	}
	return c.candidate(ctx, name)
}
