package native_test

import (
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

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
// on the way is as the document says.
func TestContract(t *testing.T) {
	var servers []*server
	sandboxtest.Run(t, sandboxtest.Config{
		New: func(t *testing.T) sandbox.Runtime {
			s := serve(t, memory.New(memory.Config{Programs: programs}))
			servers = append(servers, s)
			return wired{s.client, s}
		},
		Listen: func(port int) []string { return []string{"echo-server", strconv.Itoa(port)} },
		Settle: func() {
			for _, s := range servers {
				s.client.CloseIdle()
			}
		},
	})
}
