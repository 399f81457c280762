package main

import (
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/internal/quote"
)

// completeWithin bounds how long a shell waits for the names of locks.
const completeWithin = time.Second

// mostNames is how many names a shell is offered.
const mostNames = 1000

// lockNames offers the locks whose names begin with word. It offers none if etcd does not say.
func (a *app) lockNames(
	c *cobra.Command, args []string, word string,
) (names []string, _ cobra.ShellCompDirective) {
	const directive = cobra.ShellCompDirectiveNoFileComp
	if len(args) > 0 || a.etcd.environment(c.Root().PersistentFlags(), os.Getenv) != nil {
		return nil, directive
	}
	a.etcd.commandTimeout = min(a.etcd.commandTimeout, completeWithin)
	a.etcd.dialTimeout = min(a.etcd.dialTimeout, completeWithin)
	client, err := a.etcd.open()
	if err != nil {
		return nil, directive
	}
	defer client.Close()
	ctx, cancel := a.etcd.bounded()
	defer cancel()
	places, err := placesBelow(ctx, client, word)
	if err != nil {
		return nil, directive
	}
	for _, p := range places { // in the order of their names
		if len(names) == mostNames {
			break
		}
		if quote.Text(p.Name) == p.Name { // a shell takes what follows a tab for a description
			names = append(names, p.Name)
		}
	}
	return slices.Compact(names), directive
}
