package child_test

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/child"
)

// roleEnv makes this binary a parent that starts a child, says which, and waits.
const roleEnv = "ETCDLOCK_CHILD_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" {
		os.Exit(m.Run())
	}
	sleeper := exec.Command("sleep", "600")
	if err := child.Start(sleeper, syscall.SIGKILL); err != nil {
		panic(err)
	}
	os.Stdout.WriteString(strconv.Itoa(sleeper.Process.Pid) + "\n")
	select {}
}

// A parent that is killed takes its child along.
func TestAChildDoesNotOutliveItsParent(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	parent := exec.Command(self)
	parent.Env = append(os.Environ(), roleEnv+"=parent")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start(parent, syscall.SIGKILL))
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, 0), "the child is not there")
	require.NoError(t, parent.Process.Kill())
	require.Error(t, parent.Wait())
	require.Eventually(t, func() bool {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		return err != nil || strings.Contains(string(status), ") Z ") // nobody may reap it
	}, 20*time.Second, time.Millisecond)
}
