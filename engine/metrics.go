package engine

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/sandbox"
)

// metrics are what Prometheus reads. A nil one counts nothing.
type metrics struct {
	reg  prometheus.Registerer
	all  []prometheus.Collector
	once sync.Once

	creates     *prometheus.CounterVec   // class, result
	createTime  *prometheus.HistogramVec // class
	execs       *prometheus.CounterVec   // class, result
	execTime    *prometheus.HistogramVec // class
	startTime   *prometheus.HistogramVec // class
	ends        *prometheus.CounterVec   // why
	evictions   *prometheus.CounterVec   // class
	refusals    *prometheus.CounterVec   // what
	outOfMemory *prometheus.CounterVec   // class
}

// newMetrics registers the metrics of e, unless reg is nil.
func newMetrics(e *Engine, reg prometheus.Registerer) (*metrics, error) {
	if reg == nil {
		return nil, nil
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "atoll", Name: name, Help: help}, labels)
	}
	// From 0.1 ms to 100 s.
	buckets := prometheus.ExponentialBucketsRange(1e-4, 100, 19)
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "atoll", Name: name, Help: help, Buckets: buckets}, labels)
	}
	gauge := func(name, help string, f func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "atoll", Name: name, Help: help}, f)
	}
	m := &metrics{
		reg:         reg,
		creates:     counter("creates_total", "Sandboxes asked for, by protocol and what came of it: made, reused, or the kind of the error.", "class", "result"),
		createTime:  histogram("create_seconds", "How long it took to make a sandbox.", "class"),
		execs:       counter("execs_total", "Commands that somebody waited for, by protocol and how they ended: exited, signalled, timed-out, out-of-memory, or the kind of the error.", "class", "result"),
		execTime:    histogram("exec_seconds", "How long commands ran, their start included.", "class"),
		startTime:   histogram("start_seconds", "How long it took to start a command.", "class"),
		ends:        counter("sandbox_ends_total", "Sandboxes that came to their end, by why.", "why"),
		evictions:   counter("evictions_total", "Sandboxes that had to make room.", "class"),
		refusals:    counter("refusals_total", "Requests that were refused for want of room, quota or rights.", "what"),
		outOfMemory: counter("out_of_memory_total", "Commands that died for want of memory.", "class"),
	}
	m.all = []prometheus.Collector{m.creates, m.createTime, m.execs, m.execTime, m.startTime, m.ends, m.evictions, m.refusals, m.outOfMemory,
		gauge("sandboxes", "Sandboxes that live.", func() float64 { live, _, _ := e.numbers(); return float64(live) }),
		gauge("sandboxes_busy", "Sandboxes in use.", func() float64 { _, busy, _ := e.numbers(); return float64(busy) }),
		gauge("sandboxes_released", "Sandboxes that nobody needs for now.", func() float64 { _, _, released := e.numbers(); return float64(released) }),
		gauge("sandboxes_warm", "Sandboxes that are ready and nobody has asked for.", func() float64 {
			if e.cfg.Warm == nil {
				return 0
			}
			return float64(e.cfg.Warm())
		}),
	}
	for i, c := range m.all {
		if err := reg.Register(c); err != nil {
			for _, c := range m.all[:i] {
				reg.Unregister(c)
			}
			return nil, err
		}
	}
	return m, nil
}

// numbers returns how many sandboxes live, are in use, and are released.
func (e *Engine) numbers() (live, busy, released int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, en := range e.below {
		if en.gone != nil {
			continue
		}
		live++
		if en.busy > 0 {
			busy++
		}
		if en.released {
			released++
		}
	}
	return live, busy, released
}

// close takes the metrics off the register.
func (m *metrics) close() {
	if m == nil {
		return
	}
	m.once.Do(func() {
		for _, c := range m.all {
			m.reg.Unregister(c)
		}
	})
}

func (m *metrics) made(class string, made bool, took time.Duration, err error) {
	if m == nil {
		return
	}
	result := "reused"
	switch {
	case err != nil:
		result = string(sandbox.KindOf(err))
	case made:
		result = "made"
		m.createTime.WithLabelValues(class).Observe(took.Seconds())
	}
	m.creates.WithLabelValues(class, result).Inc()
}

func (m *metrics) started(class string, took time.Duration) {
	if m != nil {
		m.startTime.WithLabelValues(class).Observe(took.Seconds())
	}
}

func (m *metrics) startFailed(class string, err error) {
	if m != nil {
		m.execs.WithLabelValues(class, string(sandbox.KindOf(err))).Inc()
	}
}

func (m *metrics) ended(class string, exit sandbox.Exit, err error, took time.Duration) {
	if m == nil {
		return
	}
	result := string(exit.Reason)
	if err != nil {
		result = string(sandbox.KindOf(err))
	}
	m.execs.WithLabelValues(class, result).Inc()
	m.execTime.WithLabelValues(class).Observe(took.Seconds())
	if exit.Reason == sandbox.OutOfMemory {
		m.outOfMemory.WithLabelValues(class).Inc()
	}
}

func (m *metrics) gone(en *entry) {
	if m != nil {
		m.ends.WithLabelValues(string(en.gone.Why)).Inc()
	}
}

func (m *metrics) evicted(class string) {
	if m != nil {
		m.evictions.WithLabelValues(class).Inc()
	}
}

func (m *metrics) refused(what string) {
	if m != nil {
		m.refusals.WithLabelValues(what).Inc()
	}
}
