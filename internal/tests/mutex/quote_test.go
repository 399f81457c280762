package mutex

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/tests"
)

// hostile are texts that a terminal obeys, or that turn or break a line: a character of each kind.
var hostile = []string{
	"\x1b[2J", "\a", "\x7f", "\u009b2J", "\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\u2029",
	"\r\n", "\U000e0041", "\u00a0",
}

// shows requires that a text has only what is printable, but for the ends of its lines.
func shows(t *testing.T, text string) {
	t.Helper()
	for _, r := range strings.TrimSuffix(text, "\n") {
		require.True(t, strconv.IsPrint(r), "%U in %+q", r, text)
	}
}

// Whatever others have written into the key of a contender, of whatever kind, no error and no log
// has a character of it that a terminal obeys.
func TestErrorsAndLogsQuoteWhatOthersHaveWritten(t *testing.T) {
	keys := map[string]string{
		"exclusive": "5d6dbf1c-6e4c-4a3f-9c5a-f5a1b2c3d4e5",
		"read":      "ffffffff-6e4c-8a3f-9c5a-f5a1b2c3d4e5",
		"permit":    "fffffffe-0001-8a3f-9c5a-0003b2c3d4e5",
		"other":     "", // its lease in hexadecimal, as concurrency.Mutex has it
	}
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		client, me := etcd.Client("forger"), tests.SessionOf(t, etcd, "me")
		for kind, tail := range keys {
			for i, text := range hostile {
				name := fmt.Sprintf("%s/%d%s", kind, i, text)
				granted, err := client.Grant(t.Context(), 60)
				require.NoError(t, err)
				if kind == "other" {
					tail = fmt.Sprintf("%x", int64(granted.ID))
				}
				value := map[string]any{"owner": "o" + text, "host": "h" + text, "pid": 1, "info": "i" + text,
					"mode": "m" + text, "since": time.Now(), "recallable": true,
					"recall": map[string]any{"id": "r", "by": "b" + text, "reason": "w" + text, "grace_ms": 1}}
				if i%2 == 0 {
					value["until"] = time.Now().Add(time.Hour)
				}
				stored, err := json.Marshal(value)
				require.NoError(t, err)
				key := name + "/" + tail
				_, err = client.Put(t.Context(), key, string(stored), clientv3.WithLease(granted.ID))
				require.NoError(t, err)

				var log bytes.Buffer
				logger := slog.New(slog.NewJSONHandler(&log, nil)) // it escapes less than the other one
				_, err = me.TryLock(t.Context(), name)
				var locked *etcdlock.LockedError
				is := errors.As(err, &locked)
				require.True(t, is, "%v", err)
				require.Equal(t, "o"+text, locked.Holder.Owner, "a program reads what was written")
				shows(t, err.Error())
				all, err := etcdlock.Contenders(t.Context(), client, name)
				require.NoError(t, err)
				logger.Info("m", "locked", locked, "holder", all[0])
				for _, line := range strings.SplitAfter(log.String(), "\n") {
					shows(t, line)
				}
				_, err = client.Revoke(t.Context(), granted.ID)
				require.NoError(t, err)
			}
		}
	})
}

// A recall by another program reaches the error of its holder, and its log.
func TestARecallIsQuoted(t *testing.T) {
	tests.InVirtualTime(t, func(t *testing.T, etcd *fake.Server) {
		for _, text := range hostile {
			logged := new(tests.Told)
			s := tests.SessionOf(t, etcd, "me", etcdlock.WithRecall(time.Hour),
				etcdlock.WithLogger(slog.New(slog.NewJSONHandler(logged, nil))))
			hold, err := s.Lock(t.Context(), "n"+text)
			require.NoError(t, err)
			time.Sleep(tests.WatchedBy)
			client := etcd.Client("ops")
			all, err := etcdlock.Contenders(t.Context(), client, "n"+text)
			require.NoError(t, err)
			require.NoError(t, etcdlock.Recall(t.Context(), client, all[0],
				etcdlock.RecallRequest{By: "b" + text, Reason: "w" + text}))
			held := hold.Context(t.Context())
			<-held.Done()
			var recalled *etcdlock.RecalledError
			is := errors.As(context.Cause(held), &recalled)
			require.True(t, is, "%v", context.Cause(held))
			require.Equal(t, []string{"b" + text, "w" + text}, []string{recalled.By, recalled.Reason})
			shows(t, recalled.Error())
			slog.New(slog.NewJSONHandler(logged, nil)).Info("m", "error", recalled)
			require.NoError(t, hold.Unlock(t.Context()))
			lines := logged.Take()
			require.Greater(t, len(lines), 1)
			for _, line := range lines {
				shows(t, line)
			}
			require.Contains(t, strings.Join(lines, ""), "lock recalled")
		}
	})
}
