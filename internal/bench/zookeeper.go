package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// zkJar is the server's jar in Debian's package. Its manifest names the rest.
const zkJar = "/usr/share/java/zookeeper.jar"

// A zooKeeper is one server.
type zooKeeper struct {
	process *process
	addr    string
	release string
}

func findZooKeeper() (string, error) {
	if _, err := os.Stat(zkJar); err != nil {
		return "", errors.New("ZooKeeper is missing: apt-get install zookeeper")
	}
	return find("zookeeper", "java")
}

func startZooKeeper(ctx context.Context, dir string, _ int) (system, error) {
	java, err := findZooKeeper()
	if err != nil {
		return nil, err
	}
	addr, host, port, err := freePort()
	if err != nil {
		return nil, err
	}
	// A session's timeout is counted in ticks, and has at least two.
	conf := fmt.Sprintf(`dataDir=%s
clientPort=%s
clientPortAddress=%s
tickTime=1000
maxSessionTimeout=60000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
`, dir, port, host)
	file := filepath.Join(dir, "zoo.cfg")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		return nil, err
	}
	// The heap has the size that ZooKeeper's own start script gives it.
	cmd := exec.Command(java, "-Xmx1000m", "-cp", zkJar,
		"org.apache.zookeeper.server.ZooKeeperServerMain", file)
	z := &zooKeeper{addr: addr}
	if z.process, err = startProcess("ZooKeeper", cmd, syscall.SIGKILL); err != nil {
		return nil, err
	}
	if err := z.process.ready(ctx, z.ask); err != nil {
		z.stop()
		return nil, err
	}
	return z, nil
}

// ask asks the server who it is.
func (z *zooKeeper) ask(ctx context.Context) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", z.addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		return err
	}
	_, after, found := strings.Cut(string(answer), "Zookeeper version: ")
	if !found {
		return fmt.Errorf("it answers %.80q", answer)
	}
	z.release, _, _ = strings.Cut(after, "-")
	return nil
}

func (z *zooKeeper) address() string { return z.addr }
func (z *zooKeeper) version() string { return "ZooKeeper " + z.release }
func (z *zooKeeper) pids() []int     { return []int{z.process.cmd.Process.Pid} }
func (z *zooKeeper) stop()           { z.process.stop(syscall.SIGTERM) }
