package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// A verdict is what the journal and the stock files say about a sale. It relies on no word
// of the lock, nor of the workers.
type verdict struct {
	sold, refused int // requests
	items         int // sold

	oversold    int // items that were sold before, or were never there
	lostUpdates int // items sold that a stock file does not reflect
	vanished    int // items gone from a stock file without a sale

	early        int // requests refused although all of their items were left
	decidedTwice int // records of a request that had one before
	unanswered   int // requests without a record
	contradicted int // answers that differ from the record
	tokensBack   int // records of an article whose token is not above the one before
}

// judge compares the journal with the stock files (items of each article at the start, left
// at the end) and with the answers that the workers gave to 1..requests. Only a sale with a
// lock has tokens to judge.
func (s shop) judge(
	items int, left []int, requests int, journal []record, answers map[int]record, locked bool,
) (v verdict) {
	type item struct{ article, number int }
	soldBefore := make(map[item]bool)
	decided := make(map[int]record)
	gone := make([]int, s.articles)
	tokens := make([]int64, s.articles)
	for _, r := range journal {
		if _, again := decided[r.Request]; again {
			v.decidedTwice++
		}
		decided[r.Request] = r
		if r.Sold {
			v.sold++
		} else {
			v.refused++
		}
		leftOfAll := true
		for i, article := range s.basket(r.Request) {
			if locked && r.Token <= tokens[article] {
				v.tokensBack++
			}
			tokens[article] = r.Token
			leftOfAll = leftOfAll && left[article] > 0
			if !r.Sold {
				continue
			}
			it := item{article, r.Read[i]}
			if soldBefore[it] || it.number < 1 || it.number > items {
				v.oversold++
			}
			soldBefore[it] = true
			gone[article]++
			v.items++
		}
		if !r.Sold && (leftOfAll || slices.Min(r.Read) > 0) {
			v.early++
		}
	}
	for article, sold := range gone {
		v.lostUpdates += max(0, sold-(items-left[article]))
		v.vanished += max(0, items-left[article]-sold)
	}
	v.unanswered, v.contradicted = compareAnswers(requests, decided, answers)
	return v
}

// faults says in sentences what is wrong, and nothing about a good sale.
func (v verdict) faults() (all []string) {
	for _, count := range []struct {
		n    int
		text string
	}{
		{v.oversold, "items were sold that were already sold, or never there"},
		{v.lostUpdates, "sales are missing from a stock file"},
		{v.vanished, "items left a stock file without a sale"},
		{v.early, "requests were refused while their items were left"},
		{v.decidedTwice, "requests were decided a second time"},
		{v.unanswered, "requests have no record in the journal"},
		{v.contradicted, "answers differ from the journal"},
		{v.tokensBack, "fencing tokens were not above the one before"},
	} {
		if count.n > 0 {
			all = append(all, fmt.Sprintf("%d %s", count.n, count.text))
		}
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
		case !answered || answer.Sold != recorded.Sold || answer.Token != recorded.Token:
			contradicted++
		}
	}
	return unanswered, contradicted
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
func (s *sale) report(ctx context.Context) (faults []string, err error) {
	w, locked := s.out, s.client != nil
	journal, err := s.shop.records()
	if err != nil {
		return nil, err
	}
	left, total := make([]int, s.shop.articles), 0
	for article := range left {
		if left[article], err = s.shop.readStock(article); err != nil {
			return nil, err
		}
		total += left[article]
	}
	v := s.shop.judge(s.cfg.itemsEach(), left, s.cfg.requests, journal, s.answers, locked)
	faults = append(v.faults(), s.faults...)

	fmt.Fprintln(w)
	s.printShares(w, journal)
	fmt.Fprintln(w)
	row(w, "sold", v.sold, "%d of %d items, %d left in the files",
		v.items, s.cfg.itemsEach()*s.shop.articles, total)
	row(w, "refused", v.refused, "")
	row(w, "oversold", v.oversold, "items already sold")
	row(w, "lost updates", v.lostUpdates, "sales that the stock files do not reflect")
	if locked {
		row(w, "tokens going back", v.tokensBack, "of one sale of an article to the next")
		keys, err := s.client.Get(ctx, lockPrefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			return nil, err
		}
		row(w, "keys left in etcd", keys.Count, "")
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
	s.printSentence(w, faults)
	return faults, nil
}

// row prints a line of the report.
func row(w io.Writer, name string, value any, format string, args ...any) {
	remark := fmt.Sprintf(format, args...)
	fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-20s %10v  %s", name, value, remark), " "))
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
			if r.Sold {
				sold++
			}
		}
		p50, p99 := "-", "-"
		if s.client != nil && len(waits) > 0 {
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

func (s *sale) printSentence(w io.Writer, faults []string) {
	locked := s.client != nil
	switch {
	case len(faults) == 0 && locked && s.cfg.orders:
		fmt.Fprintln(w, "OK: each order was sold entirely or refused entirely, and no item twice.")
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
