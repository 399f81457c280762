package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"time"

	"github.com/etcdlock/etcdlock"
)

const (
	// articles is how many stock files there are with -orders.
	articles = 8

	// basketMax is the most articles of an order.
	basketMax = 4
)

// basketOf returns the articles of a request: one of each, in random order. Whoever asks
// gets the same ones.
func basketOf(request int) []int {
	random := rand.New(rand.NewPCG(uint64(request), articles))
	return random.Perm(articles)[:1+random.IntN(basketMax)]
}

// article returns the shop of one article: its own stock file, the common journal.
func (s shop) article(number int) shop {
	s.stock = filepath.Join(filepath.Dir(s.journal), fmt.Sprintf("stock-%d", number))
	return s
}

// openArticles makes the files: items of each article, nothing sold.
func (s shop) openArticles(items int) error {
	for a := range articles {
		if err := s.article(a).open(items); err != nil {
			return err
		}
	}
	return nil
}

// itemsEach is the stock of each article. In all it is about what -stock says.
func (c config) itemsEach() int { return (c.stock + articles - 1) / articles }

// withBasket is the guard of an order: all its articles, or none.
func withBasket(session *etcdlock.Session, lock string) func(int) guard {
	return func(request int) guard {
		var names []string
		for _, a := range basketOf(request) {
			names = append(names, fmt.Sprintf("%s/article-%d", lock, a))
		}
		return func(ctx context.Context, fn func(context.Context) error) error {
			return session.DoAll(ctx, names, fn)
		}
	}
}

// sellBasket is the critical section of an order: all of it or nothing.
func (w *worker) sellBasket(hold context.Context, r *record) error {
	r.Entered, r.Item, r.Read = time.Now(), 0, nil
	basket := basketOf(r.Request)
	for _, a := range basket {
		left, err := w.shop.article(a).readStock()
		if err != nil {
			return err
		}
		r.Read = append(r.Read, left)
	}
	sold := slices.Min(r.Read) > 0
	if sold {
		r.Item = len(basket)
		time.Sleep(payment)
	}
	if hold.Err() != nil { // the last look before writing, as in a sale
		return context.Cause(hold)
	}
	for i, a := range basket {
		if !sold {
			break
		}
		if err := w.shop.article(a).writeStock(r.Read[i] - 1); err != nil {
			return err
		}
	}
	return r.appendTo(w.journal)
}

// An orderVerdict is what the journal and the stock files say about the orders.
type orderVerdict struct {
	sold, refused, items int

	oversold     int // items that were sold before, or were never there
	halves       int // articles whose file and journal differ: a lost update, or half an order
	early        int // orders refused although all of it was there
	decidedTwice int
	unanswered   int
	contradicted int // answers that differ from the record
	tokensBack   int // articles of an order whose token is not above the one before
}

// judgeOrders compares the journal with the stock files (items of each article at
// the start, left at the end) and with the answers to 1..requests.
func judgeOrders(
	items int, left []int, requests int, journal []record, answers map[int]record, locked bool,
) orderVerdict {
	var v orderVerdict
	type item struct{ article, number int }
	soldBefore := make(map[item]bool)
	decided := make(map[int]record)
	gone := make([]int, articles)
	tokens := make([]int64, articles)
	for _, r := range journal {
		if _, again := decided[r.Request]; again {
			v.decidedTwice++
		}
		decided[r.Request] = r
		if r.Item > 0 {
			v.sold++
		} else {
			v.refused++
			if slices.Min(r.Read) > 0 {
				v.early++
			}
		}
		for i, a := range basketOf(r.Request) {
			if locked && r.Token <= tokens[a] {
				v.tokensBack++
			}
			tokens[a] = r.Token
			if r.Item == 0 {
				continue
			}
			it := item{a, r.Read[i]}
			if soldBefore[it] || it.number < 1 || it.number > items {
				v.oversold++
			}
			soldBefore[it] = true
			gone[a]++
			v.items++
		}
	}
	for a := range articles {
		if items-left[a] != gone[a] {
			v.halves++
		}
	}
	v.unanswered, v.contradicted = compareAnswers(requests, decided, answers)
	return v
}

// faults says in sentences what is wrong, and nothing about good orders.
func (v orderVerdict) faults() []string {
	return sentences([]count{
		{v.oversold, "items were sold that were already sold, or never there"},
		{v.halves, "articles have a stock file that differs from what was sold"},
		{v.early, "orders were refused while all of their items were left"},
		{v.decidedTwice, "orders were decided a second time"},
		{v.unanswered, "orders have no record in the journal"},
		{v.contradicted, "answers differ from the journal"},
		{v.tokensBack, "fencing tokens of an article were not above the one before"},
	})
}

// reportOrders judges the orders, prints the verdict, and returns the faults.
func (s *sale) reportOrders(w io.Writer) (faults []string, err error) {
	journal, err := s.shop.records()
	if err != nil {
		return nil, err
	}
	left, total := make([]int, articles), 0
	for a := range articles {
		if left[a], err = s.shop.article(a).readStock(); err != nil {
			return nil, err
		}
		total += left[a]
	}
	v := judgeOrders(s.cfg.itemsEach(), left, s.cfg.requests, journal, s.answers, s.lock != "")
	faults = append(v.faults(), s.faults...)

	s.printShares(w, journal)
	fmt.Fprintln(w)
	row(w, "orders sold", v.sold, "%d items, %d left in the files", v.items, total)
	row(w, "orders refused", v.refused, "")
	size := 0
	for id := range s.cfg.requests {
		size += len(basketOf(id + 1))
	}
	row(w, "articles per order", fmt.Sprintf("%.2f", float64(size)/float64(s.cfg.requests)),
		"1 to %d of %d", basketMax, articles)
	row(w, "oversold", v.oversold, "items already sold")
	row(w, "stock files wrong", v.halves, "an update lost, or half an order")
	if s.lock != "" {
		row(w, "tokens going back", v.tokensBack, "of one order of an article to the next")
		s.reportKeysLeft(w)
	}
	if retries := countRetries(journal); retries > 0 {
		row(w, "holds lost", retries, "before writing; the order was tried again")
	}
	if len(s.releaseErrors) > 0 {
		row(w, "releases in doubt", len(s.releaseErrors), "such as: %s", s.releaseErrors[0])
	}
	took := s.ended.Sub(s.began)
	row(w, "time", short(took), "%.1f orders/s", float64(len(s.answers))/took.Seconds())
	for _, note := range s.notes {
		fmt.Fprintf(w, "\nnote: %s\n", note)
	}
	fmt.Fprintln(w)
	if len(faults) == 0 && s.lock != "" {
		fmt.Fprintln(w, "OK: each order was sold entirely or refused entirely, and no item twice.")
		return nil, nil
	}
	printSentence(w, faults, s.lock != "")
	return faults, nil
}
