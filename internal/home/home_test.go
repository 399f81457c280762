package home_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/etcdlock/etcdlock/internal/home"
)

type (
	queue  = home.Queue[string]
	waiter = home.Waiter[string]
)

// A desk is a queue and the waiters that have come to it, by name.
type desk struct {
	queue
	waiters map[string]*waiter
}

func (d *desk) of(name string) *waiter {
	if name == "" {
		return new(waiter)
	}
	if d.waiters == nil {
		d.waiters = make(map[string]*waiter)
	}
	if w := d.waiters[name]; w == nil || w.Standing() == home.Gone { // it comes again
		d.waiters[name] = &waiter{
			Value: name, Shares: name[0] == 'r' || name[0] == 't', Steps: name[0] == 'p',
			Try: name[0] == 't',
		}
	}
	return d.waiters[name]
}

// there is the latest waiter of a name.
func (d *desk) there(name string) *waiter {
	if w := d.waiters[name]; w != nil {
		return w
	}
	return d.of(name)
}

// do does one step of the tables, and returns what comes of it.
func (d *desk) do(step string) string {
	verb, arg, _ := strings.Cut(strings.TrimSpace(step), " ")
	switch verb {
	case "enter":
		if d.Enter(d.of(arg)) {
			return "has"
		}
		return "waits"
	case "hold":
		d.Hold(d.there(arg))
		return ""
	case "leave":
		return d.Leave(d.there(arg)).String()
	case "gather":
		d.Gather()
		return ""
	case "come": // to get the turn beside its owner at once
		d.Enter(d.of(arg))
		return d.Admit()
	case "admit":
		return d.Admit()
	case "part":
		w := d.there(arg)
		if d.Sharing() == 0 && (w.Standing() == home.Owner || w.Standing() == home.Holder) {
			return "false"
		}
		_, ends := d.End(w, false)
		return fmt.Sprint(ends == home.Parts)
	case "early":
		var early []string
		for w := d.First(); w != nil && d.Early(w); w = d.waiters[after(d, w.Value)] {
			early = append(early, w.Value)
		}
		return strings.Join(early, " ")
	case "have":
		have := slices.Collect(d.Having())
		slices.Reverse(have)
		return strings.Join(have, " ")
	case "allshare":
		return fmt.Sprint(d.AllShare())
	case "allstep":
		return fmt.Sprint(d.AllStep())
	case "choose":
		return said(d.Choose())
	case "pass":
		if d.Sharing() > 0 {
			panic("others have the turn")
		}
		next, ends := d.End(d.there(d.Owner()), false)
		return said(next, ends != home.Frees)
	case "ahead":
		if arg == "" {
			return fmt.Sprint(d.Ahead(nil))
		}
		return fmt.Sprint(d.Ahead(d.of(arg)))
	}
	panic("no step: " + step)
}

// after returns the waiter behind another, and "" if there is none.
func after(d *desk, name string) string {
	all := slices.Collect(d.All())[:d.Waiting()]
	if i := slices.Index(all, name); i+1 < len(all) {
		return all[i+1]
	}
	return ""
}

func said(name string, ok bool) string {
	if !ok {
		return "nobody"
	}
	return name
}

// look describes d: its state, the owner, and the waiters in the order of All.
func (d *desk) look() string {
	all := strings.Join(slices.Collect(d.All()), " ")
	return strings.TrimSpace(fmt.Sprintf("%v %s", d.State(), all))
}

// split returns the steps of a row.
func split(steps string) []string {
	return strings.FieldsFunc(steps, func(r rune) bool { return r == ',' })
}

// The owner of the turn, and the next one: first come, first served.
func TestTurns(t *testing.T) {
	rows := []struct {
		promise string
		steps   string // each step with what comes of it, after "="
		then    string
	}{
		{"nobody came", "", "free"},
		{"the first has the turn", "enter a=has", "taken a"},
		{"the second waits", "enter a=has, enter b=waits", "taken b a"},
		{"a turn goes to the first that waits",
			"enter a=has, enter b=waits, enter c=waits, pass=b", "taken c b"},
		{"and back to nobody", "enter a=has, pass=nobody", "free"},
		{"who had it comes again behind the others",
			"enter a=has, enter b=waits, pass=b, enter a=waits", "taken a b"},
		{"whoever comes then has it", "enter a=has, pass=nobody, enter b=has", "taken b"},

		{"the first leaves",
			"enter a=has, enter b=waits, enter c=waits, leave b=waiting, pass=c", "taken c"},
		{"one leaves from the middle",
			"enter a=has, enter b=waits, enter c=waits, enter d=waits, " +
				"leave c=waiting", "taken b d a"},
		{"the last leaves",
			"enter a=has, enter b=waits, enter c=waits, leave c=waiting, " +
				"enter d=waits", "taken b d a"},
		{"all leave", "enter a=has, enter b=waits, leave b=waiting, pass=nobody", "free"},
		{"the owner goes away as its turn comes",
			"enter a=has, enter b=waits, pass=b, leave b=owner", "taken b"},
		{"and passes it on",
			"enter a=has, enter b=waits, enter c=waits, pass=b, leave b=owner, " +
				"pass=c", "taken c"},

		{"a release chooses the next",
			"enter a=has, hold a=, enter b=waits, enter c=waits, choose=b", "passing b c a"},
		{"who has the turn after it",
			"enter a=has, hold a=, enter b=waits, enter c=waits, choose=b, pass=b", "taken c b"},
		{"one that only tries is not chosen", "enter r=has, hold r=, enter t=waits, choose=nobody", "taken t r"},
		{"nobody is chosen while several have the turn",
			"enter r=has, hold r=, come r2=r2, enter a=waits, choose=nobody", "taken a r"},
		{"nobody is there to be chosen", "enter a=has, hold a=, choose=nobody", "taken a"},
		{"whoever comes during the release gets the turn then",
			"enter a=has, hold a=, choose=nobody, enter b=waits, pass=b", "taken b"},
		{"the chosen one leaves, another waits",
			"enter a=has, hold a=, enter b=waits, enter c=waits, choose=b, leave b=next, " +
				"pass=c", "taken c"},
		{"the chosen one leaves, nobody waits",
			"enter a=has, hold a=, enter b=waits, choose=b, leave b=next, pass=nobody", "free"},
		{"the chosen one leaves, and comes again behind the others",
			"enter a=has, hold a=, enter b=waits, enter c=waits, choose=b, leave b=next, " +
				"pass=c, enter b=waits", "taken b c"},

		{"nobody is before the first", "ahead=0", "free"},
		{"the owner is before all",
			"enter a=has, enter b=waits, enter c=waits, ahead b=1, ahead c=2, " +
				"ahead=3", "taken b c a"},
		{"and so is the chosen one",
			"enter a=has, hold a=, enter b=waits, enter c=waits, choose=b, " +
				"ahead c=2, ahead=3", "passing b c a"},
		{"who has left is before nobody",
			"enter a=has, enter b=waits, enter c=waits, leave b=waiting, " +
				"ahead c=1", "taken c a"},

		{"one that shares waits until it is let in", "enter r=has, enter r2=waits", "taken r2 r"},
		{"and joins", "enter r=has, hold r=, enter r2=waits, admit=r2, have=r r2", "taken r"},
		{"one that comes may share at once", "enter r=has, hold r=, come r2=r2, come r3=r3, have=r r3 r2", "taken r"},
		{"those who share come before nobody",
			"enter r=has, hold r=, come r2=r2, come r3=r3, enter a=waits, ahead a=1", "taken a r"},
		{"one that shares goes away, and the others stay",
			"enter r=has, hold r=, come r2=r2, come r3=r3, part r2=true, have=r r3", "taken r"},
		{"the last to come goes away",
			"enter r=has, hold r=, come r2=r2, come r3=r3, part r3=true, have=r r2", "taken r"},
		{"the owner goes away, and another owns the turn",
			"enter r=has, hold r=, come r2=r2, come r3=r3, part r=true, have=r3 r2", "taken r3"},
		{"the last one has to pass the turn on",
			"enter r=has, hold r=, come r2=r2, enter a=waits, part r=true, part r2=false, pass=a",
			"taken a"},
		{"whoever is alone", "enter a=has, part a=false, pass=nobody", "free"},
		{"one that was let in keeps its hold",
			"enter r=has, hold r=, enter r2=waits, admit=r2, leave r2=beside, have=r r2", "taken r"},
		{"also once it owns the turn, since the owner has gone away",
			"enter r=has, hold r=, enter r2=waits, admit=r2, part r=true, leave r2=holder, have=r2",
			"taken r2"},
		{"one whose hold was closed as it was let in has none",
			"enter r=has, hold r=, enter r2=waits, admit=r2, part r2=true, leave r2=gone, have=r",
			"taken r"},
		{"who has gone away comes again",
			"enter r=has, hold r=, come r2=r2, part r=true, come r=r, have=r2 r",
			"taken r2"},
		{"the owner goes as somebody waits",
			"enter r=has, hold r=, come r2=r2, enter a=waits, part r=true", "taken a r2"},

		{"one that steps waits until the one before holds", "enter p=has, enter p2=waits", "taken p2 p"},
		{"and owns the turn then, beside that one",
			"enter p=has, hold p=, enter p2=waits, enter p3=waits, admit=p2, have=p2 p, hold p2=, admit=p3, have=p3 p2 p",
			"taken p3"},
		{"one that comes may do so at once", "enter p=has, hold p=, come p2=p2, hold p2=, come p3=p3, have=p3 p2 p", "taken p3"},
		{"one that holds goes away", "enter p=has, hold p=, come p2=p2, hold p2=, come p3=p3, part p=true, have=p3 p2", "taken p3"},
		{"who owns the turn gives up, and one that holds owns it",
			"enter p=has, hold p=, come p2=p2, hold p2=, come p3=p3, part p3=true, have=p2 p, come p3=p3, have=p3 p2 p", "taken p3"},
		{"who steps has no hold yet", "enter p=has, hold p=, come p2=p2, leave p2=owner, part p2=true", "taken p"},
		{"the last of them has to pass the turn on",
			"enter p=has, hold p=, come p2=p2, enter a=waits, part p2=true, part p=false, pass=a",
			"taken a"},
		{"nobody steps past one that does not",
			"enter p=has, hold p=, come p2=p2, hold p2=, enter a=waits, enter p3=waits, part p=true, choose=a, pass=a, pass=p3",
			"taken p3"},
		{"all that wait step",
			"enter p=has, enter p2=waits, allstep=true, allshare=false, enter a=waits, " +
				"allstep=false, leave a=waiting, allstep=true, enter r=waits, allstep=false", "taken p2 r p"},

		{"those right behind come before the put",
			"enter r=has, enter r2=waits, enter r3=waits, enter a=waits, enter r4=waits, gather=, " +
				"enter r5=waits, early=r2 r3", "taken r2 r3 a r4 r5 r"},
		{"and so do those behind one that does not share, once that has left",
			"enter r=has, enter a=waits, enter r2=waits, gather=, enter r3=waits, early=, " +
				"leave a=waiting, early=r2", "taken r2 r3 r"},
		{"nobody does behind one that does not share",
			"enter a=has, enter r2=waits, gather=, early=", "taken r2 a"},
		{"those behind the one that is chosen do",
			"enter a=has, hold a=, enter r=waits, enter r2=waits, enter b=waits, choose=r, gather=, " +
				"early=, pass=r, early=r2", "taken r2 b r"},
		{"who is early stays so as the owner changes",
			"enter r=has, enter r2=waits, enter r3=waits, gather=, pass=r2, early=r3", "taken r3 r2"},

		{"nobody waits", "enter r=has, allshare=true", "taken r"},
		{"one that does not share waits",
			"enter r=has, enter r2=waits, allshare=true, enter a=waits, allshare=false", "taken r2 a r"},
		{"it leaves", "enter r=has, enter a=waits, leave a=waiting, allshare=true", "taken r"},
		{"it is chosen", "enter r=has, hold r=, enter a=waits, choose=a, allshare=false", "passing a r"},
		{"it is chosen and leaves",
			"enter r=has, hold r=, enter a=waits, choose=a, leave a=next, allshare=true", "passing r"},
		{"it was chosen and had left",
			"enter r=has, hold r=, enter a=waits, enter b=waits, choose=a, leave a=next, pass=b, " +
				"allshare=true", "taken b"},
		{"it has the turn", "enter r=has, hold r=, enter a=waits, choose=a, pass=a, allshare=true", "taken a"},
		{"it got the turn at once", "enter r=has, enter a=waits, pass=a, allshare=true", "taken a"},
	}
	for _, row := range rows {
		t.Run(row.promise, func(t *testing.T) {
			var d desk
			for i, step := range split(row.steps) {
				step, want, _ := strings.Cut(step, "=")
				require.Equal(t, want, d.do(step), "step %d, %s", i+1, step)
			}
			require.Equal(t, row.then, d.look())
		})
	}
}

// A transition that would let two waiters hold, or lose a turn, panics.
func TestIllegalTransitionsPanic(t *testing.T) {
	rows := []struct {
		state string
		steps string
		bad   string
	}{
		{"free", "", "leave a, hold a, choose, pass, ahead a"},
		{"taken", "enter a", "enter a, leave b, ahead a, hold b, " +
			"choose"},
		{"taken, and one waits", "enter a, hold a, enter b", "enter b, hold a, hold b"},
		{"passing", "enter a, hold a, enter b, choose",
			"enter b, choose, ahead b, hold b"},
		{"passing, and the chosen one has left", "enter a, hold a, enter b, choose, leave b",
			"choose, admit"},
		{"one that shares has no hold yet", "enter r, enter r2", "admit, come r3, choose"},
		{"several share", "enter r, hold r, come r2",
			"pass, come r2, come a, admit, part a, hold r2"},
		{"several share, and one waits", "enter r, hold r, come r2, enter a", "come r3, admit, pass"},
		{"one that does not share has the turn", "enter a, hold a, enter r", "admit, come r2, come r"},
		{"it is alone", "enter a, hold a", "come r, come b, admit"},
		{"one that shares, and nobody waits", "enter r, hold r", "admit, come a, part r2"},
		{"one that steps has no hold yet", "enter p, enter p2", "admit, come p3, choose"},
		{"several step", "enter p, hold p, come p2, hold p2",
			"pass, come p2, come a, come r, admit, part a, come r, hold p"},
		{"several step, and one waits", "enter p, hold p, come p2, hold p2, enter a",
			"come p3, admit, pass"},
		{"one that does not step has the turn", "enter r, hold r, enter p", "admit, come p2, come p"},
		{"passing from one that steps", "enter p, hold p, enter p2, choose", "admit, come p3, part p2"},
		{"passing from one that shares", "enter r, hold r, enter r2, choose", "admit, come r3, part r2"},
	}
	for _, row := range rows {
		for _, bad := range split(row.bad) {
			t.Run(row.state+", "+bad, func(t *testing.T) {
				var d desk
				for _, step := range split(row.steps) {
					d.do(step)
				}
				require.Panics(t, func() { d.do(bad) })
			})
		}
	}
}

// A waiter for one name's turn takes no turn of another.
func TestAWaiterIsInOneQueue(t *testing.T) {
	var d, other desk
	other.waiters = map[string]*waiter{"b": d.of("b")}
	d.do("enter a")
	d.do("enter b")
	require.Panics(t, func() { other.do("enter b") })
	other.do("enter c")
	other.do("hold c")
	other.do("pass")
	require.Panics(t, func() { other.do("enter b") })
}

// Behind a few waiters, Ahead counts a waiter's place exactly. Behind more, it may be too
// high, but only by the number of waiters that have left from among them.
func TestAheadIsExactBehindAFew(t *testing.T) {
	const n = 40
	var d desk
	d.do("enter owner")
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("w", i)
		d.do("enter " + names[i])
	}
	for i := range 20 { // every second one of the first twenty leaves
		if i%2 == 1 {
			d.do("leave " + names[i])
		}
	}
	ahead := 1
	for i, name := range names {
		if d.of(name).Standing() != home.Waiting {
			continue
		}
		switch told := d.Ahead(d.of(name)); {
		case ahead <= 8+1:
			require.Equal(t, ahead, told, "%s", name)
		default:
			require.GreaterOrEqual(t, told, ahead, "%s", name)
			require.LessOrEqual(t, told, min(i+1, d.Waiting()), "%s", name)
		}
		ahead++
	}
	require.Equal(t, ahead, d.Ahead(nil))
}

// A model of the queue, by lists that it searches. Some waiters share, and some step.
type model struct {
	beside  []string // in the order in which they came
	waiting []string
	owner   string
	holds   bool     // the owner has a hold
	passing bool     // one was chosen
	next    string   // the chosen one, which is the first that waits; "" once it has left
	over    []string // the waiters that had a hold once
	came    int      // how many waiters have come, for their names
	early   []string
}

// legal returns the steps that may come next: none of them panics.
func (m *model) legal() []string {
	var steps []string
	for _, w := range m.waiting {
		steps = append(steps, "leave "+w)
		if w != m.next {
			steps = append(steps, "ahead "+w)
		}
	}
	if n := len(m.over); n > 0 {
		steps = append(steps, "leave "+m.over[n-1])
	}
	switch {
	case m.owner == "":
		return append(steps, "enter", "enter r", "enter p", "ahead", "allshare", "allstep")
	}
	steps = append(steps, "enter", "enter", "enter r", "enter p", "ahead", "allshare",
		"allstep", "have",
		"gather", "early")
	for _, w := range append(m.beside, m.owner) {
		steps = append(steps, "part "+w, "leave "+w)
	}
	if !m.passing && !m.holds {
		steps = append(steps, "hold "+m.owner, "hold "+m.owner)
	}
	if kind := m.owner[:1]; m.holds && !m.passing && (kind == "r" || kind == "p") {
		if len(m.waiting) == 0 {
			steps = append(steps, "come "+kind, "come "+kind)
		} else if strings.HasPrefix(m.waiting[0], kind) {
			steps = append(steps, "admit", "admit")
		}
	}
	if len(m.beside) > 0 {
		return steps
	}
	steps = append(steps, "pass")
	if m.passing || !m.holds {
		return steps
	}
	return append(steps, "choose")
}

// do does what desk.do must do, and returns what that must return.
func (m *model) do(step string) string {
	verb, arg, _ := strings.Cut(step, " ")
	first := func() string {
		if len(m.waiting) == 0 {
			return ""
		}
		w := m.waiting[0]
		m.waiting = slices.Clone(m.waiting[1:])
		return w
	}
	named := func(name string) string {
		if name == "" {
			return "nobody"
		}
		return name
	}
	shares := func(name string) bool { return strings.HasPrefix(name, "r") }
	switch verb {
	case "enter":
		if m.owner == "" {
			m.owner, m.holds = arg, false
			return "has"
		}
		m.waiting = append(m.waiting, arg)
		return "waits"
	case "hold":
		m.holds = true
		return ""
	case "come", "admit":
		w := arg
		if verb == "admit" {
			w = first()
		}
		if shares(w) {
			m.beside = append(m.beside, w)
		} else {
			m.beside, m.owner, m.holds = append(slices.Clone(m.beside), m.owner), w, false
		}
		return w
	case "part":
		if len(m.beside) == 0 {
			return "false"
		}
		if i := slices.Index(m.beside, arg); i >= 0 {
			m.beside = slices.Delete(slices.Clone(m.beside), i, i+1)
		} else {
			m.owner, m.holds = m.beside[len(m.beside)-1], true
			m.beside = m.beside[:len(m.beside)-1]
		}
		m.over = append(m.over, arg)
		return "true"
	case "have":
		have := []string{m.owner}
		for _, w := range slices.Backward(m.beside) {
			have = append(have, w)
		}
		return strings.Join(have, " ")
	case "allshare", "allstep":
		like := map[string]string{"allshare": "r", "allstep": "p"}[verb]
		return fmt.Sprint(!slices.ContainsFunc(m.waiting, func(w string) bool {
			return !strings.HasPrefix(w, like)
		}))
	case "gather":
		holder, behind := m.owner, m.waiting
		if m.next != "" {
			holder, behind = m.next, behind[1:]
		}
		m.early = nil
		if shares(holder) {
			m.early = slices.Clone(behind)
		}
		return ""
	case "early":
		var early []string
		for i := 0; i < len(m.waiting) && shares(m.waiting[i]) && m.waiting[i] != m.next &&
			slices.Contains(m.early, m.waiting[i]); i++ {
			early = append(early, m.waiting[i])
		}
		return strings.Join(early, " ")
	case "leave": // a call whose context ends, wherever it stands
		switch {
		case slices.Contains(m.over, arg):
			return "gone"
		case slices.Contains(m.beside, arg):
			return "beside"
		case arg == m.owner && m.holds:
			return "holder"
		case arg == m.owner:
			return "owner"
		case arg == m.next:
			m.next = ""
			first()
			return "next"
		}
		i := slices.Index(m.waiting, arg)
		m.waiting = slices.Delete(slices.Clone(m.waiting), i, i+1)
		return "waiting"
	case "choose":
		if m.passing = len(m.waiting) > 0; m.passing {
			m.next = m.waiting[0]
		}
		return named(m.next)
	case "pass":
		m.owner, m.holds, m.passing, m.next = first(), false, false, ""
		m.early = slices.DeleteFunc(m.early, func(string) bool { return !shares(m.owner) })
		return named(m.owner)
	default: // ahead
		n := slices.Index(m.waiting, arg)
		if arg == "" {
			n = len(m.waiting)
		}
		if m.owner != "" {
			n++
		}
		return fmt.Sprint(n)
	}
}

func (m *model) look() string {
	switch {
	case m.owner == "":
		return "free"
	case m.passing:
		return "passing " + strings.Join(append(slices.Clone(m.waiting), m.owner), " ")
	default:
		return "taken " + strings.Join(append(slices.Clone(m.waiting), m.owner), " ")
	}
}

// Any legal steps, in any order: the queue does what a simple one does.
func TestTheQueueDoesWhatASimpleOneDoes(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		var d desk
		var m model
		var history []string
		same := func(want, got any) {
			if want != got {
				require.Equal(t, want, got, "seed %d: %s", seed, strings.Join(history, ", "))
			}
		}
		for range 100 {
			legal := m.legal()
			step := legal[random.IntN(len(legal))]
			if len(m.waiting) > 7 && strings.HasPrefix(step, "enter") {
				continue // Ahead is exact behind a few
			}
			switch step {
			case "enter":
				m.came++
				step += fmt.Sprint(" w", m.came)
			case "enter r", "come r", "enter p", "come p":
				m.came++
				step += fmt.Sprint(m.came)
			}
			history = append(history, step)
			want, got := m.do(step), d.do(step)
			same(want, got)
			same(m.look(), d.look())
			same(m.owner, d.Owner())
			same(len(m.waiting), d.Waiting())
		}
	}
}

// States and standings print their names.
func TestStatesHaveNames(t *testing.T) {
	states := []home.State{home.Free, home.Taken, home.Passing}
	require.Equal(t, "[free taken passing]", fmt.Sprint(states))
	standings := []home.Standing{
		home.Out, home.Waiting, home.Next, home.Owner, home.Holder, home.Beside, home.Gone,
	}
	require.Equal(t, "[out waiting next owner holder beside gone]", fmt.Sprint(standings))
}
