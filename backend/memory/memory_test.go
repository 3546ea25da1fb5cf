package memory_test

import (
	"io"
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
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

func TestContract(t *testing.T) {
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			return memory.New(memory.Config{Programs: map[string]memory.Program{"echo-server": echo}})
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Source: func(t *testing.T) string { return "/srv/" + t.Name() },
	})
}
