package top

import (
	"fmt"

	"github.com/etcdlock/etcdlock/internal/quote"
)

// A Key is a key that was pressed: one of these, or a character.
type Key rune

// The keys that are no characters.
const (
	Up Key = -iota - 1
	Down
	PageUp
	PageDown
	Home
	End
	Enter
	Esc
	Backspace
	F1
	F4
	F6
	F10
	CtrlC
)

// Press does what a key does. It returns whether to quit, or what to recall or to break.
func (v *View) Press(k Key) (quit bool, do *Target) {
	switch {
	case k == CtrlC:
		return true, nil
	case v.asks != nil:
		return false, v.pressAnswer(k)
	case v.typing:
		v.pressFilter(k)
		return false, nil
	}
	v.Message = ""
	switch k {
	case 'q', F10:
		return true, nil
	case 'h', '?', F1:
		v.mode = help
	case 'w':
		v.mode = waits
	case ' ':
		v.paused = !v.paused
	case Esc:
		if v.mode == list {
			v.filter = ""
		}
		v.mode = list
		v.sort()
	default:
		if v.mode == detail {
			v.pressDetail(k)
		} else if v.mode == list {
			v.pressList(k)
		}
	}
	return false, nil
}

func (v *View) pressList(k Key) {
	switch k {
	case '/', F4:
		v.typing = true
	case 't':
		if v.lanes = !v.lanes; !v.lanes {
			v.past = nil // it is not kept up to date
		}
		v.move(0) // their legend takes a row
	case '<':
		v.order = v.order.Next(-1)
		v.sort()
	case '>', F6:
		v.order = v.order.Next(1)
		v.sort()
	case Enter:
		if len(v.rows) > 0 {
			v.mode, v.place = detail, 0
		}
	case 'r', 'b':
		if len(v.rows) > 0 { // a question shows whom it is about, in the line
			v.mode, v.place = detail, 0
			v.pressDetail(k)
		}
		if v.asks == nil {
			v.mode = list
		}
	default:
		v.move(steps(k, v.body(), len(v.rows)))
	}
}

// steps is how far a key moves a cursor.
func steps(k Key, page, all int) int {
	switch k {
	case Up, 'k':
		return -1
	case Down, 'j':
		return 1
	case PageUp:
		return -page
	case PageDown:
		return page
	case Home, 'g':
		return -all
	case End, 'G':
		return all
	}
	return 0
}

func (v *View) pressFilter(k Key) {
	switch k {
	case Enter:
		v.typing = false
	case Esc:
		v.typing, v.filter = false, ""
	case Backspace:
		if runes := []rune(v.filter); len(runes) > 0 {
			v.filter = string(runes[:len(runes)-1])
		}
	default:
		if k >= ' ' {
			v.filter += string(k)
		}
	}
	v.sort()
}

func (v *View) pressDetail(k Key) {
	l := v.lock()
	if l == nil {
		return
	}
	switch k {
	case 'r', 'b':
		breaks := k == 'b'
		if allowed := breaks && v.Break || !breaks && v.Recall; !allowed {
			v.Message = "not allowed: start top with --allow recall or --allow break"
			return
		}
		if !breaks && !l.Places[v.place].Recallable {
			v.Message = "this place has not said that it listens to a recall"
			return
		}
		v.asks, v.answer = &Target{l.Name, l.Places[v.place], breaks}, ""
	default:
		v.place = max(0, min(v.place+steps(k, v.body(), len(l.Places)), len(l.Places)-1))
	}
}

// question is what top asks before it writes.
func (v *View) question() string {
	p := v.asks.Place
	if v.asks.Break {
		has, instead := "held by", "Recall (r) would ask it to give the lock back."
		if !p.Holds {
			has = "for which waits"
		}
		if !p.Recallable {
			instead = "It does not listen to a recall: stop it before."
		}
		return fmt.Sprintf("Break %s, %s %s? It is not stopped: two may work then. %s "+
			"Type its token, %d: %s_", quote.Text(v.asks.Lock), has, p.Whose(), instead, p.Token, v.answer)
	}
	return fmt.Sprintf("Ask %s to give %s back? Type yes: %s_", p.Whose(), quote.Text(v.asks.Lock),
		v.answer)
}

// pressAnswer takes the answer to the question. Any but the right one does nothing.
func (v *View) pressAnswer(k Key) *Target {
	switch k {
	case Enter:
		asked, right := v.asks, "yes"
		if asked.Break {
			right = fmt.Sprint(asked.Place.Token)
		}
		v.asks = nil
		if v.answer == right {
			return asked
		}
		v.Message = "nothing was done"
	case Esc:
		v.asks, v.Message = nil, "nothing was done"
	case Backspace:
		v.answer = v.answer[:max(0, len(v.answer)-1)]
	default:
		if k >= ' ' && k <= '~' && len(v.answer) < 20 {
			v.answer += string(k)
		}
	}
	return nil
}
