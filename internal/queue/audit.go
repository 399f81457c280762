package queue

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/etcdlock/etcdlock/internal/etcd"
	"github.com/etcdlock/etcdlock/internal/etcd/attempt"
	"github.com/etcdlock/etcdlock/internal/guard"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/recheck"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

const (
	// auditEvery is the time between audits of a lease's keys while one of them is suspected, or the
	// late copy of a request may put one.
	auditEvery = 700 * time.Millisecond

	// coveredAudits is how many renewal periods there are per audit while every hold that lasts is
	// covered by a watch. idleAudits is that number while every key is also rechecked, and nothing
	// was put for a while.
	coveredAudits = 4
	idleAudits    = 32

	// fewPlaces is how many keys a brief audit asks for at most.
	fewPlaces = 4

	// readsAbreast is about how many reads of an audit, or of Close, are under way at a time.
	readsAbreast = 8

	// auditGrace is how long an audit may wait for its answer after the lease has ended.
	auditGrace = 500 * time.Millisecond
)

// CareLocked does what is due for the keys, and says whether an audit is (lease.Tenants).
//
// Invariant: a hold that lasts is covered by a sure watch, or its lease's keys are audited once
// per renewal period. They are audited as often while the renewals are late. Otherwise audits are
// rare: each is a message, and an idle hold must cost little more than its renewals.
// (TestAnIdleHoldCostsItsRenewalsAndLittleElse.)
func (a *Account) CareLocked(now, last time.Time) (audit bool, again time.Time) {
	if a.Lease.HasEndedLocked() || a.keys.Leases.ClosedLocked() {
		return false, again
	}
	var holds coverage
	if len(a.places) <= manyPlaces {
		holds = a.coverHoldsLocked(now)
	}
	period := a.auditPeriodLocked(now, holds)
	if again = last.Add(period); period > a.Lease.Period() {
		again = a.Lease.Together(again)
	}
	if audit = !now.Before(again); audit || !holds.lasts.IsZero() && holds.lasts.Before(again) {
		again = holds.lasts
	}
	return audit, again
}

// A coverage is what shows the losses of an account's keys beside its audits.
type coverage struct {
	watched   bool // each hold that lasts is covered by a view, or by a sure watch
	rechecked bool // there are keys, and each is rechecked, by its waiter or by a view

	lasts time.Time // when the first of the young holds lasts, zero if there is none

	contenders int // in the longest line in which one of the keys waits
}

// coverHoldsLocked begins to watch the keys of holds that last and that no view covers. It returns
// what covers all keys then.
//
// Do not leave a view from before a set-back: the key that lingers by it is given up with it, and
// would be watched before. (TestAKeyThatIsGivenUpWithItsViewIsNotWatched.)
func (a *Account) coverHoldsLocked(now time.Time) coverage {
	c, some := coverage{watched: true, rechecked: true}, false
	for _, p := range a.places {
		p.line.EndOldViewLocked()
		switch p.Ticket.State() {
		case ticket.InLine:
			some = true
			c.contenders = max(c.contenders, p.Ahead.Keys)
		case ticket.Held:
			some = true
			v := p.line.viewLocked()
			viewed := v.coversLocked(p)
			c.rechecked = c.rechecked && viewed && v.line.local.PlaceLocked() == p && v.neededLocked()
			if viewed {
				continue
			}
			if lasts := p.Since.Add(p.held + watchAfter); now.Before(lasts) {
				if c.lasts.IsZero() || lasts.Before(c.lasts) {
					c.lasts = lasts
				}
				continue
			}
			if p.watch == nil {
				p.watch = newKeyWatchLocked(p)
			}
			c.watched = c.watched && p.watch.sure
		}
	}
	c.rechecked = c.rechecked && some
	return c
}

// auditPeriodLocked is the time between audits of the lease's keys. One that had no answer has
// found nothing, so the next one follows after a period of the renewals.
//
// Audits are rarest where each key is rechecked, once the keys were audited a TTL after the last
// one was gone. Before that an audit may find what a late copy of its put has put, which blocks its
// line: clientv3 may repeat a put unseen. (TestAKeyThatALateRequestPutsIsSwept.) While the key
// stands a copy does nothing. In a long line these audits, too, are as rare as rechecks: else a
// crowd that goes round would mostly audit. (TestWhoWaitsInALongLineAuditsAsRarelyAsItRechecks.)
func (a *Account) auditPeriodLocked(now time.Time, holds coverage) time.Duration {
	const longest = math.MaxInt64 / idleAudits // a multiple of the longest TTLs overflows
	period := min(max(a.Lease.Period(), min(a.Lease.TTL/3, auditEvery)), longest)
	doubtful := !a.doubted.IsZero()
	switch {
	case doubtful && now.Sub(a.doubted) < a.Lease.TTL:
		return min(period, auditEvery)
	case a.suspect: // again, if the last one had no answer
		return min(period, a.keys.etcd.Seldom(auditEvery))
	case doubtful || a.unheard || !holds.watched || a.Lease.AtRisk(now):
		return period
	case !holds.rechecked:
		return coveredAudits * period
	case a.left.IsZero() || a.swept.Sub(a.left) >= a.Lease.TTL: // rare audits find later copies
		return idleAudits * period
	}
	asRechecks := time.Duration(holds.contenders) * recheck.PerContender
	return min(max(coveredAudits*period, asRechecks), idleAudits*period)
}

// Audit compares the lease's keys in etcd with the keys of its places (lease.Tenants).
// It reports false if etcd seems not to know the lease.
//
// The answer is neither linearizable nor versioned, so nothing is done because of it
// alone. A missing key is read before its place is given up, and only places that were
// taken before the audit was sent are judged. A key that no place accounts for, put by a
// late copy of a request, is read and then deleted by its create revision.
//
// Each of its requests has the time of one attempt, and is not repeated: after one without an
// answer the requests of the next audit are sent twice. (One time for all of them would let no key
// be deleted where etcd answers after half of it. TestAStrayIsSweptWhereAnswersAreSlow.)
//
// ctx ends when the lease is about to be revoked. An audit that is under way then still waits a
// little for its answer, but does nothing with it: a cancelled request would be a warning in
// clientv3's log. (TestClosingIsNoWarning, TestCloseDoesNotWaitLongForALook.)
func (a *Account) Audit(ctx context.Context, sent time.Time) (known bool) {
	k := a.keys
	if k.etcd.Disconnected() || k.etcd.Closed() {
		return true // clientv3 would try many times a second
	}
	asking, stop := context.WithCancel(k.ctx)
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(auditGrace, stop) })()
	if a.isAsKnown(asking, sent) || ctx.Err() != nil {
		return true
	}
	suspicious, twice, places, byKeys := a.auditsBy()
	ask := k.etcd.AskInTime(twice)
	known = a.auditPlaces(ctx, asking, places, ask)
	if !byKeys {
		return known
	}
	lifetime, err := k.etcd.KeysInTime(asking, a.Lease.ID, twice)
	if err != nil || ctx.Err() != nil {
		a.noted(err, suspicious)
		return true // the renewals show it, or it does not matter any more
	}
	known = lifetime.Known
	// A member that lags behind also reports fewer keys. A read decides.
	missing, strays := a.compare(lifetime.Keys, sent, suspicious || lifetime.Behind)
	err = k.etcd.ReadKeys(ctx, keysOf(missing), ask, func(part etcd.Part) {
		a.confirmMissing(missing[part.From:], part, known)
	})
	a.noted(err, true)
	err = k.etcd.ReadKeys(ctx, strays, ask, func(part etcd.Part) {
		a.sweep(ctx, part.Entries)
	})
	a.noted(err, true)
	return known
}

// isAsKnown asks whether all keys are as they were put, and reports whether an audit has no more to
// do: etcd says so, or has not answered. Such an audit is brief: those of a client's Sessions go as
// one request, and a few bytes are the answer.
//
// It does not show the keys that late requests have put. So none is brief within idleAudits periods
// after a key was gone, and one in as many periods is not in any case.
// (TestALateKeyOfAForgottenNameIsSwept.)
func (a *Account) isAsKnown(ctx context.Context, sent time.Time) bool {
	known := a.briefly(sent)
	if len(known) == 0 {
		return false
	}
	read, err := a.keys.etcd.AskInTime(false)(ctx, etcd.Meeting(known))
	a.noted(err, false)
	return err != nil && !attempt.Refused(err) || err == nil && read.Holds
}

// briefly returns what a brief audit compares, nothing if the audit that was decided on at sent is
// not to be brief.
func (a *Account) briefly(sent time.Time) (known []ticket.Known) {
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	if a.listed.IsZero() {
		a.listed = sent
	}
	rare := min(a.Lease.Period(), math.MaxInt64/idleAudits) * idleAudits
	late := !a.left.IsZero() && sent.Sub(a.left) < rare || sent.Sub(a.listed) >= rare
	if late || a.suspect || a.unheard || !a.doubted.IsZero() || len(a.places) > fewPlaces {
		a.listed = sent
		return nil
	}
	for _, p := range a.places {
		state := p.Ticket.State()
		if state != ticket.InLine && state != ticket.Held || p.StaleLocked() ||
			p.Ticket.Doubtful() || !p.Since.Before(sent) {
			return nil
		}
		known = append(known, p.knownLocked()...)
	}
	return known
}

// noted notes that a request of an audit has failed with err, if it has. What etcd has refused it
// would refuse again. Otherwise the next audit sends its requests twice, and if something is
// suspected it is due soon.
//
// (Do not leave a suspicion to the next audit, as if there was none. A key of before that a
// set-back has brought back blocks its line, for more than a TTL.
// TestASuspicionOutlastsAnAuditWithoutAnAnswer.)
func (a *Account) noted(err error, suspects bool) {
	if err == nil || attempt.Refused(err) {
		return
	}
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	a.unheard = true
	if suspects {
		a.SuspectLocked()
	}
}

// auditsBy decides how to audit: by the keys on the lease, or by the values of its places, which
// alone show a recall. If some listen it is one or the other in turn, so that it costs no more than
// for holds that do not, and no two in a row overlook a recall, or the late copy of a put. It is
// both where holds have no watches, since there are too many names, and where a late request may
// put a key, which only the keys on the lease show. twice says that each request is sent twice.
func (a *Account) auditsBy() (suspicious, twice bool, places []*Place, byKeys bool) {
	a.keys.mu.Lock()
	suspicious, twice = a.suspect, a.unheard
	a.suspect, a.unheard = false, false
	both := suspicious || !a.doubted.IsZero() || len(a.places) > manyPlaces
	a.keys.mu.Unlock()
	some := false
	guard.Pieces(a.keys.mu, maps.Values(a.places), func(p *Place) {
		listens := p.listens
		if s := p.Ticket.State(); (s == ticket.InLine || s == ticket.Held) && (listens || !both) {
			places = append(places, p)
			some = some || listens
		}
	})
	if !some {
		return suspicious, twice, nil, true
	}
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	a.byValues = !a.byValues
	if !a.byValues && !both {
		return suspicious, twice, nil, true
	}
	return suspicious, twice, places, both
}

// auditPlaces audits places by their keys and values, if there are any. It reports false
// if etcd seems not to know the lease. As the audit of all keys, it waits a little for its answers
// when ctx has ended.
//
// (Do not give all reads together the time of one. Of 10,000 names far from etcd an audit then
// reads a part, and a recall waits for several. TestARecallOfOneOfManyNamesIsNoticedFarFromEtcd.)
func (a *Account) auditPlaces(
	ctx, asking context.Context, places []*Place,
	ask func(context.Context, etcd.Request) (etcd.Reading, error),
) (known bool) {
	var unknown atomic.Bool
	abreast(places, func(some []*Place) {
		err := a.keys.etcd.ReadKeys(asking, keysOf(some), ask, func(part etcd.Part) {
			if ctx.Err() != nil {
				return
			}
			known := a.isKnownBy(some[part.From:], part)
			a.confirmMissing(some[part.From:], part, known)
			if !known {
				unknown.Store(true)
			}
		})
		a.noted(err, false)
	})
	return !unknown.Load()
}

// abreast calls f with parts of all, about readsAbreast of them at a time, and waits until it has
// returned from each.
func abreast[E any](all []E, f func(some []E)) {
	var running sync.WaitGroup
	for some := range slices.Chunk(all, max(manyPlaces, len(all)/readsAbreast+1)) {
		running.Go(func() { f(some) })
	}
	running.Wait()
}

// compare compares the keys on the lease, as an audit sent at sent found them, with the keys of
// its places. The missing ones are to be read, and if the answer is suspicious also some of the
// keys that are there. So are the strays. Keys that users attach to the lease are theirs.
func (a *Account) compare(
	keys [][]byte, sent time.Time, suspicious bool,
) (missing []*Place, strays []string) {
	present := make(map[string]bool, len(keys))
	for _, key := range keys {
		present[string(key)] = true
	}
	guard.Pieces(a.keys.mu, maps.Keys(present), func(key string) {
		if p := a.places[key]; p == nil || p.Ticket.Lost() {
			strays = append(strays, key)
		}
	})
	strays = slices.DeleteFunc(strays, func(key string) bool {
		return !IsOwn(line.Entry{Key: key, Lease: int64(a.Lease.ID)})
	})
	guard.Pieces(a.keys.mu, maps.Values(a.places), func(p *Place) {
		// Under a doubtful name a late request may have put the key again. After a set-back it
		// may be the key of an earlier hold.
		doubtful := !present[p.Ticket.Key] || p.Ticket.Doubtful() ||
			suspicious && p.held != 0 && len(missing) < manyPlaces
		if p.Ticket.Rev() != 0 && !p.Ticket.Lost() && p.Since.Before(sent) && doubtful {
			missing = append(missing, p)
		}
	})
	a.keys.mu.Lock()
	defer a.keys.mu.Unlock()
	a.swept = sent
	return missing, strays
}

// isKnownBy reports whether etcd seems to know the lease, by what was read of places: if a key is
// gone, the lease may be the reason, and etcd is asked for it.
func (a *Account) isKnownBy(places []*Place, part etcd.Part) bool {
	for i, e := range part.Entries {
		if e.Rev != places[i].Ticket.Rev() {
			return a.Lease.IsKnown()
		}
	}
	return true
}

// confirmMissing gives up the places whose keys are gone or changed, by what was read of them.
// known says whether etcd seems to know the lease: if not, the keys went with it. A hold of before
// a set-back whose key is there goes on: its place counts in the new epoch.
func (a *Account) confirmMissing(places []*Place, part etcd.Part, known bool) {
	i := 0
	guard.Pieces(a.keys.mu, slices.Values(part.Entries), func(e line.Entry) {
		p := places[i]
		i++
		seen := p.observedLocked(ticket.Observation{Entry: e, LeaseGone: !known})
		if seen == ticket.Same && p.neededLocked() && p.StaleLocked() {
			p.epoch = part.Epoch // a waiter has to read the line, too
			if !p.StaleLocked() {
				p.headsLocked()
			}
			p.line.local.MarkLocked()
		}
	})
}

// sweep deletes the keys on the lease that no place accounts for. What is left in the end is found
// by the next audit.
func (a *Account) sweep(ctx context.Context, read []line.Entry) {
	k := a.keys
	strays := slices.DeleteFunc(read, func(e line.Entry) bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.Lease != int64(a.Lease.ID) || a.accountsForLocked(e) { // taken again since the audit
			return true
		}
		a.retireLocked()
		return false
	})
	ctx, cancel := context.WithTimeout(ctx, 2*k.etcd.Timeout) // an attempt and its repeat
	defer cancel()
	for i, err := range a.removeAll(ctx, strays) {
		k.Log(slog.LevelWarn, "removed a key that a late request had put",
			"key", strays[i].Key, "revision", strays[i].Rev, "error", err)
	}
}
