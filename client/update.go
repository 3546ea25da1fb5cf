package client

import (
	"context"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

var _ sandbox.Updater = (*Sandbox)(nil)

// Update changes what can be changed of the sandbox.
func (s *Sandbox) Update(ctx context.Context, c sandbox.Change) error {
	r := s.request("client.Update", "PATCH", "")
	body, err := wire.ChangeOf(c)
	if err != nil {
		return sandbox.At(r.op, s.id, err)
	}
	r.body = body
	return s.c.json(ctx, r, nil)
}
