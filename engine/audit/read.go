package audit

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// maxLine is the longest line that Read takes for an event, in bytes. None
// that a Log writes comes near.
const maxLine = 64 << 10

// Read yields the events in the record at path that happened at since or
// later, in the order in which they were written, those of older files
// included. It passes over lines that are no events, such as one that a crash
// cut short. It may run while a Log writes: then it yields what was there when
// it began, and perhaps more. That there is no record is no error. It stops at
// the first error, which it yields.
func Read(path string, since time.Time) iter.Seq2[sandbox.Event, error] {
	return func(yield func(sandbox.Event, error) bool) {
		files, err := openAll(path)
		defer func() {
			for _, f := range files {
				f.Close()
			}
		}()
		if err != nil {
			yield(sandbox.Event{}, &sandbox.Error{Op: "audit.Read", Kind: sandbox.Unavailable, Msg: "the audit record cannot be read", Err: err})
			return
		}
		for i := len(files) - 1; i >= 0; i-- {
			if !readFile(files[i], since, yield) {
				return
			}
		}
	}
}

// openAll opens the files of a record, the latest first. The caller closes
// them, also after an error.
func openAll(path string) (files []*os.File, err error) {
	for range 100 {
		var moved bool
		files, moved, err = tryOpenAll(path)
		if err != nil || !moved {
			return files, err
		}
		for _, f := range files {
			f.Close()
		}
	}
	return nil, errors.New("it is rotated all the time")
}

// tryOpenAll reports whether files were renamed meanwhile, so that some may be
// missing or in the wrong order.
func tryOpenAll(path string) (files []*os.File, moved bool, err error) {
	var infos []fs.FileInfo
	for i, missing := 0, 0; missing < 3; i++ { // a crash within a rotation leaves a number out
		name := path
		if i > 0 {
			name = old(path, i)
		}
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
		if errors.Is(err, fs.ErrNotExist) {
			if missing++; i == 0 {
				infos = append(infos, nil)
			}
			continue
		}
		if err != nil {
			return files, false, err
		}
		missing = 0
		files = append(files, f)
		info, err := f.Stat()
		if err != nil {
			return files, false, err
		}
		moved = moved || slices.ContainsFunc(infos, func(s fs.FileInfo) bool { return s != nil && os.SameFile(s, info) })
		infos = append(infos, info)
	}
	now, err := os.Lstat(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return files, false, err
	}
	return files, moved || (now == nil) != (infos[0] == nil) || now != nil && !os.SameFile(now, infos[0]), nil
}

// readFile reports whether to go on.
func readFile(f *os.File, since time.Time, yield func(sandbox.Event, error) bool) bool {
	r := bufio.NewReaderSize(f, maxLine)
	for skip := false; ; {
		line, err := r.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			skip = true
			continue
		}
		var e sandbox.Event
		if !skip && err == nil && json.Unmarshal(line, &e) == nil && e.Kind != "" && !e.At.Before(since) && !yield(e, nil) {
			return false
		}
		skip = false
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil {
			yield(sandbox.Event{}, &sandbox.Error{Op: "audit.Read", Kind: sandbox.Unavailable, Msg: "the audit record cannot be read", Err: err})
			return false
		}
	}
}
