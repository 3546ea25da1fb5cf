package memory

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// TestShell shows what the shell knows.
func TestShell(t *testing.T) {
	for _, c := range []struct{ script, out string }{
		{`echo a >&3; (echo b; sh -c 'echo c >&3') >&3; exec 3>&-; (echo d >&3) 2>/dev/null || echo closed`, "<a\nb\nc\n>closed\n"},
		{`echo hi`, "hi\n"},
		{`echo a b | cat | wc -w`, "2\n"},
		{`x=1; y=$((x+2)); echo "$x $y ${z:-none}"`, "1 3 none\n"},
		{`false || echo no; true && echo yes; ! false && echo not`, "no\nyes\nnot\n"},
		{`for i in a b c; do [ $i = b ] && continue; echo $i; done`, "a\nc\n"},
		{`i=0; while [ $i -lt 3 ]; do i=$((i+1)); done; echo $i`, "3\n"},
		{`f() { local x=in; echo "$x $1"; return 3; }; x=out; f arg; echo "$? $x"`, "in arg\n3 out\n"},
		{`case foo.txt in *.go) echo go;; *.txt) echo text;; esac`, "text\n"},
		{`cd /tmp; echo one > f; echo two >> f; cat f; cat < f | wc -l; rm f; ls`, "one\ntwo\n2\n"},
		{`echo $(echo sub; echo shell) "$(printf 'a\nb')"`, "sub shell a\nb\n"},
		{"cat <<E\nhello $((1+1))\nE\n", "hello 2\n"},
		{`nosuch 2>/dev/null; echo $?`, "127\n"},
		{`(exit 7); echo $?; sh -c 'kill -9 $$'; echo $?`, "7\n137\n"},
		{`trap 'echo bye' EXIT; echo hi`, "hi\nbye\n"},
		{`trap 'echo got' TERM; kill -TERM $$; echo on`, "got\non\n"},
		{`sleep 100 & kill $!; wait $!; echo $?`, "143\n"},
		{`set -- a 'b c'; echo $#; for x in "$@"; do echo "<$x>"; done`, "2\n<a>\n<b c>\n"},
		{`exec 3>/tmp/x; echo three >&3; exec 3>&-; cat /tmp/x`, "three\n"},
		{`printf '%s-%d\n' a 1 b 2`, "a-1\nb-2\n"},
		{`echo out; echo err >&2`, "out\nerr\n"},
		{`mkdir -p /tmp/a/b; touch /tmp/a/x /tmp/a/y; echo /tmp/a/*; cd /tmp/a; echo *`, "/tmp/a/b /tmp/a/x /tmp/a/y\nb x y\n"},
		{`printf 'l1\nl2\n' | while read -r x; do echo "=$x"; done`, "=l1\n=l2\n"},
		{`set -e; false; echo never`, ""},
		{`set -e; if false; then :; fi; false || true; echo here`, "here\n"},
		{`printf '#!/bin/sh\necho "script $1"\n' > /tmp/s; chmod +x /tmp/s; /tmp/s arg`, "script arg\n"},
		{`yes | head -n 2`, "y\ny\n"},
		{`mkfifo /tmp/p; echo through > /tmp/p & cat /tmp/p`, "through\n"},
		{`echo ~; echo ~user`, "/root\n/home/user\n"},
		{`eval 'a=5; echo $a'; command -v cat; command -v nosuch || echo none`, "5\n/usr/bin/cat\nnone\n"},
		{`X=1 env | head -c 0; X=2 sh -c 'echo $X'; echo "[$X]"`, "2\n[]\n"},
		{`export A=b; sh -c 'echo $A'; unset A; sh -c 'echo [$A]'`, "b\n[]\n"},
		{`ln -s /etc/passwd /tmp/l; ls -l /tmp/l | wc -l; [ -L /tmp/l ] && echo link`, "1\nlink\n"},
	} {
		t.Run(c.script, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := New(Config{})
				defer rt.Close()
				sb, err := rt.Create(t.Context(), sandbox.Spec{})
				if err != nil {
					t.Fatal(err)
				}
				var out, control strings.Builder
				cmd := sandbox.Cmd{Args: []string{"sh", "-c", c.script}, Stdout: &out, Stderr: &out, Timeout: time.Hour}
				if strings.HasPrefix(c.out, "<") { // what comes through descriptor 3
					cmd.Control = &control
				}
				_, err = sandbox.Run(t.Context(), sb, cmd)
				got := out.String()
				if cmd.Control != nil {
					got = "<" + control.String() + ">" + got
				}
				if got != c.out || err != nil {
					t.Errorf("got %q, %v, want %q", got, err, c.out)
				}
			})
		})
	}
}
