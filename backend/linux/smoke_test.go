//go:build linux

package linux_test

import (
	"os"
	"testing"

	"github.com/atoll-run/atoll/backend/linux"
	"github.com/atoll-run/atoll/sandbox"
)

// TestSmoke says in one place what a sandbox looks like from inside.
func TestSmoke(t *testing.T) {
	rt := newRuntime(t)
	sb, err := rt.Create(t.Context(), sandbox.Spec{Env: map[string]string{"GREETING": "hello"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ script, want string }{
		{"echo $GREETING", "hello\n"},
		{"id -u; pwd; hostname", "0\n/workspace\n" + string(sb.ID()) + "\n"},
		{"echo $$ >/dev/null; cat /proc/1/comm", "atoll-guest\n"},
		{"grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status | tr -d '\\t'",
			"CapInh:0000000000000000\nCapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nCapAmb:0000000000000000\nNoNewPrivs:1\nSeccomp:2\n"},
		{"ls /dev | tr '\\n' ' '", "fd full null ptmx pts random shm stderr stdin stdout tty urandom zero "},
		{"ls /sys /home /etc/shadow 2>&1 | tr '\\n' ' '", "ls: cannot access '/etc/shadow': No such file or directory /home: user  /sys: devices fs "},
		{"ls /proc/self/fd | wc -l; cat /proc/cmdline /proc/kallsyms | wc -c", "4\n0\n"},
		{"touch /tmp/y /workspace/z && echo ok", "ok\n"},
		{"tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '", "lo\n"},
	} {
		r, err := sandbox.Capture(t.Context(), sb, 1<<16, sandbox.Cmd{Args: []string{"sh", "-c", c.script}})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(r.Stdout); got != c.want {
			t.Errorf("%s:\ngot  %q\nwant %q\n%s", c.script, got, c.want, r.Stderr)
		}
	}
}

func TestProbe(t *testing.T) {
	cfg := config(t)
	for _, f := range linux.Probe(t.Context(), cfg) {
		t.Logf("%+v", f)
		if f.Needed && !f.OK && os.Getenv("ATOLL_REQUIRE") != "" {
			t.Errorf("%s: %s", f.Name, f.Detail)
		}
	}
}

func TestSmokeAsUser(t *testing.T) { asUser(t, "^(TestSmoke|TestProbe)$") }

func TestSmokeAsUserWithRange(t *testing.T) { asUserWithRange(t, "^(TestSmoke|TestProbe)$") }
