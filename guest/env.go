package guest

import (
	"context"
	"strings"

	"github.com/atoll-run/atoll/guest/proto"
)

// SetEnv adds env to the environment of the processes that are started later,
// and then takes the variables named in without out of it. It returns what
// undoes that. The guest alone keeps it, for as long as it lives.
func (c *Client) SetEnv(ctx context.Context, env map[string]string, without []string) (was map[string]string, wasNot []string, err error) {
	m := &proto.Env{Without: without}
	for k, v := range env {
		m.Env = append(m.Env, k+"="+v)
	}
	var old proto.Env
	if _, err := c.call(ctx, proto.OpEnv, m, &old, nil); err != nil {
		return nil, nil, c.error("SetEnv", err)
	}
	was = make(map[string]string, len(old.Env))
	for _, kv := range old.Env {
		k, v, _ := strings.Cut(kv, "=")
		was[k] = v
	}
	return was, old.Without, nil
}
