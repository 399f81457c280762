package matrix

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
	"github.com/etcdlock/etcdlock/internal/matrix/door"
)

// A cluster is members of one version, and perhaps a proxy. They end with their test, and
// with this process, however it ends.
type cluster struct {
	t       testing.TB
	members []*server
	root    door.Door // behind any proxy and outside any namespace, with every right
}

// A server is a process that serves clients on a port.
type server struct {
	child.Server
	t   testing.TB
	url string // for clients
}

// newServer returns a server that will run a program of a version, and log below dir.
func newServer(t testing.TB, program, url, log string, args ...string) *server {
	s := &server{t: t, url: url}
	s.Log = log
	s.Command = func() *exec.Cmd { return exec.Command(program, args...) }
	return s
}

// startCluster boots a cluster of a version. It adds args to the command line of each
// member.
func startCluster(
	t testing.TB, v *version, members int, certs *certificates, args ...string,
) *cluster {
	t.Helper()
	c := &cluster{t: t}
	scheme := "http"
	if certs != nil {
		scheme = "https"
		c.root.Certificates = &certs.Files
		args = append(args, "--client-cert-auth", "--trusted-ca-file", certs.CA, "--cert-file",
			certs.Cert, "--key-file", certs.Key)
	}
	dir := t.TempDir()
	all, err := child.EtcdMembers(members, scheme, dir)
	require.NoError(t, err)
	for _, member := range all {
		args := append(append(member.Args, "--log-level", "warn"), append(v.args, args...)...)
		m := newServer(t, v.program(t, "etcd"), scheme+"://"+member.Client,
			filepath.Join(dir, member.Name+".log"), args...)
		c.members = append(c.members, m)
		c.root.Endpoints = append(c.root.Endpoints, m.url)
		m.start()
		t.Cleanup(m.end)
	}
	for i := range members {
		c.serves(i)
	}
	return c
}

// serves waits until a member answers linearizable reads.
func (c *cluster) serves(member int) {
	c.t.Helper()
	only := c.root
	only.Endpoints = only.Endpoints[member : member+1]
	client, err := only.Dial()
	require.NoError(c.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = client.Get(ctx, "x")
	require.NoError(c.t, err, "etcd does not serve")
}

// version returns the version that the servers report.
func (c *cluster) version() string {
	c.t.Helper()
	config, err := c.root.TLS()
	require.NoError(c.t, err)
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true},
		Timeout: patience}
	resp, err := web.Get(c.root.Endpoints[0] + "/version")
	require.NoError(c.t, err)
	defer resp.Body.Close()
	var says struct {
		Server string `json:"etcdserver"`
	}
	require.NoError(c.t, json.NewDecoder(resp.Body).Decode(&says))
	require.NotEmpty(c.t, says.Server)
	return says.Server
}

// proxy starts an etcd grpc-proxy before the members, and returns its URL.
func (c *cluster) proxy(v *version) string {
	c.t.Helper()
	dir := c.t.TempDir()
	addrs, err := child.FreePorts(1)
	require.NoError(c.t, err)
	addr := addrs[0]
	p := newServer(c.t, v.program(c.t, "etcd"), "http://"+addr, filepath.Join(dir, "proxy.log"),
		"grpc-proxy", "start", "--data-dir", dir, "--listen-addr", addr, "--advertise-client-url", addr,
		"--endpoints", strings.Join(c.root.Endpoints, ","))
	p.start()
	c.t.Cleanup(p.end)
	return p.url
}

func (s *server) start() {
	s.t.Helper()
	require.NoError(s.t, s.Start())
}

// stop kills the process, if it runs.
func (s *server) stop() { s.Stop(syscall.SIGKILL, patience) }

// end stops the process for good, and shows the end of its log if the test has failed.
func (s *server) end() {
	s.stop()
	if s.t.Failed() {
		s.t.Logf("the end of %s:\n%s", filepath.Base(s.Log), s.Said(5))
	}
}
