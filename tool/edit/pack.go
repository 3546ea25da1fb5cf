package edit

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/flate"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// PackOptions says what [Pack] puts into an archive.
type PackOptions struct {
	Format Format
	Prefix string   // a directory within the archive that everything is put into: "project"
	Ignore []string // as in [Scope]

	MaxEntries int           // more are refused; 0 is 100000
	MaxSize    int64         // more content is refused, bytes before compression; 0 is 4 GiB
	Time       time.Duration // how long it may take, the reader's time included; 0 is 10 minutes
}

// Packed says what an archive has.
type Packed struct {
	Entries int
	Size    int64    // bytes of content, before compression
	Skipped Omission // what is neither file, directory nor link, cannot be read, or has a name that the format cannot carry
}

// small is the size of files that are read whole, ahead of their turn.
const small = 64 << 10

// Pack writes an archive of what is in the directory at root to w, hidden
// files included, in the order of a walk. Links are packed as links, whatever
// they lead to; ids, times and permissions are kept, the setuid, setgid and
// sticky bits are not; hard links become files. Memory does not grow with the
// files.
//
// A file that grows while it is read is packed as far as it was. One that
// shrinks ends a tar with [sandbox.Conflict] and Field "path": its length was
// already told. Whenever Pack returns an error what was written is not a whole
// archive, and fails to unpack as one. A bound that is met is
// [sandbox.Exhausted].
//
// Pack cannot end while w blocks: when ctx ends, the caller makes w fail.
func Pack(ctx context.Context, sb sandbox.Sandbox, root string, w io.Writer, opt PackOptions) (Packed, error) {
	var p Packed
	err := pack(ctx, sb.Files(), root, w, opt, &p)
	return p, sandbox.At("edit.Pack", sb.ID(), err)
}

func pack(ctx context.Context, files sandbox.Files, root string, w io.Writer, opt PackOptions, p *Packed) error {
	if err := checkNumbers(number{"max_entries", int64(opt.MaxEntries)}, number{"max_size", opt.MaxSize}, number{"time", int64(opt.Time)}); err != nil {
		return err
	}
	prefix := ""
	if opt.Prefix != "" {
		clean, err := entryName(opt.Prefix, opt.Format, 32)
		if err != nil || clean == "" {
			return sandbox.Errorf(sandbox.Invalid, "prefix", "%q is not a relative directory", opt.Prefix).WithHint("give a name such as project")
		}
		prefix = clean + "/"
	}
	most := orDefault(opt.MaxEntries, 100_000)
	left := orDefault(opt.MaxSize, 4<<30)
	span := orDefault(opt.Time, 10*time.Minute)
	// One more than may be packed, so that it is seen to be too many.
	walk, err := newWalker(files, root, Scope{Hidden: true, Ignore: opt.Ignore, MaxEntries: most + 1, Time: span}, nil)
	if err != nil {
		return err
	}
	out, err := newArchive(w, opt.Format)
	if err != nil {
		return err
	}
	ctx, cancel, over := budget(ctx, span)
	defer cancel()

	read := func(ctx context.Context, e Entry) member { return openMember(ctx, files, e) }
	for m, err := range ordered(ctx, walk.entries(ctx), read, member.close) {
		if err == nil {
			err = out.add(prefix, &m, &left, p)
			m.close()
		}
		if err == nil && p.Entries > most {
			err = sandbox.Errorf(sandbox.Exhausted, "max_entries", "there are more than %d files", most).WithHint("ignore some, or pack a part")
		}
		if err != nil {
			return outOfTime(err, over, span)
		}
	}
	if walk.cut != "" {
		return sandbox.Errorf(sandbox.Exhausted, "max_entries", "there are more than %d files", most).WithHint("ignore some, or pack a part")
	}
	p.Skipped.join(walk.skipped)
	return outOfTime(out.end(), over, span)
}

// outOfTime makes an error that comes of the time's end say so.
func outOfTime(err error, over func() bool, span time.Duration) error {
	if err != nil && over() {
		return sandbox.Errorf(sandbox.Exhausted, "time", "it took more than %v", span).WithHint("take less at a time")
	}
	return err
}

// A member is an entry, and what can be read of it.
type member struct {
	Entry
	data []byte       // of a small file
	file sandbox.File // of another
	err  error
}

func (m member) close() {
	if m.file != nil {
		m.file.Close()
	}
}

func openMember(ctx context.Context, files sandbox.Files, e Entry) member {
	m := member{Entry: e}
	if !regular(e.Info) {
		return m
	}
	f, err := files.Open(ctx, e.Path, sandbox.Range{})
	if err != nil {
		m.err = err
		return m
	}
	m.Info.Size = f.Info().Size
	if m.Info.Size > small {
		m.file = f
		return m
	}
	defer f.Close()
	m.data, m.err = io.ReadAll(io.LimitReader(f, small))
	m.Info.Size = int64(len(m.data))
	return m
}

// An archive is written to one entry at a time.
type archive struct {
	tar  *tar.Writer // one of these
	zip  *zip.Writer
	gzip *gzip.Writer // what tar writes to, if it is compressed
	buf  []byte
}

func newArchive(w io.Writer, format Format) (*archive, error) {
	a := &archive{buf: make([]byte, 128<<10)}
	switch format {
	case Tar:
		a.tar = tar.NewWriter(w)
	case TarGzip:
		// Speed: the reader is most often beside us.
		a.gzip, _ = gzip.NewWriterLevel(w, gzip.BestSpeed)
		a.tar = tar.NewWriter(a.gzip)
	case Zip:
		a.zip = zip.NewWriter(w)
		// One compressor after the other: each has more than a megabyte.
		flat, _ := flate.NewWriter(nil, flate.BestSpeed)
		a.zip.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) {
			flat.Reset(w)
			return flat, nil
		})
	default:
		return nil, badFormat(format)
	}
	return a, nil
}

// add writes m, unless it cannot be in an archive.
func (a *archive) add(prefix string, m *member, left *int64, p *Packed) error {
	var size int64
	switch m.Info.Mode.Type() {
	case 0:
		size = m.Info.Size
	case fs.ModeDir, fs.ModeSymlink:
	default:
		p.Skipped.add(m.Rel, "not a file, a directory or a link")
		return nil
	}
	switch {
	case m.err != nil && passing(m.err):
		p.Skipped.add(m.Rel, "it cannot be read")
		return nil
	case m.err != nil:
		return m.err
	case a.zip != nil && strings.IndexByte(m.Rel, '\\') >= 0:
		p.Skipped.add(m.Rel, "a zip archive cannot have a backslash in a name")
		return nil
	}
	if *left -= size; *left < 0 {
		return sandbox.Errorf(sandbox.Exhausted, "max_size", "the files have more bytes than an archive may").WithHint("ignore some, or pack a part")
	}
	var from io.Reader = bytes.NewReader(m.data)
	if m.file != nil {
		from = io.LimitReader(m.file, size)
	}
	name := prefix + m.Rel
	if m.Info.Mode.IsDir() {
		name += "/"
	}
	n, err := a.write(name, m, from)
	if err != nil {
		return err
	}
	if n < size && a.tar != nil {
		return sandbox.Errorf(sandbox.Conflict, "path", "%q became shorter while it was read", m.Path).WithHint("try again when it is not written to")
	}
	p.Entries++
	p.Size += n
	return nil
}

func (a *archive) write(name string, m *member, from io.Reader) (int64, error) {
	var to io.Writer
	if a.zip != nil {
		h := &zip.FileHeader{Name: name, Modified: m.Info.Time, Method: zip.Deflate}
		h.SetMode(m.Info.Mode.Type() | m.Info.Mode.Perm())
		w, err := a.zip.CreateHeader(h)
		if err != nil {
			return 0, err
		}
		if m.Info.Target != "" {
			from = strings.NewReader(m.Info.Target)
		}
		to = w
	} else {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: name, Mode: int64(m.Info.Mode.Perm()), ModTime: m.Info.Time,
			Uid: m.Info.UID, Gid: m.Info.GID,
		}
		switch m.Info.Mode.Type() {
		case 0:
			h.Size = m.Info.Size
		case fs.ModeDir:
			h.Typeflag = tar.TypeDir
		case fs.ModeSymlink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, m.Info.Target
		}
		if err := a.tar.WriteHeader(h); err != nil {
			return 0, err
		}
		to = a.tar
	}
	if m.Info.Mode.IsDir() {
		return 0, nil
	}
	n, err := copyTo(to, from, a.buf)
	if m.Info.Target != "" {
		n = 0
	}
	return n, err
}

// copyTo copies by way of buf, whatever else the two could do.
func copyTo(to io.Writer, from io.Reader, buf []byte) (int64, error) {
	var total int64
	for {
		n, err := from.Read(buf)
		if n > 0 {
			m, err := to.Write(buf[:n])
			total += int64(m)
			if err != nil {
				return total, err
			}
		}
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

func (a *archive) end() error {
	var err error
	if a.zip != nil {
		return a.zip.Close()
	}
	if err = a.tar.Close(); err == nil && a.gzip != nil {
		err = a.gzip.Close()
	}
	return err
}
