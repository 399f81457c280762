package main

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/child"
)

// roleEtcd makes this program an etcd server, of the release whose client the library is
// built with. Nothing needs to be installed.
const roleEtcd = "etcd"

// An etcd is a cluster with etcd's own defaults.
type etcd struct {
	members []*process
	clients []string // addresses, by member
	login   string   // user:password@, or ""
	trip    time.Duration
	admin   *clientv3.Client
}

func startEtcd(ctx context.Context, dir string, members int) (system, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	all, err := child.EtcdMembers(members, "http", dir)
	if err != nil {
		return nil, err
	}
	e := &etcd{}
	for _, member := range all {
		cmd := exec.Command(self, append(member.Args, "--log-level", "error")...)
		cmd.Env = append(os.Environ(), roleEnv+"="+roleEtcd)
		p, err := startProcess("etcd "+member.Name, cmd, syscall.SIGKILL)
		if err != nil {
			e.stop()
			return nil, err
		}
		e.members = append(e.members, p)
		e.clients = append(e.clients, member.Client)
	}
	if e.admin, err = dialEtcd(e.address(), &wire{}); err != nil {
		e.stop()
		return nil, err
	}
	for _, p := range e.members {
		if err := p.ready(ctx, e.serves); err != nil {
			e.stop()
			return nil, err
		}
	}
	return e, nil
}

func (e *etcd) serves(ctx context.Context) error {
	for range e.clients { // the client asks them in turn
		if _, err := e.admin.Get(ctx, "x"); err != nil {
			return err
		}
	}
	return nil
}

// address returns what dialEtcd takes.
func (e *etcd) address() string {
	return fmt.Sprintf("%v;%s%s", e.trip, e.login, strings.Join(e.clients, ","))
}

func (e *etcd) version() string { return "etcd " + version.Version }

// requirePasswords makes etcd ask for user and password. The hash with which it compares a
// password takes time on purpose.
func (e *etcd) requirePasswords(ctx context.Context) error {
	const name, password = "root", "secret"
	if _, err := e.admin.UserAdd(ctx, name, password); err != nil {
		return err
	}
	if _, err := e.admin.UserGrantRole(ctx, name, "root"); err != nil { // the role is there
		return err
	}
	if _, err := e.admin.AuthEnable(ctx); err != nil {
		return err
	}
	e.admin.Close()
	e.login = name + ":" + password + "@"
	var err error
	e.admin, err = dialEtcd(e.address(), &wire{})
	return err
}

func (e *etcd) pids() (pids []int) {
	for _, p := range e.members {
		pids = append(pids, p.cmd.Process.Pid)
	}
	return pids
}

func (e *etcd) stop() {
	if e.admin != nil {
		e.admin.Close()
	}
	for _, p := range e.members {
		// Nothing here needs an orderly end, which takes three members seconds.
		p.stop(syscall.SIGKILL)
	}
}

// revision returns the cluster's current revision.
func (e *etcd) revision(ctx context.Context) (int64, error) {
	resp, err := e.admin.Get(ctx, "x")
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// proposals returns how many Raft proposals the cluster has committed, by the member that
// knows of the most.
func (e *etcd) proposals(ctx context.Context) (most int64, err error) {
	for _, member := range e.clients {
		n, err := committed(ctx, "http://"+member+"/metrics")
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

func committed(ctx context.Context, url string) (int64, error) {
	const metric = "etcd_server_proposals_committed_total "
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if value, found := strings.CutPrefix(lines.Text(), metric); found {
			n, err := strconv.ParseFloat(value, 64)
			return int64(n), err
		}
	}
	return 0, fmt.Errorf("no %s in etcd's metrics (%w)", metric, lines.Err())
}
