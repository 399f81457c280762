package matrix

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
)

// A cluster is members, and perhaps a proxy, of one version. They end with their test,
// and with this process, however it ends.
type cluster struct {
	t       testing.TB
	members []*server
	root    door // past any proxy and namespace, with every right
}

// A server is a process that serves clients on a port.
type server struct {
	t       testing.TB
	program string
	args    []string
	url     string // for clients
	log     string // file

	mu  sync.Mutex
	cmd *exec.Cmd
}

// startCluster boots a cluster of a version. Args are added to the command line of each
// member.
func startCluster(t testing.TB, v *version, members int, certs *certificates, args ...string) *cluster {
	t.Helper()
	c := &cluster{t: t, root: door{Certificates: certs}}
	scheme := "http"
	if certs != nil {
		scheme = "https"
		args = append(args, "--client-cert-auth", "--trusted-ca-file", certs.CA, "--cert-file", certs.Cert, "--key-file", certs.Key)
	}
	dir := t.TempDir()
	ports, err := child.FreePorts(2 * members)
	require.NoError(t, err)
	var all []string
	for i := range members {
		all = append(all, fmt.Sprintf("m%d=http://%s", i, ports[2*i]))
	}
	for i := range members {
		peer, name := "http://"+ports[2*i], fmt.Sprintf("m%d", i)
		m := &server{
			t: t, program: v.program(t, "etcd"), url: scheme + "://" + ports[2*i+1],
			log: filepath.Join(dir, name+".log"),
		}
		m.args = append([]string{
			"--name", name, "--data-dir", filepath.Join(dir, name), "--log-level", "warn",
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
			"--listen-client-urls", m.url, "--advertise-client-urls", m.url,
			"--initial-cluster", strings.Join(all, ","), "--initial-cluster-state", "new",
		}, append(v.args, args...)...)
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
	client, err := only.dial()
	require.NoError(c.t, err)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err = client.Get(ctx, "x")
	require.NoError(c.t, err, "etcd does not serve")
}

// version is what the servers say that they are.
func (c *cluster) version() string {
	c.t.Helper()
	config, err := c.root.tls()
	require.NoError(c.t, err)
	web := &http.Client{Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}, Timeout: patience}
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
	p := &server{t: c.t, program: v.program(c.t, "etcd"), url: "http://" + addr, log: filepath.Join(dir, "proxy.log")}
	p.args = []string{
		"grpc-proxy", "start", "--data-dir", dir, "--listen-addr", addr, "--advertise-client-url", addr,
		"--endpoints", strings.Join(c.root.Endpoints, ","),
	}
	p.start()
	c.t.Cleanup(p.end)
	return p.url
}

func (s *server) start() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.OpenFile(s.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	require.NoError(s.t, err)
	defer log.Close()
	s.cmd = exec.Command(s.program, s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	require.NoError(s.t, child.Start(s.cmd, syscall.SIGKILL))
}

// stop kills the process, if it runs.
func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // says only that it was killed
	s.cmd = nil
}

// end stops the process for good, and shows the end of its log if the test has failed.
func (s *server) end() {
	s.stop()
	if !s.t.Failed() {
		return
	}
	if log, err := os.ReadFile(s.log); err == nil {
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		lines = lines[max(0, len(lines)-5):]
		for i, line := range lines {
			lines[i] = line[:min(len(line), 300)]
		}
		s.t.Logf("the end of %s:\n%s", filepath.Base(s.log), strings.Join(lines, "\n"))
	}
}
