// Command before is a holder by another version of this library: one that knows no readers.
// The matrix builds it from that version's source, so it uses nothing newer.
//
// It locks, prints a line, and unlocks when it is interrupted. A wait that is interrupted leaves no
// key. Its argument is JSON.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/matrix/door"
)

func main() {
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(how string) (err error) {
	var holder struct {
		Door door.Door
		Name string
		TTL  time.Duration
	}
	if err := json.Unmarshal([]byte(how), &holder); err != nil {
		return err
	}
	client, err := holder.Door.Dial()
	if err != nil {
		return err
	}
	defer client.Close()
	//lint:ignore SA1019 the version before this one has no NewMutex
	newMutex := etcdlock.New // (which go fix would not leave alone in a call)
	mu, err := newMutex(client, holder.Name, etcdlock.WithTTL(holder.TTL))
	if err != nil {
		return err
	}
	defer func() { // else a key that is being removed stays for the rest of the TTL
		bounded, cancel := context.WithTimeout(context.Background(), holder.TTL)
		defer cancel()
		err = errors.Join(err, mu.Close(bounded))
	}()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := mu.Lock(ctx); err != nil {
		return err
	}
	fmt.Println(mu.Token())
	<-ctx.Done()
	return mu.Unlock(ctx)
}
