package matrix

// reader is a party that reads.
func (tr *trial) reader(who string) *party { return tr.partyFor(reading, who, lasting) }

// readersStories are about one lock for which readers and writers of this version contend,
// and others for which each reader is exclusive.
func readersStories() (all []story) {
	all = append(all, story{name: "readers and writers in order", tell: readsAndWrites})
	for _, guest := range append(guests[:len(guests):len(guests)], theOlder) {
		all = append(all, story{name: guest.name + ": readers beside it", tell: func(tr *trial) {
			tr.readersBeside(func(who string) *visit {
				return tr.visits(guest.name+" "+who, guest.comes, lasting)
			})
		}})
	}
	return append(all, story{name: older + ": crashes among readers", tell: func(tr *trial) {
		tr.crashesAmong(reading)
	}})
}

// a and b read, c waits to write, d waits behind it to read | e's TryRLock does not get in | a and
// b unlock, c gets in | c unlocks, d gets in, and so does e's TryRLock.
func readsAndWrites(tr *trial) {
	a, b, d, e := tr.reader("a"), tr.reader("b"), tr.reader("d"), tr.reader("e")
	c := tr.party("c", lasting)
	a.locks()
	b.locks()
	second := c.waits()
	third := d.waits()
	e.isRefused()
	a.unlocks()
	second.stillWaits()
	b.unlocks()
	second.getsIn(soon)
	third.stillWaits()
	e.isRefused()
	c.unlocks()
	third.getsIn(soon)
	err := e.TryLock(tr.bounded(soon))
	tr.must(err == nil, "e: TryRLock beside a reader: %v", err)
	e.believes()
	d.unlocks()
	e.unlocks()
}

// a and b read, a guest waits, c waits to read, w to write | both have unlocked, the guest is in,
// alone | it leaves, c gets in | another guest waits behind w, and d to read | each gets in when
// its turn comes.
func (tr *trial) readersBeside(comes func(who string) *visit) {
	a, b, c, d := tr.reader("a"), tr.reader("b"), tr.reader("c"), tr.reader("d")
	w := tr.party("w", lasting)
	a.locks()
	b.locks()
	second := comes("2")
	third := c.waits()
	fourth := w.waits()
	a.unlocks()
	second.stillWaits()
	b.unlocks()
	second.getsIn(soon)
	third.stillWaits()
	a.isRefused()
	second.leaves()
	third.getsIn(soon)
	fourth.stillWaits()
	fifth := comes("5")
	sixth := d.waits()
	c.unlocks()
	fourth.getsIn(soon)
	fifth.stillWaits()
	w.unlocks()
	fifth.getsIn(soon)
	sixth.stillWaits()
	fifth.leaves()
	sixth.getsIn(soon)
	d.unlocks()
}

// a holds in a way that others share, an old process waits, b waits behind it for the same
// | the old process is killed, b gets in when its lease has run out, though a still holds |
// an old process holds and is killed, c gets in.
func (tr *trial) crashesAmong(u use) {
	a, b, c := tr.partyFor(u, "a", lasting), tr.partyFor(u, "b", lasting), tr.partyFor(u, "c", lasting)
	a.locks()
	second := tr.visits(older+" 2", before, briefly)
	third := b.waits()
	second.crashes()
	third.getsIn(expiry)
	a.unlocks()
	b.unlocks()

	first := tr.visits(older+" 1", before, briefly)
	first.getsIn(soon)
	next := c.waits()
	first.crashes()
	next.getsIn(expiry)
	c.unlocks()
}
