package matrix

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A flaw is a flaw of etcd's that a story meets. README.md explains it, by its number.
type flaw struct {
	number string
	story  string
	where  func(setup, *version) bool
	maybe  bool     // the story may succeed all the same
	says   []string // the story says one of these
}

var flaws = []flaw{
	{"[1]", "v3lock: waits that are cancelled", users, false, []string{"the line is 3 and not 2 long"}},
	{"[3]", "v3lock: a wait longer than the token", tokens, true, deadToken},
	{"[3]", "v3lock: crashes", tokens, true, deadToken}, // these waits outlast a token, too
	{"[3]", "v3lock: first come, first served", tokensOf34, true, deadToken},
}

func users(s setup, _ *version) bool      { return s.token != "" || s.names }
func tokens(s setup, _ *version) bool     { return s.token != "" }
func tokensOf34(s setup, v *version) bool { return s.token != "" && v.keepsDeadTokensOut }

// deadToken is what a story says about a lock service whose caller's token has died.
var deadToken = []string{"etcdserver: invalid auth token", "does not get in"}

// known returns the flaw of etcd's that a story meets here, or nil if there is none.
func (w *world) known(st story) *flaw {
	i := slices.IndexFunc(flaws, func(f flaw) bool {
		return f.story == st.name && f.where(w.setup, w.version)
	})
	if i < 0 {
		return nil
	}
	return &flaws[i]
}

// isMet reports whether a story's words are those of the flaw.
func (f *flaw) isMet(why []string) bool {
	if len(why) == 0 {
		return f.maybe
	}
	return len(why) == 1 && containsOne(why[0], f.says)
}

func (f *flaw) String() string {
	if f.maybe {
		return "sometimes " + f.number
	}
	return "except " + f.number
}

// tokenDied is that flaw in a story that does not wait for a token to die, but one died:
// the token of a slow story, or of another one for which the server's lock service watched
// first.
var tokenDied = &flaw{"[3]", "", tokens, true, deadToken}

// tokenDied reports whether a story of the lock service may have met it. (Do not take the
// word of any other guest for it.)
func (w *world) tokenDied(st story, why []string) bool {
	const service = "v3lock"
	return tokenDied.where(w.setup, w.version) && strings.HasPrefix(st.name, service+": ") &&
		len(why) == 1 && strings.HasPrefix(why[0], service+" ") && containsOne(why[0], tokenDied.says)
}

func containsOne(s string, of []string) bool {
	return slices.ContainsFunc(of, func(sub string) bool { return strings.Contains(s, sub) })
}

// With servers of 3.4, clientv3 gets no answers any more once its token has died. That is
// not the library's doing: the library is not part of this test. If this test fails,
// lonelyAuth can go.
func TestClientv3AloneCannotRenewATokenOf34(t *testing.T) {
	t.Parallel()
	i := slices.IndexFunc(columns(t), func(v *version) bool { return v.keepsDeadTokensOut })
	if i < 0 {
		t.Skip("-versions leaves 3.4 out")
	}
	s := setup{name: "1 member, users", members: 1, token: "simple"}
	w := s.open(t, columns(t)[i], lockNames())
	asks := func(client *clientv3.Client) error {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		_, err := client.Get(ctx, "x")
		return err
	}
	alone, err := clientv3.New(clientv3.Config{Endpoints: w.door.Endpoints, Username: w.door.User,
		Password: w.door.Password, Logger: zap.NewNop()})
	require.NoError(t, err)
	defer alone.Close()
	helped, err := w.door.Dial()
	require.NoError(t, err)
	defer helped.Close()
	require.NoError(t, asks(alone))
	require.NoError(t, asks(helped))
	time.Sleep(2 * tokenLife) // unused tokens die by then
	// The server sees the deadline pass, too. Its answer is a text, and may come first.
	require.ErrorContains(t, asks(alone), context.DeadlineExceeded.Error())
	require.NoError(t, asks(helped))
}
