package faults

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"golang.org/x/sys/unix"
)

var (
	trials = flag.Int("trials", 0, "trials of each row, instead of the few of a quick run")
	peer   = flag.Bool("peer", false, "run concurrency.Mutex beside the library")
	share  = flag.Bool("share", false, "run the library with WithHandoff and WithLinger")
)

// roleEnv makes this binary something other than a test.
const roleEnv = "ETCDLOCK_FAULTS_ROLE"

// shareEnv hands -share down to the processes that this one starts.
const shareEnv = "ETCDLOCK_FAULTS_SHARE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		flag.Parse()
		if *share {
			os.Setenv(shareEnv, "true")
		}
		os.Exit(m.Run())
	case "etcd":
		os.Unsetenv(roleEnv) // etcd warns of variables that it does not know
		etcdmain.Main(append([]string{"etcd"}, os.Args[1:]...))
	case "party":
		if err := beParty(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "party:", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "no such role:", role)
		os.Exit(2)
	}
}

// now is the time on CLOCK_MONOTONIC, which all processes of a machine share.
func now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}
