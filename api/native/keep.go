package native

import (
	"net/http"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

func (c *call) keeper() (sandbox.Keeper, error) {
	k, ok := c.rt.(sandbox.Keeper)
	if !ok {
		return nil, sandbox.Errorf(sandbox.Unsupported, "", "this server does not keep sandboxes by name")
	}
	return k, nil
}

// acquire answers with a sandbox that stays even if nobody hears of it: it
// may be another caller's too, and who asks again gets it.
func (c *call) acquire() error {
	var req wire.Spec
	if err := body.Read(c.w, c.r, wire.MaxBody, &req); err != nil {
		return err
	}
	k, err := c.keeper()
	if err != nil {
		return err
	}
	sb, made, err := k.Acquire(c.ctx, req.Spec())
	if err != nil {
		return err
	}
	info, err := sb.Info(c.ctx)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", sandboxes+"/"+string(info.ID))
	return c.reply(http.StatusOK, wire.Acquired{Made: made, Sandbox: shown(info)})
}

func (c *call) lookup() error {
	name, ok := c.query["name"]
	if !ok {
		return sandbox.Errorf(sandbox.Invalid, "name", "there is no name").WithHint("write ?name=NAME, percent-encoded")
	}
	peek, err := c.query.boolean("peek")
	if err != nil {
		return err
	}
	k, err := c.keeper()
	if err != nil {
		return err
	}
	sb, ok := sandbox.Sandbox(nil), false
	if p, can := k.(sandbox.Peeker); can && peek {
		sb, ok = p.PeekName(name)
	}
	if !ok {
		if sb, err = k.Lookup(c.ctx, name); err != nil {
			return err
		}
	}
	info, err := sb.Info(c.ctx)
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", sandboxes+"/"+string(info.ID))
	return c.reply(http.StatusOK, shown(info))
}

func (c *call) release() error {
	r, err := ability[sandbox.Releaser](c, "way to be released")
	if err != nil {
		return err
	}
	if err := r.Release(c.ctx); err != nil {
		return err
	}
	return c.done()
}
