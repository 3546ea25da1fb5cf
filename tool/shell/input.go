package shell

import (
	"context"
	"io"
	"strconv"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// An input is a process that holds a pipe open. A shell's own standard input
// is taken up with commands, so that a command which gets an input opens
// that of this process, by its name in /proc. It has to be a pipe that was made
// inside, by the same user: others may not be opened there (proc(5)).
type input struct {
	pid  int
	w    *io.PipeWriter // what Shell.Input writes to; nil for a command's Stdin
	proc sandbox.Process
	end  context.CancelFunc
	done chan struct{}
}

// hold is what runs there: one process that copies, and one that tells its pid,
// sleeps, and never reads.
const hold = `cat | { read -r p q </proc/self/stat; echo $p; exec sleep 2147483647; }`

// openInput starts one. stdin is nil for one that Shell.Input writes to.
func openInput(ctx, life context.Context, sb sandbox.Sandbox, cmd sandbox.Cmd, stdin io.Reader) (*input, error) {
	in := &input{done: make(chan struct{})}
	if stdin == nil {
		stdin, in.w = io.Pipe()
	}
	life, in.end = context.WithCancel(life)
	line := &firstLine{got: make(chan struct{})}
	cmd.Stdin, cmd.Stdout = stdin, line
	var err error
	if in.proc, err = sb.Start(life, cmd); err != nil {
		in.end()
		return nil, err
	}
	go func() {
		defer close(in.done)
		in.proc.Wait()
		if in.w != nil {
			stdin.(*io.PipeReader).CloseWithError(sandbox.Errorf(sandbox.Conflict, "input", "the command's input is closed"))
		}
	}()
	select {
	case <-line.got:
		in.pid, err = strconv.Atoi(line.text)
	case <-in.done:
		err = io.ErrUnexpectedEOF
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		in.close()
		return nil, &sandbox.Error{Kind: sandbox.Unavailable, Field: "stdin", Msg: "the command got no input", Err: err}
	}
	return in, nil
}

// path is what the command reads.
func (in *input) path() string { return "/proc/" + strconv.Itoa(in.pid) + "/fd/0" }

func (in *input) close() {
	if in.w != nil {
		in.w.Close()
	}
	in.end()
	<-in.done
}

// A firstLine takes the first line of an output.
type firstLine struct {
	once sync.Once
	text string
	got  chan struct{}
}

func (f *firstLine) Write(p []byte) (int, error) {
	if len(f.text) < 100 {
		f.text += string(p)
	}
	if line, _, ok := strings.Cut(f.text, "\n"); ok {
		f.once.Do(func() { f.text = line; close(f.got) })
	}
	return len(p), nil
}
