package shell_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/atoll-run/atoll/tool/shell"
)

func TestTry(t *testing.T) {
	for _, prog := range [][]string{nil, {"dash"}, {"busybox", "sh"}} {
		t.Run("", func(t *testing.T) {
			p := open(t)
			s, err := shell.Open(t.Context(), p, shell.Options{Program: prog})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			t.Logf("%+v", s.Info())
			try := func(text string, c shell.Command) {
				var out, errs bytes.Buffer
				c.Text, c.Stdout, c.Stderr = text, &out, &errs
				start := time.Now()
				r, err := s.Run(t.Context(), c)
				t.Logf("%s\n\t%+v %v %v\n\tout %q err %q", text, r, err, time.Since(start), out.String(), errs.String())
			}
			try("echo hi; echo err >&2", shell.Command{})
			try("cd /tmp; x=5; f() { echo f $x; }; alias ll='echo ll'; false", shell.Command{})
			try("echo $? $x; f; ll; pwd; echo $FOO; ls -l /proc/self/fd", shell.Command{Env: map[string]string{"FOO": "secret"}})
			try("echo $FOO; if (", shell.Command{})
			try("y=7; export z=it\\'s; set -u; exit 3", shell.Command{Env: map[string]string{"FOO": "secret"}})
			try("echo $? $x $y $z; f; ll; pwd; echo ${FOO-none}; nope", shell.Command{})
			try("nope; echo $nope", shell.Command{})
			try("set +u; sleep 50 & sleep 100; echo not", shell.Command{Timeout: 300 * time.Millisecond})
			try("echo $x; ps aux | grep sleep", shell.Command{})
			try("while :; do :; done", shell.Command{Timeout: 300 * time.Millisecond})
			try("f() { while :; do sleep 1; done; }; cd /; f", shell.Command{Timeout: 300 * time.Millisecond})
			try("pwd; echo $x; cat", shell.Command{Stdin: bytes.NewReader([]byte("input"))})
			try("kill -9 $$", shell.Command{})
			try("echo $x; exec echo gone", shell.Command{})
			try("echo $x", shell.Command{Dir: "/usr"})
			try("echo $x", shell.Command{Dir: "/usrr"})
		})
	}
}
