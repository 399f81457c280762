package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/etcdlock/etcdlock"
)

// A document keeps the highest token of a write, and of a read.
type document struct {
	mu          sync.Mutex
	text        string
	wrote, read int64
}

var errTooLate = errors.New("refused: too late")

// write refuses a writer if a later one has written, or a later reader has read.
func (d *document) write(text string, token int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if token < d.wrote || token < d.read {
		return errTooLate
	}
	d.text, d.wrote = text, token
	return nil
}

// show refuses a reader if a later writer has written.
func (d *document) show(token int64) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if token < d.wrote {
		return "", errTooLate
	}
	d.read = max(d.read, token)
	return d.text, nil
}

// A resource that refuses writers and readers that were overtaken while they were paused.
func ExampleHold_Token() {
	client := exampleClient()
	defer client.Close()
	ctx := context.Background()
	page, err := etcdlock.NewRWMutex(client, "pages/7")
	if err != nil {
		log.Fatal(err)
	}
	defer page.Close(ctx)
	writes := func(f func(token int64)) {
		if err := page.Lock(ctx); err != nil {
			log.Fatal(err)
		}
		f(page.Token())
		if err := page.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}
	reads := func(f func(token int64)) {
		read, err := page.RLock(ctx)
		if err != nil {
			log.Fatal(err)
		}
		f(read.Token())
		if err := read.Unlock(ctx); err != nil {
			log.Fatal(err)
		}
	}

	d := &document{text: "first"}
	var writer, reader int64 // the tokens of two that are paused before they do anything
	writes(func(token int64) { writer = token })
	reads(func(token int64) { fmt.Println(d.show(token)) })
	fmt.Println("late write:", d.write("late", writer))
	reads(func(token int64) { reader = token })
	writes(func(token int64) { fmt.Println("write:", d.write("second", token)) })
	_, err = d.show(reader)
	fmt.Println("late read:", err)
	reads(func(token int64) { fmt.Println(d.show(token)) })
	// Output:
	// first <nil>
	// late write: refused: too late
	// write: <nil>
	// late read: refused: too late
	// second <nil>
}
