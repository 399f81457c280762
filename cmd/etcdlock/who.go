package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (a *app) whoCommand() *cobra.Command {
	w := new(who)
	c := &cobra.Command{
		Use:   "who [flags] [NAME]",
		Short: "show who holds locks and who waits for them",
		Long: `Show who holds locks and who waits for them.

Without NAME it shows all locks, or those below --prefix. It writes nothing.

The columns: the place in line, its token (see etcdlock help run), its owner, when its key was
put by the owner's clock, its lease, and how much of the lease is left. A lease that never gets
full again belongs to a dead process, and the place goes with it. Then its mode, and what its
owner tells of itself. Several of mode read may hold at once, and several of mode permit up to
their limit. A place that is kept is that of a hold which is over: the lock stays taken for so
much longer (run --at-least), or until another process goes on with it. Contenders of other
programs (etcdctl lock, for instance) are exclusive, and have no owner and no info.

-o json writes one array. An element has name, place (0 is the first in line), token, key, lease
(hex), owner, host, pid, since, which is null for contenders of other programs, mode, holds, info
and until, which is null unless the place is kept.

Exit status: 0, even if nobody holds or waits; 64 usage; 125 no answer from etcd.`,
		Args: atMost(1),
		RunE: func(_ *cobra.Command, args []string) error { return w.run(a, args...) },
	}
	c.Flags().StringVar(&w.prefix, "prefix", "", "prefix of the locks' names")
	c.Flags().StringVarP(&w.format, "output", "o", "table", "table or json")
	c.Flags().BoolVar(&w.watch, "watch", false, "repeat every second until ^C")
	_ = c.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// who is the who command with its flags.
type who struct {
	prefix, format string
	watch          bool
	name           string
	etcd           *connection
}

func (w *who) run(a *app, names ...string) error {
	w.name, w.etcd = strings.Join(names, ""), &a.etcd
	switch {
	case w.prefix != "" && w.name != "":
		return misused("--prefix %q and the name %q: only one of them", w.prefix, w.name)
	case w.format != "table" && w.format != "json":
		return misused("-o %q: table or json", w.format)
	case w.format == "json" && w.watch:
		return misused("-o json and --watch: only one of them")
	}
	client, err := w.etcd.open()
	if err != nil {
		return err
	}
	defer client.Close()
	if w.watch {
		return w.follow(a, client)
	}
	ctx, cancel := w.etcd.bounded()
	defer cancel()
	places, err := w.read(ctx, client)
	if err != nil {
		return ends(exitFailed, err)
	}
	if w.format == "json" {
		return writeJSON(a.stdout, places)
	}
	w.print(ctx, client, a.stdout, places)
	return nil
}

func (w *who) read(ctx context.Context, client *clientv3.Client) (places []place, err error) {
	if w.name != "" {
		places, err = placesOf(ctx, client, w.name)
	} else {
		places, err = placesBelow(ctx, client, w.prefix)
	}
	if err != nil {
		return nil, w.etcd.noAnswer(err)
	}
	return places, nil
}

// print writes the table.
func (w *who) print(ctx context.Context, client *clientv3.Client, to io.Writer, places []place) {
	switch {
	case len(places) > 0:
		printTable(ctx, client, to, places)
	case w.name != "":
		fmt.Fprintf(to, "nobody holds %q or waits for it\n", w.name)
	default:
		fmt.Fprintf(to, "nobody holds a lock whose name begins with %q\n", w.prefix)
	}
}

func printTable(ctx context.Context, client *clientv3.Client, to io.Writer, places []place) {
	left := ttlsLeft(ctx, client, places)
	now := time.Now()
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	defer table.Flush()
	fmt.Fprintln(table, "NAME\tPLACE\tTOKEN\tOWNER\tQUEUED\tLEASE\tTTL LEFT\tMODE\tINFO")
	for _, p := range places {
		what, owner, queued := fmt.Sprintf("waits %d", p.Number),
			cmp.Or(plain(p.Owner), "(another program)"), "-"
		if process := fmt.Sprintf("%s:%d", p.Host, p.PID); p.Host != "" && p.Owner != process {
			owner += " (" + plain(process) + ")"
		}
		switch {
		case !p.Until.IsZero():
			what = "kept " + max(0, p.Until.Sub(now)).Round(time.Second).String()
		case p.Holds:
			what = "holds"
		}
		if !p.Since.IsZero() {
			queued = now.Sub(p.Since).Round(time.Second).String() + " ago"
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%x\t%s\t%s\t%s\n", plain(p.Name), what,
			p.Token, owner, queued, int64(p.Lease), left[p.Lease], p.Mode, cmp.Or(plain(p.Info), "-"))
	}
}

// atOnce is how many leases are asked for at a time.
const atOnce = 8

// ttlsLeft returns what is left of each lease, or why that is not known. A lease may have many
// places.
func ttlsLeft(
	ctx context.Context, client *clientv3.Client, places []place,
) map[clientv3.LeaseID]string {
	var leases []clientv3.LeaseID
	for _, p := range places {
		leases = append(leases, p.Lease)
	}
	slices.Sort(leases)
	leases = slices.Compact(leases)
	texts := make([]string, len(leases))
	var asking sync.WaitGroup
	for first := range min(atOnce, len(leases)) {
		asking.Go(func() {
			for i := first; i < len(leases); i += atOnce {
				texts[i] = ttlLeft(ctx, client, leases[i])
			}
		})
	}
	asking.Wait()
	left := make(map[clientv3.LeaseID]string)
	for i, lease := range leases {
		left[lease] = texts[i]
	}
	return left
}

func ttlLeft(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID) string {
	resp, err := client.TimeToLive(ctx, lease)
	switch {
	case err != nil:
		return "unknown: " + err.Error()
	case resp.TTL < 0:
		return "gone"
	}
	return fmt.Sprintf("%ds of %ds", resp.TTL, resp.GrantedTTL)
}

// plain is text, quoted if a terminal would interpret some of it.
func plain(text string) string {
	if quoted := strconv.Quote(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}

// A record is a place in JSON. Other programs read it, so it stays as it is.
type record struct {
	Name  string     `json:"name"`
	Place int        `json:"place"`
	Token int64      `json:"token"`
	Key   string     `json:"key"`
	Lease string     `json:"lease"`
	Owner string     `json:"owner"`
	Host  string     `json:"host"`
	PID   int        `json:"pid"`
	Since *time.Time `json:"since"`
	Mode  string     `json:"mode"`
	Holds bool       `json:"holds"`
	Info  string     `json:"info"`
	Until *time.Time `json:"until"`
}

func writeJSON(to io.Writer, places []place) error {
	records := make([]record, len(places))
	for i, p := range places {
		records[i] = record{
			Name: p.Name, Place: p.Number, Token: p.Token, Key: p.Key,
			Lease: strconv.FormatInt(int64(p.Lease), 16), Owner: p.Owner, Host: p.Host, PID: p.PID,
			Mode: string(p.Mode), Holds: p.Holds, Info: p.Info,
		}
		if !p.Since.IsZero() {
			records[i].Since = &p.Since
		}
		if !p.Until.IsZero() {
			records[i].Until = &p.Until
		}
	}
	encoder := json.NewEncoder(to)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(records)
}

// follow repeats the table until the program is ended. It asks a slow etcd less often.
func (w *who) follow(a *app, client *clientv3.Client) error {
	screen := &screen{to: a.stdout}
	for {
		started := time.Now()
		var table strings.Builder
		ctx, cancel := w.etcd.bounded()
		if places, err := w.read(ctx, client); err != nil {
			fmt.Fprintf(&table, "%v\n", err)
		} else {
			w.print(ctx, client, &table, places)
		}
		cancel()
		if err := screen.show(table.String()); err != nil {
			return ends(exitFailed, err)
		}
		time.Sleep(max(watchEvery, 9*time.Since(started)))
	}
}

// watchEvery is the time from one table to the next.
const watchEvery = time.Second

// A screen shows one text after the other. On a terminal each replaces the one before.
type screen struct {
	to    io.Writer
	shown bool
}

func (s *screen) show(text string) error {
	rows, columns, terminal := 0, 0, false
	if f, ok := s.to.(*os.File); ok {
		rows, columns, terminal = windowSize(f)
	}
	switch {
	case terminal:
		text = frame(text, rows, columns)
	case s.shown:
		text = "\n" + text
	}
	s.shown = true
	_, err := io.WriteString(s.to, text)
	return err
}

// frame is text for a terminal that shows something already, cut to the window: a longer line
// would scroll the others away. It overwrites each line instead of clearing the screen, so that
// nothing flickers.
func frame(text string, rows, columns int) string {
	var out strings.Builder
	out.WriteString("\x1b[H")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if hidden := len(lines) - (rows - 1); hidden > 0 && rows > 2 {
		lines = append(lines[:rows-2], fmt.Sprintf("(%d more)", hidden+1))
	}
	for _, line := range lines {
		if runes := []rune(line); columns > 0 && len(runes) > columns {
			line = string(runes[:columns])
		}
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	return out.String()
}
