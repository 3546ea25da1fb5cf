package proto

import (
	"encoding/binary"
	"errors"
)

// Bounds of the protocol.
const (
	Version    = 1
	MaxFrame   = 4 << 20   // bytes of a frame, head included
	MaxPayload = 256 << 10 // bytes of content in one message
	MaxFDs     = 253       // descriptors with one frame: all that Linux passes at once
	HeadLen    = 12        // bytes before the body
)

// ErrFrame is a frame that breaks the bounds: nothing after it can be trusted.
var ErrFrame = errors.New("malformed frame")

// An Op says what a frame is.
type Op uint8

// The operations. Their numbers never change; package guest has their meaning.
const (
	OpAnswer Op = 0
	OpExit   Op = 1 // event

	OpHello  Op = 2
	OpSetup  Op = 3
	OpCancel Op = 4

	OpStart     Op = 10
	OpSignal    Op = 11
	OpResize    Op = 12
	OpRead      Op = 13
	OpWrite     Op = 14
	OpRelease   Op = 15
	OpProcesses Op = 16
	OpWait      Op = 17
	OpOutput    Op = 18
	OpForget    Op = 19
	OpEnv       Op = 20

	OpOpen   Op = 30
	OpCreate Op = 31
	OpCommit Op = 32
	OpFread  Op = 33
	OpFwrite Op = 34
	OpClose  Op = 35
	OpStat   Op = 36
	OpList   Op = 37
	OpMkdir  Op = 38
	OpRename Op = 39
	OpRemove Op = 40
	OpChmod  Op = 41
	OpChown  Op = 42

	OpDial  Op = 50
	OpUsage Op = 51
)

// A Frame is what either side sends.
type Frame struct {
	Op   Op
	FDs  int    // how many descriptors belong to it
	ID   uint32 // of the request; 0 of an event
	Body []byte
}

// AppendFrame appends a frame with the body m, which may be nil.
func AppendFrame(b []byte, op Op, fds int, id uint32, m Message) []byte {
	at := len(b)
	b = append(b, 0, 0, 0, 0, byte(op), byte(fds), 0, 0, byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
	if m != nil {
		b = Append(b, m)
	}
	binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}

// Next takes the first frame from b, which is what has been received so far.
// It returns how many bytes the frame has, or 0 if more must come first; need
// is then how many bytes the frame will have, as far as that is known.
func Next(b []byte) (f Frame, n, need int, err error) {
	if len(b) < 4 {
		return Frame{}, 0, HeadLen, nil
	}
	size := uint64(binary.BigEndian.Uint32(b)) + 4
	if size < HeadLen || size > MaxFrame {
		return Frame{}, 0, 0, ErrFrame
	}
	if uint64(len(b)) < size {
		return Frame{}, 0, int(size), nil
	}
	n = int(size)
	f = Frame{Op: Op(b[4]), FDs: int(b[5]), ID: binary.BigEndian.Uint32(b[8:]), Body: b[HeadLen:n:n]}
	if f.FDs > MaxFDs {
		return Frame{}, 0, 0, ErrFrame
	}
	return f, n, n, nil
}
