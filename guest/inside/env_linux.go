package inside

import (
	"slices"
	"strings"

	"github.com/atoll-run/atoll/guest/proto"
)

// setEnv answers "env". It runs on the loop, as the start of a process does,
// which reads what it changes.
func (s *Server) setEnv(m *proto.Env) (*proto.Env, error) {
	env := slices.Clone(s.place.env)
	at := make(map[string]int, len(env)) // where each variable is; -1 is not any more
	before := 0
	for i, kv := range env {
		at[variable(kv)] = i
		before += len(kv) + 1
	}
	size := before
	undo := new(proto.Env)
	touched := make(map[string]bool)
	// take returns where the variable is, and reckons without it.
	take := func(name string) (i int, there bool) {
		if i, there = at[name]; i < 0 {
			there = false
		}
		switch {
		case touched[name]:
		case there:
			undo.Env = append(undo.Env, env[i])
		default:
			undo.Without = append(undo.Without, name)
		}
		touched[name] = true
		if there {
			size -= len(env[i]) + 1
		}
		return i, there
	}
	for _, kv := range m.Env {
		name := variable(kv)
		if name == "" || strings.IndexByte(kv, 0) >= 0 {
			return nil, fail(kindInvalid, "env", "a variable has no usable name or value")
		}
		if i, there := take(name); there {
			env[i] = kv
		} else {
			at[name] = len(env)
			env = append(env, kv)
		}
		size += len(kv) + 1
	}
	for _, name := range m.Without {
		if i, there := take(name); there {
			env[i], at[name] = "", -1
		}
	}
	if size > maxEnv && size > before {
		return nil, &proto.Failure{Kind: kindInvalid, Field: "env", Msg: "the sandbox's environment would be too long to start a process with", Hint: "keep long values in files"}
	}
	s.place.env = slices.DeleteFunc(env, func(kv string) bool { return kv == "" })
	return undo, nil
}

// variable returns the name in a "name=value", or "".
func variable(kv string) string {
	name, _, ok := strings.Cut(kv, "=")
	if !ok {
		return ""
	}
	return name
}
