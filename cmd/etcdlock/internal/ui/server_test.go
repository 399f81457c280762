package ui

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
)

func put(lock string, rev int64) *clientv3.Event {
	return &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{
		Key: []byte(lock + "/1a"), CreateRevision: rev, ModRevision: rev, Version: 1, Lease: 0x1a,
		Value: []byte(`{"owner":"api-7:1234"}`)}}
}

func newServer(t *testing.T, token string) (*Server, *httptest.Server) {
	t.Helper()
	s := &Server{Board: board.New(), Token: token}
	s.Act = func(what, lock string, p *board.Place) string { return what + " " + lock + " " + p.Key }
	s.Board.Read(time.Now(), 1, nil)
	web := httptest.NewServer(s.Handler())
	t.Cleanup(web.Close)
	return s, web
}

func get(t *testing.T, method, url, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if change != nil {
		change(r)
	}
	resp, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

// Without a token requests name this machine's loopback. With one they need it. No other page may
// act.
func TestWhoIsAdmitted(t *testing.T) {
	s, web := newServer(t, "")
	s.Board.Apply(time.Now(), 2, []*clientv3.Event{put("job", 2)})
	status, text := get(t, "GET", web.URL, "", nil)
	require.Equal(t, 200, status)
	require.Equal(t, page, text)
	for _, host := range []string{"evil.example", "evil.example:80", "10.0.0.1", "localhost.evil"} {
		status, _ := get(t, "GET", web.URL, "", func(r *http.Request) { r.Host = host })
		require.Equal(t, 403, status, host)
	}
	for _, host := range []string{"localhost:1", "[::1]:80", "127.0.0.1"} {
		status, _ := get(t, "GET", web.URL, "", func(r *http.Request) { r.Host = host })
		require.Equal(t, 200, status, host)
	}
	order := `{"what":"recall","lock":"job","key":"job/1a","token":2}`
	_, text = get(t, "POST", web.URL+"/act", order, nil)
	require.Equal(t, "recall job job/1a", text)
	_, text = get(t, "POST", web.URL+"/act", strings.Replace(order, "2}", "3}", 1), nil)
	require.Equal(t, "that place is gone", text)
	status, _ = get(t, "POST", web.URL+"/act", order, func(r *http.Request) {
		r.Header.Set("Origin", "http://evil.example")
	})
	require.Equal(t, 403, status)
	status, _ = get(t, "POST", web.URL+"/act", "no order", nil)
	require.Equal(t, 400, status)

	_, web = newServer(t, "secret")
	for path, want := range map[string]int{"/": 403, "/?token=": 403, "/?token=secre": 403,
		"/?token=secret": 200, "/events": 403, "/nothing?token=secret": 404} {
		status, _ := get(t, "GET", web.URL+path, "", nil)
		require.Equal(t, want, status, path)
	}
	status, _ = get(t, "POST", web.URL+"/act", order, nil)
	require.Equal(t, 403, status)
}

// The page names no other address, and its policy would allow none.
func TestThePageIsOneFile(t *testing.T) {
	_, web := newServer(t, "")
	resp, err := http.Get(web.URL)
	require.NoError(t, err)
	resp.Body.Close()
	policy := resp.Header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'; connect-src 'self'")
	for _, outside := range []string{"https://", "src=", "@import", "url("} {
		require.NotContains(t, page, outside)
	}
	require.Equal(t, 2, strings.Count(page, "http://"), "the curve and the icon")
}

// A page hears all at first, and then only what has changed.
func TestEventsTellWhatHasChanged(t *testing.T) {
	s, web := newServer(t, "")
	s.Board.Apply(time.Now(), 2, []*clientv3.Event{put("a", 2), put("b", 3)})
	resp, err := http.Get(web.URL + "/events")
	require.NoError(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func() (m message) {
		for lines.Scan() {
			if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
				require.NoError(t, json.Unmarshal([]byte(text), &m))
				return m
			}
		}
		require.NoError(t, lines.Err())
		return m
	}
	first := next()
	require.True(t, first.Whole)
	require.Len(t, first.Locks, 2)
	s.Board.Apply(time.Now(), 4, []*clientv3.Event{put("c", 4)})
	second := next()
	require.False(t, second.Whole)
	require.Len(t, second.Locks, 1)
	require.Equal(t, "api-7:1234", second.Locks[0].Places[0].Owner)
	s.Board.Heard(time.Now(), 0x1a, 9, 15)
	require.Equal(t, board.Lease{Left: 9, Granted: 15}, next().Leases["1a"])
	s.Board.Trouble(time.Now(), "etcd did not answer in 5s")
	require.Equal(t, "etcd did not answer in 5s", next().Trouble)
}

// A page hears at once that the board has been read, though there is no lock, that it gets old, and
// every few seconds that the connection stands.
func TestAPageHearsThatThereIsNoLock(t *testing.T) {
	s := &Server{Board: board.New()}
	now := time.Now()
	later := func(d time.Duration) time.Time { return now.Add(d) }
	connects := s.message(now, told{})
	require.True(t, connects.isNew(told{}))
	require.False(t, connects.Ready)
	same := s.message(later(sendEvery), connects.told)
	require.False(t, same.isNew(connects.told))
	s.Board.Read(later(sendEvery), 1, nil)
	read := s.message(later(2*sendEvery), connects.told)
	require.True(t, read.isNew(connects.told))
	require.True(t, read.Ready)
	same = s.message(later(3*sendEvery), read.told)
	require.False(t, same.isNew(read.told))
	s.Board.Trouble(later(3*sendEvery), "etcd did not answer in 5s")
	old := s.message(later(4*sendEvery), read.told)
	require.True(t, old.isNew(read.told))
	same = s.message(later(5*sendEvery), old.told)
	require.False(t, same.isNew(old.told))
	alive := s.message(later(4*sendEvery+aliveEvery), old.told)
	require.True(t, alive.isNew(old.told))
}

// A page that is opened late hears what has been: in parts, the oldest first. Later it hears what
// is new.
func TestAPageHearsWhatHasBeen(t *testing.T) {
	s, _ := newServer(t, "")
	rev := int64(1)
	turns := func(n int) {
		for range n {
			rev++
			e := put("job", rev)
			gone := &clientv3.Event{Type: clientv3.EventTypeDelete, Kv: e.Kv}
			s.Board.Apply(time.Now(), rev, []*clientv3.Event{e, gone})
		}
	}
	turns(2*mostPast + 1)
	m := s.message(time.Now(), told{})
	var tokens []int64
	for part := range m.parts() {
		require.Equal(t, len(tokens) == 0, part.Anew, "only the first replaces what the page has")
		require.LessOrEqual(t, len(part.Past), mostPast)
		for _, p := range part.Past {
			tokens = append(tokens, p.Token)
		}
	}
	require.Len(t, tokens, 2*mostPast+1)
	require.IsIncreasing(t, tokens)
	turns(3)
	next := s.message(time.Now(), m.told)
	require.Len(t, next.Past, 3)
	require.False(t, next.Anew)
	text, err := json.Marshal(next.Past[2])
	require.NoError(t, err)
	require.Regexp(t, fmt.Sprintf(`^{"lock":"job","whose":"api-7:1234","token":%d,`+
		`"seen":\d{13},"holds":true,"held":\d{13},"gone":\d{13}}$`, rev), string(text))
}

// What others have written is quoted before it gets to a page, and a page's order means the place
// that it was told of.
func TestAPageHearsNothingThatTurnsOrBreaksAText(t *testing.T) {
	for _, text := range []string{
		"\x1b[2J", "\u202e", "\u2066", "\u200b", "\u2028", "\xff", "\u009b",
	} {
		s, web := newServer(t, "")
		s.Prefix = "p" + text
		stored, err := json.Marshal(map[string]any{"owner": "o" + text, "host": "h" + text, "pid": 1,
			"info": "i" + text, "recall": map[string]any{
				"id": "r", "by": "b" + text, "reason": "w" + text, "grace_ms": 1}})
		require.NoError(t, err)
		first, second := put("a"+text, 2), put("a"+text, 3)
		second.Kv.Key, second.Kv.Lease = []byte("a"+text+"/1b"), 0x1b
		first.Kv.Value, second.Kv.Value = stored, stored
		other, waits := put("b"+text, 4), put("b"+text, 5)
		other.Kv.Key, other.Kv.Lease, other.Kv.Value = []byte("b"+text+"/1b"), 0x1b, stored
		waits.Kv.Value = stored
		s.Board.Apply(time.Now(), 5, []*clientv3.Event{first, second, other, waits})
		s.Board.Trouble(time.Now(), "e"+text)
		m := s.message(time.Now(), told{})
		require.Len(t, m.Locks, 2)
		require.Len(t, m.Cycles, 1)
		sent, err := json.Marshal(m)
		require.NoError(t, err)
		var heard any
		require.NoError(t, json.Unmarshal(sent, &heard))
		var check func(any)
		check = func(v any) {
			switch v := v.(type) {
			case string:
				for _, r := range v {
					require.True(t, strconv.IsPrint(r), "%U in %+q", r, v)
				}
			case []any:
				for _, v := range v {
					check(v)
				}
			case map[string]any:
				for _, v := range v {
					check(v)
				}
			}
		}
		check(heard)
		place := heard.(map[string]any)["locks"].([]any)[0].(map[string]any)
		order, err := json.Marshal(map[string]any{"what": "recall", "lock": place["name"],
			"key": place["places"].([]any)[0].(map[string]any)["key"], "token": 2})
		require.NoError(t, err)
		_, did := get(t, "POST", web.URL+"/act", string(order), nil)
		require.Equal(t, "recall a"+text+" a"+text+"/1a", did)
	}
}

// A page of another site hears nothing, and makes etcdlock ui do nothing.
func TestEventsAreForItsOwnPages(t *testing.T) {
	_, web := newServer(t, "")
	for _, row := range []struct {
		name, value string
		want        int
	}{
		{"Sec-Fetch-Site", "cross-site", 403}, {"Sec-Fetch-Site", "same-site", 403},
		{"Origin", "null", 403}, {"Origin", "http://evil.example", 403},
		{"Origin", "http://127.0.0.1:1", 403}, {"Origin", "::", 403},
		{"Accept", "text/event-stream", 200}, {"Sec-Fetch-Site", "same-origin", 200},
		{"Sec-Fetch-Site", "none", 200}, {"Origin", web.URL, 200},
	} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", web.URL+"/events", nil)
		require.NoError(t, err)
		r.Header.Set(row.name, row.value)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, row.want, resp.StatusCode, row)
	}
}

// However many pages are open, so many streams are, and one that closes makes room.
func TestStreamsAreCapped(t *testing.T) {
	_, web := newServer(t, "")
	var open []*http.Response
	for range mostStreams {
		resp, err := http.Get(web.URL + "/events")
		require.NoError(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		require.Equal(t, 200, resp.StatusCode)
		open = append(open, resp)
	}
	more, err := http.Get(web.URL + "/events")
	require.NoError(t, err)
	more.Body.Close()
	require.Equal(t, 503, more.StatusCode)
	for _, resp := range open {
		resp.Body.Close()
	}
	require.Eventually(t, func() bool {
		resp, err := http.Get(web.URL + "/events")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == 200
	}, 10*time.Second, 10*time.Millisecond)
}
