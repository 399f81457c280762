package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/internal/quote"
)

// live is what top and ui have in common: a board of the locks below a prefix, and what their user
// may do to a place.
type live struct {
	prefix string
	allow  []string
	grace  time.Duration

	board  *board.Board
	feed   *board.Feed
	client *clientv3.Client
	etcd   *connection
}

func (l *live) flags(c *cobra.Command) {
	c.Flags().StringVar(&l.prefix, "prefix", "", "prefix of the locks' names")
	c.Flags().StringSliceVar(&l.allow, "allow", nil,
		"what else than to look: recall, break, or both;\neach asks before it does it")
	c.Flags().DurationVar(&l.grace, "grace", 30*time.Second, "how long a recalled holder may go on")
	_ = c.RegisterFlagCompletionFunc("allow",
		cobra.FixedCompletions([]string{"recall", "break"}, cobra.ShellCompDirectiveNoFileComp))
}

func (l *live) check() error {
	for _, what := range l.allow {
		if what != "recall" && what != "break" {
			return misused("--allow %q: must be recall or break", what)
		}
	}
	return nil
}

func (l *live) allows(what string) bool { return slices.Contains(l.allow, what) }

// start feeds the board until the returned function is called.
func (l *live) start(a *app) (stop func(), err error) {
	l.etcd = &a.etcd
	if l.client, err = l.etcd.open(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	l.board = board.New()
	l.feed = &board.Feed{Board: l.board, Client: l.client, Prefix: l.prefix,
		Timeout: l.etcd.commandTimeout}
	go func() { // ends with stop, which waits for it
		defer close(ended)
		l.feed.Run(ctx)
	}()
	return func() { cancel(); <-ended; l.client.Close() }, nil
}

// act recalls a place, or breaks it, and says what became of it.
func (l *live) act(what, lock string, p *board.Place) string {
	if !l.allows(what) {
		return "not allowed: --allow " + what
	}
	c := etcdlock.Contender{Name: lock, Key: p.Key, Token: p.Token,
		Lease: clientv3.LeaseID(p.Lease), Holds: p.Holds}
	ctx, cancel := l.etcd.bounded()
	defer cancel()
	err, did := error(nil), "asked"
	if what == "break" {
		l.board.Breaks(p.Key, true)
		if err, did = etcdlock.Break(ctx, l.client, c), "deleted"; err != nil {
			l.board.Breaks(p.Key, false)
		}
	} else {
		err = etcdlock.Recall(ctx, l.client, c, etcdlock.RecallRequest{By: whoAsks(), Grace: l.grace})
	}
	if err != nil {
		return quote.Line(strings.TrimPrefix(l.etcd.noAnswer(err).Error(), l.etcd.endpoints+": "))
	}
	return fmt.Sprintf("%s %s", did, quote.Text(p.Key))
}
