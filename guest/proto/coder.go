package proto

import "errors"

// A Message is the body of a frame. Fields hands each of its fields to c, in
// an order that never changes: encoding and decoding are the same code.
//
// A field that is missing at the end of what is decoded stays zero, and what
// is left over is ignored, so that a message grows by adding fields at its
// end, and old and new guests and daemons understand each other.
type Message interface{ Fields(c *Coder) }

// ErrMalformed is what decoding bytes that nobody encoded comes to.
var ErrMalformed = errors.New("malformed message")

// A Coder writes fields to a buffer or reads them from one.
type Coder struct {
	b   []byte
	dec bool
	bad bool
}

// Append appends the encoding of m to b.
func Append(b []byte, m Message) []byte {
	c := Coder{b: b}
	m.Fields(&c)
	return c.b
}

// Decode reads m from b. Byte slices of m point into b; strings do not.
func Decode(b []byte, m Message) error {
	c := Coder{b: b, dec: true}
	m.Fields(&c)
	if c.bad {
		return ErrMalformed
	}
	return nil
}

// Fail makes the decoding fail, for what a message cannot mean.
func (c *Coder) Fail() { c.bad = true }

// Uint codes a number that is not negative: seven bits to the byte, the lowest
// first, the highest bit of each but the last set.
func (c *Coder) Uint(v *uint64) {
	if !c.dec {
		n := *v
		for ; n >= 0x80; n >>= 7 {
			c.b = append(c.b, byte(n)|0x80)
		}
		c.b = append(c.b, byte(n))
		return
	}
	if len(c.b) == 0 || c.bad { // the field is missing
		*v = 0
		return
	}
	var n uint64
	for i, x := range c.b {
		if i == 9 && x > 1 {
			break
		}
		n |= uint64(x&0x7f) << (7 * i)
		if x < 0x80 {
			*v, c.b = n, c.b[i+1:]
			return
		}
	}
	*v, c.bad = 0, true
}

// Int codes a number that may be negative, as Uint with the sign in the
// lowest bit.
func (c *Coder) Int(v *int64) {
	u := uint64(*v)<<1 ^ uint64(*v>>63)
	c.Uint(&u)
	if c.dec {
		*v = int64(u>>1) ^ -int64(u&1)
	}
}

// Num codes an int.
func (c *Coder) Num(v *int) {
	n := int64(*v)
	c.Int(&n)
	if c.dec {
		*v = int(n)
		if int64(*v) != n {
			c.bad = true
		}
	}
}

// U32 codes a uint32.
func (c *Coder) U32(v *uint32) {
	n := uint64(*v)
	c.Uint(&n)
	if c.dec {
		*v = uint32(n)
		if uint64(*v) != n {
			c.bad = true
		}
	}
}

// Bool codes a bool as 0 or 1.
func (c *Coder) Bool(v *bool) {
	var n uint64
	if *v {
		n = 1
	}
	c.Uint(&n)
	if c.dec {
		*v = n != 0
	}
}

// Bytes codes a length and that many bytes. What it decodes points into the
// buffer.
func (c *Coder) Bytes(v *[]byte) {
	n := uint64(len(*v))
	c.Uint(&n)
	if !c.dec {
		c.b = append(c.b, *v...)
		return
	}
	*v = nil
	if n > uint64(len(c.b)) {
		c.bad = true
	} else if n > 0 && !c.bad {
		*v, c.b = c.b[:n:n], c.b[n:]
	}
}

// Str codes a string as Bytes does; it need not be UTF-8.
func (c *Coder) Str(v *string) {
	if !c.dec {
		n := uint64(len(*v))
		c.Uint(&n)
		c.b = append(c.b, *v...)
		return
	}
	var b []byte
	c.Bytes(&b)
	*v = string(b)
}

// Strs codes a count and that many strings.
func (c *Coder) Strs(v *[]string) {
	n := c.count(len(*v), MaxStrings)
	if !c.dec {
		for i := range *v {
			c.Str(&(*v)[i])
		}
		return
	}
	*v = nil
	if n > 0 {
		*v = make([]string, n)
	}
	for i := range *v {
		c.Str(&(*v)[i])
	}
}

// Bounds of lists: what is decoded takes more memory than what was sent, and
// the sender is not trusted.
const (
	MaxList    = 1 << 16 // messages
	MaxStrings = 1 << 18
)

// count codes the length of a list, each element of which takes at least a
// byte.
func (c *Coder) count(have, most int) int {
	n := uint64(have)
	c.Uint(&n)
	if c.dec && n > uint64(min(len(c.b), most)) {
		c.bad = true
	}
	if c.bad {
		return 0
	}
	return int(n)
}

// Sub codes a message within a message, with its length, so that it can grow
// as well.
func (c *Coder) Sub(m Message) {
	if !c.dec {
		b := Append(nil, m)
		c.Bytes(&b)
		return
	}
	var b []byte
	c.Bytes(&b)
	if !c.bad && Decode(b, m) != nil {
		c.bad = true
	}
}

// List codes a list of messages.
func List[T any, P interface {
	*T
	Message
}](c *Coder, v *[]T) {
	n := c.count(len(*v), MaxList)
	if c.dec {
		*v = nil
		for ; n > 0 && !c.bad; n-- { // grows as it goes: a T may be much larger than its byte
			var t T
			c.Sub(P(&t))
			*v = append(*v, t)
		}
		return
	}
	for i := range *v {
		c.Sub(P(&(*v)[i]))
	}
}
