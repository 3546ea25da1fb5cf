package inside

import (
	"context"

	"github.com/atoll-run/atoll/guest/proto"
)

type handle struct{}

func (h *handle) close()                    {}
func (c *conn) takeHandle(n uint32) *handle { return nil }
func fileOps(m map[proto.Op]slowOp)         { _ = context.Background }
