//go:build linux || darwin || freebsd

package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
)

// rows are the fields of the table's lines, without its head.
func rows(stdout string) (rows [][]string) {
	for line := range strings.Lines(stdout) {
		if fields := strings.Fields(line); len(fields) > 7 && fields[0] != "NAME" {
			rows = append(rows, fields)
		}
	}
	return rows
}

// peer makes a concurrency.Mutex wait in line, behind n others.
func (e *etcd) peer(t *testing.T, name string, n int) {
	t.Helper()
	session, err := concurrency.NewSession(e.client)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan error, 1)
	go func() { waited <- concurrency.NewMutex(session, name).Lock(ctx) }()
	t.Cleanup(func() { cancel(); <-waited; session.Close() })
	e.line(t, name, n+1)
}

func TestWhoHoldsAllAndBelowAPrefix(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	status, stdout, _ := runs(t, "", "who", "--endpoints", e.addr)
	require.Equal(t, exitGood, status)
	require.Equal(t, "nobody holds a lock\n", stdout)
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "--prefix", "a")
	require.Equal(t, "nobody holds a lock whose name begins with \"a\"\n", stdout)
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "-o", "json")
	require.Equal(t, "[]\n", stdout)

	order := e.holds(t, "orders/42")
	e.holds(t, "stock", etcdlock.WithOwner("batch"))
	e.peer(t, "stock", 1)
	host, err := os.Hostname()
	require.NoError(t, err)
	process := fmt.Sprintf("%s:%d", host, os.Getpid())
	status, stdout, _ = runs(t, "", "who", "--endpoints", e.addr)
	require.Equal(t, exitGood, status)
	all := rows(stdout)
	require.Len(t, all, 3)
	require.Equal(t, "orders/42", all[0][0])
	require.Equal(t, "stock", all[1][0])
	require.Equal(t, []string{"batch", "(" + process + ")"}, all[1][3:5])
	require.Equal(t, []string{"stock", "waits", "1"}, all[2][:3])

	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "--prefix", "ord")
	require.Len(t, rows(stdout), 1)
	row := rows(stdout)[0]
	require.Equal(t, []string{"orders/42", "holds", fmt.Sprint(order.Token()), process}, row[:4])
	require.Equal(t, "ago", row[5])
	require.Regexp(t, "^[0-9]+s$", row[6])
	require.Equal(t, fmt.Sprintf("%x", int64(e.line(t, "orders/42", 1)[0].Lease)), row[7])
	require.Equal(t, []string{"of", "15s", "exclusive", "-"}, row[9:])
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "--prefix",
		order.Key()[:len(order.Key())-1])
	require.Contains(t, stdout, "nobody holds", "a prefix that ends in a key is that of no name")
}

func TestTheLineOfOneLockWithAnotherProgramInIt(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "orders/42", etcdlock.WithOwner("api-7:1234"))
	e.peer(t, "orders/42", 1)
	status, stdout, _ := runs(t, "", "who", "--endpoints", e.addr, "orders/42")
	require.Equal(t, exitGood, status)
	require.Len(t, rows(stdout), 2)
	require.Equal(t, "holds", rows(stdout)[0][1])
	require.Contains(t, stdout, "waits 1")
	require.Regexp(t, `\(another program\) +-`, stdout)
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "orders/43")
	require.Equal(t, "nobody holds \"orders/43\" or waits for it\n", stdout)
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "orders")
	require.Equal(t, "nobody holds \"orders\" or waits for it\n"+
		"(etcdlock who --prefix orders/ shows locks below it)\n", stdout)
}

// Several readers hold at once, and a writer waits behind them.
func TestSeveralThatReadHold(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for range 2 {
		rw, err := etcdlock.NewRWMutex(e.client, "job", etcdlock.WithInfo("v 1.2"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rw.Close(context.Background())) })
		_, err = rw.RLock(t.Context())
		require.NoError(t, err)
	}
	e.peer(t, "job", 2)
	for _, args := range [][]string{{"job"}, {}} {
		_, stdout, _ := runs(t, "", append([]string{"who", "--endpoints", e.addr}, args...)...)
		all := rows(stdout)
		require.Len(t, all, 3)
		for _, row := range all[:2] {
			require.Equal(t, "holds", row[1])
			require.Equal(t, []string{"read", "v", "1.2"}, row[len(row)-3:])
		}
		require.Equal(t, []string{"waits", "2"}, all[2][1:3])
		_, stdout, _ = runs(t, "", append([]string{"who", "-o", "json", "--endpoints", e.addr},
			args...)...)
		require.Equal(t, 2, strings.Count(stdout, `"mode":"read","holds":true,"info":"v 1.2"`))
		require.Equal(t, 1, strings.Count(stdout, `"mode":"exclusive","holds":false`))
	}
}

// The output that other programs read stays as it is, to the letter.
func TestTheJSONIsStable(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for lease, value := range map[clientv3.LeaseID]string{
		0x1a2b: `{"owner":"api-7:1234","host":"api-7","pid":1234,"info":"10.0.0.7:80",` +
			`"since":"2026-11-22T12:00:00.5Z"}`,
		0x3c4d: "",
	} {
		e.grant(t, lease, 60)
		_, err := e.client.Put(t.Context(), fmt.Sprintf("a<b/%x", int64(lease)), value,
			clientv3.WithLease(lease))
		require.NoError(t, err)
	}
	line := e.line(t, "a<b", 2)
	ours, others := 0, 1
	if line[0].Owner == "" {
		ours, others = 1, 0
	}
	text := map[int]string{
		ours: fmt.Sprintf(`{"name":"a<b","place":%d,"token":%d,"key":"a<b/1a2b","lease":"1a2b",`+
			`"owner":"api-7:1234","host":"api-7","pid":1234,"since":"2026-11-22T12:00:00.5Z",`+
			`"mode":"exclusive","holds":%v,"info":"10.0.0.7:80","until":null,`+
			`"held_since":%s,"ttl":60,"ttl_left":59,"late":false}`, ours, line[ours].Token,
			ours == 0, map[bool]string{true: `"2026-11-22T12:00:00.5Z"`, false: "null"}[ours == 0]),
		others: fmt.Sprintf(`{"name":"a<b","place":%d,"token":%d,"key":"a<b/3c4d","lease":"3c4d",`+
			`"owner":"","host":"","pid":0,"since":null,`+
			`"mode":"exclusive","holds":%v,"info":"","until":null,`+
			`"held_since":null,"ttl":60,"ttl_left":59,"late":false}`, others, line[others].Token,
			others == 0),
	}
	want := "[" + text[0] + "," + text[1] + "]\n"
	for _, args := range [][]string{{"a<b"}, {"--prefix", "a"}, {}} {
		_, stdout, _ := runs(t, "", append([]string{"who", "--endpoints", e.addr, "-o", "json"},
			args...)...)
		require.Equal(t, want, regexp.MustCompile(`"ttl_left":5[0-9]`).
			ReplaceAllString(stdout, `"ttl_left":59`))
	}
}

// A holder that came first has held since then. One that has waited has held for less, and the live
// table, which has seen its turn come, says for how long.
func TestWhoKnowsSinceWhenAHolderHolds(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	before := e.holds(t, "job")
	held := func(stdout string) string { return rows(stdout)[0][6] }
	_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr, "job")
	require.Regexp(t, "^[0-9]+s$", held(stdout))

	next, err := etcdlock.NewMutex(e.client, "job")
	require.NoError(t, err)
	t.Cleanup(func() { next.Close(context.Background()) })
	waited := make(chan error, 1)
	go func() { waited <- next.Lock(t.Context()) }()
	e.line(t, "job", 2)
	live := starts(t, []string{"who", "--watch", "-o", "json", "--endpoints", e.addr})
	lines := func(n int) (lines []string) {
		t.Helper()
		eventually(t, func() bool {
			lines = strings.SplitAfter(live.stdout.String(), "\n")
			return len(lines) > n
		}, "no line %d", n)
		return lines
	}
	require.Equal(t, 2, strings.Count(lines(1)[0], `"name":"job"`))
	require.NoError(t, before.Unlock(t.Context()))
	require.NoError(t, <-waited)
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr)
	require.Regexp(t, "^<[0-9]+s$", held(stdout))
	_, stdout, _ = runs(t, "", "who", "--endpoints", e.addr, "-o", "json")
	require.Contains(t, stdout, `"held_since":null`)
	require.Contains(t, lines(2)[1], `"held_since":"20`)
	require.NoError(t, next.Unlock(t.Context()))
	require.Equal(t, "[]\n", lines(3)[2])
}

// A silentKV is an etcd that does not answer.
type silentKV struct{ clientv3.KV }

func (silentKV) Get(
	context.Context, string, ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	return nil, context.DeadlineExceeded
}

// Where etcd has not said whether a holder has waited, who shows no bound, and asks again.
func TestWhoShowsNoBoundWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "job")
	w := new(who)
	places, err := w.read(t.Context(), e.client)
	require.NoError(t, err)
	now := time.Now()
	id := hold{places[0].Key, places[0].Token}
	held := func() string { return heldText(places[0], w.seen.since[id], now) }
	for range 2 {
		w.seen.look(t.Context(), silentKV{}, places, now)
		require.Equal(t, "unknown", held())
	}
	w.seen.look(t.Context(), e.client, places, now)
	require.Regexp(t, "^[0-9]+s$", held())
}

// A lease that nobody renews gets late.
func TestALateLeaseIsMarked(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		ttl, granted int64
		late         bool
	}{{10, 15, false}, {7, 15, false}, {6, 15, true}, {0, 15, true}, {-1, 15, false}, {1, 3, false},
		{0, 3, true}, {59, 60, false}} {
		require.Equal(t, row.late, left{ttl: row.ttl, granted: row.granted}.late(), "%+v", row)
	}
	e := newEtcd(t)
	e.grant(t, 0x1a2b, 6)
	_, err := e.client.Put(t.Context(), "job/1a2b", "", clientv3.WithLease(0x1a2b))
	require.NoError(t, err)
	eventually(t, func() bool {
		_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr)
		return regexp.MustCompile(`[0-2]s of 6s, late  exclusive`).MatchString(stdout)
	}, "it does not get late")
}

// A place that is kept shows as such also where all locks are listed.
func TestAKeptPlaceShowsInEachList(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	mu, err := etcdlock.NewMutex(e.client, "job", etcdlock.WithMinHold(time.Hour))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(t.Context()))
	require.NoError(t, mu.Unlock(t.Context()))
	for _, args := range [][]string{{"job"}, {}} {
		_, stdout, _ := runs(t, "", append([]string{"who", "--endpoints", e.addr}, args...)...)
		require.Regexp(t, `job +kept (59m|1h)`, stdout)
	}
}

// grant grants a lease with a number that the caller chooses.
func (e *etcd) grant(t *testing.T, id clientv3.LeaseID, ttl int64) {
	t.Helper()
	_, err := pb.NewLeaseClient(e.client.ActiveConnection()).
		LeaseGrant(t.Context(), &pb.LeaseGrantRequest{ID: int64(id), TTL: ttl})
	require.NoError(t, err)
}

func TestAnOwnerWithoutAProcessStandsAlone(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	lease, err := e.client.Grant(t.Context(), 60)
	require.NoError(t, err)
	_, err = e.client.Put(t.Context(), fmt.Sprintf("orders/42/%x", int64(lease.ID)),
		`{"owner":"batch"}`,
		clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr, "orders/42")
	require.Regexp(t, ` batch +-`, stdout)
}

func TestAnOwnerCannotWriteToTheTerminal(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "orders/42", etcdlock.WithOwner("api\x1b[2J\n7"))
	_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr)
	require.Contains(t, stdout, `"api\x1b[2J\n7"`)
}

// Without a terminal the live table is one table after the other, even while etcd is away
// for some time.
func TestTheLiveTableGoesOn(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	run := starts(t, []string{"who", "--watch", "--command-timeout", "200ms", "--endpoints",
		e.addr, "job"})
	shows := func(text string) {
		t.Helper()
		eventually(t, func() bool {
			return strings.Contains(run.stdout.String(), text)
		}, "it does not show %q", text)
	}
	shows("nobody holds")
	e.holds(t, "job", etcdlock.WithOwner("batch"))
	shows("batch")
	e.server.Freeze(0)
	shows("etcd did not answer in 200ms")
	e.server.Thaw(0)
	require.NotContains(t, run.stdout.String(), "\x1b")
}

func TestOnlyTheExactTokenBreaks(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	mu := e.holds(t, "orders/42", etcdlock.WithOwner("api-7:1234"))
	token := mu.Token()
	refuses := func(answer string, args ...string) {
		t.Helper()
		status, _, stderr := runs(t, answer, append([]string{"break", "orders/42", "--endpoints", e.addr},
			args...)...)
		require.Equal(t, exitBad, status)
		require.Contains(t, stderr, "nothing was deleted")
		e.line(t, "orders/42", 1)
	}
	for _, answer := range []string{"", "\n", "y\n", "0\n", fmt.Sprintln(token + 1),
		fmt.Sprintf("%dx\n", token), fmt.Sprint(token)} {
		refuses(answer)
	}
	_, _, stderr := runs(t, "y\n", "break", "orders/42", "--endpoints", e.addr)
	require.Contains(t, stderr, `"y" is not a token; nothing was deleted`)
	refuses(fmt.Sprintln(token), "--token", fmt.Sprint(token+1))
	key := mu.Key()
	status, stdout, _ := runs(t, fmt.Sprintln(token), "break", "--endpoints", e.addr, "orders/42")
	require.Equal(t, exitGood, status)
	require.Contains(t, stdout, "(anything else deletes nothing): deleted "+key+
		"\n\nnobody holds \"orders/42\" or waits for it\n")
	require.ErrorIs(t, mu.Unlock(t.Context()), etcdlock.ErrLost)

	status, stdout, _ = runs(t, "", "break", "--endpoints", e.addr, "orders/42")
	require.Equal(t, exitGood, status, "there is nothing to delete")
	require.Equal(t, "nobody holds \"orders/42\" or waits for it\n", stdout)
	status, _, stderr = runs(t, "", "break", "--endpoints", e.addr, "orders/42", "--token",
		fmt.Sprint(token))
	require.Equal(t, exitBad, status, "that place is not there")
	require.Contains(t, stderr, "nothing was deleted")
}

// break can also delete a waiter. The one behind it then moves up.
func TestAPlaceInTheMiddleIsBroken(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	holder := e.holds(t, "job")
	e.peer(t, "job", 1)
	e.peer(t, "job", 2)
	middle := e.line(t, "job", 3)[1]
	status, stdout, _ := runs(t, "", "break", "job", "--endpoints", e.addr, "--token",
		fmt.Sprint(middle.Token))
	require.Equal(t, exitGood, status)
	require.NotContains(t, stdout, "anything else", "it was told the token")
	require.Len(t, rows(strings.SplitAfter(stdout, "deleted")[1]), 2)
	require.True(t, holder.Status().Held)
}

func TestArgumentsThatMakeNoSense(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"a command is needed":            {},
		"no command \"sing\"":            {"sing"},
		"break needs the name":           {"break"},
		"unexpected argument \"b\"":      {"who", "a", "b"},
		"only one of them":               {"who", "--prefix", "a", "b"},
		"must be table or json":          {"who", "-o", "yaml"},
		"--prefix orders/ shows the":     {"who", "orders/"},
		"who --prefix orders/ shows":     {"break", "orders/"},
		"not positive":                   {"who", "--command-timeout", "0s", "b"},
		"only both together":             {"who", "--cert", "c.pem"},
		"who: unknown flag: --nonsense":  {"who", "--nonsense"},
		"unknown flag: --nonsense":       {"--nonsense", "who"},
		"unexpected argument \"orders\"": {"doctor", "orders"},
		"no command \"nothing\"":         {"help", "nothing"},
		"no password":                    {"who", "--user", "api"},
		"no certificate in it":           {"who", "--cacert", "who_test.go"},
		"--token -1":                     {"break", "--token", "-1", "a"},
	} {
		status, stdout, stderr := runs(t, "", args...)
		require.Equal(t, exitUsage, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
	}
}

func TestAnEtcdThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"who"}, {"who", "orders/42"}, {"break", "orders/42"},
		{"who", "--user", "a:b"}} {
		status, stdout, stderr := runs(t, "", append(args, "--endpoints", nobody,
			"--command-timeout", "200ms", "--dial-timeout", "200ms")...)
		require.Equal(t, exitFailed, status)
		require.Empty(t, stdout)
		require.Contains(t, stderr,
			"etcdlock: "+nobody+": etcd did not answer in 200ms (etcdlock doctor may know why)")
	}
}

// What another program has written as a time may be of any year.
func TestATimeOfAnyYearIsShort(t *testing.T) {
	const most = time.Duration(math.MaxInt64)
	require.Equal(t, ">9999h", span(most))
	require.Equal(t, "<-9999h", span(-most))
	require.Equal(t, "9999h0m0s", span(9999*time.Hour))
	require.Equal(t, "1m1s", span(time.Minute+time.Second))
}

// Columns are aligned by cells, and a long name makes no row wider than the others need.
func TestWhoAlignsByCells(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "orders/1")
	e.holds(t, "在庫/東京")
	e.holds(t, "tenants/"+strings.Repeat("x", 100)+"/tail", etcdlock.WithOwner("a"))
	_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr)
	rows := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	require.Len(t, rows, 4)
	require.Contains(t, stdout, "xx/tail  holds")
	place := strings.Index(rows[0], "PLACE")
	require.LessOrEqual(t, place, widest+2)
	for _, row := range rows[1:] {
		before, _, _ := strings.Cut(row, "holds")
		require.Equal(t, place, cells.Width(before), row)
	}
}
