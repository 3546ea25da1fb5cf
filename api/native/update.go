package native

import (
	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func (c *call) update() error {
	var req wire.Change
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	u, err := ability[sandbox.Updater](c, "way to change a sandbox")
	if err != nil {
		return err
	}
	if err := u.Update(c.ctx, req.Change()); err != nil {
		return err
	}
	return c.done()
}
