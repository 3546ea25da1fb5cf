// Package native serves Atoll's own HTTP API, below /atoll/v1, over any
// sandbox.Runtime: everything of the contract in package sandbox, and nothing
// else. The shapes are in wire/native, the Go client is package client, and
// openapi.yaml, which is served too, describes it for everybody else.
//
// It decides nothing. Who may call, and on whose behalf, is package gate's
// business; what a caller may see and have is that of the Runtime which the
// caller's owner is shown. It remembers nothing between requests but which are
// under way and which processes they wait for, so that one request can call
// off another of the same owner, or signal its process.
//
// A process that was started by a request lives as long as the request: when
// the caller hangs up its tree is killed. A caller who wants to know when that
// is done calls the request off instead and reads on.
package native

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/api/gate"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// Config says how an API behaves. The zero value works.
type Config struct {
	// Version is what the API calls itself.
	Version string

	// Log gets a line for each error that is ours, with its cause, and at
	// level Debug for each that is the caller's; nil is none.
	Log *slog.Logger
}

// An API is the http.Handler.
type API struct {
	views   func(sandbox.Owner) sandbox.Runtime
	log     *slog.Logger
	version string
	beat    time.Duration // wire.Beat, but for tests
	mux     *http.ServeMux

	life context.Context // ends when Close is called
	end  context.CancelCauseFunc

	open  context.Context // ends when Drain is called
	drain context.CancelFunc

	mu     sync.Mutex
	closed bool                           // guarded by mu
	busy   sync.WaitGroup                 // requests; Add with mu held and closed false
	live   map[processKey]sandbox.Process // guarded by mu; those that requests wait for

	requests map[requestKey]context.CancelCauseFunc // guarded by mu; those under way
}

// requestKey names a request. What one owner calls its requests is nothing to
// another.
type requestKey struct {
	owner sandbox.Owner
	name  string
}

// processKey names a process that a request waits for. It needs no owner: who
// looks for one has opened its sandbox first.
type processKey struct {
	sandbox sandbox.ID
	process sandbox.ProcessID
}

//go:embed openapi.yaml
var openAPI []byte

// OpenAPI returns the OpenAPI 3.1 document that describes the API, in YAML.
func OpenAPI() []byte { return openAPI }

var errCalledOff = sandbox.Errorf(sandbox.Unavailable, "", "the request was called off by its caller")

var errClosing = sandbox.Errorf(sandbox.Unavailable, "", "the server is shutting down").WithHint("try again later")

// One returns views for New that show every owner the same Runtime.
func One(rt sandbox.Runtime) func(sandbox.Owner) sandbox.Runtime {
	return func(sandbox.Owner) sandbox.Runtime { return rt }
}

// New returns an API over what views shows each owner; it is called for every
// request. The Runtimes stay the caller's to close.
func New(views func(sandbox.Owner) sandbox.Runtime, cfg Config) *API {
	a := &API{views: views, log: cfg.Log, version: cfg.Version, beat: wire.Beat, mux: http.NewServeMux(), live: make(map[processKey]sandbox.Process),
		requests: make(map[requestKey]context.CancelCauseFunc)}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	a.life, a.end = context.WithCancelCause(context.Background())
	a.open, a.drain = context.WithCancel(context.Background())
	allow := make(map[string][]string)
	for _, rt := range routes {
		allow[rt.Path] = append(allow[rt.Path], rt.Method)
		a.mux.HandleFunc(rt.Method+" "+rt.Path, func(w http.ResponseWriter, r *http.Request) { a.serve(w, r, rt) })
	}
	for path, methods := range allow {
		a.mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			a.refuse(w, r, http.StatusMethodNotAllowed, sandbox.Errorf(sandbox.Invalid, "method", "%s is not among the methods here", clip(r.Method)).
				WithHint("use %s", strings.Join(methods, " or ")))
		})
	}
	a.mux.HandleFunc(wire.Prefix+"/", func(w http.ResponseWriter, r *http.Request) {
		a.refuse(w, r, http.StatusNotFound, sandbox.Errorf(sandbox.NotExist, "url", "there is nothing at this path").
			WithHint("see %s/openapi.yaml for what there is", wire.Prefix))
	})
	return a
}

// ServeHTTP answers one request, which has come through a gate.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.mux.ServeHTTP(w, r) }

// Refuse answers a request that the gate refused.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, no gate.Refusal) {
	a.refuse(w, r, no.Status, no.Err)
}

// Drain ends the requests that would not end by themselves: those that follow
// what happens. Others go on, so that one can wait for their end.
func (a *API) Drain() { a.drain() }

// Close ends every request, upgraded connections included, and with it the
// processes that it waits for, and returns when all have ended. Requests that
// come later are answered with Unavailable. A second Close does nothing.
//
// http.Server.Shutdown does not know of upgraded connections: call it first,
// so that requests may end by themselves, then Close.
func (a *API) Close() error {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.drain()
	a.end(errClosing)
	a.busy.Wait()
	return nil
}

// A Route is an entry of the table that the API is made from.
type Route struct {
	Method string
	Path   string   // with {id}, {pid} and {port} where there is one
	Query  []string // the parameters that it takes
	handle func(*call) error
}

// Routes returns all there are.
func Routes() []Route { return routes }

const (
	sandboxes = wire.Prefix + "/sandboxes"
	one       = sandboxes + "/{id}"
	files     = one + "/files"
	processes = one + "/processes"
	process   = processes + "/{pid}"
)

var routes = []Route{
	{"GET", wire.Prefix, nil, (*call).server},
	{"GET", wire.Prefix + "/openapi.yaml", nil, (*call).openAPI},
	{"DELETE", wire.Prefix + "/requests/{name}", nil, (*call).callOff},
	{"GET", wire.Prefix + "/status", nil, (*call).status},
	{"GET", wire.Prefix + "/events", []string{"after", "follow"}, (*call).events},
	{"POST", wire.Prefix + "/prune", nil, (*call).prune},

	{"POST", wire.Prefix + "/acquire", nil, (*call).acquire},
	{"GET", wire.Prefix + "/lookup", []string{"name", "peek"}, (*call).lookup},

	{"POST", sandboxes, nil, (*call).create},
	{"GET", sandboxes, nil, (*call).list},
	{"GET", one, []string{"peek"}, (*call).info},
	{"PATCH", one, nil, (*call).update},
	{"DELETE", one, nil, (*call).remove},
	{"POST", one + "/pause", nil, (*call).pause},
	{"POST", one + "/resume", nil, (*call).resume},
	{"POST", one + "/release", nil, (*call).release},
	{"GET", one + "/usage", nil, (*call).usage},
	{"GET", one + "/ports/{port}", nil, (*call).dial},

	{"POST", one + "/exec", nil, (*call).exec},
	{"GET", one + "/exec", nil, (*call).execUpgraded},

	{"POST", processes, nil, (*call).startDetached},
	{"GET", processes, nil, (*call).listProcesses},
	{"DELETE", process, nil, (*call).forget},
	{"GET", process + "/attach", []string{"cursor", "discard"}, (*call).attach},
	{"GET", process + "/output", []string{"cursor", "max", "wait"}, (*call).output},
	{"POST", process + "/input", []string{"eof", "wait"}, (*call).input},
	{"POST", process + "/signal", nil, (*call).signal},
	{"POST", process + "/resize", nil, (*call).resize},

	{"GET", files, []string{"path", "offset", "length"}, (*call).openFile},
	{"PUT", files, []string{"path", "mode", "user", "parents", "exclusive", "append"}, (*call).writeFile},
	{"DELETE", files, []string{"path", "all"}, (*call).removeFile},
	{"GET", files + "/stat", []string{"path"}, (*call).stat},
	{"GET", files + "/list", []string{"path"}, (*call).listFiles},
	{"POST", files + "/mkdir", nil, (*call).mkdir},
	{"POST", files + "/rename", nil, (*call).rename},
	{"POST", files + "/chmod", nil, (*call).chmod},
	{"POST", files + "/chown", nil, (*call).chown},
}

// A call is one request on its way through.
type call struct {
	api   *API
	w     http.ResponseWriter
	r     *http.Request
	name  string          // of the request, in the log
	owner sandbox.Owner   // on whose behalf
	rt    sandbox.Runtime // what owner is shown
	ctx   context.Context // ends with the request, or with the API
	end   context.CancelCauseFunc
	query query
	begun bool // the answer has, so that an error has no status any more
}

func (a *API) serve(w http.ResponseWriter, r *http.Request, rt Route) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	owner := gate.OwnerOf(ctx)
	name, err := a.enter(owner, r.Header.Get(wire.HeaderRequest), cancel)
	if err != nil {
		a.refuse(w, r, statusOf(err), err)
		return
	}
	defer a.leave(owner, name)
	defer context.AfterFunc(a.life, func() { cancel(errClosing) })()
	defer a.hurry(ctx, w)()
	c := &call{api: a, w: w, r: r, name: name, owner: owner, rt: a.views(owner), ctx: ctx, end: cancel}
	common(w, c.name)
	if err := c.handle(rt); err != nil {
		c.answer(err)
	}
}

// hurry makes what is written to w after the end of ctx fail soon if the
// caller does not read it, so that nobody can keep a call from ending. The
// returned function undoes that, since the connection may serve other calls.
func (a *API) hurry(ctx context.Context, w http.ResponseWriter) (done func()) {
	rc, hurried := http.NewResponseController(w), make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		rc.SetWriteDeadline(time.Now().Add(lingerTimeout))
	})
	return func() {
		if !stop() {
			<-hurried
			rc.SetWriteDeadline(time.Time{})
		}
	}
}

// enter notes that a request of owner's is under way, which cancel ends, and
// returns its name: the one that its caller gave it, if that can be one.
func (a *API) enter(owner sandbox.Owner, name string, cancel context.CancelCauseFunc) (string, *sandbox.Error) {
	if name == "" {
		name = requestName()
	} else if !nameOK(name) {
		return "", sandbox.Errorf(sandbox.Invalid, wire.HeaderRequest, "%q cannot be the name of a request", clip(name)).WithHint("use 16 to 64 letters and digits, or none")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return "", errClosing
	}
	k := requestKey{owner, name}
	if a.requests[k] != nil {
		return "", sandbox.Errorf(sandbox.Conflict, wire.HeaderRequest, "a request of this name is under way").WithHint("choose names at random")
	}
	a.requests[k] = cancel
	a.busy.Add(1)
	return name, nil
}

func (a *API) leave(owner sandbox.Owner, name string) {
	a.mu.Lock()
	delete(a.requests, requestKey{owner, name})
	a.mu.Unlock()
	a.busy.Done()
}

func nameOK(s string) bool {
	for i := range len(s) {
		if c := s[i] | 0x20; (c < 'a' || c > 'z') && (s[i] < '0' || s[i] > '9') {
			return false
		}
	}
	return len(s) >= 16 && len(s) <= 64
}

func (c *call) handle(rt Route) error {
	if err := c.parseQuery(rt.Query); err != nil {
		return err
	}
	return rt.handle(c)
}

// answer tells the caller of err.
func (c *call) answer(err error) {
	if !c.begun {
		status, e := c.fault(err)
		writeError(c.w, status, e)
		return
	}
	c.fault(err)                // for the log
	panic(http.ErrAbortHandler) // the caller must not take what it got for the whole
}

// fault returns how err is told to the caller, and logs it.
func (c *call) fault(err error) (int, wire.Error) {
	if c.ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		err = context.Cause(c.ctx) // why it ended says more
	}
	status, e := statusOf(err), wireError(err)
	if e.Sandbox == "" {
		if id := sandbox.ID(c.r.PathValue("id")); id.Valid() {
			e.Sandbox = id
		}
	}
	e.Request = c.name
	level := slog.LevelDebug
	if e.Kind == sandbox.Internal && c.r.Context().Err() == nil {
		level = slog.LevelError
	}
	c.api.log.LogAttrs(c.ctx, level, "request failed", slog.String("request", c.name), slog.String("owner", string(c.owner)), slog.String("id", string(e.Sandbox)),
		slog.String("op", c.r.Pattern), slog.Any("err", err))
	return status, e
}

// refuse answers what no route takes.
func (a *API) refuse(w http.ResponseWriter, r *http.Request, status int, err *sandbox.Error) {
	name := requestName()
	common(w, name)
	e := wireError(err)
	e.Request = name
	writeError(w, status, e)
}

// common sets the headers that every answer has.
func common(w http.ResponseWriter, request string) {
	h := w.Header()
	h.Set(wire.HeaderRequest, request)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
}

func requestName() string { return fmt.Sprintf("%016x", rand.Uint64()) }

// open returns the sandbox that the path names.
func (c *call) open() (sandbox.Sandbox, error) {
	return c.rt.Open(c.ctx, sandbox.ID(c.r.PathValue("id")))
}

// look returns the sandbox that the path names without using it, where the
// Runtime tells that apart. It may have died.
func (c *call) look() (sandbox.Sandbox, error) {
	if p, ok := c.rt.(sandbox.Peeker); ok {
		if sb, ok := p.Peek(sandbox.ID(c.r.PathValue("id"))); ok {
			return sb, nil
		}
	}
	return c.open()
}

// ability returns the sandbox that the path names as a T, or Unsupported.
func ability[T any](c *call, what string) (T, error) {
	return abilityOf[T](c.open, what)
}

// abilityOf is ability for a sandbox found in another way.
func abilityOf[T any](open func() (sandbox.Sandbox, error), what string) (T, error) {
	var none T
	sb, err := open()
	if err != nil {
		return none, err
	}
	t, ok := sb.(T)
	if !ok {
		return none, sandbox.Errorf(sandbox.Unsupported, "", "this backend has no %s", what)
	}
	return t, nil
}

// pid returns the process id that the path names, or NotExist.
func (c *call) pid() (sandbox.ProcessID, error) {
	id := sandbox.ProcessID(c.r.PathValue("pid"))
	if !id.Valid() {
		return "", sandbox.Errorf(sandbox.NotExist, "process", "no process has this id")
	}
	return id, nil
}

func clip(s string) string {
	if len(s) > 64 {
		return strings.ToValidUTF8(s[:61], "") + "..."
	}
	return s
}
