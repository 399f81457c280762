package contract_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
)

// Many goroutines of many Sessions use both options. One holds at a time, and each waiter
// gets in.
func TestSharedKeysExclude(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var mu sync.Mutex
	inside, newest := 0, int64(0)
	var wg sync.WaitGroup
	const sessions, goroutines, holds = 4, 4, 40
	for i := range sessions {
		s := contract.NewSession(t, w.cluster.Client(t), etcdlock.WithHandoff(i),
			etcdlock.WithLinger(time.Duration(1+i*50)*time.Millisecond))
		for range goroutines {
			m := contract.MutexOf(t, s, "shared")
			wg.Go(func() {
				for range holds {
					if err := m.Lock(bounded(t)); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					if inside++; inside != 1 {
						t.Errorf("%d hold at once", inside)
					}
					if token := m.Token(); token < newest {
						t.Errorf("token %d after %d", token, newest)
					} else {
						newest = token
					}
					mu.Unlock()
					mu.Lock()
					inside--
					mu.Unlock()
					if err := m.Unlock(bounded(t)); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	wg.Wait()
}

// The same beside etcd's own client: a key that lingers gives way to whatever queues below
// the name.
func TestAKeyThatLingersGivesWayToOtherLocks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	client := w.cluster.Client(t)
	m := contract.MutexOf(t, contract.NewSession(t, client), "lingers", etcdlock.WithLinger(longTTL))
	require.NoError(t, m.Lock(bounded(t)))
	require.NoError(t, m.Unlock(bounded(t)))
	line, err := etcdlock.Contenders(bounded(t), client, "lingers")
	require.NoError(t, err)
	require.Len(t, line, 1)
	lease, err := client.Grant(bounded(t), 60)
	require.NoError(t, err)
	_, err = client.Put(bounded(t), fmt.Sprintf("lingers/%x", lease.ID), "",
		clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	require.True(t, contract.Poll(func() bool {
		now, err := etcdlock.Contenders(bounded(t), client, "lingers")
		return err == nil && len(now) == 1 && now[0].Lease == lease.ID
	}))
	_, err = client.Revoke(bounded(t), lease.ID)
	require.NoError(t, err)
}
