package docker

import (
	"context"
	"errors"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/sandbox"
)

// An image is what the engine has for a name.
type image struct {
	id      string // sha256:…, by which it is used, whatever its name comes to mean
	shown   string // for people: with a digest
	env     []string
	user    string
	workdir string
}

// image returns the image that a Spec names, fetching it as the configuration
// says.
func (rt *Runtime) image(ctx context.Context, name string) (*image, error) {
	if name == "" {
		name = rt.cfg.Image
	}
	if name == "host" || strings.HasPrefix(name, "dir:") {
		return nil, sandbox.Errorf(sandbox.NotExist, "image", "%q is no image of a container engine", name).WithHint("name one such as debian:stable-slim, or use the backend linux")
	}
	if rt.cfg.Pull != PullAlways {
		img, err := rt.inspectImage(ctx, name)
		if err == nil || !errdefs.IsNotFound(err) {
			return img, imageError(rt, name, err)
		}
		if rt.cfg.Pull == PullNever {
			return nil, &sandbox.Error{Kind: sandbox.NotExist, Field: "image", Msg: "the engine has no image " + name, Hint: "pull or import it there", Err: err}
		}
	}
	if err := rt.pull(ctx, name); err != nil {
		return nil, err
	}
	img, err := rt.inspectImage(ctx, name)
	return img, imageError(rt, name, err)
}

// imageError says what the engine thinks of an image's name.
func imageError(rt *Runtime, name string, err error) error {
	switch {
	case err == nil:
		return nil
	case errdefs.IsNotFound(err):
		return &sandbox.Error{Kind: sandbox.NotExist, Field: "image", Msg: "there is no image " + name, Hint: "look at its name", Err: err}
	case errdefs.IsInvalidArgument(err):
		return &sandbox.Error{Kind: sandbox.NotExist, Field: "image", Msg: "no image can have this name", Hint: "use one such as debian:stable-slim", Err: err}
	}
	return rt.fail(err)
}

func (rt *Runtime) inspectImage(ctx context.Context, name string) (*image, error) {
	// The client puts the name into a path as it is.
	if strings.ContainsAny(name, "?#%\\ ") || strings.Contains(name, "..") || strings.HasPrefix(name, "/") {
		return nil, errdefs.ErrInvalidArgument
	}
	r, err := rt.api.ImageInspect(ctx, name)
	if err != nil {
		return nil, err
	}
	img := &image{id: r.ID, shown: r.ID}
	if len(r.RepoDigests) > 0 {
		img.shown = r.RepoDigests[0]
	}
	if c := r.Config; c != nil {
		img.env, img.user, img.workdir = c.Env, c.User, c.WorkingDir
	}
	return img, nil
}

// pull has the engine fetch an image, with the credentials that the engine's
// side knows: ours are not looked for.
func (rt *Runtime) pull(ctx context.Context, name string) error {
	rt.log.Info("pulling", "image", name)
	r, err := rt.api.ImagePull(ctx, name, client.ImagePullOptions{})
	if err != nil {
		return pullError(rt, name, err)
	}
	defer r.Close()
	for m, err := range r.JSONMessages(ctx) {
		if err != nil {
			return pullError(rt, name, err)
		}
		if m.Error != nil {
			return pullError(rt, name, m.Error)
		}
		if rt.cfg.Progress != nil {
			p := Progress{Image: name, Layer: m.ID, Status: m.Status}
			if m.Progress != nil {
				p.Done, p.Total = m.Progress.Current, m.Progress.Total
			}
			rt.cfg.Progress(p)
		}
	}
	return ctx.Err()
}

func pullError(rt *Runtime, name string, err error) error {
	var e *sandbox.Error
	text := err.Error()
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.As(err, &e):
		return err
	case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err), strings.Contains(text, "manifest unknown"), strings.Contains(text, "not found"),
		strings.Contains(text, "pull access denied"), strings.Contains(text, "invalid reference format"):
		return &sandbox.Error{Kind: sandbox.NotExist, Field: "image", Msg: "there is no image " + name + " that the engine can pull", Hint: "look at its name, and whether the engine may read it", Err: err}
	case client.IsErrConnectionFailed(err):
		return rt.fail(err)
	}
	return &sandbox.Error{Kind: sandbox.Unavailable, Field: "image", Msg: "the engine has no image " + name + ", and could not pull it", Hint: "try again, or import it into the engine", Err: err}
}
