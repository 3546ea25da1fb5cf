package guest

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestReadSomeTellsAnEndFromABreak(t *testing.T) {
	for _, c := range []struct {
		name string
		src  io.Reader
		n    int
		err  error
	}{
		{"empty", strings.NewReader(""), 0, io.EOF},
		{"short", strings.NewReader("abc"), 3, io.EOF},
		{"byte by byte", iotest.OneByteReader(strings.NewReader("abc")), 3, io.EOF},
		{"end with the data", iotest.DataErrReader(strings.NewReader("abc")), 3, io.EOF},
		{"full", strings.NewReader("abcd"), 4, nil},
		{"more", strings.NewReader("abcdef"), 4, nil},
		{"broken off", io.MultiReader(strings.NewReader("ab"), iotest.ErrReader(io.ErrUnexpectedEOF)), 2, io.ErrUnexpectedEOF},
	} {
		n, err := readSome(c.src, make([]byte, 4))
		if n != c.n || !errors.Is(err, c.err) || c.err == nil && err != nil {
			t.Errorf("%s: got %d, %v, want %d, %v", c.name, n, err, c.n, c.err)
		}
	}
}
