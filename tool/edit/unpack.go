package edit

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// UnpackOptions says how [Unpack] works, and what it takes. Whatever is over a
// bound is refused, with [sandbox.Exhausted] and the bound as Field.
type UnpackOptions struct {
	// Format is what the archive is; "" looks at its first bytes.
	Format Format

	// Whole unpacks into a new directory beside the target, which is put in
	// its place when everything is there: either all is done or nothing (but
	// for directories above it that had to be made). The target must not be
	// there yet, or be an empty directory, which is replaced.
	Whole bool

	// Exclusive refuses, with [sandbox.Conflict], an archive that has a file
	// that is there already. Otherwise it is replaced.
	Exclusive bool

	// SkipOthers leaves out what cannot be made here: links of both kinds,
	// which Files has no call for, devices and FIFOs. Otherwise they refuse
	// the archive: links with [sandbox.Unsupported], the others with
	// [sandbox.Invalid].
	SkipOthers bool

	// Map, unless nil, says under which name an entry is unpacked, or that it
	// is not wanted. It is given a clean relative path; what it returns is
	// checked like a name of the archive.
	Map func(name string) (string, bool)

	User     string      // whom what is made belongs to, as in [sandbox.WriteOptions]
	FileMode fs.FileMode // permissions of files; 0 takes the archive's, without setuid, setgid and sticky
	DirMode  fs.FileMode // likewise of directories

	MaxEntries int           // 0 is 50000
	MaxSource  int64         // bytes of the archive itself; 0 is 1 GiB
	MaxFile    int64         // bytes of one file; 0 is as MaxSize
	MaxSize    int64         // bytes of all files; 0 is 4 GiB
	MaxRatio   int           // how much larger than the archive what comes out may be, once that is more than 1 MiB; 0 is 200
	MaxDepth   int           // elements of a name; 0 is 64
	Time       time.Duration // how long it may take, the source's time included; 0 is 10 minutes

	// Spool is a directory of this machine for a zip archive of more than
	// 1 MiB, which has to be there as a whole before it can be read. "" is
	// that of os.TempDir. The file has no name there and ends with Unpack.
	Spool string
}

func (o *UnpackOptions) check() error {
	err := checkNumbers(number{"max_entries", int64(o.MaxEntries)}, number{"max_source", o.MaxSource}, number{"max_file", o.MaxFile},
		number{"max_size", o.MaxSize}, number{"max_ratio", int64(o.MaxRatio)}, number{"max_depth", int64(o.MaxDepth)}, number{"time", int64(o.Time)})
	if err != nil {
		return err
	}
	o.MaxEntries = orDefault(o.MaxEntries, 50_000)
	o.MaxSource = orDefault(o.MaxSource, 1<<30)
	o.MaxSize = orDefault(o.MaxSize, 4<<30)
	o.MaxFile = min(orDefault(o.MaxFile, o.MaxSize), o.MaxSize)
	o.MaxRatio = orDefault(o.MaxRatio, 200)
	o.MaxDepth = orDefault(o.MaxDepth, 64)
	o.Time = orDefault(o.Time, 10*time.Minute)
	switch o.Format {
	case "", Tar, TarGzip, Zip:
		return nil
	}
	return badFormat(o.Format)
}

// Unpacked says what came out of an archive. Beside an error it says what had
// come out by then.
type Unpacked struct {
	Files   int
	Dirs    int      // made, those that the archive does not name included
	Size    int64    // bytes of the files
	Skipped Omission // links, devices and FIFOs
}

// Unpack unpacks the archive that it reads from src into the directory at dir,
// which it makes if need be. Nothing is written outside of dir: a name that is
// absolute, has an element "..", a NUL byte, an element of more than 255 bytes
// or, in a zip, a backslash or a drive letter refuses the archive, as does one
// that is there twice; and a link in dir that a name leads through, or ends at,
// is [sandbox.Conflict] and not followed. dir itself may be reached through
// links. (A process in the sandbox that puts a link in the way in the moment
// between the look and the writing gets a file written elsewhere in its own
// sandbox.) Archives in archives are files like others. Times are not kept,
// nor owners, extended attributes and special bits.
//
// Unless Whole is set, an error leaves what was unpacked before. A malformed
// archive is [sandbox.Invalid] with Field "archive".
//
// Unpack cannot end while src blocks: when ctx ends, the caller makes src fail.
func Unpack(ctx context.Context, sb sandbox.Sandbox, src io.Reader, dir string, opt UnpackOptions) (Unpacked, error) {
	u := unpacker{files: sb.Files(), opt: opt, dirs: make(map[string]state), seen: make(map[string]bool)}
	err := u.unpack(ctx, src, dir)
	return u.out, sandbox.At("edit.Unpack", sb.ID(), err)
}

// An unpacker unpacks one archive. Its entries are looked at one after the
// other; small files are written by several goroutines.
type unpacker struct {
	files sandbox.Files
	opt   UnpackOptions
	base  string // where things go

	entries int
	left    int64            // bytes that may still come out
	dirs    map[string]state // directories below base that are there
	seen    map[string]bool  // files and other things that the archive had
	src     *source

	wg   sync.WaitGroup
	room chan struct{} // one for each small file that is being written

	mu  sync.Mutex
	out Unpacked
	err error // the first of a small file
}

func (u *unpacker) unpack(ctx context.Context, src io.Reader, dir string) (err error) {
	if err := sandbox.CheckPath("path", dir); err != nil {
		return err
	}
	if err := u.opt.check(); err != nil {
		return err
	}
	u.left = u.opt.MaxSize
	u.room = make(chan struct{}, atOnce)
	if u.opt.Whole {
		u.dirs[""] = made
	}
	life, cancel, late := budget(ctx, u.opt.Time)
	defer cancel()
	defer func() { err = outOfTime(err, late, u.opt.Time) }()

	if u.base, err = u.target(life, dir); err != nil {
		return err
	}
	if u.opt.Whole {
		temp := u.base
		defer func() {
			if err == nil {
				err = u.files.Rename(life, temp, path.Clean(dir))
			}
			if err != nil {
				u.out = Unpacked{}
				undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
				defer cancel()
				if e := u.files.Remove(undo, temp, true); e != nil {
					err = fmt.Errorf("%w (%q is left over: %w)", err, temp, e)
				}
			}
		}()
	}
	err = u.read(life, src)
	u.wg.Wait()
	if err == nil || errors.Is(err, errStopped) {
		err = u.err
	}
	return err
}

// target makes the directory that things go into, and returns it.
func (u *unpacker) target(ctx context.Context, dir string) (string, error) {
	mkdir := sandbox.MkdirOptions{User: u.opt.User, Mode: u.opt.DirMode, Parents: true}
	if !u.opt.Whole {
		return dir, u.files.Mkdir(ctx, dir, mkdir)
	}
	dir = path.Clean(dir)
	info, err := u.files.Stat(ctx, dir)
	switch {
	case errors.Is(err, sandbox.NotExist):
		if err := u.files.Mkdir(ctx, path.Dir(dir), mkdir); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	case !info.Mode.IsDir():
		return "", sandbox.Errorf(sandbox.Conflict, "path", "%q is there already, and not a directory", dir).WithHint("choose another place")
	default:
		for _, err := range u.files.List(ctx, dir) {
			if err == nil {
				err = sandbox.Errorf(sandbox.Conflict, "path", "%q is not empty", dir).WithHint("choose another place, or unpack without asking for all or nothing")
			}
			return "", err
		}
	}
	temp := join(path.Dir(dir), ".unpack-"+string(sandbox.NewID()))
	mkdir.Parents = false
	return temp, u.files.Mkdir(ctx, temp, mkdir)
}

// errStopped ends the reading because a small file could not be written; u.err
// says why.
var errStopped = errors.New("stopped")

// read unpacks whatever src is.
func (u *unpacker) read(ctx context.Context, src io.Reader) error {
	u.src = &source{ctx: ctx, r: src, left: u.opt.MaxSource}
	in := bufio.NewReaderSize(u.src, 64<<10)
	format := u.opt.Format
	if format == "" {
		format = detect(in)
	}
	var err error
	switch format {
	case Zip:
		err = u.zip(ctx, in)
	case TarGzip:
		var z *gzip.Reader
		if z, err = gzip.NewReader(in); err == nil {
			raw := &unzipped{u: u, r: z, left: u.opt.MaxSize + int64(u.opt.MaxEntries)*(4<<10) + 1<<20}
			if err = u.tar(ctx, raw); err == nil {
				_, err = io.Copy(io.Discard, raw) // for the checksum at the end
			}
			err = cmp.Or(raw.err, err)
		}
	default:
		err = u.tar(ctx, in)
	}
	if u.src.err != nil && !errors.Is(err, errStopped) { // whatever a parser made of it
		return u.src.err
	}
	return malformed(err)
}

// detect says what an archive is by its first bytes.
func detect(in *bufio.Reader) Format {
	head, _ := in.Peek(4)
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return TarGzip
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte("PK\x05\x06")):
		return Zip
	}
	return Tar
}

// A piece of an archive.
type entry struct {
	name string
	kind fs.FileMode // 0, ModeDir, ModeSymlink for links of both kinds, or ModeIrregular
	mode fs.FileMode // permissions
	size int64       // as it says
	open func() (io.ReadCloser, error)
	in   int64 // bytes of the archive that it takes; 0 if that is not known
}

// tar unpacks what r has. An archive without its end marker was cut short.
func (u *unpacker) tar(ctx context.Context, r io.Reader) error {
	last := &ending{r: r}
	in := tar.NewReader(last)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF) && last.seen:
			return io.ErrUnexpectedEOF
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath): // names are looked at below
			return err
		}
		e := entry{name: h.Name, mode: fs.FileMode(h.Mode) & fs.ModePerm, size: h.Size}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
			e.open = func() (io.ReadCloser, error) { return io.NopCloser(in), nil }
		case tar.TypeDir:
			e.kind = fs.ModeDir
		case tar.TypeLink, tar.TypeSymlink:
			e.kind = fs.ModeSymlink
		case tar.TypeXGlobalHeader:
			if u.entries++; u.entries > u.opt.MaxEntries {
				return beyond("max_entries", int64(u.opt.MaxEntries))
			}
			continue
		default:
			e.kind = fs.ModeIrregular
		}
		if err := u.entry(ctx, &e, Tar); err != nil {
			return err
		}
	}
}

// An ending knows whether somebody wanted to read beyond the end.
type ending struct {
	r    io.Reader
	seen bool
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if n == 0 && errors.Is(err, io.EOF) {
		e.seen = true
	}
	return n, err
}

// zip unpacks what r has, which it keeps somewhere first.
func (u *unpacker) zip(ctx context.Context, r io.Reader) error {
	at, size, done, err := spool(r, u.opt.Spool)
	if err != nil {
		return err
	}
	defer done()
	in, err := readDirectory(at, size, u.opt.MaxEntries)
	if err != nil {
		return err
	}
	for _, f := range in.File {
		e := entry{name: f.Name, kind: f.Mode().Type(), mode: f.Mode().Perm(), size: int64(min(f.UncompressedSize64, 1<<62)), open: f.Open, in: int64(min(f.CompressedSize64, uint64(size)))}
		switch {
		case f.Flags&1 != 0:
			return sandbox.Errorf(sandbox.Unsupported, "archive", "the archive is encrypted").WithHint("send it without a password")
		case e.kind == fs.ModeDir && e.size > 0:
			return sandbox.Errorf(sandbox.Invalid, "archive", "a directory in the archive has content")
		case e.kind != 0 && e.kind != fs.ModeDir && e.kind != fs.ModeSymlink:
			e.kind = fs.ModeIrregular
		}
		if err := u.entry(ctx, &e, Zip); err != nil {
			return err
		}
	}
	return nil
}

// A state is how a directory came to be there.
type state uint8

const (
	found   state = iota + 1 // before us
	implied                  // made for what is in it
	made                     // made because the archive has it
)

// entry unpacks one entry.
func (u *unpacker) entry(ctx context.Context, e *entry, format Format) error {
	if u.entries++; u.entries > u.opt.MaxEntries {
		return beyond("max_entries", int64(u.opt.MaxEntries))
	}
	if u.failed() {
		return errStopped
	}
	name, err := entryName(e.name, format, u.opt.MaxDepth)
	if err != nil {
		return err
	}
	if u.opt.Map != nil && name != "" {
		to, wanted := u.opt.Map(name)
		if !wanted {
			return nil
		}
		if name, err = entryName(to, "", u.opt.MaxDepth); err != nil {
			return err
		}
	}
	bad := func(kind sandbox.Kind, what, hint string) error {
		return sandbox.Errorf(kind, "archive", "%q %s", name, what).WithHint("%s", hint)
	}
	switch {
	case name == "" && e.kind == fs.ModeDir:
		return nil
	case name == "":
		return bad(sandbox.Invalid, "is the directory itself, but not a directory", "make the archive anew")
	case e.kind == fs.ModeDir:
		return u.dir(ctx, name, e.mode, made)
	case u.seen[name] || u.dirs[name] > 0 && e.kind == 0:
		return bad(sandbox.Invalid, "is in the archive twice", "make the archive anew")
	}
	u.seen[name] = true
	if e.kind != 0 {
		what, kind := "is a device, a FIFO or something else that is not known", sandbox.Invalid
		if e.kind == fs.ModeSymlink {
			what, kind = "is a link, which cannot be made here", sandbox.Unsupported
		}
		if !u.opt.SkipOthers {
			return bad(kind, what, "ask for such entries to be skipped, or leave them out")
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.out.Skipped.add(name, strings.TrimPrefix(what, "is "))
		return nil
	}
	return u.file(ctx, name, e)
}

// dir makes a directory and those above it.
func (u *unpacker) dir(ctx context.Context, name string, mode fs.FileMode, as state) error {
	if u.seen[name] {
		return sandbox.Errorf(sandbox.Invalid, "archive", "%q is a file in the archive, and a directory too", name).WithHint("make the archive anew")
	}
	if u.opt.DirMode != 0 {
		mode = u.opt.DirMode
	} else if mode == 0 {
		mode = 0o755
	}
	p := join(u.base, name)
	switch u.dirs[name] {
	case implied:
		if as == made {
			u.dirs[name] = made
			return u.files.Chmod(ctx, p, mode)
		}
		return nil
	case found, made:
		return nil
	}
	above := path.Dir(name)
	if above == "." {
		above = ""
	} else if err := u.dir(ctx, above, 0o755, implied); err != nil {
		return err
	}
	if u.dirs[above] <= found { // it may have something of that name
		switch info, err := u.files.Stat(ctx, p); {
		case err == nil && info.Mode.IsDir():
			u.dirs[name] = found
			return nil
		case err == nil:
			return inTheWay(p, info)
		case !errors.Is(err, sandbox.NotExist):
			return err
		}
	}
	if as == implied {
		if u.entries++; u.entries > u.opt.MaxEntries {
			return beyond("max_entries", int64(u.opt.MaxEntries))
		}
	}
	if err := u.files.Mkdir(ctx, p, sandbox.MkdirOptions{Mode: mode, User: u.opt.User}); err != nil {
		return err
	}
	u.dirs[name] = as
	u.mu.Lock()
	u.out.Dirs++
	u.mu.Unlock()
	return nil
}

func inTheWay(p string, info sandbox.FileInfo) error {
	what := "not a directory"
	switch info.Mode.Type() {
	case fs.ModeSymlink:
		what = "a link, which is not followed"
	case fs.ModeDir:
		what = "a directory"
	}
	return sandbox.Errorf(sandbox.Conflict, "path", "%q is there already, and %s", p, what).WithHint("remove it, or unpack somewhere else")
}

// file writes a file: a small one while the next entry is looked at.
func (u *unpacker) file(ctx context.Context, name string, e *entry) error {
	switch {
	case e.size > u.opt.MaxFile:
		return beyond("max_file", u.opt.MaxFile)
	case e.size > u.left:
		return beyond("max_size", u.opt.MaxSize)
	}
	above := path.Dir(name)
	if above == "." {
		above = ""
	} else if err := u.dir(ctx, above, 0o755, implied); err != nil {
		return err
	}
	p := join(u.base, name)
	if u.dirs[above] <= found {
		info, err := u.files.Stat(ctx, p)
		switch {
		case err == nil && !regular(info):
			return inTheWay(p, info)
		case err != nil && !errors.Is(err, sandbox.NotExist):
			return err
		}
	}
	r, err := e.open()
	if err != nil {
		return err
	}
	defer r.Close()
	content := &content{u: u, e: e, r: r}
	opt := sandbox.WriteOptions{Mode: e.mode, User: u.opt.User, Exclusive: u.opt.Exclusive}
	if u.opt.FileMode != 0 {
		opt.Mode = u.opt.FileMode
	}
	if e.size > small {
		info, err := u.files.Write(ctx, p, content, opt)
		if content.err != nil {
			return content.err
		}
		u.wrote(info, err)
		return err
	}
	data, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	u.room <- struct{}{}
	u.wg.Go(func() {
		defer func() { <-u.room }()
		u.wrote(u.files.Write(ctx, p, bytes.NewReader(data), opt))
	})
	return nil
}

func (u *unpacker) wrote(info sandbox.FileInfo, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.err = cmp.Or(u.err, err)
		return
	}
	u.out.Files++
	u.out.Size += info.Size
}

func (u *unpacker) failed() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.err != nil
}
