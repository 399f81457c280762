package matrix

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// wrongs are locks that break a promise, and the stories that must see it.
var wrongs = []struct {
	name string
	of   func(lock) lock
	seen []string // nil: each story
}{
	{"it is none", func(l lock) lock { return noLock{l} }, nil},
	{"Unlock releases nothing", func(l lock) lock { return keeper{l} }, []string{
		"lock and unlock", "hand-over in order", "TryLock of what is taken",
		"etcdctl lock: first come, first served",
		"readers and writers in order", older + ": readers beside it",
		older + ": several names beside it",
		older + ": permits beside it", older + ": a leader beside it",
		older + ": a crash before several names",
	}},
	{"Unlock always says nil", func(l lock) lock { return liar{l} }, []string{"a revoked lease is learnt", "Unlock after Break"}},
	{"a loss is not told", func(l lock) lock { return mute{l} }, []string{
		"a revoked lease is learnt", "Unlock after Break", older + ": a recall beside it",
	}},
	{"Lock does not heed its context", func(l lock) lock { return deaf{l} }, []string{
		"a wait ends with its context", "v3lock: waits that are cancelled",
	}},
}

type (
	noLock struct{ lock }
	keeper struct{ lock }
	liar   struct{ lock }
	mute   struct{ lock }
	deaf   struct{ lock }
)

func (noLock) Lock(context.Context) error    { return nil }
func (noLock) TryLock(context.Context) error { return nil }
func (noLock) Unlock(context.Context) error  { return nil }
func (noLock) Hold() context.Context         { return context.Background() }
func (noLock) Token() int64                  { return 0 }

func (keeper) Unlock(context.Context) error { return nil }

func (l liar) Unlock(ctx context.Context) error {
	_ = l.lock.Unlock(ctx)
	return nil
}

func (mute) Hold() context.Context { return context.Background() }

func (l deaf) Lock(context.Context) error {
	ctx, cancel := context.WithTimeout(context.Background(), soon)
	defer cancel()
	return l.lock.Lock(ctx)
}

// The stories see a lock that is wrong. If they did not, they would show nothing.
func TestTheStoriesSeeWhatIsWrong(t *testing.T) {
	t.Parallel()
	s := setup{name: "1 member, users", members: 1, token: "jwt", role: true}
	for _, wrong := range wrongs {
		t.Run(wrong.name, func(t *testing.T) {
			w := s.open(t, newest(), lockNames())
			opens := func(client *clientv3.Client, name string, ttl time.Duration, u use) (lock, error) {
				l, err := ours(client, name, ttl, u)
				return wrong.of(l), err
			}
			var all sync.WaitGroup
			for _, st := range stories {
				if wrong.seen == nil || slices.Contains(wrong.seen, st.name) {
					all.Go(func() {
						t.Run(st.name, func(t *testing.T) {
							why := w.plays(t, lockName(st), st, opens)
							require.NotEmpty(t, why, "the story has seen nothing")
							t.Logf("%s", strings.Join(why, "\n"))
						})
					})
				}
			}
			all.Wait()
		})
	}
}
