package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const (
	// orderArticles is how many articles the shop has with -orders; without it has one.
	orderArticles = 8

	// basketMax is the most articles of an order.
	basketMax = 4
)

// A shop is the files that the worker processes share: a stock for each article, which the
// lock protects, and the journal, which is the witness.
type shop struct {
	dir      string
	articles int
}

// A record is one decision about one request, made inside the lock.
type record struct {
	Request int
	Worker  int
	Read    []int // the stocks of its basket; each is also the number of the item to sell
	Sold    bool  // one item of each, otherwise refused
	Token   int64
	Waited  time.Duration // for the lock, in the try that succeeded
	Entered time.Time     // when the worker got the lock
	Retries int           // holds that were lost before the stock was written
}

func (s shop) stock(article int) string {
	return filepath.Join(s.dir, fmt.Sprintf("stock-%d", article))
}

func (s shop) journal() string { return filepath.Join(s.dir, "sales.jsonl") }

// basket returns the articles that a request is for: one of each, in random order. It is
// the same whenever it is asked for.
func (s shop) basket(request int) []int {
	if s.articles == 1 {
		return []int{0}
	}
	random := rand.New(rand.NewPCG(uint64(request), uint64(s.articles)))
	return random.Perm(s.articles)[:1+random.IntN(basketMax)]
}

// open makes all files: items of each article in stock, nothing sold.
func (s shop) open(items int) error {
	if err := os.WriteFile(s.journal(), nil, 0o600); err != nil {
		return err
	}
	for article := range s.articles {
		if err := os.WriteFile(s.stock(article), nil, 0o600); err != nil {
			return err
		}
		if err := s.writeStock(article, items); err != nil {
			return err
		}
	}
	return nil
}

// readStock returns how many items of an article are left, which is also the number of the
// item to sell next.
func (s shop) readStock(article int) (int, error) {
	text, err := os.ReadFile(s.stock(article))
	if err != nil {
		return 0, err
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("stock file: %w", err)
	}
	return left, nil
}

// writeStock overwrites the number in place. It has a fixed width. So a reader that comes
// in between, as one may without the lock, finds a number and not an empty file. That is
// all the care it takes: two workers that read the same number both sell the same item.
func (s shop) writeStock(article, left int) error {
	f, err := os.OpenFile(s.stock(article), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%10d\n", left)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// appendTo writes the record to an open journal as one line with one write. O_APPEND keeps
// lines whole even without a lock. With a lock, the lines stand in the order of the holds,
// so the judge needs no clock to know which was first.
func (r record) appendTo(journal *os.File) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = journal.Write(append(line, '\n'))
	return err
}

func (s shop) openJournal() (*os.File, error) {
	return os.OpenFile(s.journal(), os.O_WRONLY|os.O_APPEND, 0)
}

// records returns the journal in the order in which it was written.
func (s shop) records() ([]record, error) {
	text, err := os.ReadFile(s.journal())
	if err != nil {
		return nil, err
	}
	var all []record
	for line := range bytes.Lines(text) {
		var r record
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("journal, line %d: %w", len(all)+1, err)
		}
		all = append(all, r)
	}
	return all, nil
}
