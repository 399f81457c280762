package mutants

// The mutants, in the order of the contract: trust, truth, the line, ghosts, lifetimes. If
// a second mechanism of the library makes up for what a mutant gives up, the mutant gives
// up both: otherwise it would be another right version.
var mutants = []mutant{
	// ---- trust: rules 1 to 3

	{
		name:   "trust counts from the answer",
		why:    "clientv3.KeepAlive counts so, and only with the answer does the client know. But a slow answer adds its delay to the trust (rule 1).",
		change: in("trust.Trust.Answered").replace("_.extend(it, _.TTL)", "now"),
		killers: []killer{
			explorationOfTrust, followsTheSpecification, following(25),
			simulation(2000), inArea("lease", "TestTrustCountsFromTheSendInVirtualTime"),
			core("lease/trust", "TestTheTrustIsSentPlusTTLLessMargin"),
		},
	},
	{
		name:   "no safety margin",
		why:    "sent + TTL is the exact bound if all clocks run at one rate. But they do not (rule 1).",
		change: in("trust.Trust.extend").replace("_ttl - _.margin(_ttl)", "_ttl"),
		killers: []killer{
			explorationOfTrust, followsTheSpecification,
			simulation(2000), inArea("lease", "TestTheHolderHearsOfALossBeforeEtcdCanGiveTheLockAway"),
			core("lease/trust", "TestTheTrustIsSentPlusTTLLessMargin"),
		},
	},
	{
		name:    "each renewal counts from its own sending",
		why:     "etcd has confirmed the renewal, so the lease lives for a TTL from its sending. But an earlier renewal may have reached a newer leader, and that leader's clock counts (rule 1).",
		change:  in("trust.Trust.Answered").never("_.sent.Before(_) && !_"),
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name:    "the word of a leader of an older term is taken",
		why:     "A member that is behind is not wrong. But a member that led and is cut off is wrong (rule 1).",
		change:  in("trust.Trust.Answered").drop("_.Term < _"),
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name: "what a renewal is worth is asked of one member",
		why:  "One read should do. But that member may be the silent one, again and again: renewals are confirmed, and count for nothing (rule 13).",
		change: in("lease.keeper.ask").replace(
			"_, _err := _p.etcd.ReadBy(_ctx, etcd.Range(_key, clientv3.WithCountOnly()), _retry, nil)",
			`
			_, _, _err := attempt.Do(_ctx, _p.etcd.Caller, &_retry, time.Hour, func(_ctx context.Context, _ bool) (etcd.Reading, error) {
				return _p.etcd.Ask(_ctx, etcd.Range(_key, clientv3.WithCountOnly()))
			}, nil)`),
		killers: []killer{core("sim", "TestAReadOfDoubtMeetsAnotherMember")},
	},
	{
		name: "an attempt matters for four thirds of the TTL, whatever the TTL",
		why:  "So it does. But four thirds of the longest TTLs overflow, and no attempt matters at all (rule 1).",
		change: in("trust.Trust.Sends").replace("(_now.Sub(_a.sent)-requestTimeout)/4 > _self.ttl/3",
			"_now.Sub(_a.sent) > requestTimeout+_self.ttl/3*4"),
		killers:    []killer{core("lease/trust", "TestAnAttemptMattersHoweverLongTheTTL")},
		unexplored: "The exploration has one TTL, of five steps.",
	},
	{
		name:    "a read confirms every renewal",
		why:     "etcd answers, so its leader leads. But another leader may have renewed the lease (rule 1).",
		change:  in("trust.Trust.Proved").drop("_.answer.Term >= _"),
		killers: []killer{explorationOfTrust, core("lease/trust", "TestWhatARenewalIsWorth")},
	},
	{
		name: "the timer of the trust waits for the Session's mutex",
		why:  "All that follows from the end of a lease is done with it. But 20,000 calls may hold it for seconds, and meanwhile etcd gives the lock away (rule 27).",
		change: in("lease.Lease.expire").replace("_why := _self.expires()",
			"_self.pool.mu.Lock(); _why := _self.expires(); _self.pool.mu.Unlock()"),
		killers: []killer{withMutexHeld("TestHoldsEndInTimeWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "a look at a hold waits for the Session's mutex",
		why:  "The mutex guards the hold. But who asks before each write waits for 20,000 calls, and works on if it is told late (rule 27).",
		change: in("holdContext.check").replace(
			"if _cause := _self.hold.life.Cause(time.Now()); _cause != nil",
			`
			_self.hold.m.s.mu.Lock()
			_cause := _self.hold.life.Cause(time.Now())
			_self.hold.m.s.mu.Unlock()
			if _cause != nil {
				_self.End(_cause)
			}`),
		killers: []killer{withMutexHeld("TestHoldsEndInTimeWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "the answer to a renewal waits for the Session's mutex",
		why:  "The state of the lease is guarded by it. But the trust runs out while the answer waits, and a healthy hold is lost (rule 27).",
		change: in("lease.Lease.trusts").before("_p.safety.Lock()",
			"_p.mu.Lock(); defer _p.mu.Unlock()"),
		killers: []killer{withMutexHeld("TestLeasesAreRenewedWhileTheSessionsMutexIsHeld")},
	},
	{
		name:    "the keeper sees what is due before it sends",
		why:     "It may end the lease. But it waits for the Session's mutex, and the renewal is late (rule 27).",
		change:  in("lease.keeper.renewalDue").before("_until := _", "_self.care(time.Now())"),
		killers: []killer{withMutexHeld("TestLeasesAreRenewedWhileTheSessionsMutexIsHeld")},
	},
	{
		name: "one Unlock lets in all that may come in",
		why:  "Each of them takes a few steps. But 20,000 reads that wait are let in by one Unlock, and meanwhile nobody else gets the mutex (rule 28).",
		change: in("markedLines.SettleLocked").replace("for range guard.Piece", `
			for {
				n := _self.last
				if n == nil {
					return
				}
				n.marked, n.markedNext, _self.last = false, nil, n.markedNext
				n.admitLocked()
			}`),
		killers: []killer{inBound("reads wait for another process", "the other process goes")},
	},
	{
		name:    "the end of a lease ends all holds at once",
		why:     "It is one event. But 20,000 names may be on the lease, and meanwhile nobody gets the mutex (rule 28).",
		change:  in("queue.Account.eachLocked").replace("guard.Piece", "1e6"),
		killers: []killer{inBound("names are held", "the lease runs out")},
	},
	{
		name:    "holds that end together count as one",
		why:     "Each piece has sixteen places. But ten names are held together at each, and 160 holds end at once (rule 28).",
		change:  in("Hold.endLocked").drop("_.Touch(1)"),
		killers: []killer{inBound("names are held together", "the lease is revoked")},
	},
	{
		name:    "the holder that a call waits for is sought among all",
		why:     "The first one whose hold is not lost is told. But the holds of 20,000 reads may be lost, and each call goes through all of them (rule 28).",
		change:  in("localLine.firstLocked").replace("queue.FewAhead", "1e6"),
		killers: []killer{inBound("reads were lost", "they come, and calls beside them")},
	},
	{
		name:    "what an answer shows of a line is parsed with the mutex",
		why:     "The ticket judges it there. But the line may have thousands of permits (rule 28).",
		change:  in("call.entered").drop("_.Read(_)").after("_.mu.Lock()", "keys.Read(answer)"),
		killers: []killer{inBound("another process has permits", "they come, and calls beside them")},
	},
	{
		name: "a view leaves out the keys of nested names with the mutex",
		why:  "It knows its line there. But thousands of nested names may go at once, with a lease (rule 28).",
		change: in("view.apply").drop("if _ := line.EntryOf(_); _").
			after("_.mu.Lock()", `
				for _, event := range events {
					if e := line.EntryOf(event.Kv); e.MayStandIn(v.line.Name) {
						told = append(told, e)
					}
				}`),
		killers: []killer{
			inBound("a lock lingers beside keys of nested names", "keys of nested names go")},
	},
	{
		name:    "a late answer revives the lease",
		why:     "etcd says that the lease lives, so nobody else had the lock. But nobody has looked yet, and the trust was over: etcd may have given the lock away since (rule 1).",
		change:  in("lease.Lease.trusts").replace("_self.overSafe(_)", "_self.over"),
		killers: []killer{core("lease", "TestALateAnswerRevivesNoLease")},
	},
	{
		name: "a hold begins without a look at the clock",
		why:  "The place is first in line and the key is there, so nothing seems left to check. But the trust may be over (rule 1).",
		change: in("place.checkCanBeginLocked").drop("if _.Lease.Over(_) != nil || _.Ticket.Lost()").
			in("ticket.Ticket.Hold").drop("_.must(_...)"),
		killers: []killer{core("hold", "TestNoHoldBeginsWhenTheTrustIsOver")},
	},
	{
		name: "a hold begins at a key that is gone",
		why:  "The line has just been read, and nobody is before the place. But a look has found meanwhile that the place's own key is gone. It reports that once, so the hold never learns of its loss (rules 5 and 12).",
		change: in("place.checkCanBeginLocked").drop("_.Ticket.Lost()").
			in("ticket.Ticket.Hold").drop("_.must(_...)").
			in("queue.Place.doubtLocked").always("_.stands == nowhere || _ || _ || _"),
		killers: []killer{inArea("lease", "TestNoHoldBeginsAtAKeyThatIsGone")},
	},
	{
		name: "contexts end by their timer only",
		why:  "Programs check a context often, the clock costs time, and there is a timer. But after a pause of the process the timer has not run yet (rule 2).",
		change: in("holdContext.check").drop("if _.Context.Err() != nil").
			drop("if _ := _.hold.life.Cause(time.Now()); _ != nil"),
		killers: []killer{core("hold", "TestTheFirstLookNeedsNoTimer")},
	},
	{
		name:    "each call of Context makes a context",
		why:     "It ends with the hold, and the hold forgets it with its parent. But both may go on for days, and the program may ask before each step.",
		change:  in("WithHold").always("!reflect.ValueOf(_).Comparable()"),
		killers: []killer{core("hold", "TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name:    "a context that comes from the hold's own gets one more",
		why:     "It is a parent as any other. But a loop may ask with what it got before.",
		change:  in("WithHold").drop("if _, _ := _.(*holdContext); _ && _.hold == _"),
		killers: []killer{core("hold", "TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name:    "of two contexts for one parent the hold ends the later one",
		why:     "The hold did not know one a moment ago. But another call may have made one since, and that one would outlive the hold (rule 2).",
		change:  in("lease.Life.Add").drop("if _ := _.contexts[_]; _ != nil"),
		killers: []killer{core("hold", "TestOneParentHasOneContextOfAHold")},
	},
	{
		name:    "every context can be a key",
		why:     "Those of package context can. But a program may have a type of its own, and one that cannot be compared panics.",
		change:  in("WithHold").replace("if !reflect.ValueOf(_).Comparable()", "_ = reflect.ValueOf"),
		killers: []killer{core("hold", "TestAHoldKeepsNoMoreContextsThanItHasParents")},
	},
	{
		name: "Close revokes while the contexts end",
		why:  "Close has ended every hold, and wakes the keeper at once. But the contexts are cancelled one by one, and etcd is faster (rule 1).",
		change: in("lease.revoke").drop("_.endLives(_.Over(_))").
			in("lease.Lease.endLocked").drop("_.endLives(_)").
			in("lease.Pool.CloseLocked").drop("_.mu.After(_.endLives)"),
		killers: []killer{inArea("mutex", "TestCloseEndsTheContextsOfAHundredNamesBeforeItFreesOne"),
			inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name:    "Close gives up a revocation that had no answer before",
		why:     "Two TTLs after the last renewal nothing can be left of it. But etcd has not said so, and Close still has time to ask (rule 22).",
		change:  in("lease.giveBack").drop("_.closedFor()/2 > _.TTL"),
		killers: []killer{inArea("lease", "TestCloseHasItsOwnTimeToRevokeALease")},
	},
	{
		name:    "a removal begins while the contexts end",
		why:     "The code that ends a hold cancels its contexts next, and the removal takes a request. But the contexts of a hold may be many, and to cancel those derived from them may take time (rule 1, WithMaxHold).",
		change:  in("queue.Place.remove").drop("_.owner.EndContexts()"),
		killers: []killer{inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name:    "the turn is passed on at home while the contexts end",
		why:     "The hold has ended, and no request to etcd is needed. But a goroutine of the hold may still run, since its context has not ended yet (rule 4).",
		change:  in("Hold.unlockLocked").replace("_.mayFreeLocked()", "true"),
		killers: []killer{inArea("mutex", "TestEveryContextOfAHoldEndsBeforeTheNextOneGetsIn")},
	},
	{
		name:   "the wall clock is not looked at",
		why:    "Go's monotonic clock cannot be set, so it is the better one. But it stands still while a machine is suspended (rule 2).",
		change: in("trust.Trust.At").drop("case !_.Round(0).Before(_.until.Round(0))"),
		killers: []killer{
			explorationOfTrust,
			core("hold", "TestTheWallClockMayEndAHoldAndNeverLengthensOne"),
		},
	},
	{
		name:    "one renewal at a time",
		why:     "The attempt under way has not failed yet. But it may have met the one dead endpoint of three, and take the whole TTL (rule 13).",
		change:  in("lease.keeper.sendLocked").drop("_.nextLocked(_.plan.Late())"),
		killers: []killer{simulation(1000), inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce")},
	},
	{
		name: "a renewal that fails at once is sent again as if it had been late",
		why:  "A second is short beside a TTL of 15 s. But eight attempts fit into a trust, and where two of three requests fail at once all eight do now and then (rule 13).",
		change: in("trust.Schedule.Again").replace("min(max(_soon, _), _self.longest())",
			"max(_soon, _self.longest())"),
		killers: []killer{
			core("hold", "TestErrorsThatComeBackAtOnceLoseNoHold"),
			explorationOfTrust,
		},
	},
	{
		name: "the read of what a renewal is worth is sent once",
		why:  "The next renewal asks again. But while requests fail at once each renewal is in doubt, and two of three reads fail, too (rule 13).",
		change: in("lease.keeper.ask").replace("_, _err := _.etcd.ReadBy(_, etcd.Range(_...), _, it)",
			"func(_err error) error { return _err }"),
		killers: []killer{core("hold", "TestErrorsThatComeBackAtOnceLoseNoHold")},
	},
	{
		name: "the read of what a renewal is worth is given up for another renewal",
		why:  "A member may be silent, and the renewal's bound is long. But then both the next renewal and its read have to be answered, where one answer was enough (rule 13).",
		change: in("lease.keeper.ask").replace("context.WithDeadlineCause(_k.ctx, _until, _over)",
			"context.WithTimeoutCause(_k.ctx, 2*time.Second, _over)"),
		killers: []killer{core("hold", "TestAReadGoesOnForAsLongAsItMayHelp")},
	},
	{
		name:   "a renewal that fails late is sent again at once",
		why:    "The sooner it is sent, the sooner it is answered. But an etcd that is slow then gets more renewals, and not fewer (rule 25).",
		change: in("trust.Schedule.Again").replace("min(it, _.longest())", "soon"),
		killers: []killer{
			explorationOfTrust, inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce"),
			core("lease/trust", "TestTheScheduleOfTheDefaults"),
		},
	},
	{
		name: "a renewal that fails at once waits as long as other answers take",
		why:  "An etcd that answers late gets less to do. But where most requests fail at once clientv3 repeats reads by itself, and it is these that take long (rule 13).",
		change: in("lease.keeper.again").replace("case attempt.Overloaded(_)",
			"default: took = _self.pool.etcd.Seldom(took)"),
		killers: []killer{core("sim", "TestARenewalThatFailsAtOnceIsSentAgainSoonWhereAnswersAreSlow")},
	},
	{
		name:    "a renewal that is refused is sent again at once",
		why:     "An operator may take the refusal back. But each new stream may be a login, which costs etcd more than anything else (rule 25).",
		change:  in("lease.keeper.again").drop("attempt.Refused(_)"),
		killers: []killer{inArea("lease", "TestAFailedRenewalIsFollowedByTwoAtOnce")},
	},
	{
		name:   "each renewal opens a stream",
		why:    "clientv3.KeepAliveOnce does so, and meets another endpoint each time. But with user and password it logs in each time (rule 24).",
		change: in("keepalive.streams.proven").never("_.proven"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			inSim("TestAtRestALeaseCostsOneStreamAndOneMessageAPeriod"),
			onCluster("TestRenewalsLogInOnceWhileTheTokenLasts"),
		},
	},
	{
		name:   "a stream carries all renewals before it is proven",
		why:    "They are answered as soon as it is open. But if it fails all of them fail with it, at each opening (rule 25).",
		change: in("keepalive.streams.proven").drop("_.proven"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
		},
	},
	{
		name:   "a stream is kept wherever it leads",
		why:    "The stream answers each renewal. But etcd's grpc-proxy answers with the result of a renewal of its own, which it may have sent before (rule 1).",
		change: in("keepalive.streams.answered").replace("_.TTL == 0", "true"),
		killers: []killer{
			core("etcd/keepalive", "TestBehindAProxyNoStreamIsKept"),
			onCluster("TestBehindEtcdsProxyEachRenewalHasAStream"),
		},
	},
	{
		name:    "a watch may take three times as long to begin as answers of before took",
		why:     "etcd may be as slow yet, and another watch makes it slower. But a waiter reads nothing while it waits for its watch, and may be the first in line (rule 12).",
		change:  in("attempt.Caller.WatchTimeout").replace("min(_d, max(_, Patience*_.Timeout))", "_d"),
		killers: []killer{inArea("queue", "TestSlowAnswersOfBeforeDoNotDelayAWaiter")},
	},
	{
		name:   "a renewal is sent behind another one of its lease",
		why:    "The stream is open, and etcd answers in order. But a member that hangs answers neither renewal (rule 13).",
		change: in("keepalive.stream.mayCarry").drop("!_.leases[_.by]"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestEachRenewalIsToldItsOwnAnswer"),
		},
	},
	{
		name: "a client warns of each of its leases",
		why:  "Each is late, so each is worth a line. But where etcd is slow thousands are, for one reason, and the log hides what matters.",
		change: in("attempt.Caller.Warns").
			never("_ != nil && (_.of != _ || _.also > 0) && _.Sub(_.at) < warnEvery"),
		killers: []killer{inArea("outages", "TestAClientWarnsOfOneLeaseForAll")},
	},
	{
		name:    "renewals that wait for a stream do not see that one is proven",
		why:     "The next one sees it. But those that wait open streams of their own, or are not sent (rule 25).",
		change:  in("keepalive.streams.answered").drop("_.look = true"),
		killers: []killer{core("etcd/keepalive", "TestTheCreditIsKept")},
	},
	{
		name:    "a Session learns of a set-back by its own answers alone",
		why:     "Each answer that comes later shows it. But a Session with long leases asks for nothing for minutes, and its hold goes on beside that of another Session (rule 26).",
		change:  in("lease.keeper.care").drop("_.etcd.CatchUp()"),
		killers: []killer{inArea("outages", "TestAHoldEndsSoonOnceAnyOfItsClientHasNoticedASetBack")},
	},
	{
		name:    "a renewal is sent although its lease is about to be revoked",
		why:     "It was decided on before. But the lease is dead for good then (rule 22), and as nobody awaits the answer, the stream of the other leases ends.",
		change:  in("keepalive.Sender.Renew").replace("_.Err() == nil", "true"),
		killers: []killer{core("etcd/keepalive", "TestALeaseThatIsGivenBackIsNotRenewed")},
	},
	{
		name:    "a renewal waits on although the lease's earlier one was answered",
		why:     "It waits for a stream that is proven, as all others. But where none can be opened the only one is that of the earlier one (rule 13).",
		change:  in("keepalive.streams.answered").replace("_.carries(_)", "false"),
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name:    "a renewal after a failure goes on the stream of that",
		why:     "The stream has answered. But the answer came from a leader that is cut off, and its word is worth nothing (rule 1).",
		change:  in("keepalive.stream.mayCarry").drop("_.number > _.by.after"),
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name:    "a renewal that was refused shares the stream of the others",
		why:     "An operator may have taken the refusal back. But if not, etcd ends the stream, and all others need another one (rule 25).",
		change:  in("keepalive.stream.mayCarry").drop("!_.Refused"),
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name:   "a stream whose only renewal was refused has failed",
		why:    "It has answered nothing else. But etcd is there, and refuses one lease: where it refuses hundreds, the others get no stream in time (rule 13).",
		change: in("keepalive.streams.failed").drop("_.credit++"),
		killers: []killer{
			core("etcd/keepalive", "TestARefusalIsNoFailureOfAStream"),
			inArea("lease", "TestTheRefusalOfManyLeasesLosesNoOther"),
		},
	},
	{
		name: "etcd is taken to have refused a lease no more once a renewal has failed otherwise",
		why:  "The last failure was no refusal. But it says nothing about the right, and the next renewal ends the stream of all others (rule 25).",
		change: in("lease.keeper.answeredFor").
			replace("_.refused || attempt.Refused(_err)", "attempt.Refused(_err)"),
		killers: []killer{inArea("lease", "TestTheRefusalOfManyLeasesLosesNoOther")},
	},
	{
		name:    "all renewals on a stream fail as the first one has",
		why:     "The stream has ended for all of them. But etcd has refused one lease, and the others then wait as if they were refused, too (rule 13).",
		change:  in("keepalive.streams.failed").never("_ > 0"),
		killers: []killer{core("etcd/keepalive", "TestTheRefusalOfOneLeaseIsNotThatOfOthers")},
	},
	{
		name: "a renewal that is given up leaves its place to the next",
		why:  "The stream may be sound. But the late answer is then taken for the answer to a later renewal, and counts from that one's sending (rule 1).",
		change: in("keepalive.streams.giveUp").replace("_w.gone = true", `
			if _w.on != nil {
				_w.on.underWay = slices.DeleteFunc(_w.on.underWay, func(o *wait) bool { return o == _w })
				delete(_w.on.leases, _w.by)
			}`),
		killers: []killer{core("etcd/keepalive", "TestNoAnswerIsTakenForThatToALaterRenewal")},
	},
	{
		name:    "a stream on which no renewal is awaited stays",
		why:     "It may answer yet. But a member that hangs never does, and the stream stays open for good (rule 24).",
		change:  in("keepalive.streams.giveUp").drop("_.end(_)"),
		killers: []killer{core("etcd/keepalive", "TestASilentStreamIsLeft")},
	},
	{
		name:    "a silent stream is ended when another has answered",
		why:     "Nobody needs its answer any more. But etcd may yet carry out the renewal that was sent on it, and only the answer says that it has. Until then the worth of each renewal costs a read.",
		change:  in("keepalive.streams.endUnused").replace("len(_.underWay) == 0", "true"),
		killers: []killer{core("etcd/keepalive", "TestEachRenewalIsToldItsOwnAnswer")},
	},
	{
		name:    "renewals stay where the client was",
		why:     "The stream is open. But the client was moved to another cluster, which gives the lock to another (rule 26).",
		change:  in("etcd.Conn.Where").replace("Endpoints: it", `strings.Repeat(" ", 1)`),
		killers: []killer{inSim("TestRenewalsGoWhereTheClientGoes")},
	},
	{
		name:    "the end of a stream is a failure of the renewal",
		why:     "The renewal has failed. But tokens end all the time, and a member stops at each upgrade. Each time, keys that linger are given up, and an alarm is raised.",
		change:  in("lease.keeper.answeredFor").replace("!_.repeated", "false"),
		killers: []killer{inArea("lease", "TestARenewalWhoseStreamEndsIsSentAgainAtOnce")},
	},
	{
		name:   "only answers pay for another stream",
		why:    "An etcd that answers nothing is to be asked nothing. But then nobody finds out that it is back (rule 13).",
		change: in("keepalive.streams.rate").replace("perPeriod / _.Seconds()", "1e-9"),
		killers: []killer{
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
			core("hold", "TestAllLeasesAreRenewedSoonWhenEtcdIsBack"),
		},
	},
	{
		name:    "the shortest lease that a client ever had pays for its streams",
		why:     "Its period was counted as it came. But it may be long gone, and the others are to open few streams (rule 25).",
		change:  in("keepalive.streams.leave").drop("delete(_, _)"),
		killers: []killer{core("etcd/keepalive", "TestOnlyTheLeasesThereAreCountForTheCredit")},
	},
	{
		name:   "those that wait for a stream open one as they come",
		why:    "First come, first served. But a lease that is about to end waits behind those that have minutes (rule 13).",
		change: in("keepalive.wait.isBefore").replace("_.Until.Before(_)", "false"),
		killers: []killer{
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
			core("etcd/keepalive", "TestTheCreditIsKept"),
		},
	},
	{
		name: "each lease has a stream for its renewals",
		why:  "So no lease waits for another, and the errors of one end no stream of another. But when a member restarts, a thousand leases log in at once (rule 25).",
		change: in("keepalive.streams.proven").
			and("_on.proven && _on.mayCarry(_w)", "_on.number == _w.by.last"),
		killers: []killer{
			core("etcd/keepalive", "TestTheLeasesOfAClientShareAStream"),
			inSim("TestALostStreamIsReplacedOnceForAllLeases"),
			onCluster("TestTheRenewalsOfManySessionsLogInSeldom"),
		},
	},
	{
		name:   "a renewal without a stream opens one at once",
		why:    "A renewal is not to wait. But those of a thousand leases then log in at once, and etcd answers all of them late (rule 25).",
		change: in("keepalive.streams.mayOpen").drop("_.opening < _.mostOpenings()"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestTheRestartOfAMemberOpensFewStreams"),
		},
	},
	{
		name:   "a stream that fails is replaced at once",
		why:    "At most four are being opened at a time. But each that fails at once is followed by another, and each may be a login (rule 25).",
		change: in("keepalive.streams.mayOpen").drop("_.credit >= 1"),
		killers: []killer{
			core("etcd/keepalive", "TestFewStreamsAreOpenedWhereAllFail"),
			core("etcd/keepalive", "TestTheCreditIsKept"),
		},
	},
	{
		name:    "streams that hang hold up all others",
		why:     "At most four are being opened at a time. But four may lead to a member that hangs (rule 13).",
		change:  in("keepalive.client.with").drop("time.AfterFunc(openingTime, _)"),
		killers: []killer{core("etcd/keepalive", "TestStreamsThatHangHoldUpNoOthers")},
	},
	{
		name:    "a renewal goes on a stream from before a set-back",
		why:     "The stream is open, and leads to the endpoint that the client has. But where an address was moved to another cluster, it still leads to the old one (rule 26).",
		change:  in("keepalive.stream.mayCarry").drop("_.begun.After(_.Where.Since)"),
		killers: []killer{core("etcd/keepalive", "TestAStreamFromBeforeASetBackIsNotUsed")},
	},
	{
		name:    "all renewals go on one stream, however many are under way there",
		why:     "etcd answers in order, and soon. But a member that does not lead asks the leader for each renewal on a stream, one after the other (rule 13).",
		change:  in("keepalive.streams.carries").never("_.isCrowded(_, _)"),
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name: "renewals that go out together are sent behind each other while a stream is opened",
		why:  "A stream is there. But where a member is slow with each of them, the last is answered after its trust (rule 13).",
		change: in("keepalive.streams.carries").replace("_k.opening > 0 || _k.credit >= 1",
			"_k.opening == 0 && _k.credit >= 1"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestRenewalsThatGoOutTogetherAreInTimeAtASerialMember"),
		},
	},
	{
		name:   "nothing is concluded from how fast a member answers",
		why:    "The oldest renewal on a stream shows whether it waits. But of those that go out together none has waited, and the last will (rule 13).",
		change: in("keepalive.stream.isCrowded").replace("time.Duration(_)*_.pace", "0"),
		killers: []killer{
			core("etcd/keepalive", "TestRenewalsThatGoOutTogetherAreInTimeAtASerialMember"),
		},
	},
	{
		name:    "each renewal is sent when it is due",
		why:     "Its Session asks for no more. But it wakes an idle etcd and an idle client for each, which costs several times the renewal (rule 24).",
		change:  in("lease.keeper.untilSent").replace("_.sender.Together(_due)", "_due"),
		killers: []killer{core("hold", "TestTheRenewalsOfAClientsSessionsGoOutTogether")},
	},
	{
		name:    "the connection is followed though no request is under way",
		why:     "The next request needs it. But the goroutine outlives the Sessions (rule 22).",
		change:  in("attempt.Caller.CancelWhenUnreachable").drop("_.unfollow()"),
		killers: []killer{core("etcd/attempt", "TestOneGoroutineFollowsTheConnectionForAllRequests")},
	},
	{
		name:    "a renewal goes on a stream from before the grant of its lease",
		why:     "No set-back was noticed. But where an address was moved to another cluster, the stream still leads to the old one, which does not know the lease (rule 26).",
		change:  in("keepalive.stream.mayCarry").drop("_.begun.After(_.by.since)"),
		killers: []killer{core("etcd/keepalive", "TestAStreamFromBeforeASetBackIsNotUsed")},
	},
	{
		name: "streams that were needed once stay in a client that is busy",
		why:  "They end once nothing is under way. But in a client with many leases something always is, and streams add up for good (rule 25).",
		change: in("keepalive.streams.endUnused").replace("len(_.underWay) == 0",
			"!slices.ContainsFunc(k.open, func(o *stream) bool { return len(o.underWay) > 0 })"),
		killers: []killer{core("etcd/keepalive", "TestWhichStreamARenewalGoesOn")},
	},
	{
		name:   "streams that were needed once stay",
		why:    "They may be needed again. But after an outage, or a mass start, hundreds stay open for good.",
		change: in("keepalive.streams.endUnused").drop("_spare = _"),
		killers: []killer{
			core("etcd/keepalive", "TestWhichStreamARenewalGoesOn"),
			core("etcd/keepalive", "TestEachRenewalIsToldItsOwnAnswer"),
		},
	},
	{
		name:       "a renewal that has failed is repeated each second, however long the TTL",
		why:        "A second is seldom enough. But a fleet whose leases are to be renewed once in twenty minutes then asks 1,200 times as often as a healthy etcd is asked (rule 25).",
		change:     in("trust.Schedule.longest").replace("_.Period/30", "0"),
		killers:    []killer{core("lease/trust", "TestFewAttemptsFailWhateverTheTTL")},
		unexplored: "how many attempts a fleet makes is counted, and not a hold that is lost",
	},
	{
		name: "only the Session that notices it watches anew when the stream is silent",
		why:  "It is the Session's listener that is told. But the stream is that of all Sessions of the client, and the watches of the others hear nothing either (rule 12).",
		change: in("etcd.Conn.tellSilent").replace("_other.tasks.Go(_other.listener.StreamSilent)",
			"_ = _other.tasks"),
		killers: []killer{inArea("watching", "TestAllSessionsWatchAnewWhenTheirStreamIsDead")},
	},
	{
		name:    "a Session is told of a silent stream for as long as the client lives",
		why:     "It may watch again. But the client, and with it all its Sessions, then live for ever (rule 22).",
		change:  in("etcd.stream.begins").replace("_.watches[_] == 0", "false"),
		killers: []killer{core("etcd", "TestASilentStreamIsTold")},
	},
	{
		name:    "a read that only tries waits for a view that etcd refuses",
		why:     "The view ends, and a waiter of a whole one is told why. But nothing marks the line, so the try waits for its whole TTL (rule 8).",
		change:  in("queue.view.refuseLocked").replace("!_self.isOverLocked()", "_self.isOverLocked()"),
		killers: []killer{inArea("kinds", "TestTryRLockTellsThatTheLineMayNotBeRead")},
	},
	{
		name:    "renewals go by the TTL, whatever the margin",
		why:     "Everybody renews at a third of the TTL. But with a margin of two thirds the trust is over by then (rule 1).",
		change:  in("trust.scheduleOf").replace("min(_granted/3, _/9*4)", "_granted/3"),
		killers: []killer{explorationOfTrust, inArea("lease", "TestNoMarginLosesTheHoldsOfAHealthyEtcd")},
	},
	{
		name: "what lasts goes by the TTL, whatever the margin",
		why:  "A third of the TTL is left when two renewals have failed. But with a margin of two thirds that much is never left: nothing lingers, and nothing is passed on (WithHandoff, WithLinger).",
		change: in("lease.Lease.Lasts").replace("_self.plan.Lasts(_self.remaining(_now))",
			"_self.remaining(_now) > _self.TTL/3"),
		killers: []killer{inArea("lease", "TestWithAnyMarginKeysLingerAndHoldsArePassedOn")},
	},
	{
		name: "a lost lease is renewed",
		why:  "The loser may still be at work, so it seems kind to give it time. But the key then stands in everybody's way for longer than the TTL (rule 11).",
		change: in("lease.keeper.renewalDue").drop("if _.Over(_) != nil").
			replace("_.verdict == leaseRenew", "_self.verdict != leaseOver"),
		killers: []killer{inArea("lease", "TestALostLeaseIsRenewedNoMore")},
	},
	{
		name: "who waits audits as seldom soon after a key was given back as later",
		why:  "An audit costs a request. But a late copy of its put is a key that blocks everybody, and 32 renewal periods are 11 TTLs (rule 9).",
		change: in("queue.Account.auditPeriodLocked").replace(
			"case _.left.IsZero() || _", "default: return idleAudits * period"),
		killers: []killer{inArea("lease", "TestAKeyThatALateRequestPutsIsSwept")},
	},
	{
		name:    "what may be recalled is audited by its values alone",
		why:     "The values show a recall, and a loss as well. But only the keys on the lease show a late copy of the put (rule 9).",
		change:  in("queue.Account.auditsBy").replace("_.byValues = it", "true"),
		killers: []killer{inArea("lease", "TestAKeyThatALateRequestPutsIsSwept")},
	},
	{
		name: "who waits in a long line audits as soon as in a short one",
		why:  "A late copy of a put should be found soon. But in a crowd that goes round and round everybody has just put a key: 2,000 Sessions would send 100 audits a second (rule 24).",
		change: in("queue.Account.auditPeriodLocked").replace("max(coveredAudits*_, it)",
			"0*asRechecks"),
		killers: []killer{inArea("queue", "TestWhoWaitsInALongLineAuditsAsRarelyAsItRechecks")},
	},
	{
		name: "audits are a multiple of a period apart",
		why:  "So it says. But a third of the longest TTLs overflows if it is multiplied by four: each audit is followed by the next one at once (rule 24).",
		change: in("queue.Account.auditPeriodLocked").replace("math.MaxInt64 / idleAudits",
			"math.MaxInt64"),
		killers: []killer{inArea("watching", "TestTheLongestTTLsCostNoMoreThanOthers")},
	},
	{
		name:    "an audit that has no answer has found nothing",
		why:     "The next one tries again. But what is suspected may block a line, and without a suspicion the next one is more than a TTL away (rules 5 and 26).",
		change:  in("queue.Account.noted").drop("_.SuspectLocked()"),
		killers: []killer{inArea("watching", "TestASuspicionOutlastsAnAuditWithoutAnAnswer")},
	},
	{
		name:   "an audit without an answer is repeated each second, however slow etcd is",
		why:    "A key that a set-back has revived blocks its line, so it is wanted soon. But a slow etcd then gets one a second from each Session (rule 25).",
		change: in("queue.Account.auditPeriodLocked").replace("_.Seldom(auditEvery)", "auditEvery"),
		killers: []killer{inArea("watching",
			"TestAnAuditWithoutAnAnswerIsRepeatedSeldomWhereAnswersAreSlow")},
	},
	{
		name: "nobody looks at the keys of the lease",
		why:  "Renewals show when the lease is gone. But they do not show that the key is gone (rule 5).",
		change: in("queue.Account.CareLocked").replace("_last.Add(_)",
			"_last.Add(1e6 * time.Hour)"),
		killers: []killer{inArea("watching", "TestALossIsToldThoughAllWatchesAreSilent")},
	},
	{
		name:    "a hold that begins says nothing to its keeper",
		why:     "The keeper looks at all keys in each period. But a hold is to be watched from its second second on (rule 5).",
		change:  in("queue.Place.heldLocked").drop("_.Lease.DueLocked(_)"),
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name:    "the keeper comes back for one of the young holds, whichever it is",
		why:     "It sees to the others, too. But the oldest of them may last before (rule 5).",
		change:  in("queue.Account.coverHoldsLocked").drop("_.Before(_.lasts)"),
		killers: []killer{inArea("watching", "TestEachHoldIsWatchedOnceItLasts")},
	},
	{
		name:    "the watch of a key that has ended says nothing to the keeper",
		why:     "Another one is about to begin, and the keeper looks at all keys in each period. But until then nothing covers the key (rule 5).",
		change:  in("queue.keyWatch.unsure").drop("_.Lease.WakeKeeper()"),
		killers: []killer{inArea("watching", "TestAKeyThatIsUncoveredIsAuditedAtOnce")},
	},
	{
		name: "watches of a hold that fail are a renewal period apart in the end",
		why:  "The audits cover the key meanwhile, once in each period. But with a TTL of an hour that is twenty minutes (rule 5).",
		change: in("queue.keyWatch.run").replace("min(max(_, firstPause), longestPause)",
			"max(period, firstPause)"),
		killers: []killer{inArea("watching", "TestALongTTLDelaysNoWatch")},
	},
	{
		name: "a watch of a hold has failed if it has ended within a renewal period",
		why:  "That is the time in which an audit covers the key. But behind a proxy that ends each watch after a minute a long TTL then makes each pause longer than the one before (rule 5).",
		change: in("queue.keyWatch.run").replace("time.Since(_began) >= longest",
			"time.Since(_began) >= period"),
		killers: []killer{inArea("watching", "TestAWatchThatHasLastedIsMadeAnewAtOnce")},
	},
	{
		name:    "a watch of a hold ends at once if it was wanted before it began",
		why:     "A new one is begun then. But this one is that, and the next pause is twice as long.",
		change:  in("queue.keyWatch.follow").drop("select"),
		killers: []killer{inArea("watching", "TestAWatchThatWasWantedInAPauseStays")},
	},
	{
		name:    "a view that ends says nothing to the keepers",
		why:     "It was not needed. But it has covered the key of a hold (rule 5).",
		change:  in("queue.view.endLocked").drop("_.line.keys.wakeLocked()"),
		killers: []killer{inArea("watching", "TestAHoldIsWatchedOnceItsViewHasEnded")},
	},
	{
		name:    "a keeper does what is due as often as it always did",
		why:     "It costs little. But a thousand leases then do most of their work where nothing happens (rule 24).",
		change:  in("lease.keeper.care").replace("_k.plan.Period", "350*time.Millisecond"),
		killers: []killer{core("hold", "TestAnIdleHoldWakesForItsRenewalsAlone")},
	},
	{
		name:    "only a renewal shows that the machine has slept",
		why:     "It shows that in the end. But for most of a period the contexts of holds go on that other processes may have taken over (rule 2).",
		change:  in("etcd.lookout.lookLocked").replace("_ahead >= wallAhead", "_ahead > 1e18"),
		killers: []killer{core("etcd", "TestALookoutSeesWhatNoEventTells")},
	},
	{
		name:    "the timer of the trust runs on after the machine has slept",
		why:     "The lookout asks whether the trust is over. But it may be over a moment later, and the timer has slept, too: the contexts of holds end by as much too late (rules 1 and 2).",
		change:  in("lease.Lease.alarmed").replace("_.expires()", "_self.Over(time.Now())"),
		killers: []killer{core("lease", "TestATrustEndsByTheWallClockAfterTheMachineHasSlept")},
	},
	{
		name:    "a renewal is sent as its timer says, though an answer has put it off",
		why:     "The timer was reset. But it had run out before, and its call has waited for the keeper's mutex: leases that are refused at once send more than they should (rule 25).",
		change:  in("lease.keeper.renewalDue").replace("!k.nextAt.After(time.Now())", "true"),
		killers: []killer{core("lease", "TestARenewalThatWasPutOffIsNotSent")},
	},
	{
		name:    "the timer of the next renewal runs on after the machine has slept",
		why:     "Renewals are a period apart. But that timer has slept, too, and the trust may be over by the wall clock before, though etcd would have renewed it (rule 2).",
		change:  in("lease.Lease.alarmed").drop("_.nextLocked(0)"),
		killers: []killer{core("lease", "TestALeaseIsRenewedOnceTheMachineHasWoken")},
	},
	{
		name:    "a release that is over says nothing to the keeper of a closed Session",
		why:     "The keeper looks at what is left in each period. But Close waits for it: for twenty minutes with a TTL of an hour (rule 10).",
		change:  in("queue.Account.ReleasedLocked").drop("if _.keys.Leases.ClosedLocked()"),
		killers: []killer{inArea("mutex", "TestCloseEndsAsSoonAsTheReleaseIsAnswered")},
	},
	{
		name:    "a lease that lasts again says nothing to its keeper",
		why:     "The keeper looks in each period. But reads wait to join others as long as the lease does not last.",
		change:  in("lease.Lease.trusts").drop("_.WakeKeeper()"),
		killers: []killer{inArea("kinds", "TestNobodyJoinsAKeyWhoseLeaseDoesNotLast")},
	},
	{
		name:    "a key that no watch covers is looked at as seldom as one that is watched",
		why:     "The watch will be back. But until then only an audit shows a loss (rule 5).",
		change:  in("queue.Account.auditPeriodLocked").drop("!_.watched"),
		killers: []killer{inArea("watching", "TestALossIsToldThoughAllWatchesAreSilent")},
	},
	{
		name:    "an audit leaves a view from before a set-back",
		why:     "The view covers no key any more, and ends soon. But the key that lingers by it is given up only then, and the watch of that lasts as long as the Session (rule 22).",
		change:  in("queue.Account.coverHoldsLocked").drop("_.EndOldViewLocked()"),
		killers: []killer{core("queue", "TestAKeyThatIsGivenUpWithItsViewIsNotWatched")},
	},
	{
		name: "nobody watches the keys of holds",
		why:  "The audits show a loss. But they are seldom (rule 5).",
		change: in("queue.Account.coverHoldsLocked").drop("if _.watch == nil").
			and("it && _p.watch.sure", "_p.watch != nil"),
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name: "the watch of a key is sure before the key is read",
		why:  "The watch delivers all that happens. But it does not deliver what happened before it was created (rule 5).",
		change: in("queue.keyWatch.created").after("defer _.keys.mu.Unlock()", "_self.sure = true").
			replace("_.made", "-1").
			in("queue.watchedSince").and("_p.watch == _", "e.Rev == _p.Ticket.Rev()"),
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name:   "an event ends a hold by the name of the key",
		why:    "The watch is of that very key. But the key's name is used again, and a member that is behind delivers an event of an earlier use (rule 20).",
		change: in("ticket.Observation.of").drop("_.At != 0 && _.At < _.rev"),
		killers: []killer{core("ticket", "TestObservations"), core("ticket", "TestWhatIsSeenOfAKey"),
			inArea("watching", "TestAnEventOfAnEarlierUseOfTheNameEndsNoHold")},
	},
	{
		name:    "a hold is lost before etcd was asked why",
		why:     "The key is gone, whatever the reason. But the holder then learns that it was deleted, though its lease was revoked (rule 5).",
		change:  in("ticket.Ticket.Observe").drop("_.AskFirst && _ != PutOver"),
		killers: []killer{core("ticket", "TestObservations"), core("ticket", "TestWhatIsSeenOfAKey")},

		unexplored: "TestObservations goes every way of an observation. In the exploration nothing asks etcd for the reason of a loss.",
	},
	{
		name:    "a watch is left when its hold has ended",
		why:     "A watch costs nothing while nothing happens, and names are used again. But a process that has held ten thousand names has ten thousand watches (rule 22).",
		change:  in("queue.Place.UnwatchLocked").replace("_.keys.mu.After(_w.cancel)", "_ = _w"),
		killers: []killer{inArea("watching", "TestAShortHoldCostsNothingAndALongOneIsWatched")},
	},
	{
		name: "each of any number of keys is watched",
		why:  "A watch costs nothing while nothing happens. But ten thousand watches of one Session are ten thousand goroutines (rule 21).",
		change: in("queue.Account.CareLocked").replace("len(_self.places) <= manyPlaces",
			"len(_self.places) >= 0"),
		killers: []killer{inArea("watching", "TestTenThousandHoldsHaveNoWatchEach")},
	},
	{
		name:   "a waiter looks as often however long it has waited",
		why:    "An event may be lost at any time. But the rechecks then cost more than the lease (rule 24).",
		change: in("recheck.Period").drop("if _ > young"),
		killers: []killer{core("recheck", "TestWhoHasWaitedForLongLooksSeldom"),
			inArea("watching", "TestAnIdleWaitCostsItsRenewalsAndLittleElse")},
	},
	{
		name:   "a waiter looks as often however long the line is",
		why:    "One waiter rechecks seldom. But a thousand together do not (rule 24).",
		change: in("recheck.Period").replace("crowd > period", "crowd < 0"),
		killers: []killer{core("recheck", "TestAllInALineTogetherLookSeldom"),
			inArea("watching", "TestTheRechecksOfALongLineAreFew")},
	},
	{
		name:    "a look at the keys is believed",
		why:     "etcd lists the keys of the lease, and the key is not among them. But an old leader's list is an old list (rule 5).",
		change:  in("queue.Account.confirmMissing").replace("Entry: it", "line.Entry{Key: e.Key}"),
		killers: []killer{inArea("lease", "TestALookThatOmitsALiveKeyEndsNothing")},
	},

	// ---- truth: rules 6 to 8

	{
		name:   "a member that cannot serve a request may have carried it out",
		why:    "Only an answer tells what became of a request. But a learner's refusal is one: the next request finds no key, somebody else has deleted it, and Unlock says nil (rule 6).",
		change: in("attempt.NotApplied").replace("incapable", "unapplied"),
		killers: []killer{
			inArea("mutex", "TestARequestThatWasNotCarriedOutDoesNotMakeALossLookLikeARelease"),
			core("etcd/attempt", "TestOnlyAnAnswerSaysThatAWriteWasNotApplied"),
		},
	},
	{
		name:    "an inner Do speaks for the outer one",
		why:     "fn's error belongs to the caller and is returned as it is. But if it comes from another Do that could not lock, the caller thinks that its own work was not begun (rule 8).",
		change:  in("during").replace("ran(_err)", "_err"),
		killers: []killer{inArea("mutex", "TestDoTellsWhetherItCalledItsFunction")},
	},
	{
		name:    "the TTL is what was asked for",
		why:     "The program knows the TTL that it asked for. But etcd may have granted a longer one, and then a crash blocks the others for longer.",
		change:  in("hold.Hold.Status").replace("TTL: it", "_self.m.s.cfg.TTL"),
		killers: []killer{inArea("mutex", "TestAHoldTellsItsGrantedTTLAndItsMargin")},
	},
	{
		name: "a label hides the process",
		why:  "The user chose the label to be shown. But a thousand processes may have the same one.",
		change: in("quote.Owner").replace(
			`_label == "" || _host == "" || _label == _process`, `_label != "" || _host == "" || _process == ""`),
		killers: []killer{inArea("mutex", "TestALockedErrorIsErrLockedAndTellsWho")},
	},
	{
		name:    "a look is cancelled before the lease is revoked",
		why:     "Nobody needs its answer any more. But clientv3 logs a warning for it, on the stderr of programs that close as they should.",
		change:  in("queue.Account.Audit").replace("_.ctx", "ctx"),
		killers: []killer{onCluster("TestClosingIsNoWarning/while_a_look_is_under_way")},
	},
	{
		name:    "a report names the pings while they may be on their way",
		why:     "etcd is connected and silent: the connection may be dead. But a client with pings finds that in 13 s, and may have them (rule 8).",
		change:  in("attempt.Caller.namePings").drop("_ < pingsTell"),
		killers: []killer{core("etcd/attempt", "TestAReportOfASilentConnectionNamesThePingsOnce")},
	},
	{
		name:    "a request goes by a client that is closed",
		why:     "The client says itself that it is closed. But it does so after a hundred tries, and as many warnings.",
		change:  in("attempt.Caller.connected").never("_.Closed()"),
		killers: []killer{onCluster("TestClosingIsNoWarning/after_the_client")},
	},

	{
		name:   "a release does not compare the create revision",
		why:    "The key has a UUID, and the lease is compared. But names are used again, so a late copy of a release deletes the next hold's key (rule 6).",
		change: in("ticket.Release.Txn").drop("t.exists()"),
		killers: []killer{core("ticket", "TestExploration"), following(25),
			onCluster("TestALateReleaseTouchesNoLaterHold")},
	},
	{
		name:   "Unlock of a key that is gone is nil",
		why:    "The lock is free, as the caller wanted, and the request may have been sent twice. But the lock may have been lost long ago (rule 6).",
		change: in("ticket.Release.Judge").replace("_.copies || _.Copies", "true"),
		killers: []killer{core("ticket", "TestExploration"), followsTheSpecification,
			core("ticket", "TestWhatAReleaseSays"),
			simulation(1000), inArea("lease", "TestUnlockTellsOfALossThatNobodyHasNoticed")},
	},
	{
		name:   "a lost answer unsays that the key was gone",
		why:    "What a copy finds says nothing, and there may have been copies. But the answer before them did say something (rule 6).",
		change: in("ticket.Release.conclude").drop("_.missed = _.missed || !_.copies"),
		killers: []killer{throughout(exploring("two faults")), core("ticket", "TestWhatAReleaseSays"),
			inArea("mutex", "TestAReleaseThatFoundNoKeyStaysALossWhateverGetsLost")},
	},
	{
		name: "a release whose answer was lost is called a loss",
		why:  "The key is gone, and this request did not delete it. But the request before may have (rule 6).",
		change: in("ticket.Release.Judge").drop("_.copies = _.copies || _.Copies").
			in("ticket.Release.unanswered").drop("_.copies = _.copies || _ == Unknown"),
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestWhatAReleaseSays"),
			simulation(1000)},
	},
	{
		name:   "a certain hold is evidence that a release has run",
		why:    "While the lease is trusted nobody else can have got in by its end. But an operator needs no lease to delete the key, and the next one holds while Unlock says nil (rule 6).",
		change: in("ticket.Release.evidence").never("!_.there && !_.Witnessed"),
		killers: []killer{exploring("an operator beside a release"), followsTheSpecification,
			core("ticket", "TestWhatAReleaseSays"), simulation(200), ofFamily(60),
			inArea("outages", "TestUnlockSaysNilOnlyWithEvidence")},
	},
	{
		name: "a watch that is there is a witness",
		why:  "It would have told a deletion. But it may have gone silent, with the connection by which the answer was lost (rule 6).",
		change: in("queue.Place.WitnessedLocked").replace("_.deleted > _.known",
			"_self.known < math.MaxInt64"),
		killers: []killer{inArea("outages", "TestALateWatchIsNoWitness/it_is_silent")},
	},
	{
		name: "a watch that tells a deletion after Unlock was called is a witness",
		why:  "Nothing was told before. But the watch is behind: etcd had told a higher revision by then (rule 6).",
		change: in("queue.Place.WitnessedLocked").replace("_.deleted > _.known",
			"_self.known < math.MaxInt64 && _self.deleted > 0"),
		killers: []killer{inArea("outages", "TestALateWatchIsNoWitness/it_is_behind")},
	},
	{
		name:   "a release without an answer forgets the next key",
		why:    "It is sent again alone, so the next key is not put any more. But the first copy may have put it, which shows that the release has run (rule 6).",
		change: in("ticket.Release.Judge").replace("_ != nil && (_ == Unknown || _)", "false"),
		killers: []killer{core("ticket", "TestWhatAReleaseSays"),
			inArea("outages", "TestTheNextWaitersKeyShowsThatAReleaseWasCarriedOut")},
		unexplored: "Unlock is not confirmed then, which is true, too.",
	},
	{
		name:    "the first answer to a release counts",
		why:     "It is an answer. But with a dead endpoint two copies go out at once, and the other one has released the key: half of the releases are not confirmed (rule 6).",
		change:  in("etcd.Conn.Commit").never("t.HearOut"),
		killers: []killer{inArea("outages", "TestTheCopiesOfAReleaseAreHeardOut")},
	},
	{
		name:       "what is heard out counts as slow",
		why:        "The call has taken so long. But etcd has not, and what meets a dead endpoint next is repeated seconds later (rule 13).",
		change:     in("attempt.flight.cameBy").replace("_.came.IsZero()", "true"),
		killers:    []killer{core("etcd/attempt", "TestWhatIsHeardOutDoesNotCountAsSlow")},
		unexplored: "It is about time.",
	},
	{
		name:    "a release is confirmed whatever the hold was worth",
		why:     "A copy may have removed the key. But once the hold was no longer certain, the end of the lease may have removed it, too (rule 6).",
		change:  in("ticket.Release.evidence").and("!_now.Certain", "_now.Stale"),
		killers: []killer{throughout(exploring("two faults")), core("ticket", "TestWhatAReleaseSays")},
	},
	{
		name:    "a place whose put was not answered was not put",
		why:     "The release that was to put the key was not answered, and nobody has seen the key. But it may stand in line all the same, for ever (rule 9).",
		change:  in("ticket.Ticket.settle").drop("if _.Doubtful()"),
		killers: []killer{inArea("queue", "TestTheNextPlaceIsRemovedAfterTheReleaseThatMayPutIt")},

		unexplored: "A release looks for the next key until it is answered, and the exploration's are.",
	},
	{
		name:    "a removal does not compare the create revision",
		why:     "The name belongs to the ticket alone. But it is used again, and the removal may come late (rules 6 and 9).",
		change:  in("ticket.Ticket.Removal").replace("If: it", "nil"),
		killers: []killer{core("ticket", "TestExploration")},
	},
	{
		name: "a turn that was left goes to nobody",
		why:  "The waiter was chosen, and has gone away, so the turn ends with it. But then nobody tells those who wait (rule 12).",
		change: in("home.Queue.End").after("_w := _self.First()",
			"if _self.state == Passing && _w != nil && _w.standing != Next { _w = nil }"),
		killers: []killer{core("home", "TestTurns"), core("ticket", "TestExploration")},
	},
	{
		name:    "a renewal that is refused ends the hold at once",
		why:     "A retry does not fix a refusal. But an operator does, who has just enabled auth or changed a role, and the lease lives meanwhile (rule 1, ErrExpired).",
		change:  in("lease.Lease.renewalFailed").replace("_self.trusts(_...)", "_self.endRevoked(err)"),
		killers: []killer{inArea("mutex", "TestRenewalsThatAreRefusedForAWhileLoseNothing")},
	},
	{
		name:    "a loss does not say what etcd refused",
		why:     "The hold ended because its time was over. But then only the log says that etcd answered all the time, and what it answered (ErrExpired).",
		change:  in("lease.Lease.overSafe").replace("_.pool.config.Error(Expired, it)", "nil"),
		killers: []killer{inArea("mutex", "TestALossHasAReasonThatErrorsIsTells")},
	},
	{
		name: "Unlock is bound to the context that has ended",
		why:  "A function should not outlive its context. But defer mu.Unlock(ctx) after a cancelled request is the common case (rule 7).",
		change: in("releaseContext").replace("if _ctx.Err() != nil",
			"if _ctx.Err() != nil { return _ctx, func() {} }"),
		killers: []killer{inContract("TestUnlockWorksWithAnEndedContext")},
	},

	{
		name:    "Do unlocks whatever the Mutex holds",
		why:     "Do is Lock, fn and Unlock. But if fn has unlocked, it releases the hold of another goroutine (rule 6).",
		change:  in("Mutex.do").replace("_.lock.Unlock(_, it)", "nil"),
		killers: []killer{inContract("TestDoLeavesTheNextHoldOfItsMutexAlone")},
	},
	{
		name:    "the hook of a Do that gets no lock is told the error of its Lock",
		why:     "It has the same text, and all that the call found. But it is not the error that the call returns (rule 8).",
		change:  in("call.lock").drop("if _.Runs"),
		killers: []killer{inArea("mutex", "TestGaveUpTellsTheErrorThatTheCallReturns")},
	},
	{
		name:    "the error of a Do wraps what its hook was told",
		why:     "The hook has an error that is ErrNotRun, too. But it is another one (rule 8).",
		change:  in("notRun").drop("if errors.Is(_, ErrNotRun)"),
		killers: []killer{inArea("mutex", "TestGaveUpTellsTheErrorThatTheCallReturns")},
	},

	// ---- etcd set back: rule 26

	{
		name:    "nobody holds unseen behind a permit that waits",
		why:     "It has found all that hold before it. But those go, and a permit behind it holds before it hears of that (rule 26).",
		change:  in("queue.standingOf").never("of.Weight < of.Limit"),
		killers: []killer{inArea("outages", "TestThePermitsBehindOneThatWaitsMayHoldUnseen")},
	},
	{
		name:    "etcd is never set back",
		why:     "A cluster does not lose what was committed. But a restore, a wipe and a move to another cluster do (rule 26).",
		change:  in("etcd.Conn.isSetBack").replace("_.history.begin(_.era, _)", "_ = (*history).begin"),
		killers: []killer{inArea("outages", "TestNoTwoHoldAfterEtcdWasSetBack")},
	},
	{
		name:   "what a view does not know is gone",
		why:    "The view has every event. But it lacks the revisions between the snapshot from which etcd was restored and the revision that etcd had reached (rule 26).",
		change: in("line.Watched.Gone").drop("_.read >= _.Rev"),
		killers: []killer{explorationOfWatched,
			inArea("outages", "TestAViewFromBeforeASetBackLetsNobodyIn")},
	},
	{
		name:   "a release that a set-back overtakes is confirmed",
		why:    "The key is gone, and a copy of the release may have removed it. But the restore may have, too (rules 6 and 26).",
		change: in("ticket.Release.evidence").and("_now.Stale", "!_now.Certain"),
		killers: []killer{
			throughout(exploring("a set-back, and calls without an answer")),
			core("ticket", "TestWhatAReleaseSays"),
			inArea("outages", "TestAReleaseThatASetBackOvertakesIsNotConfirmed"),
		},
	},
	{
		name:    "a place from before a set-back counts",
		why:     "The place was first in line, as etcd had said. But that was another line (rule 26).",
		change:  in("queue.Place.StaleLocked").replace("return it", "false"),
		killers: []killer{inArea("outages", "TestNoTwoHoldAfterEtcdWasSetBack")},
	},
	{
		name:    "a hold whose key is there after a set-back stays one of before it",
		why:     "It goes on. But its place never counts again: no read joins it, though nothing is in the way.",
		change:  in("queue.Account.confirmMissing").replace("_p.epoch = _.Epoch", "_ = _p.epoch"),
		killers: []killer{inArea("kinds", "TestReadersGoOnAfterASetBackThatLeavesTheirKey")},
	},

	{
		name:   "a set-back delays no hold",
		why:    "The line of now says who holds. But a holder from before may not have heard of the set-back yet (rule 26).",
		change: in("queue.Line.DelayLocked").replace("max(0, _.Sub(_now))", "0"),
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestTheLockDelayCountsFromTheLastSetBack"), simulation(400), following(25),
		},
	},
	{
		name:       "a doubt is told as a set-back",
		why:        "Nothing has proven one, and an operator looks for a restore that there was not (rule 26).",
		change:     in("queue.Line.DelayLocked").replace("_.proven(_).After(_)", "true"),
		killers:    []killer{inArea("outages", "TestACallIsToldThatEtcdMayHaveBeenSetBack")},
		unexplored: "It is a text.",
	},
	{
		name:   "the lock delay is a TTL of one's own",
		why:    "All Sessions of a program have one TTL. But other programs may lock the same name (rule 26).",
		change: in("queue.setBack.until").replace("max(_self.own, _.Longest)", "_self.own"),
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown"),
		},
	},
	{
		name: "the lock delay counts from the request that shows the set-back",
		why:  "Trust counts from the request. But etcd may have confirmed the holder's renewals until after that one was sent (rule 26).",
		change: in("etcd.Conn.heard").before("_self.setBack(_sent.epoch)",
			"_self.history.present.Load().Noticed = _sent.at"),
		killers: []killer{inArea("outages", "TestALockDelayCountsFromTheAnswer")},
	},
	{
		name:    "a write at a revision that was known shows nothing",
		why:     "No revision went back. But each write has a new one, so the etcd that answers has another history (rule 26).",
		change:  in("etcd.Conn.judge").drop("if _.wrote"),
		killers: []killer{inArea("outages", "TestAWriteAtARevisionThatWasKnownShowsASetBack")},
	},
	{
		name:    "two contenders of one lock go in one transaction",
		why:     "Both keys get one revision, or etcd refuses both. Each takes the other for one that came later.",
		change:  in("etcd.combiner.join").never("slices.ContainsFunc(_.parts, _)"),
		killers: []killer{core("etcd", "TestNoTwoPartsAreOfOneLock")},
	},
	{
		name:    "the transaction of several locks counts as one of the first",
		why:     "It may then go together with one of another of its locks.",
		change:  in("ticket.Several.Txn").drop(`_.Name = ""`),
		killers: []killer{core("ticket", "TestATransactionOfSeveralLocksHasNoName")},

		unexplored: "The exploration sends each transaction alone.",
	},
	{
		name:    "a part is judged by its neighbour's answer",
		why:     "Another lock was free, and this one is taken for free.",
		change:  in("etcd.combined.transact").replace("_.Responses[i]", "resp.Responses[(i+1)%len(ops)]"),
		killers: []killer{core("etcd", "TestAPartIsJudgedByItsOwnAnswer")},
	},
	{
		name:    "what etcd refuses of one part fails all",
		why:     "The others' leases are alive, and nobody is ahead of them.",
		change:  in("etcd.combiner.carryOne").never("attempt.IsAnswer(_)"),
		killers: []killer{core("etcd", "TestOnlyTheGuiltyPartFails")},
	},
	{
		name:    "only what etcd refuses for good is sent alone",
		why:     "Where etcd has no space, releases meet puts again and again, and are refused with them.",
		change:  in("etcd.combiner.carryOne").replace("attempt.IsAnswer(err)", "attempt.Settles(err)"),
		killers: []killer{core("etcd", "TestWithoutSpaceAReleaseFailsWithNoPut")},
	},
	{
		name:    "what etcd answers with an error was not carried out",
		why:     "The first refusal for want of space comes after the transaction was carried out. The part that is sent alone then finds its own key, and takes it for another's.",
		change:  in("etcd.combiner.carryOne").replace("!attempt.NotApplied(err)", "false"),
		killers: []killer{core("etcd", "TestAnAnswerThatDecidesNothingHoldsUpNoPart")},
	},
	{
		name:    "looks at a long line go each alone",
		why:     "Each is one read of ten keys. But for each etcd reads the whole line, and thousands that come at once keep it busy (rule 25).",
		change:  in("etcd.Conn.asks").never("r.newest != (newest{})"),
		killers: []killer{inArea("queue", "TestALineUpCostsEachSessionTheSame")},
	},
	{
		name:    "a look that goes with others reads keys that came later",
		why:     "They are the newest. But no contender waits for one that came after it: two that wait for each other wait for ever (rule 12).",
		change:  in("etcd.newest.of").replace("_.CreateRevision > _.upTo", "false"),
		killers: []killer{core("etcd", "TestLooksThatMeetReadOnce")},
	},
	{
		name:    "a look that is far behind the others takes what they have read for all",
		why:     "It has read something. But the keys right before it are not there, so it takes itself for the first (rule 1).",
		change:  in("etcd.newest.of").never("int64(len(kvs)) < n.most && all.GetMore()"),
		killers: []killer{core("etcd", "TestALookFarBehindTheOthersIsSentAlone")},
	},
	{
		name:    "a look waits for a silent answer as for a slow one",
		why:     "The last answer took long. But this one may never come, and each look would wait for half as long as the longest one took (rule 13).",
		change:  in("etcd.pace.wait").replace("longestShare", "time.Hour"),
		killers: []killer{core("etcd", "TestALookWaitsForNoSilentAnswer")},
	},
	{
		name:    "each Session of a client rechecks and audits alone",
		why:     "It is one small request. But thousands of Sessions send most of theirs where nothing happens (rule 24).",
		change:  in("etcd.Conn.asks").never("_.meets && !again"),
		killers: []killer{inArea("watching", "TestSessionsOfOneClientRecheckAndAuditTogether")},
	},
	{
		name:    "where one of those that meet has changed, all of them have",
		why:     "Each would read its line anew, and audit its lease. But most of them are as they were (rule 25).",
		change:  in("etcd.meet").replace("!_.Holds", "false"),
		killers: []killer{core("etcd", "TestWhatMeetsIsNoRaftEntry")},
	},
	{
		name:    "a recheck waits for the next beat, however late that is",
		why:     "It meets others there. But a wait whose watch is silent goes on later than is promised (rule 13).",
		change:  in("etcd.onBeat").never("due > to"),
		killers: []killer{core("etcd", "TestABeatIsNoLaterThanItMayBe")},
	},
	{
		name:    "the beats of all clients begin as they do",
		why:     "A fleet that begins at once then rechecks at once, as long as it waits (rule 25).",
		change:  in("etcd.meetingOf").replace("time.Now().Add(-rand.N(longestBeat))", "time.Now()"),
		killers: []killer{core("etcd", "TestTheBeatsOfClientsAreApart")},
	},
	{
		name:    "of what meets, each key is compared once",
		why:     "What several know of it is the same, as a rule. But one may know an earlier state, or its last change, too (rule 12).",
		change:  in("etcd.gathered.add").after("n := _.Compares()", "k = ticket.Known{Key: k.Key}"),
		killers: []killer{core("etcd", "TestWhatIsEqualMeetsOnce")},
	},
	{
		name:    "what was put since counts as all that there is",
		why:     "Both count the keys of one range. But one of them leaves out the older ones.",
		change:  in("etcd.spanOf").replace("_.MinModRevision", "0"),
		killers: []killer{core("etcd", "TestWhatIsEqualMeetsOnce")},
	},
	{
		name:    "the TTLs of a line are told though not all before were read",
		why:     "The oldest of a line of 64 are all. But the line may have grown since, by what was put before (rule 24).",
		change:  in("line.TTLsBefore").replace("!all", "all && false"),
		killers: []killer{core("line", "TestTTLsAreToldOfAllBeforeTheKey")},

		unexplored: "The exploration has no restore, and so no lock delay.",
	},
	{
		name: "who watches a holder rechecks alone",
		why:  "One transaction each 1.5 s is little. But a client may have a hundred who watch (rule 25).",
		change: in("follow.Follower.stands").replace("etcd.Meeting(_, _...)",
			"etcd.Still(known, ask...)"),
		killers: []killer{inArea("watching", "TestWhatOneClientWatchesIsRecheckedTogether")},
	},
	{
		name:    "each new waiter of a long line asks alone",
		why:     "It is one request. But thousands may come at once, and none of these has its turn soon (rule 25).",
		change:  in("queue.Waiter.bothIn").replace("ahead.Keys > FewAhead", "false"),
		killers: []killer{inArea("watching", "TestNewWaitersOfOneClientCheckTogether")},
	},
	{
		name:    "an audit is brief though a late request may have put a key",
		why:     "All keys that the Session knows stand. But one that it does not know blocks its line (rule 9).",
		change:  in("queue.Account.briefly").replace("_.Sub(_.left) < _", "false"),
		killers: []killer{inArea("lease", "TestALateKeyOfAForgottenNameIsSwept")},
	},
	{
		name:    "a part that is sent alone forgets that it may have been carried out before",
		why:     "A late copy puts its key again, and the name is used again.",
		change:  in("etcd.combiner.ask").drop("_.copies = _.copies || _"),
		killers: []killer{core("etcd", "TestARepeatedCombinationMakesCopiesOfAllParts")},
	},
	{
		name:    "a combined transaction ends with the caller who came first",
		why:     "One caller's deadline then leaves all others in doubt.",
		change:  in("etcd.combiner.join").replace("context.Background()", "ctx"),
		killers: []killer{core("etcd", "TestAPartThatLeavesTakesNobodyAlong")},
	},
	{
		name:    "a part is sent although its caller has left",
		why:     "It is about to be sent, and another one waits. But the caller removes its key at once, and the put comes after the removal.",
		change:  in("etcd.combiner.leave").replace("!_.sent", "of == b.waiting"),
		killers: []killer{core("etcd", "TestAPartThatLeavesInTimeIsNotSent")},
	},
	{
		name:    "a transaction leaves with those who wait already",
		why:     "The callers that were just answered come back microseconds later, and wait for a whole trip.",
		change:  in("etcd.combiner.next").never("all > max(_, 1)"),
		killers: []killer{core("etcd", "TestCallersThatComeBackGoTogether")},
	},
	{
		name:    "a combiner that gathers waits for all that it expects",
		why:     "One of them works on while it holds, or has ended. The others wait for it.",
		change:  in("etcd.combiner.gather").never("_.gathers > 0"),
		killers: []killer{core("etcd", "TestACombinerThatGathersWaitsForNobodyForLong")},
	},
	{
		name:    "a combiner that has sent what waits gathers on",
		why:     "It looks right: the callers may yet come. But each that comes waits for as many others, and nothing is due to send them.",
		change:  in("etcd.combiner.takeLocked").replace("_, _ = nil, 0", "_self.waiting = nil"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner lets its timer run on as it sends what waits",
		why:     "It sends nothing if nothing waits. But what waits by then is sent at once, by itself.",
		change:  in("etcd.combiner.takeLocked").drop("_.late.Stop()"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner takes one for looking who comes that has ceased to",
		why:     "Each caller that comes leaves what waits to it. All of them wait for the timer.",
		change:  in("etcd.combiner.gather").drop("_.carries = false #2 of 2"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner sends a caller at once while it waits for others",
		why:     "One fewer is under way than may be. But the others come microseconds later, and wait for a whole trip.",
		change:  in("etcd.combiner.join").drop("_.gathers == 0 #1 of 2"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner begins to gather anew with each answer",
		why:     "Its callers come back, too. But what waits is sent later with each, or before those for whom it waits.",
		change:  in("etcd.combiner.next").drop("_.gathers > 0"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner whose callers did not come back goes on gathering",
		why:     "Nothing waits, so there is nothing to send. But the next caller waits for them, and no timer is set.",
		change:  in("etcd.combiner.sendLate").drop("_.gathers > 0"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner stops its timer as the last part leaves, though it gathers",
		why:     "Nothing waits any more. But the next caller waits for the others, and no timer is set.",
		change:  in("etcd.combiner.leave").always("_.gathers == 0"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner sends each half that has come",
		why:     "A half need not wait for an answer. But many callers then have many under way, and go one by one where etcd is slow.",
		change:  in("etcd.combiner.join").drop("_.under < 2"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner thinks that etcd takes no parts where one of them left",
		why:     "All that were sent alone were taken. But the one that left may be what was refused, and nothing is combined any more.",
		change:  in("etcd.combiner.leave").drop("_.guilty = true"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a combiner lets a request go on for which no caller waits",
		why:     "Its answer is of use to the pace. But etcd carries out what its callers have given up, and the next ones wait for it.",
		change:  in("etcd.combiner.leave").drop("_.end()"),
		killers: []killer{core("etcd", "TestExploration")},
	},
	{
		name:    "a caller that comes late counts as one that came back",
		why:     "It works while it holds. The next transactions would wait for it in vain.",
		change:  in("etcd.pace.comes").drop("_.Before(_)"),
		killers: []killer{core("etcd", "TestAPaceExpectsTheCallersThatComeBack")},
	},
	{
		name:    "one transaction is under way at a far etcd, too",
		why:     "Another caller waits for half a trip before its own.",
		change:  in("etcd.pace.lands").never("_ >= longestWait"),
		killers: []killer{core("etcd", "TestAPaceGoesByWhatAnAnswerTakes")},
	},
	{
		name: "etcd is told of the deadline of each request",
		why:  "It is the usual thing. But etcd reads it, and starts and stops two timers, for each request.",
		change: in("etcd.callContext.Deadline").replace("return _, _",
			"return time.Now().Add(time.Second), true"),
		killers: []killer{core("etcd", "TestEtcdLearnsThatARequestHasEndedAndOfNoDeadline")},
	},
	{
		name:    "a KV that the user has wrapped is passed by",
		why:     "It leads to the same etcd. But the keys are to have its prefix.",
		change:  in("etcd.directOf").never("!alike(_, _)"),
		killers: []killer{core("etcd", "TestOnlyTheClientsOwnKVIsPassedBy")},
	},
	{
		name:    "a KV that replaces the client's later is passed by",
		why:     "Each Session looks at it once. But the program may put another one there at any time.",
		change:  in("etcd.Conn.commit").never("_.client.KV != _.direct.kv"),
		killers: []killer{core("etcd", "TestAKVOfTheUserGetsTheSameTransactions")},
	},
	{
		name:    "transactions are sent without the client's call options",
		why:     "gRPC has options of its own. But by these a request fails at once while there is no connection.",
		change:  in("etcd.directOf").replace("o.of", "nil"),
		killers: []killer{core("etcd", "TestOnlyTheClientsOwnKVIsPassedBy")},
	},
	{
		name:    "a range that is compared is one key for a KV of the user",
		why:     "The key is the right one. But TryLock then takes a name that is held.",
		change:  in("etcd.cmpOf").never("len(_.RangeEnd) > 0"),
		killers: []killer{core("etcd", "TestAKVOfTheUserGetsTheSameTransactions")},
	},
	{
		name:    "the transactions of a user are combined",
		why:     "etcd has let nested transactions past its permissions.",
		change:  in("etcd.combinerOf").never(`_.Username != "" || hasToken(_)`),
		killers: []killer{core("etcd", "TestTheTransactionsOfAUserGoAlone")},
	},
	{
		name:    "a Session knows only the revisions that it has heard itself",
		why:     "It asks seldom, and another Session of its client often. An etcd that was set back then looks to it like the one from before (rule 26).",
		change:  in("etcd.Conn.sending").replace("epoch.reached.Load()", "epoch.Revision()"),
		killers: []killer{core("etcd", "TestASetBackShowsInWhatAnotherSessionHasHeard")},
	},
	{
		name:    "a call that was refused forgets for how long the holder may hold",
		why:     "It has no place in line, and waits for nobody. But it may come again after a set-back, and the holder of before may hold for longer than a TTL of its own (rule 26).",
		change:  in("call.entered").replace("_o.place.KnowsLocked(_ahead)", "_o.place.Ahead = _ahead"),
		killers: []killer{inArea("outages", "TestACallThatWasRefusedKnowsForHowLongTheHolderMayHold")},
	},
	{
		name:   "contenders that come after a set-back lengthen the lock delay",
		why:    "The delay is worked out as it is asked for, by all that is known. But who is met in the etcd of now holds nothing from before, and its TTL may be long.",
		change: in("queue.Line.meetsLocked").drop("_.delay.settle(_.keys.setBack)"),
		killers: []killer{
			inArea("outages", "TestTheLockDelayDoesNotCountThoseWhoCameAfterTheSetBack"),
		},
	},
	{
		name:       "a contender whose TTL is not known has none",
		why:        "Nearly all tell it. But etcd's own library does not, and of a long line only a part is read (rule 26).",
		change:     in("queue.setBack.until").drop("_.Untold"),
		killers:    []killer{inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown")},
		unexplored: "The explorations know no TTLs.",
	},
	{
		name:    "a Session without a place in line knows all TTLs",
		why:     "It has met nobody there. But a holder that it has never met may have a longer TTL (rule 26).",
		change:  in("queue.setBack.until").drop("!_known"),
		killers: []killer{inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown")},
	},
	{
		name:    "a Session with a place in line knows as little as any",
		why:     "It waits a minute too long, whatever the TTL.",
		change:  in("queue.setBack.until").always("!_known || _.Untold || _.unsure"),
		killers: []killer{inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd")},
	},
	{
		name:    "a place of a lease that is over unsaid spares its line the floor",
		why:     "Its event is on its way. But another may have got in since, with a longer TTL.",
		change:  in("queue.Keys.SetBackLocked").drop("_.Leases.CheckLocked(_)"),
		killers: []killer{core("queue", "TestALeaseThatIsOverSparesNoRestoreDelay")},
	},
	{
		name:    "one of many places of such a lease spares it",
		why:     "The lease is known to be over. But many places are told of it one piece after another.",
		change:  in("queue.setBack.until").drop("_.unsure"),
		killers: []killer{core("queue", "TestALeaseThatIsOverSparesNoRestoreDelay")},
	},
	{
		name:    "the TTL that was asked for is waited for",
		why:     "It is that of the options. But etcd may grant more, and the holder's trust runs on that (rule 26).",
		change:  in("queue.Keys.SetBackLocked").replace("_.Leases.LongestTTL()", "k.TTL"),
		killers: []killer{inArea("outages", "TestTheLockDelayCountsTheTTLThatEtcdGrants")},
	},
	{
		name:    "the leases of other Sessions of the client do not count",
		why:     "They are other Sessions. But they show what TTLs the fleet has (rule 26).",
		change:  in("queue.Keys.setBackOf").replace("max(_own, _.Trusted)", "own"),
		killers: []killer{inArea("outages", "TestTheLockDelayCountsTheTTLThatEtcdGrants")},
	},
	{
		name: "what a Session has met counts for ever",
		why:  "Its TTL was a day. But it has left, and the Session has seen that.",
		change: in("queue.Line.meetsLocked").
			replace("_.delay.met = shown", "n.delay.met = n.delay.met.And(shown)").
			in("queue.view.meetsLocked").replace("_.met = met", "d.met = d.met.And(met)"),
		killers: []killer{inArea("outages", "TestTheLockDelayForgetsWhoHasLeft")},
	},
	{
		name:    "a raised revision is progress",
		why:     "Revisions grow. But no etcd writes a thousand million in seconds: it was restored by the book (rule 26).",
		change:  in("etcd.era.outgrows").replace("mostWrites * _.Seconds()", "1e18 + passed.Seconds()"),
		killers: []killer{inArea("outages", "TestARestoreWithARaisedRevisionIsNoticed"), simulation(400)},
	},
	{
		name:    "a watch takes a raised revision for progress",
		why:     "The next answer to a request would show the set-back. But the view reaches that revision, and then it looks like any other (rule 26).",
		change:  in("etcd.Watch.Notice").never("open && _ == _ && _self.outgrown(_)"),
		killers: []killer{inArea("outages", "TestARaisedRevisionIsNoticedByAWatch")},
	},
	{
		name:    "an etcd that writes much was set back",
		why:     "It has written more than seemed likely. But it had the time.",
		change:  in("etcd.era.outgrows").replace("mostWrites * _.Seconds()", "min(0, passed.Seconds())"),
		killers: []killer{inArea("outages", "TestAnEtcdThatWritesMuchWasNotSetBack")},
	},
	{
		name:    "a term that falls says nothing",
		why:     "It may be that of a candidate that was not elected. But a restored etcd begins with low terms, too (rule 26).",
		change:  in("etcd.era.leads").never("_.CompareAndSwap(_known, _term) && _ && _"),
		killers: []killer{core("etcd", "TestATermThatFallsIsADoubt")},
	},
	{
		name:    "the keys of all holds are read one part after the other",
		why:     "No hold is lost where etcd is near. But no renewal counts before the last part is read.",
		change:  in("queue.Keys.verifyAll").replace("len(_places) / verifyShares + 1", "len(places)"),
		killers: []killer{inArea("outages", "TestManyHoldsOutliveARestoreThatHasTheirKeys")},
	},
	{
		name:    "a line with a long lock delay is forgotten as any other",
		why:     "Nothing uses it. But a holder from before may still hold there when the Session comes again (rule 26).",
		change:  in("queue.Line.IdleLocked").drop("!_self.isKeptLocked()"),
		killers: []killer{inArea("outages", "TestALongLockDelayIsNotForgotten")},
	},
	{
		name:    "a key that is gone was deleted",
		why:     "Mostly an operator has. But if etcd's history does not have it, etcd was restored to before it (rule 26).",
		change:  in("queue.Place.doubtLocked").always("_.stands == nowhere || _ || _ || _"),
		killers: []killer{inArea("outages", "TestAKeyThatWasNeverThereShowsASetBack")},
	},
	{
		name:    "a doubt goes on though etcd has told",
		why:     "The delay ends by itself, after a TTL. But it was an operator, and nobody holds.",
		change:  in("queue.Keys.decideBy").never("was && _.doubting == _"),
		killers: []killer{inArea("outages", "TestAnOperatorIsNoSetBack")},
	},
	{
		name:   "a key that outlasts its hold lengthens the lock delay",
		why:    "It stands in line, on a lease of its own. But nobody holds by it, and that lease may last for a day.",
		change: in("line.Entry.TTL").replace("return 0, true", "return 90 * time.Second, true"),
		killers: []killer{inArea("outages", "TestTheLockDelayCountsTheTTLsOfThoseThatAreKnown"),
			core("line", "TestAValueTellsTheTTLOfItsLease")},
		unexplored: "The explorations know no TTLs.",
	},
	{
		name: "a key that is put alone is held in spite of the lock delay",
		why:  "A wait ends with the delay. But a put that finds nobody ahead needs no wait: what begins a hold asks, whichever way it came (rule 26).",
		change: in("place.checkCanBeginLocked").replace(
			"_.hold == nil && _.local.DelayLocked(_, _).Lasts > 0",
			"false"),
		killers: []killer{
			inArea("outages", "TestWhoHasNoticedASetBackLetsTheHoldsOfBeforeEnd"),
			inArea("outages", "TestReadersWaitTogetherForTheEndOfTheLockDelay"),
		},
	},
	{
		name: "a read joins one that waits for the end of the lock delay",
		why:  "The key is first in its line, and stays it. But nobody has held by it before the set-back (rule 26).",
		change: in("home.Queue.admissionOfRead").drop("case !_.Begins").
			in("place.waitsLocked").replace("_.hold == nil", "false"),
		killers: []killer{inArea("outages", "TestReadersWaitTogetherForTheEndOfTheLockDelay")},
	},
	{
		name:    "a key that was held before a set-back is delayed as any other",
		why:     "It is the same etcd for all. But nobody else can hold from before, and the lock stands idle for a TTL.",
		change:  in("place.checkCanBeginLocked").drop("_.hold == nil"),
		killers: []killer{inArea("outages", "TestAHoldThatASetBackLeavesIsHandedOnWithoutADelay")},
	},
	{
		name: "how long a wait is delayed is asked before it waits for that",
		why:  "The delay is what it was a moment ago. But a doubt may have been decided since, and the wait goes on for a TTL.",
		change: in("queue.Keys.DelayContext").replace("_ := _delayLocked()",
			"delay := _delayLocked(); _self.mu.Unlock(); time.Sleep(1); _self.mu.Lock()"),
		killers: []killer{inArea("lease", "TestALossFromOutsideIsNoticedWithinAboutASecond")},
	},
	{
		name:    "a call that only tries waits for the end of the lock delay",
		why:     "No other contender is known to be in the way. But it waits for one all the same: for one from before the set-back.",
		change:  in("call.advance").drop("case _ == errDelayed && _.Try"),
		killers: []killer{inArea("outages", "TestCallsAreToldOfTheLockDelay")},
	},
	{
		name:   "what etcd confirms after a set-back is trusted",
		why:    "It knows the lease. But the snapshot may have that and not the key: then a hold lives on that others do not see (rule 26).",
		change: in("lease.Lease.isReadSafe").replace("return it", "true"),
		killers: []killer{
			inArea("outages", "TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead"),
		},
	},
	{
		name: "each Session notices a set-back by itself",
		why:  "Each hears from etcd. But one that hears late may hear nothing that shows it, and one that begins later knows of nothing (rule 26).",
		change: in("etcd.historyOf").replace("return attempt.SharedBy(_...)",
			"_ = &histories; h := &history{trusted: make(map[time.Duration]int)}; "+
				"h.present.Store(&era{}); return h"),
		killers: []killer{
			inArea("outages", "TestTheSessionsOfAClientKnowOfASetBackTogether"),
			inArea("outages", "TestASessionThatBeginsAfterASetBackNoticesItByWhatItsClientKnew"),
		},
	},

	// ---- the line: rules 4, 12, 14, 19 and 20

	{
		name:   "the line is in the order of the keys",
		why:    "A range returns the keys in this order. But then a contender with a lesser UUID gets in beside the holder (rule 1).",
		change: in("line.older").replace("cmp.Compare(_a.Rev, _b.Rev)", "cmp.Compare(_a.Key, _b.Key)"),
		killers: []killer{core("ticket", "TestExploration"),
			core("line", "TestTheOrderIsThatOfTheCreateRevisions"), simulation(20),
			inArea("queue", "TestSessionsGetInByCreateRevision")},
	},
	{
		name:    "a place waits for the one before it only",
		why:     "The one before waits in turn for those before it. But if it leaves, the place enters beside the holder (rule 1).",
		change:  in("line.Line.Before").replace("_self[:_after]", "_self[max(_after-1, 0):_after]"),
		killers: []killer{core("ticket", "TestExploration"), core("line", "TestTheRuleOfEntry")},
	},
	{
		name:   "a limited reading is taken for complete",
		why:    "The keys that were read are the nearest, and no contender is among them. But all of them may be keys that are no contenders (rules 14 and 24).",
		change: in("line.Before").replace("_.More && (len(_) == 1 || _i != OfReads)", "_i < 0"),
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestWhatALimitedReadingTells"),
			inArea("queue", "TestStrayKeysThatFillWhatIsReadLetNobodyIn"),
		},
	},
	{
		name:   "what a look has read of keys alone is no contender",
		why:    "A key read alone shows no lease, and a key without a lease is no contender. But these keys may have one: the look lets in beside them (rules 14 and 20).",
		change: in("line.ByKeys").replace("MayStandIn", "StandsIn"),
		killers: []killer{
			exploring("three Sessions of a crowd, reading keys of one"),
			core("line", "TestWhatKeysAloneTellOfTheNearest"),
			inArea("queue", "TestWhoMovesUpInALongLineDoesNotEnterBesideTheHolder"),
		},
	},
	{
		name:    "what a view's recheck has read of keys alone is no contender",
		why:     "A key read alone shows no lease, and a key without a lease is no contender. But these keys may have one (rule 14).",
		change:  in("line.NoneBut").replace("MayStandIn", "StandsIn"),
		killers: []killer{core("line", "TestThatKeysAloneAreNoContenders")},

		unexplored: "A view and WatchHolder read so. The exploration has neither.",
	},
	{
		name:   "keys in no order are taken for the nearest",
		why:    "A permit may wait by any keys before it whose weights are too much. But a put reads any few of a long line, and each other waiter the same ones: as one of them goes, all look (rule 25).",
		change: in("line.Before").replace("enough != AllOrNone", "enough != 0"),
		killers: []killer{
			core("line", "TestWhatIsReadInNoOrderIsTheWholeLineOrNothing"),
			core("ticket", "TestAPutHasEtcdSortNoLine"),
		},

		unexplored: "It lets in no other, and costs more.",
	},
	{
		name:    "a put has etcd sort the line",
		why:     "The nearest keys are all that a place needs, and it has them at once. But etcd goes through the whole line for each put, and carries out nothing else meanwhile: thousands that come at once lose their leases (rules 24 and 25).",
		change:  in("ticket.Ticket.readAhead").replace("inNoOrder", "newestFirst"),
		killers: []killer{core("ticket", "TestAPutHasEtcdSortNoLine")},

		unexplored: "It is only slow.",
	},
	{
		name:    "an etcd that is busy with others is silent",
		why:     "The Session has had no answer for long. But its attempt has waited its turn all the while, and the client's other Sessions were answered.",
		change:  in("attempt.Caller.silentSinceLocked").never("_.After(_.since)"),
		killers: []killer{core("etcd/attempt", "TestAnEtcdThatAnswersOthersIsNotSilent")},
	},
	{
		name:    "a place in a vast line watches from now",
		why:     "etcd serves a watch from now at once, and a check shows what was deleted in between. But in a crowd of thousands that comes at once it is one more request of each (rule 25).",
		change:  in("queue.Line.knownBefore").drop("_.Ahead.Keys >= vast"),
		killers: []killer{inArea("queue", "TestANewPlaceInAVastLineAsksForLittle")},
	},
	{
		name:    "each check in a vast line reads who holds",
		why:     "The error of a wait names the holder. But etcd goes through the whole line for it, and thousands that came at once check at about the same time (rule 25).",
		change:  in("queue.askBeside").replace("_ != 0 || _.Keys < vast", "true"),
		killers: []killer{inArea("queue", "TestANewPlaceInAVastLineAsksForLittle")},
	},
	{
		name:   "a look at keys alone takes the own key for what was put",
		why:    "The key is there, with its create revision. But somebody may have put it over, with another lease or with none (rule 12).",
		change: in("line.ByKeys").drop("_.Mod != _.Rev"),
		killers: []killer{
			core("ticket", "TestExploration"),
			core("line", "TestWhatKeysAloneTellOfTheNearest"),
			inArea("queue", "TestNobodyEntersByAKeyThatWasPutOver"),
		},
	},
	{
		name: "who has put its key by a copy is the first",
		why:  "The answer shows the own key, and nobody before it. But the request did not ask for those before it (rule 1).",
		change: in("ticket.Entering.Judge").before("case _.Succeeded",
			"default: _self.ahead = line.None"),
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestWhatAPutSays")},
	},
	{
		name:   "TryLock takes the oldest keys for all",
		why:    "No contender is among them. But there may be more strays than it reads (rule 14).",
		change: in("line.Among").or("!_.More || _(_...)", "own.Rev == 0"),
		killers: []killer{
			exploring("TryLock beside Lock, reading one, beside strays"),
			core("line", "TestTheOldestTellWhoHolds"),
			core("ticket", "TestWhatAPutSays"),
		},
	},
	{
		name: "a view is kept of a line that has become long",
		why:  "The line was short when the view began, and the view knows all changes. But eight waiters then get an event for each contender that comes behind (rule 24).",
		change: in("queue.view.endIfTooLongLocked").replace("_self.Len() <= longLine",
			"_self.Len() > 0"),
		killers: []killer{inArea("queue", "TestAViewEndsWhenItsLineIsLong")},
	},
	{
		name: "the next goroutine gets in after a loss",
		why:  "The lock is lost, so the local line could move on. But the loser has not stopped yet (rule 4).",
		change: in("Hold.clearLocked").drop("_.place.local.endTurnLocked(_.claim, nil)").
			in("Hold.endLocked").before("_o.reportLost(_)", "_o.place.local.endTurnLocked(_o.claim, nil)"),
		killers: []killer{simulation(1000),
			inArea("queue", "TestALostHoldExcludesItsSessionUntilUnlock")},
	},
	{
		name:    "a try that is refused leaves a key that may yet come",
		why:     "Its answer has shown no key of its own, and the call is over. But an earlier copy of the put may be on its way (rule 9).",
		change:  in("call.endTryLocked").replace("_.place.Ticket.State() != ticket.Unsent", "false"),
		killers: []killer{inArea("mutex", "TestATryThatIsRefusedRemovesOnlyAKeyThatMayCome")},
	},
	{
		name:    "a lost hold is told as the holder",
		why:     "The loser keeps the turn until its Unlock, so the others wait for it. But its key is gone, and another process may hold (rule 8).",
		change:  in("claim.lostLocked").replace("return it", "false"),
		killers: []killer{inArea("queue", "TestALostHoldIsNotToldAsTheHolder")},
	},
	{
		name:    "of several holds the one that has had the turn for longest is told as the holder",
		why:     "It stands first in line. But it may be lost, while another one holds (rule 8).",
		change:  in("localLine.firstLocked").replace("!_.lostLocked()", "true"),
		killers: []killer{inArea("queue", "TestOfSeveralHoldsOfASessionOneThatIsWholeIsToldAsTheHolder")},
	},
	{
		name:    "who holds is told without a look at the clock",
		why:     "A timer ends the hold, and the key was there a moment ago. But the process may have been paused since (rules 2 and 8).",
		change:  in("localLine.checkOwnerLocked").replace("_.checkLocked(time.Now())", "_ = time.Now"),
		killers: []killer{core("hold", "TestAHoldThatIsOverByTheClockIsNotToldAsTheHolder")},
	},
	{
		name: "a context that ended with ErrClosed is taken for a Close",
		why:  "Close ends the waits with that. But the caller's context may come from a hold of another lock, which was closed (rule 8).",
		change: in("waitFailed").
			replace("_ != errWaitClosed", "!errors.Is(context.Cause(ctx), ErrClosed)"),
		killers: []killer{inArea("mutex", "TestAWaitTellsAContextThatEndedWithACloseFromItsOwnClose")},
	},
	{
		name:    "a wait of a closed Session says only that its line is over",
		why:     "Its context ends at the same moment, with the cause. But a wait may look before that, and its caller asks for ErrClosed (rule 8).",
		change:  in("hold.New").replace("errs.Closed", "queue.ErrTaken"),
		killers: []killer{core("hold", "TestAWaitSaysThatItsSessionIsClosedBeforeItsContextEnds")},
	},
	{
		name:    "a hold is told by the hooks alone",
		why:     "Acquired tells of each hold. But hooks run some time later, and then the work is not below the span of its hold.",
		change:  in("call.tellHolds").drop("_ = _.holds(_, _.began().Sub(_.started))"),
		killers: []killer{inArea("mutex", "TestTheContextOfACallLearnsOfTheHoldAtOnce")},
	},
	{
		name:    "a hold keeps its call",
		why:     "The garbage collector finds what is not needed. But the claim, which goes on with the turn, points to the call.",
		change:  in("call.lock").drop("_.first.wait = nil"),
		killers: []killer{inArea("lease", "TestWhatASessionTakes")},
	},
	{
		name: "what is told of a hold may panic",
		why:  "It panics in the goroutine of its caller, as any function does. But the call holds by then, and no Unlock follows.",
		change: in("Hooks.holds").replace(
			"Made(_ctx, func() context.Context { return _c.Holds(_ctx, _waited) })",
			"_c.Holds(_ctx, _waited)"),
		killers: []killer{inArea("mutex", "TestTheContextOfACallLearnsOfTheHoldAtOnce")},
	},
	{
		name: "a Start that panics undoes what the others have begun",
		why:  "A hook that panics skips those after it. But a span that another Start has begun would never end.",
		change: in("joinStarts").replace(
			"_ctx = hold.Made(_ctx, func() context.Context { return _start(_ctx, _e) })",
			"if next := _start(_ctx, _e); next != nil { _ctx = next }"),
		killers: []killer{inArea("mutex", "TestAStartThatPanicsUndoesNoOther")},
	},
	{
		name:    "a try is refused for a key of its own Session that has just gone",
		why:     "No place accounts for the key, so the Session has nothing to wait for. But it has just removed it, and the answer is older (rule 7).",
		change:  in("queue.Keys.OwnLocked").replace("IsOwn(_)", "false"),
		killers: []killer{inArea("kinds", "TestATryIsNotRefusedForAKeyOfItsOwnSessionThatHasGone")},
	},
	{
		name:   "a wait at home does not ask the context",
		why:    "The owner is in the same process and will unlock. But nobody knows when (rule 10).",
		change: in("call.acquire").drop("case <-_.Done()"),
		killers: []killer{simulation(1000),
			inArea("queue", "TestAClaimThatLeavesOnItsWayLeavesNothingBehind")},
	},
	{
		name: "a watch without the slow re-check",
		why:  "A watch delivers every event or ends with an error. But on a member that is frozen it does neither (rule 12).",
		change: in("queue.view.follow").drop("Tick: _").
			in("queue.longWait.follow").replace("_.finished()", "false"),
		killers: []killer{inArea("queue", "TestAWaiterGetsInWhateverBecomesOfItsWatch")},
	},
	{
		name: "a view tells only the place that waits by it",
		why:  "It is there for that place. But while the Session waits for another permit the watch of a permit that it holds has ended, for the view shows that key, too (rule 5).",
		change: in("queue.Keys.observedLocked").replace("_p.Removal == nil",
			"_p.line.local.PlaceLocked() == _p"),
		killers: []killer{inArea("kinds", "TestAPermitIsToldOfWhatHappensWhileAnotherOfItsSessionWaits")},
	},
	{
		name: "a check holds up the events",
		why:  "A check may show that events were missed. But an etcd that was frozen under a long line answers its checks one by one, and the next in line may get the last answer (rule 25).",
		change: in("queue.Waiter.check").replace("return check{_stop, _answer}",
			"whole := make(chan checked, 1); whole <- <-_answer; close(whole); return check{_stop, whole}"),
		killers: []killer{inArea("queue", "TestACheckKeepsNobodyFromHearingTheEvent")},
	},
	{
		name:    "the re-checks of a long line are repeated as if one waited alone",
		why:     "A lost recheck should be repeated. But each waiter repeats its own, and an etcd that thaws has to work through all of them (rule 25).",
		change:  in("queue.Waiter.bothIn").replace("Spare", "Ordinary"),
		killers: []killer{core("hold", "TestAFrozenEtcdGetsFewRechecksOfALongLine")},
	},
	{
		name:    "a re-check of a view asks for the keys that it knows",
		why:     "They are still there, so nothing was missed. But those that have come since were missed, and a key that lingers has to give way to them (WithLinger).",
		change:  in("queue.view.compareLine").replace("!first", "true"),
		killers: []killer{inArea("watching", "TestAKeyThatLingersGivesWayThoughNoEventTells")},
	},
	{
		name:       "a re-check of a view asks whether there is any other key",
		why:        "If there is none the key is alone in line. But there may be thousands of nested names, and then all are read each time (rule 24).",
		change:     in("line.NoneBut").replace("!_read.GetMore()", "_read.Count == 1"),
		killers:    []killer{inArea("watching", "TestAReCheckDoesNotReadTheKeysOfNestedNames")},
		unexplored: "It costs a read of the line. The exploration has no rechecks.",
	},
	{
		name: "a re-check of a view asks only for what is newer than its own key",
		why:  "Whoever comes is newer. But so may be thousands of nested names.",
		change: in("queue.view.compareLine").replace("_ask = append(_ask, ticket.Range(_newer))",
			"if _newer.MinModRevision == 0 { _ask = append(_ask, ticket.Range(_newer)) }"),
		killers: []killer{inArea("watching", "TestAReCheckDoesNotReadTheKeysOfNestedNames")},
	},
	{
		name:    "a key that lingers is re-checked as seldom as the hold before it was",
		why:     "The watch has been good for long. But whoever comes now relies on it anew (rule 24).",
		change:  in("queue.Line.LingerLocked").drop("_.reliesLocked()"),
		killers: []killer{inArea("watching", "TestAKeyThatLingersGivesWayThoughNoEventTells")},
	},
	{
		name: "a view takes a key with another lease for its own",
		why:  "The key has the create revision, and stands in line. But it goes with a lease that is not the holder's (rule 5).",
		change: in("queue.Keys.observedLocked").before("_p.observedLocked(_...)",
			"e.Lease = _p.Ticket.Lease").
			in("queue.view.judgeLocked").after("_shown, _ := _.Own(_)",
			"if _shown.Rev != 0 { _shown.Lease = p.Ticket.Lease }"),
		killers: []killer{inArea("watching", "TestALossIsToldByTheEvent")},
	},
	{
		name:   "a key of one's own in the line is nobody's",
		why:    "Audits find a key for which no place accounts. But they are seldom, and the key is in everybody's way (rule 9).",
		change: in("queue.Keys.suspectOrphanLocked").replace("!_.accountsForLocked(_e)", "_e.Rev == 0"),
		killers: []killer{
			inArea("lease", "TestAKeyThatALateRequestPutsInTheWayOfItsSessionIsSweptSoon"),
		},
	},
	{
		name:   "a renewal whose member knows of less than was known is a renewal",
		why:    "The answer may come from a member that is behind. But it may also come from an etcd that was set back, and nothing else may show that (rule 26).",
		change: in("lease.Lease.confirmed").drop("_.Header.GetRevision() < _"),
		killers: []killer{
			inArea("watching", "TestAHoldThatIsWatchedWhileEtcdIsSetBack"),
			inArea("outages", "TestRenewalsAfterASetBackGiveNoTrustBeforeTheKeysWereRead"),
		},
	},
	{
		name:    "no look once the watch is there",
		why:     "The line was read when the key was put. But no event shows what was deleted before the watch began (rule 20).",
		change:  in("queue.longWait.noticed").replace("!_self.known", "_self.before.Rev == 0"),
		killers: []killer{inArea("queue", "TestALongLineGetsInWhateverBecomesOfItsWatches")},
	},
	{
		name:    "who does not look watches from now",
		why:     "etcd serves a watch from the put late, and one from now at once. But the latter does not show what was deleted in between, and nobody looks (rule 20).",
		change:  in("queue.Line.watchBefore").drop("_ = append(_...)"),
		killers: []killer{inArea("queue", "TestAWatchFromTheReadingMissesNothing")},
	},
	{
		name:    "the watch that was kept is taken for that of any key",
		why:     "The watch is there, and a place that goes round stands behind the same key again. But somebody may have come between, or the one before may not have come back (rule 12).",
		change:  in("queue.Line.knownBefore").drop("_.key == _.Key"),
		killers: []killer{inArea("queue", "TestWhoReturnsToALongLineAsksForLittle")},
	},
	{
		name:    "a watch that was kept is kept",
		why:     "The watch costs etcd nothing while nothing happens, and the next place may need it. But then each name for which the Session has ever waited has one (rule 24).",
		change:  in("queue.Line.unwatchBefore").drop("if _.last == _"),
		killers: []killer{inArea("queue", "TestAWatchThatIsKeptForTheNextPlaceEnds")},
	},
	{
		name: "a key that is there again stands in line again",
		why:  "The key has the name of a contender, and was put again after it was deleted. But without a lease it stands in no line, and never goes (rule 14).",
		change: in("line.Behind").drop("Last: Of(_, _.GetKvs())").
			after("_a := Ahead{About: int(_), Keys: int(_)}",
				"for _, kv := range read.GetKvs() { _a.Last = append(_a.Last, EntryOf(kv)) }"),
		killers: []killer{
			inArea("queue", "TestWhoseFormerPredecessorHasLeftAStrayIsNotHeldUp"),
			core("line", "TestWhoStandsBehindAKeyThatWasRead"),
		},
		unexplored: "A single key is read only where the line is longer than sixteen.",
	},
	{
		name:    "who is known by a key is looked at as seldom as any in a long line",
		why:     "The key was read with the put, and the watch shows when it goes. But if it has no lease it never goes, and all that come behind wait (rule 14).",
		change:  in("queue.Waiter.waitBy").drop("if _.early"),
		killers: []killer{inArea("queue", "TestAStrayThatLooksLikeAContenderBlocksNobodyForLong")},
	},
	{
		name: "a view without a read",
		why:  "The answer to the put has the line, and the watch shows later changes. But it does not show the changes in between (rule 20).",
		change: in("queue.view.follow").replace("_goesOn := _self.readLine(true)", `
			_goesOn := true
			_self.line.keys.mu.Lock()
			var shown []line.Entry
			if p := _self.line.local.PlaceLocked(); p != nil {
				shown = append(slices.Clone(p.Ahead.Last), p.Ticket.Entry())
			}
			_self.Read(_self.line.Name, shown, _self.epoch.Reached())
			_self.up = true
			_self.line.keys.mu.Unlock()`),
		killers: []killer{simulation(1000), inArea("queue", "TestAViewMissesNothingBeforeItsWatch")},
	},
	{
		name:   "a view takes events that its read knows",
		why:    "Events are the truth, in order. But events from before the read are older than the read: the deletion of an earlier use of a name then deletes its later use (rule 20).",
		change: in("line.Watched.Apply").drop("if _.Mod <= _.at"),
		killers: []killer{explorationOfWatched,
			inArea("queue", "TestAViewTakesNoEventTwice")},
	},
	{
		name:   "a view remembers every contender that went",
		why:    "One of them may be ahead of a key whose put is not answered yet. But few are, and a wait may be long.",
		change: in("line.Watched.Apply").replace("max(0, len(_.gone)-mostGone)", "0"),
		killers: []killer{explorationOfWatched,
			core("queue", "TestWhatAViewRemembersIsBounded")},
	},
	{
		name:   "a view forgets who went while a put is under way",
		why:    "Nobody waits yet. But the answer to the put tells who was ahead of the key when it was put, and nothing tells again that they are gone.",
		change: in("line.Watched.Apply").after("_self.at = max(_self.at, _)", "_self.gone = nil"),
		killers: []killer{explorationOfWatched,
			inArea("watching", "TestADeletionThatIsToldBeforeTheAnswerToThePutCounts")},
	},
	{
		name: "the event of the predecessor is enough",
		why:  "The one before is gone, so it is the waiter's turn. But that one may have been a waiter, too (rule 20).",
		change: in("queue.longWait.follow").before(
			"if _ := _.look(_, _p, _at); _ != nil",
			"if _self.last != nil && _at != 0 { _p.setLine(line.None, _p.Account.keys.etcd.Epoch(), 0); return false, nil }").
			in("queue.view.judgeLocked").before("_left := _p.Ahead.Without(_...)",
			"if _self.Gone(_p.Ahead.Last[len(_p.Ahead.Last)-1], _p.Ticket.Entry()) { _p.Ahead.Last = nil }"),
		killers: []killer{simulation(1000),
			onCluster("TestWhoMovesUpBehindTheHolderDoesNotEnterBesideIt")},
	},
	{
		name: "who is gone takes those behind it along",
		why:  "They stood behind the one that is gone, so they seem no nearer. But they are nearer to the head than the place, and the place enters beside one of them (rule 1).",
		change: in("line.Ahead.Without").drop("for len(_.Last) > 0 && _(_.Last[0])").
			replace("slices.DeleteFunc(_...)", "_self.Last[:slices.IndexFunc(_self.Last, gone)]"),
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestWhoIsGoneIsAheadOfNobody"),
		},
	},
	{
		name: "a waiter does not miss its own key",
		why:  "Only those before the waiter can be in its way. But without a key the waiter is in nobody's way (rule 12).",
		change: in("queue.Place.observedLocked").before("_ := _self.Ticket.Observe(_o)",
			"if _o.Rev == 0 && _self.held == 0 { return ticket.Nothing }"),
		killers: []killer{inArea("queue", "TestAWaiterWhoseKeyWasDeletedQueuesAnew")},
	},
	{
		name: "a predecessor is told by its create revision alone",
		why:  "The create revision tells one key from another. But a key that was put over keeps it, and may have lost its lease: then nothing removes the key (rule 14).",
		change: in("ticket.Compare").drop("_leased := _").drop("if _.Lease == 0").drop("leased").
			in("ticket.Known.Compares").replace("2", "1").replace("3", "2"),
		killers: []killer{inArea("watching", "TestAPredecessorWhoseKeyHasLostItsLeaseBlocksNobody")},

		unexplored: "Who watches one key compares it by itself. The exploration has no such watch.",
	},
	{
		name: "a waiter's own key is told by its create revision alone",
		why:  "It is the key that the waiter put. But somebody may have put it over, and it goes with another lease, or with none (rule 12).",
		change: in("queue.Waiter.bothIn").after("_stand := ticket.Contend(_, _)", "_stand[1].Lease = 0").
			in("ticket.Ticket.Is").drop("_.Lease == _.Lease"),
		killers: []killer{
			core("ticket", "TestExploration"),
			inArea("watching", "TestAWaiterWhoseOwnKeyIsPutOverQueuesAnew"),
		},
	},
	{
		name: "the library's watches are on the user's stream",
		why:  "That saves one stream. But once the stream's token has expired the user's watch keeps the stream open, and etcd refuses all later watches (rules 12 and 16).",
		change: in("etcd.stream.context").replace("metadata.NewOutgoingContext(_, it)",
			"metadata.Pairs(rpctypes.MetadataRequireLeaderKey, rpctypes.MetadataHasLeader)"),
		killers: []killer{inArea("watching", "TestAStreamWhoseTokenHasExpiredHoldsUpNoWatch")},
	},
	{
		name:    "a watch ends with its context, though etcd has not answered",
		why:     "Nobody needs it any more. But clientv3 then leaves its stream open: it ends one with the last watch that was answered (rule 22).",
		change:  in("etcd.Conn.Watch").replace("context.WithoutCancel(_ctx)", "_ctx"),
		killers: []killer{inSim("TestNoStreamOfWatchesStaysOpen")},
	},
	{
		name: "a watch has the metadata of the call that began it",
		why:  "The requests of a call have them, too. But a request id is another one in each call, and so each waiter opens a stream, and logs in for it (rule 24).",
		change: in("etcd.stream.context").before("return _, _",
			"theirs, _ := metadata.FromOutgoingContext(ctx)").
			replace("metadata.NewOutgoingContext(_, it)", "metadata.Join(theirs, _self.own)"),
		killers: []killer{inArea("watching", "TestTheMetadataOfACallOpensNoStream")},
	},
	{
		name:    "an event of another cluster is an event",
		why:     "The watch goes on, and tells what happens. But it tells it of the cluster from which the client was moved away (rule 26).",
		change:  in("etcd.Watch.Notice").replace("_self.c.Epoch().isElsewhere(_)", "_self == nil"),
		killers: []killer{core("etcd", "TestWhatAnAnswerOfAWatchSays")},
	},
	{
		name: "a refused watch is begun on the same stream again",
		why:  "clientv3 gets a token for each stream that it opens, and would open a new one. But it does not while an older watch keeps the one open whose token has expired (rules 12 and 16).",
		change: in("etcd.stream.fails").replace("if _ == _.name && time.Since(_.since) >= _rest",
			"_ = _rest"),
		killers: []killer{inArea("watching", "TestAStreamWhoseTokenHasExpiredHoldsUpNoWatch"),
			onCluster("TestATokenThatExpiresHoldsUpNoWatch")},
	},
	{
		name: "each Session has a stream of its own",
		why:  "A Session is the simplest owner of a stream. But a fleet of Sessions on one client then opens as many streams, and each may be a login (rule 25).",
		change: in("etcd.New").replace("streamOf(_)",
			"&stream{name: streamNames.Add(1), patience: leastSilence, watches: make(map[*Conn]int)}"),
		killers: []killer{inArea("watching", "TestTheSessionsOfAClientShareAStream")},
	},
	{
		name: "one late watch makes all watch anew",
		why:  "The watches share a stream, which may be dead, and which ends when nobody uses it. But mostly only one watch is late, and the others make a storm (rule 25).",
		change: in("queue.view.recheck").before("return 0, false #3 of 3", `
			go _self.line.keys.rewatch()
			for n := range _self.line.keys.LinesLocked {
				if n.view != nil {
					n.view.renewLocked()
				}
			}`),
		killers: []killer{inArea("watching", "TestOneLateWatchIsMadeAnewAlone")},
	},
	{
		name: "a watch may take as long as answers took when it was begun",
		why:  "The time is known when the watch begins. But if its member is dead, and etcd has become fast meanwhile, nobody looks for that long.",
		change: in("etcd.Watch.opens").replace("min(_remains(), attempt.ReadTimeout) #1 of 2",
			"_remains()"),
		killers: []killer{inArea("watching", "TestAWatchThatWasBegunWhileEtcdWasSlowIsGivenUpSoon")},
	},
	{
		name:    "a revision that the member does not have yet ends the wait",
		why:     "An error of a read is an error. But this one passes by itself (rule 20).",
		change:  in("queue.Waiter.readAhead").always("attempt.Fallen(_) != nil"),
		killers: []killer{inArea("queue", "TestALongLineGetsInWhateverBecomesOfItsWatches")},
	},
	{
		name: "a watch that ends is the end of the wait",
		why:  "What Lock builds on is gone, and the caller may call it again. But the watch ends whenever a member restarts (rule 12).",
		change: in("queue.longWait.follow").replace(
			"if _err := _broken.Wait(_ctx, _p.Account.keys.etcd.Caller); _err != nil",
			"if _err := _broken.Wait(_ctx, _p.Account.keys.etcd.Caller); _err == nil { return false, attempt.ErrNoAnswer }").
			in("queue.view.follow").before("_.unwatched()", `
			_self.line.keys.mu.Lock()
			_self.refusal = attempt.ErrNoAnswer
			_self.endLocked()
			_self.line.keys.mu.Unlock()`),
		killers: []killer{simulation(1000),
			inArea("queue", "TestAWaiterGetsInWhateverBecomesOfItsWatch")},
	},
	{
		name:   "a key lingers whoever waits",
		why:    "The key is given up when its time is over. But until then others wait for nobody (WithLinger).",
		change: in("queue.view.judgeLocked").drop("case _.othersLocked()"),
		killers: []killer{simulation(1000),
			inArea("queue", "TestAKeyThatLingersGivesWayAsSoonAsAnotherQueues")},
	},
	{
		name: "a key lingers without a watch",
		why:  "The watch will be back. But meanwhile nothing shows who waits (WithLinger).",
		change: in("queue.view.unwatched").drop("_.blindLocked()").
			in("queue.view.endLocked").drop("_.line.local.GiveWayLocked()"),
		killers: []killer{inArea("queue", "TestAKeyThatLingersIsGivenUp")},
	},
	{
		name: "a view is blind between its read and the word that it is live",
		why:  "The watch and the read are two facts, and each is noted. But an Unlock may come between the two, and finds no watch for the key that is to linger (WithLinger).",
		change: in("queue.view.readLine").before("_self.up, _self.missed = true, false",
			"_self.line.keys.mu.Unlock(); _self.line.keys.mu.Lock()"),
		killers: []killer{core("queue", "TestAViewIsLiveOnceTheReadAfterItsWatchIsKnown")},
	},
	{
		name:   "a hold is passed on without end",
		why:    "That is fastest, and somebody of the Session waits. But others wait, too (WithHandoff).",
		change: in("home.Queue.Fate").replace("_.Handed < _.Handoff", "k.Handoff > 0"),
		killers: []killer{
			exploring("hand-offs"),
			inArea("queue", "TestAHandOffIsWithoutEtcdUpToItsNumber"),
		},
	},
	{
		name:   "the turn goes to one that has left",
		why:    "The waiter was chosen, and the release puts its key. But it has gone away meanwhile: nobody passes the turn on, and all behind it wait for ever (rule 12).",
		change: in("home.Queue.Leave").drop("_ == Next"),
		killers: []killer{
			core("ticket", "TestExploration"),
			core("home", "TestTurns"),
			core("home", "TestTheQueueDoesWhatASimpleOneDoes"),
		},
	},
	{
		name:       "a wait that ends counts all that are ahead of it",
		why:        "Its error is exact then. But each that gives up has the mutex of the Session for as long as there are others, and a crowd that gives up for the square of that.",
		change:     in("home.Queue.waitingBefore").replace("if _n++; _n > few", "_n++"),
		killers:    []killer{inBound("locks wait", "the wait of the last ends")},
		unexplored: "it is right, and slow",
	},
	{
		name: "who leaves from the middle takes the others along",
		why:  "Its neighbours are linked to each other. But if only one of the two is, those behind it are never reached (rule 12).",
		change: in("list.Node.Remove").replace("_.before.after, _.after.before = _, _",
			"n.after.before = n.before"),
		killers: []killer{
			core("list", "TestAListIsWhatASliceWouldBe"),
			core("home", "TestTurns"),
			core("home", "TestTheQueueDoesWhatASimpleOneDoes"),
		},
	},
	{
		name:       "what lingers is held without a look at the clock",
		why:        "The key was there a moment ago. But the process may have been paused since (rule 2, WithLinger).",
		change:     in("home.Queue.Way").drop("_.Begins").drop("_.Lasts"),
		killers:    []killer{core("hold", "TestWhatLingersIsNotHeldWhenTheTrustIsOver")},
		unexplored: "A lease ends there by an event, which gives up what lingers.",
	},
	{
		name: "a wait that ends as it is let in passes the turn on",
		why:  "The call owns the turn, and owners of a turn pass it on. But it got a hold before, which the call forgets, and others share its key.",
		change: in("claim.leaveLocked").after("home.Owner", "home.Holder").
			before("if _ != nil && _.GivenUpLocked()",
				"if _self.hold != nil { _self.hold.ofHandle.Remove() }"),
		killers: []killer{inArea("queue", "TestAWaitThatEndsAsItIsLetInHasAHoldOrNothing"),
			ofFamily(500)},
	},
	{
		name:   "who gets the turn of a holder that has gone has no hold",
		why:    "The turn comes from another, as it does from one that has unlocked. But this one joined before, and holds.",
		change: in("home.Queue.part").replace("_.standing, _.owner = it, _", "Owner"),
		killers: []killer{
			core("home", "TestTheQueueDoesWhatASimpleOneDoes"),
			exploring("reads of one Session, and two run out of time as they are let in"),
		},
	},
	{
		name: "what lingers is held whatever its value says",
		why:  "The key is the Session's own, whichever Mutex comes. But its value says whether the holder may be recalled (WithLinger).",
		change: in("localLine.keyLocked").replace("_p.suits(_)",
			"c.Kind == line.Exclusive && !c.call.together"),
		killers: []killer{inArea("queue", "TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue")},
	},
	{
		name:    "a key that a release leaves suits the next one whatever its value says",
		why:     "The key is the Session's own, whichever Mutex waits. But its value says whether the holder may be recalled.",
		change:  in("place.suits").drop("_.reads() || _.tellsOf(_)"),
		killers: []killer{inArea("queue", "TestAKeyIsSharedOnlyByHoldsOfWhichItsValueIsTrue")},
	},
	{
		name:    "a key that a release leaves suits the next one within whatever hold",
		why:     "The key is the Session's own. But its value says within which hold it was asked for, and a deadlock is told that is none.",
		change:  in("place.suits").replace("_.after == _.call.after", "true"),
		killers: []killer{inArea("queue", "TestAPlaceIsNotHandedToACallWithinAnotherHold")},
	},
	{
		name:    "a key tells of a hold that may hand its own on",
		why:     "The call is within that hold. But the next hold at that key does not wait for the call.",
		change:  in("Lock.within").drop("_shares(_h.m.cfg)"),
		killers: []killer{inArea("queue", "TestAKeyTellsOfTheHoldWithinWhichItWasAskedFor")},
	},
	{
		name:    "what lingers and cannot be held stays",
		why:     "The key is given up when its time is over. But until then the Session waits behind a key of its own (WithLinger).",
		change:  in("claim.enterLocked").drop("if _.kept != nil"),
		killers: []killer{core("hold", "TestWhatLingersAndCannotBeHeldGivesWay")},
	},
	{
		name:   "TryLock puts its key and removes it",
		why:    "concurrency.Mutex does so, and Lock's code does it already. But the others see a contender that does not contend (rule 19).",
		change: in("ticket.tryPut.txn").replace("e.free(all)", "created(e.t.Key, 0)"),
		killers: []killer{
			core("ticket", "TestExploration"),
			inContract("TestTryLockOfATakenNameWritesNothing"),
		},
	},
	{
		name:   "TryLock compares until nothing newer is there",
		why:    "Once nothing is, the put is safe and nobody was in line. But beside nested names or permits in use something newer is always there, and it sends one transaction after the other until its context ends.",
		change: in("ticket.tryPut.judge").drop("case _ != Queued && _.seen != 0"),
		killers: []killer{
			exploring("TryAcquire beside permits that come"),
			inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon"),
		},
	},
	{
		name:    "TryLock waits once its key is in line",
		why:     "Its key is there, as that of Lock. But somebody came before it, and it does not wait for others.",
		change:  in("queue.Waiter.wait").and("_.Try", "len(ahead.Last) < 0"),
		killers: []killer{inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon")},
	},
	{
		name:       "TryLockAll goes on as LockAll for one of its names",
		why:        "The others may be compared yet. But if that fails the names that are not compared seem to have a key that was taken away, and it begins anew.",
		change:     in("ticket.Several.Judge").replace("_self.queue()", "_ = _self.queue"),
		killers:    []killer{inArea("queue", "TestTryLockBesideKeysThatComeAndGoAnswersSoon")},
		unexplored: "the exploration of several names has no keys of nested names, so their compares never fail",
	},
	{
		name: "every key below the prefix counts",
		why:  "concurrency.Mutex does so. But then a stray key blocks everybody for ever (rule 14).",
		change: in("line.Entry.StandsIn").replace("_ == strconv.FormatInt(_.Lease, 16)",
			`strconv.FormatInt(_self.Lease, 16) != ""`),
		killers: []killer{
			exploring("two that read in one Session, and a writer, reading one, beside a stray"),
			core("line", "TestWhoStandsInLine"),
		},
	},

	{
		name:    "an attempt gives up as soon as it repeats",
		why:     "Two seconds without an answer are long. But etcd works through the request all the same, and then through the next one, which is given up as well (rule 25).",
		change:  in("attempt.Patience").replace("5", "1"),
		killers: []killer{core("hold", "TestACrowdOfSessionsGetsThroughASlowEtcd")},
	},
	{
		name:    "repeats have no credit",
		why:     "The answer may have got lost, and a repeat brings it. But if nothing was lost, the repeat is one more request for a slow etcd (rule 25).",
		change:  in("attempt.limiter.spend").drop("_.spent+1 <= float64(_)"),
		killers: []killer{core("etcd/attempt", "TestRepeatsAreGrantedByCredit")},
	},
	{
		name:   "everything is sent at once",
		why:    "What is sent sooner is answered sooner. But etcd works through all of it in turn, and through the repeats, while leases run out (rule 25).",
		change: in("attempt.limiter.lets").replace("_w.under >= _w.size", "_w.under > 1<<20"),
		killers: []killer{core("etcd/attempt", "TestAttemptsBeginInTurn"),
			core("hold", "TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name:    "a slow answer is as good as any",
		why:     "An answer is an answer. But the more requests are sent, the slower the next answers are (rule 25).",
		change:  in("attempt.limiter.answered").replace("_took > slow", "took > time.Hour"),
		killers: []killer{core("etcd/attempt", "TestAWindowIsHalvedOnceForWhatWasSentBefore")},
	},
	{
		name:    "puts are let begin by what grants have taken",
		why:     "A put is an attempt like any other, and one window is simpler. But grants are cheap, and a window that grew by them lets more puts begin than etcd can do in the time of a lease (rule 25).",
		change:  in("attempt.limiter.window").replace("&_.puts", "&_self.leases"),
		killers: []killer{core("hold", "TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name:    "a window that a stall has shrunk stays small",
		why:     "A window grows while answers are brisk. But on a disk that takes long for each write none is, and a client goes on with one request at a time for ever (rule 25).",
		change:  in("attempt.limiter.answered").drop("_.size < firstWindow && _"),
		killers: []killer{core("etcd/attempt", "TestAWindowGrowsBackAfterAStall")},
	},
	{
		name:    "a slow disk counts as a busy etcd",
		why:     "An answer that takes long asks for less. But on a disk that takes half a second for each write all of them take long, however few are under way, and the line of a fleet that starts fills slowly (rule 25).",
		change:  in("attempt.limiter.answered").replace("_took < synced", "took < 0"),
		killers: []killer{core("hold", "TestASlowDiskFillsTheLineSoon"), core("etcd/attempt", "TestAWindowGrowsByWhatWaitsForASlowDisk")},
	},
	{
		name:    "more is read at once where the disk is slow",
		why:     "Reads wait for the disk, too. But they share no write, and thousands that have just lined up look at a long line each: etcd has so much to do that renewals are late (rule 25).",
		change:  in("attempt.limiter.answered").drop("_w != &_self.others"),
		killers: []killer{core("etcd/attempt", "TestAWindowGrowsByWhatWaitsForASlowDisk")},
	},
	{
		name:    "a busy etcd counts as a slow disk",
		why:     "Answers of half a second are soon enough for a lease. But where etcd has too much to do, more requests only make all wait longer, and hand-overs and renewals with them (rule 25).",
		change:  in("attempt.limiter.answered").drop("_self.light <= _took / 2"),
		killers: []killer{core("hold", "TestABusyEtcdGetsNoMoreForBeingSlow"), core("etcd/attempt", "TestAWindowGrowsByWhatWaitsForASlowDisk")},
	},
	{
		name:    "waiters wait their turn behind grants",
		why:     "Grants and reads are small, and one window bounds them together. But on a slow disk the grants of a fleet that starts take minutes, and the first in line waits behind them to see that it is first (rule 25).",
		change:  in("attempt.limiter.window").replace("_ == Lease", "_self == nil"),
		killers: []killer{core("hold", "TestGrantsDelayNoHandOver")},
	},
	{
		name:    "what fails at once is sent again at once",
		why:     "Few of them are under way at a time, as the window has it. But what fails at once is never under way, so ten thousand releases send sixty thousand requests a second (rule 25).",
		change:  in("attempt.window.fails").replace("_sent.Before(_self.from)", "true"),
		killers: []killer{inArea("outages", "TestACrowdOfUnlocksThatFailAtOnceIsNoStorm")},
	},
	{
		name:    "each release repeats itself",
		why:     "A release is urgent: other contenders wait for it. But a crowd of them that has failed once is no more urgent than one, and an etcd that fails gets the more to do the more keys there are (rule 25).",
		change:  in("hold.release.send").replace("attempt.Removal", "attempt.Urgent"),
		killers: []killer{inArea("outages", "TestACrowdOfUnlocksThatFailAtOnceIsNoStorm")},
	},
	{
		name:    "a key is removed though its lease goes",
		why:     "Whichever comes first removes the key. But the revocation removes all keys of the lease in one request, and the removals are as many as there are keys (rule 25).",
		change:  in("queue.Place.remove").replace("_l.Goes()", "nil"),
		killers: []killer{inArea("outages", "TestACrowdOfWaitsThatGiveUpIsNoStorm")},
	},
	{
		name: "who was turned away comes back ever more seldom",
		why:  "So does TCP, and etcd has enough to do. But a refusal costs it next to nothing, one call of a client asks for all, and with pauses of 8 s calls get in seconds after etcd has caught up (rule 25).",
		change: in("attempt.Backoff.note").replace("_self.overloads = 1",
			"_self.overloads = min(_self.overloads+1, 4)"),
		killers: []killer{inArea("outages", "TestCallsGetInSoonAfterEtcdTurnedRequestsAway")},
	},
	{
		name:    "an urgent answer lets others begin",
		why:     "The answer was brisk, too. But the window does not count this attempt, and the answer only shows that removals are cheap (rule 25).",
		change:  in("attempt.limiter.answered").before("switch", "w = cmp.Or(w, &_self.others)"),
		killers: []killer{core("etcd/attempt", "TestAWindowGrowsWhileAnswersAreBriskAndItIsUsed")},
	},
	{
		name:    "a crowd whose leases run out comes back at once",
		why:     "Each Session has lost its lease and needs another one. But so have all others, and what etcd works through for them is again too late for all (rule 25).",
		change:  in("lease.Pool.standBack").replace("_unanswered < 2", "_unanswered >= 0"),
		killers: []killer{core("hold", "TestLeasesThatRunOutUnansweredSpreadThoseThatFollow")},
	},
	{
		name: "the queue is searched for an attempt that gives up",
		why:  "The queue is short while etcd answers. But while it does not a hundred thousand may wait, and give up at once: renewals wait for the lock until holds are lost (rule 25).",
		change: in("attempt.flight.wait").before("_w.queue.Remove(_stands)",
			"found := _w.queue.Front(); for found != _stands { found = found.Next() }").
			replace("_.queue.Remove(it)", "found"),
		killers: []killer{core("etcd/attempt", "TestGivingUpCostsNoMoreThanBeginningHoweverManyWait")},
	},
	{
		name:    "a turn that nobody takes is lost",
		why:     "An attempt that has left needs no turn. But the turn was given to it, and those behind it wait for ever.",
		change:  in("attempt.flight.wait").drop("_.end(_...)"),
		killers: []killer{core("etcd/attempt", "TestATurnThatNobodyTakesIsHandedOn")},
	},
	{
		name:   "the only endpoint is asked twice",
		why:    "The first request may have got lost. But nearly always it waits, and the second one waits behind it (rule 25).",
		change: in("attempt.copies.repeat").replace("_l.limiter.heard.After(_.last)", "_l != nil"),
		killers: []killer{core("hold", "TestAMassEndDoesNotRepeatItselfToAFrozenEtcd"),
			core("hold", "TestAMassStartSendsNoMoreThanEtcdAnswersSoon")},
	},
	{
		name: "each wait asks for a connection",
		why:  "Each wait asks only twice a second, so that it connects soon. But the others ask, too (rule 25).",
		change: in("attempt.Caller.reconnect").replace("time.Since(_l.asked) >= reconnectEvery",
			"_l != nil"),
		killers: []killer{onCluster("TestACrowdThatWaitsForEtcdConnectsAFewTimesASecond")},
	},

	// ---- readers

	{
		name: "one that reads does not look at its own key",
		why:  "A reader waits for those before it, and none of these is left. But if its own key is gone, too, a writer may have come in between, and hold.",
		change: in("ticket.Look.Judge").before("if !_self.t.Is(_own.Entry)",
			"if _self.t.Kind != line.Exclusive { _own.Entry = _self.t.Entry() }"),
		killers: []killer{core("ticket", "TestExploration"), core("ticket", "TestALookOfOneThatReads"),
			ofFamily(2000)},
	},
	{
		name: "one that reads waits for the writers behind it",
		why:  "A writer is in line, so it is not time to read. But that writer waits for the reader.",
		change: in("line.Line.Blocking").replace("_.unread", "_self.unread").
			in("ticket.Look.Ranges").drop("_.MaxCreateRevision = _.t.rev"),
		killers: []killer{core("ticket", "TestExploration"), core("line", "TestTheRuleOfEntry"),
			ofFamily(1000)},
	},
	{
		name:   "TryRLock compares the whole line",
		why:    "TryLock does so. And once TryRLock has read that the others are readers, it gets in all the same. But it needs a second request, or a third, as long as others come and go.",
		change: in("ticket.tryReadPut.txn").replace("_.free(_)", "e.free(line.Whole(t.Name))"),
		killers: []killer{
			exploring("TryRLock beside a reader and a writer"),
			core("ticket", "TestWhatAPutOfOneThatReadsSends"),
			inArea("kinds", "TestWhatReadsCost"),
		},
	},
	{
		name:    "one joins those who read without a live watch",
		why:     "The key is held, and a writer waits for it. But if one more reader joins each time, the writer waits for ever.",
		change:  in("localLine.keyLocked").or("live #2 of 2", "_self.WatchedLocked()"),
		killers: []killer{inArea("kinds", "TestNobodyJoinsWithoutALiveWatch"), ofFamily(2000)},
	},
	{
		name:    "a read that is to join has the readers watched, too",
		why:     "That is how a waiter sees its line. But where many Sessions read, the line is too long for a view, and nobody joins.",
		change:  in("queue.Line.WatchLocked").and("if it #2 of 2", `_self.Name == ""`),
		killers: []killer{inArea("kinds", "TestAReadJoinsHoweverManyOtherSessionsRead")},
	},
	{
		name:   "an early read joins as one that comes later does",
		why:    "The watch shows whether a writer waits. But that writer came after the read, which now waits for it.",
		change: in("home.Queue.admissionOfRead").replace("_self.Early(_)", "false"),
		killers: []killer{
			exploring("reads of one Session, and two run out of time as they are let in"),
			inArea("kinds", "TestThoseRightBehindTheFirstReaderGetInWithIt"),
		},
	},
	{
		name:       "a read that gives up takes its place away from the next one",
		why:        "The next one can put a key of its own. But writers have come since, and where each read gives up in time none ever gets in.",
		change:     in("home.Queue.HandsDown").replace("_self.Early(_w)", "!_self.Early(_w)"),
		killers:    []killer{inArea("kinds", "TestAReaderThatGivesUpLeavesItsPlaceToTheNext")},
		unexplored: "it is right, and unfair",
	},
	{
		name: "one joins a key whose lease does not last",
		why:  "The lease is still trusted. But it gets no renewal in time, or is about to be replaced, and the hold that has just begun ends with it.",
		change: in("home.Queue.admissionOfRead").drop("case !_ && !_.Serves").
			drop("case !_ && !_.Lasts"),
		killers: []killer{exploring("two that read in one Session, and a writer there")},
	},
	{
		name: "nobody asks whether the lease of a key lasts",
		why:  "Its hold goes on, so a read may join it. But the lease gets no renewal in time, or is about to be replaced, and the hold that has just begun ends with it.",
		change: in("localLine.keyLocked").replace("_.Lease.ServesLocked()", "true").
			replace("_.LastsLocked()", "true"),
		killers: []killer{
			inArea("kinds", "TestNobodyJoinsAKeyWhoseLeaseDoesNotLast"), ofFamily(1000),
		},
	},
	{
		name:    "the first to unlock releases the key of all who read",
		why:     "The reader that has put the key removes it. But others of its Session still read by it.",
		change:  in("Hold.freeLocked").and("_self.place.Refs > 0", "_self.place.GivenUpLocked()"),
		killers: []killer{inArea("kinds", "TestAWriterWaitsForEveryReaderOfItsSession")},
	},
	{
		name: "the last but one to unlock releases the key of those who read",
		why:  "The place counts those that still read, and one is not many. But that one reads.",
		change: in("Hold.freeLocked").replace("_self.place.Refs > 0",
			"_self.place.Refs > 1 || _self.place.Ticket.State() != ticket.Held"),
		killers: []killer{ofFamily(1000), inArea("kinds", "TestAWriterWaitsForEveryReaderOfItsSession")},
	},
	{
		name:   "an Unlock whose context never ends waits for the lease",
		why:    "The caller has set no bound, so it has time. But it gets nothing for it: when the lease has expired the hold is not certain any more (rule 9).",
		change: in("sendContext").always("_ctx.Done() != nil"),
		killers: []killer{inArea("outages", "TestUnlockWithAContextThatNeverEndsIsBounded"),
			inArea("kinds", "TestACloseWithAContextThatNeverEndsIsBounded")},
	},
	{
		name:    "a Close that is not confirmed leaves the other permits",
		why:     "The caller gets the error all the same. But nobody can unlock the others any more, and their keys stay (rule 9).",
		change:  in("Lock.free").replace("failure = err", "return err"),
		killers: []killer{inArea("kinds", "TestACloseThatIsNotConfirmedGivesUpEachPermit")},
	},
	{
		name: "one joins while a writer of its Session waits",
		why:  "The watch shows etcd's line, and no writer is in it. But the local line has one.",
		change: in("home.Queue.Way").replace("_self.waiters.Len() > 0",
			"!w.Shares && _self.waiters.Len() > 0").
			in("home.Queue.Admit").after("_w := _self.First()",
			"if _w != nil && _self.owner.Shares && !_w.Shares { _w, _ = _self.waiters.Last() }"),
		killers: []killer{
			exploring("two that read in one Session, and a writer there"),
			inArea("kinds", "TestNobodyJoinsWhileAWriterWaits"), ofFamily(1000),
		},
	},

	// ---- lead

	{
		name: "a leader is released before it has returned",
		why:  "Its context has ended, so the leader will return soon, and the next one could begin. But until then two lead.",
		change: in("candidate.term").before("_ = during(_...)",
			"defer context.AfterFunc(ctx, func() { _ = _self.lock.Unlock(context.WithoutCancel(ctx), h) })()"),
		killers: []killer{inArea("holders", "TestALeaderIsReleasedOnlyAfterItHasReturned"),
			ofFamily(300)},
	},
	{
		name:    "a leader that fails at once does so again at once",
		why:     "If others wait, they get in first anyway. But if nobody waits, etcd gets two writes for each failure.",
		change:  in("nextPause").replace("min(2*_, mostPause)", "leastPause"),
		killers: []killer{inArea("holders", "TestTheRestOfALeader")},
	},
	{
		name:    "whatever has ended a term may end its Lead",
		why:     "The error is ErrStopLeading, whoever it comes from. But a panic has not decided anything, and the caller gets a text with a stack.",
		change:  in("candidate.term").replace("return _, it", "err"),
		killers: []killer{inArea("holders", "TestALeaderStopsLeading")},
	},
	{
		name:    "a term is long by the TTL that was asked for",
		why:     "The user has written that TTL down. But etcd may have granted a longer one.",
		change:  in("candidate.run").replace("_.TTL()", "_self.lock.Config().TTL"),
		killers: []killer{inArea("holders", "TestTheRestOfALeader")},
	},
	{
		name:    "Close ends the hold that its lock has begun, unlocked or not",
		why:     "The hold is of that lock. But another lock may nest in it, and hold on (rule 4).",
		change:  in("Lock.Unlock").replace("_h.depth == _h.nested", "_h.depth == 0"),
		killers: []killer{inArea("mutex", "TestCloseOfALockThatHasUnlockedLeavesWhatNestsAlone")},
	},
	{
		name:   "the cause of a context is wrapped as it is",
		why:    "It says why the call has ended. But it may say of another call that its function was not run, or that its hold was lost (rule 30).",
		change: in("attempt.Cause").replace("Foreign(context.Cause(_ctx))", "context.Cause(_ctx)"),
		killers: []killer{inArea("kinds", "TestNoErrorIsAboutAnotherCall"),
			inArea("kinds", "TestADoWhoseContextEndsAsItUnlocksHasRun")},
	},
	{
		name:    "an answer is wrapped as it is",
		why:     "It is etcd's. But an interceptor of the user may answer with an error of another call (rule 30).",
		change:  in("attempt.Do").replace("Foreign(_err)", "_err"),
		killers: []killer{inArea("kinds", "TestNoErrorIsAboutAnotherCall")},
	},
	{
		name: "errors.As finds an error of another call",
		why:  "No sentinel is found by it. But its type is, with the name and the token of another lock (rule 30).",
		change: in("foreignError.As").replace("!isOwn(_to.Interface()) && as(_e.err, _target, _to)",
			"_to.CanSet() && errors.As(_e.err, _target)"),
		killers: []killer{inArea("kinds", "TestNoErrorIsAboutAnotherCall")},
	},
	{
		name:    "a Locker's Lock has a bound",
		why:     "WithAcquireTimeout bounds each wait. But a sync.Locker cannot say that it does not hold: it panics because the lock is taken.",
		change:  in("call.bounded").never("_.Unbounded"),
		killers: []killer{inArea("mutex", "TestALockerWaitsWithoutBound")},
	},
	{
		name:    "a permit of the own Session is told as of any process",
		why:     "It is in etcd's line. But so the error sends its reader to look in other processes.",
		change:  in("Keys.HasLocked").never("_.Lease == int64(_.ID)"),
		killers: []killer{inArea("mutex", "TestALockedErrorSaysThatItsOwnSessionHolds")},
	},
	{
		name:    "renewals go on though the client is closed",
		why:     "A renewal that fails at once is sent again soon. But with a closed client all of them fail, and each is a line of the log.",
		change:  in("keeper.sendLocked").replace("_.pool.etcd.Closed()", "false"),
		killers: []killer{inArea("outages", "TestAClientThatIsClosedBeforeItsSessionIsOneWarning")},
	},
	{
		name:    "what follows from a closed client is logged, too",
		why:     "A loss is logged, and so is a lease that was not given back. But all of these are one slip, with one reason.",
		change:  in("Session.tell").never("_.clientClosed.Swap(true)"),
		killers: []killer{inArea("outages", "TestAClientThatIsClosedBeforeItsSessionIsOneWarning")},
	},
	{
		name: "all reads of an audit have the time of one",
		why:  "An audit has to end before the next one. But where etcd is far away it reads a part of many names, and a recall of another waits for an audit that meets it.",
		change: in("Account.Audit").replace("context.WithCancel(_k.ctx)",
			"context.WithTimeout(_k.ctx, _k.etcd.Timeout)"),
		killers: []killer{inArea("holders", "TestARecallOfOneOfManyNamesIsNoticedFarFromEtcd")},
	},
	{
		name: "the reads of an audit follow each other",
		why:  "So they cost etcd least at a time. But of many names that are far away they take longer than a renewal period.",
		change: in("queue.abreast").replace("max(manyPlaces, len(_all)/readsAbreast+1)",
			"len(_all)+1"),
		killers: []killer{inArea("holders", "TestARecallOfOneOfManyNamesIsNoticedFarFromEtcd")},
	},
	{
		name: "Lead nests",
		why:  "WithReentrancy is there for nesting. But a Lead that nests has no turn, and never waits for one.",
		change: in("candidate.run").replace("_self.lock.NestsIn(_ctx) != nil",
			"!_self.lock.Config().Reentrant && _self.lock.NestsIn(_ctx) != nil"),
		killers: []killer{inArea("holders", "TestLeadRefusesWhatCannotBe")},
	},
	{
		name:    "who follows a leader relies on its watch",
		why:     "A watch delivers everything, and a request each 1.5 s mostly shows nothing. But a watch may be silent.",
		change:  in("follow.Follower.recheck").never("!stands"),
		killers: []killer{inArea("holders", "TestWatchHolderOutlivesLostEvents")},
	},
	{
		name:    "who follows a leader watches from now",
		why:     "The follower has just read who leads. But it notices what happens before the watch is there 1.5 s late.",
		change:  in("follow.Snapshot.watched").drop("_ = append(_, clientv3.WithRev(_.Revision+1))"),
		killers: []killer{inArea("holders", "TestWatchHolderSeesWhatHappensBeforeItsWatch")},
	},
	{
		name:    "a restore of etcd is no change of the leader",
		why:     "The key is there with its revision. But the watch begins at a revision that is still to come again.",
		change:  in("follow.Follower.stands").drop("!_.Holds || it"),
		killers: []killer{inArea("holders", "TestWatchHolderWatchesAnewAfterARestore")},
	},
	{
		name: "who follows a leader asks once more at the end",
		why:  "The request is not even sent, as its context has ended. But clientv3 warns of it on stderr, each time.",
		change: in("follow.Follower.Run").replace("_.goesOn(_)", "asking != nil").
			replace("_.look(it)", "ctx").
			in("follow.Follower.wait").replace("_.Err() != nil", "false"),
		killers: []killer{onCluster("TestFollowingIsNoWarning")},
	},
	{
		name: "who follows a leader asks whether there is any newer key",
		why:  "While nobody leads, each newer key may be a leader's. But nested names in use are newer, too, and then all keys are read each time (rule 24).",
		change: in("follow.Follower.stands").replace(`!line.NoneBut("", _.Name, _read.Ranges[0])`,
			"_read.Ranges[0].Count > 0"),
		killers: []killer{inArea("holders", "TestWatchHolderOfAFreeNameReadsNoNestedNames")},
	},

	// ---- SetInfo

	{
		name: "SetInfo puts the value anew",
		why:  "The Session knows what it has put. But since then a recall has come into the value.",
		change: in("line.Entry.Informed").replace(`return _self.with("info", _info)`,
			"v := _self.Value(); v.Info = _info; value, err := json.Marshal(v); return string(value), err"),
		killers: []killer{inArea("holders", "TestSetInfoKeepsARecall"),
			core("line", "TestAnInfoIsPutIntoAValue"), ofFamily(300)},
		unexplored: "A ticket changes no value.",
	},
	{
		name:   "SetInfo takes an answer for a success",
		why:    "etcd has answered, so it is done. But the key was put over or deleted since the read.",
		change: in("queue.SetInfo").drop("_.Succeeded"),
		killers: []killer{inArea("holders", "TestSetInfoKeepsARecall"),
			inArea("holders", "TestSetInfoOfALostHold")},
	},
	{
		name: "SetInfo does not judge what it reads",
		why:  "The watch tells of a loss. But SetInfo then asks for ever for a key that is gone.",
		change: in("queue.change.next").replace("_seen := _p.observedLocked(_...)",
			"_, _, _seen := known, _p, ticket.Same; if _self.read[i].Rev == 0 { return nil, nil }"),
		killers: []killer{inArea("holders", "TestSetInfoOfALostHold")},
	},
	{
		name:    "SetInfo waits for etcd though its hold has ended",
		why:     "The caller's context bounds the wait. But it may never end, and the lease has.",
		change:  in("setInfo").replace("WithHold(_bounded, _)", "_bounded"),
		killers: []killer{inArea("holders", "TestSetInfoEndsWithItsContextOrItsHold")},
	},
	{
		name:   "SetInfo puts what is there",
		why:    "A put does no harm. But each is a revision, and an event for all that watch.",
		change: in("queue.change.next").replace("if !puts", "_ = puts"),
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone"),
			inArea("holders", "TestSetInfoWhoseAnswerIsLostIsSetOnce")},
	},
	{
		name: "a key is handed on though its info was changed",
		why:  "The options of both are the same. But the key tells the info of the hold before.",
		change: in("place.tellsOf").after("_, _changed := _.ChangedLocked()", "_ = _changed").
			drop("!_"),
		killers: []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
	},
	{
		name: "a key whose info was changed is known once etcd has answered",
		why:  "Before the answer nothing is known to be changed. But the answer may be lost, or the request come late.",
		change: in("queue.change.next").drop("for _, _ := range _.places #3 of 3").
			in("queue.change.done").replace("_p.changed.Mod < _at",
			"_p.changed == nil || _p.changed.Mod < _at"),
		killers: []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
	},
	{
		name:       "a key lingers though its info was changed",
		why:        "No contender waits for it. But no hold of the Session takes it, and it tells what is over.",
		change:     in("home.Queue.Fate").replace("!_.Suits", "_self.waiters.Len() > 0 && !k.Suits"),
		killers:    []killer{inArea("holders", "TestAKeyThatMayHaveAnotherInfoIsNotSharedOn")},
		unexplored: "All values are alike there.",
	},
	{
		name:    "a key that outlasts its hold tells the info of the options",
		why:     "The hold is over, and its SetInfo with it. But the key stays, and a follower finds another address.",
		change:  in("place.kept").drop("if _, _ := _.ChangedLocked(); _"),
		killers: []killer{inArea("holders", "TestAKeyThatOutlastsItsHoldKeepsTheInfo")},
	},
	{
		name:    "its own process tells the info of the options",
		why:     "They say what the hold is. But SetInfo has changed it, and etcd says so.",
		change:  in("place.contender").drop("if _, _ := _.ChangedLocked(); _"),
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone")},
	},
	{
		name:    "a changed key is rechecked as it was put",
		why:     "Its mod revision is its create revision. But another info has changed it, and then each recheck reads the line.",
		change:  in("queue.Place.knownLocked").drop("if _.changed != nil"),
		killers: []killer{inArea("holders", "TestReadersOfASessionShareTheInfo")},
	},
	{
		name:    "who follows a leader does not compare its info",
		why:     "It is the same holder. But its address is another.",
		change:  in("follow.tellsSame").drop("_.Value() == _.Value()"),
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name:    "who follows a leader rechecks whether it holds alone",
		why:     "The holder has not changed. But the event of its other info was lost.",
		change:  in("follow.Snapshot.unchanged").drop("for _, _ := range _"),
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name:    "who follows a leader reads again after a recall",
		why:     "The key was put over, so its info may be another. But the event says that it is not.",
		change:  in("follow.Snapshot.differs").drop("if _"),
		killers: []killer{inArea("holders", "TestWatchHolderSeesAChangedInfo")},
	},
	{
		name:    "a name of several is told alone",
		why:     "The first name stands for all. But who looks at another sees what was.",
		change:  in("Handle.SetInfo").replace("_self.parts()", "_self.Hold.self[:]"),
		killers: []killer{inArea("holders", "TestSetInfoChangesTheInfoAlone")},
	},

	// ---- recall

	{
		name:       "a put over a key does not compare the value",
		why:        "The mod revision says that the key is as it was read. But after a set-back another value may be put at that very revision, and a request of before then brings back the earlier one.",
		change:     in("ticket.Edit").drop("valued(_.Key, _.Stored())"),
		killers:    []killer{inArea("holders", "TestALateCopyOfARecallDoesNothing")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name:       "a put over a key does not compare the mod revision",
		why:        "The create revision says that it is the very hold, and the value that nothing has changed. But the value may be as before again, and a late copy then takes back the info that came after it.",
		change:     in("ticket.Edit").drop("modified(_.Key, _.Mod)"),
		killers:    []killer{inArea("holders", "TestALateCopyOfASetInfoDoesNothing")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name:    "a recall compares the mod revision alone",
		why:     "The mod revision of a key grows with its create revision, so it seems to say all. But it is compared with the key that is there by now.",
		change:  in("ask.Recall").replace("_e.Rev != _", "_e.Rev == 0"),
		killers: []killer{inArea("holders", "TestALateCopyOfARecallDoesNothing")},
	},
	{
		name:   "a key is put over with a lease",
		why:    "It has nothing to do with the lease, which seems to be the key's. But a caller that has only key and token takes the key off it, and the hold is lost (rule 5).",
		change: in("ticket.Edit").drop("_.IgnoreLease = true"),
		killers: []killer{inArea("holders", "TestARecallKeepsPlaceTokenAndLease"),
			inArea("holders", "TestSetInfoChangesTheInfoAlone")},
		unexplored: "The exploration puts nothing over a key.",
	},
	{
		name:    "a recall asks one that does not listen",
		why:     "It does no harm to ask. But the one who asks waits for an answer that does not come.",
		change:  in("ask.Recall").drop("!_.Value().Recallable"),
		killers: []killer{inArea("holders", "TestWhoDoesNotListenIsNotRecalled")},
	},
	{
		name: "the grace of a request is compared as it was given",
		why:  "It is what the holder is asked for. But the stored one is rounded up, so it seems to be longer, and each wait writes its request again.",
		change: in("RecallRequest.line").replace("_grace < math.MaxInt64-time.Millisecond",
			"_grace > math.MaxInt64-time.Millisecond"),
		killers: []killer{inArea("holders", "TestManyWaitsAskAHolderOnce"), ofFamily(100)},
	},

	// ---- waits that ask

	{
		name:    "a wait that may not read who holds asks no more",
		why:     "Etcd refuses the wait, too. But behind permits of its own Session it asks etcd for nothing.",
		change:  in("ask.Asking.run").after("_.wait.failed(_)", "<-a.ctx.Done()"),
		killers: []killer{inArea("holders", "TestAWaitThatMayNotReadAsksOnceItMay")},
	},
	{
		name:   "a wait asks the contenders before it, and not those that hold",
		why:    "All of them are in its way. But one that waits cannot give way, and a hold that begins with a request has less than its grace.",
		change: in("ask.Asking.ask").replace("_seen.Line.Holding()", "_seen.Line.Before(q.Own)"),
		killers: []killer{inArea("holders", "TestAWaiterIsNotAskedBeforeItHolds"),
			inArea("holders", "TestAReaderAsksTheHolderAndNoWaiter"), ofFamily(300)},
	},
	{
		name:    "a wait that is about to get in asks the others that hold",
		why:     "They do hold before it. But it gets in beside them, and is in need of nothing.",
		change:  in("ask.Asking.ask").replace("it && slices.ContainsFunc(_, _q.is)", "_q.Own.Rev < 0"),
		killers: []killer{inArea("holders", "TestAReadThatGetsInBesideAnotherAsksNobody")},
	},
	{
		name:    "a read that is about to join asks",
		why:     "It waits, and another read holds. But it may join that hold, and has it ended.",
		change:  in("localLine.InWayLocked").never("_ == nil || _.place == nil || it"),
		killers: []killer{inArea("holders", "TestAReadThatJoinsAsksNobody")},
	},
	{
		name: "a wait asks until its call returns",
		why:  "Then it is certainly over. But its hold has begun before, and so it is asked for its own wait.",
		change: in("place.newHoldLocked").replace("_c.endsWaitLocked()",
			"asks := _c.asks; _c.asks = nil; _c.endsWaitLocked(); _c.asks = asks"),
		killers: []killer{inArea("holders", "TestEachHolderOfALineIsAsked")},
	},
	{
		name:    "only a wait in the local line asks",
		why:     "That is where waits are known. But the first one there has the turn at once, and waits in etcd's line.",
		change:  in("call.entered").drop("for _, _ := range _.claims #2 of 2"),
		killers: []killer{inArea("holders", "TestAWaitAsksTheHolder")},
	},
	{
		name:    "a request to give way outlives the wait",
		why:     "The last wait is over, and the next one needs the same. But nobody is there to give way to, and Close waits for what nothing ends.",
		change:  in("ask.Asking.EndLocked").drop("_.s.Mu.After(_.stop)"),
		killers: []killer{inArea("holders", "TestAWaitThatIsOverAsksNobody")},
	},
	{
		name:    "the follower of the holders is not told of the local line",
		why:     "It watches etcd's line, where all contenders are. But a hold of its own Session begins without an event that it can tell from others, and is not asked.",
		change:  in("localLine.MarkLocked").and("_self.asking != nil", "_self.marked"),
		killers: []killer{inArea("holders", "TestAWaitAsksSeveralNamesOfItsSessionOnceTheyAreHeld")},
	},
	{
		name: "the request of any wait is sent",
		why:  "Each of them asks for the lock. But the one that can wait longest has the others wait, too.",
		change: in("ask.waits.Less").replace("_self[_i].request.Grace < _self[_j].request.Grace",
			"_self[_i].request.Grace > _self[_j].request.Grace"),
		killers: []killer{inArea("holders", "TestAShorterGraceCountsWhileItsWaitLasts")},
	},
	{
		name:    "a wait with a shorter grace is asked for with the next holder",
		why:     "The holder of now was asked. But it may have hours yet.",
		change:  in("ask.quest.goesOn").drop("_.wait.request.Grace >= _.wait.request.Grace"),
		killers: []killer{inArea("holders", "TestAWaitWithAShorterGraceAsksAgain")},
	},
	{
		name:    "the shortest grace that was asked for counts for later holders",
		why:     "It is what the follower began with. But the wait with that grace may be over.",
		change:  in("ask.Asking.ask").replace("_.recall(_, it)", "q"),
		killers: []killer{inArea("holders", "TestAShorterGraceCountsWhileItsWaitLasts")},
	},
	{
		name:    "a hold of the own Session is recalled in etcd",
		why:     "It listens as any other. But it is known here, and a request in its value is a write for nothing.",
		change:  in("ask.Asking.ask").never("case it #2 of 2"),
		killers: []killer{inArea("holders", "TestAPermitAsksAllThatHold")},
	},
	{
		name:    "a request to give way is sent until it is answered",
		why:     "The wait is in need of it. But a thousand waits ask an etcd that has enough to do.",
		change:  in("ask.Asking.commit").always("_ > 0"),
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name:    "a request that has failed is not sent again",
		why:     "It was sent three times. But etcd may be back, as the next recheck shows, and the holder may hold for hours.",
		change:  in("ask.Asking.recall").replace("1", "0"),
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name:    "a request that was refused is sent again",
		why:     "An operator may give the right back. But each recheck is refused and logged until then.",
		change:  in("ask.Asking.recall").drop("if attempt.Refused(_)"),
		killers: []killer{inArea("holders", "TestARequestThatFailsHarmsNoWait")},
	},
	{
		name:    "a wait with others before it asks at once",
		why:     "The holder hears sooner of it. But of a thousand that wait each sends a transaction then, and one of these does something.",
		change:  in("ask.quest.rest").replace("max(_...)", "0"),
		killers: []killer{inArea("holders", "TestAHandOverTellsEachAskerOnce")},
	},
	{
		name:    "what happens while several are asked is over when their watch begins",
		why:     "The one that was asked stood in line then. But another may have gone before, and a third have come to hold for it.",
		change:  in("ask.Asking.ask").replace("_.Kind() == line.Exclusive", "len(holding) == 1"),
		killers: []killer{inArea("holders", "TestAReaderThatComesToHoldWhileAnotherIsAskedIsAsked")},
	},
	{
		name:    "who follows one holder watches all below the name",
		why:     "So it needs no other watch for the next one. But each that gives up in a line of n is told to n (rule 24).",
		change:  in("follow.Snapshot.watched").drop("_.exclusive()"),
		killers: []killer{inArea("holders", "TestALineThatGivesUpTellsNoAsker")},
	},
	{
		name:    "who follows several holders watches the first",
		why:     "When it goes the line is read. But another one may come to hold before, as one that waits gives up.",
		change:  in("follow.Snapshot.watched").drop("!_.all || _.exclusive()"),
		killers: []killer{inArea("holders", "TestAReaderThatComesToHoldAsAWriterGivesUpIsAsked")},
	},
	{
		name:   "who follows several holders reads the first few",
		why:    "They are the first to hold. But more may hold, and are in the way, too.",
		change: in("follow.Snapshot.tells").drop("_.bounded()").replace("_n >= mostOldest", "_n > 0"),
		killers: []killer{inArea("holders", "TestAWriterAsksAllReaders"),
			core("follow", "TestNoneThatComesToHoldIsMissed")},
	},
	{
		name: "who follows several holders reads again when any has gone",
		why:  "Then it knows who is left. But it knew that: of a thousand readers that go one by one it reads half a million.",
		change: in("follow.Snapshot.without").replace(
			"_hold != _held || _hold == 0 || _hold == len(_.Line) && !_.whole",
			"_hold >= 0 || _held >= 0"),
		killers: []killer{inArea("holders", "TestReadersThatGoCostAnAskerNothing")},
	},
	{
		name:    "who follows several holders goes by those that it has read",
		why:     "It has read all that hold. But when the one behind them has gone, one that it has not read may hold.",
		change:  in("follow.Snapshot.without").drop("_ == len(_.Line) && !_.whole"),
		killers: []killer{core("follow", "TestNoneThatComesToHoldIsMissed")},
	},
	{
		name:    "who follows several holders rechecks the first",
		why:     "The first one that goes is mostly the first in line. But the event that another one has gone may be lost.",
		change:  in("follow.Snapshot.decisive").replace("len(_.Line.Holding())+1", "1"),
		killers: []killer{core("follow", "TestARecheckComparesAllThatDecide")},
	},
	{
		name:   "a recalled hold has no grace",
		why:    "The holder is asked to end, so it ends. But its work had a moment to come to a good point.",
		change: in("recallState.noticeLocked").replace("_now.Add(min(_.Grace, _))", "_now"),
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"),
			inArea("holders", "TestARecalledHoldThatUnlocksInTimeIsWhole"), ofFamily(300)},
	},
	{
		name: "the grace is what was asked for",
		why:  "The one who recalls knows how long it may wait. But the holder has said how long it may take at most.",
		change: in("recallState.noticeLocked").replace("_now.Add(min(_r.Grace, _most))",
			"_now.Add(min(_r.Grace, max(_most, _r.Grace)))"),
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"), ofFamily(300)},
	},
	{
		name: "the key of a recalled hold goes with its grace",
		why:  "The context has ended, so nobody should work any more. But a holder that has not looked yet still works, and the next one works beside it.",
		change: in("Hold.checkLocked").replace("_o.becomesLocked(holdRecalled, _cause)",
			"if !_o.endLocked(_cause) && _o.place.Refs == 0 { _o.place.AbandonLocked(queue.Removal{}) }"),
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"),
			ofFamily(300)},
	},
	{
		name:   "a recalled hold has no longest time",
		why:    "Its contexts have ended, so there is nothing to end. But its key stays until its Unlock, and WithMaxHold is for an Unlock that never comes.",
		change: in("endOf").and("_.timeOver", "st == holdWhole"),
		killers: []killer{core("hold", "TestWhatEndsAHoldIsAsInTheTable"),
			inArea("holders", "TestMaxHoldGoesOnAfterARecall")},
	},
	{
		name: "Unlock of a recalled hold does not ask for the key",
		why:  "The hold has ended, and nobody else has taken the key. But that was so when the grace was over, and may have changed since (rule 6).",
		change: in("Hold.endLocked").replace("_.state >= it", "holdRecalled").
			in("Hold.freeLocked").replace("_self.state == holdGone", "_self.state != holdEnded"),
		killers: []killer{inArea("holders", "TestARecalledHoldMayEndOtherwise"),
			inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock"), ofFamily(300)},
	},
	{
		name:    "a recalled key is handed off",
		why:     "The recalled hold has ended, and the next one of its Session begins. But it begins at the key that somebody wants back.",
		change:  in("queue.Place.LastsLocked").drop("_.Recall == nil"),
		killers: []killer{inArea("holders", "TestARecalledKeyIsNotHandedOff")},
	},
	{
		name: "a young hold is not watched, whoever is behind it",
		why:  "A second is soon enough to hear of a recall. But in a line where each holder is recalled each hand-over takes that second.",
		change: in("queue.Place.HoldLocked").drop("!_.asPut").
			replace("_self.Ahead.Keys > 1", "_self.Ahead.Keys < 0"),
		killers: []killer{inArea("holders", "TestAYoungHoldWithContendersBehindItHearsOfARecallAtOnce")},
	},
	{
		name:   "what the put has read counts as keys behind a hold",
		why:    "There are other keys, so a contender may recall it. But all of them were there before, and beside nested names a short hold costs twice as much.",
		change: in("queue.Place.HoldLocked").drop("!_.asPut"),
		killers: []killer{inArea("holders",
			"TestAShortHoldThatListensCostsNothingWithoutContendersBehindIt")},
	},
	{
		name:    "a key that lingers does not give way to a recall",
		why:     "Nobody holds, so there is nobody to ask. But there is nobody to unlock either.",
		change:  in("queue.Place.RecallLocked").drop("_.giveWayLocked()"),
		killers: []killer{inArea("holders", "TestAKeyThatLingersGivesWayToARecall")},
	},
	{
		name:    "a hold that begins does not mark its line",
		why:     "The holder has no reason to look behind it. But those who read and wait there may join now, and no other event may ever come.",
		change:  in("call.beginLocked").drop("_.local.MarkLocked()"),
		killers: []killer{core("hold", "TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name:    "a waiter that leaves does not mark its line",
		why:     "It takes nothing that somebody else could want. But a writer that has left held up those behind it.",
		change:  in("claim.leaveLocked").drop("_.MarkLocked()"),
		killers: []killer{core("hold", "TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name:    "a view that ends does not mark its line",
		why:     "It has nothing to tell any more. But a reader that waits for its word waits on, and nobody begins another view.",
		change:  in("queue.view.endLocked").drop("_.line.local.MarkLocked()"),
		killers: []killer{core("hold", "TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name: "a view that reads too long a line judges it first",
		why:  "That is how a view of any other line ends. But what it judges marks the line, whose admission begins the next view, without end.",
		change: in("queue.view.readLocked").drop("_ := _.endIfTooLongLocked()").drop("if tooLong").
			replace("_self.line.view == _self", "!_self.endIfTooLongLocked()"),
		killers: []killer{inArea("kinds", "TestALineThatIsTooLongForAViewIsSoughtOnce")},
	},
	{
		name: "a view in which the line grows too long judges it first",
		why:  "That is how a view of any other line ends. But what it judges marks the line, whose admission begins the next view.",
		change: in("queue.view.apply").before("_ := _self.endIfTooLongLocked()", "_self.judgeLocked()").
			drop("_.judgeLocked() #2 of 2"),
		killers: []killer{inArea("kinds", "TestALineThatIsTooLongForAViewIsSoughtOnce")},
	},
	{
		name:    "an admission that lets one in does not mark its line",
		why:     "It has looked at the line just now. But the next one may join, too.",
		change:  in("localLine.letInLocked").drop("_.MarkLocked() #2 of 2"),
		killers: []killer{core("hold", "TestAWaiterIsLetInByTheUnlockOfWhateverChanges")},
	},
	{
		name:   "one joins a recalled cohort",
		why:    "The readers still hold. But if one more came in each grace, they would hold for ever.",
		change: in("home.Queue.admissionOfRead").drop("_.Recalled"),
		killers: []killer{inArea("holders", "TestNobodyJoinsARecalledCohort"),
			inArea("holders", "TestNobodyJoinsARecalledWaiter")},
		unexplored: "There are no recalls.",
	},
	{
		name: "a read takes over a place that was put before it came",
		why:  "The claim that was handed it down has given up as well, and the line goes on. But the writers that came after the put did not wait for this read.",
		change: in("home.Queue.End").replace("_.Shares && !_self.Early(_) && _.standing != Next",
			"false"),
		killers: []killer{
			exploring("three that read in one Session, who leave, behind a writer"),
			inArea("kinds", "TestAReadTakesOverNoPlaceThatWasPutBeforeItCame"),
			inArea("kinds", "TestAReadTakesOverNoPlaceThatAReleaseHasPut"),
		},
	},
	{
		name:       "a recalled place is handed down",
		why:        "The waiter there has given up, and the next one came before the put. But it takes over a place that somebody wants back.",
		change:     in("home.Queue.HandsDown").drop("!_.Recalled"),
		killers:    []killer{inArea("holders", "TestNobodyJoinsARecalledWaiter")},
		unexplored: "There are no recalls.",
	},
	{
		name:    "the last recall counts",
		why:     "It is the newest word of those who may recall. But it gives back time on which somebody else has counted.",
		change:  in("recallState.noticeLocked").drop("_.end != nil && !_.Before(_.ends)"),
		killers: []killer{inArea("holders", "TestTheShorterGraceStays")},
	},
	{
		name: "a recall before the watch is not noticed",
		why:  "The watch shows what is done to the key. But a hold is watched only from its second second on.",
		change: in("queue.watchedSince").replace("Entry: it",
			"line.Entry{Key: e.Key, Rev: e.Rev, Lease: e.Lease}"),
		killers: []killer{inArea("holders", "TestARecallOfAYoungHoldIsNoticed")},
	},
	{
		name:    "an event of a recall is taken for nothing",
		why:     "The key keeps its lease and its place, so nothing seems to have happened to it. But its value has the request.",
		change:  in("queue.keyWatch.apply").after("if _.watch != _", "event.Kv.Value = nil"),
		killers: []killer{inArea("holders", "TestTheKeyOfARecalledHoldGoesWithItsUnlock")},
	},
	{
		name: "a view does not tell of a recall",
		why:  "The view has the create revisions of those in line. But a recall leaves these alone.",
		change: in("line.Watched.Apply").before("if _e.Mod <= _.at",
			"_e = Entry{Key: _e.Key, Rev: _e.Rev, Lease: _e.Lease, Mod: _e.Mod}").
			in("line.Watched.Read").before("if _e.StandsIn(_)",
			"_e = Entry{Key: _e.Key, Rev: _e.Rev, Lease: _e.Lease, Mod: _e.Mod}").
			in("queue.view.readLocked").before("if _e.StandsIn(_)",
			"_e = line.Entry{Key: _e.Key, Rev: _e.Rev, Lease: _e.Lease, Mod: _e.Mod}").
			after("_own = keys[_]",
				"_own = line.Entry{Key: _own.Key, Rev: _own.Rev, Lease: _own.Lease, Mod: _own.Mod}"),
		killers: []killer{inArea("holders", "TestAWaiterMayBeRecalled"),
			inArea("holders", "TestAKeyThatLingersGivesWayToARecall")},
	},
	{
		name: "a recheck does not show a recall",
		why:  "The recheck compares whether those before it stand in line, and whether its own key does. But the event of the recall may have been lost.",
		change: in("queue.view.compareLine").replace("_p.knownLocked()",
			"ticket.Contend(_p.Ticket.Entry())"),
		killers: []killer{inArea("holders", "TestAKeyThatLingersGivesWayToARecall"),
			inArea("holders", "TestAWaiterMayBeRecalled")},
	},
	{
		name: "what a waiter reads last does not show a recall",
		why:  "The waiter reads who is before it, and whether its own key is there. But its key may have a request.",
		change: in("queue.Place.observeLook").before("_ = _.observedLocked(_own).IsLoss()",
			"_own.Entry = line.Entry{Key: _own.Key, Rev: _own.Rev, Lease: _own.Lease}"),
		killers: []killer{inArea("holders", "TestAWaiterMayBeRecalled")},
	},
	{
		name:   "audits do not show a recall",
		why:    "Audits compare the names of keys, and a recall changes none. But a watch may be silent, and above a hundred names there is none.",
		change: in("queue.Account.auditsBy").replace("!some", "some || !some"),
		killers: []killer{inArea("holders", "TestARecallOfOneOfManyNamesIsNoticed"),
			inArea("holders", "TestARecallIsNoticedThoughAllWatchesAreSilent")},
	},
	{
		name:    "audits for a recall come beside the others",
		why:     "They ask for something else. But an idle hold then costs more than one that does not listen (rule 24).",
		change:  in("queue.Account.auditsBy").replace("return suspicious, twice, places, it", "true"),
		killers: []killer{inArea("holders", "TestAHoldThatMayBeRecalledCostsNothingMore")},
	},

	// ---- a least time

	{
		name:    "a lease whose answer was lost is asked for again",
		why:     "Unlock needs a lease to which it moves the key. But where etcd draws the ID each request makes another one, which stays for as long as the key would (rule 22).",
		change:  in("etcd.Loan.grantOnce").replace("attempt.NotApplied(_)", "true"),
		killers: []killer{inArea("holders", "TestAnUnlockThatHasNoAnswerLeavesOneLeaseAtMost")},
	},
	{
		name: "a least time does not keep a hold from the Session's own goroutines",
		why:  "The name stays taken by its process, as others see it. But the job runs twice, in one process.",
		change: in("Hold.freeLocked").after("until = _",
			"if _self.place.local.keepLocked(_self) { _self.place.Account.ReleasedLocked(); return nil, nil }"),
		killers: []killer{inArea("holders", "TestALeastTimeIsForTheGoroutinesOfTheSessionToo")},
	},
	{
		name: "the lease of a key that stays is in whole seconds, rounded down",
		why:  "It lasts for as long as etcd's clock can say. But if the process is gone, the next contender gets in early.",
		change: in("etcd.secondsUntil").replace("return it",
			"max(time.Second, time.Until(until).Truncate(time.Second))"),
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime")},
	},
	{
		name:   "a key that stays is left to its lease",
		why:    "It expires by itself. But etcd's leases are longer than what is left, and count anew after an election.",
		change: in("release.overLocked").replace("_y.beginLocked(stayKept)", "_y.state = stayKept"),
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime"),
			inArea("holders", "TestOnlyAShortHoldPaysForItsLeastTime")},
	},
	{
		name: "a key whose move is not confirmed goes at once",
		why:  "Unlock has said that it is not certain. But the job has run, and runs again before its least time is over.",
		change: in("release.giveUpLocked").replace(
			"if _ := _self.stay; _ != nil && time.Now().Before(_.until)",
			"{ for _, o := range _self.h.all() { o.place.AbandonLocked(queue.Removal{Unsure: true}) } }"),
		killers: []killer{inArea("holders", "TestALeastTimeUnderFaults")},
	},
	{
		name:   "a key that is gone while it moves has gone by the release",
		why:    "A copy was carried out, perhaps, and nothing else is known. But that copy leaves the key there: somebody has taken it, and the hold may be lost (rule 6).",
		change: in("ticket.Release.evidence").never("_.moved != 0 && !_.Over"),
		killers: []killer{core("ticket", "TestWhatAReleaseSays"), exploring("a key that stays"),
			inArea("holders", "TestAKeyThatIsGoneWhileItMovesIsNotConfirmed")},
	},
	{
		name:   "a key that was put over while it moves was lost",
		why:    "It is there, so no copy has deleted it. But a copy may have moved it before: then the hold was whole.",
		change: in("ticket.Release.shows").never("_.moved != 0"),
		killers: []killer{core("ticket", "TestWhatAReleaseSays"), exploring("a key that stays"),
			inArea("holders", "TestAKeyThatIsGoneWhileItMovesIsNotConfirmed")},
	},
	{
		name:   "a key whose time was over while it moved is not confirmed",
		why:    "It is gone, and the move may have been lost. But a move that was carried out leads to that, too, and nothing says that it was not.",
		change: in("ticket.Release.evidence").drop("!_.Over"),
		killers: []killer{core("ticket", "TestWhatAReleaseSays"),
			inArea("holders", "TestAKeyWhoseTimeIsOverWhileItMovesHasGoneByItself")},
		unexplored: "To say that etcd has not confirmed a release is never untrue.",
	},
	{
		name:   "whether the time of a key is over counts by the answer",
		why:    "The answer is what tells that the key is gone. But it tells what was so when etcd read it, and then the key was to be there.",
		change: in("release.nowLocked").replace("_.Sent", "time.Now()"),
		killers: []killer{
			inArea("holders", "TestAKeyThatWasGoneBeforeItsTimeWasOverIsNotConfirmed")},
	},
	{
		name:    "etcd draws the IDs of all leases",
		why:     "So clientv3 has it. But where the answer is lost nobody knows the lease, and each request makes another, for as long as the key was to stay (rule 9).",
		change:  in("etcd.granterOf").replace("clientv3.RetryLeaseClient(_)", "granter(nil)"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "a lease that exists is somebody's",
		why:  "etcd refuses to grant it. But nobody else has drawn that ID: an earlier request was carried out.",
		change: in("etcd.Loan.Grant").replace("attempt.Is(_err, rpctypes.ErrLeaseExist)",
			"false && attempt.Is(_err, rpctypes.ErrLeaseExist)"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name:    "a lease without an answer was not granted",
		why:     "Nothing is on it. But it stands for as long as the key was to stay (rule 9).",
		change:  in("etcd.Loan.Grant").drop("_.granted || it"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name:    "the lease of a key that does not stay expires by itself",
		why:     "The Unlock is over, and nothing is on the lease. But that may take a day (rule 9).",
		change:  in("release.overLocked").drop("_y.giveBackLocked()"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name:    "a lease that was given back is gone for good",
		why:     "etcd has said so. But a request for it that had no answer may still be on its way (rule 9).",
		change:  in("stay.giveBack").replace("_.lease.MayComeLate()", "false"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name: "a hold that Close ends is told to be over though its release tells it",
		why:  "Its key goes with the lease of a Session that is closed. But a Close of its Mutex may have begun before, and releases it.",
		change: in("Hold.checkLocked").
			replace("whole := _.closeLocked()", "_self.closeLocked(); whole := false").
			in("Hold.closeLocked").after("whole = _",
			"if whole && h.m.s.leases.ClosedLocked() { for _, o := range h.all() { o.reportReleased() } }"),
		killers: []killer{core("hold", "TestAHoldThatEndsWithItsMutexAndItsSessionIsToldToEndOnce")},
	},
	{
		name:    "Close waits for the last of the keys that are being removed",
		why:     "The keys of other permits may still be there, and its nil says that nothing is left.",
		change:  in("Lock.free").replace("append(left, o.place)", "[]*place{o.place}"),
		killers: []killer{inArea("kinds", "TestACloseTellsWhetherTheKeyOfEachPermitIsGone")},
	},
	{
		name:    "Close waits for no key that has lingered before",
		why:     "It is being removed, and its Unlock has said nil long ago: nobody else tells that it is there.",
		change:  in("Lock.giveLocked").replace("_.Ticket.State() != ticket.Leaving", "true"),
		killers: []killer{inArea("mutex", "TestCloseTellsWhetherAKeyThatLingeredIsGone")},
	},
	{
		name:    "a hold that is whole at a look is whole as it ends",
		why:     "Both are in one critical section. But its time may be over in between: then it is lost, and no release of it is under way, for which Close would wait.",
		change:  in("Hold.endLocked").replace("_.state == holdEnded", "true"),
		killers: []killer{core("hold", "TestAHoldWhoseTimeIsOverAsItEndsIsLost")},
	},
	{
		name:    "Close leaves the lease of a key that may stay",
		why:     "Its time is not over, and the key may be there. But Close removes the key, and the lease is left (rule 22).",
		change:  in("stay.closeLocked").drop("stayUnsure"),
		killers: []killer{inSim("TestALeaseOfAKeyThatDoesNotStayIsGivenBack")},
	},
	{
		name:    "Close takes the keys that stay along",
		why:     "It releases all keys of its Session. But the Unlock of this one has said that it stays, and the job runs twice.",
		change:  in("stay.closeLocked").replace("delete(_...)", "_self.giveBackLocked()"),
		killers: []killer{inArea("holders", "TestANameStaysTakenForItsLeastTime")},
	},
	{
		name:    "Close is certain of the Session's own leases alone",
		why:     "No key is left with these. But a lease is, for a day perhaps, and nil says that nothing is (rule 22).",
		change:  in("Session.awaitClosed").replace("_.leftoverErr", "nil"),
		killers: []killer{inSim("TestACloseSaysThatALeaseIsLeft")},
	},
	{
		name:    "the timers of keys that stay run on after Close",
		why:     "They find the Session closed, and do nothing. But they keep it in memory for the rest of the time (rule 22).",
		change:  in("stay.closeLocked").drop("_.timer.Stop()"),
		killers: []killer{core("hold", "TestCloseStopsTheTimersOfAllKeysThatStay")},
	},
	{
		name:    "a grant without an answer is a copy of the release",
		why:     "A request of the Unlock may have been carried out. But it was not the one that deletes: the key that is gone then was lost.",
		change:  in("etcd.Unsent").replace("NotApplied", "Unknown"),
		killers: []killer{inArea("holders", "TestALeastTimeUnderFaults")},
	},
	{
		name:       "a release is done if the next key is there",
		why:        "Only its transaction puts that key. But a late copy of an earlier put may have put it: Unlock says nil, and its own key stays until an audit (rule 6).",
		change:     in("ticket.Release.shows").drop("!there"),
		killers:    []killer{core("ticket", "TestWhatAReleaseSays")},
		unexplored: "In the exploration a client knows of each copy that may come late, and draws another name.",
	},
	{
		name: "a view lets a waiter in whose key it does not show",
		why:  "The contender ahead is gone for certain. But so may be the waiter's own key, before its put was answered, and who comes next gets in, too (rule 12).",
		change: in("view.judgeLocked").drop("shown, at := _").drop("seen := _").
			drop("if seen != ticket.Same"),
		killers: []killer{inArea("queue", "TestAKeyThatGoesBeforeItsPutIsAnsweredLetsNobodyIn")},
	},
	{
		name:   "a key that has moved counts as put over",
		why:    "Another lease has it. But it is the one to which a first copy has moved it: the hold was whole.",
		change: in("ticket.Release.shows").replace("_.hasMoved(_)", "false"),
		killers: []killer{core("ticket", "TestWhatAReleaseSays"),
			inArea("holders", "TestALeastTimeUnderFaults")},
		unexplored: "To say that etcd has not confirmed a release is never untrue.",
	},
	{
		name:       "a key that has moved, and was then to be deleted, is gone",
		why:        "The last transaction deletes it. But an earlier one has moved it, late, and nobody ends its stay.",
		change:     in("ticket.Release.conclude").drop("if _.hasMoved(_)"),
		killers:    []killer{core("ticket", "TestWhatAReleaseSays")},
		unexplored: "In the exploration the lease of a key that stays is granted at once.",
	},
	{
		name: "a move takes the key from any lease",
		why:  "The create revision tells whose key it is. But an earlier copy may have moved it, and what has happened to it since is undone.",
		change: in("ticket.Release.Txn").after("_txn.Then = []*pb.RequestOp{_}",
			"if _self.moves != 0 { _txn.If = _txn.If[:1] }"),
		killers: []killer{core("ticket", "TestALateCopyOfAMoveDoesNothing"),
			exploring("a key that stays")},
	},
	{
		name:   "the name of a key that has moved is used again",
		why:    "The ticket is over, as after a deletion. But the key is still there, and whoever puts it finds a stranger's.",
		change: in("ticket.Release.remove").drop("if _.moves != 0"),
		killers: []killer{core("ticket", "TestALateCopyOfAMoveDoesNothing"),
			exploring("a key that stays")},
	},
	{
		name:   "a key whose hold is over by its own word is no contender",
		why:    "Nobody works under it. But it is there to keep the name taken, and one that an earlier version has detached waits for the process that goes on with the hold.",
		change: in("line.Of").and("_e.StandsIn(_)", "_e.Value().Until.IsZero()"),
		killers: []killer{
			inArea("holders", "TestAHoldThatAnEarlierVersionHasDetachedIsAContender"),
			inArea("holders", "TestWhatIsToldOfAHoldThatAnEarlierVersionHasDetached"),
		},
		unexplored: "The exploration moves no key.",
	},
	{
		name:    "the least time of a Session counts for the writers of an RWMutex",
		why:     "A writer is exclusive, too. But the option is not for an RWMutex, and readers wait for nothing.",
		change:  in("etcdlock.Session.configured").replace("_ != forMutex && _.MinHold > 0", "false"),
		killers: []killer{inArea("holders", "TestWhoHasNoUseForALeastTime")},
	},

	// ---- several names

	{
		name: "one of several names is recalled alone",
		why:  "The request stands in the key of one name. But a holder of all of them listens for a request for any.",
		change: in("endTogetherLocked").replace(
			"specialOf(_o.hold).together, specialOf(_o.hold).recall = _all, _.hold.recall",
			"specialOf(_o.hold).together = _all"),
		killers: []killer{inArea("kinds", "TestSeveralNamesAreRecalledTogether"), ofFamily(1000)},
	},
	{
		name:       "LockAll goes on with keys of unequal revisions",
		why:        "They are the call's keys, each stands in its line, and each line brings it to its turn. But one key is before another call's, and the next one is behind that call's: both calls wait for ever.",
		change:     in("ticket.Several.Judge").drop("!_.equal()"),
		killers:    []killer{core("ticket", "TestKeysOfUnequalRevisionsAreGivenUp")},
		unexplored: "No request of one call puts keys apart.",
	},
	{
		name: "LockAll goes on with some of its keys",
		why:  "The next attempt puts the others. But they get another revision.",
		change: in("ticket.Several.Judge").after("case _told[Unsure] == len(_)",
			"case _told[Queued] == 0: return Unsure").
			replace("_[Unsure] > 0 || !_self.equal()", "!_self.equal() && false"),
		killers: []killer{explorationOfSeveral, core("ticket", "TestKeysOfUnequalRevisionsAreGivenUp")},
	},
	{
		name:    "LockAll puts its keys before it owns its local lines",
		why:     "A call before it in the local line should have a key already, so etcd's line has the two in the right order. But one that has no key yet is behind it there, and before it in the local line.",
		change:  in("call.acquire").or("_o.turn == nil", "_o != _self.first"),
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name:    "LockAll takes a key that is handed off",
		why:     "The call has waited for this turn, and the key stands first in line. But the key has a revision of its own.",
		change:  in("place.suits").drop("!_.call.together"),
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name: "the key of a LockAll is put with a release",
		why:  "A release does so for the next waiter, and saves a round trip. But the other names of the LockAll have no key yet.",
		change: in("localLine.nextLocked").drop("_.Value.call.together").
			in("place.suits").drop("!_.call.together"),
		killers: []killer{inArea("kinds", "TestLockAllTakesOverNoKey")},
	},
	{
		name:   "the Unlock of several names leaves a key",
		why:    "The first name is given back, and the hold is over. But the other keys live as long as the Session.",
		change: in("ticket.Release.Txn").drop("_.Then = append(_.Then, del(_.Key))"),
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
		change: in("ticket.Several.Txn").replace("txn.If", "txn.If[:1]").
			after("_all.If = append(_all.If, _txn.If[:1]...)",
				"if i < len(_self)-1 { _all.If = append(_all.If, _txn.If[1:]...) }"),
		killers: []killer{explorationOfSeveral, core("ticket", "TestWhatAPutOfSeveralSends"),
			inArea("kinds", "TestWhatSeveralNamesCost"), ofFamily(1000)},
	},
	{
		name:    "a place of several that is first is not watched",
		why:     "Nobody is before the place any more, and nobody is ever put before it. But its own key may go while it waits for the others, and then somebody else holds.",
		change:  in("queue.Place.standsFirst").drop("_.Ticket.Hold()").drop("_.heldLocked(_)"),
		killers: []killer{inArea("kinds", "TestAKeyOfSeveralThatIsDeletedIsMissed")},
	},
	{
		name:    "the first places of a LockAll are watched as if they came with the last",
		why:     "Only then does the hold begin. But until their watches are there, nobody learns that they were recalled meanwhile.",
		change:  in("queue.Place.HoldLocked").replace("_.held == 0", "first"),
		killers: []killer{inArea("kinds", "TestARecallWhereALockAllIsTheFirst")},
	},
	{
		name:    "one of several names is lost alone",
		why:     "The others are still held. But the work that they protect needs all names.",
		change:  in("Hold.endLocked").replace("_self.all()", "_self.self[:]"),
		killers: []killer{inArea("kinds", "TestALossOfOneOfSeveralNames"), ofFamily(300)},
	},

	// ---- permits

	{
		name:   "a permit goes by its own limit",
		why:    "It asked for that limit. But others count on a lower one, or the limit was raised while they held.",
		change: in("line.Line.admits").replace("min(_least, _.Limit)", "_least"),
		killers: []killer{
			core("line", "TestAPermitWaitsForTheSum"), core("ticket", "TestExploration"),
			inArea("kinds", "TestTheLeastOfTheLimitsInLineCounts"),
			ofFamily(500),
		},
	},
	{
		name: "a permit leaves out who waits",
		why:  "There is room for it beside the holders. But it overtakes a large request that came before it, perhaps for ever.",
		change: in("line.Line.admits").after("if _other.Kind != Permit",
			"if sum+int(_other.Weight) > int(min(least, _other.Limit)) { continue }"),
		killers: []killer{
			core("ticket", "TestExploration"), core("line", "TestAPermitWaitsForTheSum"),
			inArea("kinds", "TestPermitsAreHeldUpToTheLimitInOrder"),
			ofFamily(300),
		},
	},
	{
		name:   "a permit minds permits alone",
		why:    "It counts only permits. But a Mutex of the name, or a reader, is before it.",
		change: in("line.Line.admits").replace("return false", "continue"),
		killers: []killer{
			core("line", "TestAPermitWaitsForTheSum"), core("ticket", "TestExploration"),
			inArea("kinds", "TestPermitsAndOthersOfTheNameExclude"),
			ofFamily(300),
		},
	},
	{
		name: "a permit does not mind who waits in its Session",
		why:  "It is within the limit, and comes in beside the holders of its Session. But an exclusive claim that waits for these waits on.",
		change: in("home.Queue.Way").replace("_self.waiters.Len() > 0",
			"!w.Steps && _self.waiters.Len() > 0").
			in("home.Queue.Admit").after("_w := _self.First()",
			"if _w != nil && _self.owner.Steps && !_w.Steps { _w, _ = _self.waiters.Last() }"),
		killers: []killer{
			exploring("permits of one Session, and one that is exclusive there"),
			inArea("kinds", "TestPermitsAndOthersOfTheNameExclude"), ofFamily(1000),
		},
	},
	{
		name: "one joins those who read while a permit waits",
		why:  "No writer stands in line. But the permit waits for as long as readers come.",
		change: in("line.Watched.AnyBut").replace("ShapeOf(_key).Kind != _",
			"ShapeOf(_key).Kind == Exclusive"),
		killers: []killer{explorationOfWatched,
			inArea("kinds", "TestNobodyJoinsReadsWhileAPermitWaits")},
	},
	{
		name:    "a permit begins as many watches again after watches that have failed",
		why:     "A watch that failed should begin again. But a slow etcd then gets a watch for each key for which the permit waits, time and again (rule 25).",
		change:  in("queue.watchSome").and("_ != attempt.Backoff{}", "len(awaited) == 0"),
		killers: []killer{inArea("kinds", "TestTheWatchesOfAPermitBeginAtASlowEtcd")},
	},
	{
		name:    "two permits of a Session have one key",
		why:     "A name is random enough. But few bits of a permit's name are random.",
		change:  in("queue.Account.draw").drop("_.places[_] == nil"),
		killers: []killer{inArea("kinds", "TestPermitsOfASessionHaveAKeyEach")},
	},
	{
		name:    "the requests of an audit are never sent twice",
		why:     "Each audit sends them again. But a dead endpoint of three may get the same one of the three each time.",
		change:  in("etcd.inTime").always("!twice || !_.Several() || !_.Soon()"),
		killers: []killer{inArea("lease", "TestAStrayIsSweptBesideADeadEndpoint")},
	},
	{
		name:    "an audit without an answer is as rare as others",
		why:     "The next one finds what it has not. But the rare audits are several TTLs apart, and a stray blocks its line.",
		change:  in("queue.Account.auditPeriodLocked").replace("_.unheard", "false"),
		killers: []killer{inArea("lease", "TestAStrayIsSweptBesideADeadEndpoint")},
	},
	{
		name: "a stray is deleted by one request",
		why:  "The next audit finds it again. But it may be in step with the endpoints, and the deletion reach the dead one each time.",
		change: in("queue.Account.sweep").replace("2 * _k.etcd.Timeout",
			"_k.etcd.Timeout - time.Millisecond"),
		killers: []killer{inArea("lease", "TestAStrayIsSweptBesideADeadEndpoint")},
	},
	{
		name: "an audit has the time of one attempt",
		why:  "An audit makes up to three requests. But if each answer takes more than half of that time, it finds a key that blocks others, and never deletes it.",
		change: in("queue.Account.Audit").after("if _k.etcd.Disconnected() || _k.etcd.Closed()",
			"ctx, cancel := context.WithTimeout(ctx, _k.etcd.Timeout); defer cancel()"),
		killers: []killer{inArea("lease", "TestAStrayIsSweptWhereAnswersAreSlow")},
	},
	{
		name:    "a permit goes in by the end of what it has seen",
		why:     "It watches all permits, and none is left. But it does not see a Mutex that stands before them.",
		change:  in("queue.watches.departed").replace("!_.covers(_rest)", "_rest.Clear()"),
		killers: []killer{inArea("kinds", "TestAPermitBehindOthersGetsInWithTheLastOfThem")},
	},
	{
		name: "a permit that has found whom it waits for reads once more",
		why:  "Later is newer. But a view may have cleared it meanwhile, and there is nobody whom it could watch.",
		change: in("queue.Waiter.waitBehindSome").before("_, _ := watchSome(_, _p, _ahead, *_)",
			"_ahead, _ = _p.Predecessors()"),
		killers: []killer{core("queue", "TestAPermitWaitsForThoseThatItHasFound")},
	},
	{
		name: "a permit that waits misses what was before its watches",
		why:  "The line was read with the put. But those that have gone between the put and the watches told nobody.",
		change: in("queue.longWait.noticed").replace("!_self.known",
			"_self.last != nil && !_self.known"),
		killers: []killer{inArea("kinds", "TestAPermitMissesNothingBeforeItsWatches")},
	},
	{
		name:    "a view covers every key of its line",
		why:     "It gets every event of these. But a key that it has not read, and no event has shown, may have gone before (rule 5).",
		change:  in("queue.view.coversLocked").drop("_.isLiveLocked() && it"),
		killers: []killer{core("queue", "TestAViewIsReliedOnWhileItIsLive")},
	},

	// ---- ghosts: rules 9 and 18

	{
		name: "a failed wait leaves its key to the lease",
		why:  "The lease removes the key. But the lease is renewed for as long as the Session lives (rule 9).",
		change: in("queue.Place.AbandonLocked").before("_self.UnwatchLocked()",
			"if _self.Removal.Tells { return _self.Removal.over }"),
		killers: []killer{simulation(1000),
			inArea("queue", "TestAClaimThatLeavesOnItsWayLeavesNothingBehind")},
	},
	{
		name:    "a key that etcd does not tell of is gone",
		why:     "The lease is revoked, and mostly all its keys are gone. But etcd may not have answered: Close says nil for one that stays (rule 9).",
		change:  in("Conn.Left").replace("_err != nil || !_gone.Holds", "_err == nil && !_gone.Holds"),
		killers: []killer{inArea("lease", "TestCloseDoesNotSayNilForAKeyThatStays")},
	},
	{
		name: "all keys go with their lease",
		why:  "etcd deletes the keys of a lease that it revokes. But it does not delete one that somebody has put over, with another lease or none: that stands for ever, and Close says nil (rule 9).",
		change: in("lease.revoke").replace("_.tenants.RemoveRest(_...)", "nil").
			in("queue.Place.outlivesLease").replace("return it", "false"),
		killers: []killer{
			inArea("lease", "TestCloseLeavesNoKeyThatWasPutOver"),
			inArea("lease", "TestCloseDoesNotSayNilForAKeyThatStays"),
			inArea("lease", "TestAKeyThatWasPutOverIsRemovedAfterAnOutage"),
		},
	},
	{
		name: "only a key that was seen is removed",
		why:  "The put failed, so there is nothing to remove. But it may be only its answer that failed (rule 9).",
		change: in("queue.Place.AbandonLocked").replace("it || _self.Account.keys.Leases.ClosedLocked()",
			"_self.Ticket.Rev() == 0"),
		killers: []killer{inArea("lease", "TestAKeyWhosePutWasNotAnsweredIsRemovedAtOnce")},
	},
	{
		name: "a retry puts another key",
		why:  "A fresh name is safe to put. But the first one may have been put, too (rules 4 and 9).",
		change: in("call.put").after("if _ := _self.retryPut(_, _.Err, &_); _ != nil", `
			p := _self.first.place
			_self.s.mu.Lock()
			if key := []byte(p.Ticket.Key); key[len(key)-36] == 'a' {
				key[len(key)-36] = 'b'
				p.Ticket.Key = string(key)
			} else {
				key[len(key)-36] = 'a'
				p.Ticket.Key = string(key)
			}
			_self.s.mu.Unlock()`),
		killers: []killer{inArea("lease", "TestALockWhoseAnswerWasLostStandsInLineOnce")},
	},
	{
		name: "a lease in doubt is used for more",
		why:  "The lease is fine, only one request was not. But that request may come later, and then nobody knows its key: no audit removes it here (rule 9).",
		change: in("queue.Account.AnsweredLocked").drop("if _.Doubtful()").
			in("queue.Account.compare").replace("strays = append(strays, key)", "_ = p"),
		killers: []killer{simulation(1000),
			inArea("lease", "TestAfterADoubtfulLockTheNextOneUsesAnotherLease")},
	},
	{
		name:    "a stray key is swept whoever has it by now",
		why:     "Nobody accounted for the key when the answer with the lease's keys came. But names are used again, so by now it is the next hold's key (rule 9).",
		change:  in("queue.Account.sweep").replace("_self.accountsForLocked(_)", "_self.places == nil"),
		killers: []killer{inArea("lease", "TestAKeyThatIsTakenAgainWhileItIsReadIsNotSwept")},
	},
	{
		name: "what looks like a lock's key is swept",
		why:  "Its last part is a UUID, nobody accounts for it, and who else would put that on the lease? But the user may, to whom the lease belongs, too (rule 9).",
		change: in("queue.IsOwn").replace("_ok && sign(_id, _name, _) == _id",
			`_ok && _name != "" && _id != uuid.Nil`),
		killers: []killer{inArea("lease", "TestAKeyOfTheUserThatLooksLikeALocksIsNotSwept")},
	},
	{
		name:    "a key name is used again before etcd has deleted the key",
		why:     "The delete is on its way. But if it gets lost, the next hold takes the old key for its own (rule 18).",
		change:  in("ticket.Ticket.Leave").before("_.state = Leaving", "_self.slot.busy = false"),
		killers: []killer{core("ticket", "TestExploration")},
	},
	{
		name:    "the next place is removed beside the release that puts it",
		why:     "Two requests at once are faster. But if the removal comes first, the release puts the key after it (rule 9).",
		change:  in("release.overLocked").replace("_h.place.Removal", "nil"),
		killers: []killer{inArea("queue", "TestTheNextPlaceIsRemovedAfterTheReleaseThatMayPutIt")},
	},
	{
		name:    "a call whose request panics is left as it is",
		why:     "A panic ends the process. But net/http recovers, and nobody gets the name any more (rule 9).",
		change:  in("hold.call.acquire").never("h == nil && err == nil"),
		killers: []killer{inArea("mutex", "TestAPanicInARequestBlocksNobody")},
	},
	{
		name:    "a put that has panicked was not sent",
		why:     "No answer has come, and none will. But it may have been carried out (rule 9).",
		change:  in("hold.call.fallOut").never("_.keys != nil"),
		killers: []killer{inArea("mutex", "TestAPanicInARequestBlocksNobody")},
	},
	{
		name:    "a release whose request panics is left as it is",
		why:     "The hold has ended. But its key has not, and the turn is not passed on (rule 9).",
		change:  in("hold.release.send").never("!_.over"),
		killers: []killer{inArea("mutex", "TestAPanicInARequestBlocksNobody")},
	},
	{
		name: "a goroutine that the user's code ends tells nobody",
		why:  "Goexit runs the deferred calls. But what others wait for is not in these (rule 29).",
		change: in("guard.Catch").replace("ended(_fall)",
			"if _fall == nil || _fall.value != nil { ended(_fall) }"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "what has fallen is an error of the call",
		why:     "A caller has to handle errors anyway. But code that recovers, or that the process is to die of, expects the panic (rule 29).",
		change:  in("guard.Rethrow").replace("panic(_.value)", "_ = 0"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls"), core("guard", "TestAFallIsAnErrorThatGoesOn")},
	},
	{
		name:    "an attempt that falls was answered",
		why:     "It has ended without an error. But etcd then counts as fast, and as not silent (rule 25).",
		change:  in("attempt.Do").drop("_ = errFallen"),
		killers: []killer{core("etcd/attempt", "TestAnAttemptThatFallsIsOverAndNoAnswer")},
	},
	{
		name:    "what the user's code panics with is etcd's answer",
		why:     "An interceptor may well panic with the error that it got. But the put may have been carried out, and is taken for refused (rule 9).",
		change:  in("attempt.cutStatus").drop("guard.FallIn(_) != nil"),
		killers: []killer{core("etcd/attempt", "TestAFallIsNoAnswer")},
	},
	{
		name:    "the requests of the library's goroutines run in these",
		why:     "It saves a goroutine. But runtime.Goexit ends the keeper, or the view, of which others know nothing (rule 29).",
		change:  in("etcd.Conn.send").never("!_.own"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls/the_read_of_a_view/Goexit")},
	},
	{
		name:    "a combined transaction that ends its goroutine stays under way",
		why:     "Its parts have their error. But each later transaction of the client waits for it, 2 ms each (rule 18).",
		change:  in("etcd.combiner.carry").replace("_ == nil", "true"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a call repeats the request in which the user's code has fallen",
		why:     "It may well pass the next time. But the caller, who would have seen the panic, gets the lock (rule 29).",
		change:  in("attempt.Fallen").never("_ != nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a lease that the user's code did not get is asked for again",
		why:     "Other failures of a grant pass. But the calls that wait for it do not see the panic (rule 29).",
		change:  in("lease.Pool.Take").drop("attempt.Fallen(_) != nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a release in which the user's code has fallen is sent again",
		why:     "A release is sent until it is confirmed. But the caller, who would have seen the panic, gets nil (rule 29).",
		change:  in("hold.release.send").drop("attempt.Fallen(_) != nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "the release of a Close runs in its goroutine",
		why:     "So does that of an Unlock. But a Close that falls leaves holds, and another Close waits for it (rule 29).",
		change:  in("Lock.free").replace("_, _err := guard.Apart(_)", "err := r.send(ctx, loss)"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a view that falls is read again",
		why:     "A watch that fails is begun again. But the calls that wait by the view do not see the panic (rule 29).",
		change:  in("queue.view.failed").replace("attempt.Fallen(_)", "nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a watch that falls has ended",
		why:     "It has no answers. But the call that waits by it does not see the panic (rule 29).",
		change:  in("etcd.Watch.Notice").replace("cmp.Or(_.Err(), _.fell)", "cmp.Or(answer.Err())"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "who follows a leader goes on after a panic",
		why:     "Errors pass, and the follower goes on. But the loop's program does not see the panic (rule 29).",
		change:  in("followHolder").drop("Failed: _"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a stream that falls is silent",
		why:     "The user's code has ended its goroutine. But the renewals on it wait for their time, and the holds run out of it (rule 13).",
		change:  in("keepalive.client.until").drop("if fall != nil"),
		killers: []killer{core("etcd/keepalive", "TestAStreamThatFallsFailsItsRenewals")},
	},
	{
		name:    "a stream that falls is no failure",
		why:     "It had answered, and another one may do better. But nobody learns of the panic (rule 29).",
		change:  in("lease.streamIsOver").drop("attempt.Fallen(_) == nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a hold whose call falls as it is told stays",
		why:     "The call has the hold. But its caller never gets it, and nobody can unlock it (rule 29).",
		change:  in("call.tellHolds").never("!_"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a call that falls has not given up",
		why:     "It does not return. But a span that its Start has begun never ends.",
		change:  in("hold.call.fallOut").never("_.cfg.Hooks.GaveUp != nil"),
		killers: []killer{inArea("outages", "TestNobodyElseFalls")},
	},
	{
		name:    "a client is closed once its context has ended",
		why:     "clientv3 ends that context as the client is closed. But it also ends with the context of the client's Config, and then requests go on: keys stay that could be removed (rule 9).",
		change:  in("attempt.Caller.Closed").always("_.conn == nil"),
		killers: []killer{core("sim", "TestTheEndOfTheClientsContextBlocksNobody")},
	},

	// ---- lifetimes: rule 22, and what operators use
	{
		name: "a wait is told once, and not again",
		why:  "One line has said it. But a wait of hours then looks as one of 30 s, which is over (what a wait that lasts tells).",
		change: in("lasting.due").replace("_self.putLocked(_n+1, _c)",
			"_self.putLocked(min(_n+mostTold, mostTold), _c)"),
		killers: []killer{inArea("mutex", "TestAWaitThatLastsIsToldEachTimeItHasDoubled")},
	},
	{
		name:    "the timer of the waits that last is set for the first wait alone",
		why:     "It was set as the wait began. But the waits that came after it are due later, and nothing tells them.",
		change:  in("lasting.tell").replace("_self.timer.Reset(time.Until(_due))", "_ = _due"),
		killers: []killer{inArea("mutex", "TestAWaitThatLastsIsToldEachTimeItHasDoubled")},
	},

	{
		name:    "each call that needs a lease draws a pause of its own",
		why:     "The pauses are as long. But calls that wait only briefly never see the end of one (rule 13).",
		change:  in("lease.Pool.standBack").always("_.backUntil.IsZero()"),
		killers: []killer{core("lease", "TestCallsThatWaitBrieflyAskForALeaseAsSoon")},
	},
	{
		name:    "a lease that is left from before a Close is forgotten",
		why:     "It expires by itself. But until then its keys block others, and Close says that nothing is left (rule 22).",
		change:  in("queue.Account.RevokedLocked").never("_.After(_)"),
		killers: []killer{inArea("lease", "TestCloseDoesNotSayNilForALeaseThatStays")},
	},
	{
		name:    "a lease is revoked once the streams have ended",
		why:     "No renewal may come after the revocation. But none is sent by then, and a stream may hang in the user's code (rule 22).",
		change:  in("lease.keeper.ends").before("revoke(_)", "over(_self.pool.ctx)"),
		killers: []killer{core("sim", "TestAStreamThatHangsInTheUsersCodeDelaysNoClose")},
	},
	{
		name: "a lease that is being given back is used",
		why:  "Nobody has used the lease for two TTLs, so nobody will just now. But somebody does (rule 22).",
		change: in("lease.Lease.verdictLocked").drop("_.endLocked(errUnused)").
			in("lease.revoke").and("_ == nil #2 of 2", "l.HasEndedLocked()"),
		killers: []killer{inArea("lease", "TestALeaseThatIsBeingGivenBackIsNotUsed")},
	},
	{
		name: "a lease with a user's keys is given back when nothing is locked",
		why:  "No place of the Session needs the lease. But package concurrency has told its ID to the user, whose keys go with it.",
		change: in("queue.Account.PinLocked").drop("_.users++").
			in("queue.Account.UnpinLocked").drop("_.leftLocked()"),
		killers: []killer{{dir: "./concurrency", test: "TestTheLeaseLastsAsLongAsTheSession"}},
	},
	{
		name:    "an orphaned lease is renewed while a lock is on it",
		why:     "The lock is held, and whole. But its program has been told that the Session is over, and may never unlock: nobody gets the lock.",
		change:  in("lease.Lease.verdictLocked").never("_.orphaned && _").never("_.orphaned #2 of 2"),
		killers: []killer{{dir: "./concurrency", test: "TestWhatIsNotUnlockedExpires"}},
	},
	{
		name:    "an orphaned lease is revoked once it has no key of a lock",
		why:     "The Session needs it no more. But it has another owner by now, whose keys go with it.",
		change:  in("lease.giveBack").never("_.leavesLeases()"),
		killers: []killer{{dir: "./concurrency", test: "TestAnOrphanedLeaseIsLeftToItsOwner"}},
	},
	{
		name:    "a Session of package concurrency that is orphaned leaves the key of a wait",
		why:     "No lock is on its lease, so its keeper ends, and with it the removal. But the lease is not revoked, and the key blocks others for a TTL.",
		change:  in("lease.Lease.verdictLocked").drop("_.Removals > 0"),
		killers: []killer{{dir: "./concurrency", test: "TestAnOrphanedSessionRemovesTheKeysOfCallsThatEnd"}},
	},
	{
		name:    "package concurrency asks the Mutex for the key that it reads",
		why:     "The Mutex is locked, so it has one. But the hold may be lost just then, and etcd refuses a key without a name.",
		change:  in("concurrency.mutex.read").replace("_.KeySafe()", "_self.lock.Key()"),
		killers: []killer{{dir: "./concurrency", test: "TestAKeyThatIsDeletedAsItsTurnComesEndsTheSession"}},
	},
	{
		name:    "a lock of package concurrency whose key is gone is held until the watch tells it",
		why:     "The watch does so within a second or so. But etcd has just said that another may have the lock, and its own package returns an error.",
		change:  in("concurrency.mutex.read").never("_.Count == 0"),
		killers: []killer{{dir: "./concurrency", test: "TestAKeyThatIsGoneAsItsTurnComesIsNoLock"}},
	},
	{
		name:    "a Lock of package concurrency waits for the release of what it does not return",
		why:     "Then no key is left. But its context has ended, and etcd is away (rule 10).",
		change:  in("concurrency.briefly").replace("hold.CloseGrace", "3600*hold.CloseGrace"),
		killers: []killer{{dir: "./concurrency", test: "TestACallThatMeetsAnEndTellsTheTruth"}},
	},
	{
		name:    "a Lock of package concurrency whose context ends as it finds the lock taken says that it is taken",
		why:     "So it is. But programs compare the error with that of their context.",
		change:  in("concurrency.mutex.get").replace("ctx.Err() #2 of 2", "err"),
		killers: []killer{{dir: "./concurrency", test: "TestACallThatMeetsAnEndTellsTheTruth"}},
	},
	{
		name:    "a Session of package concurrency goes on without its client",
		why:     "Its context is another one. But nothing renews its lease any more, and its user learns that a TTL later.",
		change:  in("concurrency.Session.check").never("_.Err() != nil #2 of 2"),
		killers: []killer{{dir: "./concurrency", test: "TestASessionEndsWithItsClientWhateverItsContext"}},
	},
	{
		name: "Close revokes before the release under way",
		why:  "The revocation removes all keys at once. But the release then finds its key gone, and Unlock calls it lost (rules 6 and 22).",
		change: in("lease.Lease.verdictLocked").drop(
			"case _.ClosedLocked() && _.Releases > 0 && !_.HasEndedLocked() && _.ctx.Err() == nil"),
		killers: []killer{inArea("mutex", "TestUnlockThatCloseOvertakesIsNoLoss")},
	},
	{
		name: "a release counts for each of its names",
		why:  "Each has a place. But it was counted once: the keeper of a closed Session then sees fewer than there are, and revokes the lease under another release (rules 6 and 22).",
		change: in("release.overLocked").drop("_.place.Account.ReleasedLocked()").
			replace("_h.place.UnwatchLocked()",
				"_h.place.UnwatchLocked(); _h.place.Account.ReleasedLocked()"),
		killers: []killer{inArea("mutex", "TestAnUnlockThatIsFollowedByCloseIsNoLossAfterSeveralNames")},
	},
	{
		name: "a release counts from when it is sent",
		why:  "Before that there is nothing for which Close should wait. But the contexts are cancelled in between, Close revokes the lease, and Unlock calls that a loss (rules 6 and 22).",
		change: in("Hold.unlockLocked").drop("_.place.Account.ReleaseLocked()").
			in("Hold.freeLocked").drop("_.place.Account.ReleasedLocked() #1 of 2").
			drop("_.place.Account.ReleasedLocked()").
			in("Hold.releaseLocked").before("_ := &release{h: _self}",
			"_self.place.Account.ReleaseLocked()").
			in("Lock.endHolds").drop("_.place.Account.ReleaseLocked()"),
		killers: []killer{inArea("mutex", "TestAnUnlockThatIsFollowedByCloseIsNoLoss")},
	},
	{
		name:    "a second Close does not wait",
		why:     "The Session is closed already, as the caller wants. But the program closes its client next, and the first Close cannot revoke the lease (rule 22).",
		change:  in("hold.Session.Close").drop("case _.closing.UnderWayLocked()"),
		killers: []killer{inArea("mutex", "TestACloseBesideAnotherWaitsAsWell")},
	},
	{
		name:   "a Close that has no time left ends the work of the others",
		why:    "Its caller wants an end. But another one has time, and its Close cannot revoke the lease (rule 22).",
		change: in("guard.Closing.Await").replace("_.calls == 1", "true"),
		killers: []killer{core("guard", "TestTheLastCallThatWaitsForACloseIsToldSo"),
			inArea("mutex", "TestACloseBesideAnotherWaitsAsWell")},
	},
	{
		name:    "Break takes a contender without a token",
		why:     "The key is what Break deletes. But a zero token compares with a key that is not there: nothing is broken, and nobody learns that.",
		change:  in("checkContender").drop("_.Token <= 0"),
		killers: []killer{inArea("mutex", "TestABadInputIsAnErrorThatNamesIt")},
	},

	// ---- the command: nothing of it works when another may hold

	{
		name:    "the command is killed a kill-after after the loss was noticed",
		why:     "The command has been promised that time. But a run that was stopped notices late, and then another may hold (rule 1).",
		change:  in("main.running.killAt").replace("trusted", "now"),
		killers: []killer{ofCommand("TestKillAtCountsFromTheEndOfTrust")},
	},
	{
		name:    "a duration is taken as it is typed",
		why:     "It is positive, and so it is valid. But WithTTL(15) is 15 ns, and means 15 s.",
		change:  in("etcdlock.checkMeant").replace("_ >= least", "true"),
		killers: []killer{inArea("mutex", "TestABadInputIsAnErrorThatNamesIt")},
	},
	{
		name:    "the command has the margin of a hold",
		why:     "The hold's context ends before another can hold. But what it cancels has to end, too, and a process takes its time.",
		change:  in("main.holding.lock").drop("etcdlock.WithSafetyMargin(_.margin())"),
		killers: []killer{ofCommand("TestALossEndsAllOfTheCommandBeforeAnotherHolds")},
	},
	{
		name:    "a timeout of zero is none",
		why:     "So it is of many a setting. But a script that computes the time that is left gets a run that hangs, where flock says that the lock is taken.",
		change:  in("main.app.runCommand").drop("_.now || it"),
		killers: []killer{ofCommand("TestATimeoutOfZeroDoesNotWait")},
	},
	{
		name:    "the watchdog asks the command of a stopped run to end, and no more",
		why:     "TERM is what a command expects. But one that is deaf works on, and another may hold (rule 1).",
		change:  in("main.watch").drop("_.kill()"),
		killers: []killer{ofCommand("TestACommandEndsThoughItsRunIsStopped")},
	},
	{
		name:    "the watchdog kills without a word",
		why:     "It is in time. But the command has been promised the time from TERM to KILL.",
		change:  in("main.watch").drop("_.terminate()"),
		killers: []killer{ofCommand("TestACommandEndsThoughItsRunIsStopped")},
	},
	{
		name:    "the watchdog hears of the first lease alone",
		why:     "The command ends before another may hold. But it ends although its lease is renewed.",
		change:  in("main.watchdog.trusts").drop("_ || it"),
		killers: []killer{ofCommand("TestOnlyARenewalPutsTheWatchdogOff")},
	},
	{
		name:    "a stderr without a reader ends a run",
		why:     "So it is with most programs in a pipe. But a run waits for the sake of its command, and what it says matters less.",
		change:  in("main.catch").drop("signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)"),
		killers: []killer{ofCommand("TestAStderrWithoutAReaderEndsNoRun")},
	},
	{
		name: "a run ignores PIPE, and so does its command",
		why:  "To ignore a signal is the shortest way not to die of it. But the command inherits that, and a pipeline in it never ends.",
		change: in("main.catch").replace("signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)",
			"signal.Ignore(syscall.SIGPIPE)"),
		killers: []killer{ofCommand("TestAStderrWithoutAReaderEndsNoRun")},
	},
	{
		name:    "the command of a recalled run is not told",
		why:     "It gets KILL in time, and nobody else gets in before. But it has a grace in which to end by itself.",
		change:  in("main.holding.watch").drop("_.terminate() #1 of 3"),
		killers: []killer{ofCommand("TestARecallEndsTheCommandOfARun")},
	},
	{
		name: "a recalled run releases at the end of the grace",
		why:  "The grace is over, and the KILL is on its way. But the command may still run.",
		change: in("main.holding.watch").replace("_killBy(time.Now())",
			"_ = _self.release(hold); _killBy(time.Now().Add(3 * time.Second))"),
		killers: []killer{ofCommand("TestARecallKillsWhatIsDeafBeforeTheRelease")},
	},
	{
		name: "a run that was recalled in line starts its command",
		why:  "It holds the lock, and the command will soon learn that it has to end. But it does better not to begin.",
		change: in("main.holding.carryOut").replace("select",
			"select { case <-(chan struct{})(nil): default: }"),
		killers: []killer{ofCommand("TestARunThatIsRecalledInLineStartsNothing")},
	},
	{
		name:    "a signal does not end the least time of a run",
		why:     "The command has run, and the name stays taken. But whoever ends a run by a signal wants it to end, and to begin another.",
		change:  in("main.holding.release").replace("hurried", "asked"),
		killers: []killer{ofCommand("TestTheLockIsTakenAtLeast")},
	},
	{
		name:   "only the group of the command is killed",
		why:    "A job is a process group. But a daemon leaves the group, by setsid, and works on.",
		change: in("main.tree.signal").drop("_ = syscall.Kill(_.pid, _)"),
		killers: []killer{
			ofCommand("TestALossEndsAllOfTheCommandBeforeAnotherHolds"),
			ofCommand("TestWhatStaysInTheBackgroundEndsBeforeTheRelease"),
		},
	},
	{
		name: "the lock is released when the command has ended",
		why:  "The run has waited for the command, and its status is known. But what the command has left in the background works on, beside the next one.",
		change: in("main.holding.watch").replace("_(time.Now().Add(_.killAfter)); _.terminate()",
			"return ended"),
		killers: []killer{ofCommand("TestWhatStaysInTheBackgroundEndsBeforeTheRelease")},
	},
	{
		name:   "a command that was broken has the whole kill-after",
		why:    "--kill-after says so. But another may hold already, so each second counts.",
		change: in("main.running.killAt").replace("min(_...)", "_self.killAfter"),
		killers: []killer{ofCommand("TestABreakEndsTheCommandWithinASecond"),
			ofCommand("TestKillAtCountsFromTheEndOfTrust")},
	},
	{
		name:    "a loss is left to the next look at it",
		why:     "etcdctl lock does so: it runs its command, and looks at the lease when that has ended. But meanwhile the command works on without the lock.",
		change:  in("main.holding.watch").replace("_.Done()", "(<-chan struct{})(nil)"),
		killers: []killer{ofCommand("TestACommandThatHearsEndsAtOnce")},
	},
	{
		name: "the command's loss is told before the KILL",
		why:  "The sooner the operator knows, the better. But the reader of stderr may be stuck, and then nobody sends the KILL.",
		change: in("main.holding.watch").after("_.terminate() #2 of 3",
			`_self.app.say("%v", context.Cause(hold))`),
		killers: []killer{ofCommand("TestAReaderThatIsStuckHoldsUpNoKill")},
	},
	{
		name:    "a command outlives a run that was killed",
		why:     "It is in a group of its own, so that signals reach it once. But then nobody tells it that the lease is no longer renewed.",
		change:  in("main.start").drop("Pdeathsig: syscall.SIGKILL"),
		killers: []killer{ofCommand("TestARunThatIsKilledTakesItsCommandAlong")},
	},
	{
		name: "a minor of etcd without a fix is open to nothing",
		why:  "No patch of it is below the fix. But no patch of it has the fix, either.",
		change: in("main.release.openTo").replace("_self.major < 3 || !_fixed || _self.patch < _patch",
			"_fixed && _self.patch < _patch"),
		killers: []killer{ofCommand("TestWhichAdvisoriesAReleaseIsOpenTo")},
	},
	{
		name:    "a candidate of etcd has the fixes of its release",
		why:     "It has the numbers of the release. But it comes before it, and maybe before the fix.",
		change:  in("main.release.openTo").drop("_.patch == _ && _.pre"),
		killers: []killer{ofCommand("TestWhichAdvisoriesAReleaseIsOpenTo")},
	},
	{
		name:    "the waits of a line are all of them",
		why:     "Each wait is one. But a line of thousands that share has millions, and pages ask four times a second.",
		change:  in("board.Lock.before").drop("_ < mostBehind"),
		killers: []killer{ofBoard("TestTheWaitsOfALineAreBounded")},
	},
	{
		name: "a deadlock is told again as a possible one",
		why:  "Those that wait in it are left out. But a Session that only holds in it may be in another cycle with them.",
		change: in("board.Cycles").replace("_inDeadlock[_.Session], _[_.Behind] = true, true",
			"_inDeadlock[w.Session] = true"),
		killers: []killer{ofBoard("TestACycleOfCallsWithinHoldsIsADeadlock")},
	},
	{
		name:    "the board says that it knows more than it remembers",
		why:     "It has looked for ten minutes. But what has gone is dropped for what goes, and a lane shows a gap where somebody held.",
		change:  in("board.history.add").replace("_.since, _at = _.Gone, _p", "_at = _p"),
		killers: []killer{ofBoard("TestTheHistoryIsBounded")},
	},
}
