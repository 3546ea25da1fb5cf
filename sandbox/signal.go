package sandbox

import "strings"

// A Signal is a signal's name without "SIG": "TERM". Numbers differ between
// systems; names do not.
type Signal string

const (
	HUP   Signal = "HUP"
	INT   Signal = "INT"
	QUIT  Signal = "QUIT"
	ILL   Signal = "ILL"
	TRAP  Signal = "TRAP"
	ABRT  Signal = "ABRT"
	BUS   Signal = "BUS"
	FPE   Signal = "FPE"
	KILL  Signal = "KILL"
	USR1  Signal = "USR1"
	SEGV  Signal = "SEGV"
	USR2  Signal = "USR2"
	PIPE  Signal = "PIPE"
	ALRM  Signal = "ALRM"
	TERM  Signal = "TERM"
	CHLD  Signal = "CHLD"
	CONT  Signal = "CONT"
	STOP  Signal = "STOP"
	TSTP  Signal = "TSTP"
	TTIN  Signal = "TTIN"
	TTOU  Signal = "TTOU"
	URG   Signal = "URG"
	XCPU  Signal = "XCPU"
	XFSZ  Signal = "XFSZ"
	PROF  Signal = "PROF"
	WINCH Signal = "WINCH"
	IO    Signal = "IO"
	SYS   Signal = "SYS"
)

// numbers are Linux's, the same on every architecture that Go runs on but
// MIPS (signal(7)).
var numbers = map[Signal]int{
	HUP: 1, INT: 2, QUIT: 3, ILL: 4, TRAP: 5, ABRT: 6, BUS: 7, FPE: 8, KILL: 9, USR1: 10,
	SEGV: 11, USR2: 12, PIPE: 13, ALRM: 14, TERM: 15, CHLD: 17, CONT: 18, STOP: 19, TSTP: 20,
	TTIN: 21, TTOU: 22, URG: 23, XCPU: 24, XFSZ: 25, PROF: 27, WINCH: 28, IO: 29, SYS: 31,
}

// Number returns s's number on Linux, or 0 for an unknown one.
func (s Signal) Number() int { return numbers[s] }

// SignalNumbered returns the Linux signal with number n, or "".
func SignalNumbered(n int) Signal {
	for s, m := range numbers {
		if m == n {
			return s
		}
	}
	return ""
}

// ParseSignal reads a name with or without "SIG", in any case. What is not
// one is [Invalid] with Field "signal".
func ParseSignal(name string) (Signal, error) {
	s := Signal(strings.TrimPrefix(strings.ToUpper(name), "SIG"))
	if numbers[s] == 0 {
		return "", Errorf(Invalid, "signal", "%q is not a signal", name).WithHint("use a name such as TERM, INT or KILL")
	}
	return s, nil
}
