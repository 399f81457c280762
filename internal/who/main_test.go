package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/sim"
)

// etcd starts an etcd in memory for one test, and returns its address and a client.
func etcd(t *testing.T) (endpoint string, client *clientv3.Client) {
	t.Helper()
	endpoint, server, err := sim.Serve()
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	return endpoint, client
}

// holds takes the lock name for the rest of the test.
func holds(t *testing.T, client *clientv3.Client, name string, opts ...etcdlock.Option) *etcdlock.Mutex {
	t.Helper()
	mu, err := etcdlock.New(client, name, opts...)
	require.NoError(t, err)
	t.Cleanup(func() { mu.Close(context.Background()) })
	require.NoError(t, mu.Lock(t.Context()))
	return mu
}

// who runs the program. answer is what is typed.
func who(t *testing.T, answer string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	status = run(t.Context(), args, strings.NewReader(answer), &out, &errs)
	t.Logf("%v: status %d\n%s%s", args, status, out.String(), errs.String())
	return status, out.String(), errs.String()
}

// rows are the fields of the table's lines, without its head.
func rows(stdout string) (rows [][]string) {
	for line := range strings.Lines(stdout) {
		if fields := strings.Fields(line); len(fields) > 7 && fields[0] != "NAME" {
			rows = append(rows, fields)
		}
	}
	return rows
}

func TestHoldersOfAllAndBelowAPrefix(t *testing.T) {
	endpoint, client := etcd(t)
	status, stdout, _ := who(t, "", "-endpoints", endpoint)
	require.Equal(t, exitGood, status)
	require.Equal(t, "nobody holds a lock whose name begins with \"\"\n", stdout)

	order := holds(t, client, "orders/42")
	holds(t, client, "stock", etcdlock.WithOwner("batch"))
	host, err := os.Hostname()
	require.NoError(t, err)
	process := fmt.Sprintf("%s:%d", host, os.Getpid())
	status, stdout, _ = who(t, "", "-endpoints", endpoint)
	require.Equal(t, exitGood, status)
	require.Len(t, rows(stdout), 2)
	require.Equal(t, "orders/42", rows(stdout)[0][0])
	require.Equal(t, "stock", rows(stdout)[1][0])
	require.Equal(t, []string{"batch", "(" + process + ")"}, rows(stdout)[1][3:5])

	lease := keyLease(t, client, order.Key())
	_, stdout, _ = who(t, "", "-endpoints", endpoint, "-prefix", "ord")
	require.Len(t, rows(stdout), 1)
	row := rows(stdout)[0]
	require.Equal(t, []string{"orders/42", "holds", fmt.Sprint(order.Token()), process}, row[:4])
	require.Equal(t, "ago", row[5])
	require.Equal(t, lease, row[6])
	require.Equal(t, []string{"of", "15s"}, row[8:])
}

func TestTheLineOfOneLockWithAnotherProgramInIt(t *testing.T) {
	endpoint, client := etcd(t)
	holds(t, client, "orders/42", etcdlock.WithOwner("api-7:1234"))
	session, err := concurrency.NewSession(client)
	require.NoError(t, err)
	defer session.Close()
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	go func() { waited <- concurrency.NewMutex(session, "orders/42").Lock(ctx) }()
	defer func() { cancel(); <-waited }()
	waitForLine(t, client, "orders/42", 2)

	status, stdout, _ := who(t, "", "-endpoints", endpoint, "orders/42")
	require.Equal(t, exitGood, status)
	require.Len(t, rows(stdout), 2)
	require.Equal(t, "holds", rows(stdout)[0][1])
	require.Contains(t, stdout, "waits 1")
	require.Regexp(t, `\(another program\) +-`, stdout)
}

func TestAnOwnerWithoutAProcessStandsAlone(t *testing.T) {
	endpoint, client := etcd(t)
	lease, err := client.Grant(t.Context(), 60)
	require.NoError(t, err)
	_, err = client.Put(t.Context(), fmt.Sprintf("orders/42/%x", lease.ID), `{"owner":"batch"}`, clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, stdout, _ := who(t, "", "-endpoints", endpoint, "orders/42")
	require.Regexp(t, ` batch +-`, stdout)
}

func TestOnlyTheExactTokenBreaks(t *testing.T) {
	endpoint, client := etcd(t)
	mu := holds(t, client, "orders/42", etcdlock.WithOwner("api-7:1234"))
	token := mu.Token()
	for _, answer := range []string{"", "\n", "y\n", "0\n", fmt.Sprintln(token + 1), fmt.Sprintf("%dx\n", token)} {
		status, _, stderr := who(t, answer, "-endpoints", endpoint, "-break", "orders/42")
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, "nothing was deleted")
		waitForLine(t, client, "orders/42", 1)
	}
	key := mu.Key()
	status, stdout, _ := who(t, fmt.Sprintln(token), "-endpoints", endpoint, "-break", "orders/42")
	require.Equal(t, exitGood, status)
	require.Contains(t, stdout, "deleted "+key+"\n\nnobody holds \"orders/42\" or waits for it\n")
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)

	status, stdout, _ = who(t, "", "-endpoints", endpoint, "-break", "orders/42")
	require.Equal(t, exitGood, status, "there is nothing to delete")
	require.Equal(t, "nobody holds \"orders/42\" or waits for it\n", stdout)
}

func TestAnOwnerCannotWriteToTheTerminal(t *testing.T) {
	endpoint, client := etcd(t)
	holds(t, client, "orders/42", etcdlock.WithOwner("api\x1b[2J\n7"))
	_, stdout, _ := who(t, "", "-endpoints", endpoint)
	require.Contains(t, stdout, `"api\x1b[2J\n7"`)
}

func TestArgumentsThatMakeNoSense(t *testing.T) {
	for want, args := range map[string][]string{
		"-break needs the name": {"-break"},
		"unexpected argument":   {"orders/42", "-break"},
		"only one of them":      {"-prefix", "a", "b"},
		"not positive":          {"-timeout", "0s", "b"},
		"only both together":    {"-cert", "c.pem"},
		"not defined":           {"-nonsense"},
	} {
		status, stdout, stderr := who(t, "", args...)
		require.Equal(t, exitUsage, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
	status, stdout, stderr := who(t, "", "-h")
	require.Equal(t, exitGood, status)
	require.Contains(t, stdout, "Usage: go run ./internal/who [flags] [name]")
	require.Empty(t, stderr)
}

func TestAnEtcdThatDoesNotAnswer(t *testing.T) {
	status, _, stderr := who(t, "", "-endpoints", "127.0.0.1:1", "-timeout", "200ms", "orders/42")
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, "no answer from 127.0.0.1:1 within 200ms")
}

func keyLease(t *testing.T, client *clientv3.Client, key string) string {
	t.Helper()
	resp, err := client.Get(t.Context(), key)
	require.NoError(t, err)
	require.Len(t, resp.Kvs, 1)
	return fmt.Sprintf("%x", resp.Kvs[0].Lease)
}

// waitForLine waits until n contenders stand in line.
func waitForLine(t *testing.T, client *clientv3.Client, name string, n int) {
	t.Helper()
	for {
		line, err := etcdlock.Contenders(t.Context(), client, name)
		require.NoError(t, err)
		if len(line) == n {
			return
		}
	}
}
