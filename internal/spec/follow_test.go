package spec

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/etcdlock/etcdlock/internal/fake"
	"github.com/etcdlock/etcdlock/internal/lease/trust"
	"github.com/etcdlock/etcdlock/internal/line"
	"github.com/etcdlock/etcdlock/internal/sent"
	"github.com/etcdlock/etcdlock/internal/ticket"
)

// name is the lock.
const name = "x"

// tick is a unit of the specification's time: more than any constant of the library's own.
const tick = 10 * time.Second

// A setting has the constants of a module of small.qnt.
type setting struct{ ttl, margin, delay, pause, least, limit, clients int }

// A world is the specification's world, of real tickets, real trust and an etcd in memory. What a
// Session does between these is as in the specification: which epoch an answer is of, and which
// lease is in doubt.
type world struct {
	setting
	start    time.Time
	now      int
	store    *fake.Store
	epoch    int
	puts     map[int64]int // the places, by etcd's revision
	backup   int           // an index of the store
	requests []*message
	answers  []*message
	clients  map[int]*client
	leases   map[int]*lease
	places   map[int]*place
	slots    map[int]*ticket.Slot // by the name of a key

	// stricter says that a ticket has given up its own key, which the specification lets wait: after
	// a set-back its revision was not above the one at which an earlier key of its name had gone.
	stricter bool
}

type client struct{ lease, epoch int }

type lease struct {
	by    int
	trust *trust.Trust // nil while it is not granted, and once etcd has said that there is none
}

type place struct {
	ticket.Ticket
	by, lease, epoch, began int
	entering                ticket.Entering
	release                 ticket.Release
	releasing               bool
	moves                   bool // its release moves its key
	copies                  int
	seen                    bool   // a watch covered its key when Unlock was called
	clear                   bool   // by what was read with the put, or by a look
	looked                  bool   // it is by a look
	said                    string // by Unlock
	wants                   bool
	held                    bool // its hold has begun
}

// A message is a request, and then its answer.
type message struct {
	verb  string
	id    int // of a lease or a place
	sent  int
	copy  int
	epoch int
	txn   *pb.TxnRequest
	moves int // the lease that it moves a key to
	try   *trust.Attempt

	answered int // the epoch of the answer
	answer   ticket.Answer
	ok       bool // of a renewal
}

func (m *message) String() string {
	text := fmt.Sprintf("%s%d.%d", m.verb, m.id, m.sent)
	if m.copy > 0 {
		text += fmt.Sprint("c", m.copy)
	}
	if m.epoch > 0 {
		text += fmt.Sprint("e", m.epoch)
	}
	return text
}

func newWorld(set setting) *world {
	w := &world{
		setting: set, start: time.Unix(1000, 0), store: fake.NewStore(),
		puts: make(map[int64]int), clients: make(map[int]*client),
		leases: make(map[int]*lease), places: make(map[int]*place), slots: make(map[int]*ticket.Slot),
	}
	for c := 1; c <= set.clients; c++ {
		w.clients[c] = &client{lease: c}
		w.leases[c] = &lease{by: c, trust: w.trusted(0)}
		w.grants(c, set.ttl)
	}
	w.backup = w.store.Index()
	return w
}

func (w *world) at(now int) time.Time { return w.start.Add(time.Duration(now) * tick) }

// trusted is the trust in a lease whose grant was sent then.
func (w *world) trusted(sent int) *trust.Trust {
	return trust.New(w.at(sent), time.Duration(w.ttl)*tick, func(time.Duration) time.Duration {
		return time.Duration(w.margin) * tick
	})
}

// grants has etcd grant a lease, if it does not have it.
func (w *world) grants(l, ttl int) {
	if _, _, known := w.store.Now().Lease(int64(l)); !known {
		if _, err := w.store.Grant(int64(l), int64(ttl)); err != nil {
			panic(err)
		}
	}
}

func (w *world) trusts(l int) bool {
	of := w.leases[l]
	return of != nil && of.trust != nil && of.trust.At(w.at(w.now)) == trust.Whole
}

// notice is what a Session does that sees the epoch of an answer.
func (w *world) notice(by, epoch int) {
	w.clients[by].epoch = max(w.clients[by].epoch, epoch)
}

func (w *world) send(m message, by int) {
	m.sent, m.epoch = w.now, w.clients[by].epoch
	if !slices.ContainsFunc(w.requests, func(o *message) bool {
		return o.String() == m.String()
	}) {
		w.requests = append(w.requests, &m)
	}
}

// sendTxn sends a transaction of a place. Each shows what is there if it does nothing, as copies
// do.
func (w *world) sendTxn(verb string, i int, txn ticket.Txn) {
	p := w.places[i]
	if txn.Else == nil {
		txn.Else = []*pb.RequestOp{txn.Again()}
	}
	m := message{verb: verb, id: i, copy: p.copies, txn: txn.Sent()}
	if verb == "M" {
		m.moves = loan(i)
	}
	w.send(m, p.by)
}

// loan is the lease of a key that stays.
func loan(i int) int { return 1000 + i }

// serve has etcd carry a request out. It reports whether the answer is news: not the same as that
// to an equal request that the client has not heard yet.
func (w *world) serve(m *message) (news bool) {
	w.requests = slices.DeleteFunc(w.requests, func(o *message) bool { return o == m })
	m.answered = w.epoch
	switch m.verb {
	case "G":
		w.grants(m.id, w.ttl)
	case "R":
		_, _, m.ok = w.store.Now().Lease(int64(m.id))
	default:
		if m.moves > 0 {
			w.grants(m.moves, w.least)
		}
		reply, err := w.store.Txn(m.txn)
		if err != nil { // the lease is gone
			m.answer = ticket.Answer{Outcome: ticket.NotApplied}
			break
		}
		m.answer = ticket.Answer{Outcome: ticket.Answered, Succeeded: reply.Succeeded,
			Empty: len(reply.Responses) == 0, Revision: reply.Header.Revision}
		for _, r := range reply.Responses {
			if read := r.GetResponseRange(); read != nil {
				m.answer.Read = append(m.answer.Read, read)
			}
		}
		if m.verb == "P" && reply.Succeeded {
			w.puts[reply.Header.Revision] = m.id
		}
	}
	if slices.ContainsFunc(w.answers, func(o *message) bool {
		return o.String() == m.String() && o.answered == m.answered &&
			o.ok == m.ok && o.answer.Succeeded == m.answer.Succeeded &&
			(m.verb != "P" || o.answer.Revision == m.answer.Revision)
	}) {
		return false
	}
	w.answers = append(w.answers, m)
	return true
}

// hear has a client hear an answer.
func (w *world) hear(m *message) {
	w.answers = slices.DeleteFunc(w.answers, func(o *message) bool { return o == m })
	by := 0
	if m.verb == "G" || m.verb == "R" {
		by = w.leases[m.id].by
	} else {
		by = w.places[m.id].by
	}
	w.notice(by, m.answered)
	now := w.at(w.now)
	switch l := w.leases[m.id]; m.verb {
	case "G":
		l.trust = w.trusted(m.sent)
	case "R":
		switch present := w.clients[by].epoch; {
		case m.epoch != present || m.answered != present:
		case !m.ok:
			l.trust = nil
		case !w.trusts(m.id):
		case !w.verified(m.id):
			l.trust.Drop(m.try)
		default:
			all := time.Duration(w.ttl) * tick
			if l.trust.Answered(now, m.try, trust.Confirmation{Member: 1, Term: 1, TTL: all}, 1) {
				l.trust.Proved(now, m.epoch, 1) // a read that is answered at once
			}
		}
	default:
		w.judge(m, w.places[m.id])
	}
}

// verified reports whether the keys on a lease were seen since the last set-back that its client
// knows.
func (w *world) verified(l int) bool {
	for _, p := range w.places {
		if p.lease == l && p.wants && p.State() != ticket.Gone && p.epoch != w.clients[p.by].epoch {
			return false
		}
	}
	return true
}

// judge has a ticket judge an answer.
func (w *world) judge(m *message, p *place) {
	a := m.answer
	a.Copies = p.copies > 0
	switch {
	case m.verb == "P":
		if !p.wants || p.State() > ticket.Sent {
			return
		}
		switch is := p.entering.Judge(a); is {
		case ticket.Queued:
			p.epoch, p.clear = m.answered, p.entering.Ahead(0).Clear()
		case ticket.Useless: // an earlier key of that name is back
			w.stricter = a.Succeeded
			w.leaves(p)
			w.sendTxn("D", m.id, p.Removal(false, line.None))
		default: // the lease is gone
			w.leaves(p)
			if p.State() == ticket.Leaving {
				p.Remove(0)
			}
			w.leases[p.lease].trust = nil
		}
	case p.releasing:
		f := p.release.Judge(a, ticket.Now{Certain: w.trusts(p.lease), Stale: p.epoch != m.answered,
			Over: m.sent >= p.began+w.least, Witnessed: p.seen})
		p.releasing, p.wants = false, false
		p.said = map[ticket.Verdict]string{
			ticket.Done: "Nil", ticket.Lost: "Lost", ticket.Unconfirmed: "Unconfirmed",
		}[f.Verdict]
		if p.said == "" {
			p.said = f.Verdict.String()
		}
	case p.State() == ticket.Leaving && m.verb == "D":
		p.RemovedBy(a, line.None)
	}
}

// leaves gives a ticket up.
func (w *world) leaves(p *place) {
	p.wants, p.releasing = false, false
	p.Leave()
}

// do does a step.
func (w *world) do(act string) {
	verb, rest := act[:1], act[1:]
	n, extra := 0, ""
	if strings.Contains("shm", verb) {
		extra = rest
	} else if verb == "n" {
		_, _ = fmt.Sscanf(rest, "%1s%d", &extra, &n)
	} else if rest != "" {
		_, _ = fmt.Sscanf(rest, "%d%s", &n, &extra)
	}
	p := w.places[n]
	switch verb {
	case "p":
		w.now++
		isLost := func(m *message) bool { return w.now > m.sent+w.delay }
		w.requests = slices.DeleteFunc(w.requests, isLost)
	case "b":
		w.backup = w.store.Index()
	case "z":
		w.requests = slices.DeleteFunc(w.requests, func(m *message) bool {
			return m.verb == "P" && w.places[m.id].looked && w.places[m.id].clear
		})
		w.store = w.store.Restored(w.backup)
		w.backup = w.store.Index()
		w.epoch++
	case "o":
		taken := ticket.Deletion(p.Entry()).Sent()
		taken.Compare = nil // an operator asks for none
		if _, err := w.store.Txn(taken); err != nil {
			panic(err)
		}
	case "x":
		if n < 0 {
			n = loan(-n)
		}
		w.store.Revoke(int64(n))
	case "g":
		l := len(w.leases) + 1
		w.clients[n].lease = l
		w.leases[l] = &lease{by: n}
		w.send(message{verb: "G", id: l}, n)
	case "d": // the tickets know nothing of it
	case "q":
		w.leases[n].trust = nil
	case "k":
		w.notice(n, w.epoch)
	case "r":
		l := w.leases[n]
		try := l.trust.Sends(w.at(w.now), w.clients[l.by].epoch)
		w.send(message{verb: "R", id: n, try: try}, l.by)
	case "a":
		w.ask(n, extra)
	case "s", "h", "m":
		w.messages(verb, extra)
	case "l":
		w.look(p, extra == "+")
	case "e":
		p.Hold()
		p.held, p.began = true, w.now
	case "u":
		p.seen = extra == "+"
		w.unlock(n, p)
	case "v":
		w.giveUp(n, p)
	case "n":
		p.copies++
		switch {
		case extra == "P":
			w.sendTxn("P", n, p.entering.Txn(""))
		case p.releasing:
			w.sendTxn(extra, n, p.release.Txn(""))
		default:
			w.sendTxn(extra, n, p.Removal(false, line.None))
		}
	default:
		panic(act)
	}
}

func (w *world) messages(verb, of string) {
	among := w.requests
	if verb == "h" {
		among = w.answers
	}
	i := slices.IndexFunc(among, func(m *message) bool { return m.String() == of })
	m := among[i]
	news := verb == "h" || w.serve(m)
	if verb != "s" && news {
		w.hear(m)
	}
}

func (w *world) ask(by int, how string) {
	i, l := len(w.places)+1, w.clients[by].lease
	var key int
	_, _ = fmt.Sscanf(how[1:], "%d", &key)
	shape := map[byte]line.Shape{'r': {Kind: line.Read},
		'p': {Kind: line.Permit, Weight: 1, Limit: uint16(w.limit)}}[how[0]]
	slot := w.slots[key]
	used := slot != nil
	if !used {
		slot = new(ticket.Slot)
		w.slots[key] = slot
	}
	p := &place{by: by, lease: l, epoch: w.clients[by].epoch, wants: true}
	p.Ticket = ticket.New(name, int64(l), slot, func(string) string {
		if used {
			panic("the name is not used again")
		}
		id, _ := line.Draw(uuid.UUID{14: byte(key), 15: byte(w.epoch)}, shape)
		return line.Key(name, id)
	})
	p.entering = p.Enter(false, false)
	w.places[i] = p
	w.sendTxn("P", i, p.entering.Txn(""))
}

// look reads the line as it is. It panics if the ticket sees another line than the specification.
func (w *world) look(p *place, clear bool) {
	w.notice(p.by, w.epoch)
	for look := p.Look(false); ; {
		ahead, own := look.Judge(w.read(&look, p)...)
		if p.Observe(own).IsLoss() {
			if !p.held {
				w.leaves(p)
				p.Remove(w.store.Rev()) // it was read that it is gone
			}
			return
		}
		if ahead.Reading == line.Unread {
			continue
		}
		p.clear = p.clear && p.epoch == w.epoch || ahead.Clear()
		p.epoch, p.looked = w.epoch, true
		if p.clear != clear && p.State() == ticket.InLine {
			panic(fmt.Sprintf("clear %v", p.clear))
		}
		return
	}
}

func (w *world) read(l *ticket.Look, p *place) (read []*pb.RangeResponse) {
	answer := func(r *pb.RangeRequest) {
		reply, err := w.store.Now().Range(r)
		if err != nil {
			panic(err)
		}
		read = append(read, reply)
	}
	if p.Kind == line.Read {
		for _, op := range l.Ranges(0) {
			answer(op.GetRequestRange())
		}
		return read
	}
	answer(sent.Range(line.Prefix(name), l.Range(0)...))
	return read
}

func (w *world) unlock(i int, p *place) {
	p.copies = 0
	if p.State() != ticket.Held || !w.trusts(p.lease) {
		w.leaves(p)
		p.said = "Lost"
		w.sendTxn("D", i, p.Removal(false, line.None))
		return
	}
	p.release, p.releasing = p.Release(nil), true
	p.moves = w.now < p.began+w.least
	if p.moves {
		p.release.MoveTo(int64(loan(i)))
		w.sendTxn("M", i, p.release.Txn(""))
		return
	}
	w.sendTxn("D", i, p.release.Txn(""))
}

func (w *world) giveUp(i int, p *place) {
	switch {
	case p.releasing:
		p.said = p.release.Judge(ticket.Answer{Outcome: ticket.Unknown}, ticket.Now{Final: true}).String()
		p.said = "Unconfirmed"
	case p.State() <= ticket.Sent:
		p.entering.Judge(ticket.Answer{Outcome: ticket.Unknown})
	}
	w.leaves(p)
	if !p.moves {
		w.sendTxn("D", i, p.Removal(false, line.None))
	}
}

// seen is what there is to see, as in a step.
func (w *world) seen(t *testing.T) map[string]string {
	seen := make(map[string]string)
	var holders, keys []string
	for i := 1; i <= len(w.places); i++ {
		p := w.places[i]
		phase := map[ticket.State]string{ticket.Unsent: "Putting", ticket.Sent: "Putting",
			ticket.InLine: "Waiting", ticket.Held: "Holding", ticket.Gone: "Gone", ticket.Leaving: "Leaving",
			ticket.Removed: "Over"}[p.State()]
		said := p.said
		if said == "" {
			said = "Silent"
		}
		seen[fmt.Sprint(i)] = sight(phase, int(p.Rev()), said)
		if p.State() == ticket.Held && w.trusts(p.lease) {
			holders = append(holders, fmt.Sprint(i))
		}
	}
	for l, of := range w.leases {
		until := 0
		if of.trust != nil {
			until = int(of.trust.Until().Sub(w.start) / tick)
		}
		seen[fmt.Sprint("L", l, "=")] = fmt.Sprint(until)
	}
	reply, err := w.store.Now().Range(&pb.RangeRequest{Key: []byte(line.Prefix(name)),
		RangeEnd: []byte(line.Whole(name).To)})
	require.NoError(t, err)
	for _, e := range line.Of(name, reply.Kvs) {
		keys = append(keys, fmt.Sprint(w.puts[e.Rev]))
	}
	seen["K"], seen["H"] = strings.Join(keys, "."), strings.Join(holders, ".")
	return seen
}

// TestTheTicketsAndTheTrustFollowTheSpecification drives real tickets and real trust along the
// paths.
// What there is to see must be the same after each step.
func TestTheTicketsAndTheTrustFollowTheSpecification(t *testing.T) {
	settings := map[string]setting{
		"family":    {ttl: 4, margin: 1, delay: 2, pause: 4, least: 3, limit: 2, clients: 3},
		"exclusive": {ttl: 4, margin: 1, delay: 2, pause: 4, limit: 1, clients: 2},
		"setBacks":  {ttl: 3, margin: 1, delay: 2, pause: 3, limit: 1, clients: 2},
		"copies":    {ttl: 4, margin: 1, delay: 4, pause: 4, limit: 1, clients: 2},
	}
	_, paths := readPaths(t)
	all, steps := 0, 0
	for n, path := range paths {
		all += len(path.steps)
		steps += follow(t, n+2, settings[path.world], path)
	}
	t.Logf("%d paths, %d of %d steps", len(paths), steps, all)
	require.Greater(t, steps, all/100*99)
}

// follow returns how many steps of a path it has followed: all, unless the library was stricter.
func follow(t *testing.T, number int, set setting, p path) int {
	w := newWorld(set)
	at := 0
	where := func() string {
		var way []string
		for _, s := range p.steps[:at+1] {
			way = append(way, s.String())
		}
		return fmt.Sprintf("path in line %d, of %s: %s", number, p.world, strings.Join(way, " "))
	}
	defer func() {
		if r := recover(); r != nil {
			require.Fail(t, "the library does not follow", "%v\n%s", r, where())
		}
	}()
	want := w.seen(t)
	for i, s := range p.steps {
		at = i
		if w.do(s.act); w.stricter {
			return i
		}
		for _, seen := range s.seen {
			key := ""
			switch {
			case strings.HasPrefix(seen, "L"):
				key, _, _ = strings.Cut(seen, "=")
				key += "="
			case strings.HasPrefix(seen, "K"), strings.HasPrefix(seen, "H"):
				key = seen[:1]
			default:
				key = seen[:strings.IndexAny(seen, "PWHGLO")]
			}
			want[key] = strings.TrimPrefix(seen, key)
		}
		require.Equal(t, want, w.seen(t), "%s", where())
	}
	return len(p.steps)
}
