package contract_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// leased grants a lease that ends with the test.
func leased(t *testing.T, client *clientv3.Client) clientv3.LeaseID {
	t.Helper()
	lease, err := client.Grant(t.Context(), 600)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := client.Revoke(context.Background(), lease.ID)
		require.NoError(t, err)
	})
	return lease.ID
}

// putKey puts a key that is gone when the test ends, and returns its revision.
func putKey(t *testing.T, client *clientv3.Client, key string, lease clientv3.LeaseID) int64 {
	t.Helper()
	resp, err := client.Put(t.Context(), key, "not a contender's", clientv3.WithLease(lease))
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := client.Delete(context.Background(), key)
		require.NoError(t, err)
	})
	return resp.Header.Revision
}

// etcdsMutex is a concurrency.Mutex on a session of its own.
func etcdsMutex(t *testing.T, client *clientv3.Client, name string) *concurrency.Mutex {
	t.Helper()
	s, err := concurrency.NewSession(client, concurrency.WithTTL(60))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return concurrency.NewMutex(s, name)
}

// Rule 15: what this library holds is taken for etcd's own TryLock, too.
func TestEtcdsOwnTryLockIsRefusedWhileThisOneHolds(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	mu := contract.NewMutex(t, client, "a")
	require.NoError(t, mu.Lock(contract.Patient(t)))
	require.ErrorIs(t, etcdsMutex(t, client, "a").TryLock(contract.Patient(t)), concurrency.ErrLocked)
	contract.StillHolds(t, client, mu)
	require.NoError(t, mu.Unlock(contract.Patient(t)))
}

// A mixed fleet is served first come, first served. A waiter that is cancelled leaves the
// line. It neither lets the one behind it in early nor holds it up.
func TestAMixedLineIsServedFirstComeFirstServed(t *testing.T) {
	t.Parallel()
	type contender interface {
		Lock(context.Context) error
		Unlock(context.Context) error
	}
	client, _ := countedWorld(t)
	ours := func(string) contender { return contract.NewMutex(t, client, "a") }
	etcds := func(string) contender { return etcdsMutex(t, client, "a") }
	for about, fleet := range map[string][]func(string) contender{
		"ours first":                     {ours, etcds, ours, etcds, ours},
		"etcd's first":                   {etcds, ours, etcds, ours, etcds},
		"ours behind ours":               {etcds, ours, ours, etcds, ours},
		"one of etcd's between two ours": {ours, ours, etcds, ours, etcds},
	} {
		for cancelled := 1; cancelled < len(fleet)-1; cancelled++ {
			t.Run(fmt.Sprintf("%s, %d is cancelled", about, cancelled), func(t *testing.T) {
				ctx := contract.Patient(t)
				belief := contract.NewBelief(t)
				order := make(chan int, len(fleet))
				goOn := make(chan struct{})
				var giveUp context.CancelFunc
				gaveUp := make(chan error, 1)
				ended := make(chan error, len(fleet))
				for i, join := range fleet {
					mu := join("a")
					waitCtx := ctx
					if i == cancelled {
						waitCtx, giveUp = context.WithCancel(ctx)
						defer giveUp()
					}
					go func() {
						if err := mu.Lock(waitCtx); err != nil {
							gaveUp <- err
							return
						}
						line, err := etcdlock.Contenders(ctx, client, "a")
						if err != nil {
							ended <- err
							return
						}
						who := fmt.Sprint(i)
						belief.Enter(who, line[0].Token)
						order <- i
						<-goOn
						belief.Leave(who)
						ended <- mu.Unlock(ctx)
					}()
					contract.WaitForLine(t, client, "a", i+1) // so they queue one after the other
				}
				require.Equal(t, 0, receive(t, order, "the first"))
				giveUp()
				require.ErrorIs(t, receive(t, gaveUp, "the end of the cancelled wait"), context.Canceled)
				contract.WaitForLine(t, client, "a", len(fleet)-1)
				for i := 1; i < len(fleet); i++ {
					if i == cancelled {
						continue
					}
					select {
					case early := <-order:
						require.FailNow(t, "somebody came early", "%d", early)
					default:
					}
					goOn <- struct{}{}
					require.NoError(t, receive(t, ended, "the release"))
					require.Equal(t, i, receive(t, order, "the next"))
				}
				goOn <- struct{}{}
				require.NoError(t, receive(t, ended, "the last release"))
				require.Equal(t, len(fleet)-1, belief.Entries())
			})
		}
	}
}

// tenant is a cluster with auth, and a user "tenant" who may read and write below
// "mine/", read below "shown/" and write below "dropped/", and nothing else.
func tenant(
	t *testing.T,
) (root, client *clientv3.Client, counter *contract.Counter, faults *etcdtest.Faults) {
	t.Helper()
	cluster := etcdtest.Start(t, 1)
	ctx := t.Context()
	admin := cluster.Client(t)
	grant := func(role, prefix string, what clientv3.PermissionType) {
		_, err := admin.RoleGrantPermission(ctx, role, prefix, clientv3.GetPrefixRangeEnd(prefix), what)
		require.NoError(t, err)
	}
	for _, user := range []string{"root", "tenant"} {
		contract.AddUser(ctx, t, admin, user, "secret of "+user)
	}
	grant("tenant", "mine/", clientv3.PermissionType(clientv3.PermReadWrite))
	grant("tenant", "shown/", clientv3.PermissionType(clientv3.PermRead))
	grant("tenant", "dropped/", clientv3.PermissionType(clientv3.PermWrite))
	_, err := admin.AuthEnable(ctx)
	require.NoError(t, err)

	as := func(user string) contract.ClientOption {
		return func(cfg *clientv3.Config) { cfg.Username, cfg.Password = user, "secret of "+user }
	}
	root = cluster.Client(t, as("root"))
	counter, faults = contract.NewCounter(), etcdtest.NewFaults(t)
	client = cluster.Client(t, as("tenant"), contract.With(counter, faults))
	contract.VerifyClean(t, root, "")
	return root, client, counter, faults
}

// Rule 16: readwrite on "name/" is all that it needs, even to wait and to have others wait for
// it.
func TestARoleOnThePrefixIsEnough(t *testing.T) {
	t.Parallel()
	root, client, _, _ := tenant(t)
	ctx := contract.Patient(t)
	mu, other := contract.NewMutex(t, client, "mine"), contract.NewMutex(t, client, "mine")
	third := contract.NewMutex(t, client, "mine")

	require.NoError(t, other.TryLock(ctx))
	require.NoError(t, other.Unlock(ctx))
	require.NoError(t, mu.Lock(ctx))
	require.ErrorIs(t, other.TryLock(ctx), etcdlock.ErrLocked)
	waits := []<-chan error{contract.Async(func() error { return other.Lock(ctx) })}
	contract.WaitForLine(t, client, "mine", 2)
	waits = append(waits, contract.Async(func() error { return third.Lock(ctx) }))
	contract.WaitForLine(t, client, "mine", 3)

	contract.StillHolds(t, client, mu)
	require.NoError(t, mu.Unlock(ctx))
	require.NoError(t, receive(t, waits[0], "the lock"))
	require.NoError(t, other.Unlock(ctx))
	require.NoError(t, receive(t, waits[1], "the lock"))

	line, err := etcdlock.Contenders(ctx, client, "mine")
	require.NoError(t, err)
	require.Len(t, line, 1)
	holders, err := etcdlock.Holders(ctx, client, "mine/")
	require.NoError(t, err)
	require.Empty(t, holders, "nested names only")
	require.NoError(t, etcdlock.Break(ctx, client, line[0]))
	require.ErrorIs(t, third.Unlock(ctx), etcdlock.ErrLost)
	falseInEtcd(t, root, third.IsOwner())
	resp, err := client.Txn(ctx).If(third.IsOwner()).Commit()
	require.NoError(t, err, "the guard asks for nothing outside the prefix")
	require.False(t, resp.Succeeded)

	_, err = etcdlock.Contenders(ctx, client, "theirs")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	_, err = etcdlock.Holders(ctx, client, "")
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
	err = etcdlock.Break(ctx, client, etcdlock.Contender{Name: "theirs", Key: "theirs/x", Token: 1})
	require.ErrorIs(t, err, rpctypes.ErrPermissionDenied)
}

// A refusal of one name is no verdict on the client.
func TestAPermissionThatIsGrantedLaterIsUsed(t *testing.T) {
	t.Parallel()
	root, client, _, _ := tenant(t)
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "theirs")
	require.ErrorIs(t, mu.Lock(ctx), rpctypes.ErrPermissionDenied)
	_, err := root.RoleGrantPermission(ctx, "tenant", "theirs/", clientv3.GetPrefixRangeEnd("theirs/"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	require.NoError(t, err)
	require.NoError(t, mu.Lock(ctx))
	contract.StillHolds(t, client, mu)
	require.NoError(t, mu.Unlock(ctx))
}

// Rule 17.
func TestTheStoredValueIsJSONForPeople(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	host, err := os.Hostname()
	require.NoError(t, err)
	for owner, opts := range map[string][]etcdlock.SessionOption{
		fmt.Sprintf("%s:%d", host, os.Getpid()): nil,
		"api-7 <eu> & \"us\"\n🔒":                {etcdlock.WithOwner("api-7 <eu> & \"us\"\n🔒")},
	} {
		t.Run(owner, func(t *testing.T) {
			mu := contract.NewMutex(t, client, "a", opts...)
			started := time.Now()
			require.NoError(t, mu.Lock(ctx))
			got := time.Now()
			resp, err := client.Get(ctx, mu.Key())
			require.NoError(t, err)
			require.Len(t, resp.Kvs, 1)
			value := map[string]any{}
			require.NoError(t, json.Unmarshal(resp.Kvs[0].Value, &value))
			since, ok := value["since"].(string)
			require.True(t, ok)
			delete(value, "since")
			ttl, ok := value["ttl"].(float64)
			require.True(t, ok)
			require.Positive(t, ttl)
			delete(value, "ttl")
			require.Equal(t, map[string]any{"owner": owner, "host": host, "pid": float64(os.Getpid())},
				value)
			at, err := time.Parse(time.RFC3339Nano, since)
			require.NoError(t, err)
			require.True(t, strings.HasSuffix(since, "Z"), "%s is in UTC", since)
			require.False(t, at.Before(started.Round(0)) || at.After(got.Round(0)), "%v, not in [%v, %v]",
				at, started, got)
			require.NotZero(t, at.Nanosecond())

			line, err := etcdlock.Contenders(ctx, client, "a")
			require.NoError(t, err)
			require.Equal(t, []etcdlock.Contender{{
				Name: "a", Key: mu.Key(), Owner: owner, Host: host, PID: os.Getpid(), Token: mu.Token(),
				Lease: clientv3.LeaseID(resp.Kvs[0].Lease), Since: at,
				Mode: "exclusive", Holds: true, Self: true,
			}}, line)
			require.NoError(t, mu.Unlock(ctx))
		})
	}
}

func TestContendersAreInTheOrderOfTheLine(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx, cancel := context.WithCancel(t.Context()) // of the waits
	lease := leased(t, client)
	none, err := etcdlock.Contenders(contract.Patient(t), client, "a")
	require.NoError(t, err)
	require.Empty(t, none)

	mu := contract.NewMutex(t, client, "a", etcdlock.WithOwner("first"))
	require.NoError(t, mu.Lock(contract.Patient(t)))
	var waits []<-chan error
	for i, owner := range []string{"second", "", "fourth", "", "sixth"} {
		wait := etcdsMutex(t, client, "a").Lock
		if owner != "" {
			wait = contract.NewMutex(t, client, "a", etcdlock.WithOwner(owner)).Lock
		}
		waits = append(waits, contract.Async(func() error { return wait(ctx) }))
		contract.WaitForLine(t, client, "a", i+2)
		putKey(t, client, "a/config", 0)
		putKey(t, client, "a/sub/"+uuid.NewString(), lease)
		putKey(t, client, fmt.Sprintf("a/%x", lease+1), lease)
	}
	line, err := etcdlock.Contenders(contract.Patient(t), client, "a")
	require.NoError(t, err)
	require.Len(t, line, 6)
	require.Equal(t, mu.Key(), line[0].Key)
	require.Equal(t, mu.Token(), line[0].Token)
	for i, owner := range []string{"first", "second", "", "fourth", "", "sixth"} {
		require.Equal(t, "a", line[i].Name)
		require.Equal(t, owner, line[i].Owner)
		require.Equal(t, owner == "", line[i].Since.IsZero())
		require.NotZero(t, line[i].Lease)
		if i > 0 {
			require.Greater(t, line[i].Token, line[i-1].Token)
		}
	}
	cancel()
	for _, waited := range waits {
		require.ErrorIs(t, <-waited, context.Canceled)
	}
	require.NoError(t, mu.Unlock(contract.Patient(t)))
}

func TestHoldersAreThoseWhoseNamesBeginWithThePrefix(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx, cancel := context.WithCancel(t.Context()) // of locks, waits and reads
	lease := leased(t, client)
	none, err := etcdlock.Holders(ctx, client, "")
	require.NoError(t, err)
	require.Empty(t, none)

	keys := map[string]string{} // of the holders, by name
	s := contract.NewSession(t, client)
	nested := "ord/" + uuid.NewString()
	for _, name := range []string{"ord", "order", "orders/1", "orders/10", "orders/2", "orders",
		"users/1", "/odd", nested} {
		mu := contract.MutexOf(t, s, name)
		require.NoError(t, mu.Lock(ctx))
		t.Cleanup(func() { require.NoError(t, mu.Unlock(context.Background())) })
		keys[name] = mu.Key()
	}
	theirs := etcdsMutex(t, client, "orders/3")
	require.NoError(t, theirs.Lock(ctx))
	keys["orders/3"] = theirs.Key()
	var waits []<-chan error
	for _, name := range []string{"orders", "orders/1", "orders/3"} { // waiters are not listed
		mu := contract.NewMutex(t, client, name)
		waits = append(waits, contract.Async(func() error { return mu.Lock(ctx) }))
		contract.WaitForLine(t, client, name, 2)
	}
	putKey(t, client, "orders/config", 0)
	putKey(t, client, "orders/4/config", lease)
	putKey(t, client, fmt.Sprintf("%x", lease), lease)
	putKey(t, client, fmt.Sprintf("/%x", lease), lease)
	putKey(t, client, uuid.NewString(), lease)

	for prefix, names := range map[string][]string{
		"":          {"/odd", "ord", nested, "order", "orders", "orders/1", "orders/10", "orders/2", "orders/3", "users/1"},
		"/":         {"/odd"},
		"o":         {"ord", nested, "order", "orders", "orders/1", "orders/10", "orders/2", "orders/3"},
		"ord":       {"ord", nested, "order", "orders", "orders/1", "orders/10", "orders/2", "orders/3"},
		"ord/":      {nested},
		"order":     {"order", "orders", "orders/1", "orders/10", "orders/2", "orders/3"},
		"orders":    {"orders", "orders/1", "orders/10", "orders/2", "orders/3"},
		"orders/":   {"orders/1", "orders/10", "orders/2", "orders/3"},
		"orders/1":  {"orders/1", "orders/10"},
		"orders/1/": nil,
		"users/1":   {"users/1"},
		"users/1/":  nil,
		"z":         nil,
		"\x00":      nil,
		"\xff":      nil,
		nested:      {nested},
		keys["ord"]: nil,
	} {
		holders, err := etcdlock.Holders(ctx, client, prefix)
		require.NoError(t, err, "%q", prefix)
		var got []string
		for _, h := range holders {
			got = append(got, h.Name)
			require.Equal(t, keys[h.Name], h.Key, "the holder, not who waits")
			require.Equal(t, h.Name == "orders/3", h.Owner == "", "the foreign one has no owner")
		}
		require.Equal(t, names, got, "below %q", prefix)
	}
	cancel()
	for _, waited := range waits {
		require.ErrorIs(t, <-waited, context.Canceled)
	}
	require.NoError(t, theirs.Unlock(contract.Patient(t)))
}

// Break lets the next one in, and the holder that was broken learns of it.
func TestBreakOfTheHolderLetsTheNextOneIn(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	mu, next := contract.NewMutex(t, client, "a"), contract.NewMutex(t, client, "a")
	require.NoError(t, mu.Lock(ctx))
	token, hold := mu.Token(), mu.Context(ctx)
	waited := contract.Async(func() error { return next.Lock(ctx) })
	line := contract.WaitForLine(t, client, "a", 2)
	require.NoError(t, etcdlock.Break(ctx, client, line[0]))
	require.NoError(t, receive(t, waited, "the lock"))
	require.Greater(t, next.Token(), token)
	receive(t, hold.Done(), "the end of the hold")
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)

	require.NoError(t, etcdlock.Break(ctx, client, line[0]), "what is gone is gone")
	require.ErrorIs(t, mu.Unlock(ctx), etcdlock.ErrLost)
	contract.StillHolds(t, client, next)
	require.NoError(t, next.Unlock(ctx))
	require.NoError(t, etcdlock.Break(ctx, client, line[1]), "gone by itself")
}

// A waiter that was broken has done nothing wrong: it stands in line anew, at the end.
func TestBreakOfAWaiterSendsItToTheEndOfTheLine(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	mu, broken, behind := contract.NewMutex(t, client, "a"), contract.NewMutex(t, client, "a"),
		contract.NewMutex(t, client, "a")
	require.NoError(t, mu.Lock(ctx))
	brokenWaited := contract.Async(func() error { return broken.Lock(ctx) })
	contract.WaitForLine(t, client, "a", 2)
	behindWaited := contract.Async(func() error { return behind.Lock(ctx) })
	line := contract.WaitForLine(t, client, "a", 3)
	require.NoError(t, etcdlock.Break(ctx, client, line[1]))
	require.Eventually(t, func() bool { // a waiter that stands in line anew announces it to nobody
		now, err := etcdlock.Contenders(ctx, client, "a")
		return err == nil && len(now) == 3 && now[1].Key == line[2].Key
	}, contract.Patience, 5*time.Millisecond)
	contract.StillHolds(t, client, mu)
	require.NoError(t, mu.Unlock(ctx))
	require.NoError(t, receive(t, behindWaited, "the lock"))
	require.Zero(t, broken.Token())
	require.NoError(t, behind.Unlock(ctx))
	require.NoError(t, receive(t, brokenWaited, "the lock"))
	require.NoError(t, broken.Unlock(ctx))
}

// An operator looks, thinks, and breaks. Meanwhile the same key may belong to another hold.
func TestBreakOfAStaleContenderTouchesNoNewerKey(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	t.Run("of ours", func(t *testing.T) {
		ctx := contract.Patient(t)
		mu := contract.NewMutex(t, client, "a")
		stale := map[string]etcdlock.Contender{}
		reused := false
		for range 5 { // a Session uses its key names in turn
			require.NoError(t, mu.Lock(ctx))
			now := contract.WaitForLine(t, client, "a", 1)[0]
			reused = reused || stale[mu.Key()].Token != 0
			for _, c := range stale {
				require.Less(t, c.Token, now.Token)
				require.NoError(t, etcdlock.Break(ctx, client, c))
			}
			contract.StillHolds(t, client, mu)
			require.NoError(t, mu.Unlock(ctx))
			stale[now.Key] = now
		}
		require.True(t, reused, "the test had something to show")
	})
	t.Run("of etcd's own Mutex", func(t *testing.T) {
		ctx := contract.Patient(t)
		theirs := etcdsMutex(t, client, "a") // always puts the same key
		require.NoError(t, theirs.Lock(ctx))
		stale := contract.WaitForLine(t, client, "a", 1)[0]
		require.NoError(t, theirs.Unlock(ctx))
		require.NoError(t, theirs.Lock(ctx))
		now := contract.WaitForLine(t, client, "a", 1)[0]
		require.Equal(t, stale.Key, now.Key)
		require.NoError(t, etcdlock.Break(ctx, client, stale))
		require.Equal(t, now, contract.WaitForLine(t, client, "a", 1)[0])
		require.NoError(t, etcdlock.Break(ctx, client, now))
		contract.WaitForLine(t, client, "a", 0)
	})
}

// The guard of a hold that is over, or never was, is false, whatever stands below the
// prefix. The transaction has no error.
func TestIsOwnerWithoutAHoldIsFalse(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx := contract.Patient(t)
	mu := contract.NewMutex(t, client, "a")
	falseInEtcd(t, client, mu.IsOwner())

	require.NoError(t, mu.Lock(ctx))
	of := mu.IsOwner()
	require.NoError(t, mu.Unlock(ctx))
	falseInEtcd(t, client, mu.IsOwner())
	falseInEtcd(t, client, of)

	other := contract.NewMutex(t, client, "a")
	require.NoError(t, other.Lock(ctx))
	falseInEtcd(t, client, mu.IsOwner())
	falseInEtcd(t, client, of)
	contract.StillHolds(t, client, other)
	require.NoError(t, other.Unlock(ctx))

	_, err := client.Put(ctx, "a/", "a key that is the bare prefix")
	require.NoError(t, err)
	falseInEtcd(t, client, mu.IsOwner())
	_, err = client.Delete(ctx, "a/")
	require.NoError(t, err)
}

// What etcd, or gRPC, refuses comes back as an error of a bearable length.
func TestARefusalOfSomethingHugeIsAShortError(t *testing.T) {
	t.Parallel()
	client, _ := countedWorld(t)
	ctx, huge := contract.Patient(t), strings.Repeat("k", 3<<20)
	_, holders := etcdlock.Holders(ctx, client, huge)
	for about, err := range map[string]error{
		"a key":    etcdlock.Break(ctx, client, etcdlock.Contender{Name: "a", Key: huge, Token: 1}),
		"a name":   etcdlock.Break(ctx, client, etcdlock.Contender{Name: huge, Key: huge, Token: 1}),
		"a prefix": holders,
	} {
		require.Error(t, err, about)
		require.LessOrEqual(t, len(err.Error()), 2048, about)
	}
}
