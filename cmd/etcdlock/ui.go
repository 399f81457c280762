package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/board"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/ui"
)

func (a *app) uiCommand() *cobra.Command {
	l, listen := new(live), ""
	c := &cobra.Command{
		Use:   "ui [flags]",
		Short: "show all locks live, on a page in a browser",
		Long: `Show all locks live, on a page in a browser.

It prints the page's address and serves it until ^C. The page shows what etcdlock top shows. It is
one file without any other, so that it needs no network but this one.

It listens on loopback only. With another address in --listen, and with --allow, the page's address
has a token, which each request needs. There is no TLS: put a proxy before it, or use ssh -L.

It writes nothing, unless --allow says so: then the page recalls or breaks a place, after a
question.

Exit status: 0 ended by ^C or TERM; 64 usage; 125 no answer from etcd, or the address is taken.`,
		Args: atMost(0),
		RunE: func(*cobra.Command, []string) error { return l.ui(a, listen) },
	}
	l.flags(c)
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8379", "`address` of the page; port 0 is any")
	return c
}

// lookAt is how many locks, those with the longest lines, have their leases asked for each second.
const lookAt = 30

func (l *live) ui(a *app, listen string) error {
	if err := l.check(); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(listen); err != nil {
		return misused("--listen: %w", err)
	}
	stop, err := l.start(a)
	if err != nil {
		return err
	}
	defer stop()
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return ends(exitFailed, err)
	}
	pages := &ui.Server{Board: l.board, Prefix: l.prefix, Allow: l.allow, Act: l.act}
	address := pageAddress(listen, listener.Addr())
	if !ui.IsLoopback(listener.Addr().String()) || len(l.allow) > 0 {
		pages.Token = rand.Text()
		address += "?token=" + pages.Token
	}
	fmt.Fprintln(a.stdout, address)

	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	server := &http.Server{Handler: pages.Handler(), ReadHeaderTimeout: 10 * time.Second,
		BaseContext: func(net.Listener) context.Context { return ctx }}
	defer context.AfterFunc(ctx, func() { server.Close() })()
	go l.look(ctx) // ends with ctx
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return ends(exitFailed, err)
	}
	return nil
}

// pageAddress is the address to open: the host that was asked for, or this machine's name if that
// was none, with the port that the page has.
func pageAddress(listen string, at net.Addr) string {
	host, _, _ := net.SplitHostPort(listen) // ui has checked it
	if addr, err := netip.ParseAddr(host); host == "" || err == nil && addr.IsUnspecified() {
		if name, err := os.Hostname(); err == nil {
			host = name
		}
	}
	return fmt.Sprintf("http://%s/", net.JoinHostPort(host, strconv.Itoa(at.(*net.TCPAddr).Port)))
}

// look asks for the leases of the locks with the longest lines first.
func (l *live) look(ctx context.Context) {
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticks.C:
			rows := l.board.Picture(now, 0).Rows(nil)
			board.Sort(rows, board.ByWaiting)
			var looks []*board.Lock
			for _, r := range rows[:min(len(rows), lookAt)] {
				looks = append(looks, r.Lock)
			}
			l.feed.Look(looks)
		}
	}
}
