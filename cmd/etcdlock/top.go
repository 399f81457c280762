package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"
	"github.com/spf13/cobra"

	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/cells"
	"github.com/etcdlock/etcdlock/cmd/etcdlock/internal/top"
)

func (a *app) topCommand() *cobra.Command {
	l := new(live)
	c := &cobra.Command{
		Use:   "top [flags]",
		Short: "show all locks live, on a terminal",
		Long: `Show all locks live, on a terminal.

Each row is a lock: who holds it and for how long, how many wait and how long the one that waits
longest, its kind, what is left of the holder's lease, and what is unusual: a lease that is late, a
recall, a lock that is kept though its hold is over. Enter shows one lock with its line. t shows the
last minutes of each. w shows which Session waits for which: Sessions that wait for each other are a
deadlock, or may be one. F1 has the keys.

It reads the locks once and follows them by one watch, so that it costs their holders nothing. It
writes nothing, unless --allow says so: then r recalls the holder, or in a line the place under the
cursor, and b breaks it, each after a question. NO_COLOR turns colours off.

Exit status: 0; 128+n ended by signal n; 64 usage; 125 no answer to a login, or no terminal. An etcd
that does not answer ends nothing: top says so, and goes on trying.`,
		Args: atMost(0),
		RunE: func(*cobra.Command, []string) error { return l.top(a) },
	}
	l.flags(c)
	return c
}

// drawEvery is how often top looks at the board. A key is answered at once.
const drawEvery = 500 * time.Millisecond

func (l *live) top(a *app) error {
	if err := l.check(); err != nil {
		return err
	}
	// Without negotiation the size comes from the system. tmux before 3.4 answers a question about it
	// with rows and columns swapped.
	screen, err := tcell.NewScreen(tcell.OptNegotiation(runtime.GOOS == "windows"))
	if err != nil {
		return ends(exitFailed, fmt.Errorf("top needs a terminal (who --watch does not): %w", err))
	}
	stop, err := l.start(a)
	if err != nil {
		return err
	}
	defer stop()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	if err := screen.Init(); err != nil {
		return ends(exitFailed, fmt.Errorf("top needs a terminal (who --watch does not): %w", err))
	}
	defer screen.Fini()
	v := &top.View{Prefix: l.prefix, ASCII: screen.CharacterSet() != "UTF-8",
		Recall: l.allows("recall"), Break: l.allows("break")}
	v.Width, v.Height = screen.Size()
	ticks := time.NewTicker(drawEvery)
	defer ticks.Stop()
	done := make(chan string, 1)
	for {
		if picture := l.board.Picture(time.Now(), 0); picture.Revision > 0 || picture.Trouble != "" {
			v.Show(picture)
		}
		if v.Lanes() {
			v.Remember(l.board.History(time.Now(), 0))
		}
		l.feed.Look(v.Looks())
		draw(screen, v.Lines())
		select {
		case event := <-screen.EventQ():
			switch event := event.(type) {
			case nil: // the terminal is gone
				return nil
			case *tcell.EventResize:
				v.Width, v.Height = event.Size()
				screen.Sync()
			case *tcell.EventKey:
				quit, target := v.Press(keyOf(event))
				if quit {
					return nil
				}
				if target != nil {
					what := "recall"
					if target.Break {
						what = "break"
					}
					go func() { done <- l.act(what, target.Lock, target.Place) }() // bounded
				}
			}
		case v.Message = <-done:
		case s := <-signals:
			return ends(exitSignal+int(s.(syscall.Signal)), nil)
		case <-ticks.C:
		}
	}
}

// keys are the keys that are no characters.
var keys = map[tcell.Key]top.Key{
	tcell.KeyUp: top.Up, tcell.KeyDown: top.Down, tcell.KeyPgUp: top.PageUp,
	tcell.KeyPgDn: top.PageDown, tcell.KeyHome: top.Home, tcell.KeyEnd: top.End,
	tcell.KeyEnter: top.Enter, tcell.KeyEsc: top.Esc,
	tcell.KeyBackspace: top.Backspace, tcell.KeyBackspace2: top.Backspace, tcell.KeyF1: top.F1,
	tcell.KeyF4: top.F4, tcell.KeyF6: top.F6, tcell.KeyF10: top.F10, tcell.KeyCtrlC: top.CtrlC,
}

func keyOf(event *tcell.EventKey) top.Key {
	if event.Key() == tcell.KeyRune {
		for _, r := range event.Str() {
			return top.Key(r)
		}
	}
	return keys[event.Key()]
}

// styles are how top's styles look. A terminal without colours leaves these out.
var styles = map[top.Style]tcell.Style{
	top.Plain:    tcell.StyleDefault,
	top.Bold:     tcell.StyleDefault.Bold(true),
	top.Head:     tcell.StyleDefault.Reverse(true),
	top.Selected: tcell.StyleDefault.Reverse(true).Bold(true),
	// Reversed, a colour is the ground.
	top.SelectedWarn: tcell.StyleDefault.Reverse(true).Bold(true).Foreground(color.Yellow),
	top.SelectedBad:  tcell.StyleDefault.Reverse(true).Bold(true).Foreground(color.Red),
	top.Good:         tcell.StyleDefault.Foreground(color.Green),
	top.Warn:         tcell.StyleDefault.Foreground(color.Yellow),
	top.Bad:          tcell.StyleDefault.Foreground(color.Red).Bold(true),
	top.Faint:        tcell.StyleDefault.Dim(true),

	// Of owners: blue, orange, green, violet, yellow and grey, as on the page of ui.
	top.Owner:     tcell.StyleDefault.Foreground(color.NewHexColor(0x3f8cff)),
	top.Owner + 1: tcell.StyleDefault.Foreground(color.NewHexColor(0xe8662a)),
	top.Owner + 2: tcell.StyleDefault.Foreground(color.NewHexColor(0x20d595)),
	top.Owner + 3: tcell.StyleDefault.Foreground(color.NewHexColor(0xdea0ee)),
	top.Owner + 4: tcell.StyleDefault.Foreground(color.NewHexColor(0xd9f068)),
	top.Owner + 5: tcell.StyleDefault.Foreground(color.NewHexColor(0x818596)),
}

func draw(screen tcell.Screen, lines []top.Line) {
	width, _ := screen.Size()
	for y, line := range lines {
		x := 0
		for _, piece := range line {
			cells.Each(piece.Text, func(character string, width int) {
				screen.Put(x, y, character, styles[piece.Style])
				x += width
			})
		}
		for ; x < width; x++ {
			screen.Put(x, y, " ", tcell.StyleDefault)
		}
	}
	screen.Show()
}
