package seccomp

import (
	"encoding/binary"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// An Action is what the kernel does with a call: a SECCOMP_RET_ value of
// linux/seccomp.h.
type Action uint32

const (
	Allow   Action = 0x7fff0000
	Refuse         = Action(errnoReturn | 1)  // EPERM
	Missing        = Action(errnoReturn | 38) // ENOSYS
	Kill    Action = 0x80000000               // the whole process, by SIGSYS

	errnoReturn = 0x00050000
)

// Errno makes the call fail with the error number n.
func Errno(n uint16) Action { return errnoReturn | Action(n) }

// String returns "allow", "kill" or the name or number of the error.
func (a Action) String() string {
	switch a {
	case Allow:
		return "allow"
	case Kill:
		return "kill"
	case Refuse:
		return "EPERM"
	case Missing:
		return "ENOSYS"
	case Errno(protoNotSupported):
		return "EPROTONOSUPPORT"
	}
	return fmt.Sprintf("%#x", uint32(a))
}

// A verdict is an action, or a check that decides between two verdicts.
type verdict struct {
	action Action
	check  *check
}

// A check looks at 32 bits of an argument: the low ones, as that is all the
// kernel looks at in the calls that have one, or the high ones. It holds if
// the masked value is one of in or, without in, if any bit of mask is set.
type check struct {
	arg             int
	high            bool
	mask            uint32 // 0 is all
	in              []uint32
	then, otherwise verdict
}

func (c *check) holds(args [6]uint64) bool {
	v := uint32(args[c.arg])
	if c.high {
		v = uint32(args[c.arg] >> 32)
	}
	if c.mask != 0 {
		v &= c.mask
	}
	if c.in == nil {
		return v != 0
	}
	return slices.Contains(c.in, v)
}

// An Arch is an architecture that there is a table for.
type Arch struct {
	name   string
	audit  uint32 // AUDIT_ARCH_ of linux/audit.h
	column int    // in numbers
}

// The architectures.
var (
	AMD64 = Arch{"amd64", 0xc000003e, 0}
	ARM64 = Arch{"arm64", 0xc00000b7, 1}
)

// A Decision is what a call may do, for people: a table of these is the
// policy.
type Decision struct {
	Name   string
	Number int
	Action string // as Action.String, or "depends"
	Why    string // "" where it is plain
}

// Table returns the policy for arch, in order of numbers.
func Table(arch Arch) []Decision {
	var table []Decision
	for _, r := range rules {
		for name := range strings.FieldsSeq(r.names) {
			n := int(numbers[name][arch.column])
			if n < 0 {
				continue
			}
			d := Decision{Name: name, Number: n, Action: r.does.action.String(), Why: r.why}
			if r.does.check != nil {
				d.Action = "depends"
			}
			table = append(table, d)
		}
	}
	slices.SortFunc(table, func(a, b Decision) int { return a.Number - b.Number })
	return table
}

// Decide returns what the policy says about a call.
func Decide(arch Arch, nr uint32, args [6]uint64) Action {
	v, ok := verdicts(arch)[nr]
	if !ok {
		return Missing
	}
	return v.decide(args)
}

// decide does what a filter does.
func (v verdict) decide(args [6]uint64) Action {
	for v.check != nil {
		if v.check.holds(args) {
			v = v.check.then
		} else {
			v = v.check.otherwise
		}
	}
	return v.action
}

// verdicts returns the rules by number.
func verdicts(arch Arch) map[uint32]verdict {
	m := map[uint32]verdict{}
	for _, r := range rules {
		for name := range strings.FieldsSeq(r.names) {
			if n := numbers[name][arch.column]; n >= 0 {
				m[uint32(n)] = r.does
			}
		}
	}
	return m
}

// A Filter is a program of the kernel's classic BPF, for seccomp.
type Filter []instruction

// An instruction is a struct sock_filter of linux/filter.h.
type instruction struct {
	op     uint16
	jt, jf uint8 // how many instructions to skip if it holds, if not
	k      uint32
}

// Operations, from linux/bpf_common.h.
const (
	ldAbs = 0x20 // BPF_LD | BPF_W | BPF_ABS
	andK  = 0x54 // BPF_ALU | BPF_AND | BPF_K
	ja    = 0x05 // BPF_JMP | BPF_JA
	jeqK  = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	jgeK  = 0x35 // BPF_JMP | BPF_JGE | BPF_K
	jsetK = 0x45 // BPF_JMP | BPF_JSET | BPF_K
	retK  = 0x06 // BPF_RET | BPF_K
)

// Offsets in struct seccomp_data of linux/seccomp.h, little endian.
const (
	offNumber = 0
	offArch   = 4
	offArgs   = 16
)

// Bytes returns the filter as the kernel of a little endian machine takes it:
// eight bytes for each instruction.
func (f Filter) Bytes() []byte {
	b := make([]byte, 0, 8*len(f))
	for _, i := range f {
		b = binary.LittleEndian.AppendUint16(b, i.op)
		b = append(b, i.jt, i.jf)
		b = binary.LittleEndian.AppendUint32(b, i.k)
	}
	return b
}

// Default returns the filter for the machine that this runs on. It is
// compiled once; nobody changes it. Where there is no table for the machine
// it is [sandbox.Unsupported].
func Default() (Filter, error) { return compiled() }

var compiled = sync.OnceValues(func() (Filter, error) {
	for _, arch := range []Arch{AMD64, ARM64} {
		if arch.name == runtime.GOARCH {
			return Compile(arch), nil
		}
	}
	return nil, sandbox.Errorf(sandbox.Unsupported, "", "there is no system call filter for %s", runtime.GOARCH)
})

// Compile returns the filter for arch.
func Compile(arch Arch) Filter { return compile(arch, func(a Action) Action { return a }) }

// compile gives each action as as says.
func compile(arch Arch, as func(Action) Action) Filter {
	f := Filter{
		{ldAbs, 0, 0, offArch},
		{jeqK, 1, 0, arch.audit},
		{retK, 0, 0, uint32(as(Kill))},
		{ldAbs, 0, 0, offNumber},
	}
	return append(f, tree(spans(arch), as)...)
}

// A span is a run of numbers with one verdict; it ends where the next begins.
type span struct {
	first uint32
	does  verdict
}

// spans covers all numbers.
func spans(arch Arch) []span {
	known := verdicts(arch)
	last := slices.Max(slices.Collect(maps.Keys(known)))
	var s []span
	// One beyond the last is what no table has, and so are all after it: the
	// calls of later kernels, and those of the x32 ABI, from 0x40000000.
	for n := range last + 2 {
		v, ok := known[n]
		if !ok {
			v = missing
		}
		if len(s) == 0 || s[len(s)-1].does != v {
			s = append(s, span{n, v})
		}
	}
	return s
}

// tree compiles the choice between spans: the number is in the accumulator.
func tree(s []span, as func(Action) Action) Filter {
	if len(s) == 1 {
		return leaf(s[0].does, as)
	}
	mid := len(s) / 2
	left, right := tree(s[:mid], as), tree(s[mid:], as)
	var f Filter
	if len(left) <= 255 {
		f = Filter{{jgeK, uint8(len(left)), 0, s[mid].first}}
	} else {
		// A conditional jump reaches no further.
		f = Filter{{jgeK, 0, 1, s[mid].first}, {ja, 0, 0, uint32(len(left))}}
	}
	return slices.Concat(f, left, right)
}

// leaf compiles a verdict.
func leaf(v verdict, as func(Action) Action) Filter {
	c := v.check
	if c == nil {
		return Filter{{retK, 0, 0, uint32(as(v.action))}}
	}
	then, otherwise := leaf(c.then, as), leaf(c.otherwise, as)
	off := uint32(offArgs + 8*c.arg)
	if c.high {
		off += 4
	}
	f := Filter{{ldAbs, 0, 0, off}}
	if len(otherwise)+len(c.in) > 255 {
		panic("seccomp: a check is too long for its jumps") // the tests compile every filter
	}
	if c.in == nil {
		f = append(f, instruction{jsetK, uint8(len(otherwise)), 0, c.mask})
	} else {
		if c.mask != 0 {
			f = append(f, instruction{andK, 0, 0, c.mask})
		}
		for i, v := range c.in {
			f = append(f, instruction{jeqK, uint8(len(c.in) - 1 - i + len(otherwise)), 0, v})
		}
	}
	return slices.Concat(f, otherwise, then)
}
