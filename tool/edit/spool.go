package edit

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"os"

	"github.com/atoll-run/atoll/sandbox"
)

// inMemory is how large a zip archive may be that is not spooled to a file.
const inMemory = 1 << 20

// spool reads r to its end, so that it can be read at any place until done is
// called. What is more than inMemory goes to a file in dir, which has no name
// any longer when spool returns.
func spool(r io.Reader, dir string) (at io.ReaderAt, size int64, done func(), err error) {
	var head bytes.Buffer
	if size, err = io.CopyN(&head, r, inMemory); err == io.EOF {
		return bytes.NewReader(head.Bytes()), size, func() {}, nil
	} else if err != nil {
		return nil, 0, nil, err
	}
	f, err := os.CreateTemp(dir, "atoll-archive-*")
	if err != nil {
		return nil, 0, nil, noSpool(err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// Without a name it goes when it is closed, even by our death.
	if err := os.Remove(f.Name()); err != nil {
		return nil, 0, nil, noSpool(err)
	}
	w := disk{f}
	if _, err = w.Write(head.Bytes()); err != nil {
		return nil, 0, nil, err
	}
	n, err := io.Copy(w, r)
	if err != nil {
		return nil, 0, nil, err
	}
	return f, size + n, func() { f.Close() }, nil
}

// A disk is a file whose errors are told from those of what is written to it.
type disk struct{ f *os.File }

func (d disk) Write(p []byte) (int, error) {
	n, err := d.f.Write(p)
	if err != nil {
		err = noSpool(err)
	}
	return n, err
}

func noSpool(err error) error {
	return &sandbox.Error{Kind: sandbox.Unavailable, Field: "archive", Msg: "there is no room to keep the archive while it is unpacked", Hint: "try later, or use tar.gz", Err: err}
}

// readDirectory reads the directory of a zip archive of at most max entries.
// How many there are is not known before: what the archive says of itself is
// anybody's word. So it is held to the bounds while it is read.
func readDirectory(at io.ReaderAt, size int64, max int) (*zip.Reader, error) {
	if err := checkEnd64(at, size, max); err != nil {
		return nil, err
	}
	g := &guard{at: at, left: 1<<20 + 512*int64(max), entries: int64(max) + 2*maxTail/46}
	in, err := zip.NewReader(g, size)
	if g.err != nil {
		return nil, g.err
	}
	if in == nil {
		return nil, err
	}
	g.off = true
	if len(in.File) > max {
		return nil, beyond("max_entries", int64(max))
	}
	return in, nil
}

// maxTail is how far from its end a zip archive's last record can begin.
const maxTail = 66 << 10

// checkEnd64 refuses a zip64 archive that says that it has more than max
// entries: room is made for as many before any is read. Without zip64 it
// cannot say more than 65535.
func checkEnd64(at io.ReaderAt, size int64, max int) error {
	tail := make([]byte, min(size, maxTail))
	if _, err := at.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return err
	}
	for {
		i := bytes.Index(tail, []byte("PK\x06\x07"))
		if i < 0 || len(tail) < i+16 {
			return nil
		}
		var end [56]byte
		begin := binary.LittleEndian.Uint64(tail[i+8:])
		tail = tail[i+4:]
		if begin > uint64(size) {
			continue
		}
		if n, _ := at.ReadAt(end[:], int64(begin)); n < len(end) || !bytes.HasPrefix(end[:], []byte("PK\x06\x06")) {
			continue
		}
		for _, n := range []uint64{binary.LittleEndian.Uint64(end[24:]), binary.LittleEndian.Uint64(end[32:])} {
			if n > uint64(max) {
				return beyond("max_entries", int64(max))
			}
		}
	}
}

// A guard lets its reader have so many bytes, and see the begins of so many
// entries, until it is off. It is for one goroutine.
type guard struct {
	at      io.ReaderAt
	left    int64 // bytes
	entries int64
	err     error
	off     bool

	next int64   // where the last reading ended
	tail [3]byte // its last bytes
}

var entryMark = []byte("PK\x01\x02")

func (g *guard) ReadAt(p []byte, off int64) (int, error) {
	if g.off {
		return g.at.ReadAt(p, off)
	}
	if g.err != nil {
		return 0, g.err
	}
	n, err := g.at.ReadAt(p, off)
	seen := p[:n]
	g.left -= int64(n)
	g.entries -= int64(bytes.Count(seen, entryMark))
	if off == g.next && n > 0 { // a mark may lie across the two
		g.entries -= int64(bytes.Count(append(g.tail[:], seen[:min(n, 3)]...), entryMark))
	}
	if n >= len(g.tail) {
		g.next = off + int64(n)
		copy(g.tail[:], seen[n-len(g.tail):])
	}
	if g.left < 0 || g.entries < 0 {
		g.err = sandbox.Errorf(sandbox.Exhausted, "max_entries", "the archive has too many entries, or too large a directory").WithHint("send less at a time")
		return 0, g.err
	}
	return n, err
}
