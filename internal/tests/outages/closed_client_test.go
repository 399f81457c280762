package outages

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// A client that is closed before its Session is one slip of the program: it is one line of the log.
func TestAClientThatIsClosedBeforeItsSessionIsOneWarning(t *testing.T) {
	for about, ends := range map[string]func(t *testing.T, s *etcdlock.Session, mu *etcdlock.Mutex){
		"and nothing else": func(*testing.T, *etcdlock.Session, *etcdlock.Mutex) {},
		"then Unlock": func(t *testing.T, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			require.Error(t, mu.Unlock(context.Background()))
		},
		"then Close": func(t *testing.T, s *etcdlock.Session, _ *etcdlock.Mutex) {
			require.ErrorIs(t, s.Close(context.Background()), etcdlock.ErrUnconfirmed)
		},
		"then Close of the Mutex": func(t *testing.T, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			require.ErrorIs(t, mu.Close(context.Background()), etcdlock.ErrUnconfirmed)
		},
		"then Unlock after the loss": func(t *testing.T, _ *etcdlock.Session, mu *etcdlock.Mutex) {
			time.Sleep(tests.TTL)
			require.ErrorContains(t, mu.Unlock(context.Background()), "the etcd client is closed")
		},
		"then Close after the loss": func(t *testing.T, s *etcdlock.Session, _ *etcdlock.Mutex) {
			time.Sleep(tests.TTL)
			require.ErrorIs(t, s.Close(context.Background()), etcdlock.ErrUnconfirmed)
		},
	} {
		t.Run(about, func(t *testing.T) {
			tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
				var told tests.Told
				log := slog.New(slog.NewTextHandler(&told, &slog.HandlerOptions{Level: slog.LevelWarn}))
				client, failed := etcd.Client("a"), 0
				s, err := etcdlock.NewSession(client, etcdlock.WithTTL(tests.TTL), etcdlock.WithLogger(log),
					etcdlock.WithTrace(&etcdlock.Trace{
						RenewalFailed: func(context.Context, etcdlock.RenewalFailedEvent) { failed++ },
						Lost: func(_ context.Context, e etcdlock.LostEvent) {
							require.ErrorIs(t, e.Reason, etcdlock.ErrExpired)
							require.ErrorContains(t, e.Reason, "the etcd client is closed")
						},
					}))
				require.NoError(t, err)
				mu := contract.MutexOf(t, s, "n")
				tests.LockWithin(t, mu, time.Second)
				for _, name := range []string{"a", "b", "c"} {
					_, err := s.Lock(context.Background(), name)
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				_ = client.Close()
				ends(t, s, mu)
				time.Sleep(time.Hour)
				lines := told.Take()
				_ = s.Close(context.Background())
				require.Len(t, lines, 1)
				require.LessOrEqual(t, failed, 1, "renewals that cannot be sent")
				require.Contains(t, lines[0], "the etcd client is closed")
			})
		})
	}
}
