package quote

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoUserOfAnAddressIsShown(t *testing.T) {
	for address, shown := range map[string]string{
		"127.0.0.1:2379":                  "127.0.0.1:2379",
		"https://etcd:2379":               "https://etcd:2379",
		"http://user:secret@etcd:2379":    "http://xxxxx@etcd:2379",
		"user:secret@etcd:2379":           "xxxxx@etcd:2379",
		"http://secret@etcd:2379":         "http://xxxxx@etcd:2379",
		"https://user:s@c/ret@etcd:2379/": "https://xxxxx@etcd:2379/",
		"dns:///user:secret@etcd:2379":    "dns://xxxxx@etcd:2379",
		"unix:///run/etcd@1.sock":         "unix:///run/etcd@1.sock",
		"unixs:etcd@1:0":                  "unixs:etcd@1:0",
		"":                                "",
	} {
		require.Equal(t, []string{shown}, Addresses([]string{address}))
		require.Equal(t, address != shown, HasUser(address), address)
	}
}

func TestNoErrorShowsTheUserOfAnAddress(t *testing.T) {
	addresses := []string{"127.0.0.1:2379", "user:secret@etcd:2379", "http://other:pass@etcd:2379"}
	require.Equal(t, "dial tcp: address xxxxx@etcd:2379: too many colons; //xxxxx@etcd",
		WithoutUsers("dial tcp: address user:secret@etcd:2379: too many colons; //other:pass@etcd",
			addresses))
}
