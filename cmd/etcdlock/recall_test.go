//go:build linux || darwin || freebsd

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A run that is recalled ends its command, which obeys long before the end of the grace. All of the
// command has ended before the release.
func TestARecallEndsTheCommandOfARun(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command, next := file(t, "command"), file(t, "next")
	run := e.run(t, []string{"--recall", "1h", "--at-least", "1h"}, "job", command)
	first(t, command, "beat")
	c := e.line(t, "job", 1)[0]
	waits := e.run(t, nil, "job", next)
	e.line(t, "job", 2)
	status, stdout, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr,
		"--wait", "--by", "op", "--reason", "update")
	require.Equal(t, exitGood, status, stderr)
	require.Equal(t, fmt.Sprintf("asked %s\ngone %s\n", c.Key, c.Key), stdout)
	run.exits(exitRecalled).says(fmt.Sprintf(`lock "job" recalled (token %d) by op: update`, c.Token))
	isGone(t, number(t, command, "pid"))
	require.True(t, last(t, command, "beat").Before(first(t, next, "start")))
	require.NoError(t, waits.Process.Kill())
}

// A run that is recalled in line does not start its command.
func TestARunThatIsRecalledInLineStartsNothing(t *testing.T) {
	for _, grace := range []string{"0s", "1m"} {
		t.Run(grace, func(t *testing.T) {
			t.Parallel()
			e := newEtcd(t)
			mu := e.holds(t, "job")
			command := file(t, "command")
			run := e.run(t, []string{"--recall", "1m"}, "job", command)
			token := e.line(t, "job", 2)[1].Token
			status, stdout, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr,
				"--token", fmt.Sprint(token), "--grace", grace)
			require.Equal(t, exitGood, status, stderr)
			require.Equal(t, 1, strings.Count(stdout, "asked"))
			require.NoError(t, mu.Unlock(context.Background()))
			run.exits(exitRecalled).says("recalled")
			require.Empty(t, events(command, "start"))
			e.line(t, "job", 0)
		})
	}
}

// A holder that does not listen is not asked. Nothing happens, unless recall may delete it.
func TestARecallOfWhoDoesNotListen(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	command := file(t, "command")
	run := e.run(t, nil, "job", command)
	first(t, command, "beat")
	key := e.line(t, "job", 1)[0].Key
	status, stdout, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr)
	require.Equal(t, exitBad, status)
	require.Empty(t, stdout)
	holder := e.line(t, "job", 1)[0]
	require.Equal(t, fmt.Sprintf("etcdlock: %s does not listen to a recall: stop it; only if you "+
		"cannot, etcdlock break job --token %d deletes its place\n", holder.Owner, holder.Token), stderr)
	status, stdout, stderr = runs(t, "", "recall", "job", "--endpoints", e.addr, "--break")
	require.Equal(t, exitGood, status, stderr)
	require.Equal(t, "deleted "+key+"\n", stdout)
	require.Contains(t, stderr, "does not listen to a recall: no grace, its place is deleted now")
	run.exits(exitLost).says("its key was deleted")
}

// recall asks all holders, and no waiter.
func TestARecallAsksAllReaders(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	var reads []*etcdlock.Hold
	for range 2 {
		rw, err := etcdlock.NewRWMutex(e.client, "job", etcdlock.WithRecall(time.Minute))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rw.Close(context.Background())) })
		h, err := rw.RLock(t.Context())
		require.NoError(t, err)
		reads = append(reads, h)
	}
	writer, err := etcdlock.NewMutex(e.client, "job")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, writer.Close(context.Background())) })
	in := make(chan error, 1)
	go func() { in <- writer.Lock(context.Background()) }()
	e.line(t, "job", 3)
	status, stdout, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr, "--grace", "1h")
	require.Equal(t, exitGood, status, stderr)
	require.Equal(t, 2, strings.Count(stdout, "asked"))
	for _, h := range reads {
		<-etcdlock.RecallFrom(h.Context(context.Background()))
		require.NoError(t, h.Unlock(context.Background()))
	}
	require.NoError(t, <-in)
}

// Each reader that does not listen is named.
func TestARecallNamesEachThatDoesNotListen(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for _, owner := range []string{"first", "second"} {
		rw, err := etcdlock.NewRWMutex(e.client, "job", etcdlock.WithOwner(owner))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rw.Close(context.Background())) })
		_, err = rw.RLock(t.Context())
		require.NoError(t, err)
	}
	status, stdout, stderr := runs(t, "", "recall", "job", "--endpoints", e.addr)
	require.Equal(t, exitBad, status)
	require.Empty(t, stdout)
	require.Equal(t, 2, strings.Count(stderr, "does not listen to a recall"))
	require.Contains(t, stderr, "etcdlock: first (")
	require.Contains(t, stderr, "etcdlock: second (")
}

func TestTheStatusOfARecall(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "job")
	for name, row := range map[string]struct {
		args   []string
		status int
		says   string
	}{
		"nobody there":    {[]string{"other", "--wait"}, exitGood, `nobody to ask in the line for "other"`},
		"a token of none": {[]string{"job", "--token", "1"}, exitGood, "nobody to ask"},
		"no name":         {nil, exitUsage, "needs the name"},
		"two names":       {[]string{"a", "b"}, exitUsage, "unexpected argument"},
		"a bad grace":     {[]string{"job", "--grace", "-1s"}, exitUsage, "negative"},
		"a short grace":   {[]string{"job", "--grace", "15ns"}, exitUsage, "--grace 15ns: below 1ms"},
		"a bad token":     {[]string{"job", "--token", "-1"}, exitUsage, "not positive"},
		"a long reason":   {[]string{"job", "--reason", strings.Repeat("x", 257)}, exitUsage, "at most 256 bytes"},
		"a by of bytes":   {[]string{"job", "--by", "\xff"}, exitUsage, "UTF-8"},
		"no etcd":         {[]string{"job", "--endpoints", nobody, "--command-timeout", "200ms"}, exitFailed, "etcd did not answer in 200ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := runs(t, "",
				append([]string{"recall", "--endpoints", e.addr}, row.args...)...)
			require.Equal(t, row.status, status)
			require.Contains(t, stdout+stderr, row.says)
		})
	}
	starts(t, []string{"run", "--endpoints", e.addr, "--recall", "-1s", "a", "--", "true"}).
		exits(exitUsage).says("--recall -1s: negative")
}

// A holder of many names notices a recall with its next renewal.
func TestARecallWaitsForTheNextRenewal(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.grant(t, 0x77, 60)
	e.grant(t, 0x78, 15)
	of := func(id clientv3.LeaseID) place { return place{Contender: etcdlock.Contender{Lease: id}} }
	r := &recalling{grace: time.Second, etcd: &connection{commandTimeout: time.Minute}}
	for want, places := range map[time.Duration][]place{
		16 * time.Second: {of(0x78)},
		31 * time.Second: {of(0x78), of(0x77)},
		11 * time.Second: {of(0x79)}, // it is gone
	} {
		require.Equal(t, want, r.most(e.client, places))
	}
}
