package outages

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/race"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// Candidates lead, follow and give up under random faults, while others watch who leads. No
// two believe to lead at once, and tokens grow. The watchers see growing tokens, too, and
// in the end the leader. Lead goes on through everything.
func TestLeadersUnderRandomFaults(t *testing.T) {
	terms, sights := 0, 0
	for seed := range uint64(race.Fewer(40, 8)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				l := newHolders(t)
				sights += leadUnderFaults(t, etcd, l, seed)
				terms += l.writes
			})
		})
	}
	t.Logf("%d terms, %d sights", terms, sights)
	require.Greater(t, sights, terms/4)
}

func leadUnderFaults(t *testing.T, etcd *fake.Server, l *holders, seed uint64) (sights int) {
	const faulty = 4 * time.Minute
	enough := errors.New("enough")
	names := []string{"a", "b", "c"}
	random := rand.New(rand.NewPCG(seed, 1))
	stop := faultsAtRandom(etcd, seed, 1)
	ctx, cancel := context.WithCancelCause(context.Background())
	var all, watching sync.WaitGroup
	for home, who := range names {
		own := rand.New(rand.NewPCG(seed, uint64(10+home)))
		mu := contract.MutexOf(t, tests.SessionOf(t, etcd, who), "n", etcdlock.WithInfo(who))
		all.Go(func() {
			err := mu.Lead(ctx, func(ctx context.Context) error {
				token, _ := etcdlock.TokenFrom(ctx)
				b := &holding{who: who, home: home, writes: true, token: token, ctx: ctx}
				l.enter(b)
				defer l.leave(b)
				select {
				case <-ctx.Done():
				case <-time.After(time.Duration(own.Int64N(int64(20 * time.Second)))):
				}
				return nil
			})
			require.ErrorIs(t, err, enough)
		})
	}
	looking, lookAway := context.WithCancel(context.Background())
	type sight struct {
		etcdlock.Contender
		at time.Time
	}
	seen := make([][]sight, 2)
	for i := range seen {
		watching.Go(func() {
			for c, err := range etcdlock.WatchHolder(looking, etcd.Client(names[i]), "n") {
				require.NoError(t, err)
				if before := len(seen[i]) - 1; before >= 0 {
					require.NotEqual(t, seen[i][before].Contender, c, "twice in a row")
				}
				for _, s := range seen[i] {
					require.True(t, c.Token == 0 || c.Token > s.Token, "%v after %v", c, s)
				}
				seen[i] = append(seen[i], sight{c, time.Now()})
			}
		})
	}
	for over := time.Now().Add(faulty); time.Now().Before(over); {
		time.Sleep(time.Duration(1+random.IntN(15)) * time.Second)
		misfortune(etcd, random, names[random.IntN(len(names))])
	}
	stop()
	time.Sleep(time.Minute) // by then all that was under way is over
	for range 10 {
		time.Sleep(time.Duration(random.Int64N(int64(10 * time.Second))))
		synctest.Wait()
		for i := range seen {
			now := seen[i][len(seen[i])-1]
			line, err := etcdlock.Contenders(context.Background(), etcd.Client("operator"), "n")
			require.NoError(t, err)
			if len(line) > 0 && time.Since(now.at) > 3*time.Second && now.Token != line[0].Token {
				time.Sleep(3 * time.Second)
				synctest.Wait()
				now = seen[i][len(seen[i])-1]
				require.GreaterOrEqual(t, now.Token, line[0].Token, "watcher %d sees an old one", i)
			}
		}
	}
	cancel(enough)
	all.Wait()
	time.Sleep(3 * time.Second)
	synctest.Wait()
	for i := range seen {
		require.Zero(t, seen[i][len(seen[i])-1].Contender, "nobody leads")
		sights += len(seen[i])
	}
	lookAway()
	watching.Wait()
	return sights
}
