package main

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/internal/quote"
)

func (a *app) breakCommand() *cobra.Command {
	b := new(breaking)
	c := &cobra.Command{
		Use:   "break [flags] NAME",
		Short: "delete one place in the line for a lock, so that the next gets in",
		Long: `Delete one place in the line for a lock, so that the next gets in.

It shows the line and asks for the token of the place, unless --token gives it. Any other
answer deletes nothing. It deletes only that very place, never one that came later.

A live holder learns it within milliseconds, or about a second later if it has just begun to
hold: until then two may work. A broken run ends its command with TERM, and then with KILL.
If you can reach the holder, stop it by other means. Break the lock only if you cannot.

Exit status: 0 deleted, or nobody there; 1 nothing deleted: the token is not in the line;
64 usage; 125 no answer from etcd.`,
		Args:              oneName,
		RunE:              func(_ *cobra.Command, args []string) error { return b.run(a, args[0]) },
		ValidArgsFunction: a.lockNames,
	}
	c.Flags().Int64Var(&b.token, "token", 0, "token of the place, as shown by who")
	return c
}

// breaking is the break command with its flags.
type breaking struct{ token int64 }

func (b *breaking) run(a *app, name string) error {
	if b.token < 0 {
		return misused("--token %d: not positive", b.token)
	}
	client, err := a.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	shown := &who{name: name, etcd: &a.etcd}
	places, err := b.show(a, client, shown)
	switch {
	case err != nil:
		return err
	case len(places) == 0 && b.token == 0:
		return nil
	}
	token := b.token
	if token == 0 {
		fmt.Fprint(a.stdout, "\nToken of the place to delete (anything else deletes nothing): ")
		answer, err := bufio.NewReader(a.stdin).ReadString('\n')
		if err != nil { // also on EOF: half a line is no answer
			fmt.Fprintln(a.stdout)
			return ends(exitBad, fmt.Errorf("no answer (%w): nothing was deleted", err))
		}
		if token, err = strconv.ParseInt(strings.TrimSpace(answer), 10, 64); err != nil {
			return ends(exitBad, fmt.Errorf("%q is not a token; nothing was deleted",
				strings.TrimSpace(answer)))
		}
	}
	for _, p := range places {
		if p.Token == token {
			return b.delete(a, client, shown, p)
		}
	}
	return ends(exitBad, fmt.Errorf("no token in this line: %d; nothing was deleted", token))
}

// show prints the line as it is.
func (b *breaking) show(a *app, client *clientv3.Client, w *who) ([]place, error) {
	ctx, cancel := w.etcd.bounded()
	defer cancel()
	places, err := w.read(ctx, client)
	if err != nil {
		return nil, ends(exitFailed, err)
	}
	w.print(ctx, client, a.stdout, places)
	return places, nil
}

// delete deletes p and shows the rest of the line.
func (b *breaking) delete(a *app, client *clientv3.Client, w *who, p place) error {
	ctx, cancel := w.etcd.bounded()
	defer cancel()
	if err := etcdlock.Break(ctx, client, p.Contender); err != nil {
		return ends(exitFailed, w.etcd.noAnswer(err))
	}
	_, err := io.WriteString(a.stdout, fmt.Sprintf("deleted %s\n\n", quote.Text(p.Key)))
	if err != nil {
		return ends(exitFailed, err)
	}
	_, err = b.show(a, client, w)
	return err
}
