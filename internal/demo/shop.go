package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// A shop is two files that the worker processes share: the stock, which the lock protects,
// and the journal, which is the witness.
type shop struct {
	stock   string
	journal string
}

// A record is one decision about one request, made inside the lock.
type record struct {
	Request int
	Worker  int
	Item    int // the number of the item sold, 0 if refused
	Token   int64
	Waited  time.Duration // for the lock, in the try that succeeded
	Entered time.Time     // when the worker got the lock
	Read    []int         `json:",omitempty"` // of an order: the stocks, in the order of the basket
	Retries int           // holds that were lost before the stock was written
}

func shopIn(dir string) shop {
	return shop{
		stock:   filepath.Join(dir, "stock"),
		journal: filepath.Join(dir, "sales.jsonl"),
	}
}

// open makes both files: items in stock, nothing sold.
func (s shop) open(items int) error {
	if err := os.WriteFile(s.stock, nil, 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(s.journal, nil, 0o600); err != nil {
		return err
	}
	return s.writeStock(items)
}

// readStock returns how many items are left, which is also the number of the
// item to sell next.
func (s shop) readStock() (int, error) {
	text, err := os.ReadFile(s.stock)
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
func (s shop) writeStock(left int) error {
	f, err := os.OpenFile(s.stock, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%10d\n", left)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return err
}

// appendTo writes the record to an open journal.
func (r record) appendTo(journal *os.File) error { return appendLine(journal, r) }

// appendLine writes v to an open journal as one line with one write. O_APPEND keeps lines
// whole even without a lock. With a lock, the lines stand in the order of the holds, so the
// judge needs no clock to know who was first.
func appendLine(journal *os.File, v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = journal.Write(append(line, '\n'))
	return err
}

func (s shop) openJournal() (*os.File, error) {
	return os.OpenFile(s.journal, os.O_WRONLY|os.O_APPEND, 0)
}

// records returns the journal of a sale.
func (s shop) records() ([]record, error) { return readJournal[record](s) }

// readJournal returns the journal in the order in which it was written.
func readJournal[T any](s shop) ([]T, error) {
	text, err := os.ReadFile(s.journal)
	if err != nil {
		return nil, err
	}
	var all []T
	for line := range bytes.Lines(text) {
		var r T
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, fmt.Errorf("journal, line %d: %w", len(all)+1, err)
		}
		all = append(all, r)
	}
	return all, nil
}
