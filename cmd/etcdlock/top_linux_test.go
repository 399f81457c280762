package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/gdamore/tcell/v3"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/top"
)

var update = flag.Bool("update", false, "write the golden screens anew")

// screenOf is what a terminal of a size shows after it was sent a text. It knows what top's library
// sends, and fails on anything else that moves or erases.
func screenOf(t *testing.T, sent string, rows, columns int) (shown string) {
	t.Helper()
	cells := make([][]rune, rows)
	clear := func() {
		for y := range cells {
			cells[y] = []rune(strings.Repeat(" ", columns))
		}
	}
	clear()
	x, y := 0, 0
	number := func(text string) int { n, _ := strconv.Atoi(text); return max(1, n) }
	for sent != "" {
		if m := sequence.FindStringSubmatch(sent); m != nil {
			sent = sent[len(m[0]):]
			args := strings.Split(m[1], ";")
			switch m[2] {
			case "H":
				y, x = number(args[0])-1, number(args[len(args)-1])-1
				if len(args) < 2 {
					x = 0
				}
			case "J":
				clear()
			case "m", "h", "l", "c", "p", "q", "t", "u", "n", "": // colours, modes, questions
			default:
				require.Fail(t, "a sequence that is not known", "%q", m[0])
			}
			continue
		}
		if incomplete.MatchString(sent) {
			break
		}
		r, n := utf8.DecodeRuneInString(sent)
		sent = sent[n:]
		require.GreaterOrEqual(t, r, ' ', "%q", sent[:min(len(sent), 20)])
		if y < rows && x < columns {
			cells[y][x] = r
		}
		x++
	}
	for _, row := range cells {
		shown += strings.TrimRight(string(row), " ") + "\n"
	}
	return shown
}

var (
	// CSI, OSC and DCS with their ends, and what has two characters.
	sequence = regexp.MustCompile("^\x1b(?:\\[[<=>?]*([0-9;:]*)[ !$'\"]?([@-~])|" +
		"\\][^\x07\x1b]*(?:\x07|\x1b\\\\)|P[^\x1b]*\x1b\\\\|[=>78()][0B]?)")
	clock      = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	incomplete = regexp.MustCompile("^\x1b[^\x1b]*$")
)

// resize sets the size of the terminal.
func (p *pty) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	size := [4]uint16{rows, columns}
	require.True(t, ioctl(int(p.master.Fd()), syscall.TIOCSWINSZ, unsafe.Pointer(&size)))
}

// The screens are the same each time: they have revisions of a new etcd, leases that the test
// chooses, and days and minutes.
func TestGoldenScreensOfTop(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	long := time.Now().Add(-101*time.Hour - time.Minute).UTC().Format(time.RFC3339)
	for _, c := range []struct {
		lock, tail string
		session    clientv3.LeaseID
		owner      string
	}{
		{"orders/42", "0", 0x1a, "api-7:1234"}, {"orders/42", "0", 0x2b, "api-8:977"},
		{"stock/7", "0", 0x2b, "api-8:977"}, {"stock/7", "0", 0x1a, "api-7:1234"},
		{"catalog", "ffffffff-0000-8000-8000-000000000001", 0x1a, "web-1:1"},
		{"catalog", "ffffffff-0000-8000-8000-000000000002", 0x2b, "web-2:1"},
		{"thumbnails", "fffffffe-0001-8000-8000-000300000001", 0x2b, "batch"},
	} {
		if resp, err := e.client.TimeToLive(t.Context(), c.session); err != nil || resp.TTL < 0 {
			e.grant(t, c.session, 3600)
		}
		if c.tail == "0" {
			c.tail = fmt.Sprintf("%x", int64(c.session))
		}
		_, err := e.client.Put(t.Context(), c.lock+"/"+c.tail, fmt.Sprintf(
			`{"owner":%q,"host":"vm","pid":7,"since":%q}`, c.owner, long), clientv3.WithLease(c.session))
		require.NoError(t, err)
	}
	terminal := newPty(t)
	terminal.resize(t, 24, 80)
	run := starts(t, []string{"top", "--endpoints", e.addr, "--allow", "break"}, terminal.on(t),
		env("TERM=xterm-256color", "LC_ALL=C.UTF-8"))
	shows := func(rows, columns int, name string, parts ...string) {
		t.Helper()
		path, want, screen := "testdata/top/"+name, "", ""
		if name != "" && !*update {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			want = string(text)
		}
		is := func() bool {
			screen = clock.ReplaceAllString(screenOf(t, terminal.shows.String(), rows, columns),
				"2026-11-27 12:00:00")
			return !slices.ContainsFunc(parts, func(part string) bool {
				return !strings.Contains(screen, part)
			}) && (want == "" || screen == want)
		}
		for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				require.Equal(t, want, screen, "no %q", parts)
				require.Fail(t, "not shown", "%q", parts)
			}
		}
		if name != "" && *update {
			require.NoError(t, os.WriteFile(path, []byte(screen), 0o644))
		}
	}
	shows(24, 80, "list.txt", "stock/7", "  4d  ", "59 of 60m", "q quit")
	terminal.types(t, "w")
	shows(24, 80, "waits.txt", "possible deadlock: these", "Esc back")
	terminal.types(t, "w\x1b")
	shows(24, 80, "list.txt", "stock/7", "F1 help")
	require.NotContains(t, terminal.shows.String(), "\x1b[18t", "tmux 3.3 swaps rows and columns")
	terminal.shows.reset()
	terminal.resize(t, 12, 120)
	shows(12, 120, "wide.txt", "stock/7", "F1 help")
	terminal.types(t, "/stock\r\r")
	shows(12, 120, "detail.txt", "stock/7", "TOKEN", "b break", "waits 1")
	token := e.contenders(t, "stock/7")[0].Token
	terminal.types(t, "b")
	shows(12, 120, "question.txt", "Type its token")
	terminal.types(t, fmt.Sprintf("%d\r", token))
	e.line(t, "stock/7", 1)
	shows(12, 120, "", "deleted stock/7/2b", "holds    api-7:1234")
	terminal.types(t, "q")
	run.exits(exitGood)
}

// A signal leaves the terminal as it was: with echo, and without top's screen.
func TestASignalGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		terminal := newPty(t)
		echoes := func() bool {
			var modes syscall.Termios
			require.True(t, ioctl(int(terminal.master.Fd()), syscall.TCGETS, unsafe.Pointer(&modes)))
			return modes.Lflag&syscall.ECHO != 0
		}
		require.True(t, echoes())
		run := starts(t, []string{"top", "--endpoints", e.addr}, terminal.on(t), env("TERM=xterm"))
		eventually(t, func() bool {
			return strings.Contains(terminal.shows.String(), "nobody holds")
		}, "top shows nothing")
		require.False(t, echoes())
		require.NoError(t, run.Process.Signal(s))
		run.exits(exitSignal + int(s))
		require.True(t, echoes())
		eventually(t, func() bool {
			return strings.Contains(terminal.shows.String(), "\x1b[?1049l")
		}, "top's screen stays")
	}
}

// Without a terminal top says so.
func TestTopNeedsATerminal(t *testing.T) {
	t.Parallel()
	e := newEtcd(t)
	run := starts(t, []string{"top", "--endpoints", e.addr}, detached)
	run.exits(exitFailed).says("needs a terminal (who --watch does not)")
	status, _, stderr := runs(t, "", "top", "--allow", "everything")
	require.Equal(t, exitUsage, status)
	require.Contains(t, stderr, "must be recall or break")
}

// Each style of top's lines looks like no other one.
func TestEachStyleOfTopLooksDifferent(t *testing.T) {
	seen := make(map[tcell.Style]top.Style)
	for s := range top.Owner + top.Owners {
		require.Contains(t, styles, s)
		other, is := seen[styles[s]]
		require.False(t, is, "%d looks like %d", s, other)
		seen[styles[s]] = s
	}
}
