//go:build linux || darwin || freebsd

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/top"
)

// hostile are texts that a terminal obeys, or that turn or break a line: a character of each kind.
var hostile = []string{
	"\x1b[2J\x1b]0;t\a", "\x7f", "\u009b2J", "\u202e", "\u2066", "\u200b", "\u2028", "\u2029",
	"\r\n", "\U000e0041", "\u00a0",
}

// shows requires that a text has only what is printable, but for the ends of its lines.
func shows(t *testing.T, text string) {
	t.Helper()
	require.True(t, utf8.ValidString(text), "%+q", text)
	for _, r := range text {
		require.True(t, strconv.IsPrint(r) || r == '\n', "%U in %+q", r, text)
	}
}

// forge puts a key into the line for a lock, as any program with the right may: a tail is that of a
// kind, and none stands for the lease, as in a key of concurrency.Mutex. Each field of the value
// has text.
func (e *etcd) forge(t *testing.T, name, tail, text string, fields map[string]any) {
	t.Helper()
	granted, err := e.client.Grant(t.Context(), 600)
	require.NoError(t, err)
	if tail == "" {
		tail = fmt.Sprintf("%x", int64(granted.ID))
	}
	value := map[string]any{"owner": "o" + text, "host": "h" + text, "pid": 1, "info": "i" + text,
		"mode": "m" + text, "since": time.Now(), "recallable": true}
	maps.Copy(value, fields)
	stored, err := json.Marshal(value)
	require.NoError(t, err)
	_, err = e.client.Put(t.Context(), name+"/"+tail, string(stored), clientv3.WithLease(granted.ID))
	require.NoError(t, err)
}

var tails = map[string]string{
	"exclusive": "5d6dbf1c-6e4c-4a3f-9c5a-f5a1b2c3d4e5",
	"read":      "ffffffff-6e4c-8a3f-9c5a-f5a1b2c3d4e5",
	"permit":    "fffffffe-0001-8a3f-9c5a-0003b2c3d4e5",
	"other":     "",
}

// Whatever is in the keys of a line, no command prints a character of it that a terminal obeys.
func TestNoCommandPrintsWhatATerminalObeys(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	recall := func(text string) map[string]any {
		return map[string]any{"recall": map[string]any{
			"id": "r", "by": "b" + text, "reason": "w" + text, "grace_ms": 1000}}
	}
	for kind, tail := range tails {
		for i, text := range append([]string{"\xff"}, hostile...) {
			name := fmt.Sprintf("%s/%d%s", kind, i, text)
			e.forge(t, name, tail, text, recall(text))
			e.forge(t, name, "6"+tails["exclusive"][1:], text, map[string]any{"until": time.Now()})
			for _, args := range [][]string{
				{"who", name}, {"who", "-o", "json", name}, {"recall", name},
				{"run", "-n", name, "--", "true"}, {"run", "-w", "20ms", name, "--", "true"},
				{"break", "--token", "1", name}, {"break", name},
			} {
				_, stdout, stderr := runs(t, "no\n", append([]string{"--endpoints", e.addr}, args...)...)
				shows(t, stdout)
				shows(t, stderr)
			}
		}
	}
	for _, args := range [][]string{
		{"who"}, {"who", "-o", "json"}, {"doctor"}, {"__complete", "who", ""},
		{"no\x1b[2J"}, {"--\x9b"},
	} {
		_, stdout, stderr := runs(t, "", append([]string{"--endpoints", e.addr}, args...)...)
		shows(t, strings.ReplaceAll(stdout, "\t", ""))
		shows(t, stderr)
	}

	read, err := board.ReadKeys(t.Context(), e.client, "", page)
	require.NoError(t, err)
	b := board.New()
	b.Read(time.Now(), read.Revision, read.Keys)
	b.Trouble(time.Now(), "a certificate of \x1b[2J")
	v := &top.View{Width: 200, Height: 20, Recall: true, Break: true, Prefix: "\x1b", Message: "done"}
	v.Show(b.Picture(time.Now(), 0))
	over := board.New() // whose holds are lost, or were broken
	over.Read(time.Now(), read.Revision, read.Keys)
	for i, e := range read.Keys {
		over.Breaks(string(e.Key), i%2 == 0)
		over.Heard(time.Now(), e.Lease, -1, 600)
	}
	over.Read(time.Now(), read.Revision+1, nil)
	past := over.History(time.Now(), 0)
	require.Len(t, past.Past, len(read.Keys))
	v.Remember(past)
	looks := func() (text string) {
		for _, line := range v.Lines() {
			for _, piece := range line {
				shows(t, piece.Text)
				text += piece.Text
			}
		}
		return text
	}
	for range len(read.Keys) / 2 {
		for _, k := range []top.Key{
			top.Enter, 'r', top.Esc, 'b', top.Esc, top.Esc, 'w', top.Esc, top.Down,
		} {
			v.Press(k)
			looks()
		}
	}
	v.Width = 10_000 // all fit into one line
	v.Press('t')
	text := looks()
	require.Contains(t, text, " lost ")
	require.Contains(t, text, "an operator broke ")
}

// A recall says who and why on the terminal of the run that it ends.
func TestARecallIsQuotedByRun(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for i, text := range hostile {
		name := fmt.Sprint("job", i)
		run := e.run(t, []string{"--recall", "1m"}, name, file(t, "w"))
		line := e.line(t, name, 1)
		require.NoError(t, etcdlock.Recall(t.Context(), e.client, line[0],
			etcdlock.RecallRequest{By: "b" + text, Reason: "w" + text, Grace: time.Minute}))
		run.exits(exitRecalled).says("recalled")
		shows(t, run.stderr.String())
	}
}

// A name of any length takes a cell and no more. JSON has all of it.
func TestALongNameIsCut(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	e.holds(t, "short")
	long := strings.Repeat("n", 50_000)
	e.forge(t, long, "", strings.Repeat("x", 1000), nil)
	_, stdout, _ := runs(t, "", "who", "--endpoints", e.addr)
	require.Less(t, len(stdout), 3*(2*widest+widestInfo+200))
	require.NotContains(t, stdout, strings.Repeat("n", widest))
	_, stdout, _ = runs(t, "", "who", "-o", "json", "--endpoints", e.addr)
	require.Contains(t, stdout, `"name":"`+long+`"`)
}

// However long the values are that others put below a prefix, a command that reads it takes no more
// memory: without a bound, it took more than all of them.
func TestLongValuesTakeNoMemory(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		keys  int
		value string
		most  int // MB
	}{
		"150 of 1.4 MB": {150, strings.Repeat("v", 1_400_000), 150},
		"10,000 of 3 kB": {10_000, fmt.Sprintf(`{"owner":%q,"host":%q,"info":%q}`,
			strings.Repeat("o", 1000), strings.Repeat("h", 1000), strings.Repeat("i", 1000)), 250},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEtcd(t)
			e.grant(t, 0x99, 600)
			var puts []clientv3.Op
			for i := range of.keys {
				puts = append(puts, clientv3.OpPut(fmt.Sprintf("job/%d/99", i), of.value,
					clientv3.WithLease(0x99)))
			}
			for some := range slices.Chunk(puts, max(1, 300_000/len(of.value))) {
				_, err := e.client.Txn(t.Context()).Then(some...).Commit()
				require.NoError(t, err)
			}
			for _, args := range [][]string{{"who"}, {"who", "-o", "json"}, {"doctor"}} {
				run := starts(t, append(args, "--endpoints", e.addr, "--command-timeout", "2m"))
				used := 0
				for running := true; running; time.Sleep(time.Millisecond) {
					select {
					case <-run.ended:
						running = false
					default:
						used = max(used, run.used())
					}
				}
				run.exits(exitGood)
				t.Logf("%v: %d MB", args, used)
				require.Less(t, used, of.most, "%v", args)
			}
			for command, reads := range map[string]func(*testing.T, *etcd, int) int{
				"ui": uiHears, "top": topShows,
			} {
				used := reads(t, e, of.keys)
				t.Logf("%s: %d MB", command, used)
				require.Less(t, used, of.most, command)
			}
		})
	}
}

// used is how much memory a program has used at most so far, in MB, or 0 if it has ended.
func (p *program) used() int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.Process.Pid))
	_, after, is := strings.Cut(string(status), "VmHWM:")
	if !is {
		return 0
	}
	used, _ := strconv.Atoi(strings.Fields(after)[0])
	return used >> 10
}

// uiHears opens a page that hears all locks, and says what ui has used.
func uiHears(t *testing.T, e *etcd, locks int) (used int) {
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--command-timeout", "2m",
		"--listen", "127.0.0.1:0"})
	eventually(t, func() bool { return strings.Contains(run.stdout.String(), "\n") }, "no address")
	heard := make(map[string]bool)
	resp, err := http.Get(strings.TrimSpace(run.stdout.String()) + "events")
	require.NoError(t, err)
	defer resp.Body.Close()
	for events := bufio.NewReader(resp.Body); len(heard) < locks; {
		text, err := events.ReadString('\n')
		require.NoError(t, err)
		var m struct{ Locks []struct{ Name string } }
		if data, is := strings.CutPrefix(text, "data: "); is {
			require.NoError(t, json.Unmarshal([]byte(data), &m))
		}
		for _, l := range m.Locks {
			heard[l.Name] = true
		}
	}
	return run.used()
}

// topShows has top show all locks, and says what it has used.
func topShows(t *testing.T, e *etcd, locks int) (used int) {
	terminal := newPty(t)
	terminal.resize(t, 24, 80)
	run := starts(t, []string{"top", "--endpoints", e.addr, "--command-timeout", "2m"},
		terminal.on(t), env("TERM=xterm"))
	eventually(t, func() bool {
		return strings.Contains(screenOf(t, terminal.shows.String(), 24, 80), fmt.Sprint(locks, " locks"))
	}, "top does not show all locks")
	used = run.used()
	terminal.types(t, "q")
	run.exits(exitGood)
	return used
}
