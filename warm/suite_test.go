package warm_test

import (
	"context"
	"io"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
	"github.com/atoll-run/atoll/warm"
)

// echo listens on the port in its argument and echoes.
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

func contract(new func(t *testing.T, b *backend) sandbox.Runtime) sandboxtest.Config {
	return sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			b := newBackend(t)
			b.Runtime = memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echo}})
			return new(t, b)
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Source: func(t *testing.T) string { return "/srv/" + t.Name() },
	}
}

// TestContract: every Spec that was asked for is kept ready, so that what a
// claim gets is ready or not as it comes.
func TestContract(t *testing.T) {
	var rt *warm.Runtime
	c := contract(func(t *testing.T, b *backend) sandbox.Runtime {
		w, err := warm.New(b, warm.Config{After: 1, Room: room})
		if err != nil {
			t.Fatal(err)
		}
		if rt == nil {
			rt = w
		}
		return w
	})
	sandboxtest.Run(t, c)
	if s := rt.Stats(); s.Hits == 0 || s.Misses == 0 {
		t.Errorf("there were %d hits and %d misses, want both", s.Hits, s.Misses)
	}
}

// TestContractOfNone: nothing is ever ready.
func TestContractOfNone(t *testing.T) {
	sandboxtest.Run(t, contract(func(t *testing.T, b *backend) sandbox.Runtime {
		w, err := warm.New(b, warm.Config{After: -1, Room: room})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}))
}

// TestContractOfReady: whatever can be had beforehand is.
func TestContractOfReady(t *testing.T) {
	var rt *primed
	sandboxtest.Run(t, contract(func(t *testing.T, b *backend) sandbox.Runtime {
		w, err := warm.New(b, warm.Config{After: -1, Room: room})
		if err != nil {
			t.Fatal(err)
		}
		w.Freeze()
		p := &primed{Runtime: w}
		if rt == nil {
			rt = p
		}
		return p
	}))
	// One that does not answer in time, on a busy machine, is not handed out.
	if s, want := rt.Stats(), rt.want.Load(); s.Hits == 0 || s.Hits > want || s.Hits*10 < want*9 {
		t.Errorf("%d got a ready one, want %d", s.Hits, rt.want.Load())
	}
}

// A primed Runtime has what Create asks for ready.
type primed struct {
	*warm.Runtime
	want atomic.Int64
}

func (p *primed) Create(ctx context.Context, spec sandbox.Spec) (sandbox.Sandbox, error) {
	if spec.Check() == nil && spec.CheckBackend("memory") == nil {
		if p.Prime(ctx, spec) == nil {
			p.want.Add(1)
		}
	}
	return p.Runtime.Create(ctx, spec)
}
