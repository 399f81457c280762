package etcd

import (
	"context"
	"fmt"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// A rush is many transactions at once, each of another lock. An answer takes a millisecond.
type rush struct {
	*fake.Server
	*Conn
	told    *told
	running sync.WaitGroup
	done    []Outcome
	lease   func(i int) clientv3.LeaseID
	ctx     func(i int) context.Context
	name    func(i int) string
}

func newRush(t *testing.T) *rush {
	r := &rush{Server: fake.NewServer()}
	r.Delay("a", time.Millisecond)
	r.Conn, r.told = conn(t, r.Client("a"))
	r.lease = func(int) clientv3.LeaseID { return 0 }
	r.ctx = func(int) context.Context { return t.Context() }
	r.name = func(i int) string { return fmt.Sprint("lock", i) }
	return r
}

// puts is the i-th transaction: it puts a key if that is absent.
func (r *rush) puts(i int) ticket.Txn {
	key := line.Prefix(r.name(i)) + fmt.Sprint(i)
	return txnOf(r.name(i), sent.Txn(
		[]clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(key), "=", 0)},
		[]clientv3.Op{
			clientv3.OpGet("other"), clientv3.OpPut(key, "", clientv3.WithLease(r.lease(i))),
		},
		[]clientv3.Op{clientv3.OpGet(key)},
	))
}

// txnOf is the transaction of the lock name that is sent as t.
func txnOf(name string, t *pb.TxnRequest) ticket.Txn {
	return ticket.Txn{Name: name, If: t.Compare, Then: t.Success, Else: t.Failure}
}

// begin begins transactions up to n. The ones before have begun before.
func (r *rush) begin(n int) {
	for i := len(r.done); i < n; i++ {
		r.done = append(r.done, Outcome{})
	}
	for i := range n {
		if r.done[i].Epoch != nil || r.done[i].Prompt {
			continue
		}
		r.done[i].Prompt = true // it has begun
		r.running.Go(func() {
			r.done[i] = r.Commit(r.ctx(i), &attempt.Backoff{Policy: attempt.Urgent}, r.puts(i))
		})
		synctest.Wait()
	}
}

// combines returns what the combiner knows: how many are under way, how many parts etcd takes, and
// how many wait.
func (r *rush) combines() (under, most, waiting int) {
	r.combiner.mu.Lock()
	defer r.combiner.mu.Unlock()
	if r.combiner.waiting != nil {
		waiting = len(r.combiner.waiting.parts)
	}
	return r.combiner.under, r.combiner.most, waiting
}

// restart has the combiner know nothing of the answers so far. It sends two at once then.
func (r *rush) restart() {
	synctest.Wait()
	r.combiner.pace = pace{few: fewUnderWay}
}

// idle requires that nothing is under way or waits.
func (r *rush) idle(t *testing.T) {
	t.Helper()
	synctest.Wait()
	under, _, waiting := r.combines()
	require.Zero(t, under)
	require.Zero(t, waiting)
}

// takes requires that the combiner knows that etcd takes so many parts, and what it has told.
func (r *rush) takes(t *testing.T, parts, uncombined int) {
	t.Helper()
	synctest.Wait()
	_, most, _ := r.combines()
	require.Equal(t, []int{parts, uncombined}, []int{most, r.told.uncombined})
}

// nested is how many transactions each request so far has carried.
func (r *rush) nested() (n []int) {
	for _, c := range r.Calls(fake.Txn) {
		n = append(n, c.Nested)
	}
	return n
}

func TestTransactionsThatMeetGoAsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.begin(2 + mostParts/2)
		require.Equal(t, []int{0, 0}, r.nested(), "few go at once, as they are")
		began := time.Now()
		r.running.Wait()
		require.Equal(t, []int{0, 0, mostParts / 2}, r.nested(), "the others with the next answer")
		require.Equal(t, 2*time.Millisecond, time.Since(began))
		require.EqualValues(t, 1+3, r.Rev(), "each request has one revision")
		for i, done := range r.done {
			require.NoError(t, done.Err)
			require.True(t, done.Answer.Succeeded && done.Prompt, i)
			require.False(t, done.Answer.Copies || done.Answer.Empty, i)
			require.Equal(t, ticket.Answered, done.Answer.Outcome)
			if i < 2 { // these two come in any order
				require.Contains(t, []int64{2, 3}, done.Answer.Revision)
			} else {
				require.EqualValues(t, 4, done.Answer.Revision, "all parts have one revision")
			}
			require.Len(t, done.Answer.Read, 1, "of its own branch")
		}
		r.idle(t)
		r.takes(t, mostParts, 0)
	})
}

// loops has n callers make transactions, one after another, until each has made that many. Between
// two, each waits as pause says.
func (r *rush) loops(n, each int, pause func(caller int)) {
	first := len(r.done)
	r.done = slices.Grow(r.done, n*each)[:first+n*each]
	for caller := range n {
		r.running.Go(func() {
			for k := range each {
				i := first + caller*each + k
				r.done[i] = r.Commit(r.ctx(i), &attempt.Backoff{Policy: attempt.Urgent}, r.puts(i))
				pause(caller)
			}
		})
	}
	r.running.Wait()
}

// Callers that come back as soon as they are answered go in one transaction each time, although the
// first of them comes to a client that has nothing under way.
func TestCallersThatComeBackGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		const callers, each = 8, 20
		r.loops(callers, each, func(int) {})
		n := r.nested()
		require.Less(t, len(n), each+5, "%v", n)
		for _, parts := range n[4 : each-4] {
			require.Equal(t, callers, parts, "%v", n)
		}
		for i, done := range r.done {
			require.True(t, done.Err == nil && done.Answer.Succeeded, i)
		}
		r.idle(t)
	})
}

// Callers that work before they come back keep nobody waiting who does not.
func TestCallersThatWorkAreNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		began := time.Now()
		const each = 50
		var took time.Duration
		r.loops(4, each, func(caller int) {
			if caller > 0 {
				time.Sleep(10 * time.Millisecond)
			} else {
				took = time.Since(began)
			}
		})
		// Its own answers take 50 ms. It meets each of the others' some 5 times in that time, and
		// waits then for at most an answer, and for those who do not come back.
		require.Less(t, took, each*(2*time.Millisecond)+15*mostPatience)
		r.idle(t)
	})
}

// A caller that always came back stays away: those that wait go without it before long.
func TestACombinerThatGathersWaitsForNobodyForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		const callers = 4
		times := make([][]time.Time, callers)
		r.loops(callers, 20, func(caller int) {
			times[caller] = append(times[caller], time.Now())
			if caller == 0 && len(times[0]) == 10 {
				time.Sleep(time.Hour)
			}
		})
		for caller := 1; caller < callers; caller++ {
			at := times[caller]
			for k := 1; k < len(at); k++ {
				require.LessOrEqual(t, at[k].Sub(at[k-1]), 2*time.Millisecond+mostPatience)
			}
			require.LessOrEqual(t, at[19].Sub(at[9]), 10*time.Millisecond+2*mostPatience,
				"it is expected no more")
		}
		r.idle(t)
	})
}

// On a busy processor the timer's function runs before the timer is assigned, let alone stopped.
func TestATimerThatRunsOutAtOnceSendsNothing(t *testing.T) {
	b := &combiner{mu: &sync.Mutex{}, most: mostParts}
	require.NotPanics(t, b.sendLate)
	require.Zero(t, b.under)
}

// Half of what may be combined does not wait for the only answer that is due.
func TestManyPartsDoNotWaitForOneAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.begin(1)
		r.running.Wait()
		r.begin(2 + manyParts - 1)
		require.Equal(t, []int{0, 0}, r.nested(), "one is under way")
		r.begin(2 + manyParts)
		synctest.Wait()
		require.Equal(t, []int{0, 0, manyParts}, r.nested())
		r.running.Wait()
		r.idle(t)
	})
}

// Each part has its own comparisons, and the ranges of its own branch.
func TestAPartIsJudgedByItsOwnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		key := func(i int) string { return line.Prefix(r.name(i)) + fmt.Sprint(i) }
		for _, i := range []int{3, 5} {
			require.NoError(t, r.PutKey(key(i), 0))
		}
		r.begin(8)
		r.running.Wait()
		require.Equal(t, []int{0, 0, 6}, r.nested())
		for i, done := range r.done {
			there := i == 3 || i == 5
			require.Equal(t, !there, done.Answer.Succeeded, i)
			require.Len(t, done.Answer.Read, 1)
			if there {
				require.Equal(t, key(i), string(done.Answer.Read[0].Kvs[0].Key))
			} else {
				require.Empty(t, done.Answer.Read[0].Kvs)
			}
		}
	})
}

// A combined transaction that is full waits for nothing, and what waits for an answer that stays
// out does not wait for long.
func TestNothingWaitsForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.Delay("a", time.Second)
		r.begin(2 + mostParts)
		require.Equal(t, []int{0, 0, mostParts}, r.nested())
		r.begin(2 + mostParts + 2)
		time.Sleep(longestWait - 1)
		require.Len(t, r.nested(), 3)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		require.Equal(t, []int{0, 0, mostParts, 2}, r.nested())
		r.running.Wait()
		r.idle(t)
	})
}

// One that meets another of its own lock goes alone, and so does one of several locks, and one with
// metadata of its own.
func TestNoTwoPartsAreOfOneLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.name = func(i int) string { return [...]string{"a", "b", "c", "c", "", "e", "f"}[i] }
		r.ctx = func(i int) context.Context {
			if i == 5 {
				return metadata.AppendToOutgoingContext(t.Context(), "k", "v")
			}
			return t.Context()
		}
		r.begin(7)
		require.Equal(t, []int{0, 0, 0, 0, 0}, r.nested())
		r.running.Wait()
		require.Equal(t, []int{0, 0, 0, 0, 0, 2}, r.nested())
		first, second := r.done[2].Answer.Revision, r.done[3].Answer.Revision
		require.NotEqual(t, first, second, "each has its own place in the order of the line")
	})
}

// Removals of one lock go together: its permits have a key each. Each deletes its very key alone.
func TestRemovalsOfOneLockGoTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		client := r.Client("other")
		read := make([]line.Entry, 12)
		for i := range read {
			key := line.Key("n", uuid.New())
			put, err := client.Put(t.Context(), key, "")
			require.NoError(t, err)
			read[i] = line.Entry{Key: key, Rev: put.Header.Revision}
		}
		const another = 7 // of that name there is another key by now
		_, err := client.Delete(t.Context(), read[another].Key)
		require.NoError(t, err)
		_, err = client.Put(t.Context(), read[another].Key, "")
		require.NoError(t, err)

		before := len(r.nested())
		for i, e := range read {
			r.running.Go(func() {
				deletion := func() ticket.Txn { return ticket.Deletion(e) }
				done := r.Remove(t.Context(), nil, deletion, func(error) {})
				require.NoError(t, done.Err)
				require.Equal(t, i != another, done.Answer.Succeeded)
			})
			synctest.Wait()
		}
		r.running.Wait()
		require.Equal(t, []int{0, 0, len(read) - 2}, r.nested()[before:])
		require.Equal(t, []string{read[another].Key}, r.Keys("n/"))
	})
}

// The transactions of a user are never combined.
func TestTheTransactionsOfAUserGoAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := fake.NewServer().Client("a")
		named.Username = "u"
		require.Equal(t, 1, combinerOf(named).most)

		known := fake.NewServer().Client("a")
		token := reflect.ValueOf(known).Elem().FieldByName("Token")
		if !token.IsValid() {
			t.Skip("clientv3 has no tokens before 3.7")
		}
		token.SetString("jwt")
		require.Equal(t, 1, combinerOf(known).most)
	})
}

func TestOnlyTheGuiltyPartFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.lease = func(i int) clientv3.LeaseID {
			if i == 4 {
				return 77 // etcd does not know it
			}
			return 0
		}
		r.begin(8)
		r.running.Wait()
		require.Equal(t, []int{0, 0, 6, 0, 0, 0, 0, 0, 0}, r.nested(), "refused whole, then each alone")
		for i, done := range r.done {
			if i == 4 {
				require.ErrorIs(t, done.Err, rpctypes.ErrLeaseNotFound)
				require.Equal(t, ticket.NotApplied, done.Answer.Outcome)
			} else {
				require.NoError(t, done.Err)
				require.True(t, done.Answer.Succeeded && !done.Answer.Copies)
			}
		}
		r.takes(t, mostParts, 0)
	})
}

// Without space etcd refuses each transaction that may put a key, and carries out the others. A
// release succeeds at once, whatever it meets.
func TestWithoutSpaceAReleaseFailsWithNoPut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		full := func(c fake.Call) (e fake.Effect) {
			if len(c.Puts) > 0 {
				e.Delay, e.Before = time.Millisecond, rpctypes.ErrGRPCNoSpace
			}
			return e
		}
		r.Intercept(full)
		r.begin(5)
		release := txnOf("held", sent.Txn(nil, []clientv3.Op{clientv3.OpDelete("held/1")}, nil))
		done := r.Commit(t.Context(), &attempt.Backoff{Policy: attempt.Urgent}, release)
		require.NoError(t, done.Err)
		require.True(t, done.Answer.Copies, "the first refusal comes after it was carried out")
		r.running.Wait()
		require.Equal(t, 4, slices.Max(r.nested()))
		for _, done := range r.done {
			require.ErrorIs(t, done.Err, rpctypes.ErrNoSpace)
		}
		r.takes(t, mostParts, 0)
	})
}

// Something before etcd answers combined transactions with an error that does not say whether they
// were carried out, now and then or each time. The parts get in, as copies.
func TestAnAnswerThatDecidesNothingHoldsUpNoPart(t *testing.T) {
	for name, effect := range map[string]fake.Effect{
		"not carried out": {Before: status.Error(codes.ResourceExhausted, "the message is too long")},
		"carried out":     {After: status.Error(codes.Internal, "the stream has ended")},
		"another answer": {Edit: func(reply any) {
			reply.(*pb.TxnResponse).Responses = nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRush(t)
				r.Intercept(func(c fake.Call) (e fake.Effect) {
					if c.Nested > 0 {
						return effect
					}
					return e
				})
				r.begin(6)
				r.running.Wait()
				require.Equal(t, []int{0, 0, 4, 0, 0, 0, 0}, r.nested())
				for i, done := range r.done {
					require.NoError(t, done.Err)
					require.Equal(t, i < 2 || effect.Before != nil, done.Answer.Succeeded)
					require.Equal(t, i >= 2, done.Answer.Copies, i)
				}
				r.takes(t, mostParts, 0) // later it may be better
			})
		})
	}
}

// An etcd, or what stands before it, takes no nested transactions.
func TestAnEtcdThatTakesNoPartsIsTriedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Nested > 0 {
				e.Before = status.Error(codes.InvalidArgument, "no nested transactions")
			}
			return e
		})
		r.begin(6)
		r.running.Wait()
		require.Equal(t, []int{0, 0, 4, 0, 0, 0, 0}, r.nested())
		r.takes(t, 1, 1)
		r.begin(12)
		r.running.Wait()
		require.Len(t, r.nested(), 13, "each alone")
		for _, done := range r.done {
			require.NoError(t, done.Err)
		}
	})
}

// etcd takes few operations in one transaction.
func TestAnEtcdThatTakesFewPartsGetsFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.MaxTxnOps(6)
		r.begin(2 + 10)
		r.running.Wait()
		r.takes(t, 5, 0)
		r.begin(12 + 2 + 10)
		r.running.Wait()
		r.takes(t, 2, 0) // with the operations of a part
		r.restart()
		r.begin(24 + 2 + 4)
		r.running.Wait()
		n := r.nested()
		require.Equal(t, []int{0, 0, 2, 2}, n[len(n)-4:])
		r.takes(t, 2, 0)
		for _, done := range r.done {
			require.NoError(t, done.Err)
		}
		r.MaxTxnOps(3)
		r.begin(30 + 2 + 2)
		r.running.Wait()
		r.takes(t, 1, 1) // it takes no parts at all, which is said once
	})
}

// What stands before etcd takes smaller requests than etcd does.
func TestACombinedTransactionThatIsTooLargeIsHalved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Nested > 7 {
				e.Before = rpctypes.ErrGRPCRequestTooLarge
			}
			return e
		})
		r.begin(2 + 10)
		r.running.Wait()
		r.takes(t, 5, 0)
		for _, done := range r.done {
			require.NoError(t, done.Err)
			require.False(t, done.Answer.Copies)
		}
	})
}

func TestAPartThatLeavesTakesNobodyAlong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		impatient, leave := context.WithCancel(t.Context())
		r.ctx = func(i int) context.Context {
			if i == 2 || i == 3 { // the one that was first to wait is among them
				return impatient
			}
			return t.Context()
		}
		waiting, cancel := context.WithCancel(t.Context())
		r.begin(5)
		time.Sleep(time.Millisecond) // the two that went at once are answered
		synctest.Wait()
		require.Equal(t, []int{0, 0, 3}, r.nested())
		leave()
		synctest.Wait()
		for _, i := range []int{2, 3} {
			require.ErrorIs(t, r.done[i].Err, context.Canceled)
			require.Equal(t, ticket.Unknown, r.done[i].Answer.Outcome, "it may yet be carried out")
		}
		r.running.Wait()
		require.NoError(t, r.done[4].Err)

		// Nobody waits any more.
		r.ctx = func(int) context.Context { return waiting }
		r.Intercept(func(fake.Call) fake.Effect { return fake.Effect{DropReply: true} })
		r.begin(5 + 2 + 3)
		time.Sleep(longestWait)
		synctest.Wait()
		cancel()
		r.running.Wait()
		r.idle(t) // the request has ended, too
	})
}

// A part whose caller leaves before it was sent is not sent.
func TestAPartThatLeavesInTimeIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		impatient, leave := context.WithCancel(t.Context())
		r.ctx = func(i int) context.Context {
			if i >= 3 {
				return impatient
			}
			return t.Context()
		}
		r.begin(5)
		leave()
		r.running.Wait()
		require.Equal(t, []int{0, 0, 0}, r.nested())
		require.Zero(t, len(r.Keys(line.Prefix(r.name(3))))+len(r.Keys(line.Prefix(r.name(4)))))

		// It is under way, and its goroutine has not begun yet.
		r.ctx = func(i int) context.Context {
			if i == 8 {
				return impatient
			}
			return t.Context()
		}
		impatient, leave = context.WithCancel(t.Context())
		r.restart()
		r.begin(9)
		r.combiner.mu.Lock()
		of := r.combiner.takeLocked()
		r.combiner.mu.Unlock()
		leave()
		synctest.Wait()
		r.combiner.carry(of)
		r.running.Wait()
		require.Equal(t, []int{0, 0, 0, 0, 0, 0}, r.nested())
		require.NotEmpty(t, r.Keys(line.Prefix(r.name(7))))
		require.Empty(t, r.Keys(line.Prefix(r.name(8))))
		require.ErrorIs(t, r.done[8].Err, context.Canceled)

		// All have left.
		r.ctx = func(i int) context.Context {
			if i >= 11 {
				return impatient
			}
			return t.Context()
		}
		r.begin(13)
		r.running.Wait()
		require.Len(t, r.nested(), 8)
		r.idle(t)
	})
}

// A combined transaction whose answer is lost leaves each part in doubt, and each is repeated for
// itself.
func TestALostAnswerLeavesAllPartsInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.Intercept(func(c fake.Call) (e fake.Effect) {
			if c.Nested > 0 {
				e.After = fake.Unavailable
			}
			return e
		})
		r.begin(6)
		r.running.Wait()
		for i, done := range r.done {
			require.Equal(t, i >= 2, done.Err != nil)
			require.Equal(t, i >= 2, done.Answer.Outcome == ticket.Unknown)
		}
		require.EqualValues(t, 1+3, r.Rev(), "they were carried out")
	})
}

// clientv3 repeats a request after an answer of DeadlineExceeded by itself. Each part then may have
// been carried out twice, also if it was sent alone in the end.
func TestARepeatedCombinationMakesCopiesOfAllParts(t *testing.T) {
	for name, then := range map[string]error{
		"answered": nil, "refused": rpctypes.ErrGRPCLeaseNotFound,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRush(t)
				combined := 0
				r.Intercept(func(c fake.Call) (e fake.Effect) {
					if c.Nested == 0 {
						return e
					}
					if combined++; combined == 1 {
						e.Before = status.Error(codes.DeadlineExceeded, "")
					} else {
						e.Before = then
					}
					return e
				})
				r.begin(6)
				r.running.Wait()
				for i, done := range r.done {
					require.NoError(t, done.Err)
					require.Equal(t, i >= 2, done.Answer.Copies, i)
				}
			})
		})
	}
}

// A set-back shows in the answer to a part, too: one that was sent when more was known.
func TestACombinedAnswerFromBeforeItsRequestEndsTheEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRush(t)
		r.begin(2 + 3)
		restore := r.Save()
		r.running.Wait()
		require.Empty(t, r.told.setBack)
		restore(1)
		r.begin(5 + 2 + 3)
		r.running.Wait()
		require.Len(t, r.told.setBack, 1)
	})
}

func TestAClientIsForgottenWithItsSessions(t *testing.T) {
	used := func() weak.Pointer[clientv3.Client] {
		client := fake.NewServer().Client("a")
		c, _ := conn(t, client)
		var puts sync.WaitGroup
		for i := range 8 {
			puts.Go(func() {
				put := sent.Txn(nil, []clientv3.Op{clientv3.OpPut(fmt.Sprint(i), "")}, nil)
				c.Commit(t.Context(), &attempt.Backoff{}, txnOf(fmt.Sprint(i), put))
			})
		}
		puts.Wait()
		return weak.Make(client)
	}()
	require.Eventually(t, func() bool {
		runtime.GC()
		return used.Value() == nil
	}, time.Minute, 10*time.Millisecond)
}

// etcd takes requests of 1.5 MiB by default. The largest names and values stay below it.
func TestTheLargestPartsFit(t *testing.T) {
	name := make([]byte, 1024)
	var all pb.TxnRequest
	for range mostParts {
		key := string(name) + "/" + string(make([]byte, 40))
		op := clientv3.OpPut(key, string(make([]byte, 13<<10)))
		part := &pb.TxnRequest{}
		for range 3 {
			part.Compare = append(part.Compare, &pb.Compare{Key: op.KeyBytes()})
			part.Success = append(part.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{
				RequestRange: &pb.RangeRequest{Key: op.KeyBytes(), RangeEnd: op.KeyBytes()}}})
		}
		part.Success = append(part.Success, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
			RequestPut: &pb.PutRequest{Key: op.KeyBytes(), Value: op.ValueBytes()}}})
		all.Success = append(all.Success, &pb.RequestOp{
			Request: &pb.RequestOp_RequestTxn{RequestTxn: part},
		})
	}
	require.Less(t, sizeOf(&all), 3<<19)
}

// sizeOf is how many bytes a message has on the wire. Before clientv3 3.7 it says so itself.
func sizeOf(message any) int {
	if m, ok := message.(interface{ Size() int }); ok {
		return m.Size()
	}
	return proto.Size(message.(proto.Message))
}
