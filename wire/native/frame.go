package native

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A FrameType says what a frame is; see the package comment.
type FrameType byte

const (
	FrameStarted FrameType = 1
	FrameStdout  FrameType = 2
	FrameStderr  FrameType = 3
	FrameExit    FrameType = 4
	FrameError   FrameType = 5
	FrameWindow  FrameType = 6
	FrameControl FrameType = 7

	FrameStart    FrameType = 16
	FrameStdin    FrameType = 17
	FrameStdinEnd FrameType = 18
	FrameResize   FrameType = 19
	FrameSignal   FrameType = 20
)

const (
	// HeaderLen is the length of a frame's header in bytes.
	HeaderLen = 5
	// MaxPayload is the longest payload of any frame, in bytes.
	MaxPayload = 4 << 20
	// MaxChunk is the longest payload of a stdout, stderr, control or stdin frame.
	MaxChunk = 1 << 20
	// Window is how many bytes of stdin may be under way before the first
	// window frame.
	Window = 1 << 20
)

// ErrFrame is what a FrameReader's errors wrap when the bytes are not frames.
var ErrFrame = errors.New("not a frame")

// max returns the longest payload of a frame of type t, or -1 if there is no
// such type.
func (t FrameType) max() int {
	switch t {
	case FrameStdout, FrameStderr, FrameControl, FrameStdin:
		return MaxChunk
	case FrameStarted, FrameExit, FrameError, FrameStart:
		return MaxPayload
	case FrameWindow:
		return 4
	case FrameStdinEnd:
		return 0
	case FrameResize, FrameSignal:
		return 4096
	}
	return -1
}

// PutHeader writes the header of a frame of type t with n bytes of payload
// into the first HeaderLen bytes of b.
func PutHeader(b []byte, t FrameType, n int) {
	b[0] = byte(t)
	binary.BigEndian.PutUint32(b[1:HeaderLen], uint32(n))
}

// Frame returns a whole frame whose payload is payload.
func Frame(t FrameType, payload []byte) []byte {
	b := make([]byte, HeaderLen+len(payload))
	PutHeader(b, t, len(payload))
	copy(b[HeaderLen:], payload)
	return b
}

// FrameJSON returns a whole frame whose payload is v as JSON. v is one of the
// types of this package or of package sandbox, which cannot fail to encode.
func FrameJSON(t FrameType, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("native: frame %d: %v", t, err))
	}
	return Frame(t, b)
}

// WindowFrame returns a frame that allows n more bytes of stdin.
func WindowFrame(n int) []byte {
	return Frame(FrameWindow, binary.BigEndian.AppendUint32(nil, uint32(n)))
}

// A FrameReader reads frames from a stream: Next finds the next frame, Read
// and Payload read what is in it.
type FrameReader struct {
	r    *bufio.Reader
	left int
}

// NewFrameReader returns a FrameReader that reads from r through a buffer of
// its own, or through r itself if r is a *bufio.Reader.
func NewFrameReader(r io.Reader) *FrameReader {
	b, ok := r.(*bufio.Reader)
	if !ok {
		b = bufio.NewReaderSize(r, 32<<10)
	}
	return &FrameReader{r: b}
}

// Next skips what is left of the current frame and returns the type and the
// length of the next. At the end of a stream that ends with a whole frame it
// returns io.EOF.
func (f *FrameReader) Next() (FrameType, int, error) {
	if f.left > 0 {
		n, err := f.r.Discard(f.left)
		f.left -= n
		if err != nil {
			return 0, 0, unexpected(err)
		}
	}
	h, err := f.r.Peek(HeaderLen)
	if err != nil {
		if len(h) > 0 {
			err = unexpected(err)
		}
		return 0, 0, err
	}
	t, n := FrameType(h[0]), binary.BigEndian.Uint32(h[1:])
	max := t.max()
	if max < 0 {
		return 0, 0, fmt.Errorf("%w: type %d", ErrFrame, t)
	}
	if n > uint32(max) {
		return 0, 0, fmt.Errorf("%w: type %d with %d bytes", ErrFrame, t, n)
	}
	f.r.Discard(HeaderLen)
	f.left = int(n)
	return t, f.left, nil
}

// Read reads from the current frame's payload, and returns io.EOF at its end.
func (f *FrameReader) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.r.Read(p[:min(len(p), f.left)])
	f.left -= n
	return n, unexpected(err)
}

// Payload returns what is left of the current frame's payload. It takes no
// more memory than has arrived, twice over.
func (f *FrameReader) Payload() ([]byte, error) {
	if f.left <= 64<<10 {
		b := make([]byte, f.left)
		_, err := io.ReadFull(f, b)
		return b, unexpected(err)
	}
	return io.ReadAll(f)
}

// JSON decodes what is left of the current frame's payload into v, without
// regard for members that v does not have.
func (f *FrameReader) JSON(v any) error {
	b, err := f.Payload()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %v", ErrFrame, err)
	}
	return nil
}

// More decodes the payload of a window frame.
func (f *FrameReader) More() (int, error) {
	b, err := f.Payload()
	if err != nil {
		return 0, err
	}
	if len(b) != 4 {
		return 0, fmt.Errorf("%w: a window of %d bytes", ErrFrame, len(b))
	}
	return int(binary.BigEndian.Uint32(b)), nil
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
