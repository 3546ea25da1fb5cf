package main

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/sandbox"
)

// A stack is what the daemon serves: every backend that the configuration
// names, with the layers around them, as each protocol's owners are shown it.
type stack struct {
	// rt is all of it, as the operator sees it. Closing it closes the rest.
	rt sandbox.Runtime

	// views returns what the owners are shown who speak the protocol of this
	// name.
	views func(protocol string) func(sandbox.Owner) sandbox.Runtime

	// metrics answers with what Prometheus reads.
	metrics http.Handler
}

// openStack opens the backends, each in its own folder below the state folder,
// and what stands around them.
func openStack(ctx context.Context, c *Config, log *slog.Logger) (*stack, error) {
	all := union{names: c.Backend}
	for _, name := range c.Backend {
		rt, err := openBackend(ctx, c, name, c.State, log.With("backend", name))
		if err != nil {
			return nil, errors.Join(err, all.Close())
		}
		all.rts = append(all.rts, rt)
	}
	figures := prometheus.NewRegistry()
	figures.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	e, err := openEngine(ctx, c, all, figures, log)
	if err != nil {
		return nil, err
	}
	s := &stack{rt: e, metrics: promhttp.HandlerFor(figures, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError)})}
	s.views = func(protocol string) func(sandbox.Owner) sandbox.Runtime {
		return func(o sandbox.Owner) sandbox.Runtime { return e.View(o, protocol) }
	}
	return s, nil
}

// Close closes all of it.
func (s *stack) Close() error { return s.rt.Close() }

// operatorOnly passes to h the requests of the operator, and refuses those of
// other owners.
func operatorOnly(h http.Handler, refuse func(http.ResponseWriter, *http.Request, gate.Refusal)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gate.OwnerOf(r.Context()) != sandbox.Operator {
			refuse(w, r, gate.Refusal{Status: http.StatusForbidden, Err: sandbox.Errorf(sandbox.Denied, "", "this is for the operator alone").WithHint("use the daemon's own token")})
			return
		}
		h.ServeHTTP(w, r)
	})
}

// A union is several Runtimes as one. The first makes the sandboxes of who
// names no backend; those of all are found.
type union struct {
	names []string
	rts   []sandbox.Runtime // of the same length
}

func (u union) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if err := spec.CheckBackend(u.names...); err != nil {
		return nil, err
	}
	return u.rts[max(0, slices.Index(u.names, spec.Backend))].Create(ctx, spec)
}

func (u union) Open(ctx context.Context, id sandbox.ID) (sandbox.Sandbox, error) {
	var err error
	for _, rt := range u.rts {
		var sb sandbox.Sandbox
		if sb, err = rt.Open(ctx, id); !errors.Is(err, sandbox.NotExist) {
			return sb, err
		}
	}
	return nil, err
}

func (u union) List(ctx context.Context) iter.Seq2[sandbox.Info, error] {
	return func(yield func(sandbox.Info, error) bool) {
		for _, rt := range u.rts {
			for info, err := range rt.List(ctx) {
				if !yield(info, err) || err != nil {
					return
				}
			}
		}
	}
}

func (u union) Close() error {
	var errs []error
	for _, rt := range u.rts {
		errs = append(errs, rt.Close())
	}
	return errors.Join(errs...)
}

// probePatience is how long a backend may take to show that it works.
const probePatience = 3 * time.Second

// Backends asks each of the Runtimes for its list, and says of each whether it
// answered, and if not, why.
func (u union) Backends(ctx context.Context) []sandbox.BackendStatus {
	ctx, cancel := context.WithTimeout(ctx, probePatience)
	defer cancel()
	answers := make([]chan error, len(u.rts))
	for i, rt := range u.rts {
		answers[i] = make(chan error, 1) // so that one that answers too late is not waited for
		go func() { answers[i] <- probe(ctx, rt) }()
	}
	all := make([]sandbox.BackendStatus, len(u.rts))
	for i, name := range u.names {
		var err error
		select {
		case err = <-answers[i]:
		case <-ctx.Done():
			err = ctx.Err()
		}
		all[i] = sandbox.BackendStatus{Name: name, Available: err == nil, Reason: unavailable(err)}
	}
	return all
}

// probe reports whether rt can be asked.
func probe(ctx context.Context, rt sandbox.Runtime) error {
	for _, err := range rt.List(ctx) {
		return err // the first will do
	}
	return nil
}

// unavailable says why a backend that answers with err is not there, as far as
// a tenant may know.
func unavailable(err error) string {
	var e *sandbox.Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Public()
	case errors.Is(err, context.DeadlineExceeded):
		return "it did not answer in time"
	}
	return kindWords[sandbox.KindOf(err)]
}
