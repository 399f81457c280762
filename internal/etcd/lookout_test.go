package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// A lookout calls its alarms when the machine has slept or the clock was set forward, and when a
// Session of the client has noticed a set-back. (A bubble has no monotonic clock, so this is in
// real time.)
func TestALookoutSeesWhatNoEventTells(t *testing.T) {
	for name, row := range map[string]struct {
		since time.Duration // the last look, by the wall clock
		gains time.Duration // of the wall clock on the monotonic one
		moved bool          // etcd was set back
		seen  bool
	}{
		"nothing":                        {since: lookEvery},
		"the machine was busy":           {since: time.Minute},
		"the machine has slept":          {since: time.Minute, gains: time.Minute - lookEvery, seen: true},
		"the clock was set forward":      {since: time.Second, gains: time.Second, seen: true},
		"the clock was set back":         {since: lookEvery, gains: -time.Hour},
		"the clock is corrected, slowly": {since: lookEvery, gains: time.Millisecond},
		"etcd was set back":              {since: lookEvery, moved: true, seen: true},
	} {
		t.Run(name, func(t *testing.T) {
			o, seen := lookoutOf(fake.NewServer().Client("a")), 0
			stop := o.add(func() { seen++ })
			defer stop()
			look := func() int {
				o.mu.Lock()
				defer o.mu.Unlock()
				before := seen
				o.lookLocked(time.Now())
				return seen - before
			}
			o.mu.Lock()
			o.looked = fake.MoveMonotonic(time.Now().Add(-row.since), row.gains)
			o.mu.Unlock()
			if row.moved {
				o.history.begin(o.history.present.Load(), &pb.ResponseHeader{Revision: 1})
			}
			require.Equal(t, row.seen, look() == 1)
			require.Zero(t, look(), "it is seen once")
		})
	}
}

// A lookout has a timer while there is an alarm.
func TestALookoutLooksWhileThereIsAnAlarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := lookoutOf(fake.NewServer().Client("a"))
		looked := func() time.Time {
			o.mu.Lock()
			defer o.mu.Unlock()
			return o.looked
		}
		for range 2 {
			first, second := o.add(func() {}), o.add(func() {})
			began := looked()
			require.Equal(t, time.Now(), began)
			time.Sleep(3 * lookEvery)
			synctest.Wait()
			require.Equal(t, began.Add(3*lookEvery), looked())
			first()
			time.Sleep(lookEvery)
			synctest.Wait()
			require.Equal(t, began.Add(4*lookEvery), looked())
			second()
			time.Sleep(10 * lookEvery)
			synctest.Wait()
			require.Equal(t, began.Add(4*lookEvery), looked())
		}
	})
}
