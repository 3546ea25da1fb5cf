package native

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// A query is the parameters of a URL, each at most once. Their values are
// bytes.
type query map[string]string

// parseQuery reads the URL's parameters, of which only known ones may be
// there.
func (c *call) parseQuery(known []string) (err error) {
	c.query, err = parseQuery(c.r.URL.RawQuery, known)
	return err
}

func parseQuery(raw string, known []string) (query, error) {
	if raw == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Invalid, Field: "query", Msg: "the query of the URL is malformed", Hint: "write name=value&name=value, percent-encoded", Err: err}
	}
	q := make(query, len(values))
	for name, v := range values {
		if !slices.Contains(known, name) {
			e := sandbox.Errorf(sandbox.Invalid, strings.ToValidUTF8(clip(name), "?"), "there is no such parameter")
			if len(known) > 0 {
				return nil, e.WithHint("known ones: %s", strings.Join(known, ", "))
			}
			return nil, e.WithHint("this request takes none")
		}
		if len(v) > 1 {
			return nil, sandbox.Errorf(sandbox.Invalid, name, "it is there %d times", len(v)).WithHint("write it once")
		}
		q[name] = v[0]
	}
	return q, nil
}

// integer returns the whole number with this name, or def if it is not there.
func (q query) integer(name string, def int64) (int64, error) {
	s, ok := q[name]
	if !ok {
		return def, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Invalid, name, "%q is not a whole number of 64 bits", clip(s))
	}
	return n, nil
}

// boolean returns the truth with this name, or false if it is not there.
func (q query) boolean(name string) (bool, error) {
	switch s, ok := q[name]; {
	case !ok, s == "false":
		return false, nil
	case s == "true":
		return true, nil
	}
	return false, sandbox.Errorf(sandbox.Invalid, name, "%q is neither true nor false", clip(q[name]))
}

// seconds returns the duration with this name, at most max, or def if it is
// not there.
func (q query) seconds(name string, def, max time.Duration) (time.Duration, error) {
	s, ok := q[name]
	if !ok {
		return def, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	var d time.Duration
	if err == nil {
		d, err = wire.ParseSeconds(f)
	}
	if err != nil || d < 0 {
		return 0, sandbox.Errorf(sandbox.Invalid, name, "%q is not a number of seconds", clip(s)).WithHint("write 30 or 0.5")
	}
	return min(d, max), nil
}

// mode returns the permission bits with this name, or 0 if they are not there.
func (q query) mode(name string) (wire.Mode, error) {
	s, ok := q[name]
	if !ok {
		return 0, nil
	}
	m, err := wire.ParseMode(s)
	if err != nil {
		return 0, sandbox.Errorf(sandbox.Invalid, name, "%q is not a mode", clip(s)).WithHint("write octal digits such as 0644")
	}
	return m, nil
}
