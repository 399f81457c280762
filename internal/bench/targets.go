package main

import "math"

// A target is what the library should reach.
type target struct {
	what    string
	members int // of etcd, 0 for any
	got     func(c *chapter) (float64, bool)
	atLeast bool // else at most
	limit   float64
}

// targets is the table. It leaves out targets for what was not measured.
var targets = []target{
	{"uncontended: RPCs", 0, per("uncontended", library, rpcs), atMost, 2},
	{"uncontended: proposals", 0, per("uncontended", library, proposals), atMost, 2},
	{"uncontended: time, by " + baseline, 0, byBaseline("uncontended"), atMost, 1.05},
	{"uncontended: time, by " + floor, 0, byFloor("uncontended"), atMost, 1.10},
	{"holds/s, 8 names of one process, by " + baseline, 0, speed("each-8"), atLeast, 1},
	{"holds/s, 64 names, by " + baseline, 0, speed("each-64"), atLeast, 1.8},
	{"holds/s, 1,000 names, by " + baseline, 0, speed("each-1000"), atLeast, 1.6},
	{"a hold, 64 names: p99, by " + baseline, 0, p99By("each-64"), atMost, 1},
	{"a hold, 64 names: server CPU, by " + baseline, 0, countBy("each-64", serverTime), atMost, 0.5},
	{"hand-over after 5 ms: time, by " + baseline, 0, byBaseline("handover-5ms"), atMost, 1. / 20},
	{"hand-over after 5 ms: time, by " + floor, 0, byFloor("handover-5ms"), atMost, 1.3},
	{"hand-over after 5 ms under 200 puts a second: time, by that without", 0,
		byCase("handover-5ms-busy", "handover-5ms"), atMost, 1.5},
	{"hand-overs/s, N = 2, by " + baseline, 1, speed("crowd-2"), atLeast, 20},
	{"hand-overs/s, N = 8, by " + baseline, 1, speed("crowd-8"), atLeast, 8},
	{"hand-overs/s, N = 64, by " + baseline, 1, speed("crowd-64"), atLeast, 2},
	{"hand-overs/s, N = 512, by " + baseline, 1, speed("crowd-512"), atLeast, 2.5},
	{"hand-overs/s, N = 2,000, by " + baseline, 1, speed("crowd-2000"), atLeast, 8},
	{"hand-overs/s, N = 2, by " + baseline, 3, speed("crowd-2"), atLeast, 10},
	{"hand-overs/s, N = 8, by " + baseline, 3, speed("crowd-8"), atLeast, 3},
	{"hand-overs/s, N = 64, by " + baseline, 3, speed("crowd-64"), atLeast, 1.7},
	{"hand-overs/s, N = 512, by " + baseline, 3, speed("crowd-512"), atLeast, 2},
	{"hand-overs/s, 64 processes, by " + baseline, 0, speed("processes-64"), atLeast, 1.7},
	{"proposals per hand-over, N = 64", 0, per("crowd-64", library, proposals), atMost, 1.02},
	{"time of a hand-over, N = 2,000 by N = 8", 0, byCase("crowd-2000", "crowd-8"), atMost, 1.3},
	{"hand-overs/s with WithHandoff(16), N = 8, by " + baseline, 1,
		speedOf(handsOff, "crowd-8", baseline), atLeast, 100},
	// There are 17 holds to each turn, in a line that should be three times as fast.
	{"hand-overs/s with WithHandoff(16), N = 8, by " + baseline, 3,
		speedOf(handsOff, "crowd-8", baseline), atLeast, 50},
	{"hand-overs/s with WithHandoff(16), N = 64, by " + baseline, 0,
		speedOf(handsOff, "crowd-64", baseline), atLeast, 30},
	{"hand-overs/s with WithHandoff(16), N = 8, by the best other system", 0,
		speedOf(handsOff, "crowd-8", others...), atLeast, 2.5},
	{"hand-overs/s with WithHandoff(16), N = 64, by the best other system", 0,
		speedOf(handsOff, "crowd-64", others...), atLeast, 2.5},
	{"holds of the busiest client with WithHandoff(16), N = 64, by the mean", 0,
		busiest(handsOff, "crowd-64"), atMost, 1.05},
	{"re-locks/s with WithLinger", 0, everySecondOf(lingers, "relock"), atLeast, 1_000_000},
	{"re-locks with WithLinger: RPCs", 0, per("relock", lingers, rpcs), atMost, 0},
	{"turns with WithLinger: time, by that without", 0, byWithout(lingers, "turns"), atMost, 1.15},
	{"turns with WithLinger: revisions", 0, per("turns", lingers, revisions), atMost, 2},
	{"hand-overs/s, N = 8, by ZooKeeper's lock", 1, speedOf(library, "crowd-8", "go-zookeeper Lock"),
		atLeast, 1},
	{"hand-overs/s, N = 64, by ZooKeeper's lock", 1, speedOf(library, "crowd-64", "go-zookeeper Lock"),
		atLeast, 1},
	{"reads/s beside two others of the process", 0, everySecondOf(library, "readers-beside"),
		atLeast, 500_000},
	{"a read beside two others of the process: RPCs", 0, per("readers-beside", library, rpcs), atMost,
		0},
	{"LockAll and Unlock of 2 names: RPCs that renew no lease", 0, per("several-2", library, requests),
		atMost, 2},
	{"LockAll and Unlock of 2 names: revisions", 0, per("several-2", library, revisions), atMost, 2},
	{"LockAll and Unlock of 32 names: RPCs that renew no lease", 0,
		per("several-32", library, requests), atMost, 2},
	{"LockAll and Unlock of 32 names: revisions", 0, per("several-32", library, revisions), atMost, 2},
	{"TryLock of a taken name: RPCs", 0, per("trylock", library, rpcs), atMost, 1},
	{"TryLock of a taken name: revisions", 0, per("trylock", library, revisions), atMost, 0},
	{"idle waiter: RPCs, by " + baseline, 0, countBy("fleet-idle-waiters", rpcs), atMost, 1.3},
	{"idle waiter: bytes, by " + baseline, 0, countBy("fleet-idle-waiters", bytesMoved), atMost, 4},
	{"idle holder: RPCs, by " + baseline, 0, countBy("fleet-idle-holders", rpcs), atMost, 1.3},
	{"idle holder: bytes, by " + baseline, 0, countBy("fleet-idle-holders", bytesMoved), atMost, 4},
	{"user and password, idle: logins per renewal", 0, per("fleet-auth", library, logins), atMost, 0},
	{"a key taken away: told after, p50, in ms", 0, toldAfter, atMost, 50},
	{"bytes per hand-over, 64 Sessions", 0, per("fleet-crowd-64", library, bytesMoved), atMost, 4096},
	{"bytes per hand-over, 256 Sessions", 0, per("fleet-crowd-256", library, bytesMoved),
		atMost, 4096},
	{"bytes per hand-over, 1,000 Sessions", 0, per("fleet-crowd-1000", library, bytesMoved),
		atMost, 4096},
	{"RPCs per hand-over, 64 Sessions", 0, per("fleet-crowd-64", library, rpcs), atMost, 7.5},
	{"RPCs per hand-over, 256 Sessions", 0, per("fleet-crowd-256", library, rpcs), atMost, 7.5},
	{"RPCs per hand-over, 1,000 Sessions", 0, per("fleet-crowd-1000", library, rpcs), atMost, 7.5},
	{"hand-overs/s, 64 Sessions, by " + baseline, 0, speed("fleet-crowd-64"), atLeast, 1.7},
	{"hand-overs/s, 256 Sessions, by " + baseline, 0, speed("fleet-crowd-256"), atLeast, 1.7},
	{"hand-overs/s, 1,000 Sessions, by " + baseline, 0, speed("fleet-crowd-1000"), atLeast, 2},
	{"1,000 Sessions begin at once on one core: holds, by " + baseline, 0, speed("fleet-start-1000"),
		atLeast, 1},
	{"1,000 Sessions begin at once on one core: goroutines", 0, goroutinesBy("fleet-start-1000"),
		atMost, 1.5},
	{"2,000 Sessions begin at once: in", 0, got("fleet-start-2000"), atLeast, 2000},
	{"2,000 Sessions begin at once: time of all, by " + baseline, 0, byBaseline("fleet-start-2000"),
		atMost, 1.2},
	{"5,000 Sessions over 100 clients begin at once: in", 0, got("fleet-start-5000"), atLeast, 5000},
	{"etcd frozen for 20 s under 1,000 Sessions: first hold after it thaws, in s", 0,
		secondsOf("fleet-frozen"), atMost, 3},
	{"500 waiters give up: bytes each", 0, per("fleet-leave-500", library, bytesMoved), atMost, 2048},
	{"500 waiters give up: time until their keys are gone, by " + baseline, 0,
		byBaseline("fleet-leave-500"), atMost, 4},
	{"a Session with 5,000 names is closed: RPCs", 0, per("close-5000", library, rpcs), atMost, 51},
	{"the keys of 5,000 names are audited: RPCs that renew no lease", 0,
		per("audit-5000", library, requests), atMost, 1},
	{"10,000 names: renewals per TTL/3", 0, of("names-10000", func(r row) float64 {
		return r.renewals
	}), atMost, 1},
	{"10,000 names: goroutines more than with 1", 0, moreGoroutines, atMost, 0},
	{"10,000 names: heap per name, bytes", 0, of("names-10000", func(r row) float64 {
		return r.heap
	}), atMost, 1024},
}

const (
	atLeast = true
	atMost  = false
)

func rpcs(c counts) int64       { return c.RPCs }
func requests(c counts) int64   { return c.RPCs - c.Renewals }
func proposals(c counts) int64  { return c.Proposals }
func revisions(c counts) int64  { return c.Revisions }
func logins(c counts) int64     { return c.Logins }
func serverTime(c counts) int64 { return int64(c.ServerCPU) }
func bytesMoved(c counts) int64 { return c.Bytes }

// of is a figure of the library's in a case.
func of(caseName string, figure func(row) float64) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, library)
		return figure(r), ok
	}
}

// per returns a count per operation, without the cost of the time that passes: a renewal
// now and then.
func per(caseName, name string, count func(counts) int64) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, name)
		return math.Floor(r.per(count(r.spent))*100) / 100, ok
	}
}

func byBaseline(caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, library)
		return r.by[baseline].Median, ok && r.by[baseline].known()
	}
}

func byFloor(caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, library)
		return r.by[floor].Median, ok && r.by[floor].known()
	}
}

// countBy returns a count per operation, divided by the baseline's.
func countBy(caseName string, count func(counts) int64) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, okA := c.find(caseName, library)
		b, okB := c.find(caseName, baseline)
		return a.per(count(a.spent)) / b.per(count(b.spent)), okA && okB
	}
}

func p99By(caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, okA := c.find(caseName, library)
		b, okB := c.find(caseName, baseline)
		return a.p99.Seconds() / b.p99.Seconds(), okA && okB
	}
}

func goroutinesBy(caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, okA := c.find(caseName, library)
		b, okB := c.find(caseName, baseline)
		return float64(a.goroutines) / float64(b.goroutines), okA && okB
	}
}

// got returns how many were in.
func got(caseName string) func(*chapter) (float64, bool) {
	return of(caseName, func(r row) float64 { return float64(r.in) })
}

func secondsOf(caseName string) func(*chapter) (float64, bool) {
	return of(caseName, func(r row) float64 { return r.value.Seconds() })
}

// toldAfter is the median of the times after which holders knew of their losses, in
// milliseconds.
func toldAfter(c *chapter) (float64, bool) {
	r, ok := c.find("taken", library)
	return r.p50.Seconds() * 1e3, ok
}

func speed(caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		t, ok := byBaseline(caseName)(c)
		return 1 / t, ok
	}
}

// byCase compares the library with itself in another case.
func byCase(caseName, other string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, okA := c.find(caseName, library)
		b, okB := c.find(other, library)
		return a.value.Seconds() / b.value.Seconds(), okA && okB
	}
}

// others are the systems that are not etcd, at their fastest.
var others = []string{"redsync", "rueidislock", "go-zookeeper Lock", "pg_advisory_lock"}

// speedOf returns how many times as fast one alternative is as the fastest of some others.
func speedOf(name, caseName string, than ...string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, ok := c.find(caseName, name)
		best := math.Inf(+1)
		for _, other := range than {
			if b, ok := c.find(caseName, other); ok {
				best = min(best, b.value.Seconds())
			}
		}
		return best / a.value.Seconds(), ok && !math.IsInf(best, +1)
	}
}

func everySecondOf(name, caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, name)
		return 1 / r.value.Seconds(), ok
	}
}

// byWithout compares the library with an option with the library without it.
func byWithout(name, caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		a, okA := c.find(caseName, name)
		b, okB := c.find(caseName, library)
		return a.value.Seconds() / b.value.Seconds(), okA && okB
	}
}

func busiest(name, caseName string) func(*chapter) (float64, bool) {
	return func(c *chapter) (float64, bool) {
		r, ok := c.find(caseName, name)
		return r.busiest, ok
	}
}

func moreGoroutines(c *chapter) (float64, bool) {
	a, okA := c.find("names-10000", library)
	b, okB := c.find("names-1", library)
	return float64(a.goroutines - b.goroutines), okA && okB
}

// targets returns the targets for which the chapter has figures.
func (c *chapter) targets() (got []targetRecord) {
	for _, t := range targets {
		if v, ok := t.got(c); ok && number(v).known() &&
			(t.members == 0 || t.members == c.setup.members) {
			got = append(got, targetRecord{What: t.what, AtLeast: t.atLeast, Limit: number(t.limit),
				Got: number(v)})
		}
	}
	return got
}
