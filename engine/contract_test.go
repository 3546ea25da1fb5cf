package engine_test

import (
	"io"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/engine/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// echo is a program that listens on the port in its argument and echoes.
func echo(p *memory.Proc) int {
	port, err := strconv.Atoi(p.Args[1])
	if err != nil {
		return 2
	}
	l, err := p.Listen(port)
	if err != nil {
		return 1
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return 0
		}
		io.Copy(c, c)
		c.Close()
	}
}

// TestContract holds an Engine to the contract, with all that it can do set
// to work: a store in a file, metrics, an audit, bounds that are not reached.
func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			st, err := store.Open(filepath.Join(t.TempDir(), "engine.db"), store.Options{Boot: "a"})
			if err != nil {
				t.Fatal(err)
			}
			rt := memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echo}})
			e, err := engine.New(t.Context(), rt, engine.Config{
				Store:      st,
				Boot:       "a",
				MountRoots: []string{"/srv"},
				MaxLive:    1000,
				Classes:    map[string]engine.Class{"": {MaxLive: 900, Full: engine.Evict}},
				Audit:      func(sandbox.Event) {},
				Metrics:    prometheus.NewRegistry(),
			})
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Source: func(t *testing.T) string { return "/srv/" + t.Name() },
	})
}
