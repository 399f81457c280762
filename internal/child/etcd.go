package child

import (
	"fmt"
	"path/filepath"
	"strings"
)

// A Member is an etcd server of a new cluster that is about to start.
type Member struct {
	Name   string
	Client string   // its address for clients, host:port
	Args   []string // its command line
}

// EtcdMembers returns the members of a new cluster. They keep their data below dir. Their
// clients use scheme, http or https.
func EtcdMembers(n int, scheme, dir string) ([]Member, error) {
	ports, err := FreePorts(2 * n)
	if err != nil {
		return nil, err
	}
	name := func(i int) string { return fmt.Sprintf("m%d", i) }
	peer := func(i int) string { return "http://" + ports[2*i] }
	var cluster []string
	for i := range n {
		cluster = append(cluster, name(i)+"="+peer(i))
	}
	var members []Member
	for i := range n {
		m := Member{Name: name(i), Client: ports[2*i+1]}
		client := scheme + "://" + m.Client
		m.Args = []string{
			"--name", m.Name, "--data-dir", filepath.Join(dir, m.Name),
			"--listen-peer-urls", peer(i), "--initial-advertise-peer-urls", peer(i),
			"--listen-client-urls", client, "--advertise-client-urls", client,
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
		}
		members = append(members, m)
	}
	return members, nil
}
