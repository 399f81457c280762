//go:build unix

package contract_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

func init() { becomeHolder = holder }

// holder locks "x", says so, waits for a line, and reports what it believes at its first
// check.
func holder(endpoint string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	mu, err := etcdlock.NewMutex(client, "x", etcdlock.WithTTL(time.Second))
	if err != nil {
		return err
	}
	if err := mu.Lock(context.Background()); err != nil {
		return err
	}
	ctx := mu.Context(context.Background())
	fmt.Println("held")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	fmt.Println(ctx.Err(), mu.Token(), mu.Status().Deadline.IsZero(), mu.Key() == "")
	fmt.Println(mu.Unlock(context.Background()))
	return nil
}

// startHolder starts a process that holds "x", with what it is told and what it says.
func startHolder(t *testing.T, cluster *etcdtest.Cluster) (*exec.Cmd, io.Writer, *bufio.Scanner) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	a := exec.CommandContext(t.Context(), self)
	a.Env = append(os.Environ(), holderEnv+"="+cluster.Endpoint(0))
	a.Stderr = os.Stderr
	orders, err := a.StdinPipe()
	require.NoError(t, err)
	answers, err := a.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, a.Start())
	said := bufio.NewScanner(answers)
	require.True(t, said.Scan())
	require.Equal(t, "held", said.Text())
	return a, orders, said
}

// Rule 11.
//
//	a holds | a is killed | its lease expires, b gets in
func TestAProcessThatDiedBlocksNobody(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	a, _, _ := startHolder(t, cluster)
	require.NoError(t, a.Process.Kill())
	require.Error(t, a.Wait())
	b := contract.NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, b.Lock(bounded(t)))
	require.NoError(t, b.Unlock(bounded(t)))
}

// S4: a process is stopped for longer than the TTL while it holds the lock. When it wakes
// it knows at once that it lost the lock, and leaves the next owner alone.
//
//	a holds | a is stopped | its lease expires, b gets in | a wakes and looks
func TestAProcessThatWasStoppedKnowsAtItsFirstLook(t *testing.T) {
	t.Parallel()
	etcdtest.VerifyNoLeaks(t)
	cluster := etcdtest.Start(t, 1)
	a, orders, said := startHolder(t, cluster)
	require.NoError(t, a.Process.Signal(syscall.SIGSTOP))
	b := contract.NewMutex(t, cluster.Client(t), "x")
	require.NoError(t, b.Lock(bounded(t)))
	_, err := fmt.Fprintln(orders, "look")
	require.NoError(t, err)
	require.NoError(t, a.Process.Signal(syscall.SIGCONT))

	require.True(t, said.Scan())
	require.Equal(t, "context canceled 0 true true", said.Text())
	require.True(t, said.Scan())
	require.Contains(t, said.Text(), `etcdlock: lock "x" lost`)
	require.NoError(t, a.Wait())
	require.NoError(t, b.Unlock(t.Context()), "untouched")
}
