package docs

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlocktest"
)

// Each answer to a guess in docs/llms.txt stands below, where it compiles
// and does what it is for.
func TestTheAnswersToGuessesCompile(t *testing.T) {
	client := etcdlocktest.New(t).Client()
	ctx, d, n := t.Context(), time.Second, 2
	name, text, names := "a", "info", []string{"b", "c"}
	name = "app/" + name
	session, err := NewSession(client)
	require.NoError(t, err)
	defer session.Close(context.Background())
	options := []SessionOption{WithTTL(15 * time.Second), WithAcquireTimeout(d), WithInfo(text)}
	alone, err := NewMutex(client, name)
	require.NoError(t, err)
	require.NoError(t, alone.Close(ctx))
	alone, err = NewMutex(client, name, options...)
	require.NoError(t, err)
	defer alone.Close(context.Background())

	mu, err := session.Mutex(name)
	require.NoError(t, err)
	taken := func() bool {
		err := alone.TryLock(ctx)
		return errors.Is(err, ErrLocked)
	}
	locked := func() error {
		err := mu.Lock(ctx)
		return err
	}
	tried := func() error {
		err := mu.TryLock(ctx)
		return err
	}
	require.NoError(t, locked())
	require.True(t, taken())
	require.True(t, mu.Status().Held)
	require.NotZero(t, mu.Token())
	tokenOf := func(ctx context.Context) (int64, bool) { return TokenFrom(ctx) }
	token, ok := tokenOf(mu.Context(ctx))
	require.True(t, ok)
	require.Equal(t, mu.Token(), token)
	contenders, err := Contenders(ctx, client, name)
	require.NoError(t, err)
	require.Len(t, contenders, 1)
	require.ErrorIs(t, alone.Lock(ctx), context.DeadlineExceeded)
	held := mu.Context(ctx)
	done := mu.Context(ctx).Done()
	require.NoError(t, mu.Unlock(ctx))
	<-done
	require.ErrorIs(t, context.Cause(held), ErrUnlocked)
	require.NoError(t, tried())
	require.NoError(t, mu.Unlock(ctx))
	locker := mu.Locker()
	locker.Lock()
	require.NotEmpty(t, mu.Key())
	locker.Unlock()

	holds := []func() (*Hold, error){
		func() (*Hold, error) { return session.Lock(ctx, name) },
		func() (*Hold, error) { return session.LockAll(ctx, names...) },
		func() (*Hold, error) {
			rw, err := session.RWMutex(name)
			require.NoError(t, err)
			h, err := rw.RLock(ctx)
			return h, err
		},
		func() (*Hold, error) {
			sem, err := session.Semaphore(name, n)
			require.NoError(t, err)
			h, err := sem.Acquire(ctx, 1)
			return h, err
		},
	}
	for _, get := range holds {
		h, err := get()
		require.NoError(t, err)
		require.NoError(t, h.Unlock(ctx))
	}
	fn := func(ctx context.Context) error { return ErrStopLeading }
	require.ErrorIs(t, session.Lead(ctx, name, fn), ErrStopLeading)
	for holder, err := range WatchHolder(ctx, client, name) {
		require.NoError(t, err)
		require.Empty(t, holder.Key)
		break
	}

	tight := strings.NewReplacer(" ", "", "\t", "")
	this, err := os.ReadFile("internal/tests/docs/guesses_test.go")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| (`.*) \\| (.*) \\|$").
		FindAllStringSubmatch(docs(t)["docs/llms.txt"], -1)
	guesses, span := 0, regexp.MustCompile("`([^`]+)`")
	for _, row := range rows {
		guesses += len(span.FindAllString(row[1], -1))
		for _, answer := range span.FindAllStringSubmatch(row[2], -1) {
			if strings.ContainsAny(answer[1], "(+.") && answer[1] != "sync.Locker" {
				has := strings.Contains(tight.Replace(string(this)), tight.Replace(answer[1]))
				require.True(t, has, "%s", answer[1])
			}
		}
	}
	require.GreaterOrEqual(t, guesses, 31)
}
