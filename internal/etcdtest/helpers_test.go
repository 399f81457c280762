package etcdtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// within bounds what must come: far above what it takes.
const within = 10 * time.Second

func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx
}

func put(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(bounded(t), time.Second)
		defer cancel()
		_, err := client.Put(ctx, key, value)
		return err == nil
	}, within, 10*time.Millisecond)
}
