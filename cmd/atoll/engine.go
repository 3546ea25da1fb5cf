package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/audit"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/warm"
)

// policy returns the engine's configuration as far as c has it.
func (c *Config) policy() (engine.Config, error) {
	profiles, err := c.profileSet()
	if err != nil {
		return engine.Config{}, err
	}
	images, err := c.imageTable()
	if err != nil {
		return engine.Config{}, err
	}
	cfg := engine.Config{Profiles: profiles, Images: images, Classes: make(map[string]engine.Class), Owners: make(map[sandbox.Owner]engine.Tenant),
		MaxLive: c.MaxLive, MountRoots: c.AllowMount, AuditArgs: c.Audit.Args}
	for name, p := range c.Protocols {
		class := engine.Class{Profile: p.Profile, Full: engine.Full(p.WhenFull)}
		set(&class.MaxLive, p.MaxLive)
		set(&class.Wait, (*time.Duration)(p.Wait))
		class.NoRestart = p.AutoRestart != nil && !*p.AutoRestart
		cfg.Classes[name] = class
	}
	for name, o := range c.Owners {
		cfg.Owners[sandbox.Owner(name)] = engine.Tenant{MaxLive: o.MaxLive, MaxRunning: o.MaxRunning, MountRoots: o.AllowMount, Profiles: o.Profiles}
	}
	return cfg, nil
}

// mountRoots returns the folders below which anybody's mounts may lie. Whose
// they are is the engine's business.
func (c *Config) mountRoots() []string {
	roots := slices.Clone(c.AllowMount)
	for _, name := range slices.Sorted(maps.Keys(c.Owners)) {
		roots = append(roots, c.Owners[name].AllowMount...)
	}
	return roots
}

// openEngine puts the pool of ready sandboxes and the engine around below, of
// which it closes all if it fails.
func openEngine(ctx context.Context, c *Config, below union, figures prometheus.Registerer, log *slog.Logger) (_ *engine.Engine, err error) {
	var rt sandbox.Runtime = below
	var closing []func() error
	defer func() {
		if err != nil {
			for _, end := range slices.Backward(closing) {
				err = errors.Join(err, end())
			}
		}
	}()
	closing = append(closing, func() error { return rt.Close() })
	cfg, err := c.policy()
	if err != nil {
		return nil, err
	}
	cfg.Log, cfg.Metrics, cfg.Backends, cfg.Boot = log, figures, below.Backends, bootID()

	pool, wanted, err := c.warmConfig(cfg.Profiles, cfg.Images)
	if err != nil {
		return nil, err
	}
	if wanted {
		pool.Log = log
		w, err := warm.New(rt, pool)
		if err != nil {
			return nil, err
		}
		rt = w
		cfg.Warm = func() int { return w.Stats().Ready }
	}
	if c.Audit.File != "" {
		record, err := audit.Open(c.Audit.path(c.State), c.Audit.options(log))
		if err != nil {
			return nil, err
		}
		closing = append(closing, record.Close)
		cfg.Audit, cfg.EndAudit = record.Write, record.Close
	}
	if cfg.Store, err = store.Open(filepath.Join(c.State, "engine.db"), store.Options{Boot: cfg.Boot, Log: log}); err != nil {
		return nil, err
	}
	e, err := engine.New(ctx, rt, cfg) // which closes rt and the store if it fails
	if err != nil {
		closing = closing[1:]
		return nil, err
	}
	return e, nil
}

// bootID names this run of the host, as the kernel does (random(4)); "" if it
// does not.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
