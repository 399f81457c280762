package observe

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/etcdlock/etcdlock"
	"github.com/etcdlock/etcdlock/etcdlockotel"
	"github.com/etcdlock/etcdlock/etcdlockprom"
	"github.com/etcdlock/etcdlock/internal/fake"
)

const (
	second = time.Second
	minute = time.Minute

	scrapeInterval = 15 * second
	calm           = 10 * minute // before the event of a story
	lasts          = 45 * minute // a story, from its beginning to its end
)

// A story is what happens to some processes that Prometheus scrapes.
type story struct {
	name string
	// Happens runs at the end of the calm. What it began goes on after it.
	happens func(w *world)
	// Fires are the alerts that fire, each with one of its labels. No other alert fires.
	fires map[string]string
	// May is one more alert that may fire.
	may string
	// Soon is the time from the event within which the first one fires.
	soon time.Duration
}

// A world is an etcd in memory, two processes that work under locks, and the Prometheus
// that scrapes them.
type world struct {
	t    *testing.T
	etcd *fake.Server
	over context.Context // ends with the story

	running sync.WaitGroup

	mu        sync.Mutex
	processes map[string]process   // by instance
	series    map[string][]float64 // as Prometheus has read them, NaN where it has not
	both      comparison
	failures  []error // of the usual work
}

// A process has its metrics twice, by both modules.
type process struct {
	metrics     *prometheus.Registry // of etcdlockprom
	instruments *sdkmetric.ManualReader
}

var stories = []story{
	{name: "quiet", happens: func(w *world) {
		w.process("c", func(s *etcdlock.Session) { // a deployment
			w.work(s)
		})
	}},
	{name: "a blip", happens: func(w *world) {
		w.etcd.Freeze()
		time.Sleep(second)
		w.etcd.Thaw()
	}},
	{
		name: "etcd away",
		happens: func(w *world) {
			w.etcd.Freeze()
			time.Sleep(5 * minute)
			w.etcd.Thaw()
		},
		fires: map[string]string{
			"EtcdlockEtcdAway": "instance=a", "EtcdlockLost": "reason=expired",
			"EtcdlockLeaseAtRisk": "instance=a",
		},
		may:  "EtcdlockLongWaits", // if a claim waited behind a holder when etcd went away
		soon: 4 * minute,
	},
	{
		name: "a hold lost to an operator",
		happens: func(w *world) {
			w.etcd.DeleteKey(w.etcd.Keys("leader/")[0])
		},
		fires: map[string]string{"EtcdlockLost": "reason=taken"},
		soon:  minute,
	},
	{
		name: "etcd set back",
		happens: func(w *world) {
			w.etcd.Restore(0, 1)
		},
		fires: map[string]string{"EtcdlockSetBack": "job=shop", "EtcdlockLost": "lock=leader"},
		soon:  2 * minute,
	},
	{
		name: "a holder that does not come to its end",
		happens: func(w *world) {
			w.process("c", func(s *etcdlock.Session) {
				w.hold(s, "imports/1", time.Hour)
			})
			time.Sleep(second)
			w.process("d", func(s *etcdlock.Session) { w.hold(s, "imports/1", second) })
		},
		fires: map[string]string{"EtcdlockNobodyGetsIn": "lock=imports"},
		soon:  17 * minute,
	},
	{
		name: "long waits",
		happens: func(w *world) {
			for _, name := range []string{"c", "d", "e"} {
				w.process(name, func(s *etcdlock.Session) {
					for w.over.Err() == nil {
						w.hold(s, "imports/1", 90*second)
					}
				})
			}
		},
		fires: map[string]string{"EtcdlockLongWaits": "lock=imports"},
		soon:  12 * minute,
	},
	{
		name: "work that takes too long",
		happens: func(w *world) {
			w.process("c", func(s *etcdlock.Session) {
				w.hold(s, "imports/1", minute, etcdlock.WithMaxHold(30*second))
			})
		},
		fires: map[string]string{"EtcdlockHeldTooLong": "lock=imports"},
		soon:  2 * minute,
	},
	{
		name: "renewals that fail now and then",
		happens: func(w *world) {
			from := time.Now()
			w.etcd.Intercept(func(c fake.Call) (e fake.Effect) {
				if c.Method == fake.KeepAlive && time.Since(from)%(7*second) < second {
					e.Before = fake.Unavailable
				}
				return e
			})
		},
		fires: map[string]string{"EtcdlockRenewalsFail": "job=shop"},
		soon:  14 * minute,
	},
	{
		name: "a lease in danger",
		happens: func(w *world) {
			silentFrom := time.Now()
			w.etcd.Intercept(func(c fake.Call) fake.Effect {
				return fake.Effect{Drop: c.Method == fake.KeepAlive && time.Since(silentFrom) < 6*second}
			})
		},
		fires: map[string]string{"EtcdlockLeaseAtRisk": "job=shop"},
		soon:  minute,
	},
	{name: "readers, permits and leaders", happens: func(w *world) {
		w.process("c", func(s *etcdlock.Session) {
			w.running.Go(func() { w.readAndWrite(s) })
			w.running.Go(func() { w.limited(s) })
			w.lead(s, func(ctx context.Context) error { // a good leader
				<-ctx.Done()
				return context.Cause(ctx)
			})
		})
		w.process("d", func(s *etcdlock.Session) { w.lead(s, untilRecalled) })
		for range 2 { // a rolling update each time; then one leads and the other waits
			time.Sleep(4 * minute)
			w.recall("leader/2")
		}
	}},
	{
		name: "a recall that is not answered",
		happens: func(w *world) {
			w.process("c", func(s *etcdlock.Session) {
				mu, err := s.Mutex("imports/1", etcdlock.WithRecall(minute))
				if err == nil {
					err = mu.Lock(w.over)
				}
				w.note(err)
			})
			time.Sleep(minute)
			w.recall("imports/1")
		},
		fires: map[string]string{"EtcdlockRecallIgnored": "lock=imports"},
		soon:  5 * minute,
	},
	{
		name: "a leader that fails",
		happens: func(w *world) {
			w.process("c", func(s *etcdlock.Session) {
				w.lead(s, func(context.Context) error { return errors.New("no leader today") })
			})
		},
		fires: map[string]string{"EtcdlockLeaderFails": "lock=leader"},
		soon:  2 * minute,
	},
}

// eventful has a little for each query of the dashboard. It belongs to no alert.
var eventful = story{name: "eventful", happens: func(w *world) {
	from := time.Now()
	at := func(after time.Duration) { time.Sleep(time.Until(from.Add(after))) }
	terms := 0
	w.process("c", func(s *etcdlock.Session) {
		w.running.Go(func() { w.readAndWrite(s) })
		w.running.Go(func() { w.limited(s) })
		w.lead(s, func(ctx context.Context) error {
			if terms++; terms == 2 {
				return errors.New("the second term of this one fails")
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
	})
	w.process("d", func(s *etcdlock.Session) {
		w.lead(s, untilRecalled)
	})
	for _, name := range []string{"e", "f"} {
		w.process(name, func(s *etcdlock.Session) {
			for w.over.Err() == nil {
				w.hold(s, "imports/1", 40*second)
				w.sleep(20 * second)
			}
		})
	}
	w.process("g", func(s *etcdlock.Session) { // it learns of a recall, and holds on
		mu, err := s.Mutex("reports/1", etcdlock.WithRecall(minute))
		if err == nil {
			err = mu.Lock(w.over)
		}
		w.note(err)
	})
	at(3 * minute)
	w.recall("leader/2")
	at(6 * minute)
	w.recall("leader/2")
	at(8 * minute)
	w.recall("reports/1")
	at(11 * minute)
	w.etcd.DeleteKey(w.etcd.Keys("leader/1")[0])
	at(14 * minute)
	silentFrom := time.Now()
	w.etcd.Intercept(func(c fake.Call) fake.Effect {
		return fake.Effect{Drop: c.Method == fake.KeepAlive && time.Since(silentFrom) < 6*second}
	})
	at(18 * minute)
	w.etcd.Freeze()
	at(20*minute + 30*second)
	w.etcd.Thaw()
	at(28 * minute)
	w.etcd.Restore(0, 1)
}}

// A recording is what Prometheus has read of a story, a value for each scrape.
type recording struct {
	series map[string][]float64
	both   comparison
}

var recordings = make(map[string]recording)

// recorded returns the recording of a story. It records each story once.
func recorded(t *testing.T, s story) recording {
	t.Helper()
	if _, there := recordings[s.name]; !there {
		recordings[s.name] = record(t, s)
	}
	return recordings[s.name]
}

// record lets a story happen in virtual time. It returns what Prometheus has read of it,
// and how that compares with what OpenTelemetry has.
func record(t *testing.T, s story) (r recording) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		over, end := context.WithCancel(context.Background())
		w := &world{
			t: t, etcd: fake.NewServer(), over: over,
			processes: make(map[string]process), series: make(map[string][]float64),
			both: newComparison(),
		}
		began := time.Now()
		time.Sleep(7 * time.Millisecond) // beside all timers of the library
		w.running.Go(w.scrape)
		w.process("a", func(s *etcdlock.Session) {
			w.running.Go(func() { w.always(s) })
			w.work(s)
		})
		time.Sleep(3 * second)
		w.process("b", w.work)
		time.Sleep(time.Until(began.Add(calm)))
		require.Empty(t, w.failures)
		s.happens(w)
		time.Sleep(time.Until(began.Add(lasts)))
		end()
		w.etcd.Intercept(nil)
		w.running.Wait()
		synctest.Wait()
		for instance, p := range w.processes { // the state at the end, which Prometheus has not read
			w.read(instance, p)
		}
		if s.fires == nil && s.name == "quiet" {
			require.Empty(t, w.failures)
		}
		r = recording{w.series, w.both}
	})
	return r
}

// process begins a process that calls f with a Session of its own. It closes the Session in
// the end.
func (w *world) process(name string, f func(*etcdlock.Session)) {
	kind := func(name string) string {
		kind, _, _ := strings.Cut(name, "/")
		return kind
	}
	metrics := etcdlockprom.NewMetrics(etcdlockprom.WithLockLabel(kind))
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(metrics)
	reader := sdkmetric.NewManualReader()
	instruments, err := etcdlockotel.NewMetrics(etcdlockotel.WithLockKind(kind),
		etcdlockotel.WithMeterProvider(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))))
	require.NoError(w.t, err)
	w.mu.Lock()
	w.processes[name] = process{registry, reader}
	w.mu.Unlock()
	session, err := etcdlock.NewSession(w.etcd.Client(name), etcdlock.WithOwner(name),
		etcdlock.WithTrace(etcdlock.JoinTraces(metrics.Trace(), instruments)))
	require.NoError(w.t, err)
	w.running.Go(func() {
		f(session)
		<-w.over.Done()
		_ = session.Close(context.Background())
	})
}

// work is the usual work: a short piece every few seconds, which has to wait now and then,
// and a piece that is left out while another process is at it.
func (w *world) work(s *etcdlock.Session) {
	for round := 0; w.over.Err() == nil; round++ {
		w.hold(s, "orders/1", 1500*time.Millisecond)
		mu, err := s.Mutex("cron/report")
		if err == nil {
			err = mu.TryDo(w.over, func(context.Context) error { time.Sleep(3 * second); return nil })
		}
		if !errors.Is(err, etcdlock.ErrLocked) {
			w.note(err)
		}
		w.sleep(2*second + time.Duration(round%5)*123*time.Millisecond)
	}
}

// hold holds a lock for a while, or until it is lost.
func (w *world) hold(
	s *etcdlock.Session, name string, lasts time.Duration, opts ...etcdlock.Option,
) {
	mu, err := s.Mutex(name, opts...)
	if err == nil {
		err = mu.Do(w.over, func(ctx context.Context) error {
			select {
			case <-time.After(lasts):
			case <-ctx.Done():
			}
			return nil
		})
	}
	w.note(err)
}

// always holds a lock all the time.
func (w *world) always(s *etcdlock.Session) {
	for w.over.Err() == nil {
		w.hold(s, "leader/1", time.Hour)
	}
}

// lead leads, one term after another, and can be recalled.
func (w *world) lead(s *etcdlock.Session, fn func(context.Context) error) {
	mu, err := s.Mutex("leader/2", etcdlock.WithRecall(20*second))
	if err == nil {
		err = mu.Lead(w.over, fn)
	}
	w.note(err)
}

// untilRecalled is the work of a leader that ends when it is recalled.
func untilRecalled(ctx context.Context) error {
	select {
	case <-etcdlock.RecallFrom(ctx):
	case <-ctx.Done():
	}
	return nil
}

// recall asks the holder of a lock to give it back.
func (w *world) recall(name string) {
	client := w.etcd.Client("operator")
	line, err := etcdlock.Contenders(w.over, client, name)
	require.NoError(w.t, err)
	require.NotEmpty(w.t, line)
	request := etcdlock.RecallRequest{Grace: minute}
	require.NoError(w.t, etcdlock.Recall(w.over, client, line[0], request))
}

// readAndWrite reads a configuration all the time, two at once, and writes it now and then.
func (w *world) readAndWrite(s *etcdlock.Session) {
	rw, err := s.RWMutex("config/1")
	w.note(err)
	for range 2 {
		w.running.Go(func() {
			for w.over.Err() == nil {
				w.note(rw.RDo(w.over, func(context.Context) error {
					time.Sleep(700 * time.Millisecond)
					return nil
				}))
				w.sleep(200 * time.Millisecond)
			}
		})
	}
	for w.over.Err() == nil {
		w.note(rw.Do(w.over, func(context.Context) error { time.Sleep(second); return nil }))
		w.sleep(7 * second)
	}
}

// limited does jobs of several sizes within a limit.
func (w *world) limited(s *etcdlock.Session) {
	sem, err := s.Semaphore("jobs/1", 4)
	w.note(err)
	for round := 0; w.over.Err() == nil; round++ {
		w.note(sem.Do(w.over, 1+round%3, func(context.Context) error { time.Sleep(second); return nil }))
		w.sleep(2 * second)
	}
}

// note keeps what went wrong before the end of the story.
func (w *world) note(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil && w.over.Err() == nil {
		w.failures = append(w.failures, err)
	}
}

func (w *world) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-w.over.Done():
	}
}

// scrape reads the metrics of all processes, as Prometheus does.
func (w *world) scrape() {
	for step := 0; w.over.Err() == nil; step++ {
		synctest.Wait() // so that nothing changes between the two readings
		w.mu.Lock()
		for instance, p := range w.processes {
			for _, s := range w.read(instance, p) {
				name := s.Metric.String()
				for len(w.series[name]) < step {
					w.series[name] = append(w.series[name], math.NaN())
				}
				w.series[name] = append(w.series[name], float64(s.Value))
			}
		}
		w.mu.Unlock()
		w.sleep(scrapeInterval)
	}
}

// read reads the metrics of a process, and compares them with its instruments.
func (w *world) read(instance string, p process) model.Vector {
	families, err := p.metrics.Gather()
	require.NoError(w.t, err)
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families...)
	require.NoError(w.t, err)
	counted := make(map[string]float64)
	for _, s := range samples {
		counted[s.Metric.String()] = float64(s.Value)
		s.Metric["job"], s.Metric["instance"] = "shop", model.LabelValue(instance)
	}
	w.both.compare(w.t, counted, p.instruments)
	return samples
}
