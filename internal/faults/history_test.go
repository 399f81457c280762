package faults

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/side"
)

// A hold is what a client has reported about one hold, from Lock to its end.
//
// A frozen client cannot say when it stops believing that it holds the lock. Meanwhile it
// does nothing that the lock would have to protect. What counts, for both sides alike, is
// the work: before each unit of it the client asks its lock, and it believes for as long as
// the answer is yes. So a hold ends with the last yes.
type hold struct {
	client  int
	token   int64
	ask                   // in the histories of the family: what the client asked for
	entered look          // the call of Lock or TryLock
	last    look          // the last yes before any no; none if asked is 0
	lost    time.Duration // when the lock first said no, or Unlock said that it was lost
	revived []look        // each yes after that
	release look          // the call of Unlock, if that said nil
}

// A look is a call that tells the truth about some moment between its begin and its end.
// These may be far apart: a process may be frozen in the midst of a call.
type look struct{ asked, told time.Duration }

// holds returns the holds that a client reports. If it reports no end, the client was
// killed, or it hangs, or its Unlock has an unknown outcome.
func holds(client int, said []event) (all []*hold) {
	var h *hold
	for _, e := range said {
		at := look{cmp.Or(e.Since, e.At), e.At}
		switch {
		case e.What == "locked":
			h = &hold{client: client, token: e.Token, entered: at}
			all = append(all, h)
		case h == nil: // no longer about a hold
		case e.What == "looked" && h.lost == 0:
			h.last = at
		case e.What == "looked":
			h.revived = append(h.revived, at)
		case e.What == "ended" && h.lost == 0:
			h.lost = e.At
		case e.What == "unlocked":
			if e.Err == "" {
				h.release = at
			} else if e.Lost && h.lost == 0 {
				h.lost = e.At
			}
			h = nil
		}
	}
	return all
}

// worked returns when the client began and stopped working, and false if it never worked.
// The last yes was true when the client asked, or later.
func (h *hold) worked() (from, until time.Duration, ok bool) {
	last := h.last
	if n := len(h.revived); n > 0 {
		last = h.revived[n-1]
	}
	return h.entered.told, last.asked, last.asked != 0
}

// believed records the beliefs of the clients that worked.
func (tr *trial) believed(all []*hold) {
	for _, h := range all {
		if from, until, ok := h.worked(); ok {
			belief := tr.begins(fmt.Sprint("client ", h.client), h.token, from)
			tr.ends(belief, until, h.lost != 0)
		}
	}
}

// operations are what porcupine judges of h: that it began, that it lasted at the last yes
// (and so at each yes before, since a token comes once), and how it ended. A release lies
// within the call of Unlock that confirmed it. An end that was not confirmed lies anywhere
// after the client asked for the last yes, but before it learned of a loss. After that
// nothing belongs to the hold any more.
func (h *hold) operations() []porcupine.Operation {
	op := func(v verb, from, until time.Duration) porcupine.Operation {
		return porcupine.Operation{ClientId: h.client, Input: step{v, h.client, h.token, h.ask},
			Call: int64(from), Return: int64(until)}
	}
	ops := []porcupine.Operation{op(take, h.entered.asked, h.entered.told)}
	unconfirmed := h.entered.asked
	if h.last.asked != 0 {
		ops = append(ops, op(work, h.last.asked, h.last.told))
		unconfirmed = h.last.asked
	}
	if h.lost != 0 {
		ops = append(ops, op(lose, unconfirmed, h.lost))
	}
	for _, l := range h.revived {
		ops = append(ops, op(work, l.asked, l.told))
	}
	switch {
	case h.release.asked != 0:
		ops = append(ops, op(give, h.release.asked, h.release.told))
	case h.lost == 0:
		ops = append(ops, op(lose, unconfirmed, math.MaxInt64))
	}
	return ops
}

type verb string

const (
	take verb = "take"
	work verb = "work"
	give verb = "give"
	lose verb = "lose"
)

// A step is the input of the model: a client does something by a token.
type step struct {
	verb   verb
	client int
	token  int64
	ask
}

// A keeping is the state of the model.
type keeping struct {
	held   bool
	client int
	token  int64 // the last one
}

// theLock is a lock as it should be. A client takes it only when it is free, and with a
// greater token than all before. Only its holder works, releases it or loses it.
var theLock = porcupine.Model{
	Init: func() any { return keeping{} },
	Step: func(state, input, _ any) (bool, any) {
		k, s := state.(keeping), input.(step)
		switch mine := k == (keeping{true, s.client, s.token}); s.verb {
		case take:
			return !k.held && grows(k.token, s.token), keeping{true, s.client, s.token}
		case work:
			return mine, k
		default:
			return mine, keeping{token: k.token}
		}
	},
	DescribeOperation: func(input, _ any) string {
		s := input.(step)
		return fmt.Sprintf("%s %d", s.verb, s.token)
	},
	DescribeState: func(state any) string {
		if k := state.(keeping); k.held {
			return fmt.Sprintf("held by %d, token %d", k.client, k.token)
		}
		return "free"
	},
}

// judgement bounds how long porcupine may take. It needs a moment for 10,000 operations.
const judgement = 2 * time.Minute

// judged makes porcupine judge the holds of one lock by its model. Unless its verdict is
// Ok, file is a picture of the history.
func judged(
	t testing.TB, model porcupine.Model, all []*hold,
) (verdict porcupine.CheckResult, file string) {
	t.Helper()
	var ops []porcupine.Operation
	for _, h := range all {
		ops = append(ops, h.operations()...)
	}
	verdict = porcupine.CheckOperationsTimeout(model, ops, judgement)
	if verdict != porcupine.Ok {
		_, info := porcupine.CheckOperationsVerbose(model, ops, judgement)
		picture, err := os.CreateTemp(t.ArtifactDir(), "history-*.html")
		require.NoError(t, err)
		require.NoError(t, porcupine.Visualize(model, info, picture))
		require.NoError(t, picture.Close())
		file = picture.Name()
	}
	return verdict, file
}

// The judge of histories judges known histories rightly. Times are in nanoseconds. Client 1
// is the first list, and so on.
func TestTheJudgeOfHistories(t *testing.T) {
	t.Parallel()
	locks := func(from, until time.Duration, token int64) event {
		return event{What: "locked", Since: from, At: until, Token: token}
	}
	looks := func(from, until time.Duration) event {
		return event{What: "looked", Since: from, At: until}
	}
	isTold := func(at time.Duration) event { return event{What: "ended", At: at} }
	unlocks := func(from, until time.Duration) event {
		return event{What: "unlocked", Since: from, At: until}
	}
	unlocksLost := func(from, until time.Duration) event {
		return event{What: "unlocked", Since: from, At: until, Err: "lost", Lost: true}
	}
	unlocksUnsure := func(from, until time.Duration) event {
		return event{What: "unlocked", Since: from, At: until, Err: "unconfirmed"}
	}
	fails := func(from, until time.Duration) event {
		return event{What: "failed", Since: from, At: until, Err: "timeout"}
	}
	type told = []event
	for _, h := range []struct {
		name     string
		clients  []told
		verdict  porcupine.CheckResult
		overlaps int
	}{
		// ---- good ones
		{"nobody does anything", nil, porcupine.Ok, 0},
		{"one after the other", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(4, 5)},
			{locks(6, 7, 6), looks(8, 8), unlocks(9, 10)},
		}, porcupine.Ok, 0},
		{"a waiter gets in while Unlock is under way", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(4, 9)},
			{locks(1, 6, 6), looks(7, 7), unlocks(8, 10)},
		}, porcupine.Ok, 0},
		{"a waiter fails, and gets in later", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(9, 10)},
			{fails(4, 6), locks(7, 11, 7), looks(12, 12), unlocks(13, 14)},
		}, porcupine.Ok, 0},
		{"frozen, expired, and told so at the first look", []told{
			{locks(1, 2, 5), looks(3, 3), isTold(20), unlocksLost(21, 22)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"frozen, expired, and told so by Unlock", []told{
			{locks(1, 2, 5), looks(3, 3), unlocksLost(20, 21)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"frozen in the midst of a look", []told{
			{locks(1, 2, 5), looks(3, 20), isTold(21), unlocksLost(22, 23)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"frozen in the midst of Lock", []told{
			{locks(1, 20, 5), isTold(21), unlocksLost(22, 23)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"killed at work", []told{
			{locks(1, 2, 5), looks(3, 3)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"killed before it worked", []told{
			{locks(1, 2, 5)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"a release that is not confirmed, and comes late", []told{
			{locks(1, 2, 5), looks(3, 3), unlocksUnsure(4, 6)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Ok, 0},
		{"a release that is not confirmed, and the same client again", []told{
			{locks(1, 2, 5), looks(3, 3), unlocksUnsure(4, 6), locks(7, 8, 6), looks(9, 9), unlocks(10, 11)},
		}, porcupine.Ok, 0},
		{"a release that is not confirmed, at the end", []told{
			{locks(1, 2, 5), looks(3, 3), unlocksUnsure(4, 6)},
		}, porcupine.Ok, 0},

		// ---- bad ones
		{"two at work", []told{
			{locks(1, 2, 5), looks(3, 3), looks(9, 9), unlocks(20, 21)},
			{locks(4, 6, 6), looks(7, 7), looks(10, 10), unlocks(22, 23)},
		}, porcupine.Illegal, 1},
		{"two in, of whom only one works", []told{
			{locks(1, 2, 5), looks(3, 3), looks(9, 9), unlocks(10, 11)},
			{locks(4, 6, 6), unlocks(7, 8)},
		}, porcupine.Illegal, 0},
		{"one unit of work after the next one got in", []told{
			{locks(1, 2, 5), looks(3, 3), looks(11, 11), isTold(12), unlocksLost(13, 14)},
			{locks(4, 10, 6), looks(12, 12), unlocks(15, 16)},
		}, porcupine.Illegal, 1},
		{"frozen for long, and told yes when it wakes", []told{
			{locks(1, 2, 5), looks(3, 20), looks(21, 21), isTold(22), unlocksLost(23, 24)},
			{locks(4, 10, 6), looks(11, 11), unlocks(12, 13)},
		}, porcupine.Illegal, 1},
		{"work after a loss that was told", []told{
			{locks(1, 2, 5), looks(3, 3), isTold(4), looks(5, 5), unlocksLost(6, 7)},
		}, porcupine.Illegal, 0},
		{"work after a loss that was told, and after the next one got in", []told{
			{locks(1, 2, 5), looks(3, 3), isTold(4), looks(13, 13), unlocksLost(14, 15)},
			{locks(5, 6, 6), looks(7, 7), looks(14, 14), unlocks(15, 16)},
		}, porcupine.Illegal, 1},
		{"the same token again", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(4, 5)},
			{locks(6, 7, 5), looks(8, 8), unlocks(9, 10)},
		}, porcupine.Illegal, 0},
		{"a smaller token", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(4, 5)},
			{locks(6, 7, 4), looks(8, 8), unlocks(9, 10)},
		}, porcupine.Illegal, 0},
		{"a release of what the next one has got", []told{
			{locks(1, 2, 5), looks(3, 3), unlocks(12, 13)},
			{locks(4, 10, 6), looks(11, 11), unlocks(14, 15)},
		}, porcupine.Illegal, 0},
		{"a release, said to be whole, after a loss that was told", []told{
			{locks(1, 2, 5), looks(3, 3), isTold(4), unlocks(5, 6)},
		}, porcupine.Illegal, 0},
		{"a killed one had worked after the next one got in", []told{
			{locks(1, 2, 5), looks(3, 3), looks(12, 12)},
			{locks(4, 10, 6), looks(13, 13), unlocks(14, 15)},
		}, porcupine.Illegal, 1},
		{"work after the next one got in, and an end that is not confirmed", []told{
			{locks(1, 2, 5), looks(3, 3), looks(12, 12), unlocksUnsure(13, 14)},
			{locks(4, 10, 6), looks(11, 11), looks(13, 13), unlocks(14, 15)},
		}, porcupine.Illegal, 1},
	} {
		t.Run(h.name, func(t *testing.T) {
			var all []*hold
			for i, said := range h.clients {
				all = append(all, holds(i, said)...)
			}
			verdict, file := judged(t, theLock, all)
			require.Equal(t, h.verdict, verdict)
			require.Equal(t, verdict != porcupine.Ok, file != "")
			beliefs := &trial{T: t, side: side.Theirs, figures: newFigures(1)}
			beliefs.believed(all)
			beliefs.judge()
			require.Equal(t, h.overlaps, beliefs.figures.sums["overlaps"])
		})
	}
}
