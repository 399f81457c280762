package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/quote"
)

func (a *app) recallCommand() *cobra.Command {
	r := new(recalling)
	c := &cobra.Command{
		Use:   "recall [flags] NAME",
		Short: "ask who holds a lock to give it back, so that nobody else holds beside it",
		Long: `Ask who holds a lock to give it back, so that nobody else holds beside it.

It asks all that hold the lock, or the place that --token tells, and ends when they are asked. A
holder notices it within milliseconds, or about a second later if it has just begun to hold and
nobody waited then; one that holds more than 100 names with its next renewal. It has the grace
to end its work, but no more than it has set itself (run --recall, WithRecall), and the lock is
free once it has unlocked: waiters wait until then. A run ends its command with TERM
at once, and with KILL when the grace is over.

A holder of another program, or one that has not said that it listens, cannot be asked. --break
deletes its place at once instead, as etcdlock break does, and a place that is still there when
--wait has ended: two may work then for about a second.

Exit status: 0 asked (with --wait: gone), or nobody there; 1 cannot be asked, or still there after
--wait; 64 usage; 125 no answer from etcd.`,
		Args:              oneName,
		RunE:              func(_ *cobra.Command, args []string) error { return r.run(a, args[0]) },
		ValidArgsFunction: a.lockNames,
	}
	c.Flags().Int64Var(&r.token, "token", 0, "token of the place, as shown by who")
	c.Flags().DurationVar(&r.grace, "grace", 30*time.Second, "how long the holder may go on")
	c.Flags().BoolVar(&r.wait, "wait", false,
		"wait until it is gone, for the grace, a third of its TTL and 10s at most")
	c.Flags().BoolVar(&r.breaks, "break", false, "as --wait, and delete the place if it is there then")
	c.Flags().StringVar(&r.by, "by", "", "who asks (default user and host)")
	c.Flags().StringVar(&r.reason, "reason", "", "why")
	return c
}

// recalling is the recall command with its flags.
type recalling struct {
	token        int64
	grace        time.Duration
	wait, breaks bool
	by, reason   string

	etcd *connection
}

// maxText is how long --by and --reason may be.
const maxText = 256

// notices is how long a holder with a watch may take to notice, and etcd to remove its key.
const notices = 10 * time.Second

// most is how long the places may stay once they are recalled. A holder of many names may notice it
// with its next renewal, at the latest a third of its TTL later.
func (r *recalling) most(client *clientv3.Client, places []place) time.Duration {
	ctx, cancel := r.etcd.bounded()
	defer cancel()
	var granted int64 // seconds; 0 of a lease that is gone, or of which etcd does not tell
	for _, l := range leftOf(ctx, client, places) {
		granted = max(granted, l.granted)
	}
	return r.grace + notices + time.Duration(granted)*time.Second/3
}

func (r *recalling) run(a *app, name string) error {
	if r.token < 0 {
		return misused("--token %d: not positive", r.token)
	}
	if r.by == "" {
		r.by = whoAsks()
	}
	for flag, text := range map[string]string{"by": r.by, "reason": r.reason} {
		if len(text) > maxText || !utf8.ValidString(text) {
			return misused("--%s: not UTF-8 of at most %d bytes", flag, maxText)
		}
	}
	r.etcd = &a.etcd
	client, err := r.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	places, err := r.places(client, name)
	switch {
	case err != nil:
		return err
	case len(places) == 0:
		fmt.Fprintf(a.stdout, "nobody to ask in the line for %q\n", name)
		return nil
	}
	asked, err := r.ask(a, client, places)
	if err == nil && (r.wait || r.breaks) {
		err = r.await(a, client, name, asked)
	}
	return err
}

// whoAsks names the user and the machine.
func whoAsks() string {
	user, host := os.Getenv("USER"), "unknown"
	if user == "" {
		user = "somebody"
	}
	if name, err := os.Hostname(); err == nil {
		host = name
	}
	text := strings.ToValidUTF8(user+"@"+host, "?")
	return text[:min(len(text), maxText)]
}

// places returns the places to ask.
func (r *recalling) places(client *clientv3.Client, name string) ([]place, error) {
	ctx, cancel := r.etcd.bounded()
	defer cancel()
	all, err := placesOf(ctx, client, name)
	if err != nil {
		return nil, ends(exitFailed, r.etcd.noAnswer(err))
	}
	return slices.DeleteFunc(all, func(p place) bool {
		return r.token == 0 && !p.Holds || r.token != 0 && p.Token != r.token
	}), nil
}

// ask asks each of the places. If one cannot be asked, ask deletes it, if the user wants
// that.
func (r *recalling) ask(
	a *app, client *clientv3.Client, places []place,
) (asked []place, err error) {
	request := etcdlock.RecallRequest{By: r.by, Reason: r.reason, Grace: r.grace}
	var deaf error
	for _, p := range places {
		ctx, cancel := r.etcd.bounded()
		err := etcdlock.Recall(ctx, client, p.Contender, request)
		cancel()
		switch {
		case err == nil:
			fmt.Fprintf(a.stdout, "asked %s\n", quote.Text(p.Key))
			asked = append(asked, p)
		case errors.Is(err, etcdlock.ErrNotRecallable) && r.breaks:
			a.say("%s does not listen to a recall: no grace, its place is deleted now", ownerOf(p.Contender))
			if err := r.delete(a, client, p); err != nil {
				return nil, err
			}
		case errors.Is(err, etcdlock.ErrNotRecallable):
			a.say("%s does not listen to a recall: %s", ownerOf(p.Contender), insteadFor(p))
			deaf = ends(exitBad, nil)
		default:
			return nil, ends(exitFailed, r.etcd.noAnswer(err))
		}
	}
	return asked, deaf
}

// pollEvery is the time from one look at the line to the next.
const pollEvery = 200 * time.Millisecond

// await waits until the asked places are gone. If some are left when the time is over, it
// deletes them, if the user wants that.
func (r *recalling) await(a *app, client *clientv3.Client, name string, asked []place) error {
	for over := time.Now().Add(r.most(client, asked)); ; {
		ctx, cancel := r.etcd.bounded()
		all, err := placesOf(ctx, client, name)
		cancel()
		if err != nil {
			return ends(exitFailed, r.etcd.noAnswer(err))
		}
		asked = slices.DeleteFunc(asked, func(p place) bool {
			gone := !slices.ContainsFunc(all, func(o place) bool {
				return o.Token == p.Token && o.Key == p.Key
			})
			if gone {
				fmt.Fprintf(a.stdout, "gone %s\n", quote.Text(p.Key))
			}
			return gone
		})
		if len(asked) == 0 {
			return nil
		}
		if time.Now().After(over) {
			break
		}
		time.Sleep(pollEvery)
	}
	for _, p := range asked {
		if !r.breaks {
			return ends(exitBad, fmt.Errorf("still there: %s of %s: %s", quote.Text(p.Key),
				ownerOf(p.Contender), insteadFor(p)))
		}
		if err := r.delete(a, client, p); err != nil {
			return err
		}
	}
	return nil
}

// insteadFor says what to do about a place that a recall does not free.
func insteadFor(p place) string {
	return fmt.Sprintf("stop it; only if you cannot, etcdlock break %s --token %d deletes its place",
		quote.Text(p.Name), p.Token)
}

// delete deletes p.
func (r *recalling) delete(a *app, client *clientv3.Client, p place) error {
	ctx, cancel := r.etcd.bounded()
	defer cancel()
	if err := etcdlock.Break(ctx, client, p.Contender); err != nil {
		return ends(exitFailed, r.etcd.noAnswer(err))
	}
	fmt.Fprintf(a.stdout, "deleted %s\n", quote.Text(p.Key))
	return nil
}
