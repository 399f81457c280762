package gocron_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	etcdlockgocron "github.com/etcdlock/etcdlock/adapters/gocron"
	"github.com/etcdlock/etcdlock/internal/adapters"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// roleEnv makes this binary a scheduler, with a Locker or with an Elector.
const roleEnv = "ETCDLOCK_GOCRON_ROLE"

const (
	every = 5 * splay / 2   // from slot to slot
	ttl   = 2 * time.Second // of the Session of a scheduler
	kill  = 2               // the slot in which a process is killed
	most  = 40              // slots
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		contract.Must(beScheduler(role, os.Args[1], os.Args[2]))
		return
	}
	os.Exit(m.Run())
}

// beScheduler says that it is ready, reads when the first slot is, in milliseconds, and runs one
// job until the process is killed. It prints the slot when a run begins, and when it ends.
func beScheduler(role, endpoint, behind string) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}})
	if err != nil {
		return err
	}
	session, err := etcdlock.NewSession(client, etcdlock.WithTTL(ttl))
	if err != nil {
		return err
	}
	late, err := time.ParseDuration(behind)
	if err != nil {
		return err
	}
	var distributed gocron.SchedulerOption
	switch role {
	case "locker":
		locker, err := etcdlockgocron.NewLocker(session, "cron/", splay)
		if err != nil {
			return err
		}
		distributed = gocron.WithDistributedLocker(locker)
	case "elector":
		mu, err := session.Mutex("leader/cron")
		if err != nil {
			return err
		}
		elector, err := etcdlockgocron.NewElector(mu)
		if err != nil {
			return err
		}
		go elector.Lead(context.Background())
		distributed = gocron.WithDistributedElector(elector)
	}
	scheduler, err := gocron.NewScheduler(distributed)
	if err != nil {
		return err
	}
	fmt.Println("ready", 0)
	var since int64
	if _, err := fmt.Scan(&since); err != nil {
		return err
	}
	begin := time.UnixMilli(since).Add(late)
	var due []time.Time
	for slot := range time.Duration(most) {
		due = append(due, begin.Add(slot*every))
	}
	_, err = scheduler.NewJob(gocron.OneTimeJob(gocron.OneTimeJobStartDateTimes(due...)),
		gocron.NewTask(func() {
			slot := int(time.Since(begin) / every)
			fmt.Println("begins", slot)
			if slot < kill {
				time.Sleep(time.Millisecond)
			} else {
				time.Sleep(200 * time.Millisecond)
			}
			fmt.Println("ends", slot)
		}), gocron.WithName("report"))
	if err != nil {
		return err
	}
	scheduler.Start()
	select {} // until it is killed
}

// A line is what a process has said.
type line struct {
	from *adapters.Process
	what string // ready, begins, ends
	slot int
}

// start starts a scheduler whose clock is behind, which says its lines to said. It ends with t.
func start(
	t *testing.T, role, endpoint string, behind time.Duration, said chan<- line,
) *adapters.Process {
	t.Helper()
	p := adapters.Start(t, roleEnv+"="+role, endpoint, behind.String())
	go func() { // ends with the process
		for text := range p.Said {
			what, slot, _ := strings.Cut(text, " ")
			if n, err := strconv.Atoi(slot); err == nil {
				said <- line{p, what, n}
			}
		}
	}()
	return p
}

// Two processes have the same job, and one is 20 ms behind. In the first slots the job takes a
// millisecond. Then the process that runs it is killed within it. Each slot runs once at most, and
// the other process runs all that come when the lease of the dead one is over.
func TestASchedulerIsKilledWithinItsJob(t *testing.T) {
	for _, role := range []string{"locker", "elector"} {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			etcd := etcdtest.Start(t, 1)
			said := make(chan line, 4*most)
			endpoint := etcd.Client(t).Endpoints()[0]
			schedulers := []*adapters.Process{
				start(t, role, endpoint, 0, said), start(t, role, endpoint, 20*time.Millisecond, said),
			}

			next := func() line {
				select {
				case l := <-said:
					return l
				case <-time.After(contract.Patience):
					t.Fatal("no job runs")
					return line{}
				}
			}
			for range schedulers {
				require.Equal(t, "ready", next().what)
			}
			first := time.Now().Add(every).UnixMilli()
			for _, p := range schedulers {
				_, err := fmt.Fprintln(p.In, first)
				require.NoError(t, err)
			}
			begun := make(map[int]*adapters.Process) // the process that runs a slot
			ended := make(map[int]bool)
			var dead *adapters.Process
			for after := 0; after < 3; { // slots that the other one has run
				l := next()
				if l.what == "ends" {
					require.Same(t, begun[l.slot], l.from)
					ended[l.slot] = true
					if dead != nil && l.from != dead {
						after++
					}
					continue
				}
				require.NotContains(t, begun, l.slot, "it runs a second time")
				begun[l.slot] = l.from
				if l.slot == kill {
					dead = l.from
					require.NoError(t, dead.Process.Kill())
				}
			}
			require.NotContains(t, ended, kill)
			for _, slot := range []int{0, 1, kill + 2, kill + 3} { // the one between may come within the TTL
				require.Contains(t, ended, slot)
			}
		})
	}
}
