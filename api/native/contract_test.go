package native_test

import (
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/engine"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// engineOver returns an Engine that keeps the sandboxes of rt and lets folders
// below /srv be mounted.
func engineOver(t *testing.T, rt sandbox.Runtime) *engine.Engine {
	t.Helper()
	e, err := engine.New(t.Context(), rt, engine.Config{MountRoots: []string{"/srv"}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// wired is a client whose server ends with it.
type wired struct {
	*client.Client
	s *server
}

func (w wired) Close() error {
	err := w.Client.Close()
	w.s.close()
	return err
}

// The contract holds through the wire without any exception, and every answer
// on the way is as the document says: of a backend alone, and of one whose
// sandboxes are kept by name.
func TestContract(t *testing.T) {
	t.Run("backend", func(t *testing.T) {
		contract(t, func(t *testing.T, rt sandbox.Runtime) sandbox.Runtime { return rt })
	})
	t.Run("engine", func(t *testing.T) {
		contract(t, func(t *testing.T, rt sandbox.Runtime) sandbox.Runtime { return engineOver(t, rt) })
	})
}

func contract(t *testing.T, over func(*testing.T, sandbox.Runtime) sandbox.Runtime) {
	var servers []*server
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			s := serve(t, over(t, memory.New(memory.Config{Programs: programs})))
			servers = append(servers, s)
			return wired{s.client, s}
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Source: func(t *testing.T) string { return "/srv/" + t.Name() },
		Settle: func() {
			for _, s := range servers {
				s.client.CloseIdle()
			}
		},
	})
}
