package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

var errInterrupted = errors.New("interrupted")

// A runner runs cases on setups.
type runner struct {
	cfg      config
	progress io.Writer
	report   report
	serial   int // of lock names
}

// all runs what the flags ask for. It writes the report after each case, so a run that ends
// early leaves what it has measured.
func (r *runner) all(ctx context.Context) error {
	if r.cfg.peers {
		if err := checkInstalled(); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(r.cfg.out, 0o777); err != nil { // before anything is measured
		return err
	}
	if _, err := records(r.cfg.out); err != nil {
		return err // the page could not be written
	}
	r.report.machine = thisMachine()
	for _, s := range setups {
		if !r.cfg.setups.MatchString(s.name) {
			continue
		}
		if err := r.setup(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (r *runner) setup(ctx context.Context, s setup) error {
	started, err := s.start(ctx, r.cfg)
	defer started.stop()
	if err != nil {
		return err
	}
	sync, err := syncTime(started.dir)
	if err != nil {
		return err
	}
	r.report.begin(s, started, sync)
	for _, c := range cases {
		if !r.cfg.cases.MatchString(c.name) {
			continue
		}
		fmt.Fprintf(r.progress, "\n%s, %s: %s\n", s.name, c.name, c.title)
		if err := r.run(ctx, c, started); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if err := r.write(); err != nil {
			return err
		}
	}
	return nil
}

// An entrant is an alternative in a case.
type entrant struct {
	alternative
	event  *event
	rounds map[int]measure // by round
	failed error
}

// measure measures the alternative for a piece of a round.
func (e *entrant) measure(ctx context.Context, limit time.Duration, round int) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var piece measure
	if piece, e.failed = e.event.piece(ctx); e.failed == nil {
		m := e.rounds[round]
		m.add(piece)
		e.rounds[round] = m
	}
}

// finish returns the result of a round. A round that failed half-way counts for nothing.
func (e *entrant) finish(c benchCase, round int) measure {
	m, ok := e.rounds[round]
	switch {
	case e.failed != nil:
		delete(e.rounds, round)
		return measure{}
	case ok && !c.whole:
		m.value = median(m.samples)
		e.rounds[round] = m
	}
	return m
}

// run runs a case: its rounds, and in each the alternatives in turn. An error of an
// alternative ends its part and stands in the report. The error that run returns is that of
// ctx.
func (r *runner) run(ctx context.Context, c benchCase, started *systems) error {
	var entrants []*entrant
	for _, a := range alternatives {
		sys := started.running[a.system]
		if sys == nil || !a.fits(c) || a.name != baseline && !r.cfg.only.MatchString(a.title()) {
			continue
		}
		e := &entrant{alternative: a, rounds: make(map[int]measure)}
		entrants = append(entrants, e)
		limited, cancel := context.WithTimeout(ctx, r.limit())
		e.event, e.failed = c.start(limited, &arena{
			alternative: a, system: sys, wire: &wire{}, slice: r.cfg.slice, dir: started.dir,
			serial: &r.serial,
		})
		cancel()
		if e.event != nil {
			defer e.event.end()
		}
		r.tell(e, "start", measure{}, c)
	}

	rounds := r.cfg.rounds
	if c.most > 0 {
		rounds = min(rounds, c.most)
	}
	for round := range rounds {
		if ctx.Err() != nil {
			return errInterrupted
		}
		for piece := range c.pieces() {
			for i := range entrants {
				// Each turn begins with another one, so that none always follows the same.
				e := entrants[(i+round+piece)%len(entrants)]
				if e.failed == nil && ctx.Err() == nil {
					e.measure(ctx, r.limit(), round)
				}
			}
		}
		for _, e := range entrants {
			r.tell(e, fmt.Sprintf("round %d", round+1), e.finish(c, round), c)
		}
	}
	if ctx.Err() != nil {
		return errInterrupted // in its last round
	}
	r.report.add(c, entrants)
	return nil
}

// limit bounds one round of one alternative, far above what it takes.
func (r *runner) limit() time.Duration { return 90*time.Second + 60*r.cfg.slice }

// tell reports progress.
func (r *runner) tell(e *entrant, what string, m measure, c benchCase) {
	switch {
	case e.failed != nil:
		fmt.Fprintf(r.progress, "  %-8s %-40s %v\n", what, e.title(), e.failed)
	case m.ops > 0:
		fmt.Fprintf(r.progress, "  %-8s %-40s %12s  (%d)\n", what, e.title(), c.show(m.value), m.ops)
	}
}
