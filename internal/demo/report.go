package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A verdict is what the journal and the stock file say about a sale. It relies on the word
// of nobody: neither the lock nor the workers.
type verdict struct {
	sold, refused int

	oversold    int // sales of an item that was sold before, or was never there
	lostUpdates int // sales that the stock file does not reflect
	vanished    int // items gone from the stock file without a sale

	early         int // requests refused although items are left
	decidedTwice  int // records of a request that had one before
	unanswered    int // requests without a record
	contradicted  int // answers that differ from the record
	tokensBackAt  int // record whose token is not above the one before; -1 is none
	before, after int64
}

// judge compares the journal with the stock file (items at the start, left at the end) and
// with the answers that the workers gave to 1..requests. Only a sale with a lock has tokens
// to judge.
func judge(
	items, left, requests int, journal []record, answers map[int]record, locked bool,
) verdict {
	v := verdict{tokensBackAt: -1}
	soldBefore := make(map[int]bool)
	decided := make(map[int]record)
	for i, r := range journal {
		if _, again := decided[r.Request]; again {
			v.decidedTwice++
		}
		decided[r.Request] = r

		switch {
		case r.Item == 0:
			v.refused++
		case soldBefore[r.Item] || r.Item < 0 || r.Item > items:
			v.sold++
			v.oversold++
		default:
			v.sold++
			soldBefore[r.Item] = true
		}

		if locked && v.tokensBackAt < 0 {
			v.before, v.after = v.after, r.Token
			if v.after <= v.before {
				v.tokensBackAt = i
			}
		}
	}

	gone := items - left
	v.lostUpdates = max(0, v.sold-gone)
	v.vanished = max(0, gone-v.sold)
	if left > 0 {
		v.early = v.refused
	}
	v.unanswered, v.contradicted = compareAnswers(requests, decided, answers)
	return v
}

// faults says in sentences what is wrong, and nothing about a good sale.
func (v verdict) faults() (all []string) {
	all = sentences([]count{
		{v.oversold, "sales were of an item already sold, or never there"},
		{v.lostUpdates, "sales are missing from the stock file"},
		{v.vanished, "items left the stock file without a sale"},
		{v.early, "requests were refused while items were left"},
		{v.decidedTwice, "requests were decided a second time"},
		{v.unanswered, "requests have no record in the journal"},
		{v.contradicted, "answers differ from the journal"},
	})
	if v.tokensBackAt >= 0 {
		all = append(all, fmt.Sprintf("fencing token %d came after %d", v.after, v.before))
	}
	return all
}

// compareAnswers counts the requests of 1..requests that have no record, and those whose
// answer differs from the record.
func compareAnswers(requests int, decided, answers map[int]record) (unanswered, contradicted int) {
	for id := range requests {
		recorded, found := decided[id+1]
		answer, answered := answers[id+1]
		switch {
		case !found:
			unanswered++
		case !answered || answer.Item != recorded.Item || answer.Token != recorded.Token:
			contradicted++
		}
	}
	return unanswered, contradicted
}

// A count is how often something went wrong, and the words that follow the number.
type count struct {
	n    int
	text string
}

// sentences says what went wrong. It says nothing about a count of 0.
func sentences(counts []count) (all []string) {
	for _, c := range counts {
		if c.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", c.n, c.text))
		}
	}
	return all
}

// blockedFor is how long after the crash the next one got in.
func (c *crash) blockedFor(journal []record) (blocked time.Duration, found bool) {
	for _, r := range journal {
		if r.Token > c.token {
			return r.Entered.Sub(c.at), true
		}
	}
	return 0, false
}

// report judges the sale, prints the verdict, and returns the faults.
func (s *sale) report(w io.Writer) (faults []string, err error) {
	journal, err := s.shop.records()
	if err != nil {
		return nil, err
	}
	left, err := s.shop.readStock()
	if err != nil {
		return nil, err
	}
	v := judge(s.cfg.stock, left, s.cfg.requests, journal, s.answers, s.lock != "")
	faults = append(v.faults(), s.faults...)

	s.printShares(w, journal)
	fmt.Fprintln(w)
	row(w, "sold", v.sold, "of %d in stock, %d left in the file", s.cfg.stock, left)
	row(w, "refused", v.refused, "")
	row(w, "oversold", v.oversold, "sales of an item already sold")
	row(w, "lost updates", v.lostUpdates, "sales that the stock file does not reflect")
	if s.lock != "" {
		how := "strictly growing"
		if v.tokensBackAt >= 0 {
			how = fmt.Sprintf("NOT growing: %d came after %d", v.after, v.before)
		}
		row(w, "fencing tokens", len(journal), "%s", how)
		s.reportKeysLeft(w)
	}
	if retries := countRetries(journal); retries > 0 {
		row(w, "holds lost", retries, "before writing; the request was tried again")
	}
	if len(s.releaseErrors) > 0 {
		row(w, "releases in doubt", len(s.releaseErrors), "such as: %s", s.releaseErrors[0])
	}
	took := s.ended.Sub(s.began)
	row(w, "time", short(took), "%.1f requests/s", float64(len(s.answers))/took.Seconds())

	if s.crash != nil {
		blocked, found := s.crash.blockedFor(journal)
		switch {
		case !found:
			faults = append(faults, "nobody got in after the crash")
		case blocked <= 0:
			faults = append(faults, "somebody got in before the holder was killed")
		default:
			asked := ""
			if s.crash.ttl > s.cfg.ttl {
				asked = fmt.Sprintf(", %v was asked for", s.cfg.ttl)
			}
			fmt.Fprintf(w, "\ncrashed holder blocked the others for %s (TTL %v%s)\n",
				short(blocked), s.crash.ttl, asked)
		}
	}
	for _, note := range s.notes {
		fmt.Fprintf(w, "\nnote: %s\n", note)
	}
	fmt.Fprintln(w)
	printSentence(w, faults, s.lock != "")
	return faults, nil
}

// row prints a line of the report.
func row(w io.Writer, name string, value any, format string, args ...any) {
	remark := fmt.Sprintf(format, args...)
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-20s %10v  %s", name, value, remark), " "))
}

// reportKeysLeft sweeps, and prints what there was to sweep.
func (s *sale) reportKeysLeft(w io.Writer) {
	if keys, err := s.sweep(); err != nil {
		row(w, "keys left in etcd", "?", "%v", err)
	} else {
		row(w, "keys left in etcd", keys, "")
	}
}

// printShares prints what each process did.
func (s *sale) printShares(w io.Writer, journal []record) {
	row := func(columns ...any) {
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-24s %6v %9v %11v %11v  %s", columns...), " "))
	}
	line := func(name string, of []record, remark string) {
		var waits []time.Duration
		sold := 0
		for _, r := range of {
			waits = append(waits, r.Waited)
			if r.Item != 0 {
				sold++
			}
		}
		p50, p99 := "-", "-"
		if s.lock != "" && len(waits) > 0 {
			slices.Sort(waits)
			p50, p99 = short(percentile(waits, 50)), short(percentile(waits, 99))
		}
		row(name, sold, len(of)-sold, p50, p99, remark)
	}

	row("process", "sold", "refused", "wait p50", "wait p99", "")
	for _, p := range s.workers {
		var own []record
		for _, r := range journal {
			if r.Worker == p.number {
				own = append(own, r)
			}
		}
		remark := ""
		if s.crash != nil && s.crash.victim == p {
			remark = "killed"
		}
		line(p.String(), own, remark)
	}
	line("all", journal, "")
}

func printSentence(w io.Writer, faults []string, locked bool) {
	switch {
	case len(faults) == 0 && locked:
		fmt.Fprintln(w, "OK: no item was sold twice and no update of the stock was lost.")
	case len(faults) == 0:
		fmt.Fprintln(w, "Nothing went wrong this time, and nothing would have prevented it.")
	default:
		for _, fault := range faults {
			fmt.Fprintf(w, "FAILED: %s.\n", fault)
		}
		if !locked {
			fmt.Fprintln(w, "That is a sale without a lock. Leave out -no-lock to see one with it.")
		}
	}
}

func countRetries(journal []record) (retries int) {
	for _, r := range journal {
		retries += r.Retries
	}
	return retries
}

// sorted returns all in order.
func sorted(all []time.Duration) []time.Duration { return slices.Sorted(slices.Values(all)) }

// percentile goes by nearest rank. sorted is not empty.
func percentile(sorted []time.Duration, p int) time.Duration {
	return sorted[(len(sorted)*p+99)/100-1]
}

// short returns a duration without what says nothing.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%.1fms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.2fs", d.Seconds())
}
