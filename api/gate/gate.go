// Package gate stands before every protocol: it lets a request in if it names
// this server, comes from no foreign web page, and brings a token. It knows
// tokens, whose they are, and no protocol; each protocol says in which headers
// its clients send the token ([Taker]) and how it writes a refusal, and asks
// [OwnerOf] on whose behalf it acts.
//
// Why the three checks are needed together: a token alone does not help where
// a protocol has it in the URL, and a browser on the operator's machine is
// inside the loopback address that we listen on. A page whose own name
// resolves to 127.0.0.1 (DNS rebinding) is stopped by the Host header, any
// other page by the Origin header and by Sec-Fetch-Site, which no page can
// forge, and which programs that are not browsers do not send. There is no
// CORS: nothing foreign is ever allowed.
//
// It is no defence against who can read the token, and does not limit rates.
package gate

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// MinToken is the shortest token that New takes, in bytes. With fewer a guess
// is thinkable.
const MinToken = 16

// Config says whom a Gate lets in.
type Config struct {
	// Token is the daemon's own: who brings it is [sandbox.Operator]. It is at
	// least MinToken bytes long; there is no way to do without.
	Token sandbox.Secret

	// Owners has the tokens of others, by who they are. No two tokens are
	// equal; Operator is not among them.
	Owners map[sandbox.Owner]sandbox.Secret

	// Hosts are the names, without ports, that a Host header may have beside
	// loopback ones and the address on which the request came.
	Hosts []string

	// Log gets a line for each refusal; nil is none.
	Log *slog.Logger
}

// A Gate decides who gets in. It is safe for concurrent use.
type Gate struct {
	keys  []key
	hosts map[string]bool
	log   *slog.Logger
}

// A key is a token's sum, and whom it lets in.
type key struct {
	sum   [sha256.Size]byte
	owner sandbox.Owner
}

// New returns a Gate, or an Invalid error naming the field that is wrong.
func New(cfg Config) (*Gate, error) {
	g := &Gate{hosts: make(map[string]bool), log: cfg.Log}
	if err := g.add("token", sandbox.Operator, cfg.Token); err != nil {
		return nil, err
	}
	for _, o := range slices.Sorted(maps.Keys(cfg.Owners)) {
		field := "owners." + string(o)
		if err := sandbox.CheckOwner("owners", o); err != nil {
			return nil, err
		}
		if o == sandbox.Operator {
			return nil, sandbox.Errorf(sandbox.Invalid, field, "the operator's token is the daemon's own").WithHint("choose another name")
		}
		if err := g.add(field, o, cfg.Owners[o]); err != nil {
			return nil, err
		}
	}
	if g.log == nil {
		g.log = slog.New(slog.DiscardHandler)
	}
	for _, h := range cfg.Hosts {
		name, ok := hostname(h)
		if !ok {
			return nil, sandbox.Errorf(sandbox.Invalid, "host", "%q is not a host name", h).WithHint("give a name or an address without a port, such as sandbox.example.org")
		}
		g.hosts[name] = true
	}
	return g, nil
}

// add has g let owner in with token, which field names in errors.
func (g *Gate) add(field string, owner sandbox.Owner, token sandbox.Secret) error {
	if len(token) < MinToken {
		return sandbox.Errorf(sandbox.Invalid, field, "the token has %d bytes", len(token)).
			WithHint("use at least %d, such as 40 random hexadecimal digits", MinToken)
	}
	sum := sha256.Sum256([]byte(token.Reveal()))
	for _, k := range g.keys {
		if k.sum == sum {
			return sandbox.Errorf(sandbox.Invalid, field, "the token is that of %s too", k.owner).WithHint("give each its own")
		}
	}
	g.keys = append(g.keys, key{sum, owner})
	return nil
}

// whose returns whom token lets in, or "".
func (g *Gate) whose(token sandbox.Secret) sandbox.Owner {
	// Sums have one length, and all are compared whatever the result, so that
	// the time tells nothing about them.
	sum := sha256.Sum256([]byte(token.Reveal()))
	found := -1
	for i := range g.keys {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], g.keys[i].sum[:]), i, found)
	}
	if found < 0 {
		return ""
	}
	return g.keys[found].owner
}

// ownerKey is where a request's context has its owner.
type ownerKey struct{}

// OwnerOf returns on whose behalf the request is made whose context is ctx, as
// the Gate found it, or "" for one that came through no Gate.
func OwnerOf(ctx context.Context) sandbox.Owner {
	o, _ := ctx.Value(ownerKey{}).(sandbox.Owner)
	return o
}

// A Taker finds the token that a request brings, or returns "". It may not
// change the request.
type Taker func(*http.Request) sandbox.Secret

// Bearer takes the token from "Authorization: Bearer TOKEN".
func Bearer(r *http.Request) sandbox.Secret {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return sandbox.Secret(strings.TrimLeft(token, " "))
}

// Header returns a Taker that takes the token from the header with this name.
func Header(name string) Taker {
	return func(r *http.Request) sandbox.Secret { return sandbox.Secret(r.Header.Get(name)) }
}

// A Refusal says why a request was not let in, and the HTTP status that fits.
type Refusal struct {
	Status int // 401 or 403
	Err    *sandbox.Error
}

// Guard returns a Handler that passes to h what comes through the gate with a
// token that one of take finds, with its owner in the context ([OwnerOf]), and
// gives all else to refuse. The body of a refused request is not waited for:
// the connection is closed after the answer.
func (g *Gate) Guard(h http.Handler, refuse func(http.ResponseWriter, *http.Request, Refusal), take ...Taker) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		owner, no := g.check(r, take)
		if no != nil {
			g.log.LogAttrs(r.Context(), slog.LevelWarn, "refused", slog.Int("status", no.Status), slog.String("why", no.Err.Msg),
				slog.String("method", r.Method), slog.String("remote", r.RemoteAddr), slog.String("host", r.Host), slog.String("origin", r.Header.Get("Origin")))
			w.Header().Set("Connection", "close")
			http.NewResponseController(w).SetReadDeadline(time.Now().Add(time.Second))
			if no.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", `Bearer realm="atoll"`)
			}
			refuse(w, r, *no)
			return
		}
		// In place, so that who stands before the gate goes on to see what is
		// noted in the request later: its pattern, its trailers.
		*r = *r.WithContext(context.WithValue(r.Context(), ownerKey{}, owner))
		h.ServeHTTP(w, r)
	})
}

// check returns whom r lets in, or why nobody.
func (g *Gate) check(r *http.Request, take []Taker) (sandbox.Owner, *Refusal) {
	if !g.hostOK(r) {
		return "", &Refusal{http.StatusForbidden, sandbox.Errorf(sandbox.Denied, "host", "%q is not a name of this server", r.Host).
			WithHint("use the address that the server listens on, or start it with --host NAME")}
	}
	if !originOK(r) {
		return "", &Refusal{http.StatusForbidden, sandbox.Errorf(sandbox.Denied, "origin", "requests from other web pages are not answered").
			WithHint("call the server from a program, not from a page")}
	}
	given := false
	for _, t := range take {
		s := t(r)
		if s == "" {
			continue
		}
		given = true
		if owner := g.whose(s); owner != "" {
			return owner, nil
		}
	}
	if given {
		return "", &Refusal{http.StatusUnauthorized, sandbox.Errorf(sandbox.Denied, "token", "this is not a token of the server's").WithHint("the operator's stands in the file token of the daemon's state folder; give it to atoll in ATOLL_TOKEN")}
	}
	return "", &Refusal{http.StatusUnauthorized, sandbox.Errorf(sandbox.Denied, "token", "the request brings no token").WithHint("send the header Authorization: Bearer TOKEN")}
}

// hostOK reports whether the Host header names this server. Through a Unix
// socket anything does: no browser gets there.
func (g *Gate) hostOK(r *http.Request) bool {
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if local != nil && local.Network() == "unix" {
		return true
	}
	name, ok := hostname(stripPort(r.Host))
	if !ok {
		return false
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") || g.hosts[name] {
		return true
	}
	ip, err := netip.ParseAddr(name)
	if err != nil {
		return false
	}
	if ip.IsLoopback() {
		return true
	}
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return false
	}
	at, ok := netip.AddrFromSlice(tcp.IP)
	return ok && at.Unmap() == ip.Unmap()
}

// originOK reports whether the request comes from no web page, or from a page
// of this very server.
func originOK(r *http.Request) bool {
	for _, v := range r.Header.Values("Sec-Fetch-Site") {
		if v != "same-origin" && v != "none" {
			return false
		}
	}
	switch origins := r.Header.Values("Origin"); len(origins) {
	case 0:
		return true
	case 1:
		u, err := url.Parse(origins[0])
		return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && strings.EqualFold(u.Host, r.Host) &&
			u.User == nil && u.Path == "" && u.RawQuery == "" && u.Fragment == ""
	}
	return false
}

// stripPort returns h without its port.
func stripPort(h string) string {
	if host, port, err := net.SplitHostPort(h); err == nil && decimal(port) {
		return host
	}
	if strings.HasPrefix(h, "[") && strings.HasSuffix(h, "]") {
		return h[1 : len(h)-1]
	}
	return h
}

func decimal(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return true
}

// hostname returns h in the form in which names are compared: small letters,
// no dot at the end; an address as netip writes it.
func hostname(h string) (string, bool) {
	if ip, err := netip.ParseAddr(h); err == nil {
		return ip.WithZone("").String(), true
	}
	h = strings.TrimSuffix(strings.ToLower(h), ".")
	if h == "" || len(h) > 253 {
		return "", false
	}
	for i := range len(h) {
		if c := h[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' && c != '_' {
			return "", false
		}
	}
	return h, true
}

// Health answers 200 to all who ask whether the server is there. It needs no
// Guard: it tells nothing else.
func Health(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Write([]byte("{\"status\":\"healthy\"}\n"))
}

// The times that an http.Server of ours allows, and the size of headers.
const (
	// HeaderTimeout is how long a request's headers may take to arrive.
	HeaderTimeout = 10 * time.Second
	// IdleTimeout is how long a connection may wait for its next request.
	IdleTimeout = 2 * time.Minute
	// MaxHeader is how many bytes of headers a request may have: two paths of
	// 4095 bytes, each byte written as three, and room for the rest.
	MaxHeader = 32 << 10
)

// Server returns an http.Server for h that bounds what a caller can hold
// before it has shown its token. It sets no limit to how long a body or an
// answer may take, since uploads and the output of processes may take any
// time: who reads a body sets a deadline for it.
func Server(h http.Handler, log *slog.Logger) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: HeaderTimeout,
		IdleTimeout:       IdleTimeout,
		MaxHeaderBytes:    MaxHeader,
	}
	if log != nil {
		s.ErrorLog = slog.NewLogLogger(log.Handler(), slog.LevelDebug)
	}
	return s
}
