package main

import (
	"context"
	"errors"
	"fmt"
)

// permitsCase is contenders that each take one permit of a limit.
func permitsCase(limit int) benchCase {
	const n = 32
	return benchCase{
		name: fmt.Sprintf("permits-%d", limit), kind: permits, n: n, rate: true, whole: true,
		title: fmt.Sprintf("%d contenders over %d clients, each takes one permit of a semaphore "+
			"with the limit %d, empty critical section",
			n, crowdParties(n), limit),
		start: startSharing(crowdParties(n), permitsOf(n, limit)),
	}
}

// permitsOf makes sections for startSharing: n users of a semaphore with a new name.
func permitsOf(n, limit int) func(context.Context, *arena, []party) ([]*section, error) {
	return func(_ context.Context, a *arena, parties []party) ([]*section, error) {
		name, w := a.name(), &witness{}
		made := make([]*section, n)
		for i := range made {
			p, ok := parties[i%len(parties)].(permitParty)
			if !ok {
				return nil, errors.New("it has no semaphore")
			}
			l, err := p.permit(name, limit)
			if err != nil {
				return nil, err
			}
			made[i] = &section{lock: l, witness: w, limit: int64(limit)}
		}
		return made, nil
	}
}
