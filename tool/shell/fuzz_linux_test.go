package shell_test

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/shell"
)

// FuzzText runs texts in a live shell and as the argument of a new one: both
// print the same and give the same status, whatever the text. What would show
// a difference between any two shells is left out.
func FuzzText(f *testing.F) {
	for _, text := range []string{"echo hi", "echo 'a", "cat <<E\nx\nE\n", "exit 3", "false", "(exit 4)", "printf '\\377'", "f() { echo x; }; f", "set -e; false; echo no", "set -u; echo $nope", "echo \\\necho", "}", "case x in x) echo y;; esac", "echo \xff\x81\x82'\x83'", "a=1 b=2; echo $a$b", "if", "\\", "'", "\"$(", "`", "trap 'echo t' EXIT", "kill -9 $$", "exec echo e", "return 3", "unset -f __atoll_r"} {
		f.Add(text)
	}
	p := open(f)
	programs := make(map[string][]string)
	for _, sh := range shells {
		if path, err := exec.LookPath(sh.name); err == nil {
			programs[sh.name] = append([]string{path}, sh.program[min(1, len(sh.program)):]...)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		if text == "" || text[0] == '-' || text[0] == '+' || strings.ContainsAny(text, "\x00>&/") || len(text) > 1000 {
			return // it may write files, or leave processes
		}
		for _, word := range []string{"$$", "!", "$-", "set", "trap", "alias", "export", "declare", "__atoll", "exec", "kill", "LINENO", "BASH", "unset", "return", "history", "umask", "ulimit", "_", "local", "hash", "times", "jobs", "wait", "fg", "bg", "enable", "shopt", "type", "command", "env", "RANDOM", "SECONDS", "PPID", "EPOCH", "fc", "$0", "$#", "$@", "$*", "$1"} {
			if strings.Contains(text, word) {
				return
			}
		}
		for _, program := range programs {
			ref, err := sandbox.Capture(t.Context(), p, 1<<16, sandbox.Cmd{Args: append(program[:len(program):len(program)], "-c", text), Env: map[string]string{"PATH": "/nonexistent"}, Timeout: time.Second})
			if err != nil || ref.Reason != sandbox.Exited {
				continue
			}
			s, err := shell.Open(t.Context(), p, shell.Options{Program: program})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			// Texts find no programs, so that they do no harm.
			if _, err := s.Run(t.Context(), shell.Command{Text: "PATH=/nonexistent"}); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			r, err := s.Run(t.Context(), shell.Command{Text: text, Stdout: &out, Timeout: 10 * time.Second})
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
			if out.String() != string(ref.Stdout) {
				t.Errorf("%v: %q printed %q, in a new shell %q", program, text, out.String(), ref.Stdout)
			}
			if (r.ExitCode == 0) != (ref.Code == 0) {
				t.Errorf("%v: %q gave %d, in a new shell %d", program, text, r.ExitCode, ref.Code)
			}
			// Whatever it was, the next one runs.
			out.Reset()
			if r, err := s.Run(t.Context(), shell.Command{Text: "echo alive; set +eufxvn", Stdout: &out, Timeout: 10 * time.Second}); err != nil || r.Status != shell.Completed || out.String() != "alive\n" {
				t.Fatalf("%v: after %q: %+v, %v, %q", program, text, r, err, out.String())
			}
		}
	})
}
