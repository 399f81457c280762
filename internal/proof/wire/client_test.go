package wire_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/embedded"
	"github.com/etcdlock/etcdlock/internal/tests"
)

func TestMain(m *testing.M) { tests.Main(m) }

// python is a command that runs the client.
func python(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("there is no python3 here: it is in Debian's package python3")
	}
	run := exec.Command(path, append([]string{"testdata/client.py"}, args...)...)
	run.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
	run.Stderr = os.Stderr
	return run
}

// A client in another language can use the vectors: it parses what they have, and builds most of
// the transactions.
func TestAClientInPythonAgreesWithTheVectors(t *testing.T) {
	v := read(t)
	said, err := python(t, "vectors", file).Output()
	require.NoError(t, err)
	var checked struct{ Keys, Values, Lines, Transactions int }
	require.NoError(t, json.Unmarshal(said, &checked))
	require.Equal(t, []int{len(v.Keys), len(v.Values), len(v.Lines)},
		[]int{checked.Keys, checked.Values, checked.Lines})
	require.Equal(t, 16, checked.Transactions)
}

// A peer is a process of the client in Python.
type peer struct {
	t      *testing.T
	orders io.Writer
	says   *bufio.Scanner
}

// A report is what it says.
type report struct {
	Is         string
	Keys       []string
	Token      int64
	By, Reason string
}

// startPeer starts one. It ends, and gives its lease back, with the test.
func startPeer(t *testing.T, endpoint string) *peer {
	t.Helper()
	run := python(t, endpoint)
	orders, err := run.StdinPipe()
	require.NoError(t, err)
	out, err := run.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, run.Start())
	t.Cleanup(func() {
		if t.Failed() {
			_ = run.Process.Kill() // it may wait for ever
		}
		require.NoError(t, orders.Close())
		require.NoError(t, run.Wait())
	})
	return &peer{t, orders, bufio.NewScanner(out)}
}

// does has it do something.
func (p *peer) does(words ...string) {
	p.t.Helper()
	_, err := io.WriteString(p.orders, strings.Join(words, " ")+"\n")
	require.NoError(p.t, err)
}

// is reads what it says next.
func (p *peer) is(want string) (r report) {
	p.t.Helper()
	require.True(p.t, p.says.Scan(), "it has ended; waited for %q", want)
	require.NoError(p.t, json.Unmarshal(p.says.Bytes(), &r))
	require.Equal(p.t, want, r.Is)
	return r
}

// A client that knows only the page locks, waits and releases beside this library, on an etcd that
// both reach, by its JSON gateway.
func TestAClientInPythonLocksBesideOurs(t *testing.T) {
	free, err := child.FreePorts(1) // the gateway calls the port that is configured
	require.NoError(t, err)
	endpoint := free[0]
	cfg := embedded.Config(t.TempDir())
	at := []url.URL{{Scheme: "http", Host: endpoint}}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at, at
	etcd, err := embedded.Start(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(etcd.Close)
	client := contract.ClientOf(t, []string{endpoint})
	contract.VerifyClean(t, client, "")
	p := startPeer(t, endpoint)
	for _, story := range []struct {
		name string
		tell func(*testing.T, *clientv3.Client, *peer)
	}{
		{"mutex", besideAMutex}, {"readers", besideReaders}, {"permits", besidePermits},
		{"several names", besideSeveral}, {"recalls", recallsEachOther}, {"broken", isBroken},
	} {
		t.Run(story.name, func(t *testing.T) { story.tell(t, client, p) })
	}
}

// We hold, it waits and gets in as we unlock; then the other way round.
func besideAMutex(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "m", etcdlock.WithOwner("ours"))
	require.NoError(t, mu.Lock(ctx))
	token := mu.Token()
	p.does("trylock", "m")
	p.is("taken")
	p.does("lock", "m")
	queued := p.is("queued")
	line := contract.WaitForLine(t, client, "m", 2)
	require.Equal(t, []bool{true, false}, []bool{line[0].Holds, line[1].Holds})
	require.Equal(t, []string{"ours", "python"}, []string{line[0].Owner, line[1].Owner})
	require.Equal(t, queued.Keys, []string{line[1].Key})
	require.NoError(t, mu.Unlock(ctx))
	held := p.is("held")
	require.Greater(t, held.Token, token)
	require.Equal(t, line[1].Token, held.Token)

	locked := new(etcdlock.LockedError)
	require.ErrorAs(t, mu.TryLock(ctx), &locked)
	require.Equal(t, "python", locked.Holder.Owner)
	in := contract.Async(func() error { return mu.Lock(ctx) })
	contract.WaitForLine(t, client, "m", 2)
	p.does("unlock")
	p.is("released")
	require.NoError(t, <-in)
	require.Greater(t, mu.Token(), held.Token)
	require.NoError(t, mu.Unlock(ctx))
}

// Both read; our writer waits for its read, and its next read waits for our writer.
func besideReaders(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client)
	rw, err := s.RWMutex("rw")
	require.NoError(t, err)
	h, err := rw.RLock(ctx)
	require.NoError(t, err)
	p.does("rlock", "rw")
	p.is("held")
	line := contract.WaitForLine(t, client, "rw", 2)
	require.Equal(t, etcdlock.ModeRead, line[1].Mode)
	require.True(t, line[1].Holds)
	require.NoError(t, h.Unlock(ctx))
	in := contract.Async(func() error { return rw.Lock(ctx) })
	contract.WaitForLine(t, client, "rw", 2)
	p.does("unlock")
	p.is("released")
	require.NoError(t, <-in)
	p.does("rlock", "rw")
	p.is("queued")
	require.NoError(t, rw.Unlock(ctx))
	p.is("held")
	p.does("unlock")
	p.is("released")
}

// It has 2 of 3 permits. We get one, and then wait for two.
func besidePermits(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	sem, err := contract.NewSession(t, client).Semaphore("s", 3)
	require.NoError(t, err)
	p.does("acquire", "s", "2", "3")
	p.is("held")
	h, err := sem.Acquire(ctx, 1)
	require.NoError(t, err)
	require.NoError(t, h.Unlock(ctx))
	_, err = sem.TryAcquire(ctx, 2)
	require.ErrorIs(t, err, etcdlock.ErrLocked)
	in := contract.Async(func() (err error) {
		h, err = sem.Acquire(ctx, 2)
		return err
	})
	contract.WaitForLine(t, client, "s", 2)
	p.does("unlock")
	p.is("released")
	require.NoError(t, <-in)
	p.does("acquire", "s", "2", "3")
	p.is("queued")
	require.NoError(t, h.Unlock(ctx))
	p.is("held")
	p.does("unlock")
	p.is("released")
}

// It locks two names of which we hold one, and then we do.
func besideSeveral(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	s := contract.NewSession(t, client)
	mu := contract.MutexOf(t, s, "b")
	require.NoError(t, mu.Lock(ctx))
	p.does("lock", "a", "b")
	p.is("queued")
	require.NoError(t, mu.Unlock(ctx))
	p.is("held")
	in := contract.Async(func() error {
		return s.DoAll(ctx, []string{"b", "a"}, func(context.Context) error { return nil })
	})
	contract.WaitForLine(t, client, "a", 2)
	p.does("unlock")
	p.is("released")
	require.NoError(t, <-in)
}

// It recalls our hold, and we recall its.
func recallsEachOther(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "r", etcdlock.WithRecall(time.Hour))
	require.NoError(t, mu.Lock(ctx))
	hold := mu.Context(ctx)
	p.does("recall", "r")
	p.is("recalled")
	contract.Await(t, etcdlock.RecallFrom(hold), 1)
	require.NoError(t, mu.Unlock(ctx))

	p.does("lock", "r")
	p.is("held")
	line := contract.WaitForLine(t, client, "r", 1)
	require.NoError(t, etcdlock.Recall(ctx, client, line[0],
		etcdlock.RecallRequest{By: "op", Reason: "update", Grace: time.Minute}))
	p.does("await-recall")
	told := p.is("recalled")
	require.Equal(t, []string{"op", "update"}, []string{told.By, told.Reason})
	p.does("unlock")
	p.is("released")
}

// Its key is taken away: its Unlock says so, and leaves the next one's key alone.
func isBroken(t *testing.T, client *clientv3.Client, p *peer) {
	ctx := contract.Patient(t)
	p.does("lock", "k")
	p.is("held")
	mu := contract.NewMutex(t, client, "k")
	in := contract.Async(func() error { return mu.Lock(ctx) })
	line := contract.WaitForLine(t, client, "k", 2)
	require.NoError(t, etcdlock.Break(ctx, client, line[0]))
	require.NoError(t, <-in)
	p.does("unlock")
	p.is("lost")
	contract.StillHolds(t, client, mu)
	require.NoError(t, mu.Unlock(ctx))
}
