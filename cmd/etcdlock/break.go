package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
)

func breakCommand() *command {
	return &command{
		name:  "break",
		usage: "[--token N] NAME",
		short: "delete one place in the line for a lock, so that the next gets in",
		text: `
It shows the line and asks for the token of the place, unless --token gives it. Any other
answer deletes nothing. It deletes only that very place, never one that came later.

A live holder learns it within milliseconds, or about a second later if it has just begun to
hold: until then two may work. A broken run ends its command with TERM, and then with KILL.
If you can reach the holder, stop it by other means. Break the lock only if you cannot.

Exit status: 0 deleted, or nobody there; 1 nothing deleted: the token is not in the line;
64 usage; 125 no answer from etcd.`,
		flags: func(fs *flag.FlagSet) func(*app, call) error {
			b := new(breaking)
			fs.Int64Var(&b.token, "token", 0, "`N` token of the place, as shown by who")
			return b.run
		},
	}
}

// breaking is the break command with its flags.
type breaking struct{ token int64 }

func (b *breaking) run(a *app, c call) error {
	switch {
	case len(c.names) == 0:
		return misused("break needs the name of a lock")
	case b.token < 0:
		return misused("--token %d: not positive", b.token)
	}
	if err := c.atMost(1); err != nil {
		return err
	}
	client, err := c.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	shown := &who{name: c.names[0], etcd: c.etcd}
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
			return ends(exitBad, fmt.Errorf("no token: %q; nothing was deleted", strings.TrimSpace(answer)))
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
	_, err := io.WriteString(a.stdout, fmt.Sprintf("deleted %s\n\n", plain(p.Key)))
	if err != nil {
		return ends(exitFailed, err)
	}
	_, err = b.show(a, client, w)
	return err
}
