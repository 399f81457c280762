package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/etcdlock/etcdlock"
)

const (
	// recalls is how often the parent makes the work move.
	recalls = 5

	// recallGrace is how long a holder may go on after it has noticed. It needs one step.
	recallGrace = 2 * time.Second

	// stepsToTell is how many steps of its hold a worker does before it says that it works.
	stepsToTell = 20
)

// A relay is one long work that moves from worker to worker. The processes are
// those of a sale; they have no requests, but the same work to carry on.
type relay struct {
	*sale
	recalled []recallMade // in order
	last     int64        // the token of the last hold that a worker has reported
}

// A recallMade is what the parent knows of a recall.
type recallMade struct {
	token int64
	at    time.Time // before it was asked for
}

// run starts the workers, and recalls each holder that works while all the others wait.
// Once the work has moved after the last recall, run ends the workers.
func (r *relay) run(ctx context.Context) error {
	defer r.end()
	defer r.progress.end()
	for number := range r.cfg.workers {
		if err := r.start(number + 1); err != nil {
			return fmt.Errorf("starting worker %d: %w", number+1, err)
		}
	}
	r.began = time.Now()
	for !r.over() {
		select {
		case ev := <-r.events:
			if err := r.handle(ctx, ev); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("%w, %d of %d recalls made", context.Cause(ctx), len(r.recalled), recalls)
		}
	}
	r.ended = time.Now()
	return nil
}

// over reports whether a worker works that came after the last recall.
func (r *relay) over() bool {
	return len(r.recalled) == recalls && r.last > r.recalled[recalls-1].token
}

// handle does what follows from an event. An error ends the relay.
func (r *relay) handle(ctx context.Context, ev event) error {
	p, m := ev.from, ev.message
	switch {
	case ev.ended:
		p.ended = true
		return fmt.Errorf("%v ended early: %v", p, p.cmd.ProcessState)
	case m.Error != "":
		return fmt.Errorf("%v: %s", p, m.Error)
	case m.Holding != 0:
		r.last = m.Holding
		if n := len(r.recalled); n < recalls && (n == 0 || r.recalled[n-1].token != m.Holding) {
			return r.recall(ctx, p, m.Holding)
		}
	}
	return nil
}

// recall recalls p, which says that it works under token, if all the others wait behind it.
// If they do not, p says it again after some steps.
func (r *relay) recall(ctx context.Context, p *process, token int64) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	line, err := etcdlock.Contenders(ctx, r.client, r.lock)
	if err != nil {
		return err
	}
	if len(line) < r.cfg.workers || line[0].Token != token {
		return nil
	}
	at := time.Now()
	if err := etcdlock.Recall(ctx, r.client, line[0], etcdlock.RecallRequest{
		By:     "the demonstration",
		Reason: fmt.Sprintf("recall %d of %d", len(r.recalled)+1, recalls),
		Grace:  recallGrace,
	}); err != nil {
		return fmt.Errorf("recalling %v: %w", p, err)
	}
	r.recalled = append(r.recalled, recallMade{token: token, at: at})
	r.progress.line("%5.1fs  %v works, and is recalled (%d of %d).",
		time.Since(r.began).Seconds(), p, len(r.recalled), recalls)
	return nil
}

// A relayVerdict is what the journal says about a relay. Its lines stand in the order of
// what they report, so no clock decides what is right. The times come from several
// processes on one machine, and are only for the durations.
type relayVerdict struct {
	steps, holds int

	overlaps   int // lines of a hold before the one before it had left
	lost       int // steps that were begun and not ended, or never begun
	twice      int // steps that were begun a second time
	tokensBack int // holds whose token is not above the one before
	// recalls that the holder did not notice, or after which it did not leave, or no other took over
	unfollowed int
	unasked    int // hand-overs without a recall

	// from the recall until the holder noticed, and until the next one began a step
	noticed, moved []time.Duration
}

// judgeRelay compares the journal with the file that has the work, and with the recalls
// that were made.
func judgeRelay(journal []note, done int, made []recallMade) relayVerdict {
	var v relayVerdict
	var holder, token int64 // the one that is in, 0 for nobody; the newest token
	begun := make(map[int]bool)
	ended := make(map[int]bool)
	open := 0 // the last step that was begun and not ended, 0 if none
	for _, n := range journal {
		if n.What == noteEnter {
			v.holds++
			if holder != 0 {
				v.overlaps++
			}
			if n.Token <= token {
				v.tokensBack++
			}
			holder, token = n.Token, n.Token
			continue
		}
		if n.Token != holder {
			v.overlaps++
		}
		switch n.What {
		case noteBegin:
			if begun[n.Step] {
				v.twice++
			}
			if open != 0 || n.Step > 1 && !ended[n.Step-1] {
				v.lost++
			}
			begun[n.Step], open = true, n.Step
		case noteEnd:
			v.steps++
			ended[n.Step], open = true, 0
		case noteLeave:
			holder = 0
		}
	}
	if open != 0 {
		v.lost++
	}
	v.lost += max(0, len(ended)-done) // the file has no trace of them
	v.twice += max(0, done-len(ended))

	for _, m := range made {
		noticed, moved, followed := m.followed(journal)
		if !followed {
			v.unfollowed++
			continue
		}
		v.noticed, v.moved = append(v.noticed, noticed), append(v.moved, moved)
	}
	for _, n := range journal {
		if n.What == noteNoticed && !wasMade(made, n.Token) {
			v.unasked++
		}
	}
	return v
}

func wasMade(made []recallMade, token int64) bool {
	for _, m := range made {
		if m.token == token {
			return true
		}
	}
	return false
}

// followed looks for the four lines that must follow a recall, in their order: the holder
// noticed, it left, another worker entered, and that one began a step.
func (m recallMade) followed(journal []note) (noticed, moved time.Duration, ok bool) {
	var old note
	left, next := false, int64(0)
	for _, n := range journal {
		switch {
		case n.Token == m.token && n.What == noteNoticed:
			old = n
		case n.Token == m.token && n.What == noteLeave:
			left = old.Token != 0
		case left && next == 0 && n.What == noteEnter:
			if n.Worker == old.Worker {
				return 0, 0, false
			}
			next = n.Token
		case next != 0 && n.Token == next && n.What == noteBegin:
			return old.At.Sub(m.at), n.At.Sub(m.at), true
		}
	}
	return 0, 0, false
}

// faults says in sentences what is wrong, and nothing about a good relay.
func (v relayVerdict) faults() []string {
	return sentences([]count{
		{v.overlaps, "lines of the journal are of two who worked at once"},
		{v.lost, "steps were lost"},
		{v.twice, "steps were done a second time"},
		{v.tokensBack, "fencing tokens were not above the one before"},
		{v.unfollowed, "recalls were not followed"},
		{v.unasked, "hand-overs came without a recall"},
	})
}

// report judges the relay, prints the verdict, and returns the faults.
func (r *relay) report(w io.Writer) (faults []string, err error) {
	journal, err := readJournal[note](r.shop)
	if err != nil {
		return nil, err
	}
	done, err := r.shop.readStock()
	if err != nil {
		return nil, err
	}
	v := judgeRelay(journal, done, r.recalled)
	faults = append(v.faults(), r.faults...)

	row(w, "steps done", v.steps, "each once, %d in the file", done)
	row(w, "holds", v.holds, "of %d worker processes", len(r.workers))
	row(w, "overlaps", v.overlaps, "lines of two who worked at once")
	row(w, "steps lost", v.lost, "")
	row(w, "steps done twice", v.twice, "")
	row(w, "tokens going back", v.tokensBack, "of one hold to the next")
	row(w, "recalls", len(r.recalled), "%d followed", len(v.moved))
	r.reportKeysLeft(w)
	if len(v.moved) > 0 {
		noticed, moved := sorted(v.noticed), sorted(v.moved)
		row(w, "until noticed", short(percentile(noticed, 50)),
			"p50, max %s since the recall", short(percentile(noticed, 100)))
		row(w, "until the next works", short(percentile(moved, 50)),
			"p50, max %s since the recall", short(percentile(moved, 100)))
	}
	took := r.ended.Sub(r.began)
	row(w, "time", short(took), "%.1f steps/s", float64(v.steps)/took.Seconds())

	fmt.Fprintln(w)
	if len(faults) == 0 {
		fmt.Fprintf(w, "OK: the work moved %d times, without a gap and without an overlap.\n",
			len(v.moved))
	}
	for _, fault := range faults {
		fmt.Fprintf(w, "FAILED: %s.\n", fault)
	}
	return faults, nil
}
