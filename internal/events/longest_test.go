package events

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The longest of the waits that last is known, until it ends: also if hooks tell of it late, and
// if its end is never told.
func TestTheLongestWaitIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Longest
		l.Begin("orders")
		is := func(want time.Duration) {
			t.Helper()
			l.All(func(kind string, waited time.Duration) {
				require.Equal(t, "orders", kind)
				require.Equal(t, want, waited)
			})
		}
		is(0)
		l.Ended("orders", time.Millisecond)
		l.Told("orders", Lasts)
		l.Told("orders", Lasts) // another one
		time.Sleep(10 * time.Second)
		l.Told("orders", Lasts)
		is(Lasts + 10*time.Second)
		time.Sleep(20 * time.Second)
		l.Told("orders", 2*Lasts)
		time.Sleep(10 * time.Second)
		l.Told("orders", 2*Lasts)
		time.Sleep(10*time.Second + time.Millisecond)
		l.Ended("orders", Lasts+50*time.Second)
		is(Lasts + 50*time.Second + time.Millisecond)
		time.Sleep(time.Millisecond)
		l.Ended("orders", Lasts+50*time.Second)
		is(Lasts + 40*time.Second + 2*time.Millisecond)
		time.Sleep(time.Hour)
		is(0)
	})
}
