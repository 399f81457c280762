package mutants

// The mutants, in the order of the contract: trust, truth, the line, ghosts, lifetimes. If
// a second mechanism of the library makes up for what a mutant gives up, the mutant gives
// up both: otherwise it would be another right version.
var mutants = []mutant{
	// ---- trust: rules 1 to 3

	{
		name: "trust counts from the answer",
		why:  "clientv3.KeepAlive counts so, and only with the answer does the client know. But a slow answer adds its delay to the trust (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go", `		t.extend(from, c.TTL)
`, `		t.extend(now, c.TTL)
`}},
		killers: []killer{
			explorationOfTrust, simulation(2000), inArea("lease", "TestTrustCountsFromTheSendInVirtualTime"),
			core("lease/trust", "TestTheTrustIsSentPlusTTLLessMargin"),
		},
	},
	{
		name: "no safety margin",
		why:  "sent + TTL is the exact bound if all clocks run at one rate. But they do not (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go", `sent.Add(ttl - t.margin(ttl))`,
			`sent.Add(ttl)`}},
		killers: []killer{
			explorationOfTrust,
			simulation(2000), inArea("lease", "TestTheHolderHearsOfALossBeforeEtcdCanGiveTheLockAway"),
			core("lease/trust", "TestTheTrustIsSentPlusTTLLessMargin"),
		},
	},
	{
		name: "each renewal counts from its own sending",
		why:  "etcd has confirmed the renewal, so the lease lives for a TTL from its sending. But an earlier renewal may have reached a newer leader, and that leader's clock counts (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go", `		if o.sent.Before(from) && !harmless {
`, `		if o.sent.Before(from) && !harmless && false {
`}},
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name: "the word of a leader of an older term is taken",
		why:  "A member that is behind is not wrong. But a member that led and is cut off is wrong (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go", `c.Doubtful || c.Term < known {`,
			`c.Doubtful {`}},
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name: "what a renewal is worth is asked of one member",
		why:  "One read should do. But that member may be the silent one, again and again: renewals are confirmed, and count for nothing (rule 13).",
		edits: []edit{{"internal/lease/renew.go", `	_, err := p.etcd.ReadBy(ctx, etcd.Range(key, clientv3.WithCountOnly()), retry, nil)
`, `	_, _, err := attempt.Do(ctx, p.etcd.Caller, &retry, time.Hour, func(ctx context.Context, _ bool) (etcd.Reading, error) {
		return p.etcd.Ask(ctx, etcd.Range(key, clientv3.WithCountOnly()))
	})
`}},
		killers: []killer{core("sim", "TestAReadOfDoubtMeetsAnotherMember")},
	},
	{
		name: "an attempt matters for four thirds of the TTL, whatever the TTL",
		why:  "So it does. But four thirds of the longest TTLs overflow, and no attempt matters at all (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go",
			`(now.Sub(a.sent)-requestTimeout)/4 > t.ttl/3`, `now.Sub(a.sent) > requestTimeout+t.ttl/3*4`}},
		killers:    []killer{core("lease/trust", "TestAnAttemptMattersHoweverLongTheTTL")},
		unexplored: "The exploration has one TTL, of five steps.",
	},
	{
		name: "a read confirms every renewal",
		why:  "etcd answers, so its leader leads. But another leader may have renewed the lease (rule 1).",
		edits: []edit{{"internal/lease/trust/trust.go", `		if a.open && a.epoch == epoch && a.answer.Term >= term {
`, `		if a.open && a.epoch == epoch {
`}},
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name: "the timer of the trust waits for the Session's mutex",
		why:  "All that follows from the end of a lease is done with it. But 20,000 calls may hold it for seconds, and meanwhile etcd gives the lock away (rule 27).",
		edits: []edit{{"internal/lease/lease.go", `	why := l.isOver()
	if why == nil {
		return // a renewal has moved the end meanwhile
	}
`, `	l.pool.mu.Lock()
	why := l.isOver()
	l.pool.mu.Unlock()
	if why == nil {
		return // a renewal has moved the end meanwhile
	}
`}},
		killers: []killer{withMutexHeld("TestHoldsEndInTimeWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "a look at a hold waits for the Session's mutex",
		why:  "The mutex guards the hold. But who asks before each write waits for 20,000 calls, and works on if it is told late (rule 27).",
		edits: []edit{{"context.go", `	if cause := c.hold.life.Cause(time.Now()); cause != nil {
		c.End(cause)
	}
`, `	c.hold.m.s.mu.Lock()
	cause := c.hold.checkLocked(time.Now())
	c.hold.m.s.mu.Unlock()
	if cause != nil {
		c.End(cause)
	}
`}},
		killers: []killer{withMutexHeld("TestHoldsEndInTimeWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "the answer to a renewal waits for the Session's mutex",
		why:  "The state of the lease is guarded by it. But the trust runs out while the answer waits, and a healthy hold is lost (rule 27).",
		edits: []edit{{"internal/lease/lease.go", `	p, now := l.pool, time.Now()
	p.safety.Lock()
	defer p.safety.Unlock()
`, `	p, now := l.pool, time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.safety.Lock()
	defer p.safety.Unlock()
`}},
		killers: []killer{withMutexHeld("TestLeasesAreRenewedWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "the keeper sees what is due before it sends",
		why:  "One goroutine is simpler than two. But it waits for the Session's mutex, and the renewal is late (rule 27).",
		edits: []edit{{"internal/lease/renew.go", `			k.pool.tasks.Go(func() { k.cared <- k.care(last) })
`, `			k.cared <- k.care(last)
`}},
		killers: []killer{withMutexHeld("TestLeasesAreRenewedWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "one Unlock lets in all that may come in",
		why:  "Each of them takes a few steps. But 20,000 reads that wait are let in by one Unlock, and meanwhile nobody else gets the mutex (rule 28).",
		edits: []edit{{"localqueue.go", `	for range guard.Piece {
		n := all.last
`, `	for {
		n := all.last
`}},
		killers: []killer{inBound("reads wait for another process", "the other process goes")},
	},
	{
		name: "the end of a lease ends all holds at once",
		why:  "It is one event. But 20,000 names may be on the lease, and meanwhile nobody gets the mutex (rule 28).",
		edits: []edit{{"internal/queue/account.go", `	if len(a.places) > guard.Piece {
`, `	if len(a.places) > 1e6 {
`}},
		killers: []killer{inBound("names are held", "the lease runs out")},
	},
	{
		name: "the holder that a call waits for is sought among all",
		why:  "The first one whose hold is not lost is told. But the holds of 20,000 reads may be lost, and each call goes through all of them (rule 28).",
		edits: []edit{{"localqueue.go", `		if looked++; looked == queue.FewAhead {
`, `		if looked++; looked == 1e6 {
`}},
		killers: []killer{inBound("reads were lost", "they come, and calls beside them")},
	},
	{
		name: "what an answer shows of a line is parsed with the mutex",
		why:  "The ticket judges it there. But the line may have thousands of permits (rule 28).",
		edits: []edit{{"acquire.go", `	keys.Read(answer)
`, ``}},
		killers: []killer{inBound("another process has permits", "they come, and calls beside them")},
	},
	{
		name: "a late answer revives the lease",
		why:  "etcd says that the lease lives, so nobody else had the lock. But nobody has looked yet, and the trust was over: etcd may have given the lock away since (rule 1).",
		edits: []edit{{"internal/lease/lease.go", `	defer p.safety.Unlock()
	if l.overSafe(now) != nil {
		return
	}
	until`, `	defer p.safety.Unlock()
	if l.over != nil {
		return
	}
	until`}},
		killers: []killer{core("lease", "TestALateAnswerRevivesNoLease")},
	},
	{
		name: "a hold begins without a look at the clock",
		why:  "The place is first in line and the key is there, so nothing seems left to check. But the trust may be over (rule 1).",
		edits: []edit{{"hold.go", `	p.Lease.CheckLocked(now)
	if p.Lease.HasEndedLocked() || p.Ticket.Lost() {
		return queue.ErrAnew
	}
`, ``}, {"internal/ticket/ticket.go", `	t.must("Hold", InLine, Held)
`, ``}},
		killers: []killer{named("TestNoHoldBeginsWhenTheTrustIsOver")},
	},
	{
		name: "a hold begins at a key that is gone",
		why:  "The line has just been read, and nobody is before the place. But a look has found meanwhile that the place's own key is gone. It reports that once, so the hold never learns of its loss (rules 5 and 12).",
		edits: []edit{{"hold.go", `	if p.Lease.HasEndedLocked() || p.Ticket.Lost() {
`, `	if p.Lease.HasEndedLocked() {
`}, {"internal/ticket/ticket.go", `	t.must("Hold", InLine, Held)
`, ``}},
		killers: []killer{inArea("lease", "TestNoHoldBeginsAtAKeyThatIsGone")},
	},
	{
		name: "contexts end by their timer only",
		why:  "Programs check a context often, the clock costs time, and there is a timer. But after a pause of the process the timer has not run yet (rule 2).",
		edits: []edit{{"context.go", `func (c *holdContext) check() {
	if c.Context.Err() != nil {
		return
	}
	if cause := c.hold.life.Cause(time.Now()); cause != nil {
		c.End(cause)
	}
}`, `func (c *holdContext) check() {}`}},
		killers: []killer{named("TestTheFirstLookNeedsNoTimer")},
	},
	{
		name: "each call of Context makes a context",
		why:  "It ends with the hold, and the hold forgets it with its parent. But both may go on for days, and the program may ask before each step.",
		edits: []edit{{"context.go", `	if !reflect.ValueOf(parent).Comparable() {`,
			`	if !reflect.ValueOf(parent).Comparable() || true {`}},
		killers: []killer{named("TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name: "a context that comes from the hold's own gets one more",
		why:  "It is a parent as any other. But a loop may ask with what it got before.",
		edits: []edit{{"context.go", `	if c, ok := parent.(*holdContext); ok && c.hold == h {
		return c
	}
`, ``}},
		killers: []killer{named("TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name: "of two contexts for one parent the hold ends the later one",
		why:  "The hold did not know one a moment ago. But another call may have made one since, and that one would outlive the hold (rule 2).",
		edits: []edit{{"internal/lease/life.go", `	if other := f.contexts[k]; other != nil {
		return other, nil
	}
`, ``}},
		killers: []killer{named("TestOneParentHasOneContextOfAHold")},
	},
	{
		name: "every context can be a key",
		why:  "Those of package context can. But a program may have a type of its own, and one that cannot be compared panics.",
		edits: []edit{{"context.go", `	if !reflect.ValueOf(parent).Comparable() {
		parent = &struct{ context.Context }{parent}
	}
`, `	_ = reflect.ValueOf
`}},
		killers: []killer{named("TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name: "Close revokes while the contexts end",
		why:  "Close has ended every hold, and wakes the keeper at once. But the contexts are cancelled one by one, and etcd is faster (rule 1).",
		edits: []edit{{"internal/lease/revoke.go", `	l.endLives(l.isOver())
`, ``}, {"internal/lease/lease.go", `		l.endLives(why)
		close(l.dead)`, `		close(l.dead)`}, {"internal/lease/pool.go", `	p.mu.After(p.endLives)
`, ``}},
		killers: []killer{inArea("mutex", "TestCloseEndsTheContextsOfAHundredNamesBeforeItFreesOne"),
			inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name:    "Close gives up a revocation that had no answer before",
		why:     "Two TTLs after the last renewal nothing can be left of it. But etcd has not said so, and Close still has time to ask (rule 22).",
		edits:   []edit{{"internal/lease/revoke.go", ` && p.closedFor()/2 > l.TTL {`, ` {`}},
		killers: []killer{inArea("lease", "TestCloseHasItsOwnTimeToRevokeALease")},
	},
	{
		name: "a removal begins while the contexts end",
		why:  "The code that ends a hold cancels its contexts next, and the removal takes a request. But the contexts of a hold may be many, and to cancel those derived from them may take time (rule 1, WithMaxHold).",
		edits: []edit{{"internal/queue/removal.go", `	defer close(p.Removal.over)
	p.owner.EndContexts()
`, `	defer close(p.Removal.over)
`}},
		killers: []killer{inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name: "the turn is passed on at home while the contexts end",
		why:  "The hold has ended, and no request to etcd is needed. But a goroutine of the hold may still run, since its context has not ended yet (rule 4).",
		edits: []edit{{"release.go", `	frees := h.freesLocked()
`, `	frees := true
`}},
		killers: []killer{inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name: "the wall clock is not looked at",
		why:  "Go's monotonic clock cannot be set, so it is the better one. But it stands still while a machine is suspended (rule 2).",
		edits: []edit{
			{"internal/lease/trust/trust.go", `	case !now.Round(0).Before(t.until.Round(0)):
		return Suspended
`, ``},
		},
		killers: []killer{
			explorationOfTrust,
			named("TestTheWallClockMayEndAHoldAndNeverLengthensOne"),
		},
	},
	{
		name: "one renewal at a time",
		why:  "The attempt under way has not failed yet. But it may have met the one dead endpoint of three, and take the whole TTL (rule 13).",
		edits: []edit{{"internal/lease/renew.go", `	k.next.Reset(k.plan.Late())
`, ``}},
		killers: []killer{simulation(1000), inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce")},
	},
	{
		name: "a renewal that fails at once is sent again as if it had been late",
		why:  "A second is short beside a TTL of 15 s. But eight attempts fit into a trust, and where two of three requests fail at once all eight do now and then (rule 13).",
		edits: []edit{{"internal/lease/trust/schedule.go", `	return min(max(soon, took), s.longest())
`, `	return max(soon, s.longest())
`}},
		killers: []killer{
			named("TestErrorsThatComeBackAtOnceLoseNoHold"),
			explorationOfTrust,
		},
	},
	{
		name: "the read of what a renewal is worth is sent once",
		why:  "The next renewal asks again. But while requests fail at once each renewal is in doubt, and two of three reads fail, too (rule 13).",
		edits: []edit{{"internal/lease/renew.go", `clientv3.WithCountOnly()), retry, nil)
`, `clientv3.WithCountOnly()), retry, func(err error) error { return err })
`}},
		killers: []killer{named("TestErrorsThatComeBackAtOnceLoseNoHold")},
	},
	{
		name: "a renewal that fails late is sent again at once",
		why:  "The sooner it is sent, the sooner it is answered. But an etcd that is slow then gets more renewals, and not fewer (rule 25).",
		edits: []edit{{"internal/lease/trust/schedule.go", `min(max(soon, took), s.longest())`,
			`min(soon, s.longest())`}},
		killers: []killer{
			explorationOfTrust, inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce"),
			core("lease/trust", "TestTheScheduleOfTheDefaults"),
		},
	},
	{
		name:    "a renewal that fails at once waits as long as other answers take",
		why:     "An etcd that answers late gets less to do. But where most requests fail at once clientv3 repeats reads by itself, and it is these that take long (rule 13).",
		edits:   []edit{{"internal/lease/renew.go", `	case attempt.Overloaded(r.err):`, `	default:`}},
		killers: []killer{core("sim", "TestARenewalThatFailsAtOnceIsSentAgainSoonWhereAnswersAreSlow")},
	},
	{
		name: "a renewal that is refused is sent again at once",
		why:  "An operator may take the refusal back. But each new stream may be a login, which costs etcd more than anything else (rule 25).",
		edits: []edit{{"internal/lease/renew.go", `attempt.Refused(r.err) || errors.Is(r.err`,
			`errors.Is(r.err`}},
		killers: []killer{inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce")},
	},
	{
		name: "each renewal opens a stream",
		why:  "clientv3.KeepAliveOnce does so, and meets another endpoint each time. But with user and password it logs in each time (rule 24).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `	if on := k.free(&w.r); on != nil {`,
			`	if on := k.free(&w.r); on != nil && false {`}},
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			inSim("TestAtRestALeaseCostsOneStreamAndOneMessageAPeriod"),
			onCluster("TestRenewalsLogInOnceWhileTheTokenLasts"),
		},
	},
	{
		name:  "a stream is kept wherever it leads",
		why:   "The stream answers each renewal. But etcd's grpc-proxy answers with the result of a renewal of its own, which it may have sent before (rule 1).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `proven: k.alone}`, `proven: true}`}},
		killers: []killer{
			core("etcd/keepalive", "TestBehindAProxyNoStreamIsKept"),
			onCluster("TestBehindEtcdsProxyEachRenewalHasAStream"),
		},
	},
	{
		name: "a watch may take three times as long to begin as answers of before took",
		why:  "etcd may be as slow yet, and another watch makes it slower. But a waiter reads nothing while it waits for its watch, and may be the first in line (rule 12).",
		edits: []edit{{"internal/etcd/attempt/attempt.go",
			`return min(d, max(least, Patience*c.Timeout)) <<`, `return d <<`}},
		killers: []killer{inArea("queue", "TestSlowAnswersOfBeforeDoNotDelayAWaiter")},
	},
	{
		name: "a renewal is sent behind one that has no answer",
		why:  "The stream is open, and etcd answers in order. But a member that hangs answers neither renewal (rule 13).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `	return on.state == idle && on.proven`,
			`	return on.state != over && on.proven`}},
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
		},
	},
	{
		name: "a renewal after a failure goes on the stream of that",
		why:  "The stream has answered. But the answer came from a leader that is cut off, and its word is worth nothing (rule 1).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `	return on.begun.After(r.After) && `,
			`	return `}},
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name: "a renewal that is given up leaves its stream to the next",
		why:  "The stream may be sound. But the late answer is then taken for the answer to a later renewal, and counts from that one's sending (rule 1).",
		edits: []edit{{"internal/etcd/keepalive/keepalive.go", `	c.mu.Lock()
	awaited := on.state == carrying && on.answers == answers
	c.mu.Unlock()
	if awaited {
		on.end()
	}
`, `	c.with(func(k *streams, _ *budget, now time.Time) {
		if on.state == carrying && on.answers == answers {
			on.state, on.used = idle, now
			answers <- answer{err: context.DeadlineExceeded}
			k.settle(on, now)
		}
	})
`}, {"internal/etcd/keepalive/keepalive.go", `		<-on.over
		err = clientv3`, `		err = clientv3`}},
		killers: []killer{core("etcd/keepalive", "TestNoAnswerIsTakenForThatToALaterRenewal")},
	},
	{
		name: "a silent stream is ended when another has answered",
		why:  "Nobody needs its answer any more. But etcd may yet carry out the renewal that was sent on it, and only the answer says that it has. Until then the worth of each renewal costs a read.",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `		if on.state == idle && ofNoUse(on) {`,
			`		if ofNoUse(on) {`}},
		killers: []killer{core("etcd/keepalive", "TestEachRenewalIsToldItsOwnAnswer")},
	},
	{
		name: "renewals stay where the client was",
		why:  "The stream is open. But the client was moved to another cluster, which gives the lock to another (rule 26).",
		edits: []edit{{"internal/etcd/conn.go", `Endpoints: strings.Join(c.Endpoints(), " ")`,
			`Endpoints: strings.Repeat(" ", 1)`}},
		killers: []killer{inSim("TestRenewalsGoWhereTheClientGoes")},
	},
	{
		name: "the end of a stream is a failure of the renewal",
		why:  "The renewal has failed. But tokens end all the time, and a member stops at each upgrade. Each time, keys that linger are given up, and an alarm is raised.",
		edits: []edit{{"internal/lease/renew.go", `	case last && streamIsOver(r.err) && !k.repeated:
`, `	case last && streamIsOver(r.err) && false:
`}},
		killers: []killer{inArea("lease", "TestARenewalWhoseStreamEndsIsSentAgainAtOnce")},
	},
	{
		name: "a renewal that has failed is repeated as the lease's own schedule says",
		why:  "Each lease is repeated some fifty times at most, so that its hold survives. But a thousand Sessions of a client do so at the same time, and send sixty renewals for each that a healthy etcd gets (rule 25).",
		edits: []edit{{"internal/lease/repeats.go", `		wanted = k.sender.Repeat(k.until(), wanted)
`, `		_ = k.sender.Repeat(k.until(), wanted)
`}},
		killers: []killer{named("TestRenewalsThatFailAtOnceHaveABudget")},
	},
	{
		name:    "the first repeats of a renewal wait as the others do",
		why:     "They come out of the same budget. But leases that fail for good have used that up, and one lost message then costs another lease its hold (rule 13).",
		edits:   []edit{{"internal/etcd/keepalive/repeats.go", `	urgent = 2`, `	urgent = 0`}},
		killers: []killer{core("etcd/keepalive", "TestTheFirstRepeatsOfALeaseWaitForNothing")},
	},
	{
		name: "each lease keeps within the budget, the first one, too",
		why:  "The budget is what all leases have together. But a single lease needs more of it than its share while two of three requests fail, and nobody finds out that etcd is back (rule 13).",
		edits: []edit{{"internal/etcd/keepalive/repeats.go", `	case b.failing[0] == s:
`, `	case b.failing[0] == s && false:
`}, {"internal/etcd/keepalive/repeats.go", `i > 0 && b.bank < 1`,
			`i >= 0 && b.bank < 1`}},
		killers: []killer{
			core("etcd/keepalive", "TestTheLeaseThatEndsFirstIsRepeatedFirst"),
			core("etcd/keepalive", "TestTheBudgetIsKept"),
			named("TestAllLeasesAreRenewedSoonWhenEtcdIsBack"),
		},
	},
	{
		name: "those that wait for a repeat are served as they come",
		why:  "First come, first served. But a lease that is about to end waits behind those that have minutes (rule 13).",
		edits: []edit{{"internal/etcd/keepalive/repeats.go", `	for i, s := range b.failing {
		if b.waiting`, `	for i, s := range slices.Backward(b.failing) {
		if b.waiting`}},
		killers: []killer{core("etcd/keepalive", "TestTheLeaseThatEndsFirstIsRepeatedFirst")},
	},
	{
		name: "a lease whose trust has ended stays the first",
		why:  "Its keeper says when it needs no repeats any more. But that may wait for a mutex, and meanwhile no lease is the first (rule 27).",
		edits: []edit{{"internal/etcd/keepalive/repeats.go", `	for len(b.failing) > 0 && `,
			`	for false && `}},
		killers: []killer{core("etcd/keepalive", "TestALeaseThatHasEndedHoldsUpNoOther")},
	},
	{
		name: "each lease has a stream for its renewals",
		why:  "So no lease waits for another, and the errors of one end no stream of another. But when a member restarts, a thousand leases log in at once (rule 25).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `		case !r.mayUse(on):
`, `		case !r.mayUse(on), on.by != r.by:
`}},
		killers: []killer{
			core("etcd/keepalive", "TestTheLeasesOfAClientShareAStream"),
			inSim("TestALostStreamIsReplacedOnceForAllLeases"),
			onCluster("TestTheRenewalsOfManySessionsLogInSeldom"),
		},
	},
	{
		name: "a renewal without a stream opens one at once",
		why:  "A renewal is not to wait. But those of a thousand leases then log in at once, and etcd answers all of them late (rule 25).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `	return k.alone || k.opening`,
			`	return true || k.opening`}},
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
		},
	},
	{
		name:  "a stream that fails is replaced at once",
		why:   "At most four are being opened at a time. But each that fails at once is followed by another, and each may be a login (rule 25).",
		edits: []edit{{"internal/etcd/keepalive/streams.go", ` && k.credit >= 1`, ``}},
		killers: []killer{
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
		},
	},
	{
		name:    "streams that hang hold up all others",
		why:     "At most four are being opened at a time. But four may lead to a member that hangs (rule 13).",
		edits:   []edit{{"internal/etcd/keepalive/keepalive.go", `k.opened(on, now)`, `_, _ = on, now`}},
		killers: []killer{core("etcd/keepalive", "TestStreamsThatHangHoldUpNoOthers")},
	},
	{
		name:    "a renewal goes on a stream from before a set-back",
		why:     "The stream is open, and leads to the endpoint that the client has. But where an address was moved to another cluster, it still leads to the old one (rule 26).",
		edits:   []edit{{"internal/etcd/keepalive/streams.go", ` && on.begun.After(r.Where.Since)`, ``}},
		killers: []killer{core("etcd/keepalive", "TestAStreamFromBeforeASetBackIsNotUsed")},
	},
	{
		name: "streams that were needed once stay",
		why:  "They may be needed again. But after an outage, or a mass start, hundreds stay open for good.",
		edits: []edit{{"internal/etcd/keepalive/streams.go", `		k.endRested(now)
	}
`, `	}
`}},
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestEachRenewalIsToldItsOwnAnswer"),
		},
	},
	{
		name: "a renewal that has failed is repeated each second, however long the TTL",
		why:  "A second is seldom enough. But a fleet whose leases are to be renewed once in twenty minutes then asks 1,200 times as often as a healthy etcd is asked (rule 25).",
		edits: []edit{{"internal/lease/trust/schedule.go", `time.Second), s.Period/30)`,
			`time.Second), 0)`}},
		killers:    []killer{core("lease/trust", "TestFewAttemptsFailWhateverTheTTL")},
		unexplored: "how many attempts a fleet makes is counted, and not a hold that is lost",
	},
	{
		name: "only the Session that notices it watches anew when the stream is silent",
		why:  "It is the Session's listener that is told. But the stream is that of all Sessions of the client, and the watches of the others hear nothing either (rule 12).",
		edits: []edit{{"internal/etcd/watch.go", `				other.tasks.Go(other.listener.StreamSilent)
`, `				_ = other.tasks
`}},
		killers: []killer{inArea("watching", "TestAllSessionsWatchAnewWhenTheirStreamIsDead")},
	},
	{
		name: "a Session is told of a silent stream for as long as the client lives",
		why:  "It may watch again. But the client, and with it all its Sessions, then live for ever (rule 22).",
		edits: []edit{{"internal/etcd/stream.go", `		if s.watches[of]--; s.watches[of] == 0 {`,
			`		if s.watches[of]--; false {`}},
		killers: []killer{core("etcd", "TestASilentStreamIsTold")},
	},
	{
		name: "a read that only tries waits for a view that etcd refuses",
		why:  "The view ends, and a waiter of a whole one is told why. But nothing marks the line, so the try waits for its whole TTL (rule 8).",
		edits: []edit{{"internal/queue/view.go", `		if v.partial && !v.isOverLocked() {`,
			`		if v.partial && v.isOverLocked() {`}},
		killers: []killer{inArea("kinds", "TestTryRLockTellsThatTheLineMayNotBeRead")},
	},
	{
		name: "renewals go by the TTL, whatever the margin",
		why:  "Everybody renews at a third of the TTL. But with a margin of two thirds the trust is over by then (rule 1).",
		edits: []edit{{"internal/lease/trust/schedule.go", `max(min(granted/3, span/9*4), leastPeriod)`,
			`max(granted/3, leastPeriod)`}},
		killers: []killer{explorationOfTrust, inArea("lease", "TestNoMarginLosesTheHoldsOfAHealthyEtcd")},
	},
	{
		name: "what lasts goes by the TTL, whatever the margin",
		why:  "A third of the TTL is left when two renewals have failed. But with a margin of two thirds that much is never left: nothing lingers, and nothing is passed on (WithHandoff, WithLinger).",
		edits: []edit{{"internal/lease/lease.go", `{ return l.plan.Lasts(l.until().Sub(now)) }`,
			`{ return l.until().Sub(now) > l.TTL/3 }`}},
		killers: []killer{inArea("lease", "TestWithAnyMarginKeysLingerAndHoldsArePassedOn")},
	},
	{
		name: "a lost lease is renewed",
		why:  "The loser may still be at work, so it seems kind to give it time. But the key then stands in everybody's way for longer than the TTL (rule 11).",
		edits: []edit{{"internal/lease/renew.go", `			if k.verdict == leaseRenew && l.isOver() == nil {
`, `			if k.verdict != leaseOver {
`}},
		killers: []killer{inArea("lease", "TestALostLeaseIsRenewedNoMore")},
	},
	{
		name: "who waits audits as seldom soon after a put as later",
		why:  "An audit costs a request. But a late copy of the put is a key that blocks everybody, and 32 renewal periods are 11 TTLs (rule 9).",
		edits: []edit{{"internal/queue/audit.go", `	case a.swept.Sub(a.placed) >= a.lease.TTL:`,
			`	default:`}},
		killers: []killer{inArea("lease", "TestAKeyThatALateRequestPutsIsSwept")},
	},
	{
		name:    "what may be recalled is audited by its values alone",
		why:     "The values show a recall, and a loss as well. But only the keys on the lease show a late copy of the put (rule 9).",
		edits:   []edit{{"internal/queue/audit.go", `	a.byValues = !a.byValues`, `	a.byValues = true`}},
		killers: []killer{inArea("lease", "TestAKeyThatALateRequestPutsIsSwept")},
	},
	{
		name: "who waits in a long line audits as soon as in a short one",
		why:  "A late copy of a put should be found soon. But in a crowd that goes round and round everybody has just put a key: 2,000 Sessions would send 100 audits a second (rule 24).",
		edits: []edit{{"internal/queue/audit.go", `max(coveredAudits*period, asRechecks)`,
			`max(coveredAudits*period, 0*asRechecks)`}},
		killers: []killer{inArea("queue", "TestWhoWaitsInALongLineAuditsAsRarelyAsItRechecks")},
	},
	{
		name:    "audits are a multiple of a period apart",
		why:     "So it says. But a third of the longest TTLs overflows if it is multiplied by four: each audit is followed by the next one at once (rule 24).",
		edits:   []edit{{"internal/queue/audit.go", `math.MaxInt64 / idleAudits`, `math.MaxInt64`}},
		killers: []killer{inArea("watching", "TestTheLongestTTLsCostNoMoreThanOthers")},
	},
	{
		name: "nobody looks at the keys of the lease",
		why:  "Renewals show when the lease is gone. But they do not show that the key is gone (rule 5).",
		edits: []edit{{"internal/queue/audit.go", `	return now.Sub(last) >= a.auditPeriodLocked(now, holds)
`, `	return now.Sub(last) < 0 && holds.watched
`}},
		killers: []killer{inArea("watching", "TestALossIsToldThoughAllWatchesAreSilent")},
	},
	{
		name:    "a key that no watch covers is looked at as seldom as one that is watched",
		why:     "The watch will be back. But until then only an audit shows a loss (rule 5).",
		edits:   []edit{{"internal/queue/audit.go", `doubtful || !holds.watched || a`, `doubtful || a`}},
		killers: []killer{inArea("watching", "TestALossIsToldThoughAllWatchesAreSilent")},
	},
	{
		name: "nobody watches the keys of holds",
		why:  "The audits show a loss. But they are seldom (rule 5).",
		edits: []edit{{"internal/queue/audit.go", `			if p.watch == nil {
				p.watch = newKeyWatchLocked(p)
			}
			c.watched = c.watched && p.watch.sure
`, `			c.watched = c.watched && p.watch != nil && p.watch.sure
`}},
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name: "the watch of a key is sure before the key is read",
		why:  "The watch delivers all that happens. But it does not deliver what happened before it was created (rule 5).",
		edits: []edit{{"internal/queue/keywatch.go", `	a.unread = append(a.unread, unread{w, w.made})
`, `	w.sure = true
	a.unread = append(a.unread, unread{w, -1})
`}, {"internal/queue/keywatch.go", `		if p.watch == w && p.observedLocked(`, `		if p.watch == w && e.Rev == p.Ticket.Rev() && p.observedLocked(`}},
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name:  "an event ends a hold by the name of the key",
		why:   "The watch is of that very key. But the key's name is used again, and a member that is behind delivers an event of an earlier use (rule 20).",
		edits: []edit{{"internal/ticket/observe.go", `, o.At != 0 && o.At < t.rev:`, `:`}},
		killers: []killer{core("ticket", "TestObservations"), core("ticket", "TestWhatIsSeenOfAKey"),
			inArea("watching", "TestAnEventOfAnEarlierUseOfTheNameEndsNoHold")},
	},
	{
		name:    "a hold is lost before etcd was asked why",
		why:     "The key is gone, whatever the reason. But the holder then learns that it was deleted, though its lease was revoked (rule 5).",
		edits:   []edit{{"internal/ticket/ticket.go", ` || o.AskFirst && seen != PutOver:`, `:`}},
		killers: []killer{core("ticket", "TestObservations"), core("ticket", "TestWhatIsSeenOfAKey")},

		unexplored: "TestObservations goes every way of an observation. In the exploration nothing asks etcd for the reason of a loss.",
	},
	{
		name: "a watch is left when its hold has ended",
		why:  "A watch costs nothing while nothing happens, and names are used again. But a process that has held ten thousand names has ten thousand watches (rule 22).",
		edits: []edit{{"internal/queue/place.go", `		p.keys.mu.After(w.cancel)
`, `		_ = w
`}},
		killers: []killer{inArea("watching", "TestAShortHoldCostsNothingAndALongOneIsWatched")},
	},
	{
		name: "each of any number of keys is watched",
		why:  "A watch costs nothing while nothing happens. But ten thousand watches of one Session are ten thousand goroutines (rule 21).",
		edits: []edit{{"internal/queue/audit.go", `	if len(a.places) <= manyPlaces {`,
			`	if len(a.places) >= 0 {`}},
		killers: []killer{inArea("watching", "TestTenThousandHoldsHaveNoWatchEach")},
	},
	{
		name: "a waiter looks as often however long it has waited",
		why:  "An event may be lost at any time. But the rechecks then cost more than the lease (rule 24).",
		edits: []edit{{"internal/recheck/recheck.go", `	if relied > young {
		period = relied
	}
`, ``}},
		killers: []killer{core("recheck", "TestWhoHasWaitedForLongLooksSeldom"),
			inArea("watching", "TestAnIdleWaitCostsItsRenewalsAndLittleElse")},
	},
	{
		name:  "a waiter looks as often however long the line is",
		why:   "One waiter rechecks seldom. But a thousand together do not (rule 24).",
		edits: []edit{{"internal/recheck/recheck.go", `crowd > period {`, `crowd < 0 {`}},
		killers: []killer{core("recheck", "TestAllInALineTogetherLookSeldom"),
			inArea("watching", "TestTheRechecksOfALongLineAreFew")},
	},
	{
		name: "a look at the keys is believed",
		why:  "etcd lists the keys of the lease, and the key is not among them. But an old leader's list is an old list (rule 5).",
		edits: []edit{{"internal/queue/audit.go",
			`observedLocked(ticket.Observation{Entry: e, LeaseGone: !known})`,
			`observedLocked(ticket.Observation{Entry: line.Entry{Key: e.Key}, LeaseGone: !known})`}},
		killers: []killer{inArea("lease", "TestALookThatOmitsALiveKeyEndsNothing")},
	},

	// ---- truth: rules 6 to 8

	{
		name: "a member that cannot serve a request may have carried it out",
		why:  "Only an answer tells what became of a request. But a learner's refusal is one: the next request finds no key, somebody else has deleted it, and Unlock says nil (rule 6).",
		edits: []edit{{"internal/etcd/attempt/errors.go", `return classify(err) >= incapable`,
			`return classify(err) >= unapplied`}},
		killers: []killer{
			inArea("mutex", "TestARequestThatWasNotCarriedOutDoesNotMakeALossLookLikeARelease"),
			core("etcd/attempt", "TestOnlyAnAnswerSaysThatAWriteWasNotApplied"),
		},
	},
	{
		name:    "an inner Do speaks for the outer one",
		why:     "fn's error belongs to the caller and is returned as it is. But if it comes from another Do that could not lock, the caller thinks that its own work was not begun (rule 8).",
		edits:   []edit{{"lock.go", `return ran(fn(withHold(ctx, h)))`, `return fn(withHold(ctx, h))`}},
		killers: []killer{inArea("mutex", "TestDoTellsWhetherItCalledItsFunction")},
	},
	{
		name:    "the TTL is what was asked for",
		why:     "The program knows the TTL that it asked for. But etcd may have granted a longer one, and then a crash blocks the others for longer.",
		edits:   []edit{{"hold.go", `TTL: p.Lease.TTL`, `TTL: h.m.s.cfg.ttl`}},
		killers: []killer{inArea("mutex", "TestAHoldTellsItsGrantedTTLAndItsMargin")},
	},
	{
		name: "a label hides the process",
		why:  "The user chose the label to be shown. But a thousand processes may have the same one.",
		edits: []edit{{"admin.go", `	case c.Owner != "" && (c.Host == "" || c.Owner == process):`,
			`	case c.Owner != "" || process == "":`}},
		killers: []killer{inArea("mutex", "TestALockedErrorIsErrLockedAndTellsWho")},
	},
	{
		name: "a look is cancelled before the lease is revoked",
		why:  "Nobody needs its answer any more. But clientv3 logs a warning for it, on the stderr of programs that close as they should.",
		edits: []edit{{"internal/queue/audit.go", `context.WithTimeout(k.ctx, k.etcd.Timeout)`,
			`context.WithTimeout(ctx, k.etcd.Timeout)`}},
		killers: []killer{onCluster("TestClosingIsNoWarning/while_a_look_is_under_way")},
	},
	{
		name: "a request goes by a client that is closed",
		why:  "The client says itself that it is closed. But it does so after a hundred tries, and as many warnings.",
		edits: []edit{{"internal/etcd/attempt/link.go", `	if c.Closed() {`,
			`	if c.Closed() && false {`}},
		killers: []killer{onCluster("TestClosingIsNoWarning/after_the_client")},
	},

	{
		name: "a release does not compare the create revision",
		why:  "The key has a UUID, and the lease is compared. But names are used again, so a late copy of a release deletes the next hold's key (rule 6).",
		edits: []edit{{"internal/ticket/release.go", `[]clientv3.Cmp{t.Exists(), t.OnLease()}`,
			`[]clientv3.Cmp{t.OnLease()}`}},
		killers: []killer{core("ticket", "TestExploration"),
			onCluster("TestALateReleaseTouchesNoLaterHold")},
	},
	{
		name: "Unlock of a key that is gone is nil",
		why:  "The lock is free, as the caller wanted, and the request may have been sent twice. But the lock may have been lost long ago (rule 6).",
		edits: []edit{{"internal/ticket/release.go", `	r.copies = r.copies || a.Copies
`, `	r.copies = true
`}},
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestWhatAReleaseSays"),
			simulation(1000), inArea("lease", "TestUnlockTellsOfALossThatNobodyHasNoticed")},
	},
	{
		name: "a lost answer unsays that the key was gone",
		why:  "What a copy finds says nothing, and there may have been copies. But the answer before them did say something (rule 6).",
		edits: []edit{{"internal/ticket/release.go", `		r.missed = r.missed || !r.copies // for certain, whatever the next answer says
`, ``}},
		killers: []killer{exploring("two faults"), core("ticket", "TestWhatAReleaseSays"),
			inArea("mutex", "TestAReleaseThatFoundNoKeyStaysALossWhateverGetsLost")},
	},
	{
		name: "a release whose answer was lost is called a loss",
		why:  "The key is gone, and this request did not delete it. But the request before may have (rule 6).",
		edits: []edit{
			{"internal/ticket/release.go", `	r.copies = r.copies || a.Copies
`, ``},
			{"internal/ticket/release.go", `	r.copies = r.copies || o == Unknown
`, ``},
		},
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestWhatAReleaseSays"),
			simulation(1000), inArea("outages", "TestRandomSchedules")},
	},
	{
		name: "a release is confirmed whatever the hold was worth",
		why:  "A copy may have removed the key. But once the hold was no longer certain, the end of the lease may have removed it, too (rule 6).",
		edits: []edit{{"internal/ticket/release.go", `	case !now.Certain:
`, `	case !now.Certain && now.Stale:
`}},
		killers: []killer{exploring("two faults"), core("ticket", "TestWhatAReleaseSays")},
	},
	{
		name: "a place whose put was not answered was not put",
		why:  "The release that was to put the key was not answered, and nobody has seen the key. But it may stand in line all the same, for ever (rule 9).",
		edits: []edit{{"internal/ticket/ticket.go", `		if a.Doubtful() {
			t.sends()
		}
		return false
`, `		return false
`}},
		killers: []killer{core("ticket", "TestExploration")},
	},
	{
		name: "a removal does not compare the create revision",
		why:  "The name belongs to the ticket alone. But it is used again, and the removal may come late (rules 6 and 9).",
		edits: []edit{{"internal/ticket/ticket.go", `If: []clientv3.Cmp{t.Exists()}, Then: gone`,
			`If: nil, Then: gone`}},
		killers: []killer{core("ticket", "TestExploration")},
	},
	{
		name: "a turn that was left goes to nobody",
		why:  "The waiter was chosen, and has gone away, so the turn ends with it. But then nobody tells those who wait (rule 12).",
		edits: []edit{{"internal/turn/turn.go", `	q.owner.standing = Gone
	w := q.First()
`, `	q.owner.standing = Gone
	w := q.First()
	if q.state == Passing && w != nil && w.standing != Next {
		w = nil
	}
`}},
		killers: []killer{core("turn", "TestTurns"), core("ticket", "TestExploration")},
	},
	{
		name: "a renewal that is refused ends the hold at once",
		why:  "A retry does not fix a refusal. But an operator does, who has just enabled auth or changed a role, and the lease lives meanwhile (rule 1, ErrExpired).",
		edits: []edit{{"internal/lease/renew.go", `		l.trusts(func(*trust.Trust) { l.refusal = err })
`, `		l.endRevoked(err)
`}},
		killers: []killer{inArea("mutex", "TestRenewalsThatAreRefusedForAWhileLoseNothing")},
	},
	{
		name: "a loss does not say what etcd refused",
		why:  "The hold ended because its time was over. But then only the log says that etcd answered all the time, and what it answered (ErrExpired).",
		edits: []edit{{"internal/lease/lease.go", `		l.overForSafe(l.pool.config.Error(Expired, l.refusal))
`, `		l.overForSafe(l.pool.config.Error(Expired, nil))
`}},
		killers: []killer{inArea("mutex", "TestALossHasAReasonThatErrorsIsTells")},
	},
	{
		name: "Unlock is bound to the context that has ended",
		why:  "A function should not outlive its context. But defer mu.Unlock(ctx) after a cancelled request is the common case (rule 7).",
		edits: []edit{{"release.go", `		over := &attempt.BoundError{Of: "a release whose context had ended", Most: ifEnded}
		return context.WithTimeoutCause(context.WithoutCancel(ctx), ifEnded, over)
`, `		return ctx, func() {}
`}},
		killers: []killer{inContract("TestUnlockWorksWithAnEndedContext")},
	},

	{
		name:    "Do unlocks whatever the Mutex holds",
		why:     "Do is Lock, fn and Unlock. But if fn has unlocked, it releases the hold of another goroutine (rule 6).",
		edits:   []edit{{"lock.go", `m.unlock(ctx, h)`, `m.unlock(ctx, nil)`}},
		killers: []killer{inContract("TestDoLeavesTheNextHoldOfItsMutexAlone")},
	},
	{
		name: "the hook of a Do that gets no lock is told the error of its Lock",
		why:  "It has the same text, and all that the call found. But it is not the error that the call returns (rule 8).",
		edits: []edit{{"acquire.go", `		if c.runs {
			err = notRun(err)
		}
`, ``}},
		killers: []killer{inArea("mutex", "TestGaveUpTellsTheErrorThatTheCallReturns")},
	},
	{
		name: "the error of a Do wraps what its hook was told",
		why:  "The hook has an error that is ErrNotRun, too. But it is another one (rule 8).",
		edits: []edit{{"errors.go", `	if errors.Is(why, ErrNotRun) {
		return why
	}
`, ``}},
		killers: []killer{inArea("mutex", "TestGaveUpTellsTheErrorThatTheCallReturns")},
	},

	// ---- etcd set back: rule 26

	{
		name: "etcd is never set back",
		why:  "A cluster does not lose what was committed. But a restore, a wipe and a move to another cluster do (rule 26).",
		edits: []edit{{"internal/etcd/conn.go", `		c.history.begin(sent.era, h)
`, `		_ = (*history).begin
`}},
		killers: []killer{inArea("outages", "TestNoTwoHoldAfterEtcdWasSetBack")},
	},
	{
		name: "what a view does not know is gone",
		why:  "The view has every event. But it lacks the revisions between the snapshot from which etcd was restored and the revision that etcd had reached (rule 26).",
		edits: []edit{{"internal/queue/view.go", `shown := v.read >= p.Ticket.Rev() && v.keys`,
			`shown := v.keys`}},
		killers: []killer{inArea("outages", "TestAViewFromBeforeASetBackLetsNobodyIn")},
	},
	{
		name: "a release that a set-back overtakes is confirmed",
		why:  "The key is gone, and a copy of the release may have removed it. But the restore may have, too (rules 6 and 26).",
		edits: []edit{{"internal/ticket/release.go", `	case now.Stale: // a copy may have removed it, or etcd was restored without it
`, `	case now.Stale && !now.Certain:
`}},
		killers: []killer{
			exploring("a set-back, and calls without an answer"),
			core("ticket", "TestWhatAReleaseSays"),
			inArea("outages", "TestAReleaseThatASetBackOvertakesIsNotConfirmed"),
		},
	},
	{
		name: "a place from before a set-back counts",
		why:  "The place was first in line, as etcd had said. But that was another line (rule 26).",
		edits: []edit{{"internal/queue/place.go",
			`func (p *Place) StaleLocked() bool { return p.epoch != p.keys.etcd.Epoch() }`,
			`func (p *Place) StaleLocked() bool { return false }`}},
		killers: []killer{inArea("outages", "TestNoTwoHoldAfterEtcdWasSetBack")},
	},
	{
		name: "a hold whose key is there after a set-back stays one of before it",
		why:  "It goes on. But its place never counts again: no read joins it, though nothing is in the way.",
		edits: []edit{{"internal/queue/audit.go", `p.epoch = part.Epoch // a waiter`,
			`_ = p.epoch // a waiter`}},
		killers: []killer{inArea("kinds", "TestReadersGoOnAfterASetBackThatLeavesTheirKey")},
	},

	{
		name: "a set-back delays no hold",
		why:  "The line of now says who holds. But a holder from before may not have heard of the set-back yet (rule 26).",
		edits: []edit{{"internal/queue/delay.go", `	return max(0, d.until(last).Sub(now))
`, `	return 0 * d.until(last).Sub(now)
`}},
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestTheLockDelayCountsFromTheLastSetBack"), simulation(400),
		},
	},
	{
		name:  "the lock delay is a TTL of one's own",
		why:   "All Sessions of a program have one TTL. But other programs may lock the same name (rule 26).",
		edits: []edit{{"internal/queue/delay.go", `max(last.own, d.longest)`, `last.own`}},
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown"),
		},
	},
	{
		name: "the lock delay counts from the request that shows the set-back",
		why:  "Trust counts from the request. But etcd may have confirmed the holder's renewals until after that one was sent (rule 26).",
		edits: []edit{{"internal/etcd/conn.go", `	if c.isSetBack(h, sent.epoch, sent.revision) {
`, `	if c.isSetBack(h, sent.epoch, sent.revision) {
		c.history.present.Load().Noticed = sent.at
`}},
		killers: []killer{inArea("outages", "TestALockDelayCountsFromTheAnswer")},
	},
	{
		name: "a write at a revision that was known shows nothing",
		why:  "No revision went back. But each write has a new one, so the etcd that answers has another history (rule 26).",
		edits: []edit{{"internal/etcd/conn.go", `	if read.wrote {
		sent.revision++
	}
`, ``}},
		killers: []killer{inArea("outages", "TestAWriteAtARevisionThatWasKnownShowsASetBack")},
	},
	{
		name: "contenders that come after a set-back lengthen the lock delay",
		why:  "The delay is worked out as it is asked for, by all that is known. But who is met in the etcd of now holds nothing from before, and its TTL may be long.",
		edits: []edit{{"internal/queue/line.go", `	n.delay.until(n.keys.setBack) // by those that it had met before
`, ``}},
		killers: []killer{
			inArea("outages", "TestTheLockDelayDoesNotCountThoseWhoCameAfterTheSetBack"),
		},
	},
	{
		name: "a contender whose TTL is not known has the default one",
		why:  "Nearly all have. But the default of etcd's own library is four times that (rule 26).",
		edits: []edit{{"internal/line/value.go", `const UntoldTTL = time.Minute`,
			`const UntoldTTL = 15 * time.Second`}},
		killers:    []killer{inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown")},
		unexplored: "The explorations know no TTLs.",
	},
	{
		name: "a key that outlasts its hold lengthens the lock delay",
		why:  "It stands in line, on a lease of its own. But nobody holds by it, and that lease may last for a day.",
		edits: []edit{{"internal/line/value.go", `		return 0, true
`, `		return UntoldTTL, true
`}},
		killers: []killer{inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown"),
			core("line", "TestAValueTellsTheTTLOfItsLease")},
		unexplored: "The explorations know no TTLs.",
	},
	{
		name: "a key that is put alone is held in spite of the lock delay",
		why:  "A wait ends with the delay. But a put that finds nobody ahead needs no wait: what begins a hold asks, whichever way it came (rule 26).",
		edits: []edit{{"hold.go", `	if p.hold == nil && p.local.DelayLocked(now) > 0 {`,
			`	if false {`}},
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestReadersWaitTogetherForTheEndOfTheLockDelay"),
		},
	},
	{
		name: "a read joins one that waits for the end of the lock delay",
		why:  "The key is first in its line, and stays it. But nobody has held by it before the set-back (rule 26).",
		edits: []edit{{"claim.go",
			`	case beside && n.queue.Owner().place.checkCanBeginLocked(c, time.Now()) == nil:
`, `	case beside:
`}, {"place.go", `		return p.hold == nil
`, `		return false
`}},
		killers: []killer{inArea("outages", "TestReadersWaitTogetherForTheEndOfTheLockDelay")},
	},
	{
		name: "a key that was held before a set-back is delayed as any other",
		why:  "It is the same etcd for all. But nobody else can hold from before, and the lock stands idle for a TTL.",
		edits: []edit{{"hold.go", `p.hold == nil && p.local.DelayLocked(now) > 0`,
			`p.local.DelayLocked(now) > 0`}},
		killers: []killer{inArea("outages", "TestAHoldThatASetBackLeavesIsHandedOnWithoutADelay")},
	},
	{
		name: "a call that only tries waits for the end of the lock delay",
		why:  "No other contender is known to be in the way. But it waits for one all the same: for one from before the set-back.",
		edits: []edit{{"acquire.go", `		case err == errDelayed && c.Try:
			return nil, queue.ErrTaken
`, ``}},
		killers: []killer{inArea("outages", "TestCallsAreToldOfTheLockDelay")},
	},
	{
		name: "what etcd confirms after a set-back is trusted",
		why:  "It knows the lease. But the snapshot may have that and not the key: then a hold lives on that others do not see (rule 26).",
		edits: []edit{{"internal/lease/lease.go", `	return l.read == sent && l.pool.etcd.IsPresent(sent)
`, `	return true
`}},
		killers: []killer{
			inArea("outages", "TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead"),
		},
	},
	{
		name: "each Session notices a set-back by itself",
		why:  "Each hears from etcd. But one that hears late may hear nothing that shows it, and one that begins later knows of nothing (rule 26).",
		edits: []edit{{"internal/etcd/epoch.go", `	return attempt.SharedBy(&histories, client, func() *history {
		h := &history{}
		h.present.Store(&era{})
		return h
	})
`, `	_ = &histories
	h := &history{}
	h.present.Store(&era{})
	return h
`}},
		killers: []killer{
			inArea("outages", "TestTheSessionsOfAClientKnowOfASetBackTogether"),
			inArea("outages", "TestASessionThatBeginsAfterASetBackNoticesItByWhatItsClientKnew"),
		},
	},

	// ---- the line: rules 4, 12, 14, 19 and 20

	{
		name: "the line is in the order of the keys",
		why:  "A range returns the keys in this order. But then a contender with a lesser UUID gets in beside the holder (rule 1).",
		edits: []edit{{"internal/line/line.go", `return cmp.Compare(a.Rev, b.Rev)`,
			`return cmp.Compare(a.Key, b.Key)`}},
		killers: []killer{core("ticket", "TestExploration"),
			core("line", "TestTheOrderIsThatOfTheCreateRevisions"), simulation(20),
			inArea("queue", "TestSessionsGetInByCreateRevision")},
	},
	{
		name: "a place waits for the one before it only",
		why:  "The one before waits in turn for those before it. But if it leaves, the place enters beside the holder (rule 1).",
		edits: []edit{{"internal/line/line.go", `	return l[:after]`,
			`	return l[max(after-1, 0):after]`}},
		killers: []killer{core("ticket", "TestExploration"), core("line", "TestTheRuleOfEntry")},
	},
	{
		name: "a limited reading is taken for complete",
		why:  "The keys that were read are the nearest, and no contender is among them. But all of them may be keys that are no contenders (rules 14 and 24).",
		edits: []edit{{"internal/line/ahead.go", `		a.Whole = a.Whole && r != nil && (!r.More || len(newest) > 1 && i == OfReads)
`, `		a.Whole = a.Whole && r != nil && i >= 0
`}},
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestWhatALimitedReadingTells"),
			inArea("queue", "TestStrayKeysThatFillWhatIsReadLetNobodyIn"),
		},
	},
	{
		name: "what a put in a crowd has read of keys alone is no contender",
		why:  "A key read alone shows no lease, and a key without a lease is no contender. But these keys may have one: the put finds nobody, and lets in beside them (rules 1 and 14).",
		edits: []edit{{"internal/line/ahead.go", `e.MayStandIn(name) {
			a.Last`, `e.StandsIn(name) {
			a.Last`}},
		killers: []killer{
			exploring("three Sessions of a crowd, reading keys of one"),
			core("line", "TestWhatKeysAloneTellOfTheNearest"),
			inArea("queue", "TestWhoReturnsWhenTheCrowdHasGone"),
		},
	},
	{
		name: "what a look has read of keys alone is no contender",
		why:  "A key read alone shows no lease, and a key without a lease is no contender. But these keys may have one: the look lets in beside them (rules 14 and 20).",
		edits: []edit{{"internal/line/ahead.go", `		return e.Key != own && e.MayStandIn(name)
`, `		return e.Key != own && e.StandsIn(name)
`}},
		killers: []killer{
			exploring("TryRLock beside a reader and a writer"),
			core("line", "TestWhatKeysAloneTell"),
			inArea("queue", "TestWhoMovesUpInALongLineDoesNotEnterBesideTheHolder"),
		},
	},
	{
		name:  "a look at keys alone takes the own key for what was put",
		why:   "The key is there, with its create revision. But somebody may have put it over, with another lease or with none (rule 12).",
		edits: []edit{{"internal/line/ahead.go", ` && e.Mod == own.Rev`, ``}},
		killers: []killer{
			core("ticket", "TestExploration"),
			core("line", "TestWhatKeysAloneTell"),
			inArea("queue", "TestNobodyEntersByAKeyThatWasPutOver"),
		},
	},
	{
		name: "who has put its key by a copy is the first",
		why:  "The answer shows the own key, and nobody before it. But the request did not ask for those before it (rule 1).",
		edits: []edit{{"internal/ticket/enter.go", `	case a.Succeeded:
		e.ahead = e.told.ahead // else a copy has put it: this answer shows no predecessors
`, `	default:
		e.ahead = line.None
	case a.Succeeded:
		e.ahead = e.told.ahead
`}},
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestWhatAPutSays")},
	},
	{
		name: "TryLock takes the oldest keys for all",
		why:  "No contender is among them. But there may be more strays than it reads (rule 14).",
		edits: []edit{{"internal/line/ahead.go", `		whole = whole && r != nil && (!r.More || past(r.Kvs[len(r.Kvs)-1]))
`, `		whole = whole && r != nil && (!r.More || past(r.Kvs[len(r.Kvs)-1]) || own.Rev == 0)
`}},
		killers: []killer{
			exploring("TryLock beside Lock, reading one, beside strays"),
			core("line", "TestTheOldestTellWhoHolds"),
			core("ticket", "TestWhatAPutSays"),
		},
	},
	{
		name: "a view is kept of a line that has become long",
		why:  "The line was short when the view began, and the view knows all changes. But eight waiters then get an event for each contender that comes behind (rule 24).",
		edits: []edit{{"internal/queue/view.go", `	if len(v.keys) <= longLine {
`, `	if len(v.keys) > 0 {
`}},
		killers: []killer{inArea("queue", "TestAViewEndsWhenItsLineIsLong")},
	},
	{
		name: "the next goroutine gets in after a loss",
		why:  "The lock is lost, so the local line could move on. But the loser has not stopped yet (rule 4).",
		edits: []edit{
			{"hold.go", `		o.becomesLocked(holdGone, cause)
		o.reportLost(cause)
`, `		o.becomesLocked(holdGone, cause)
		o.place.local.endTurnLocked(o.claim, nil)
		o.reportLost(cause)
`},
			{"hold.go", `		h.place.local.endTurnLocked(h.claim, nil)
		if h.warns != nil {
`, `		if h.warns != nil {
`},
		},
		killers: []killer{simulation(1000),
			inArea("queue", "TestALostHoldExcludesItsSessionUntilUnlock")},
	},
	{
		name: "a lost hold is told as the holder",
		why:  "The loser keeps the turn until its Unlock, so the others wait for it. But its key is gone, and another process may hold (rule 8).",
		edits: []edit{{"claim.go",
			`func (c *claim) lostLocked() bool { return c.hold != nil && c.hold.lossLocked() != nil }`,
			`func (c *claim) lostLocked() bool { return false }`}},
		killers: []killer{inArea("queue", "TestALostHoldIsNotToldAsTheHolder")},
	},
	{
		name:    "of several holds the one that has had the turn for longest is told as the holder",
		why:     "It stands first in line. But it may be lost, while another one holds (rule 8).",
		edits:   []edit{{"localqueue.go", `		if !c.lostLocked() {`, `		if true {`}},
		killers: []killer{inArea("queue", "TestOfSeveralHoldsOfASessionOneThatIsWholeIsToldAsTheHolder")},
	},
	{
		name: "who holds is told without a look at the clock",
		why:  "A timer ends the hold, and the key was there a moment ago. But the process may have been paused since (rules 2 and 8).",
		edits: []edit{{"localqueue.go", `		h.checkLocked(time.Now())
`, `		_ = time.Now
`}},
		killers: []killer{named("TestAHoldThatIsOverByTheClockIsNotToldAsTheHolder")},
	},
	{
		name: "a context that ended with ErrClosed is taken for a Close",
		why:  "Close ends the waits with that. But the caller's context may come from a hold of another lock, which was closed (rule 8).",
		edits: []edit{{"errors.go", `	if cause != errWaitClosed && `,
			`	if !errors.Is(cause, ErrClosed) && `}},
		killers: []killer{inArea("mutex", "TestAWaitTellsAContextThatEndedWithACloseFromItsOwnClose")},
	},
	{
		name:    "a wait of a closed Session says only that its line is over",
		why:     "Its context ends at the same moment, with the cause. But a wait may look before that, and its caller asks for ErrClosed (rule 8).",
		edits:   []edit{{"session.go", `Closed: ErrClosed, Lines`, `Closed: queue.ErrTaken, Lines`}},
		killers: []killer{named("TestAWaitSaysThatItsSessionIsClosedBeforeItsContextEnds")},
	},
	{
		name: "a hold is told by the hooks alone",
		why:  "Acquired tells of each hold. But hooks run some time later, and then the work is not below the span of its hold.",
		edits: []edit{{"acquire.go", `		ctx = trace.holds(ctx, h.waited())
`, ``}},
		killers: []killer{inArea("mutex", "TestTheContextOfACallLearnsOfTheHoldAtOnce")},
	},
	{
		name: "what is told of a hold may panic",
		why:  "It panics in the goroutine of its caller, as any function does. But the call holds by then, and no Unlock follows.",
		edits: []edit{{"trace.go", `	return made(ctx, func() context.Context { return c.Holds(ctx, waited) })
`, `	return c.Holds(ctx, waited)
`}},
		killers: []killer{inArea("mutex", "TestTheContextOfACallLearnsOfTheHoldAtOnce")},
	},
	{
		name: "a Start that panics undoes what the others have begun",
		why:  "A hook that panics skips those after it. But a span that another Start has begun would never end.",
		edits: []edit{{"trace.go", `			ctx = made(ctx, func() context.Context { return start(ctx, e) })
`, `			if next := start(ctx, e); next != nil {
				ctx = next
			}
`}},
		killers: []killer{inArea("mutex", "TestAStartThatPanicsUndoesNoOther")},
	},
	{
		name: "a try is refused for a key of its own Session that has just gone",
		why:  "No place accounts for the key, so the Session has nothing to wait for. But it has just removed it, and the answer is older (rule 7).",
		edits: []edit{{"internal/queue/keys.go", `		case !ours && a.hasDrawn(e.Key):
`, `		case !ours && false:
`}},
		killers: []killer{inArea("kinds", "TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone")},
	},
	{
		name: "a wait at home does not ask the context",
		why:  "The owner is in the same process and will unlock. But nobody knows when (rule 10).",
		edits: []edit{{"acquire.go", `		case <-ctx.Done():
			// What comes through turn after this is passed on by leaveLocked.
			h, locked := c.leave()
			if h == nil {
				return nil, c.gaveUp(ctx, context.Cause(ctx), locked, c.m.s.etcd.Unavailable())
			}
			return h, nil
		}
`, `		}
`}},
		killers: []killer{simulation(1000),
			inArea("queue", "TestAClaimThatLeavesOnItsWayLeavesNothingBehind")},
	},
	{
		name: "a watch without the slow re-check",
		why:  "A watch delivers every event or ends with an error. But on a member that is frozen it does neither (rule 12).",
		edits: []edit{
			{"internal/queue/view.go", `	tick := time.NewTimer(recheck.Least)
`, `	tick := time.NewTimer(recheck.Least)
	tick.Stop()
`},
			{"internal/queue/wait.go", `			if checking.finished() {
`, `			if false {
`},
		},
		killers: []killer{inArea("queue", "TestAWaiterGetsInWhateverBecomesOfItsWatch")},
	},
	{
		name: "a view tells only the place that waits by it",
		why:  "It is there for that place. But while the Session waits for another permit the watch of a permit that it holds has ended, for the view shows that key, too (rule 5).",
		edits: []edit{{"internal/queue/keys.go",
			`if p := a.places[e.Key]; p != nil && p.Removal.over == nil {`,
			`if p := a.places[e.Key]; p != nil && p.line.local.PlaceLocked() == p {`}},
		killers: []killer{inArea("kinds", "TestAPermitIsToldOfWhatHappensWhileAnotherOfItsSessionWaits")},
	},
	{
		name: "a check holds up the events",
		why:  "A check may show that events were missed. But an etcd that was frozen under a long line answers its checks one by one, and the next in line may get the last answer (rule 25).",
		edits: []edit{{"internal/queue/look.go", `	return check{stop, answer}
`, `	whole := make(chan checked, 1)
	whole <- <-answer
	close(whole)
	return check{stop, whole}
`}},
		killers: []killer{inArea("queue", "TestACheckKeepsNobodyFromHearingTheEvent")},
	},
	{
		name: "the re-checks of a long line are repeated as if one waited alone",
		why:  "A lost recheck should be repeated. But each waiter repeats its own, and an etcd that thaws has to work through all of them (rule 25).",
		edits: []edit{{"internal/queue/look.go", `	if length > crowded {
		retry.Policy = attempt.Spare
`, `	if length > crowded {
		retry.Policy = attempt.Ordinary
`}},
		killers: []killer{named("TestAFrozenEtcdGetsFewRechecksOfALongLine")},
	},
	{
		name: "a re-check of a view asks for the keys that it knows",
		why:  "They are still there, so nothing was missed. But those that have come since were missed, and a key that lingers has to give way to them (WithLinger).",
		edits: []edit{{"internal/queue/view.go", `	return read.Holds && (!first || slices`,
			`	return read.Holds && (true || slices`}},
		killers: []killer{inArea("watching", "TestAKeyThatLingersGivesWayThoughNoEventTells")},
	},
	{
		name: "a re-check of a view asks whether there is any other key",
		why:  "If there is none the key is alone in line. But there may be thousands of nested names, and then all are read each time (rule 24).",
		edits: []edit{{"internal/line/ahead.go", `	return !read.GetMore() && !slices`,
			`	return read.Count == 1 && !slices`}},
		killers:    []killer{inArea("watching", "TestAReCheckDoesNotReadTheKeysOfNestedNames")},
		unexplored: "It costs a read of the line. The exploration has no rechecks.",
	},
	{
		name: "a re-check of a view asks only for what is newer than its own key",
		why:  "Whoever comes is newer. But so may be thousands of nested names.",
		edits: []edit{{"internal/queue/view.go",
			`clientv3.WithMinCreateRev(p.Ticket.Rev() + 1), clientv3.WithMinModRev(v.at + 1),`,
			`clientv3.WithMinCreateRev(p.Ticket.Rev() + 1),`}},
		killers: []killer{inArea("watching", "TestAReCheckDoesNotReadTheKeysOfNestedNames")},
	},
	{
		name: "a key that lingers is re-checked as seldom as the hold before it was",
		why:  "The watch has been good for long. But whoever comes now relies on it anew (rule 24).",
		edits: []edit{{"internal/queue/line.go", `	n.view.reliesLocked()
`, ``}},
		killers: []killer{inArea("watching", "TestAKeyThatLingersGivesWayThoughNoEventTells")},
	},
	{
		name: "a view takes a key with another lease for its own",
		why:  "The key has the create revision, and stands in line. But it goes with a lease that is not the holder's (rule 5).",
		edits: []edit{{"internal/queue/keys.go",
			`p.observedLocked(ticket.Observation{Entry: e, At: e.Mod})`,
			`e.Lease = p.Ticket.Lease
			p.observedLocked(ticket.Observation{Entry: e, At: e.Mod})`}},
		killers: []killer{inArea("watching", "TestALossIsToldByTheEvent")},
	},
	{
		name: "a key of one's own in the line is nobody's",
		why:  "Audits find a key for which no place accounts. But they are seldom, and the key is in everybody's way (rule 9).",
		edits: []edit{{"internal/queue/keys.go", `		if e.Lease == int64(l.ID) && !a.accountsForLocked(e) {
`, `		if e.Lease == int64(l.ID) && e.Rev == 0 {
`}},
		killers: []killer{
			inArea("lease", "TestAKeyThatALateRequestPutsInTheWayOfItsSessionIsSweptSoon"),
		},
	},
	{
		name: "a renewal whose member knows of less than was known is a renewal",
		why:  "The answer may come from a member that is behind. But it may also come from an etcd that was set back, and nothing else may show that (rule 26).",
		edits: []edit{{"internal/lease/renew.go",
			`!l.isReadSafe(epoch) || resp.Header.GetRevision() < revision`, `!l.isReadSafe(epoch)`}},
		killers: []killer{
			inArea("watching", "TestAHoldThatIsWatchedWhileEtcdIsSetBack"),
			inArea("outages", "TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead"),
		},
	},
	{
		name: "no look once the watch is there",
		why:  "The line was read when the key was put. But no event shows what was deleted before the watch began (rule 20).",
		edits: []edit{
			{"internal/queue/wait.go", `		begun: checkPredecessor,`, `		begun: keepWaiting,`},
		},
		killers: []killer{inArea("queue", "TestALongLineGetsInWhateverBecomesOfItsWatches")},
	},
	{
		name: "who does not look watches from now",
		why:  "etcd serves a watch from the put late, and one from now at once. But the latter does not show what was deleted in between, and nobody looks (rule 20).",
		edits: []edit{{"internal/queue/predecessor.go", `		opts = append(opts, clientv3.WithRev(from))
`, ``}},
		killers: []killer{inArea("queue", "TestAWatchFromThePutMissesNothing")},
	},
	{
		name: "the watch that was kept is taken for that of any key",
		why:  "The watch is there, and a place that goes round stands behind the same key again. But somebody may have come between, or the one before may not have come back (rule 12).",
		edits: []edit{{"internal/queue/predecessor.go", `last != nil && last.key == before.Key && last`,
			`last != nil && last`}},
		killers: []killer{inArea("queue", "TestWhoReturnsToALongLineAsksForLittle")},
	},
	{
		name: "a watch that was kept is kept",
		why:  "The watch costs etcd nothing while nothing happens, and the next place may need it. But then each name for which the Session has ever waited has one (rule 24).",
		edits: []edit{{"internal/queue/predecessor.go", `		if n.last == w {
			n.unwatchLastLocked()
		}
`, ``}},
		killers: []killer{inArea("queue", "TestAWatchThatIsKeptForTheNextPlaceEnds")},
	},
	{
		name: "a key that is there again stands in line again",
		why:  "The key has the name of a contender, and was put again after it was deleted. But without a lease it stands in no line, and never goes (rule 14).",
		edits: []edit{{"internal/line/ahead.go", `	a := Ahead{Last: Of(name, read.GetKvs()), About: int(keys), Keys: int(keys)}
`, `	a := Ahead{About: int(keys), Keys: int(keys)}
	for _, kv := range read.GetKvs() {
		a.Last = append(a.Last, EntryOf(kv))
	}
`}},
		killers: []killer{
			inArea("queue", "TestWhoseFormerPredecessorHasLeftAStrayIsNotHeldUp"),
			core("line", "TestWhoStandsBehindAKeyThatWasRead"),
		},
		unexplored: "A single key is read only where the line is longer than sixteen.",
	},
	{
		name: "who is known by a key is looked at as seldom as any in a long line",
		why:  "The key was read with the put, and the watch shows when it goes. But if it has no lease it never goes, and all that come behind wait (rule 14).",
		edits: []edit{{"internal/queue/wait.go",
			`by.begun, by.first = keepWaiting, min(by.first, attempt.Jitter(lateCheck))`,
			`by.begun = keepWaiting`}},
		killers: []killer{inArea("queue", "TestAStrayThatLooksLikeAContenderBlocksNobodyForLong")},
	},
	{
		name: "a view without a read",
		why:  "The answer to the put has the line, and the watch shows later changes. But it does not show the changes in between (rule 20).",
		edits: []edit{{"internal/queue/view.go", `				if !v.readLine(true) {
					return
				}
`, `				v.line.keys.mu.Lock()
				v.keys, v.at = map[string]line.Entry{}, answer.Header.GetRevision()
				if p := v.ownLocked(); p != nil {
					for _, e := range append(p.Ahead.Last, p.Ticket.Entry()) {
						v.keys[e.Key] = e
					}
				}
				v.up, v.read = true, v.at
				v.line.keys.mu.Unlock()
`}},
		killers: []killer{simulation(1000), inArea("queue", "TestAViewMissesNothingBeforeItsWatch")},
	},
	{
		name: "a view takes events that its read knows",
		why:  "Events are the truth, in order. But events from before the read are older than the read: the deletion of an earlier use of a name then deletes its later use (rule 20).",
		edits: []edit{{"internal/queue/view.go", `		if e.Mod <= v.at {
			continue // known from the read
		}
`, ``}},
		killers: []killer{inArea("queue", "TestAViewTakesNoEventTwice")},
	},
	{
		name:    "a view remembers every contender that went",
		why:     "One of them may be ahead of a key whose put is not answered yet. But few are, and a wait may be long.",
		edits:   []edit{{"internal/queue/view.go", `max(0, len(v.gone)-viewReads))`, `0)`}},
		killers: []killer{core("queue", "TestWhatAViewRemembersIsBounded")},
	},
	{
		name:    "a view forgets who went while a put is under way",
		why:     "Nobody waits yet. But the answer to the put tells who was ahead of the key when it was put, and nothing tells again that they are gone.",
		edits:   []edit{{"internal/queue/view.go", `max(0, len(v.gone)-viewReads))`, `len(v.gone))`}},
		killers: []killer{inArea("watching", "TestADeletionThatIsToldBeforeTheAnswerToThePutCounts")},
	},
	{
		name: "the event of the predecessor is enough",
		why:  "The one before is gone, so it is the waiter's turn. But that one may have been a waiter, too (rule 20).",
		edits: []edit{
			{"internal/queue/wait.go", `			if err := c.look(ctx, p, at); err != nil`, `			if w.covers == nil && at != 0 {
				p.setLine(line.None, p.keys.etcd.Epoch())
				return nil
			}
			if err := c.look(ctx, p, at); err != nil`},
			{"internal/queue/view.go", `		p.Ahead = p.Ahead.Without(func`, `		if v.provesGone(p, p.Ahead.Last[len(p.Ahead.Last)-1]) {
			p.Ahead.Last = nil
		}
		p.Ahead = p.Ahead.Without(func`},
		},
		killers: []killer{simulation(1000),
			onCluster("TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt")},
	},
	{
		name: "who is gone takes those behind it along",
		why:  "They stood behind the one that is gone, so they seem no nearer. But they are nearer to the head than the place, and the place enters beside one of them (rule 1).",
		edits: []edit{{"internal/line/ahead.go", `		a.Last = slices.DeleteFunc(slices.Clone(a.Last), gone)
`, `		a.Last = a.Last[:slices.IndexFunc(a.Last, gone)]
`}, {"internal/line/ahead.go", `	for len(a.Last) > 0 && gone(a.Last[0]) {
		a.Last = a.Last[1:]
	}
`, ``}},
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestWhoIsGoneIsAheadOfNobody"),
		},
	},
	{
		name: "a waiter does not miss its own key",
		why:  "Only those before the waiter can be in its way. But without a key the waiter is in nobody's way (rule 12).",
		edits: []edit{
			{"internal/queue/place.go", `	known := p.Ticket.Lost()
`, `	known := p.Ticket.Lost()
	if o.Rev == 0 && p.held.IsZero() {
		return ticket.Nothing
	}
`},
		},
		killers: []killer{inArea("queue", "TestAWaiterWhoseKeyWasDeletedQueuesAnew")},
	},
	{
		name: "a predecessor is told by its create revision alone",
		why:  "The create revision tells one key from another. But a key that was put over keeps it, and may have lost its lease: then nothing removes the key (rule 14).",
		edits: []edit{{"internal/ticket/read.go", `		clientv3.Compare(clientv3.LeaseValue(e.Key), is, lease),
`, ``}, {"internal/ticket/read.go", `	is, lease := "=", e.Lease
	if lease == 0 {
		lease = e.LeaseByKey()
	}
	if lease == 0 {
		is = "!="
	}
`, ``}},
		killers: []killer{inArea("watching", "TestAPredecessorWhoseKeyHasLostItsLeaseBlocksNobody")},

		unexplored: "Who watches one key compares it by itself. The exploration has no such watch.",
	},
	{
		name: "a waiter's own key is told by its create revision alone",
		why:  "It is the key that the waiter put. But somebody may have put it over, and it goes with another lease, or with none (rule 12).",
		edits: []edit{
			{"internal/queue/look.go", `p.Ticket.Exists(), p.Ticket.OnLease())`, `p.Ticket.Exists())`},
			{"internal/ticket/ticket.go", ` && e.Rev == t.rev && e.Lease == t.Lease
`, ` && e.Rev == t.rev
`},
		},
		killers: []killer{
			core("ticket", "TestExploration"),
			inArea("watching", "TestAWaiterWhoseOwnKeyIsPutOverQueuesAnew"),
		},
	},
	{
		name: "the library's watches are on the user's stream",
		why:  "That saves one stream. But once the stream's token has expired the user's watch keeps the stream open, and etcd refuses all later watches (rules 12 and 16).",
		edits: []edit{{"internal/etcd/stream.go", `	own := metadata.Pairs(streamKey, strconv.FormatInt(s.name, 10))
`, `	own, _, _ := metadata.MD(nil), streamKey, strconv.FormatInt
`}},
		killers: []killer{inArea("watching", "TestAStreamWhoseTokenHasExpiredHoldsUpNoWatch")},
	},
	{
		name: "a watch ends with its context, though etcd has not answered",
		why:  "Nobody needs it any more. But clientv3 then leaves its stream open: it ends one with the last watch that was answered (rule 22).",
		edits: []edit{{"internal/etcd/watch.go", `c.stream.context(context.WithoutCancel(ctx))`,
			`c.stream.context(ctx)`}},
		killers: []killer{inSim("TestNoStreamOfWatchesStaysOpen")},
	},
	{
		name: "a watch has the metadata of the call that began it",
		why:  "The requests of a call have them, too. But a request id is another one in each call, and so each waiter opens a stream, and logs in for it (rule 24).",
		edits: []edit{{"internal/etcd/stream.go", `	return clientv3.WithRequireLeader(metadata.NewOutgoingContext(ctx, own)), s.name
`, `	theirs, _ := metadata.FromOutgoingContext(ctx)
	return clientv3.WithRequireLeader(metadata.NewOutgoingContext(ctx, metadata.Join(theirs, own))), s.name
`}},
		killers: []killer{inArea("watching", "TestTheMetadataOfACallOpensNoStream")},
	},
	{
		name: "an event of another cluster is an event",
		why:  "The watch goes on, and tells what happens. But it tells it of the cluster from which the client was moved away (rule 26).",
		edits: []edit{{"internal/etcd/watch.go", `	case w.c.Epoch().isElsewhere(answer.Header):`,
			`	case w == nil:`}},
		killers: []killer{core("etcd", "TestWhatAnAnswerOfAWatchSays")},
	},
	{
		name: "a refused watch is begun on the same stream again",
		why:  "clientv3 gets a token for each stream that it opens, and would open a new one. But it does not while an older watch keeps the one open whose token has expired (rules 12 and 16).",
		edits: []edit{{"internal/etcd/stream.go", `	if name == s.name && time.Since(s.since) >= rest {
		s.renewLocked()
	}
`, `	_ = rest
`}},
		killers: []killer{inArea("watching", "TestAStreamWhoseTokenHasExpiredHoldsUpNoWatch"),
			onCluster("TestATokenThatExpiresHoldsUpNoWatch")},
	},
	{
		name: "each Session has a stream of its own",
		why:  "A Session is the simplest owner of a stream. But a fleet of Sessions on one client then opens as many streams, and each may be a login (rule 25).",
		edits: []edit{{"internal/etcd/conn.go", `streamOf(client)`,
			`&stream{name: streamNames.Add(1), patience: leastSilence, watches: make(map[*Conn]int)}`}},
		killers: []killer{inArea("watching", "TestTheSessionsOfAClientShareAStream")},
	},
	{
		name: "one late watch makes all watch anew",
		why:  "The watches share a stream, which may be dead, and which ends when nobody uses it. But mostly only one watch is late, and the others make a storm (rule 25).",
		edits: []edit{{"internal/queue/view.go", `		return 0, false // only this one begins a new watch: other watches may be fine
`, `		v.line.keys.rewatchLocked()
		for n := range v.line.keys.LinesLocked {
			if n.view != nil {
				n.view.renewLocked()
			}
		}
		return 0, false
`}},
		killers: []killer{inArea("watching", "TestOneLateWatchIsMadeAnewAlone")},
	},
	{
		name: "a watch may take as long as answers took when it was begun",
		why:  "The time is known when the watch begins. But if its member is dead, and etcd has become fast meanwhile, nobody looks for that long.",
		edits: []edit{{"internal/etcd/watch.go", `			time.AfterFunc(min(remains, attempt.ReadTimeout), giveUp)
`, `			time.AfterFunc(remains, giveUp)
`}},
		killers: []killer{inArea("watching", "TestAWatchThatWasBegunWhileEtcdWasSlowIsGivenUpSoon")},
	},
	{
		name: "a revision that the member does not have yet ends the wait",
		why:  "An error of a read is an error. But this one passes by itself (rule 20).",
		edits: []edit{{"internal/queue/look.go", `			return read, nil
		}
	}
`, `			return read, nil
		} else {
			return read, err
		}
	}
`}},
		killers: []killer{inArea("queue", "TestALongLineGetsInWhateverBecomesOfItsWatches")},
	},
	{
		name: "a watch that ends is the end of the wait",
		why:  "What Lock builds on is gone, and the caller may call it again. But the watch ends whenever a member restarts (rule 12).",
		edits: []edit{
			{"internal/queue/wait.go", `			if err := broken.Wait(ctx, p.keys.etcd.Caller); err != nil {
				return err
			}
`, `			if err := broken.Wait(ctx, p.keys.etcd.Caller); err == nil {
				return attempt.ErrNoAnswer
			}
`},
			{"internal/queue/view.go", `			case etcd.Ended:
`, `			case etcd.Ended:
				v.line.keys.mu.Lock()
				v.refusal = attempt.ErrNoAnswer
				v.endLocked()
				v.line.keys.mu.Unlock()
`},
		},
		killers: []killer{simulation(1000),
			inArea("queue", "TestAWaiterGetsInWhateverBecomesOfItsWatch")},
	},
	{
		name: "a key lingers whoever waits",
		why:  "The key is given up when its time is over. But until then others wait for nobody (WithLinger).",
		edits: []edit{{"internal/queue/view.go", `		if v.othersLocked() {
			v.line.local.GiveWayLocked()
		}
`, ``}},
		killers: []killer{simulation(1000),
			inArea("queue", "TestAKeyThatLingersGivesWayAsSoonAsAnotherQueues")},
	},
	{
		name: "a key lingers without a watch",
		why:  "The watch will be back. But meanwhile nothing shows who waits (WithLinger).",
		edits: []edit{{"internal/queue/view.go", `	v.up = false
	v.blindLocked()
`, `	v.up = false
`}, {"internal/queue/view.go", `		v.line.local.GiveWayLocked()
		v.line.view = nil
`, `		v.line.view = nil
`}},
		killers: []killer{inArea("queue", "TestAKeyThatLingersIsGivenUp")},
	},
	{
		name: "a view is blind between its read and the word that it is live",
		why:  "The watch and the read are two facts, and each is noted. But an Unlock may come between the two, and finds no watch for the key that is to linger (WithLinger).",
		edits: []edit{{"internal/queue/view.go", `	if watched {
`, `	if watched {
		v.line.keys.mu.Unlock()
		v.line.keys.mu.Lock()
`}},
		killers: []killer{core("queue", "TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown")},
	},
	{
		name:  "a hold is passed on without end",
		why:   "That is fastest, and somebody of the Session waits. But others wait, too (WithHandoff).",
		edits: []edit{{"internal/turn/turn.go", `q.handOffs >= most`, `most == 0`}},
		killers: []killer{
			exploring("hand-offs"),
			core("turn", "TestTurns"),
			inArea("queue", "TestAHandOffIsWithoutEtcdUpToItsNumber"),
		},
	},
	{
		name: "the turn goes to one that has left",
		why:  "The waiter was chosen, and the release puts its key. But it has gone away meanwhile: nobody passes the turn on, and all behind it wait for ever (rule 12).",
		edits: []edit{{"internal/turn/turn.go", `	if stood == Waiting || stood == Next {
`, `	if stood == Waiting {
`}},
		killers: []killer{
			core("ticket", "TestExploration"),
			core("turn", "TestTurns"),
			core("turn", "TestTheQueueDoesWhatASimpleOneDoes"),
		},
	},
	{
		name: "a wait that ends counts all that are ahead of it",
		why:  "Its error is exact then. But each that gives up has the mutex of the Session for as long as there are others, and a crowd that gives up for the square of that.",
		edits: []edit{{"internal/turn/turn.go", `		if n++; n > few {
			return min(int(w.number-q.First().number), q.waiters.Len()-1)
		}
`, `		n++
`}},
		killers:    []killer{inBound("locks wait", "the wait of the last ends")},
		unexplored: "it is right, and slow",
	},
	{
		name: "who leaves from the middle takes the others along",
		why:  "Its neighbours are linked to each other. But if only one of the two is, those behind it are never reached (rule 12).",
		edits: []edit{{"internal/list/list.go", `		n.before.after = n.after
`, `		n.before.after = nil
`}},
		killers: []killer{
			core("ticket", "TestExploration"),
			core("turn", "TestTurns"),
			core("turn", "TestTheQueueDoesWhatASimpleOneDoes"),
		},
	},
	{
		name: "what lingers is held without a look at the clock",
		why:  "The key was there a moment ago. But the process may have been paused since (rule 2, WithLinger).",
		edits: []edit{{"claim.go", ` && p.tellsOf(c) && p.LastsLocked() &&
		p.checkCanBeginLocked(c, time.Now()) == nil:`, ` && p.tellsOf(c):`}},
		killers: []killer{named("TestWhatLingersIsNotHeldWhenTheTrustIsOver")},
	},
	{
		name: "a wait that ends as it is let in passes the turn on",
		why:  "The call owns the turn, and owners of a turn pass it on. But it got a hold before, which the call forgets, and others share its key.",
		edits: []edit{{"claim.go", `	case turn.Owner:
		if p != nil`, `	case turn.Owner, turn.Holder:
		if c.hold != nil {
			c.hold.ofHandle.Remove()
		}
		if p != nil`}},
		killers: []killer{inArea("queue", "TestAWaitThatEndsAsItIsLetInHasAHoldOrNothing"),
			ofFamily(500)},
	},
	{
		name: "who gets the turn of a holder that has gone has no hold",
		why:  "The turn comes from another, as it does from one that has unlocked. But this one joined before, and holds.",
		edits: []edit{{"internal/turn/turn.go", `		heir.standing, q.owner = Holder, heir`,
			`		heir.standing, q.owner = Owner, heir`}},
		killers: []killer{
			core("turn", "TestTheQueueDoesWhatASimpleOneDoes"),
			exploring("reads of one Session, and two run out of time as they are let in"),
		},
	},
	{
		name:    "what lingers is held whatever its value says",
		why:     "The key is the Session's own, whichever Mutex comes. But its value says whether the holder may be recalled (WithLinger).",
		edits:   []edit{{"claim.go", ` && p.tellsOf(c) && p`, ` && p`}},
		killers: []killer{inArea("queue", "TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue")},
	},
	{
		name:    "a key is handed off whatever its value says",
		why:     "The key is the Session's own, whichever Mutex waits. But its value says whether the holder may be recalled (WithHandoff).",
		edits:   []edit{{"keep.go", `		!p.tellsOf(first.Value) || `, `		`}},
		killers: []killer{inArea("queue", "TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue")},
	},
	{
		name: "a key that was put for one that left serves the next one whatever its value says",
		why:  "The key stands first in line, and the next one waits. But the value is that of the one that left.",
		edits: []edit{{"localqueue.go", `		!next.reads() && !put.tellsOf(next) || next.Try`,
			`		next.Try`}},
		killers: []killer{inArea("queue", "TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue")},
	},
	{
		name: "what lingers and cannot be held stays",
		why:  "The key is given up when its time is over. But until then the Session waits behind a key of its own (WithLinger).",
		edits: []edit{{"claim.go", `			n.GiveWayLocked()
		}
		n.queue.Enter(&c.waiter)
`, `			n.queue.Yield()
		}
		n.queue.Enter(&c.waiter)
`}},
		killers: []killer{named("TestWhatLingersAndCannotBeHeldGivesWay")},
	},
	{
		name: "TryLock puts its key and removes it",
		why:  "concurrency.Mutex does so, and Lock's code does it already. But the others see a contender that does not contend (rule 19).",
		edits: []edit{{"internal/ticket/enter.go", `		txn.If = append(txn.If, e.alone(line.Prefix(t.Name)).WithPrefix())
`, `		txn.If = append(txn.If, t.absent())
`}},
		killers: []killer{
			core("ticket", "TestExploration"),
			inContract("TestTryLockOfATakenNameWritesNothing"),
		},
	},
	{
		name: "TryLock compares until nothing newer is there",
		why:  "Once nothing is, the put is safe and nobody was in line. But beside nested names or permits in use something newer is always there, and it sends one transaction after the other until its context ends.",
		edits: []edit{{"internal/ticket/enter.go", `	case is != Queued && e.seen != 0:
		e.queue()
`, ``}},
		killers: []killer{
			exploring("TryAcquire beside permits that come"),
			inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon"),
		},
	},
	{
		name: "TryLock waits once its key is in line",
		why:  "Its key is there, as that of Lock. But somebody came before it, and it does not wait for others.",
		edits: []edit{{"internal/queue/wait.go", `		case c.Try:
`, `		case c.Try && len(ahead.Last) < 0:
`}},
		killers: []killer{inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon")},
	},
	{
		name: "TryLockAll goes on as LockAll for one of its names",
		why:  "The others may be compared yet. But if that fails the names that are not compared seem to have a key that was taken away, and it begins anew.",
		edits: []edit{{"internal/ticket/several.go", `			s.queue()
`, `			_ = s.queue
`}},
		killers:    []killer{inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon")},
		unexplored: "the exploration of several names has no keys of nested names, so their compares never fail",
	},
	{
		name: "every key below the prefix counts",
		why:  "concurrency.Mutex does so. But then a stray key blocks everybody for ever (rule 14).",
		edits: []edit{{"internal/line/key.go", `	return isUUID(tail) || tail == strconv.FormatInt(lease, 16)
`, `	return isUUID(tail) || strconv.FormatInt(lease, 16) != ""
`}},
		killers: []killer{
			exploring("two that read in one Session, and a writer, reading one, beside a stray"),
			core("line", "TestWhoStandsInLine"),
		},
	},

	{
		name: "an attempt gives up as soon as it repeats",
		why:  "Two seconds without an answer are long. But etcd works through the request all the same, and then through the next one, which is given up as well (rule 25).",
		edits: []edit{{"internal/etcd/attempt/attempt.go", `const Patience = 5
`, `const Patience = 1
`}},
		killers: []killer{named("TestACrowdOfSessionsGetsThroughASlowEtcd")},
	},
	{
		name: "repeats have no credit",
		why:  "The answer may have got lost, and a repeat brings it. But if nothing was lost, the repeat is one more request for a slow etcd (rule 25).",
		edits: []edit{{"internal/etcd/attempt/limiter.go",
			`granted < n && m.spent+1 <= float64(credit)`, `granted < n`}},
		killers: []killer{core("etcd/attempt", "TestRepeatsAreGrantedByCredit")},
	},
	{
		name: "everything is sent at once",
		why:  "What is sent sooner is answered sooner. But etcd works through all of it in turn, and through the repeats, while leases run out (rule 25).",
		edits: []edit{{"internal/etcd/attempt/limiter.go", `	if w.under >= w.size {
`, `	if w.under > 1<<20 {
`}},
		killers: []killer{core("etcd/attempt", "TestAttemptsBeginInTurn"),
			named("TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name: "a slow answer is as good as any",
		why:  "An answer is an answer. But the more requests are sent, the slower the next answers are (rule 25).",
		edits: []edit{{"internal/etcd/attempt/limiter.go", `	case took > slow:
`, `	case took > time.Hour:
`}},
		killers: []killer{core("etcd/attempt", "TestAWindowIsHalvedOnceForWhatWasSentBefore")},
	},
	{
		name: "puts are let begin by what grants have taken",
		why:  "A put is an attempt like any other, and one window is simpler. But grants are cheap, and a window that grew by them lets more puts begin than etcd can do in the time of a lease (rule 25).",
		edits: []edit{{"internal/etcd/attempt/limiter.go", `	if p == Put {
`, `	if m == nil {
`}},
		killers: []killer{named("TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name: "an urgent answer lets others begin",
		why:  "The answer was brisk, too. But the window does not count this attempt, and the answer only shows that removals are cheap (rule 25).",
		edits: []edit{{"internal/etcd/attempt/limiter.go", `	m.heard = now
`, `	m.heard = now
	w = cmp.Or(w, &m.others)
`}},
		killers: []killer{core("etcd/attempt", "TestAWindowGrowsWhileAnswersAreBriskAndItIsUsed")},
	},
	{
		name: "a crowd whose leases run out comes back at once",
		why:  "Each Session has lost its lease and needs another one. But so have all others, and what etcd works through for them is again too late for all (rule 25).",
		edits: []edit{{"internal/lease/grant.go", `	if unanswered < 2 {
`, `	if unanswered >= 0 {
`}},
		killers: []killer{named("TestLeasesThatRunOutUnansweredSpreadThoseThatFollow")},
	},
	{
		name: "the queue is searched for an attempt that gives up",
		why:  "The queue is short while etcd answers. But while it does not a hundred thousand may wait, and give up at once: renewals wait for the lock until holds are lost (rule 25).",
		edits: []edit{{"internal/etcd/attempt/attempt.go", `		w.queue.Remove(stands)
`, `		found := w.queue.Front()
		for found != stands {
			found = found.Next()
		}
		w.queue.Remove(found)
`}},
		killers: []killer{core("etcd/attempt", "TestGivingUpCostsNoMoreThanBeginningHoweverManyWait")},
	},
	{
		name: "a turn that nobody takes is lost",
		why:  "An attempt that has left needs no turn. But the turn was given to it, and those behind it wait for ever.",
		edits: []edit{{"internal/etcd/attempt/attempt.go", `		w.end() // its turn has come just now
`, `		// its turn has come just now
`}},
		killers: []killer{core("etcd/attempt", "TestATurnThatNobodyTakesIsHandedOn")},
	},
	{
		name: "the only endpoint is asked twice",
		why:  "The first request may have got lost. But nearly always it waits, and the second one waits behind it (rule 25).",
		edits: []edit{{"internal/etcd/attempt/attempt.go", `several || l.limiter.heard.After(a.last)`,
			`several || l != nil`}},
		killers: []killer{named("TestAMassEndDoesNotRepeatItselfToAFrozenEtcd"),
			named("TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name: "each wait asks for a connection",
		why:  "Each wait asks only twice a second, so that it connects soon. But the others ask, too (rule 25).",
		edits: []edit{{"internal/etcd/attempt/link.go", `	due := time.Since(l.asked) >= reconnectEvery`,
			`	due := l != nil`}},
		killers: []killer{onCluster("TestACrowdThatWaitsForEtcdConnectsAFewTimesASecond")},
	},

	// ---- readers

	{
		name: "one that reads does not look at its own key",
		why:  "A reader waits for those before it, and none of these is left. But if its own key is gone, too, a writer may have come in between, and hold.",
		edits: []edit{{"internal/ticket/read.go", `	if !l.t.Is(own.Entry) {
`, `	if l.t.Kind != line.Exclusive {
		own.Entry = l.t.Entry()
	}
	if !l.t.Is(own.Entry) {
`}},
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestALookOfOneThatReads"),
			ofFamily(2000)},
	},
	{
		name: "one that reads waits for the writers behind it",
		why:  "A writer is in line, so it is not time to read. But that writer waits for the reader.",
		edits: []edit{
			{"internal/line/line.go", `		return before.unread()
`, `		return l.unread()
`},
			{"internal/ticket/read.go", `append(opts, clientv3.WithMaxCreateRev(l.t.rev))...)...)
`, `opts...)...)
`},
		},
		killers: []killer{core("ticket", "TestExploration"), core("line", "TestTheRuleOfEntry"),
			ofFamily(1000)},
	},
	{
		name: "TryRLock compares the whole line",
		why:  "TryLock does so. And once TryRLock has read that the others are readers, it gets in all the same. But it needs a second request, or a third, as long as others come and go.",
		edits: []edit{{"internal/ticket/enter.go", `		for _, r := range t.exclusives() {
			txn.If = append(txn.If, e.alone(r.From).WithRange(r.To))
		}
`, `		txn.If = append(txn.If, e.alone(line.Prefix(t.Name)).WithPrefix())
`}},
		killers: []killer{
			exploring("TryRLock beside a reader and a writer"),
			core("ticket", "TestWhatAPutOfOneThatReadsSends"),
			inArea("kinds", "TestWhatReadsCost"),
		},
	},
	{
		name: "one joins those who read without a live watch",
		why:  "The key is held, and a writer waits for it. But if one more reader joins each time, the writer waits for ever.",
		edits: []edit{{"localqueue.go", `	case !live:
`, `	case !live && !n.WatchedLocked():
`}},
		killers: []killer{inArea("kinds", "TestNobodyJoinsWithoutALiveWatch"), ofFamily(2000)},
	},
	{
		name: "a read that is to join has the readers watched, too",
		why:  "That is how a waiter sees its line. But where many Sessions read, the line is too long for a view, and nobody joins.",
		edits: []edit{{"internal/queue/line.go", `		if partial {
`, `		if partial && n.Name == "" {
`}},
		killers: []killer{inArea("kinds", "TestAReadJoinsHoweverManyOtherSessionsRead")},
	},
	{
		name: "an early read joins as one that comes later does",
		why:  "The watch shows whether a writer waits. But that writer came after the read, which now waits for it.",
		edits: []edit{{"localqueue.go", `	case early:
`, `	case early && p.Recall != nil:
`}},
		killers: []killer{inArea("kinds", "TestThoseRightBehindTheFirstReaderGetInWithIt")},
	},
	{
		name: "a read that gives up takes its place away from the next one",
		why:  "The next one can put a key of its own. But writers have come since, and where each read gives up in time none ever gets in.",
		edits: []edit{{"claim.go", `	if next == nil || !n.queue.Early(next) ||`,
			`	if next == nil || n.queue.Early(next) ||`}},
		killers: []killer{inArea("kinds", "TestAReaderThatGivesUpLeavesItsPlaceToTheNext")},
	},
	{
		name: "one joins a key whose lease does not last",
		why:  "The lease is still trusted. But it gets no renewal in time, or is about to be replaced, and the hold that has just begun ends with it.",
		edits: []edit{{"localqueue.go", `	case !p.Lease.ServesLocked():
		return mustQueue
	case !p.LastsLocked(): // a renewal is late, or etcd was set back
		return undecided
	}
`, `	}
`}},
		killers: []killer{inArea("kinds", "TestNobodyJoinsAKeyWhoseLeaseDoesNotLast"), ofFamily(1000)},
	},
	{
		name: "the first to unlock releases the key of all who read",
		why:  "The reader that has put the key removes it. But others of its Session still read by it.",
		edits: []edit{{"release.go", `	if h.place.Refs > 0 {
`, `	if h.place.Refs > 0 && h.place.GivenUpLocked() {
`}},
		killers: []killer{inArea("kinds", "TestAWriterWaitsForEveryReaderOfItsSession")},
	},
	{
		name: "the last but one to unlock releases the key of those who read",
		why:  "The place counts those that still read, and one is not many. But that one reads.",
		edits: []edit{{"release.go", `	if h.place.Refs > 0 {
`, `	if h.place.Refs > 1 || h.place.Ticket.State() != ticket.Held {
`}},
		killers: []killer{ofFamily(1000), inArea("kinds", "TestAWriterWaitsForEveryReaderOfItsSession")},
	},
	{
		name: "an Unlock whose context never ends waits for the lease",
		why:  "The caller has set no bound, so it has time. But it gets nothing for it: when the lease has expired the hold is not certain any more (rule 9).",
		edits: []edit{{"release.go", `	if ctx.Done() == nil {
`, `	if ctx == nil {
`}},
		killers: []killer{inArea("outages", "TestUnlockWithAContextThatNeverEndsIsBounded")},
	},
	{
		name: "a Close that is not confirmed leaves the other permits",
		why:  "The caller gets the error all the same. But nobody can unlock the others any more, and their keys stay (rule 9).",
		edits: []edit{{"close.go", `				failure = err
`, `				return err
`}},
		killers: []killer{inArea("kinds", "TestACloseThatIsNotConfirmedGivesUpEachPermit")},
	},
	{
		name: "one joins while a writer of its Session waits",
		why:  "The watch shows etcd's line, and no writer is in it. But the local line has one.",
		edits: []edit{{"claim.go", ` && n.queue.Waiting() == 0 &&
`, ` && (c.reads() || n.queue.Waiting() == 0) &&
`}, {"internal/turn/turn.go", `	q.owner.must("Admit", Holder)
	w := q.First()
`, `	q.owner.must("Admit", Holder)
	w := q.First()
	if w != nil && q.owner.Shares && !w.Shares {
		w, _ = q.waiters.Last()
	}
`}},
		killers: []killer{inArea("kinds", "TestNobodyJoinsWhileAWriterWaits"), ofFamily(1000)},
	},

	// ---- lead

	{
		name: "a leader is released before it has returned",
		why:  "Its context has ended, so the leader will return soon, and the next one could begin. But until then two lead.",
		edits: []edit{{"lead.go", `	err = during(ctx, h, led, func() error {
`, `	defer context.AfterFunc(ctx, func() { _ = m.unlock(context.WithoutCancel(ctx), h) })()
	err = during(ctx, h, led, func() error {
`}},
		killers: []killer{inArea("holders", "TestALeaderIsReleasedOnlyAfterItHasReturned"),
			ofFamily(300)},
	},
	{
		name:    "a leader that fails at once does so again at once",
		why:     "If others wait, they get in first anyway. But if nobody waits, etcd gets two writes for each failure.",
		edits:   []edit{{"lead.go", `	return min(2*pause, mostPause)`, `	return leastPause`}},
		killers: []killer{inArea("holders", "TestTheRestOfALeader")},
	},
	{
		name:    "whatever has ended a term may end its Lead",
		why:     "The error is ErrStopLeading, whoever it comes from. But a panic has not decided anything, and the caller gets a text with a stack.",
		edits:   []edit{{"lead.go", `	return took, returned`, `	return took, err`}},
		killers: []killer{inArea("holders", "TestALeaderStopsLeading")},
	},
	{
		name: "a term is long by the TTL that was asked for",
		why:  "The user has written that TTL down. But etcd may have granted a longer one.",
		edits: []edit{{"lead.go", `			long = h.place.Lease.TTL
`, `			long = m.s.cfg.ttl
`}},
		killers: []killer{inArea("holders", "TestTheRestOfALeader")},
	},
	{
		name: "Lead nests",
		why:  "WithReentrancy is there for nesting. But a Lead that nests has no turn, and never waits for one.",
		edits: []edit{{"lead.go", `	if m.nestsIn(ctx) != nil { // to nest`,
			`	if !m.cfg.reentrant && m.nestsIn(ctx) != nil { // to nest`}},
		killers: []killer{inArea("holders", "TestLeadRefusesWhatCannotBe")},
	},
	{
		name: "who follows a leader relies on its watch",
		why:  "A watch delivers everything, and a request each 1.5 s mostly shows nothing. But a watch may be silent.",
		edits: []edit{{"internal/follow/follow.go", `			case !f.stands(asking, seen):
				return true
`, ``}},
		killers: []killer{inArea("holders", "TestWatchHolderOutlivesLostEvents")},
	},
	{
		name: "who follows a leader watches from now",
		why:  "The follower has just read who leads. But it notices what happens before the watch is there 1.5 s late.",
		edits: []edit{{"internal/follow/snapshot.go", `	opts = append(opts, clientv3.WithRev(s.Revision+1))
`, ``}},
		killers: []killer{inArea("holders", "TestWatchHolderSeesWhatHappensBeforeItsWatch")},
	},
	{
		name: "a restore of etcd is no change of the leader",
		why:  "The key is there with its revision. But the watch begins at a revision that is still to come again.",
		edits: []edit{{"internal/follow/follow.go", `	if !read.Holds || seen.epoch != f.Conn.Epoch() ||
`, `	if !read.Holds ||
`}},
		killers: []killer{inArea("holders", "TestWatchHolderWatchesAnewAfterARestore")},
	},
	{
		name: "who follows a leader asks once more at the end",
		why:  "The request is not even sent, as its context has ended. But clientv3 warns of it on stderr, each time.",
		edits: []edit{{"internal/follow/follow.go", `	for f.goesOn(ctx) {
		seen, err := f.look(asking)
`, `	for asking != nil {
		seen, err := f.look(ctx)
`}, {"internal/follow/follow.go", `		case <-ctx.Done():
			return false
		case <-f.News:`, `		case <-ctx.Done():
			return true
		case <-f.News:`}},
		killers: []killer{onCluster("TestFollowingIsNoWarning")},
	},
	{
		name: "who follows a leader asks whether there is any newer key",
		why:  "While nobody leads, each newer key may be a leader's. But nested names in use are newer, too, and then all keys are read each time (rule 24).",
		edits: []edit{{"internal/follow/follow.go", `!line.NoneBut("", f.Name, read.Ranges[0])`,
			`read.Ranges[0].Count > 0`}},
		killers: []killer{inArea("holders", "TestWatchHolderOfAFreeNameReadsNoNestedNames")},
	},

	// ---- SetInfo

	{
		name: "SetInfo puts the value anew",
		why:  "The Session knows what it has put. But since then a recall has come into the value.",
		edits: []edit{{"internal/line/value.go", `func (e Entry) Informed(info string) (string, error) { return e.with("info", info) }
`, `func (e Entry) Informed(info string) (string, error) {
	v := e.Value()
	v.Info = info
	value, err := json.Marshal(v)
	return string(value), err
}
`}},
		killers: []killer{inArea("holders", "TestSetInfoKeepsARecall"),
			core("line", "TestAnInfoIsPutIntoAValue"), ofFamily(300)},
		unexplored: "A ticket changes no value.",
	},
	{
		name: "SetInfo takes an answer for a success",
		why:  "etcd has answered, so it is done. But the key was put over or deleted since the read.",
		edits: []edit{{"internal/queue/info.go", `		case done.Err == nil && answer.Succeeded:
`, `		case done.Err == nil:
`}},
		killers: []killer{inArea("holders", "TestSetInfoKeepsARecall"),
			inArea("holders", "TestSetInfoOfALostHold")},
	},
	{
		name: "SetInfo does not judge what it reads",
		why:  "The watch tells of a loss. But SetInfo then asks for ever for a key that is gone.",
		edits: []edit{{"internal/queue/info.go", `		if p.observedLocked(ticket.Observation{Entry: c.read[i], LeaseGone: !known}).IsLoss() {
			return nil, c.whole()
		}
`, `		_ = known
		_ = p
		_ = ticket.Same
		if c.read[i].Rev == 0 {
			return nil, nil
		}
`}},
		killers: []killer{inArea("holders", "TestSetInfoOfALostHold")},
	},
	{
		name: "SetInfo waits for etcd though its hold has ended",
		why:  "The caller's context bounds the wait. But it may never end, and the lease has.",
		edits: []edit{{"holds.go", `queue.SetInfo(withHold(bounded, h), places`,
			`queue.SetInfo(bounded, places`}},
		killers: []killer{inArea("holders", "TestSetInfoEndsWithItsContextOrItsHold")},
	},
	{
		name: "SetInfo puts what is there",
		why:  "A put does no harm. But each is a revision, and an event for all that watch.",
		edits: []edit{{"internal/queue/info.go", `	if !puts {
		return nil, nil
	}
`, `	_ = puts
`}},
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone"),
			inArea("holders", "TestSetInfoWhoseAnswerIsLostIsSetOnce")},
	},
	{
		name: "a key is handed on though its info was changed",
		why:  "The options of both are the same. But the key tells the info of the hold before.",
		edits: []edit{{"place.go", `	return !changed && p.m`, `	_ = changed
	return p.m`}},
		killers: []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
	},
	{
		name: "a key whose info was changed is known once etcd has answered",
		why:  "Before the answer nothing is known to be changed. But the answer may be lost, or the request come late.",
		edits: []edit{{"internal/queue/info.go", `	for i, p := range c.places {
		e := c.read[i]
		p.changed = &e
	}
`, ``}, {"internal/queue/info.go", `; p.changed.Mod < at {
`, `; p.changed == nil || p.changed.Mod < at {
`}},
		killers: []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
	},
	{
		name: "a key lingers though its info was changed",
		why:  "No contender waits for it. But no hold of the Session takes it, and it tells what is over.",
		edits: []edit{{"keep.go", `		!p.tellsOf(h.claim) || !p.LastsLocked() {
`, `		!p.LastsLocked() {
`}},
		killers: []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
	},
	{
		name: "a key that outlasts its hold tells the info of the options",
		why:  "The hold is over, and its SetInfo with it. But the key stays, and a follower finds another address.",
		edits: []edit{{"place.go", `	if info, changed := p.ChangedLocked(); changed {
		v.Info = info
	}
`, ``}},
		killers: []killer{inArea("holders", "TestAKeyThatOutlastsItsHoldKeepsTheInfo")},
	},
	{
		name: "its own process tells the info of the options",
		why:  "They say what the hold is. But SetInfo has changed it, and etcd says so.",
		edits: []edit{{"place.go", `	if info, changed := p.ChangedLocked(); changed {
		c.Info = info
	}
`, ``}},
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone")},
	},
	{
		name: "a changed key is rechecked as it was put",
		why:  "Its mod revision is its create revision. But another info has changed it, and then each recheck reads the line.",
		edits: []edit{{"internal/queue/place.go", `	if p.changed != nil {
		known = p.changed.Mod
	}
`, ``}},
		killers: []killer{inArea("holders", "TestReadersOfASessionShareTheInfo")},
	},
	{
		name: "who follows a leader does not compare its info",
		why:  "It is the same holder. But its address is another.",
		edits: []edit{{"internal/follow/snapshot.go", ` && a.Value() == b.Value()
`, `
`}},
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name: "who follows a leader rechecks whether it holds alone",
		why:  "The holder has not changed. But the event of its other info was lost.",
		edits: []edit{{"internal/follow/snapshot.go", `		ifs = append(append(ifs, ticket.Contends(e)...),
			clientv3.Compare(clientv3.ModRevision(e.Key), "=", e.Mod))
`, `		ifs = append(ifs, ticket.Contends(e)...)
`}},
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name: "who follows a leader reads again after a recall",
		why:  "The key was put over, so its info may be another. But the event says that it is not.",
		edits: []edit{{"internal/follow/snapshot.go", `	if put {
		s.Line[0] = e
	}
`, ``}},
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name: "a name of several is told alone",
		why:  "The first name stands for all. But who looks at another sees what was.",
		edits: []edit{{"holds.go", `return setInfo(ctx, h.m.name, info, h.parts())`,
			`return setInfo(ctx, h.m.name, info, h.hold.alone[:])`}},
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone")},
	},

	// ---- recall

	{
		name: "a put over a key does not compare the value",
		why:  "The mod revision says that the key is as it was read. But after a set-back another value may be put at that very revision, and a request of before then brings back the earlier one.",
		edits: []edit{{"internal/ticket/ticket.go", `			clientv3.Compare(clientv3.Value(e.Key), "=", e.Stored()),
`, ``}},
		killers:    []killer{inArea("holders", "TestALateCopyOfARecallDoesNothing")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name: "a put over a key does not compare the mod revision",
		why:  "The create revision says that it is the very hold, and the value that nothing has changed. But the value may be as before again, and a late copy then takes back the info that came after it.",
		edits: []edit{{"internal/ticket/ticket.go", `		clientv3.Compare(clientv3.ModRevision(e.Key), "=", e.Mod),
`, ``}},
		killers:    []killer{inArea("holders", "TestALateCopyOfASetInfoDoesNothing")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name: "a recall compares the mod revision alone",
		why:  "The mod revision of a key grows with its create revision, so it seems to say all. But it is compared with the key that is there by now.",
		edits: []edit{{"recall.go", `		if e.Rev != token {
`, `		if e.Rev == 0 {
`}},
		killers: []killer{inArea("holders", "TestALateCopyOfARecallDoesNothing")},
	},
	{
		name: "a key is put over with a lease",
		why:  "It has nothing to do with the lease, which seems to be the key's. But a caller that has only key and token takes the key off it, and the hold is lost (rule 5).",
		edits: []edit{{"internal/ticket/ticket.go",
			`clientv3.OpPut(e.Key, value, clientv3.WithIgnoreLease())`, `clientv3.OpPut(e.Key, value)`}},
		killers: []killer{inArea("holders", "TestARecallKeepsPlaceTokenAndLease"),
			inArea("holders", "TestSetInfoChangesTheInfoAlone")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name: "a recall asks one that does not listen",
		why:  "It does no harm to ask. But the one who asks waits for an answer that does not come.",
		edits: []edit{{"recall.go", `		if e.Lease == 0 || !e.Value().Recallable {
`, `		if e.Lease == 0 {
`}},
		killers: []killer{inArea("holders", "TestWhoDoesNotListenIsNotRecalled")},
	},
	{
		name: "the grace of a request is compared as it was given",
		why:  "It is what the holder is asked for. But the stored one is rounded up, so it seems to be longer, and each wait writes its request again.",
		edits: []edit{{"recall.go", `	if more := grace % time.Millisecond; more > 0 && grace < math.MaxInt64-time.Millisecond {
`, `	if more := grace % time.Millisecond; more > 0 && grace > math.MaxInt64-time.Millisecond {
`}},
		killers: []killer{inArea("holders", "TestManyWaitsAskAHolderOnce"), ofFamily(100)},
	},

	// ---- waits that ask

	{
		name: "a wait asks the contenders before it, and not those that hold",
		why:  "All of them are in its way. But one that waits cannot give way, and a hold that begins with a request has less than its grace.",
		edits: []edit{{"ask.go", `	holding := seen.Line.Holding()
`, `	holding := seen.Line.Before(q.own)
`}},
		killers: []killer{inArea("holders", "TestAWaiterIsNotAskedBeforeItHolds"),
			inArea("holders", "TestAReaderAsksTheHolderAndNoWaiter"), ofFamily(300)},
	},
	{
		name: "a wait that is about to get in asks the others that hold",
		why:  "They do hold before it. But it gets in beside them, and is in need of nothing.",
		edits: []edit{{"ask.go", `	if q.own.Rev != 0 && slices.ContainsFunc(holding, q.is) {
`, `	if q.own.Rev < 0 && slices.ContainsFunc(holding, q.is) {
`}},
		killers: []killer{inArea("holders", "TestAReadThatGetsInBesideAnotherAsksNobody")},
	},
	{
		name:    "a read that is about to join asks",
		why:     "It waits, and another read holds. But it may join that hold, and has it ended.",
		edits:   []edit{{"ask.go", ` || owner.place == nil || comes {`, ` || owner.place == nil || comes && false {`}},
		killers: []killer{inArea("holders", "TestAReadThatJoinsAsksNobody")},
	},
	{
		name: "a wait asks until its call returns",
		why:  "Then it is certainly over. But its hold has begun before, and so it is asked for its own wait.",
		edits: []edit{{"hold.go", `	c.endsWaitLocked()
`, `	c.cancel = nil
`}},
		killers: []killer{inArea("holders", "TestEachHolderOfALineIsAsked")},
	},
	{
		name: "only a wait in the local line asks",
		why:  "That is where waits are known. But the first one there has the turn at once, and waits in etcd's line.",
		edits: []edit{{"acquire.go", `			for _, o := range c.all {
				beginsToAskLocked(o)
			}
`, ``}},
		killers: []killer{inArea("holders", "TestAWaitAsksTheHolder")},
	},
	{
		name: "a request to give way outlives the wait",
		why:  "The last wait is over, and the next one needs the same. But nobody is there to give way to, and Close waits for what nothing ends.",
		edits: []edit{{"ask.go", `		c.m.s.mu.After(a.stop)
`, ``}},
		killers: []killer{inArea("holders", "TestAWaitThatIsOverAsksNobody")},
	},
	{
		name: "the follower of the holders is not told of the local line",
		why:  "It watches etcd's line, where all contenders are. But a hold of its own Session begins without an event that it can tell from others, and is not asked.",
		edits: []edit{{"localqueue.go", `	if n.asking != nil {
`, `	if n.asking != nil && n.marked {
`}},
		killers: []killer{inArea("holders", "TestAWaitAsksSeveralNamesOfItsSessionOnceTheyAreHeld")},
	},
	{
		name: "the request of any wait is sent",
		why:  "Each of them asks for the lock. But the one that can wait longest has the others wait, too.",
		edits: []edit{{"ask.go", `w[i].m.cfg.ask.Grace < w[j].m.cfg.ask.Grace }`,
			`w[i].m.cfg.ask.Grace > w[j].m.cfg.ask.Grace }`}},
		killers: []killer{inArea("holders", "TestAShorterGraceCountsWhileItsWaitLasts")},
	},
	{
		name: "a wait with a shorter grace is asked for with the next holder",
		why:  "The holder of now was asked. But it may have hours yet.",
		edits: []edit{{"ask.go", ` && now.own.Rev == q.own.Rev &&
		now.m.cfg.ask.Grace >= q.m.cfg.ask.Grace
`, ` && now.own.Rev == q.own.Rev
`}},
		killers: []killer{inArea("holders", "TestAWaitWithAShorterGraceAsksAgain")},
	},
	{
		name: "the shortest grace that was asked for counts for later holders",
		why:  "It is what the follower began with. But the wait with that grace may be over.",
		edits: []edit{{"ask.go", `		if asked, known := a.recall(e, now); known {
`, `		if asked, known := a.recall(e, q); known {
`}},
		killers: []killer{inArea("holders", "TestAShorterGraceCountsWhileItsWaitLasts")},
	},
	{
		name: "a hold of the own Session is recalled in etcd",
		why:  "It listens as any other. But it is known here, and a request in its value is a write for nothing.",
		edits: []edit{{"ask.go", `		case isOwn:
			continue
`, `		case isOwn && false:
			continue
`}},
		killers: []killer{inArea("holders", "TestAPermitAsksAllThatHold")},
	},
	{
		name: "a request to give way is sent until it is answered",
		why:  "The wait is in need of it. But a thousand waits ask an etcd that has enough to do.",
		edits: []edit{{"ask.go", `			if tries--; tries > 0 {
`, `			if tries--; tries > 0 || true {
`}},
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name: "a request that has failed is not sent again",
		why:  "It was sent three times. But etcd may be back, as the next recheck shows, and the holder may hold for hours.",
		edits: []edit{{"ask.go", `	a.tries[who] = 1
`, `	a.tries[who] = 0
`}},
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name: "a request that was refused is sent again",
		why:  "An operator may give the right back. But each recheck is refused and logged until then.",
		edits: []edit{{"ask.go", `	if attempt.Refused(err) {
		a.tries[who] = 0
	}
`, ``}},
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name: "a wait with others before it asks at once",
		why:  "The holder hears sooner of it. But of a thousand that wait each sends a transaction then, and one of these does something.",
		edits: []edit{{"ask.go", `			f.Rest = max(askRest, time.Duration(seen.Keys)*askRestPerKey)
`, ``}},
		killers: []killer{inArea("holders", "TestAHandOverTellsEachAskerOnce")},
	},
	{
		name:    "what happens while several are asked is over when their watch begins",
		why:     "The one that was asked stood in line then. But another may have gone before, and a third have come to hold for it.",
		edits:   []edit{{"ask.go", `			if asked.Kind() == line.Exclusive {`, `			if len(holding) == 1 {`}},
		killers: []killer{inArea("holders", "TestAReaderThatComesToHoldWhileAnotherIsAskedIsAsked")},
	},
	{
		name: "who follows one holder watches all below the name",
		why:  "So it needs no other watch for the next one. But each that gives up in a line of n is told to n (rule 24).",
		edits: []edit{{"internal/follow/snapshot.go", `	if len(s.Line) > 0 && (!s.all || s.alone()) {
`, `	if len(s.Line) > 0 && !s.all {
`}},
		killers: []killer{inArea("holders", "TestALineThatGivesUpTellsNoAsker")},
	},
	{
		name: "who follows several holders watches the first",
		why:  "When it goes the line is read. But another one may come to hold before, as one that waits gives up.",
		edits: []edit{{"internal/follow/snapshot.go", `	if len(s.Line) > 0 && (!s.all || s.alone()) {
`, `	if len(s.Line) > 0 {
`}},
		killers: []killer{inArea("holders", "TestAReaderThatComesToHoldAsAWriterGivesUpIsAsked")},
	},
	{
		name: "who follows several holders reads the first few",
		why:  "They are the first to hold. But more may hold, and are in the way, too.",
		edits: []edit{{"internal/follow/snapshot.go", `		return !s.all || s.bounded() || n >= mostOldest
`, `		return !s.all || n > 0
`}},
		killers: []killer{inArea("holders", "TestAWriterAsksAllReaders"),
			core("follow", "TestNoneThatComesToHoldIsMissed")},
	},
	{
		name: "who follows several holders reads again when any has gone",
		why:  "Then it knows who is left. But it knew that: of a thousand readers that go one by one it reads half a million.",
		edits: []edit{{"internal/follow/snapshot.go", `	return hold != held || hold == 0 || hold == len(s.Line) && !s.whole
`, `	return hold >= 0 || held >= 0
`}},
		killers: []killer{inArea("holders", "TestReadersThatGoCostAnAskerNothing")},
	},
	{
		name: "who follows several holders goes by those that it has read",
		why:  "It has read all that hold. But when the one behind them has gone, one that it has not read may hold.",
		edits: []edit{{"internal/follow/snapshot.go", `	return hold != held || hold == 0 || hold == len(s.Line) && !s.whole
`, `	return hold != held || hold == 0
`}},
		killers: []killer{core("follow", "TestNoneThatComesToHoldIsMissed")},
	},
	{
		name: "who follows several holders rechecks the first",
		why:  "The first one that goes is mostly the first in line. But the event that another one has gone may be lost.",
		edits: []edit{{"internal/follow/snapshot.go", `	return s.Line[:min(len(s.Line.Holding())+1, len(s.Line))]
`, `	return s.Line[:min(1, len(s.Line))]
`}},
		killers: []killer{core("follow", "TestARecheckComparesAllThatDecide")},
	},
	{
		name: "a recalled hold has no grace",
		why:  "The holder is asked to end, so it ends. But its work had a moment to come to a good point.",
		edits: []edit{{"recall.go", `	ends := now.Add(min(r.Grace, most))
`, `	ends := now
`}},
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"),
			inArea("holders", "TestARecalledHoldThatUnlocksInTimeIsWhole"), ofFamily(300)},
	},
	{
		name: "the grace is what was asked for",
		why:  "The one who recalls knows how long it may wait. But the holder has said how long it may take at most.",
		edits: []edit{{"recall.go", `	ends := now.Add(min(r.Grace, most))
`, `	ends := now.Add(min(r.Grace, max(most, r.Grace)))
`}},
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"), ofFamily(300)},
	},
	{
		name: "the key of a recalled hold goes with its grace",
		why:  "The context has ended, so nobody should work any more. But a holder that has not looked yet still works, and the next one works beside it.",
		edits: []edit{{"hold.go", `			o.becomesLocked(holdRecalled, cause)
`, `			if !o.endLocked(cause) && o.place.Refs == 0 {
				o.place.AbandonLocked(false)
			}
`}},
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"),
			ofFamily(300)},
	},
	{
		name: "Unlock of a recalled hold does not ask for the key",
		why:  "The hold has ended, and nobody else has taken the key. But that was so when the grace was over, and may have changed since (rule 6).",
		edits: []edit{{"hold.go", `	if h.state >= holdEnded {
		return true
	}
`, `	if h.state >= holdRecalled {
		return true
	}
`}, {"release.go", `	if h.state == holdGone {
		h.clearLocked()`, `	if h.state != holdEnded {
		h.clearLocked()`}},
		killers: []killer{inArea("holders", "TestARecalledHoldMayEndOtherwise"),
			inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"), ofFamily(300)},
	},
	{
		name: "a recalled key is handed off",
		why:  "The recalled hold has ended, and the next one of its Session begins. But it begins at the key that somebody wants back.",
		edits: []edit{{"internal/queue/place.go", `l.ServesLocked() && p.Recall == nil && `,
			`l.ServesLocked() && `}},
		killers: []killer{inArea("holders", "TestARecalledKeyIsNotHandedOff")},
	},
	{
		name: "a young hold is not watched, whoever is behind it",
		why:  "A second is soon enough to hear of a recall. But in a line where each holder is recalled each hand-over takes that second.",
		edits: []edit{{"internal/queue/place.go",
			`	if p.listens && p.watch == nil && !p.asPut && p.Ahead.Keys > 1`,
			`	if p.listens && p.watch == nil && p.Ahead.Keys < 0`}},
		killers: []killer{inArea("holders", "TestAYoungHoldWithContendersBehindItHearsOfARecallAtOnce")},
	},
	{
		name: "what the put has read counts as keys behind a hold",
		why:  "There are other keys, so a contender may recall it. But all of them were there before, and beside nested names a short hold costs twice as much.",
		edits: []edit{{"internal/queue/place.go",
			`	if p.listens && p.watch == nil && !p.asPut && p.Ahead.Keys > 1`,
			`	if p.listens && p.watch == nil && p.Ahead.Keys > 1`}},
		killers: []killer{inArea("holders",
			"TestAShortHoldThatListensCostsNothingWithoutContendersBehindIt")},
	},
	{
		name: "a key that lingers does not give way to a recall",
		why:  "Nobody holds, so there is nobody to ask. But there is nobody to unlock either.",
		edits: []edit{{"internal/queue/place.go", `	if p.lingersLocked() {
		p.line.local.GiveWayLocked()
		return
	}
`, ``}},
		killers: []killer{inArea("holders", "TestAKeyThatLingersGivesWayToARecall")},
	},
	{
		name: "a hold that begins does not mark its line",
		why:  "The holder has no reason to look behind it. But those who read and wait there may join now, and no other event may ever come.",
		edits: []edit{{"acquire.go", `		o.local.queue.Hold(&o.waiter)
		o.local.MarkLocked()
`, `		o.local.queue.Hold(&o.waiter)
`}},
		killers: []killer{named("TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name: "a waiter that leaves does not mark its line",
		why:  "It takes nothing that somebody else could want. But a writer that has left held up those behind it.",
		edits: []edit{{"claim.go", `		n.MarkLocked() // the waiters behind it may join a cohort
`, ``}},
		killers: []killer{named("TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name: "a view that ends does not mark its line",
		why:  "It has nothing to tell any more. But a reader that waits for its word waits on, and nobody begins another view.",
		edits: []edit{{"internal/queue/view.go", `			v.line.local.MarkLocked()
		}
		v.tellLocked()
`, `		}
		v.tellLocked()
`}},
		killers: []killer{named("TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name: "a view that reads too long a line judges it first",
		why:  "That is how a view of any other line ends. But what it judges marks the line, whose admission begins the next view, without end.",
		edits: []edit{{"internal/queue/view.go", `	if v.isTooLongLocked() {
		return false
	}
`, ``}, {"internal/queue/view.go", `	v.judgeLocked()
	return v.line.view == v
`, `	v.judgeLocked()
	return !v.isTooLongLocked()
`}},
		killers: []killer{inArea("kinds", "TestALineThatIsTooLongForAViewIsSoughtOnce")},
	},
	{
		name: "a view in which the line grows too long judges it first",
		why:  "That is how a view of any other line ends. But what it judges marks the line, whose admission begins the next view.",
		edits: []edit{{"internal/queue/view.go", `	if v.isTooLongLocked() {
		return
	}
	v.judgeLocked()
`, `	v.judgeLocked()
	if v.isTooLongLocked() {
		return
	}
`}},
		killers: []killer{inArea("kinds", "TestALineThatIsTooLongForAViewIsSoughtOnce")},
	},
	{
		name: "an admission that lets one in does not mark its line",
		why:  "It has looked at the line just now. But the next one may join, too.",
		edits: []edit{{"localqueue.go", `	n.MarkLocked() // the next one may, too
`, ``}},
		killers: []killer{named("TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name: "one joins a recalled cohort",
		why:  "The readers still hold. But if one more came in each grace, they would hold for ever.",
		edits: []edit{{"localqueue.go", `		p.Recall != nil, // (Do not join. TestNobodyJoinsARecalledCohort.)
`, ``}},
		killers: []killer{inArea("holders", "TestNobodyJoinsARecalledCohort"),
			inArea("holders", "TestNobodyJoinsARecalledWaiter")},
	},
	{
		name: "a read takes over a place that was put before it came",
		why:  "The claim that was handed it down has given up as well, and the line goes on. But the writers that came after the put did not wait for this read.",
		edits: []edit{{"localqueue.go", `if put != nil && (!ok || late || `,
			`if put != nil && (!ok || late && false || `}},
		killers: []killer{inArea("kinds", "TestAReadTakesOverNoPlaceThatWasPutBeforeItCame"),
			inArea("kinds", "TestAReadTakesOverNoPlaceThatAReleaseHasPut")},
	},
	{
		name: "a recalled place is handed down",
		why:  "The waiter there has given up, and the next one came before the put. But it takes over a place that somebody wants back.",
		edits: []edit{{"claim.go", ` ||
		p.Recall != nil {
		return nil, false`, ` {
		return nil, false`}},
		killers: []killer{inArea("holders", "TestNobodyJoinsARecalledWaiter")},
	},
	{
		name: "the last recall counts",
		why:  "It is the newest word of those who may recall. But it gives back time on which somebody else has counted.",
		edits: []edit{{"recall.go", `	if c == nil || h.checkLocked(now) != nil || c.end != nil && !ends.Before(c.ends) {
`, `	if c == nil || h.checkLocked(now) != nil {
`}},
		killers: []killer{inArea("holders", "TestTheShorterGraceStays"), ofFamily(500)},
	},
	{
		name: "a recall before the watch is not noticed",
		why:  "The watch shows what is done to the key. But a hold is watched only from its second second on.",
		edits: []edit{{"internal/queue/keywatch.go", `Entry: e, AskFirst: true}`,
			`Entry: line.Entry{Key: e.Key, Rev: e.Rev, Lease: e.Lease}, AskFirst: true}`}},
		killers: []killer{inArea("holders", "TestARecallOfAYoungHoldIsNoticed")},
	},
	{
		name: "an event of a recall is taken for nothing",
		why:  "The key keeps its lease and its place, so nothing seems to have happened to it. But its value has the request.",
		edits: []edit{{"internal/queue/keywatch.go", `		p.observedLocked(ticket.Observation{
`, `		event.Kv.Value = nil
		p.observedLocked(ticket.Observation{
`}},
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock")},
	},
	{
		name: "a view does not tell of a recall",
		why:  "The view has the create revisions of those in line. But a recall leaves these alone.",
		edits: []edit{{"internal/queue/view.go", `		e := line.EntryOf(event.Kv)
`, `		e := line.EntryOf(event.Kv)
		e = line.Entry{Key: e.Key, Rev: e.Rev, Lease: e.Lease, Mod: e.Mod}
`}, {"internal/queue/view.go", `		e := line.EntryOf(kv)
`, `		e := line.EntryOf(kv)
		e = line.Entry{Key: e.Key, Rev: e.Rev, Lease: e.Lease, Mod: e.Mod}
`}, {"internal/queue/view.go", `		own, _ := line.Find(read.Ranges[0].Kvs, p.Ticket.Key)
`, `		own, _ := line.Find(read.Ranges[0].Kvs, p.Ticket.Key)
		own = line.Entry{Key: own.Key, Rev: own.Rev, Lease: own.Lease, Mod: own.Mod}
`}},
		killers: []killer{inArea("holders", "TestAWaiterMayBeRecalled"),
			inArea("holders", "TestAKeyThatLingersGivesWayToARecall")},
	},
	{
		name: "a recheck does not show a recall",
		why:  "The recheck compares whether those before it stand in line, and whether its own key does. But the event of the recall may have been lost.",
		edits: []edit{{"internal/queue/view.go", `	ifs := append(p.asKnownLocked(), p.Ticket.Exists(), p.Ticket.OnLease())
`, `	ifs := []clientv3.Cmp{p.Ticket.Exists(), p.Ticket.OnLease()}
`}},
		killers: []killer{inArea("holders", "TestAKeyThatLingersGivesWayToARecall"),
			inArea("holders", "TestAWaiterMayBeRecalled")},
	},
	{
		name: "what a waiter reads last does not show a recall",
		why:  "The waiter reads who is before it, and whether its own key is there. But its key may have a request.",
		edits: []edit{{"internal/queue/place.go", `	lost := p.observedLocked(own).IsLoss()
`, `	own.Entry = line.Entry{Key: own.Key, Rev: own.Rev, Lease: own.Lease}
	lost := p.observedLocked(own).IsLoss()
`}},
		killers: []killer{inArea("holders", "TestAWaiterMayBeRecalled")},
	},
	{
		name: "audits do not show a recall",
		why:  "Audits compare the names of keys, and a recall changes none. But a watch may be silent, and above a hundred names there is none.",
		edits: []edit{{"internal/queue/audit.go", `	if !some {
		return suspicious, nil, true
	}
`, `	if some || !some {
		return suspicious, nil, true
	}
`}},
		killers: []killer{inArea("holders", "TestARecallOfOneOfManyNamesIsNoticed"),
			inArea("holders", "TestARecallIsNoticedThoughAllWatchesAreSilent")},
	},
	{
		name: "audits for a recall come beside the others",
		why:  "They ask for something else. But an idle hold then costs more than one that does not listen (rule 24).",
		edits: []edit{{"internal/queue/audit.go", `	return suspicious, places, both
`, `	return suspicious, places, true
`}},
		killers: []killer{inArea("holders", "TestAHoldThatMayBeRecalledCostsNothingMore")},
	},

	// ---- a least time

	{
		name: "a least time does not keep a hold from the Session's own goroutines",
		why:  "The name stays taken by its process, as others see it. But the job runs twice, in one process.",
		edits: []edit{{"release.go", `		if until.IsZero() && (n.hand`,
			`		if (n.hand`}},
		killers: []killer{inArea("holders", "TestALeastTimeIsForTheGoroutinesOfTheSessionToo")},
	},
	{
		name: "the lease of a key that stays is in whole seconds, rounded down",
		why:  "It lasts for as long as etcd's clock can say. But if the process is gone, the next contender gets in early.",
		edits: []edit{{"internal/etcd/loan.go", `WholeSeconds(max(time.Second, time.Until(until)))`,
			`max(time.Second, time.Until(until).Truncate(time.Second))`}},
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime")},
	},
	{
		name: "a key that stays is left to its lease",
		why:  "It expires by itself. But etcd's leases are longer than what is left, and count anew after an election.",
		edits: []edit{{"release.go", `		y.beginLocked(stayKept)
`, `		y.state = stayKept
`}},
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime"),
			inArea("holders", "TestOnlyAShortHoldPaysForItsLeastTime")},
	},
	{
		name: "a key whose move is not confirmed goes at once",
		why:  "Unlock has said that it is not certain. But the job has run, and runs again before its least time is over.",
		edits: []edit{{"release.go", `	if y := r.stay; y != nil && time.Now().Before(y.until) {
		y.beginLocked(stayUnsure)
	} else {
`, `	{
`}},
		killers: []killer{inArea("holders", "TestALeastTimeUnderFaults")},
	},
	{
		name: "a key that is gone while it moves has gone by the release",
		why:  "A copy was carried out, perhaps, and nothing else is known. But that copy leaves the key there: somebody has taken it, and the hold may be lost (rule 6).",
		edits: []edit{{"internal/ticket/release.go", `	case r.moved != 0 && !now.Over: // the`,
			`	case r.moved != 0 && !now.Over && false: // the`}},
		killers: []killer{core("ticket", "TestWhatAReleaseSays"), exploring("a key that stays"),
			inArea("holders", "TestAKeyThatIsGoneWhileItMovesIsNotConfirmed")},
	},
	{
		name: "a key that was put over while it moves was lost",
		why:  "It is there, so no copy has deleted it. But a copy may have moved it before: then the hold was whole.",
		edits: []edit{{"internal/ticket/release.go", `	case r.some(a) && r.moved == 0 || r.missed`,
			`	case r.some(a) || r.missed`}},
		killers: []killer{core("ticket", "TestWhatAReleaseSays"), exploring("a key that stays"),
			inArea("holders", "TestAKeyThatIsGoneWhileItMovesIsNotConfirmed")},
	},
	{
		name: "a key whose time was over while it moved is not confirmed",
		why:  "It is gone, and the move may have been lost. But a move that was carried out leads to that, too, and nothing says that it was not.",
		edits: []edit{{"internal/ticket/release.go", `	case r.moved != 0 && !now.Over: // the`,
			`	case r.moved != 0: // the`}},
		killers: []killer{core("ticket", "TestWhatAReleaseSays"),
			inArea("holders", "TestAKeyWhoseTimeIsOverWhileItMovesHasGoneByItself")},
		unexplored: "To say that etcd has not confirmed a release is never untrue.",
	},
	{
		name: "whether the time of a key is over counts by the answer",
		why:  "The answer is what tells that the key is gone. But it tells what was so when etcd read it, and then the key was to be there.",
		edits: []edit{{"release.go", `r.stay != nil && !done.Sent.Before(r.stay.until)`,
			`r.stay != nil && !time.Now().Before(r.stay.until)`}},
		killers: []killer{
			inArea("holders", "TestAKeyThatWasGoneBeforeItsTimeWasOverIsNotConfirmed")},
	},
	{
		name: "etcd draws the IDs of all leases",
		why:  "So clientv3 has it. But where the answer is lost nobody knows the lease, and each request makes another, for as long as the key was to stay (rule 9).",
		edits: []edit{{"internal/etcd/conn.go", `		c.leases = clientv3.RetryLeaseClient(client)
`, `		_ = clientv3.RetryLeaseClient(client)
`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "a lease that exists is somebody's",
		why:  "etcd refuses to grant it. But nobody else has drawn that ID: an earlier request was carried out.",
		edits: []edit{{"internal/etcd/loan.go", `		if attempt.Is(err, rpctypes.ErrLeaseExist) {
`, `		if false && attempt.Is(err, rpctypes.ErrLeaseExist) {
`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "a lease without an answer was not granted",
		why:  "Nothing is on it. But it stands for as long as the key was to stay (rule 9).",
		edits: []edit{{"internal/etcd/loan.go", `	l.granted = l.granted || l.late || err == nil
`, `	l.granted = l.granted || err == nil
`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "the lease of a key that does not stay expires by itself",
		why:  "The Unlock is over, and nothing is on the lease. But that may take a day (rule 9).",
		edits: []edit{{"release.go", `	default:
		y.giveBackLocked()
	}
`, `	}
`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "a lease that was given back is gone for good",
		why:  "etcd has said so. But a request for it that had no answer may still be on its way (rule 9).",
		edits: []edit{{"keep.go", `	} else if y.lease.MayComeLate() && !closed`,
			`	} else if false && !closed`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "Close leaves the lease of a key that may stay",
		why:  "Its time is not over, and the key may be there. But Close removes the key, and the lease is left (rule 22).",
		edits: []edit{{"keep.go", `	case stayUnsure, stayOver: // its`,
			`	case stayOver: // its`}},
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "Close takes the keys that stay along",
		why:  "It releases all keys of its Session. But the Unlock of this one has said that it stays, and the job runs twice.",
		edits: []edit{{"keep.go", `	case stayKept: // for the rest of its time, as its Unlock has said
		delete(y.s.stays, y)
	case`, `	case stayKept: // for the rest of its time, as its Unlock has said
		y.giveBackLocked()
	case`}},
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime")},
	},
	{
		name: "Close is certain of the Session's own leases alone",
		why:  "No key is left with these. But a lease is, for a day perhaps, and nil says that nothing is (rule 22).",
		edits: []edit{{"close.go", `cmp.Or(s.keys.LeftoverLocked(), s.leftoverErr)`,
			`cmp.Or(s.keys.LeftoverLocked(), nil)`}},
		killers: []killer{inSim("TestACloseSaysThatALeaseIsLeft")},
	},
	{
		name: "the timers of keys that stay run on after Close",
		why:  "They find the Session closed, and do nothing. But they keep it in memory for the rest of the time (rule 22).",
		edits: []edit{{"keep.go", `		y.timer.Stop()
	}
	switch y.state {
`, `	}
	switch y.state {
`}},
		killers: []killer{named("TestCloseStopsTheTimersOfAllKeysThatStay")},
	},
	{
		name: "a grant without an answer is a copy of the release",
		why:  "A request of the Unlock may have been carried out. But it was not the one that deletes: the key that is gone then was lost.",
		edits: []edit{{"internal/etcd/request.go", `Outcome: ticket.NotApplied}`,
			`Outcome: ticket.Unknown}`}},
		killers: []killer{inArea("holders", "TestALeastTimeUnderFaults")},
	},
	{
		name: "a key that has moved counts as put over",
		why:  "Another lease has it. But it is the one to which a first copy has moved it: the hold was whole.",
		edits: []edit{{"internal/ticket/release.go", `	case a.Succeeded, f.Queued, moved:`,
			`	case a.Succeeded, f.Queued:`}},
		killers: []killer{core("ticket", "TestWhatAReleaseSays"),
			inArea("holders", "TestALeastTimeUnderFaults")},
		unexplored: "To say that etcd has not confirmed a release is never untrue.",
	},
	{
		name: "a key that has moved, and was then to be deleted, is gone",
		why:  "The last transaction deletes it. But an earlier one has moved it, late, and nobody ends its stay.",
		edits: []edit{{"internal/ticket/release.go", `	if moved {
		r.moves = r.moved
	}
`, ``}},
		killers:    []killer{core("ticket", "TestWhatAReleaseSays")},
		unexplored: "In the exploration the lease of a key that stays is granted at once.",
	},
	{
		name: "a move takes the key from any lease",
		why:  "The create revision tells whose key it is. But an earlier copy may have moved it, and what has happened to it since is undone.",
		edits: []edit{{"internal/ticket/release.go", `		txn.Then[0] = clientv3.OpPut(t.Key, value,`,
			`		txn.If, txn.Then[0] = txn.If[:1], clientv3.OpPut(t.Key, value,`}},
		killers: []killer{core("ticket", "TestALateCopyOfAMoveDoesNothing"),
			exploring("a key that stays")},
	},
	{
		name: "the name of a key that has moved is used again",
		why:  "The ticket is over, as after a deletion. But the key is still there, and whoever puts it finds a stranger's.",
		edits: []edit{{"internal/ticket/release.go", `	if r.moves != 0 {
		*r.t.slot, r.t.slot = Slot{}, new(Slot)
	}
`, ``}},
		killers: []killer{core("ticket", "TestALateCopyOfAMoveDoesNothing"),
			exploring("a key that stays")},
	},
	{
		name: "a key whose hold is over by its own word is no contender",
		why:  "Nobody works under it. But it is there to keep the name taken, and one that an earlier version has detached waits for the process that goes on with the hold.",
		edits: []edit{{"internal/line/line.go", `e := EntryOf(kv); e.StandsIn(name) {`,
			`e := EntryOf(kv); e.StandsIn(name) && e.Value().Until.IsZero() {`}},
		killers: []killer{
			inArea("holders", "TestAHoldThatAnEarlierVersionHasDetachedIsAContender"),
			inArea("holders", "TestWhatIsToldOfAHoldThatAnEarlierVersionHasDetached"),
		},
		unexplored: "The exploration moves no key.",
	},
	{
		name:    "the least time of a Session counts for the writers of an RWMutex",
		why:     "A writer is exclusive, too. But the option is not for an RWMutex, and readers wait for nothing.",
		edits:   []edit{{"session.go", `of != forMutex && s.cfg.minHold > 0 // a`, `false // a`}},
		killers: []killer{inArea("holders", "TestWhoHasNoUseForALeastTime")},
	},

	// ---- several names

	{
		name:    "one of several names is recalled alone",
		why:     "The request stands in the key of one name. But a holder of all of them listens for a request for any.",
		edits:   []edit{{"lockall.go", `o.hold.all, o.hold.recall = o.hold, all, c.hold.recall`, `o.hold.all = o.hold, all`}},
		killers: []killer{inArea("kinds", "TestSeveralNamesAreRecalledTogether"), ofFamily(1000)},
	},
	{
		name: "LockAll goes on with keys of unequal revisions",
		why:  "They are the call's keys, each stands in its line, and each line brings it to its turn. But one key is before another call's, and the next one is behind that call's: both calls wait for ever.",
		edits: []edit{{"internal/ticket/several.go", `	case told[Unsure] > 0 || !s.equal():
`, `	case told[Unsure] > 0:
`}},
		killers:    []killer{core("ticket", "TestKeysOfUnequalRevisionsAreGivenUp")},
		unexplored: "No request of one call puts keys apart.",
	},
	{
		name: "LockAll goes on with some of its keys",
		why:  "The next attempt puts the others. But they get another revision.",
		edits: []edit{{"internal/ticket/several.go", `	case told[Unsure] > 0 || !s.equal():
`, `	case told[Queued] == 0:
		return Unsure
	case !s.equal() && false:
`}},
		killers: []killer{explorationOfSeveral, core("ticket", "TestKeysOfUnequalRevisionsAreGivenUp")},
	},
	{
		name: "LockAll puts its keys before it owns its local lines",
		why:  "A call before it in the local line should have a key already, so etcd's line has the two in the right order. But one that has no key yet is behind it there, and before it in the local line.",
		edits: []edit{{"acquire.go", `		if o.turn == nil {
			continue // it had it at once
		}
`, `		if o.turn == nil || o != c {
			continue // it had it at once
		}
`}},
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name: "LockAll takes a key that is handed off",
		why:  "The call has waited for this turn, and the key stands first in line. But the key has a revision of its own.",
		edits: []edit{{"keep.go", `!first.Value.exclusive() || first.Value.together ||`,
			`!first.Value.exclusive() ||`}},
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name: "the key of a LockAll is put with a release",
		why:  "A release does so for the next waiter, and saves a round trip. But the other names of the LockAll have no key yet.",
		edits: []edit{{"localqueue.go", `first.Value.Try || first.Value.together {`,
			`first.Value.Try {`}, {"localqueue.go", ` || next.Try || next.together) {`, ` || next.Try) {`}},
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name: "the Unlock of several names leaves a key",
		why:  "The first name is given back, and the hold is over. But the other keys live as long as the Session.",
		edits: []edit{{"internal/ticket/release.go", `		txn.Then = append(txn.Then, clientv3.OpDelete(o.Key))
`, ``}},
		killers: []killer{
			explorationOfSeveral, core("ticket", "TestWhatAReleaseOfSeveralSays"),
			inArea("kinds", "TestWhatSeveralNamesCost"),
			ofFamily(300),
		},
		unexplored: "One name has no other keys. TestExplorationOfSeveral sees it.",
	},
	{
		name: "TryLockAll asks of all names but the last",
		why:  "The transaction is long, and its answer says who else is there. But nobody compares the last name.",
		edits: []edit{{"internal/ticket/several.go", `		all.If = append(all.If, txn.If...)
`, `		all.If = append(all.If, txn.If[:1]...)
		if i < len(s)-1 {
			all.If = append(all.If, txn.If[1:]...)
		}
`}},
		killers: []killer{explorationOfSeveral, core("ticket", "TestWhatAPutOfSeveralSends"),
			inArea("kinds", "TestWhatSeveralNamesCost"), ofFamily(1000)},
	},
	{
		name: "a place of several that is first is not watched",
		why:  "Nobody is before the place any more, and nobody is ever put before it. But its own key may go while it waits for the others, and then somebody else holds.",
		edits: []edit{{"internal/queue/place.go", `		p.Ticket.Hold()
		p.held = time.Now()
`, ``}},
		killers: []killer{inArea("kinds", "TestAKeyOfSeveralThatIsDeletedIsMissed")},
	},
	{
		name: "the first places of a LockAll are watched as if they came with the last",
		why:  "Only then does the hold begin. But until their watches are there, nobody learns that they were recalled meanwhile.",
		edits: []edit{{"internal/queue/place.go", `	if p.held.IsZero() { // else`,
			`	if first { // else`}},
		killers: []killer{inArea("kinds", "TestARecallWhereALockAllIsTheFirst")},
	},
	{
		name: "one of several names is lost alone",
		why:  "The others are still held. But the work that they protect needs all names.",
		edits: []edit{{"hold.go", `	for _, o := range h.all {
		if cause == ErrUnlocked || cause == ErrClosed {
`, `	for _, o := range h.alone {
		if cause == ErrUnlocked || cause == ErrClosed {
`}},
		killers: []killer{inArea("kinds", "TestALossOfOneOfSeveralNames"), ofFamily(300)},
	},

	// ---- permits

	{
		name: "a permit goes by its own limit",
		why:  "It asked for that limit. But others count on a lower one, or the limit was raised while they held.",
		edits: []edit{{"internal/line/line.go", `sum+int(other.Weight), min(least, other.Limit)
`, `sum+int(other.Weight), least
`}},
		killers: []killer{
			core("line", "TestAPermitWaitsForTheSum"), core("ticket", "TestExploration"),
			inArea("kinds", "TestTheLeastOfTheLimitsInLineCounts"),
			ofFamily(500),
		},
	},
	{
		name: "a permit leaves out who waits",
		why:  "There is room for it beside the holders. But it overtakes a large request that came before it, perhaps for ever.",
		edits: []edit{{"internal/line/line.go", `		sum, least = sum+int(other.Weight), min(least, other.Limit)
`, `		if sum+int(other.Weight) > int(min(least, other.Limit)) {
			continue
		}
		sum, least = sum+int(other.Weight), min(least, other.Limit)
`}},
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestAPermitWaitsForTheSum"),
			inArea("kinds", "TestPermitsAreHeldUpToTheLimitInOrder"),
			ofFamily(300),
		},
	},
	{
		name: "a permit minds permits alone",
		why:  "It counts only permits. But a Mutex of the name, or a reader, is before it.",
		edits: []edit{{"internal/line/line.go", `		if other.Kind != Permit {
			return false
		}
`, `		if other.Kind != Permit {
			continue
		}
`}},
		killers: []killer{
			core("line", "TestAPermitWaitsForTheSum"), core("ticket", "TestExploration"),
			inArea("kinds", "TestPermitsAndOthersOfTheNameExclude"),
			ofFamily(300),
		},
	},
	{
		name: "a permit does not mind who waits in its Session",
		why:  "It is within the limit, and comes in beside the holders of its Session. But an exclusive claim that waits for these waits on.",
		edits: []edit{{"claim.go", ` && n.queue.Waiting() == 0 &&
`, ` && (c.Kind == line.Permit || n.queue.Waiting() == 0) &&
`}, {"internal/turn/turn.go", `	q.owner.must("Admit", Holder)
	w := q.First()
`, `	q.owner.must("Admit", Holder)
	w := q.First()
	if w != nil && q.owner.Steps && !w.Steps {
		w, _ = q.waiters.Last()
	}
`}},
		killers: []killer{inArea("kinds", "TestPermitsAndOthersOfTheNameExclude"), ofFamily(1000)},
	},
	{
		name: "one joins those who read while a permit waits",
		why:  "No writer stands in line. But the permit waits for as long as readers come.",
		edits: []edit{{"internal/queue/line.go", `		if line.KindOf(key) != line.Read {
`, `		if line.KindOf(key) == line.Exclusive {
`}},
		killers: []killer{inArea("kinds", "TestNobodyJoinsReadsWhileAPermitWaits")},
	},
	{
		name: "a permit begins as many watches again after watches that have failed",
		why:  "A watch that failed should begin again. But a slow etcd then gets a watch for each key for which the permit waits, time and again (rule 25).",
		edits: []edit{{"internal/queue/wait_permits.go",
			`(ahead.Whole || failed || len(awaited) > manyWatched)`,
			`(ahead.Whole || failed && len(awaited) == 0 || len(awaited) > manyWatched)`}},
		killers: []killer{inArea("kinds", "TestTheWatchesOfAPermitBeginAtASlowEtcd")},
	},
	{
		name: "two permits of a Session have one key",
		why:  "A name is random enough. But few bits of a permit's name are random.",
		edits: []edit{{"internal/queue/account.go", `		if ok && a.places[key] == nil {
`, `		if ok {
`}},
		killers: []killer{inArea("kinds", "TestPermitsOfASessionHaveAKeyEach")},
	},
	{
		name: "an audit has the time of one attempt",
		why:  "An audit makes up to three requests. But if each answer takes more than half of that time, it finds a key that blocks others, and never deletes it.",
		edits: []edit{{"internal/queue/audit.go", `	asking, stop := context.WithTimeout(k.ctx, k.etcd.Timeout)
	defer stop()
`, `	ctx, cancel := context.WithTimeout(ctx, k.etcd.Timeout)
	defer cancel()
	asking, stop := context.WithTimeout(k.ctx, k.etcd.Timeout)
	defer stop()
`}},
		killers: []killer{inArea("lease", "TestAStrayIsSweptWhereAnswersAreSlow")},
	},
	{
		name: "a permit goes in by the end of what it has seen",
		why:  "It watches all permits, and none is left. But it does not see a Mutex that stands before them.",
		edits: []edit{{"internal/queue/wait_permits.go", `			return !w.covers(rest)
`, `			return rest.Clear()
`}},
		killers: []killer{inArea("kinds", "TestAPermitBehindOthersGetsInWithTheLastOfThem")},
	},
	{
		name: "a permit that has found whom it waits for reads once more",
		why:  "Later is newer. But a view may have cleared it meanwhile, and there is nobody whom it could watch.",
		edits: []edit{{"internal/queue/wait.go", `	w := watchSome(ctx, p, ahead, *broken)
`, `	ahead, _ = p.Rivals()
	w := watchSome(ctx, p, ahead, *broken)
`}},
		killers: []killer{core("queue", "TestAPermitWaitsForThoseThatItHasFound")},
	},
	{
		name: "a permit that waits misses what was before its watches",
		why:  "The line was read with the put. But those that have gone between the put and the watches told nobody.",
		edits: []edit{{"internal/queue/wait.go", `		begun: readLine,`,
			`		begun: keepWaiting,`}},
		killers: []killer{inArea("kinds", "TestAPermitMissesNothingBeforeItsWatches")},
	},
	{
		name: "a view covers every key of its line",
		why:  "It gets every event of these. But a key that it has not read, and no event has shown, may have gone before (rule 5).",
		edits: []edit{{"internal/queue/view.go",
			`v.isLiveLocked() && v.keys[p.Ticket.Key].Rev == p.Ticket.Rev()`,
			`v.isLiveLocked()`}},
		killers: []killer{core("queue", "TestAViewIsReliedOnWhileItIsLive")},
	},

	// ---- ghosts: rules 9 and 18

	{
		name: "a failed wait leaves its key to the lease",
		why:  "The lease removes the key. But the lease is renewed for as long as the Session lives (rule 9).",
		edits: []edit{{"internal/queue/removal.go", `	p.Account.leftLocked()
	p.UnwatchLocked()
`, `	p.Account.leftLocked()
	if p.Removal.Tells {
		return p.Removal.over
	}
	p.UnwatchLocked()
`}},
		killers: []killer{simulation(1000),
			inArea("queue", "TestAClaimThatLeavesOnItsWayLeavesNothingBehind")},
	},
	{
		name: "all keys go with their lease",
		why:  "etcd deletes the keys of a lease that it revokes. But it does not delete one that somebody has put over, with another lease or none: that stands for ever, and Close says nil (rule 9).",
		edits: []edit{
			{"internal/lease/revoke.go", `		err = l.tenants.RemoveRest(time.Now().Add(l.TTL))
`, `		err = nil
`},
			{"internal/queue/removal.go", `	return p.Ticket.Lost() && !p.Lease.GoneLocked() && p.keys.ctx.Err() == nil
`, `	return false
`},
		},
		killers: []killer{
			inArea("lease", "TestCloseLeavesNoKeyThatWasPutOver"),
			inArea("lease", "TestCloseDoesNotSayNilForAKeyThatStays"),
			inArea("lease", "TestAKeyThatWasPutOverIsRemovedAfterAnOutage"),
		},
	},
	{
		name: "only a key that was seen is removed",
		why:  "The put failed, so there is nothing to remove. But it may be only its answer that failed (rule 9).",
		edits: []edit{{"internal/queue/removal.go", `	if unsent || p.keys.Leases.ClosedLocked() {`,
			`	if p.Ticket.Rev() == 0 || p.keys.Leases.ClosedLocked() {`}},
		killers: []killer{inArea("lease", "TestAKeyWhosePutWasNotAnsweredIsRemovedAtOnce")},
	},
	{
		name: "a retry puts another key",
		why:  "A fresh name is safe to put. But the first one may have been put, too (rules 4 and 9).",
		edits: []edit{{"acquire.go", `			if err := c.retryPut(ctx, done.Err, &retry); err != nil {
				return nil, err
			}
`, `			if err := c.retryPut(ctx, done.Err, &retry); err != nil {
				return nil, err
			}
			p := c.place
			c.m.s.mu.Lock()
			if key := []byte(p.Ticket.Key); key[len(key)-36] == 'a' {
				key[len(key)-36] = 'b'
				p.Ticket.Key = string(key)
			} else {
				key[len(key)-36] = 'a'
				p.Ticket.Key = string(key)
			}
			c.m.s.mu.Unlock()
`}},
		killers: []killer{inArea("lease", "TestALockWhoseAnswerWasLostStandsInLineOnce")},
	},
	{
		name: "a lease in doubt is used for more",
		why:  "The lease is fine, only one request was not. But that request may come later, and then nobody knows its key: no audit removes it here (rule 9).",
		edits: []edit{
			{"internal/queue/account.go", `	if put.Doubtful() {
		a.retireLocked()
	}
`, ``},
			{"internal/queue/audit.go", `			strays = append(strays, key)
`, `			_ = p
`},
		},
		killers: []killer{simulation(1000),
			inArea("lease", "TestAfterADoubtfulLockTheNextOneUsesAnotherLease")},
	},
	{
		name: "a stray key is swept whoever has it by now",
		why:  "Nobody accounted for the key when the answer with the lease's keys came. But names are used again, so by now it is the next hold's key (rule 9).",
		edits: []edit{{"internal/queue/audit.go", `		accounted := a.accountsForLocked(e) // its name was taken again since the audit
`, `		accounted := a.places == nil
`}},
		killers: []killer{inArea("lease", "TestAKeyThatIsTakenAgainWhileItIsReadIsNotSwept")},
	},
	{
		name: "what looks like a lock's key is swept",
		why:  "Its last part is a UUID, nobody accounts for it, and who else would put that on the lease? But the user may, to whom the lease belongs, too (rule 9).",
		edits: []edit{{"internal/queue/account.go", `	return ok && sign(id, name, lease) == id
`, `	return ok && name != "" && id != uuid.Nil
`}},
		killers: []killer{inArea("lease", "TestAKeyOfTheUserThatLooksLikeALocksIsNotSwept")},
	},
	{
		name: "a key name is used again before etcd has deleted the key",
		why:  "The delete is on its way. But if it gets lost, the next hold takes the old key for its own (rule 18).",
		edits: []edit{{"internal/ticket/ticket.go", `	if !sent {
		t.Remove(0)
	}
}
`, `	t.slot.busy = false
	if !sent {
		t.Remove(0)
	}
}
`}},
		killers: []killer{core("ticket", "TestExploration")},
	},
	{
		name: "the next place is removed beside the release that puts it",
		why:  "Two requests at once are faster. But if the removal comes first, the release puts the key after it (rule 9).",
		edits: []edit{{"release.go", `		r.put.AfterLocked(&h.place.Place)
`, ``}},
		killers: []killer{inArea("queue", "TestTheNextPlaceIsRemovedAfterTheReleaseThatMayPutIt")},
	},

	// ---- lifetimes: rule 22, and what operators use

	{
		name: "a lease that is being given back is used",
		why:  "Nobody has used the lease for two TTLs, so nobody will just now. But somebody does (rule 22).",
		edits: []edit{{"internal/lease/renew.go", `	case unused && !now.Before(use.IdleSince.Add(l.TTL).Add(l.TTL)):
		l.endLocked(errUnused)
`, `	case unused && !now.Before(use.IdleSince.Add(l.TTL).Add(l.TTL)):
`}, {"internal/lease/revoke.go", `	if err == nil {
		l.becomesLocked(gone, l.why)
`, `	if err == nil && l.HasEndedLocked() { // else it panics, which shows nothing
		l.becomesLocked(gone, l.why)
`}},
		killers: []killer{inArea("lease", "TestALeaseThatIsBeingGivenBackIsNotUsed")},
	},
	{
		name: "Close revokes before the release under way",
		why:  "The revocation removes all keys at once. But the release then finds its key gone, and Unlock calls it lost (rules 6 and 22).",
		edits: []edit{{"internal/lease/renew.go", `	case p.ClosedLocked() && use.Releases > 0 && !l.HasEndedLocked() && p.ctx.Err() == nil:
		return leaseRenew // a key that goes with a revoked lease would look lost
`, ``}},
		killers: []killer{inArea("mutex", "TestUnlockThatCloseOvertakesIsNoLoss")},
	},
	{
		name: "a release counts from when it is sent",
		why:  "Before that there is nothing for which Close should wait. But the contexts are cancelled in between, Close revokes the lease, and Unlock calls that a loss (rules 6 and 22).",
		edits: []edit{
			{"release.go", `		h.place.Account.ReleaseLocked() // from here on Close waits
`, ``},
			{"close.go", `		h.place.Account.ReleaseLocked() // as in unlock
`, ``},
			{"release.go", `		h.place.local.endTurnLocked(h.claim, nil)
		h.place.Account.ReleasedLocked()
`, `		h.place.local.endTurnLocked(h.claim, nil)
`},
			{"release.go", `			h.place.Account.ReleasedLocked()
			return nil
`, `			return nil
`},
			{"release.go", `	r := &release{h: h}
`, `	h.place.Account.ReleaseLocked()
	r := &release{h: h}
`},
		},
		killers: []killer{inArea("mutex", "TestAnUnlockThatIsFollowedByCloseIsNoLoss")},
	},
	{
		name: "a second Close does not wait",
		why:  "The Session is closed already, as the caller wants. But the program closes its client next, and the first Close cannot revoke the lease (rule 22).",
		edits: []edit{{"close.go", `	case s.closing > 0:
	case s.leases.ClosedLocked():
`, `	case s.leases.ClosedLocked():
`}},
		killers: []killer{inArea("mutex", "TestACloseBesideAnotherWaitsAsWell")},
	},
	{
		name:    "Break takes a contender without a token",
		why:     "The key is what Break deletes. But a zero token compares with a key that is not there: nothing is broken, and nobody learns that.",
		edits:   []edit{{"admin.go", `	if c.Key == "" || c.Token <= 0 {`, `	if c.Key == "" {`}},
		killers: []killer{inArea("mutex", "TestABadInputIsAnErrorThatNamesIt")},
	},

	// ---- the command: nothing of it works when another may hold

	{
		name: "the command is killed a kill-after after the loss was noticed",
		why:  "The command has been promised that time. But a run that was stopped notices late, and then another may hold (rule 1).",
		edits: []edit{{"cmd/etcdlock/run.go", `		return trusted.Add(r.killAfter)
`, `		return now.Add(r.killAfter)
`}},
		killers: []killer{ofCommand("TestKillAtCountsFromTheEndOfTrust")},
	},
	{
		name:    "the command has the margin of a hold",
		why:     "The hold's context ends before another can hold. But what it cancels has to end, too, and a process takes its time.",
		edits:   []edit{{"cmd/etcdlock/hold.go", `, etcdlock.WithSafetyMargin(h.margin())`, ``}},
		killers: []killer{ofCommand("TestALossEndsAllOfTheCommandBeforeAnotherHolds")},
	},
	{
		name:    "a timeout of zero is none",
		why:     "So it is of many a setting. But a script that computes the time that is left gets a run that hangs, where flock says that the lock is taken.",
		edits:   []edit{{"cmd/etcdlock/run.go", ` || r.wait == 0 && c.Flags().Changed("timeout")`, ``}},
		killers: []killer{ofCommand("TestATimeoutOfZeroDoesNotWait")},
	},
	{
		name: "a stderr without a reader ends a run",
		why:  "So it is with most programs in a pipe. But a run waits for the sake of its command, and what it says matters less.",
		edits: []edit{{"cmd/etcdlock/hold.go", `	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
`, ``}},
		killers: []killer{ofCommand("TestAStderrWithoutAReaderEndsNoRun")},
	},
	{
		name: "a run ignores PIPE, and so does its command",
		why:  "To ignore a signal is the shortest way not to die of it. But the command inherits that, and a pipeline in it never ends.",
		edits: []edit{{"cmd/etcdlock/hold.go",
			`	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)`, `	signal.Ignore(syscall.SIGPIPE)`}},
		killers: []killer{ofCommand("TestAStderrWithoutAReaderEndsNoRun")},
	},
	{
		name: "the command of a recalled run is not told",
		why:  "It gets KILL in time, and nobody else gets in before. But it has a grace in which to end by itself.",
		edits: []edit{{"cmd/etcdlock/hold.go", `			h.hurried, h.asked = true, exited != nil
			tree.terminate()
`, `			h.hurried, h.asked = true, exited != nil
`}},
		killers: []killer{ofCommand("TestARecallEndsTheCommandOfARun")},
	},
	{
		name: "a recalled run releases at the end of the grace",
		why:  "The grace is over, and the KILL is on its way. But the command may still run.",
		edits: []edit{{"cmd/etcdlock/hold.go", `				killBy(time.Now())
			}
`, `				_ = h.release(hold)
				killBy(time.Now().Add(3 * time.Second))
			}
`}},
		killers: []killer{ofCommand("TestARecallKillsWhatIsDeafBeforeTheRelease")},
	},
	{
		name: "a run that was recalled in line starts its command",
		why:  "It holds the lock, and the command will soon learn that it has to end. But it does better not to begin.",
		edits: []edit{{"cmd/etcdlock/hold.go", `	case <-etcdlock.RecallFrom(hold): // while it waited
		h.asked, h.hurried = true, true
		return h.finish(hold, 0)
`, `	case <-(chan struct{})(nil):
`}},
		killers: []killer{ofCommand("TestARunThatIsRecalledInLineStartsNothing")},
	},
	{
		name: "a signal does not end the least time of a run",
		why:  "The command has run, and the name stays taken. But whoever ends a run by a signal wants it to end, and to begin another.",
		edits: []edit{{"cmd/etcdlock/hold.go", `	if h.hurried && h.atLeast > 0 &&`,
			`	if h.asked && h.atLeast > 0 &&`}},
		killers: []killer{ofCommand("TestTheLockIsTakenAtLeast")},
	},
	{
		name: "only the group of the command is killed",
		why:  "A job is a process group. But a daemon leaves the group, by setsid, and works on.",
		edits: []edit{{"cmd/etcdlock/tree_linux.go", `			_ = syscall.Kill(p.pid, s)
`, ``}},
		killers: []killer{
			ofCommand("TestALossEndsAllOfTheCommandBeforeAnotherHolds"),
			ofCommand("TestWhatStaysInTheBackgroundEndsBeforeTheRelease"),
		},
	},
	{
		name: "the lock is released when the command has ended",
		why:  "The run has waited for the command, and its status is known. But what the command has left in the background works on, beside the next one.",
		edits: []edit{{"cmd/etcdlock/hold.go", `			tree.terminal.giveBack()
			killBy(time.Now().Add(h.killAfter))
			tree.terminate()
`, `			tree.terminal.giveBack()
			return ended
`}},
		killers: []killer{ofCommand("TestWhatStaysInTheBackgroundEndsBeforeTheRelease")},
	},
	{
		name: "a command that was broken has the whole kill-after",
		why:  "--kill-after says so. But another may hold already, so each second counts.",
		edits: []edit{{"cmd/etcdlock/run.go", `	return now.Add(min(r.killAfter, time.Second)) // another may hold already
`, `	return now.Add(r.killAfter)
`}},
		killers: []killer{ofCommand("TestABreakEndsTheCommandWithinASecond"),
			ofCommand("TestKillAtCountsFromTheEndOfTrust")},
	},
	{
		name: "a loss is left to the next look at it",
		why:  "etcdctl lock does so: it runs its command, and looks at the lease when that has ended. But meanwhile the command works on without the lock.",
		edits: []edit{{"cmd/etcdlock/hold.go", `	exited, lost := tree.exited, hold.Done()
`, `	exited, lost := tree.exited, (<-chan struct{})(nil)
`}},
		killers: []killer{ofCommand("TestACommandThatHearsEndsAtOnce")},
	},
	{
		name: "the command's loss is told before the KILL",
		why:  "The sooner the operator knows, the better. But the reader of stderr may be stuck, and then nobody sends the KILL.",
		edits: []edit{{"cmd/etcdlock/hold.go", `			killBy(h.killAt(time.Now(), *h.trusted.Load(), expired))
			tree.terminate()
`, `			killBy(h.killAt(time.Now(), *h.trusted.Load(), expired))
			tree.terminate()
			h.app.say("%v", context.Cause(hold))
`}},
		killers: []killer{ofCommand("TestAReaderThatIsStuckHoldsUpNoKill")},
	},
	{
		name:    "a command outlives a run that was killed",
		why:     "It is in a group of its own, so that signals reach it once. But then nobody tells it that the lease is no longer renewed.",
		edits:   []edit{{"cmd/etcdlock/tree_linux.go", `, Pdeathsig: syscall.SIGKILL}`, `}`}},
		killers: []killer{ofCommand("TestARunThatIsKilledTakesItsCommandAlong")},
	},
	{
		name: "a minor of etcd without a fix is open to nothing",
		why:  "No patch of it is below the fix. But no patch of it has the fix, either.",
		edits: []edit{{"cmd/etcdlock/advisories.go", `r.major < 3 || !fixed || r.patch < patch`,
			`fixed && r.patch < patch`}},
		killers: []killer{ofCommand("TestWhichAdvisoriesAReleaseIsOpenTo")},
	},
	{
		name:    "a candidate of etcd has the fixes of its release",
		why:     "It has the numbers of the release. But it comes before it, and maybe before the fix.",
		edits:   []edit{{"cmd/etcdlock/advisories.go", ` || r.patch == patch && r.pre`, ``}},
		killers: []killer{ofCommand("TestWhichAdvisoriesAReleaseIsOpenTo")},
	},
}
