package native

import (
	"encoding/json"
	"errors"
	"net/http"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// statusOf returns the HTTP status of err. The kind in the body says it more
// exactly; client maps that one back.
func statusOf(err error) int {
	switch {
	case errors.Is(err, body.TooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, body.WrongType):
		return http.StatusUnsupportedMediaType
	case errors.Is(err, errNoUpgrade):
		return http.StatusUpgradeRequired
	}
	switch sandbox.KindOf(err) {
	case sandbox.Invalid:
		return http.StatusBadRequest
	case sandbox.Denied:
		return http.StatusForbidden
	case sandbox.NotExist:
		return http.StatusNotFound
	case sandbox.Conflict:
		return http.StatusConflict
	case sandbox.Exhausted:
		return http.StatusTooManyRequests
	case sandbox.Unsupported:
		return http.StatusNotImplemented
	case sandbox.Unavailable, sandbox.Closed:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// wireError returns what of err a caller may see.
func wireError(err error) wire.Error {
	kind := sandbox.KindOf(err)
	if !kind.Known() {
		kind = sandbox.Internal
	}
	w := wire.Error{Kind: kind, Message: string(kind)}
	var e *sandbox.Error
	if errors.As(err, &e) {
		w.Field, w.Hint, w.Sandbox = e.Field, e.Hint, e.ID
		if e.Msg != "" {
			w.Message = e.Msg
		}
	}
	if kind == sandbox.NotExist {
		errors.As(err, &w.Gone)
	}
	return w
}

// writeError answers with e.
func writeError(w http.ResponseWriter, status int, e wire.Error) {
	writeJSON(w, status, e)
}

// writeJSON answers with v, one of our own shapes, which cannot fail to
// encode. That the caller may have hung up is no concern here.
func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	w.Header().Set("Content-Type", wire.JSON)
	w.WriteHeader(status)
	w.Write(append(b, '\n'))
}

// reply is writeJSON for handlers.
func (c *call) reply(status int, v any) error {
	writeJSON(c.w, status, v)
	return nil
}

// done answers that there is nothing to say.
func (c *call) done() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
