package contract_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/contract"
	"github.com/etcdlock/etcdlock/internal/proof/etcdtest"
)

// A rule of the contract, and the tests that show it on one of etcd's own servers. They ask who
// holds, in what order, and at how many requests. They bound no time, so that they say the same
// on a machine that is busy. The root's tests ask for times and counts in virtual time, and
// internal/faults has more faults, and times on real clusters.
type rule struct {
	says  string
	tests []func(*testing.T)
	rows  []string // of the contract's table
	proof []string // rows of internal/faults, which asks etcd's own servers, too
}

var rules = map[int]rule{
	1: {
		says:  "a hold's context ends before etcd can give the name to another because of an expiry",
		tests: []func(*testing.T){TestAHolderBehindABlackHoleKnowsBeforeTheNextOwnerGetsIn},
	},
	2: {
		says:  "after a pause of the process the first look tells the truth",
		tests: []func(*testing.T){TestAProcessThatWasStoppedKnowsAtItsFirstLook},
	},
	3: {
		says:  "tokens grow with each hold, and IsOwner guards a transaction",
		tests: []func(*testing.T){TestIsOwnerWithoutAHoldIsFalse},
		rows:  []string{"TestGoroutinesExcludeEachOtherAsProcessesDo"},
	},
	4: {
		says: "goroutines exclude each other as processes do; a Session has one key per name",
		rows: []string{
			"TestGoroutinesExcludeEachOtherAsProcessesDo",
			"TestReleaseAndNextPlaceInASessionAreOneTransaction",
		},
	},
	5: {
		says: "a holder whose key or lease is taken away learns of it",
		tests: []func(*testing.T){
			TestALostKeyIsNoticedWhateverTheTTL, TestAHoldWhoseKeyWasPutOverIsLost,
			TestLossesAreNoticedWhereEtcdTakesFewOperations,
		},
	},
	6: {
		says: "Unlock releases its own hold only, and says nil only if that was whole",
		tests: []func(*testing.T){
			TestUnlockAfterLossLeavesTheNewHolderAlone, TestALateReleaseTouchesNoLaterHold,
		},
	},
	7: {
		says:  "Unlock works with a context that is done, and says ErrUnconfirmed if etcd is silent",
		tests: []func(*testing.T){TestTheErrorsOfAReleaseThatIsNotConfirmed},
		rows:  []string{"TestUnlockWorksWithAnEndedContext"},
	},
	8: {
		says: "errors tell apart who holds, whose context ended, an etcd that is away, and a refusal",
		tests: []func(*testing.T){
			TestAWaitThatEndsTellsWhatItWaitedFor, TestAWaitForEtcdTellsTheCauseAndEtcdsLastError,
			TestARefusalIsEtcdsOwnError,
		},
	},
	9: {
		says: "no key outlives a failed call, and no late request leaves one",
		tests: []func(*testing.T){
			TestAnAnswerLostAfterTheCommitBlocksNobody, TestALateRequestLeavesNoGhost,
			TestAReleaseThatQueuesTheNextOneMayGetLost,
		},
	},
	10: {
		says:  "every call returns when its context ends",
		tests: []func(*testing.T){TestEveryCallReturnsWhenItsContextEnds},
	},
	11: {
		says:  "a crash frees the lock when the lease ends",
		tests: []func(*testing.T){TestAProcessThatDiedBlocksNobody},
	},
	12: {
		says: "a waiter gets in when its turn comes, and never without its own key",
		tests: []func(*testing.T){
			TestAWaiterWhoseKeyIsTakenQueuesAnew, TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt,
			TestAWaiterThatIsFirstWithoutAKeyDoesNotEnter,
		},
	},
	13: {
		says:  "a dead endpoint loses no lease, and a lease that is gone is replaced",
		tests: []func(*testing.T){TestASilentEndpointOfTwoLosesNoLease, TestALeaseThatIsGoneIsReplaced},
	},
	14: {
		says:  "names are independent, and stray keys block nobody",
		tests: []func(*testing.T){TestContendersAreInTheOrderOfTheLine},
		proof: []string{"S28"},
	},
	15: {
		says: "etcd's own locks stand in the same line",
		tests: []func(*testing.T){
			TestEtcdsOwnTryLockIsRefusedWhileThisOneHolds, TestAMixedLineIsServedFirstComeFirstServed,
			TestTheServiceStandsInTheSameLine,
		},
		proof: []string{"S28"},
	},
	16: {
		says:  "a role on the prefix is enough, and what it forbids is refused at once",
		tests: []func(*testing.T){TestARoleOnThePrefixIsEnough},
		proof: []string{"S24"},
	},
	17: {
		says:  "the value of a key is JSON for people",
		tests: []func(*testing.T){TestTheStoredValueIsJSONForPeople},
	},
	18: {
		says: "an uncontended Lock is one request and one revision, and starts no goroutine",
		rows: []string{
			"TestUncontendedLockAndUnlockAreOneRequestAndOneRevisionEach",
			"TestThreeGoroutinesRunBesideAnyNumberOfHolds",
			"TestReleaseAndNextPlaceInASessionAreOneTransaction",
		},
	},
	19: {
		says: "TryLock of a taken name writes nothing",
		rows: []string{"TestTryLockOfATakenNameWritesNothing"},
	},
	20: {
		says: "a hand-over costs the release, the event and at most one read",
		rows: []string{"TestAHandOverCostsAtMostOneReadAndNoneInAShortLine"},
	},
	21: {
		says: "any number of names is one lease, and no goroutine each",
		rows: []string{"TestTenThousandNamesAreOneLeaseAndNoGoroutineEach"},
	},
	22: {
		says:  "what Lock starts ends with Close, or by itself",
		tests: []func(*testing.T){TestAForgottenMutexGivesItsLeaseBack},
		rows:  []string{"TestTheHoldsContextSaysWhyItEnded", "TestCloseOfAHeldMutexLetsTheNextOneIn"},
	},
	23: {
		says:  "all methods may be called at the same time",
		tests: []func(*testing.T){TestSharedKeysExclude},
		rows:  []string{"TestGoroutinesExcludeEachOtherAsProcessesDo"},
	},
	24: {
		says:  "an idle hold costs etcd its renewals",
		tests: []func(*testing.T){TestAnIdleHoldCostsItsRenewals},
	},
	25: {
		says:  "what is repeated is shared",
		tests: []func(*testing.T){TestManyWaitersShareTheAttemptsToGetALease},
	},
	26: {
		says:  "where etcd is set back, no two hold, and the lock goes on",
		tests: []func(*testing.T){TestAMoveToAnotherClusterEndsTheHold},
	},
}

func TestEachRuleIsShownOnAnEtcdServer(t *testing.T) {
	t.Parallel()
	require.Len(t, rules, 26)
	var faults []byte
	files, err := filepath.Glob("../../faults/*_test.go")
	require.NoError(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		faults = append(faults, source...)
	}
	for _, n := range slices.Sorted(maps.Keys(rules)) {
		require.True(t, 1 <= n && n <= 26, "rule %d", n)
		require.NotEmpty(t, rules[n].says)
		require.NotZero(t, len(rules[n].tests)+len(rules[n].rows), "rule %d", n)
		require.Subset(t, contract.Rows(), rules[n].rows, "rule %d", n)
		for _, row := range rules[n].proof {
			require.Contains(t, string(faults), `id: "`+row+`"`, "rule %d", n)
		}
	}
}

// A build beside the tests makes them slower, and must not make them red.
func TestWhatIsNotTimedBoundsNoTime(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	checked := 0
	for _, file := range files {
		source, err := os.ReadFile(file)
		require.NoError(t, err)
		if bytes.HasPrefix(source, []byte("//go:build timed\n")) || file == "bench_test.go" {
			continue
		}
		checked++
		require.NotRegexp(t, `time\.(Since|Until)\(`, string(source), file)
	}
	require.Positive(t, checked)
}

// Rule 13, first half: the endpoint by which the renewals go falls silent.
//
//	a holds by one of two endpoints | that one falls silent | the lease is renewed by the other
func TestASilentEndpointOfTwoLosesNoLease(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	atOnce(t, 2, func(i int) string {
		return []string{"the first", "the second"}[i]
	}, func(t *testing.T, i int) {
		c := w.contest(t, t.Name())
		proxies := []*etcdtest.Proxy{w.cluster.Proxy(t, 0), w.cluster.Proxy(t, 0)}
		renewed := make(chan struct{}, 1000)
		// The renewal is due after 10 s, and comes in time within 26.
		a := c.partyWith("a", 30*time.Second, []etcdlock.SessionOption{etcdlock.WithTrace(&etcdlock.Trace{
			LeaseRenewed: func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { renewed <- struct{}{} },
		})}, etcdtest.Via(proxies...))
		a.mends(proxies[i].Heal)
		a.locks()
		proxies[i].BlackHole()
		receive(t, renewed, "a renewal")
		a.stillHolds()
		a.unlocks()
	})
}

// Rule 13, second half.
//
//	a's lease is revoked | a locks
func TestALeaseThatIsGoneIsReplaced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	c := w.contest(t, "replaced")
	a := c.party("a", longTTL)
	a.locks()
	a.unlocks()
	gone := a.s.Lease()
	_, err := w.admin.Revoke(bounded(t), gone)
	require.NoError(t, err)
	a.locks()
	a.stillHolds()
	require.NotEqual(t, gone, a.s.Lease())
	a.unlocks()
}

// Rule 24. Until its first renewal, and with that, an idle hold costs etcd no revision and no
// request but renewals, audits, and the watch and the read of its key.
func TestAnIdleHoldCostsItsRenewals(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	counter, renewed := contract.NewCounter(), make(chan struct{}, 1000)
	mu := contract.NewMutex(t, w.cluster.Client(t, contract.With(counter)), "idle",
		etcdlock.WithTTL(30*time.Second), etcdlock.WithTrace(&etcdlock.Trace{
			LeaseRenewed: func(_ context.Context, _ etcdlock.LeaseRenewedEvent) { renewed <- struct{}{} },
		}))
	require.NoError(t, mu.Lock(bounded(t)))
	before, revision := counter.Counts(), w.cluster.Revision(t)
	receive(t, renewed, "a renewal")
	cost := counter.Since(before)
	require.Equal(t, revision, w.cluster.Revision(t))
	require.Positive(t, cost.Of("LeaseKeepAlive"))
	require.LessOrEqual(t, cost.Of("LeaseTimeToLive"), cost.Of("LeaseKeepAlive"), "%v", cost)
	// One each, and as many again where etcd was slow to answer.
	require.LessOrEqual(t, cost.Total()-cost.Of("LeaseKeepAlive")-cost.Of("LeaseTimeToLive"),
		4, "%v", cost)
	require.NoError(t, mu.Unlock(bounded(t)))
}

// Rule 26: the client is moved to another cluster, which knows nothing of the hold.
//
//	a holds | a's client is moved | a knows | a and b lock there in turn
func TestAMoveToAnotherClusterEndsTheHold(t *testing.T) {
	t.Parallel()
	old, w := etcdtest.Start(t, 1), newWorld(t, 1)
	c := w.contest(t, "moved")
	b := c.party("b", longTTL)
	client := old.Client(t)
	told := make(chan struct{}, 1000)
	s := contract.NewSession(t, client, etcdlock.WithTTL(6*time.Second), etcdlock.WithOwner("a"),
		etcdlock.WithTrace(&etcdlock.Trace{SetBack: func(_ context.Context, _ etcdlock.SetBackEvent) {
			told <- struct{}{}
		}}))
	mu := contract.MutexOf(t, s, "moved")
	require.NoError(t, mu.Lock(bounded(t)))
	hold := mu.Context(context.Background())
	client.SetEndpoints("http://" + w.cluster.Endpoint(0))
	receive(t, hold.Done(), "the loss")
	require.ErrorIs(t, context.Cause(hold), etcdlock.ErrLost)
	require.ErrorIs(t, mu.Unlock(bounded(t)), etcdlock.ErrLost)
	receive(t, told, "the report")

	b.locks()
	require.ErrorIs(t, mu.TryLock(bounded(t)), etcdlock.ErrLocked)
	in := contract.Async(func() error { return mu.Lock(bounded(t)) })
	c.is("b", "a")
	b.unlocks()
	require.NoError(t, receive(t, in, "the lock"))
	require.NoError(t, mu.Close(bounded(t)))
}
