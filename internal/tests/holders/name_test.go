package holders

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/line"
)

// oneKey is a KV with one key in it, whatever is asked.
type oneKey struct {
	clientv3.KV
	kv *mvccpb.KeyValue
}

func (k oneKey) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return &clientv3.GetResponse{Kvs: []*mvccpb.KeyValue{k.kv}}, nil
}

// unusedClient is a client that New accepts. Any use of it panics.
func unusedClient() *clientv3.Client {
	client := clientv3.NewCtxClient(context.Background())
	client.KV = struct{ clientv3.KV }{}
	client.Lease = struct{ clientv3.Lease }{}
	client.Watcher = struct{ clientv3.Watcher }{}
	return client
}

// A name is either refused with a short text, or it is that of a lock whose keys are read
// back as exactly its own.
func FuzzName(f *testing.F) {
	for _, name := range []string{
		"", "/", "a", "a/", "a//b", "/a", "\x00", "a\x00b", "\xff", "a\xed\xa0\x80", " \n", "日本語/🔒",
		strings.Repeat("n", 1024), strings.Repeat("n", 1025), "a/6ba7b810-9dad-41d1-80b4-00c04fd430c8",
		"6ba7b810-9dad-41d1-80b4-00c04fd430c8",
	} {
		f.Add(name)
	}
	client := unusedClient()
	f.Fuzz(func(t *testing.T, name string) {
		mu, err := etcdlock.NewMutex(client, name)
		if err != nil {
			require.True(t, strings.HasPrefix(err.Error(), "etcdlock: name "), "%v", err)
			require.Less(t, len(err.Error()), 8*1024)
			return
		}
		require.Equal(t, name, mu.Name())
		for _, tail := range []string{uuid.NewString(), "694d8a6e5bd0a31f"} {
			kv := &mvccpb.KeyValue{Key: []byte(name + "/" + tail), Lease: 0x694d8a6e5bd0a31f,
				CreateRevision: 7}
			inLine, err := etcdlock.Contenders(t.Context(), oneKey{kv: kv}, name)
			require.NoError(t, err)
			want := etcdlock.Contender{
				Name: name, Key: name + "/" + tail, Token: 7, Lease: 0x694d8a6e5bd0a31f,
				Mode: "exclusive", Holds: true,
			}
			require.Equal(t, []etcdlock.Contender{want}, inLine)
			for _, prefix := range []string{"", name[:len(name)/2], name} {
				holders, err := etcdlock.Holders(t.Context(), oneKey{kv: kv}, prefix)
				require.NoError(t, err)
				require.Equal(t, []etcdlock.Contender{want}, holders, "below %q", prefix)
			}
			key := line.EntryOf(kv)
			require.False(t, key.StandsIn(name+"/"+tail), "a key is no contender of a nested name")
			if outer, _, nested := strings.Cut(name, "/"); nested {
				require.False(t, key.StandsIn(outer), "a key is no contender of the name around it")
			}
		}
	})
}

// modeOfKey is the mode of a contender, by the grammar of its key.
func modeOfKey(tail string) string {
	if regexp.MustCompile(
		`^f{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\z`).MatchString(tail) {
		return "read"
	}
	return "exclusive"
}

// canonical is what a UUID in a key looks like, by its grammar.
var canonical = regexp.MustCompile(
	`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\z`)

// Of all keys below a prefix, whoever put them, Holders returns those of contenders, each
// with the name that its key has before the last "/". That may be a name that this package
// refuses: etcd's own Mutex queues under it all the same, and Break must reach it.
func FuzzHolderKey(f *testing.F) {
	const lease = 0x694d8a6e5bd0a31f
	const id = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"
	for _, key := range []string{
		"", "/", id, "/" + id, "a/" + id, "a//" + id, "a/b/" + id, "a/" + id + "/" + id, "a/" + id + "/",
		"a\x00/" + id,
		"a/ffffffff-6ba7-8dad-81d1-80b400c04fd4", "a/ffffffff-6ba7-4dad-81d1-80b400c04fd4",
		"\xff/" + id, "\n/" + id, "a/694d8a6e5bd0a31f", "694d8a6e5bd0a31f", "a/" + strings.ToUpper(id),
	} {
		for _, prefix := range []string{"", "a", "a/", "a/b", "a/" + id, "b"} {
			f.Add(key, prefix, int64(lease))
		}
		f.Add(key, "", int64(0))
	}
	client := unusedClient()
	f.Fuzz(func(t *testing.T, key, prefix string, lease int64) {
		kv := &mvccpb.KeyValue{Key: []byte(key), Lease: lease, CreateRevision: 7}
		holders, err := etcdlock.Holders(t.Context(), oneKey{kv: kv}, prefix)
		require.NoError(t, err)
		parts := strings.Split(key, "/")
		name, tail := strings.Join(parts[:len(parts)-1], "/"), parts[len(parts)-1]
		stands := lease != 0 && (canonical.MatchString(tail) || tail == fmt.Sprintf("%x", lease))
		if !stands || name == "" || !strings.HasPrefix(name, prefix) {
			require.Empty(t, holders)
			return
		}
		require.Equal(t, []etcdlock.Contender{{
			Name: name, Key: key, Token: 7, Lease: clientv3.LeaseID(lease),
			Mode: etcdlock.Mode(modeOfKey(tail)), Holds: true,
		}}, holders)
		line, err := etcdlock.Contenders(t.Context(), oneKey{kv: kv}, name)
		if _, invalid := etcdlock.NewMutex(client, name); invalid != nil {
			require.Equal(t, invalid, err)
			return
		}
		require.NoError(t, err)
		require.Equal(t, holders, line, "Contenders sees what Holders sees")
	})
}
