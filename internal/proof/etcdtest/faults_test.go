//go:build timed

package etcdtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// faulty returns a client with faults, a counter of what it sent to the network, and
// another client that sees the effect.
func faulty(
	t *testing.T,
) (*clientv3.Client, *etcdtest.Faults, *contract.Counter, *clientv3.Client) {
	cluster := etcdtest.Start(t, 1)
	faults := etcdtest.NewFaults(t)
	counter := contract.NewCounter()
	return cluster.Client(t, contract.With(faults, counter)), faults, counter, cluster.Client(t)
}

// code is the status of a call's error.
func code(err error) codes.Code {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

func TestADroppedReplyFailsTheCallAfterItsEffect(t *testing.T) {
	client, faults, _, witness := faulty(t)
	lost := faults.Inject(etcdtest.DropReply("Txn", codes.Unavailable).Times(1))
	require.Equal(t, codes.Unavailable, code(put(bounded(t), client, "k")))
	lost.Await(1)
	require.True(t, exists(t, witness, "k"))
	require.NoError(t, put(bounded(t), client, "k"), "the second is not struck")
}

func TestADroppedReplyAsDeadlineExceededIsTriedAgainByTheClient(t *testing.T) {
	client, faults, counter, _ := faulty(t)
	before := counter.Counts()
	faults.Inject(etcdtest.DropReply("Txn", codes.DeadlineExceeded).Times(1))
	require.NoError(t, put(bounded(t), client, "k"))
	require.Equal(t, 2, counter.Since(before).Of("Txn"))
}

func TestADroppedRequestFailsTheCallWithoutEffect(t *testing.T) {
	client, faults, counter, witness := faulty(t)
	faults.Inject(etcdtest.DropRequest("Txn", codes.Unavailable))
	require.Equal(t, codes.Unavailable, code(put(bounded(t), client, "k")))
	require.False(t, exists(t, witness, "k"))
	require.Zero(t, counter.Counts().Of("Txn"))
	faults.Heal()
	require.NoError(t, put(bounded(t), client, "k"))
}

func TestWhatIsSwallowedNeverAnswers(t *testing.T) {
	for _, c := range []struct {
		fault  etcdtest.Fault
		effect bool
	}{
		{etcdtest.SwallowRequest("Txn"), false},
		{etcdtest.SwallowReply("Txn"), true},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			client, faults, _, witness := faulty(t)
			swallowed := faults.Inject(c.fault)
			ctx, cancel := context.WithCancel(bounded(t))
			pending := begin(func() error { return put(ctx, client, "a") })
			<-swallowed.Struck()
			requirePending(t, pending)
			require.Equal(t, c.effect, exists(t, witness, "a"))
			cancel()
			require.Equal(t, codes.Canceled, code(result(t, pending)))

			faults.Heal()
			swallowed = faults.Inject(c.fault)
			pending = begin(func() error { return put(bounded(t), client, "b") })
			<-swallowed.Struck()
			requirePending(t, pending)
			faults.Heal()
			require.Equal(t, codes.Unavailable, code(result(t, pending)))
			require.Equal(t, c.effect, exists(t, witness, "b"))
		})
	}
}

func TestWhatIsHeldGoesOnAtHeal(t *testing.T) {
	for _, c := range []struct {
		fault  etcdtest.Fault
		effect bool // while it is held
	}{
		{etcdtest.HoldRequest("Txn"), false},
		{etcdtest.HoldReply("Txn"), true},
	} {
		t.Run(c.fault.String(), func(t *testing.T) {
			client, faults, _, witness := faulty(t)
			held := faults.Inject(c.fault)
			pending := begin(func() error { return put(bounded(t), client, "k") })
			<-held.Struck()
			requirePending(t, pending)
			require.Equal(t, c.effect, exists(t, witness, "k"))
			held.Heal()
			require.NoError(t, result(t, pending))
			require.True(t, exists(t, witness, "k"))

			faults.Inject(c.fault)
			require.Equal(t, codes.DeadlineExceeded, code(put(brief(t), client, "k")))
		})
	}
}

func TestADelayLastsAsLongAsItSays(t *testing.T) {
	for _, fault := range []etcdtest.Fault{
		etcdtest.Delay("Txn", moment),
		etcdtest.DelayReply("Txn", moment),
		etcdtest.Delay("*", moment),
	} {
		t.Run(fault.String(), func(t *testing.T) {
			client, faults, _, _ := faulty(t)
			faults.Inject(fault)
			start := time.Now()
			require.NoError(t, put(bounded(t), client, "k"))
			require.GreaterOrEqual(t, time.Since(start), moment)
		})
	}
}

func TestALateRequestArrivesAfterItsCallFailed(t *testing.T) {
	client, faults, _, witness := faulty(t)
	late := faults.Inject(etcdtest.LateRequest("Txn", codes.Unavailable).Times(1))
	require.Equal(t, codes.Unavailable, code(put(bounded(t), client, "k")))
	require.False(t, exists(t, witness, "k"))
	late.Heal()
	require.True(t, exists(t, witness, "k"))
}

func TestFaultsPickTheirCalls(t *testing.T) {
	client, faults, _, _ := faulty(t)
	puts := faults.Inject(etcdtest.DropRequest("Txn", codes.Unavailable).When(etcdtest.Puts))
	_, err := client.Txn(bounded(t)).Then(clientv3.OpDelete("k")).Commit()
	require.NoError(t, err)
	_, err = client.Txn(bounded(t)).Then(clientv3.OpGet("k")).Else(clientv3.OpPut("k", "")).Commit()
	require.Equal(t, codes.Unavailable, code(err))
	require.Equal(t, 1, puts.Strikes())
	puts.Heal()

	faults.Inject(etcdtest.DropRequest("*", codes.Unavailable).When(etcdtest.Deletes))
	require.NoError(t, put(bounded(t), client, "k"))
	_, err = client.Delete(bounded(t), "k")
	require.Equal(t, codes.Unavailable, code(err))
}

func TestFaultsAtTheSameCallWorkInTurn(t *testing.T) {
	client, faults, _, witness := faulty(t)
	held := faults.Inject(etcdtest.HoldReply("Txn"))
	faults.Inject(etcdtest.DropReply("Txn", codes.Unavailable))
	pending := begin(func() error { return put(bounded(t), client, "k") })
	<-held.Struck()
	requirePending(t, pending)
	held.Heal()
	require.Equal(t, codes.Unavailable, code(result(t, pending)))
	require.True(t, exists(t, witness, "k"))
}

func TestAWatchEventIsSwallowedWithoutASign(t *testing.T) {
	client, faults, _, witness := faulty(t)
	watch := client.Watch(bounded(t), "k", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)
	swallowed := faults.Inject(etcdtest.SwallowReply("Watch").When(etcdtest.Events).Times(1))
	require.NoError(t, put(bounded(t), witness, "k"))
	swallowed.Await(1)
	require.NoError(t, put(bounded(t), witness, "k"))
	require.EqualValues(t, 2, (<-watch).Events[0].Kv.Version, "the first event was lost")
}

func TestABrokenWatchIsResumedByTheClientOrEnds(t *testing.T) {
	client, faults, counter, witness := faulty(t)
	watch := client.Watch(bounded(t), "k", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)

	broken := faults.Inject(etcdtest.DropReply("Watch",
		codes.Unavailable).When(etcdtest.Events).Times(1))
	require.NoError(t, put(bounded(t), witness, "k"))
	require.EqualValues(t, 1, (<-watch).Events[0].Kv.Version)
	broken.Await(1)
	require.Equal(t, 2, counter.Counts().Streams["Watch"])

	faults.Inject(etcdtest.DropReply("Watch", codes.PermissionDenied).When(etcdtest.Events).Times(1))
	require.NoError(t, put(bounded(t), witness, "k"))
	last := <-watch
	require.Equal(t, codes.PermissionDenied, code(last.Err()))
	_, open := <-watch
	require.False(t, open)
}

func TestFaultsStrikeSingleRenewals(t *testing.T) {
	client, faults, counter, _ := faulty(t)
	lease, err := client.Grant(bounded(t), 60)
	require.NoError(t, err)
	renew := func(ctx context.Context) error {
		_, err := client.KeepAliveOnce(ctx, lease.ID)
		return err
	}
	require.NoError(t, renew(bounded(t)))
	require.Equal(t, 1, counter.Counts().Of("LeaseKeepAlive"))

	faults.Inject(etcdtest.DropRequest("LeaseKeepAlive", codes.Unavailable).Times(1))
	require.NoError(t, renew(bounded(t)), "the client tries again")
	faults.Inject(etcdtest.DropReply("LeaseKeepAlive", codes.Unavailable).Times(1))
	require.NoError(t, renew(bounded(t)), "the client tries again")

	for _, fault := range []etcdtest.Fault{
		etcdtest.SwallowRequest("LeaseKeepAlive"),
		etcdtest.SwallowReply("LeaseKeepAlive"),
		etcdtest.HoldRequest("LeaseKeepAlive"),
		etcdtest.HoldReply("LeaseKeepAlive"),
	} {
		at := faults.Inject(fault)
		ctx, cancel := context.WithCancel(bounded(t))
		pending := begin(func() error { return renew(ctx) })
		<-at.Struck()
		requirePending(t, pending)
		cancel()
		require.Equal(t, codes.Canceled, code(result(t, pending)), "%v", fault)
		at.Heal()
		require.NoError(t, renew(bounded(t)), "%v", fault)
	}

	held := faults.Inject(etcdtest.HoldReply("LeaseKeepAlive"))
	pending := begin(func() error { return renew(bounded(t)) })
	<-held.Struck()
	requirePending(t, pending)
	held.Heal()
	require.NoError(t, result(t, pending))

	faults.Inject(etcdtest.DelayReply("LeaseKeepAlive", moment))
	start := time.Now()
	require.NoError(t, renew(bounded(t)))
	require.GreaterOrEqual(t, time.Since(start), moment)
}

func TestFaultsPrintThemselves(t *testing.T) {
	require.Equal(t, "DropReply(Txn, Unavailable).When(puts).Times(1)",
		etcdtest.DropReply("Txn", codes.Unavailable).When(etcdtest.Puts).Times(1).String())
	require.Equal(t, "Delay(LeaseKeepAlive, 2s)",
		etcdtest.Delay("LeaseKeepAlive", 2*time.Second).String())
	faults := etcdtest.NewFaults(t)
	require.Equal(t, "HoldReply(Watch) (struck 0 times)",
		faults.Inject(etcdtest.HoldReply("Watch")).String())
}

func TestAFaultOfAMethodThatEtcdDoesNotHaveIsAPanic(t *testing.T) {
	require.Panics(t, func() { etcdtest.HoldReply("Transaction") })
	require.Panics(t, func() { etcdtest.LateRequest("Watch", codes.Unavailable) })
	require.Panics(t, func() { etcdtest.HoldReply("Txn").Times(0) })
}

func TestACounterTellsWhatWasSent(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	faults, tried, sent := etcdtest.NewFaults(t), contract.NewCounter(), contract.NewCounter()
	client := cluster.Client(t, contract.With(tried, faults, sent))
	require.NoError(t, put(bounded(t), client, "k"))
	require.True(t, exists(t, client, "k"))
	before := tried.Counts()
	require.Equal(t, "Range 1, Txn 1", before.String())
	require.Equal(t, 2, before.Total())

	faults.Inject(etcdtest.DropRequest("Txn", codes.Unavailable))
	require.Error(t, put(bounded(t), client, "k"))
	watch := client.Watch(bounded(t), "k", clientv3.WithCreatedNotify())
	require.True(t, (<-watch).Created)
	since := tried.Since(before)
	require.Equal(t, "Txn 1, Watch 1", since.String())
	require.Equal(t, 1, since.Streams["Watch"])
	require.Equal(t, 1, sent.Counts().Of("Txn"))
	require.Equal(t, "none", tried.Since(tried.Counts()).String())
}
