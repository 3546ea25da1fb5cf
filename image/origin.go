package image

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/atoll-run/atoll/sandbox"
)

// An origin is a repository that an image comes from.
type origin struct {
	s      *Store
	repo   name.Repository
	ref    string // of the image, for errors
	client *http.Client
}

// accepted are the manifests that we read.
var accepted = strings.Join([]string{
	string(types.OCIImageIndex), string(types.DockerManifestList), string(types.OCIManifestSchema1), string(types.DockerManifestSchema2),
}, ", ")

// stall is how long a registry may send nothing of a layer.
const stall = time.Minute

// attempts is how often something is tried that may go well another time; a
// download that gets on starts anew with counting.
const attempts = 4

func (s *Store) registry(host string) (name.Registry, error) {
	var opts []name.Option
	if s.plain(host) {
		opts = append(opts, name.Insecure)
	}
	reg, err := name.NewRegistry(host, opts...)
	if err != nil {
		return name.Registry{}, &sandbox.Error{Kind: sandbox.Invalid, Field: "image", Msg: fmt.Sprintf("%q is not the name of a registry", host), Err: err}
	}
	return reg, nil
}

// plain reports whether host may be spoken to without TLS.
func (s *Store) plain(host string) bool {
	return isLoopback(host) || slices.Contains(s.opt.Plain, host) || slices.Contains(s.opt.Plain, bare(host))
}

// bare is a host without its port.
func bare(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		return h
	}
	return host
}

func isLoopback(host string) bool {
	host = bare(host)
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// origin says hello to the repository's registry, with what we have to say who
// we are.
func (s *Store) origin(ctx context.Context, repo name.Repository, ref string) (*origin, error) {
	from := &origin{s: s, repo: repo, ref: ref}
	err := from.again(ctx, func(ctx context.Context) error {
		auth, err := authn.Resolve(ctx, s.opt.Auth, repo)
		if err != nil {
			return &sandbox.Error{Kind: sandbox.Denied, Field: "image", Msg: "the credentials for " + repo.RegistryStr() + " cannot be read", Hint: "look at ~/.docker/config.json", Err: err}
		}
		ctx, cancel := context.WithTimeout(ctx, stall)
		defer cancel()
		rt, err := transport.NewWithContext(ctx, repo.Registry, auth, transport.NewUserAgent(&guard{s, isLoopback(repo.RegistryStr())}, "atoll"), []string{repo.Scope(transport.PullScope)})
		if err != nil {
			return err
		}
		from.client = &http.Client{Transport: rt}
		return nil
	})
	return from, err
}

// A guard stands between the registry client and the network. It lets nothing
// go without TLS to whom that is not allowed, redirected or not, and bounds
// answers that are read into memory. Only a registry of this machine's may send
// us to others of it: what listens on loopback trusts who can reach it.
type guard struct {
	s     *Store
	local bool
}

func (g *guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "https" && !g.s.plain(r.URL.Host) || isLoopback(r.URL.Host) && !g.local {
		return nil, errPlain
	}
	resp, err := g.s.net.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	// What is asked for decides, not where it was found.
	first := r
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	if !strings.Contains(first.URL.Path, "/blobs/") || resp.StatusCode >= 300 {
		resp.Body = &short{resp.Body, maxJSON}
	}
	return resp, nil
}

var errPlain = errors.New("it is spoken to without TLS")

// A short body fails when it is longer than left.
type short struct {
	io.ReadCloser
	left int64
}

func (b *short) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, bomb("an answer of the registry has more than %d bytes", maxJSON)
	}
	return n, err
}

// get asks for what is at path in the repository, from byte skip on. The caller
// closes the answer's body.
func (from *origin) get(ctx context.Context, path, accept string, skip int64) (*http.Response, error) {
	u := fmt.Sprintf("%s://%s/v2/%s/%s", from.repo.Scheme(), from.repo.RegistryStr(), from.repo.RepositoryStr(), path)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	if accept != "" {
		r.Header.Set("Accept", accept)
	}
	// What we count and hash is what is stored there.
	r.Header.Set("Accept-Encoding", "identity")
	ok := []int{http.StatusOK}
	if skip > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", skip))
		ok = append(ok, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	}
	resp, err := from.client.Do(r)
	if err != nil {
		return nil, err
	}
	if err := transport.CheckError(resp, ok...); err != nil {
		resp.Body.Close()
		return nil, err
	}
	return resp, nil
}

// manifest reads the manifest of a tag or digest, and verifies a digest.
func (from *origin) manifest(ctx context.Context, ref string) (raw []byte, mt types.MediaType, err error) {
	err = from.again(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, stall)
		defer cancel()
		resp, err := from.get(ctx, "manifests/"+ref, accepted, 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if raw, err = io.ReadAll(resp.Body); err != nil {
			return err
		}
		kind, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";")
		mt = types.MediaType(strings.TrimSpace(kind))
		return nil
	})
	if err == nil && isDigest(ref) && digestBytes(raw) != ref {
		err = malformed("its manifest is not what its digest says")
	}
	return raw, mt, err
}

// small reads what is small, into memory, and verifies it.
func (from *origin) small(ctx context.Context, d v1.Descriptor) (raw []byte, err error) {
	err = from.again(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, stall)
		defer cancel()
		resp, err := from.get(ctx, "blobs/"+d.Digest.String(), "", 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		raw, err = io.ReadAll(io.LimitReader(resp.Body, d.Size+1))
		return err
	})
	if err == nil && (int64(len(raw)) != d.Size || digestBytes(raw) != d.Digest.String()) {
		err = malformed("its configuration is not what its digest says")
	}
	return raw, err
}

// A blobFile is a blob that is here as a whole.
type blobFile struct {
	*os.File
	path string
}

func (f *blobFile) remove() { os.Remove(f.path) }

// blob fetches a layer into a file and verifies it. What came of it before
// stays, and is gone on from. One goroutine fetches a layer at a time.
func (from *origin) blob(ctx context.Context, d v1.Descriptor, diff string, tell func(Progress)) (_ *blobFile, err error) {
	path := from.s.path("blobs", hexOf(d.Digest.String())+"-"+hexOf(diff))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, classify(err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	h := sha256.New()
	have, err := io.Copy(h, io.LimitReader(f, d.Size+1))
	if err != nil {
		return nil, err
	}
	if have > d.Size {
		h.Reset()
		have = 0
		if err := f.Truncate(0); err != nil {
			return nil, err
		}
	}
	g := &getting{from: from, d: d, f: f, hash: h, have: have, tell: tell}
	if have < d.Size {
		if err := from.keepOn(ctx, &g.have, g.some); err != nil {
			return nil, classify(err)
		}
	}
	if digestOf(h) != d.Digest.String() {
		os.Remove(path)
		return nil, malformed("a layer is not what its digest says")
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return &blobFile{f, path}, nil
}

// getting is a blob on its way.
type getting struct {
	from *origin
	d    v1.Descriptor
	f    *os.File
	hash hash.Hash
	have int64
	tell func(Progress)
}

// some fetches what is missing, or as much of it as comes.
func (g *getting) some(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := time.AfterFunc(stall, func() { cancel(errStalled) })
	defer silence.Stop()
	resp, err := g.from.get(ctx, "blobs/"+g.d.Digest.String(), "", g.have)
	if err != nil {
		return cause(ctx, err)
	}
	defer resp.Body.Close()
	from := int64(0)
	if resp.StatusCode == http.StatusPartialContent {
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-", &from); err != nil {
			from = -1
		}
	}
	if g.have > 0 && (from != g.have || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable) {
		// It does not go on from where we are.
		if err := g.f.Truncate(0); err != nil {
			return err
		}
		g.have = 0
		g.hash.Reset()
		if from != 0 || resp.StatusCode == http.StatusRequestedRangeNotSatisfiable {
			return fmt.Errorf("a part of a blob: %w", io.ErrUnexpectedEOF) // and again, from the beginning
		}
	}
	buf := make([]byte, 256<<10)
	told := g.have
	for g.have < g.d.Size {
		n, err := resp.Body.Read(buf[:min(int64(len(buf)), g.d.Size-g.have)])
		if n > 0 {
			silence.Reset(stall)
			if _, err := g.f.WriteAt(buf[:n], g.have); err != nil {
				return err
			}
			g.hash.Write(buf[:n])
			g.have += int64(n)
			if g.have-told >= 512<<10 || told == 0 {
				told = g.have
				g.tell(Progress{Layer: g.d.Digest.String(), Phase: Downloading, Done: g.have, Total: g.d.Size})
			}
		}
		if errors.Is(err, io.EOF) && g.have < g.d.Size {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return cause(ctx, err)
		}
	}
	return nil
}

var errStalled = fmt.Errorf("nothing came for %v: %w", stall, os.ErrDeadlineExceeded)

func cause(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// again does something again that may go well another time, a few times, and
// gives its error a kind.
func (from *origin) again(ctx context.Context, do func(context.Context) error) error {
	return from.keepOn(ctx, new(int64), do)
}

// enough is how much must come in an attempt for the next to count as the
// first.
const enough = 64 << 10

// keepOn is again for what gets on, as have says.
func (from *origin) keepOn(ctx context.Context, have *int64, do func(context.Context) error) error {
	const first = 200 * time.Millisecond
	for i, wait, last := 1, first, *have; ; i++ {
		err := do(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if *have >= last+enough {
			i, wait = 1, first
		}
		last = *have
		if i == attempts || !transient(err) {
			return from.refusal(err)
		}
		from.s.log.Debug("a registry is asked again", "registry", from.repo.RegistryStr(), "err", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		wait *= 3
	}
}

// transient reports whether an error may be gone another time.
func transient(err error) bool {
	var status *transport.Error
	var ours *sandbox.Error
	var timeout net.Error
	switch {
	case err == nil, errors.As(err, &ours):
		return false
	case errors.As(err, &status):
		switch status.StatusCode {
		case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE),
		errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	return errors.As(err, &timeout) && timeout.Timeout()
}

// refusal says what an error of the registry's means for who wants the image.
func (from *origin) refusal(err error) error {
	var ours *sandbox.Error
	if errors.As(err, &ours) {
		return err
	}
	registry := from.repo.RegistryStr()
	e := &sandbox.Error{Kind: sandbox.Unavailable, Field: "image", Err: err}
	var status *transport.Error
	var dns *net.DNSError
	var unknown x509.UnknownAuthorityError
	var cert *tls.CertificateVerificationError
	var disk *os.PathError
	switch {
	case errors.As(err, &status):
		switch code := status.StatusCode; {
		case code == http.StatusNotFound:
			e.Kind, e.Msg = sandbox.NotExist, fmt.Sprintf("%s has no image %q", registry, from.ref)
		case code == http.StatusUnauthorized, code == http.StatusForbidden:
			e.Kind, e.Msg = sandbox.Denied, fmt.Sprintf("%s does not give us %q", registry, from.ref)
			e.Hint = "docker login " + registry + ", if there is such an image"
		case code == http.StatusTooManyRequests:
			e.Msg, e.Hint = registry+" has had enough of our requests", "wait, use docker login, or a mirror"
		case code >= 500:
			e.Msg = fmt.Sprintf("%s answers with an error (%d)", registry, code)
		default:
			e.Kind, e.Msg = sandbox.Internal, fmt.Sprintf("%s answers what we do not understand (%d)", registry, code)
		}
	case errors.Is(err, errPlain):
		e.Kind, e.Msg = sandbox.Denied, registry+" has no TLS, or sends us to where we do not go"
		e.Hint = "if that network can be trusted, name it among the registries without TLS"
	case errors.As(err, &unknown), errors.As(err, &cert):
		e.Msg, e.Hint = registry+" cannot say who it is: its certificate does not hold", "install the certificate of its authority on this machine"
	case errors.As(err, &dns):
		e.Msg, e.Hint = "there is no host "+registry+" to be found", "look at the name, or at this machine's network; a mirror may help"
	case errors.As(err, &disk):
		return err
	default:
		e.Msg, e.Hint = registry+" cannot be reached", "look at this machine's network, its proxy settings, or use a mirror"
	}
	return e
}
