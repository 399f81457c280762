//go:build browser

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

// A browser is a Chromium without a screen, by its WebDriver. Both are Debian's: chromium and
// chromium-driver.
type browser struct {
	t       *testing.T
	session string // address
}

func newBrowser(t *testing.T, width, height int) *browser {
	t.Helper()
	driver := exec.Command("chromedriver", "--port=0")
	out := new(output)
	driver.Stdout, driver.Stderr = out, out
	driver.WaitDelay = time.Second // a browser that is left would keep the pipes open
	require.NoError(t, driver.Start())
	t.Cleanup(func() { _ = driver.Process.Kill(); _ = driver.Wait() })
	port := regexp.MustCompile(`started successfully on port (\d+)`)
	eventually(t, func() bool { return port.MatchString(out.String()) }, "chromedriver: %s", out)
	b := &browser{t, "http://127.0.0.1:" + port.FindStringSubmatch(out.String())[1] + "/session"}
	var session struct{ SessionID string }
	b.call("POST", "", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"goog:chromeOptions": map[string]any{"args": []string{"--headless=new", "--no-sandbox",
			"--disable-gpu", fmt.Sprintf("--window-size=%d,%d", width, height)}},
		"goog:loggingPrefs": map[string]string{"browser": "ALL"},
	}}}, &session)
	b.session += "/" + session.SessionID
	t.Cleanup(func() { b.call("DELETE", "", nil, nil) })
	return b
}

// call is one command of WebDriver.
func (b *browser) call(method, path string, body, into any) {
	b.t.Helper()
	text := []byte(nil)
	if body != nil {
		var err error
		text, err = json.Marshal(body)
		require.NoError(b.t, err)
	}
	r, err := http.NewRequest(method, b.session+path, bytes.NewReader(text))
	require.NoError(b.t, err)
	resp, err := http.DefaultClient.Do(r)
	require.NoError(b.t, err)
	defer resp.Body.Close()
	answer := struct{ Value json.RawMessage }{}
	require.NoError(b.t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Equal(b.t, 200, resp.StatusCode, "%s", answer.Value)
	if into != nil {
		require.NoError(b.t, json.Unmarshal(answer.Value, into))
	}
}

// eval is what a script returns.
func (b *browser) eval(script string, into any) {
	b.t.Helper()
	b.call("POST", "/execute/sync", map[string]any{"script": script, "args": []any{}}, into)
}

// async is what a script gives to done.
func (b *browser) async(script string, into any) {
	b.t.Helper()
	b.call("POST", "/execute/async", map[string]any{
		"script": "const done = arguments[0];" + script, "args": []any{}}, into)
}

// element finds one by a selector; press and type are what a user does with it.
func (b *browser) element(css string) string {
	b.t.Helper()
	var found map[string]string
	b.call("POST", "/element", map[string]string{"using": "css selector", "value": css}, &found)
	for _, id := range found {
		return "/element/" + id
	}
	return ""
}

func (b *browser) press(css string) {
	b.t.Helper()
	b.call("POST", b.element(css)+"/click", map[string]any{}, nil)
}

func (b *browser) types(css, text string) {
	b.t.Helper()
	b.call("POST", b.element(css)+"/value", map[string]string{"text": text}, nil)
}

// shows waits until the rows in sight, or what a selector finds, match.
func (b *browser) shows(css, pattern string) {
	b.t.Helper()
	text, want := "", regexp.MustCompile(pattern)
	for deadline := time.Now().Add(patience); !want.MatchString(text); {
		if time.Now().After(deadline) {
			require.Regexp(b.t, want, text)
		}
		time.Sleep(20 * time.Millisecond)
		b.eval(fmt.Sprintf(`return [...document.querySelectorAll(%q)]
			.filter(e => e.offsetParent || e.matches(":popover-open"))
			.map(e => e.querySelector(":scope > bdi") || !e.children.length ? e.textContent
				: [...e.children].filter(c => c.className !== "lane").map(c => c.textContent).join(" | "))
			.join("\n")`, css), &text)
	}
}

// addressOf is the address that ui prints.
func addressOf(t *testing.T, run *program) string {
	t.Helper()
	eventually(t, func() bool { return strings.Contains(run.stdout.String(), "\n") }, "no address")
	return strings.TrimSpace(run.stdout.String())
}

// A lock appears on the page, changes hands, is recalled from there, and gets late.
func TestThePageIsLive(t *testing.T) {
	e := newEtcd(t)
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0",
		"--allow", "recall,break", "--prefix", ""})
	b := newBrowser(t, 1000, 500)
	b.call("POST", "/url", map[string]string{"url": addressOf(t, run)}, nil)
	b.shows("#alerts p", "Nobody holds a lock")

	first := e.holds(t, "orders/42", etcdlock.WithOwner("api-7"), etcdlock.WithRecall(time.Minute))
	b.shows("#space .row",
		`^orders/42 \| api-7 \(.*\) \| \d+s \|  \|  \| exclusive \| \d+ of 15s \| $`)
	second, err := etcdlock.NewMutex(e.client, "orders/42", etcdlock.WithOwner("api-8"))
	require.NoError(t, err)
	t.Cleanup(func() { second.Close(context.Background()) })
	locked := make(chan error, 1)
	go func() { locked <- second.Lock(context.Background()) }()
	b.shows("#space .row", `^orders/42 \| api-7 .* \| 1 \| \d+s`)

	// By keys alone: the row, its line, the recall, its question.
	b.types("#filter", "orders\ue015") // down
	b.types("#space .row[tabindex='0']", "\ue007")
	b.shows("#line tbody tr", `holds \| api-7 .*\n.*waits 1 \| api-8`)
	b.press(`#line button[data-act^=recall]`)
	b.types("#answer", "no\ue007") // enter
	b.shows("#said", "Nothing was done")
	b.press(`#line button[data-act^=recall]`)
	b.types("#answer", "yes\ue007")
	b.shows("#said", "^asked orders/42/")
	b.shows("#line tbody tr", "recalled by .*left")
	b.press(`#line button[data-act^=break]`)
	b.shows("#question bdi", fmt.Sprintf(`^orders/42\napi-7 .*\n%d$`, first.Token()))
	b.press("#no")
	b.press("#close")
	b.shows("#space .row", `recalled$`)
	hold := first.Context(context.Background())
	select {
	case <-etcdlock.RecallFrom(hold):
	case <-time.After(patience):
		require.Fail(t, "it is not recalled")
	}
	require.NoError(t, first.Unlock(t.Context()))
	require.NoError(t, <-locked)
	b.shows("#space .row", `^orders/42 \| api-8 .* \| \d+s \|  \|  \| exclusive`)

	// A page that is opened now shows who held before, too.
	b.call("POST", "/refresh", map[string]any{}, nil)
	b.shows("#space .row", `^orders/42 \| api-8 `)
	var owners, colours []string
	b.eval(`
		const svg = document.querySelector("#space .row .lane svg")
		return svg.bars.map(b => b.p.whose.split(" ")[0])`, &owners)
	require.Equal(t, []string{"api-7", "api-8"}, owners)
	b.eval(`
		return [...document.querySelectorAll("#space .row .lane path[d^=M]")]
			.map(e => e.className.baseVal)`, &colours)
	require.Subset(t, colours, []string{"c0", "c1", "recalled"})

	e.grant(t, 0x1a2b, 8)
	_, err = e.client.Put(t.Context(), "orders/43/1a2b", `{"owner":"dead"}`,
		clientv3.WithLease(0x1a2b))
	require.NoError(t, err)
	b.shows("#space .row", `(?m)^orders/43 \| dead .* late$`)
	b.shows("#alerts p", "1 late lease")
	b.shows("#space .row", `(?m)^orders/43 .* free$`)
	var logs []struct{ Level, Message string }
	b.call("POST", "/se/log", map[string]string{"type": "browser"}, &logs)
	require.Empty(t, logs, "the console is clean: no policy is violated")
}

// A page that is refused, because too many are open, says so, and tries again until it is let in.
func TestAPageThatIsRefusedTriesAgain(t *testing.T) {
	e := newEtcd(t)
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0"})
	address := addressOf(t, run)
	others, leave := context.WithCancel(t.Context())
	defer leave()
	for full := false; !full; {
		r, err := http.NewRequestWithContext(others, "GET", address+"events", nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		full = resp.StatusCode == http.StatusServiceUnavailable
	}
	b := newBrowser(t, 1000, 500)
	b.call("POST", "/url", map[string]string{"url": address}, nil)
	b.shows("#alerts p", "refuses this page.* next try is in about 1s$")
	b.shows("#alerts p", "refuses this page.* next try is in about 2s$")
	leave()
	b.shows("#alerts p", "Nobody holds a lock")
}

// Ten thousand locks that change hands a thousand times a second scroll smoothly: only the rows in
// sight are in the document, and what comes while they move is read between two frames.
func TestTenThousandLocksScroll(t *testing.T) {
	const locks, turns = 10_000, 1000
	e := newEtcd(t)
	e.fill(t, locks)
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0"})
	b := newBrowser(t, 1000, 800)
	b.call("POST", "/url", map[string]string{"url": addressOf(t, run)}, nil)
	b.shows("#counts", "^10000 locks, 10000 held")
	ctx, stop := context.WithCancel(t.Context())
	turning := make(chan error, 1)
	go func() { turning <- e.turns(ctx, locks, turns) }() // ends with ctx
	b.shows("#turns", `^locked \d{5,} times`)
	var seen struct {
		Frames, Elements, Slow int
		Worst, Mean            float64
	}
	b.async(`
		const list = document.getElementById("list"), frames = []
		const end = list.scrollHeight - list.clientHeight, most = 240
		let before = performance.now(), n = 0
		const step = now => {
			frames.push(now - before); before = now
			list.scrollTop = end * ++n / most
			if (n < most) requestAnimationFrame(step)
			else done({Frames: frames.length, Worst: Math.max(...frames.slice(1)),
				Mean: frames.slice(1).reduce((a, b) => a + b) / (frames.length - 1),
				Slow: frames.filter(f => f > 1000 / 30).length,
				Elements: document.querySelectorAll("#space .row").length})
		}
		requestAnimationFrame(step)`, &seen)
	t.Logf("%d locks from top to bottom in %d frames: %.1f ms a frame, %.1f ms the worst, %d of "+
		"them longer than 33 ms, %d rows in the document", locks, seen.Frames, seen.Mean, seen.Worst,
		seen.Slow, seen.Elements)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", run.Process.Pid))
	require.NoError(t, err)
	most := regexp.MustCompile(`VmHWM:\s*(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, most)
	peak, err := strconv.Atoi(string(most[1]))
	require.NoError(t, err)
	t.Logf("etcdlock ui has taken %d MB", peak>>10)
	require.Less(t, peak>>10, 200)
	require.Less(t, seen.Elements, 60)
	require.Less(t, seen.Mean, 1000.0/30)
	stop()
	require.ErrorIs(t, <-turning, context.Canceled)
	b.shows("#space .row", `(?m)^lock/9999 `)
}

// turns has so many of the locks of fill change hands each second.
func (e *etcd) turns(ctx context.Context, locks, each int) error {
	ticks := time.NewTicker(time.Second / 20)
	defer ticks.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
		}
		var ops []clientv3.Op
		for range each / 20 {
			lock, turn := n*7919%locks, n/locks
			n++
			key := func(turn int) string {
				if turn == 0 {
					return fmt.Sprintf("lock/%04d/77", lock) // as fill has put it
				}
				return fmt.Sprintf("lock/%04d/%08x-0000-4000-8000-%012x", lock, lock, turn)
			}
			ops = append(ops, clientv3.OpDelete(key(turn)), clientv3.OpPut(key(turn+1),
				fmt.Sprintf(`{"owner":"api-%d:%d","host":"api-%[1]d","pid":%[2]d,"since":%q}`, n%7, 1000+n,
					time.Now().UTC().Format(time.RFC3339)), clientv3.WithLease(0x77)))
		}
		if _, err := e.client.Txn(ctx).Then(ops...).Commit(); err != nil {
			return err
		}
	}
}

// fill puts a number of locks, and some that are unusual.
func (e *etcd) fill(t *testing.T, n int) {
	t.Helper()
	e.grant(t, 0x77, 600)
	for i := 0; i < n; i += 100 {
		var ops []clientv3.Op
		for k := i; k < i+100; k++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("lock/%04d/77", k),
				fmt.Sprintf(`{"owner":"api-%d:%d","host":"api-%[1]d","pid":%[2]d,"since":%q}`, k%7, 1000+k,
					time.Now().UTC().Format(time.RFC3339)), clientv3.WithLease(0x77)))
		}
		_, err := e.client.Txn(t.Context()).Then(ops...).Commit()
		require.NoError(t, err)
	}
}

// On a phone nothing is wider than the screen, and what counts is in sight.
func TestThePageOnAPhone(t *testing.T) {
	e := newEtcd(t)
	now := time.Now().UTC()
	for i, c := range []struct{ lock, tail, owner string }{
		{"leader/billing", "", "api-1:1001"}, {"leader/billing", "", "api-2:1002"},
		{"catalog", "ffffffff-0000-8000-8000-000000000001", "web-1:4711"},
		{"catalog", "ffffffff-0000-8000-8000-000000000002", "web-2:4711"},
		{"thumbnails", "fffffffe-0001-8000-8000-000300000001", "batch-3:7"},
		{"stock/7", "", "api-1:1001"}, {"stock/9", "", "api-2:1002"},
		{"stock/7", "", "api-2:1002"}, {"stock/9", "", "api-1:1001"},
	} {
		session := clientv3.LeaseID(0x1a)
		if strings.Contains(c.owner, "-2") {
			session = 0x2b
		}
		if i < 2 {
			e.grant(t, session, 600)
		}
		if c.tail == "" {
			c.tail = fmt.Sprintf("%x", int64(session))
		}
		host, pid, _ := strings.Cut(c.owner, ":")
		since := now.Add(time.Duration(i*i*7-600) * time.Second).Format(time.RFC3339)
		_, err := e.client.Put(t.Context(), c.lock+"/"+c.tail, fmt.Sprintf(
			`{"owner":%q,"host":%q,"pid":%s,"since":%q}`, c.owner, host, pid, since),
			clientv3.WithLease(session))
		require.NoError(t, err)
	}
	run := starts(t, []string{"ui", "--endpoints", e.addr, "--listen", "127.0.0.1:0"})
	address := addressOf(t, run)
	phone := newBrowser(t, 500, 800)
	phone.call("POST", "/url", map[string]string{"url": address}, nil)
	phone.shows("#space .row", "leader/billing")
	var wide bool
	phone.eval(`return document.documentElement.scrollWidth > innerWidth`, &wide)
	require.False(t, wide)

	b := newBrowser(t, 1000, 560)
	b.call("POST", "/url", map[string]string{"url": address}, nil)
	b.shows("#alerts p", "Possible deadlock: api-")
	b.shows("#space .row", `(?m)^thumbnails .* permit 1/3`)
	b.press("#waits")
	b.shows("#edges li", `(?s)^Possible deadlock: api-.*\n`+
		`api-1:1001 \(1a\) waits for api-2:1002 \(2b\) at stock/9`)
	b.press("#done")
}

// picture draws what the page shows, for the docs.
func (b *browser) picture(name string) {
	b.t.Helper()
	if !*update {
		return
	}
	var png string
	b.call("GET", "/screenshot", nil, &png)
	raw, err := base64.StdEncoding.DecodeString(png)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile("../../docs/"+name, raw, 0o644))
}
