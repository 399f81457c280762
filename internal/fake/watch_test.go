package fake_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock/internal/fake"
)

// A request for a watch may arrive after its caller has gone. Nothing reads that watch, so it would
// stay, and report its progress, for as long as the etcd is there.
func TestAWatchThatBeginsAfterItsCallerHasGoneEnds(t *testing.T) {
	for name, late := range map[string]func(etcd *fake.Server){
		"delayed": func(etcd *fake.Server) { etcd.Delay("a", 2*time.Second) },
		"delayed by an effect": func(etcd *fake.Server) {
			etcd.Intercept(func(fake.Call) fake.Effect { return fake.Effect{Delay: 2 * time.Second} })
		},
		"begun twice": func(etcd *fake.Server) {
			etcd.Intercept(func(fake.Call) fake.Effect {
				return fake.Effect{DropReply: true, Again: 2 * time.Second}
			})
		},
		"parked": func(etcd *fake.Server) {
			etcd.Freeze()
			time.AfterFunc(2*time.Second, etcd.Thaw)
		},
	} {
		for how, leave := range map[string]func(*clientv3.Client, context.CancelFunc) error{
			"gone":   func(_ *clientv3.Client, cancel context.CancelFunc) error { cancel(); return nil },
			"closed": func(c *clientv3.Client, _ context.CancelFunc) error { return c.Close() },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					etcd := fake.NewServer()
					client := etcd.Client("a")
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					late(etcd)
					time.AfterFunc(time.Second, func() { _ = leave(client, cancel) })
					watch := client.Watch(ctx, "k", clientv3.WithProgressNotify())
					_, open := <-watch
					require.False(t, open)
					time.Sleep(time.Minute)
					require.Zero(t, etcd.Watches(), "it stays")
				})
			})
		}
	}
}
