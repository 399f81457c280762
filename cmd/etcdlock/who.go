package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
	"github.com/etcdlock/etcdlock/internal/quote"
)

func (a *app) whoCommand() *cobra.Command {
	w := new(who)
	c := &cobra.Command{
		Use:   "who [flags] [NAME]",
		Short: "show who holds locks and who waits for them",
		Long: `Show who holds locks and who waits for them.

Without NAME it shows all locks, or those below --prefix. It writes nothing.

The columns: the place in line, its token (see etcdlock help run), its owner, and when its key was
put by the owner's clock. HELD is for how long it holds. A holder that has waited before shows
<25s: less than since it was put. With --watch who sees when its turn comes, and knows better. It
is "unknown" until etcd has told. Then its lease, and how much of the lease is left. "late" means
that renewals are overdue. A lease that never gets full again belongs to a dead process, and the
place goes with it. Then its mode, and what its owner tells of itself. Several of mode read may
hold at once, and several of mode permit up to their limit. A place that is kept is that of a hold
which is over: the lock stays taken for so much longer (run --at-least), or until another process
goes on with it. Contenders of other programs (etcdctl lock, for instance) are exclusive, and have
no owner and no info. A name or an owner of more than 48 characters is shown without its middle.

-o json writes one array. An element has name, place (0 is the first in line), token, key, lease
(hex), owner, host, pid, since (when its key was put), which is null for contenders of other
programs, mode, holds, info, until, which is null unless the place is kept, held_since, which is
null for one that waits or has waited, ttl, ttl_left (seconds, null if the lease has run out) and
late. With --watch it writes such an array, in one line, each time when the locks differ from the
line before in more than ttl_left.

Exit status: 0, even if nobody holds or waits; 64 usage; 125 no answer from etcd.`,
		Args:              atMost(1),
		RunE:              func(_ *cobra.Command, args []string) error { return w.run(a, args...) },
		ValidArgsFunction: a.lockNames,
	}
	c.Flags().StringVar(&w.prefix, "prefix", "", "prefix of the locks' names")
	c.Flags().StringVarP(&w.format, "output", "o", "table", "table or json")
	c.Flags().BoolVar(&w.watch, "watch", false, "look again every second until ^C")
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
	seen           holds
}

func (w *who) run(a *app, names ...string) error {
	w.name, w.etcd = strings.Join(names, ""), &a.etcd
	switch {
	case w.prefix != "" && w.name != "":
		return misused("--prefix %q and the name %q: only one of them", w.prefix, w.name)
	case w.format != "table" && w.format != "json":
		return misused("-o %q: must be table or json", w.format)
	case strings.HasSuffix(w.name, "/"):
		return misused("no name ends with \"/\": --prefix %s shows the locks below it",
			quote.Text(w.name))
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
		return writeLine(a.stdout, w.records(ctx, client, places))
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
		printTable(ctx, client, to, places, &w.seen)
	case w.name != "":
		fmt.Fprintf(to, "nobody holds %q or waits for it\n", w.name)
		if nested(ctx, client, w.name) {
			fmt.Fprintf(to, "(etcdlock who --prefix %s shows locks below it)\n", quote.Text(w.name+"/"))
		}
	case w.prefix != "":
		fmt.Fprintf(to, "nobody holds a lock whose name begins with %q\n", w.prefix)
	default:
		fmt.Fprintln(to, "nobody holds a lock")
	}
}

func printTable(
	ctx context.Context, client *clientv3.Client, to io.Writer, places []place, seen *holds,
) {
	left := leftOf(ctx, client, places)
	now := time.Now()
	seen.look(ctx, client, places, now)
	table := [][]string{{"NAME", "PLACE", "TOKEN", "OWNER", "QUEUED", "HELD", "LEASE", "TTL LEFT",
		"MODE", "INFO"}}
	for _, p := range places {
		what, queued := fmt.Sprintf("waits %d", p.Number), "-"
		switch {
		case !p.Until.IsZero():
			what = "kept " + span(max(0, p.Until.Sub(now)))
		case p.Holds:
			what = "holds"
		}
		if !p.Since.IsZero() {
			queued = span(now.Sub(p.Since)) + " ago"
		}
		table = append(table, []string{cells.Middle(quote.Text(p.Name), widest), what,
			fmt.Sprint(p.Token), cells.Middle(ownerOf(p.Contender), widest), queued,
			heldText(p, seen.since[hold{p.Key, p.Token}], now), fmt.Sprintf("%x", int64(p.Lease)),
			left[p.Lease].text(), string(p.Mode),
			cells.Cut(cmp.Or(quote.Text(p.Info), "-"), widestInfo)})
	}
	align(to, table)
}

// widest is the widest name or owner of a table, and widestInfo the widest info, which is the last
// of its row. JSON has all of a longer text.
const widest, widestInfo = 48, 120

// align writes a table. Each column is as wide as its widest cell.
func align(to io.Writer, table [][]string) {
	wide := make([]int, len(table[0]))
	for _, row := range table {
		for i, text := range row {
			wide[i] = max(wide[i], cells.Width(text))
		}
	}
	out := bufio.NewWriter(to)
	defer out.Flush()
	for _, row := range table {
		last := len(row) - 1
		for i, text := range row[:last] {
			fmt.Fprint(out, cells.Pad(text, wide[i]), "  ")
		}
		fmt.Fprintln(out, row[last])
	}
}

// ownerOf is the owner of a place, with its process if the owner is called otherwise.
func ownerOf(c etcdlock.Contender) string {
	return cmp.Or(quote.Owner(c.Owner, c.Host, c.PID), "(another program)")
}

// text is for the table.
func (l left) text() string {
	switch {
	case l.err != nil:
		return "unknown: " + quote.Line(plainly(l.err))
	case l.ttl < 0:
		return "gone"
	case l.late():
		return fmt.Sprintf("%ds of %ds, late", l.ttl, l.granted)
	}
	return fmt.Sprintf("%ds of %ds", l.ttl, l.granted)
}

// heldText is how long p has held. One that has waited before has held for less than since it was
// put.
func heldText(p place, since began, now time.Time) string {
	switch {
	case !p.Holds || !p.Until.IsZero() || since.at.IsZero() && p.Since.IsZero():
		return "-"
	case !since.known:
		return "unknown"
	case since.at.IsZero():
		return "<" + span(now.Sub(p.Since))
	}
	return span(now.Sub(since.at))
}

// longest is the longest time that is shown. What others have written may be of any year.
const longest = 9999 * time.Hour

// span is a time in a table.
func span(d time.Duration) string {
	switch {
	case d > longest:
		return ">9999h"
	case d < -longest:
		return "<-9999h"
	}
	return d.Round(time.Second).String()
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

	HeldSince *time.Time `json:"held_since"`
	TTL       *int64     `json:"ttl"`
	TTLLeft   *int64     `json:"ttl_left"`
	Late      bool       `json:"late"`
}

// records are the places in JSON.
func (w *who) records(
	ctx context.Context, client *clientv3.Client, places []place,
) []record {
	lefts := leftOf(ctx, client, places)
	w.seen.look(ctx, client, places, time.Now())
	records := make([]record, len(places))
	for i, p := range places {
		since := w.seen.since[hold{p.Key, p.Token}]
		records[i] = record{
			Name: p.Name, Place: p.Number, Token: p.Token, Key: p.Key,
			Lease: strconv.FormatInt(int64(p.Lease), 16), Owner: p.Owner, Host: p.Host, PID: p.PID,
			Since: unlessZero(p.Since), Mode: string(p.Mode), Holds: p.Holds, Info: p.Info,
			Until: unlessZero(p.Until), HeldSince: unlessZero(since.at), Late: lefts[p.Lease].late(),
		}
		if left := lefts[p.Lease]; left.err == nil && left.ttl >= 0 {
			records[i].TTL, records[i].TTLLeft = &left.granted, &left.ttl
		}
	}
	return records
}

// json is the places as one line. state is the same without what changes each second: what is left
// of the leases.
func (w *who) json(
	ctx context.Context, client *clientv3.Client, places []place,
) (text, state string, err error) {
	records := w.records(ctx, client, places)
	if text, err = oneLine(records); err != nil {
		return "", "", err
	}
	for i := range records {
		records[i].TTLLeft = nil
	}
	state, err = oneLine(records)
	return text, state, err
}

func unlessZero(at time.Time) *time.Time {
	if at.IsZero() {
		return nil
	}
	return &at
}

func oneLine(records []record) (string, error) {
	var text strings.Builder
	err := writeLine(&text, records)
	return text.String(), err
}

// writeLine writes records as one array, one at a time: they may be long, and many.
func writeLine(to io.Writer, records []record) error {
	line := bufio.NewWriter(to)
	between := "["
	for _, r := range records {
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(r); err != nil {
			return err
		}
		fmt.Fprint(line, between, strings.TrimSuffix(quote.JSON(text.String()), "\n"))
		between = ","
	}
	if len(records) == 0 {
		fmt.Fprint(line, between)
	}
	fmt.Fprintln(line, "]")
	return line.Flush()
}

// follow shows the locks until the program is ended. It asks a slow etcd less often.
func (w *who) follow(a *app, client *clientv3.Client) error {
	show := w.tables(a, client)
	if w.format == "json" {
		show = w.states(a, client)
	}
	for {
		started := time.Now()
		ctx, cancel := w.etcd.bounded()
		err := show(ctx)
		cancel()
		if err != nil {
			return ends(exitFailed, err)
		}
		time.Sleep(max(watchEvery, 9*time.Since(started)))
	}
}

// tables returns what shows one table after the other.
func (w *who) tables(a *app, client *clientv3.Client) func(context.Context) error {
	screen := &screen{to: a.stdout}
	return func(ctx context.Context) error {
		var table strings.Builder
		if places, err := w.read(ctx, client); err != nil {
			fmt.Fprintf(&table, "%s\n", quote.Line(err.Error()))
		} else {
			w.print(ctx, client, &table, places)
		}
		return screen.show(table.String())
	}
}

// states returns what writes the locks as a line of JSON, unless they are as before.
func (w *who) states(a *app, client *clientv3.Client) func(context.Context) error {
	before := ""
	return func(ctx context.Context) error {
		places, err := w.read(ctx, client)
		if err != nil {
			a.say("%v", err)
			return nil
		}
		text, state, err := w.json(ctx, client, places)
		if err != nil || state == before {
			return err
		}
		before = state
		_, err = io.WriteString(a.stdout, text)
		return err
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
		if columns > 0 {
			line = cells.Head(line, columns)
		}
		out.WriteString(line + "\x1b[K\n")
	}
	out.WriteString("\x1b[J")
	return out.String()
}
