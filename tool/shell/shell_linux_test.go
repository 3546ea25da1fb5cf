package shell_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/shell"
)

// shells are those that the tests run over.
var shells = []struct {
	name    string
	program []string
}{
	{"bash", nil},
	{"dash", []string{"dash"}},
	{"busybox", []string{"busybox", "sh"}},
}

// A user is somebody at a shell.
type user struct {
	*testing.T
	*shell.Shell
	p    *place
	bash bool
}

// each runs a test over every kind of shell.
func each(t *testing.T, opt shell.Options, f func(*user)) {
	for _, sh := range shells {
		t.Run(sh.name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(sh.name); err != nil {
				if os.Getenv("CI") != "" {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			opt := opt
			opt.Program = sh.program
			f(sit(t, open(t), opt))
		})
	}
}

// Run is the Shell's.
func (u *user) Run(ctx context.Context, c shell.Command) (shell.Result, error) {
	return u.Shell.Run(ctx, c)
}

// sit opens a shell.
func sit(t *testing.T, p *place, opt shell.Options) *user {
	t.Helper()
	s, err := shell.Open(t.Context(), p, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return &user{t, s, p, s.Info().Shell == "bash"}
}

// An answer is what a command left.
type answer struct {
	shell.Result
	out, errs string
}

// try runs a command.
func (u *user) try(c shell.Command) (answer, error) {
	u.Helper()
	var out, errs bytes.Buffer
	if c.Stdout == nil {
		c.Stdout = &out
	}
	if c.Stderr == nil {
		c.Stderr = &errs
	}
	if c.Patience == (shell.Patience{}) {
		c.Patience.Total = 30 * time.Second
	}
	r, err := u.Run(u.Context(), c)
	return answer{r, out.String(), errs.String()}, err
}

// do runs a command that ends by itself.
func (u *user) do(text string) answer {
	u.Helper()
	a, err := u.try(shell.Command{Text: text})
	if err != nil || a.Status != shell.Completed {
		u.Fatalf("%.200q: %+v, %v", text, a, err)
	}
	return a
}

// says runs a command and holds it to its output.
func (u *user) says(text, want string) answer {
	u.Helper()
	a := u.do(text)
	if a.out != want {
		u.Errorf("%.200q printed %q, want %q (and on stderr %q)", text, a.out, want, a.errs)
	}
	return a
}

func (u *user) kind(what string, err error, field string, want sandbox.Kind) {
	u.Helper()
	var e *sandbox.Error
	if !errors.As(err, &e) || e.Kind != want || e.Field != field {
		u.Errorf("%s: error is %v, want %s with Field %q", what, err, want, field)
	}
}

// alive reports whether a process lives.
func alive(pid string) bool {
	b, err := os.ReadFile("/proc/" + strings.TrimSpace(pid) + "/stat")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return rest != "" && rest[0] != 'Z'
}

// eventually waits for what is going to happen.
func (u *user) eventually(what string, f func() bool) {
	u.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			u.Fatalf("%s did not happen", what)
		}
	}
}

func TestAShellKeepsDirectoryVariablesAndFunctions(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := u.TempDir()
		if got := u.do("cd " + dir + "; x=1; export y='a b'\nf() {\n\techo f $x \"$y\"\n}\nalias hi='echo hi'; umask 27; set -f").Dir; got != dir {
			u.Errorf("Dir is %q, want %q", got, dir)
		}
		u.says("f; hi; pwd; umask; echo *; sh -c 'echo $y'", "f 1 a b\nhi\n"+dir+"\n0027\n*\na b\n")
		u.says("false", "")
		u.says("echo $?", "1\n")
		u.says("echo $?", "0\n")
		u.says("(exit 42)", "")
		u.says("echo $?; echo $?", "42\n0\n")
		if i := u.Info(); i.Dir != dir || i.PID == 0 || i.Running != 0 || i.Queued != 0 {
			u.Errorf("Info is %+v", i)
		}
	})
}

func TestACommandMaySayWhatItLikes(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		for _, c := range []struct {
			text, out string
			code      int // -1: any but 0
		}{
			{"echo one\necho two", "one\ntwo\n", 0},
			{"printf 'no newline'", "no newline", 0},
			{"cat <<EOF\n$((1+1)) 'quoted' \"twice\"\nEOF", "2 'quoted' \"twice\"\n", 0},
			{"cat <<'EOF'\n$x `y`\nEOF\n", "$x `y`\n", 0},
			{"cat <<EOF\nnever ended\n", "never ended\n", 0},
			{"echo 'unbalanced", "", 2},
			{"echo \"unbalanced", "", 2},
			{"if true; then", "", 2},
			{")", "", 2},
			{"done; fi; esac", "", 2},
			{"}", "", -1},
			{"echo a; )", "", 2},
			{"   \n\t # nothing\n", "", 0},
			{"echo '$(x)' \\'\\\" \"it's\"", "$(x) '\" it's\n", 0},
			{"for i in 1 2; do echo $i; done", "1\n2\n", 0},
			{"while read l; do echo $l; done", "", 0},
			{"read x; echo \"<$x>\"", "<>\n", 0},
			{"cat", "", 0},
			{"cat; echo after", "after\n", 0},
			{"nosuchcommand", "", 127},
			{"/", "", 126},
			{"break; echo on", "on\n", 0},
			{"r() { return 7; }; r", "", 7},
			{"echo over; ! true", "over\n", 1},
			{"printf '\\001\\002\\036\\177\\200\\377'", "\x01\x02\x1e\x7f\x80\xff", 0},
			{"printf 'a\\000b'", "a\x00b", 0},
			{"echo $(echo inner; exit 3); (exit 4)", "inner\n", 4},
			{"echo err >&2; echo out", "out\n", 0},
			{"true &", "", 0},
			{"exec 3>&1; echo three >&3; exec 3>&-", "three\n", 0},
			{"echo 'R1 0 ' >&3", "", -1},
			{"IFS=,; set -- a,b; echo \"$1\"", "a,b\n", 0},
			{"unset IFS; printf() { echo mine; }; printf x; unset -f printf", "mine\n", 0},
			{strings.Repeat(": some words that do nothing\n", 1<<20/29) + "echo end", "end\n", 0},
			{"echo " + strings.Repeat("'x'", 1<<15), strings.Repeat("x", 1<<15) + "\n", 0},
		} {
			a := u.do(c.text)
			if a.out != c.out && !(c.text == "break; echo on" && a.out == "") || a.ExitCode != c.code && (c.code != -1 || a.ExitCode == 0) || a.Replaced {
				u.Errorf("%.60q: printed %.100q with %d (%+v), want %.100q with %d; stderr %.200q", c.text, a.out, a.ExitCode, a.Result, c.out, c.code, a.errs)
			}
		}
		u.says("echo here", "here\n")
	})
}

func TestEveryByteOfOutputArrivesBeforeTheEnd(t *testing.T) {
	each(t, shell.Options{History: 1000}, func(u *user) {
		file := filepath.Join(u.TempDir(), "bytes")
		data := make([]byte, 3<<20)
		r := rand.NewChaCha8([32]byte{1})
		r.Read(data)
		if err := os.WriteFile(file, data, 0o600); err != nil {
			u.Fatal(err)
		}
		for range 3 {
			a := u.do("cat " + file + "; cat " + file + " >&2")
			if a.out != string(data) || a.errs != string(data) {
				u.Fatalf("got %d and %d bytes of %d, or others", len(a.out), len(a.errs), len(data))
			}
			if a.Cursor != 2*int64(len(data)) {
				u.Errorf("Cursor is %d", a.Cursor)
			}
		}
		// Children write as well, and each write ends a command.
		for i := range 200 {
			want := fmt.Sprintf("%d\n", i)
			if a := u.do("sh -c 'echo " + strconv.Itoa(i) + " >&2'; echo " + strconv.Itoa(i)); a.out != want || a.errs != want {
				u.Fatalf("the %dth printed %q and %q", i, a.out, a.errs)
			}
		}
	})
}

func TestMergedStreamsKeepTheirOrder(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		want := ""
		for i := range 20 {
			want += fmt.Sprintf("out%d\nerr%d\n", i, i)
		}
		a, err := u.try(shell.Command{Text: "i=0; while [ $i -lt 20 ]; do echo out$i; sh -c 'echo err'$i >&2; i=$((i+1)); done", Merge: true})
		if err != nil || a.out != want || a.errs != "" {
			u.Errorf("%q, %q, %v", a.out, a.errs, err)
		}
	})
}

func TestExitGivesItsCodeAndReplacesTheShell(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := filepath.Join(u.TempDir(), "with 'quote'\nand line")
		if err := os.Mkdir(dir, 0o700); err != nil {
			u.Fatal(err)
		}
		before := u.Info().PID
		u.do("cd " + quote(dir) + "; plain='it'\\''s\n \"two\" lines \\ $x'; export out=' a  b '; alias hi='echo \"h i\"'; umask 77; readonly fixed=1; set -f\nf() { echo f \"$plain\"; }")
		if u.bash {
			u.do("declare -A m=([k]='v w'); l=(1 '2 3'); declare -i n=4; shopt -s extglob; export -f f; trap 'echo usr1' USR1")
		}
		a := u.do("echo bye; last=set; exit 3; echo never")
		if a.out != "bye\n" || a.ExitCode != 3 || !a.Replaced || a.Stale || a.Dir != dir {
			u.Errorf("exit 3: %+v", a)
		}
		a = u.says("echo $?; echo \"$plain|$out|$last\"; hi; pwd; umask; echo *; sh -c 'echo \"$out\"'", "3\nit's\n \"two\" lines \\ $x| a  b |set\nh i\n"+dir+"\n0077\n*\n a  b \n")
		if a.Replaced {
			u.Errorf("the new shell was replaced too: %+v", a)
		}
		if after := u.Info().PID; after == before || after == 0 {
			u.Errorf("the pid was %d and is %d", before, after)
		}
		if a := u.do("(fixed=2) 2>/dev/null"); a.ExitCode == 0 {
			u.Error("a readonly variable is not readonly any more")
		}
		if u.bash {
			u.says("f; echo \"${m[k]}\" \"${l[1]}\"; n=n+1; echo $n; bash -c f; shopt extglob; kill -USR1 $$", "f it's\n \"two\" lines \\ $x\nv w 2 3\n5\nf \nextglob        \ton\nusr1\n")
		}
		for i := range 3 {
			if a := u.do(fmt.Sprintf("exit %d", i)); a.ExitCode != i || !a.Replaced {
				u.Errorf("exit %d: %+v", i, a)
			}
		}
		u.says("echo \"$plain\"", "it's\n \"two\" lines \\ $x\n")
	})
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func TestWhateverEndsTheShellIsSaid(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("x=kept; f() { exit 5; }")
		for _, c := range []struct {
			text     string
			code     int
			out      string
			replaced bool
			stale    bool
		}{
			{"f", 5, "", true, false},
			{"set -e; false; echo never", 1, "", true, false},
			{"set +e; sh -c 'exit 6'", 6, "", false, false},
			{"exec sh -c 'echo other; exit 7'", 7, "other\n", true, true},
			{"kill -9 $$; sleep 5", 137, "", true, true},
			{"trap 'echo trapped >>trap' EXIT; exit 8", 8, "", true, true},
			{"kill -KILL $$", 137, "", true, true},
			{"exec /nonexistent/program", -1, "", !u.bash, false},
		} {
			time.Sleep(60 * time.Millisecond) // the shell stands idle
			u.do(":")
			a := u.do(c.text)
			if a.ExitCode != c.code && (c.code != -1 || a.ExitCode == 0) || a.out != c.out || a.Replaced != c.replaced || a.Stale != c.stale {
				u.Errorf("%q: %+v", c.text, a)
			}
			want := "kept\n"
			if c.text == "f" && !u.bash {
				u.do("f() { :; }") // is lost
			}
			u.says("echo $x", want)
		}
	})
}

func TestAnUnsetVariableOrABadAssignmentEndsOneCommand(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("x=1")
		for _, text := range []string{"set -u; echo $unset; echo never", "readonly r=1; r=2; echo never", "echo ${unset?no}; echo never"} {
			if a := u.do(text); a.ExitCode == 0 || a.out != "" || a.errs == "" {
				u.Errorf("%q: %+v", text, a)
			}
			u.says("set +u; echo $x", "1\n")
		}
	})
}

func TestRedirectingTheShellLosesNothingLater(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		file := filepath.Join(u.TempDir(), "out")
		u.says("exec >"+file+" 2>&1; echo into the file; exec </etc/passwd", "")
		a := u.says("echo back; echo too >&2; cat "+file, "back\ninto the file\n")
		if a.errs != "too\n" {
			u.Errorf("stderr is %q", a.errs)
		}
		u.says("exec >&- 2>&- <&-; echo nothing", "")
		u.says("echo back", "back\n")
	})
}

func TestTheShellsOwnLinesAreNotTraced(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("set -x")
		a := u.says("echo x", "x\n")
		if a.errs != "+ echo x\n" && a.errs != "++ echo x\n" {
			u.Errorf("set -x printed %q", a.errs)
		}
	})
}

func TestCommandsDoNotHaveTheShellsDescriptors(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		have := links(u.do("ls -l /proc/self/fd").out)
		// What the test itself was started with goes to everybody.
		plain, err := sandbox.Capture(u.Context(), u.p, 1<<16, sandbox.Cmd{Args: []string{"ls", "-l", "/proc/self/fd"}})
		if err != nil {
			u.Fatal(err)
		}
		all := links(string(plain.Stdout))
		for fd, target := range have {
			if fd > "2" && all[fd] != target && !strings.HasPrefix(target, "/proc/") {
				u.Errorf("a command has descriptor %s, %s", fd, target)
			}
		}
		if len(have) < 3 {
			u.Errorf("found %v", have)
		}
	})
}

// links reads what ls -l says of /proc/self/fd.
func links(ls string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(ls) {
		left, target, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if f := strings.Fields(left); ok {
			all[f[len(f)-1]] = target
		}
	}
	return all
}

func TestARemovedDirectoryIsNoTrap(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := filepath.Join(u.TempDir(), "gone")
		u.do("mkdir " + dir + "; cd " + dir + "; rmdir " + dir)
		u.says("echo still", "still\n")
		u.do("exit 2")
		u.says("echo still", "still\n")
		u.says("cd /; pwd", "/\n")
	})
}

func TestEnvIsForOneCommandAlone(t *testing.T) {
	each(t, shell.Options{Env: map[string]string{"ALWAYS": "there", "BOTH": "shell's"}}, func(u *user) {
		secret := "s3cr3t 'quoted'\nline"
		env := map[string]string{"TOKEN": secret, "BOTH": "command's"}
		run := func(text string) answer {
			a, err := u.try(shell.Command{Text: text, Env: env})
			if err != nil {
				u.Fatal(err)
			}
			return a
		}
		if a := run("echo $ALWAYS $BOTH; echo \"$TOKEN\"; sh -c 'echo \"$TOKEN\"'"); a.out != "there command's\n"+secret+"\n"+secret+"\n" {
			u.Errorf("printed %q", a.out)
		}
		after := "echo \"${TOKEN-none} $BOTH\"; env | grep -c TOKEN; set | grep -c s3cr3t"
		u.says(after, "none shell's\n0\n0\n")
		run("export TOKEN; TOKEN=$TOKEN.; f() { :; }")
		u.says(after, "none shell's\n0\n0\n")
		time.Sleep(60 * time.Millisecond) // the shell tells its state
		run("y=1; exit 4")
		u.says("echo ${TOKEN-none} $y; env | grep -c TOKEN; set | grep -c s3cr3t", "none 1\n0\n0\n")
		run("kill -9 $$")
		u.says("echo ${TOKEN-none}; env | grep -c TOKEN; set | grep -c s3cr3t", "none\n0\n0\n")
	})
}

func TestDirIsWhereACommandRuns(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		a, err := u.try(shell.Command{Text: "pwd", Dir: "/usr"})
		if err != nil || a.out != "/usr\n" || a.Dir != "/usr" {
			u.Errorf("%+v, %v", a, err)
		}
		u.says("pwd", "/usr\n")
		a, err = u.try(shell.Command{Text: "echo ran", Dir: "/nonexistent"})
		u.kind("a Dir that is not there", err, "dir", sandbox.NotExist)
		if a.out != "" || a.Dir != "/usr" {
			u.Errorf("%+v", a)
		}
		a, err = u.try(shell.Command{Text: "false", Dir: "/usr"})
		if err != nil || a.ExitCode != 1 {
			u.Errorf("%+v, %v", a, err)
		}
	})
}

func TestPhysicalDirectoriesHaveNoLinks(t *testing.T) {
	each(t, shell.Options{Physical: true}, func(u *user) {
		dir, err := filepath.EvalSymlinks(u.TempDir())
		if err != nil {
			u.Fatal(err)
		}
		if err := os.Symlink(dir, dir+"/link"); err != nil {
			u.Fatal(err)
		}
		if got := u.do("cd " + dir + "/link").Dir; got != dir {
			u.Errorf("Dir is %q, want %q", got, dir)
		}
	})
}

func TestWhatCannotBeRunIsRefused(t *testing.T) {
	u := sit(t, open(t), shell.Options{})
	for field, c := range map[string]shell.Command{
		"command": {Text: "echo \x00"},
		"env":     {Text: "x", Env: map[string]string{"A-B": "c"}},
		"dir":     {Text: "x", Dir: "relative"},
		"timeout": {Text: "x", Timeout: -1},
		"stdin":   {Text: "x", Stdin: strings.NewReader(""), Input: true},
	} {
		_, err := u.Run(t.Context(), c)
		u.kind(field, err, field, sandbox.Invalid)
	}
	for _, c := range []shell.Command{{}, {Text: strings.Repeat("x", shell.MaxText+1)}, {Text: "x", Env: map[string]string{"A": "\x00"}}, {Text: "x", Env: map[string]string{"__atoll_s": "y"}}} {
		if _, err := u.Run(t.Context(), c); !errors.Is(err, sandbox.Invalid) {
			t.Errorf("%.20q: %v", c.Text, err)
		}
	}
	_, err := shell.Open(t.Context(), u.p, shell.Options{Dir: "/nonexistent"})
	u.kind("Open", err, "dir", sandbox.NotExist)
	_, err = shell.Open(t.Context(), u.p, shell.Options{Program: []string{"nosuchshell"}})
	u.kind("Open", err, "args", sandbox.NotExist)
	if _, err = shell.Open(t.Context(), u.p, shell.Options{Program: []string{"true"}}); !errors.Is(err, sandbox.Unavailable) {
		t.Errorf("true as a shell: %v", err)
	}
}

func TestStdinIsTheCommandsOwn(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		data := strings.Repeat("some input\n", 100_000)
		a, err := u.try(shell.Command{Text: "cat; echo end", Stdin: strings.NewReader(data)})
		if err != nil || a.out != data+"end\n" {
			u.Fatalf("%d bytes of %d, %v", len(a.out), len(data), err)
		}
		a, err = u.try(shell.Command{Text: "read x; echo $x", Stdin: strings.NewReader("one\ntwo\n")})
		if err != nil || a.out != "one\n" {
			u.Errorf("%+v, %v", a, err)
		}
		u.says("cat", "")
		a, err = u.try(shell.Command{Text: "echo not read", Stdin: blocked{}})
		if err != nil || a.out != "not read\n" {
			u.Errorf("%+v, %v", a, err)
		}
	})
}

// blocked is a Reader that never has anything.
type blocked struct{}

func (blocked) Read([]byte) (int, error) { select {} }

func TestInputGoesToTheCommandThatRuns(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		id, err := u.Start(shell.Command{Text: "while read x; do echo \"<$x>\"; done; echo end", Input: true})
		if err != nil {
			u.Fatal(err)
		}
		n, err := u.Input(u.Context(), id, []byte("one\n"), false)
		if n != 4 || err != nil {
			u.Fatal(n, err)
		}
		o, err := u.Output(u.Context(), id, 0, 100, 20*time.Second)
		if err != nil || len(o.Chunks) != 1 || string(o.Chunks[0].Data) != "<one>\n" {
			u.Errorf("%+v, %v", o, err)
		}
		if _, err := u.Input(u.Context(), id, []byte("two\n"), true); err != nil {
			u.Error(err)
		}
		var out bytes.Buffer
		r, err := u.Wait(u.Context(), id, shell.WaitOptions{Cursor: o.Next, Stdout: &out})
		if err != nil || r.Status != shell.Completed || out.String() != "<two>\nend\n" {
			u.Errorf("%+v, %v, %q", r, err, out.String())
		}
		_, err = u.Input(u.Context(), id, []byte("three\n"), false)
		u.kind("Input to a command that has ended", err, "input", sandbox.Conflict)
		r, _ = u.Run(u.Context(), shell.Command{Text: ":"})
		_, err = u.Input(u.Context(), r.ID, []byte("x"), false)
		u.kind("Input to a command without", err, "input", sandbox.Conflict)
		_, err = u.Input(u.Context(), 999, nil, false)
		u.kind("Input to no command", err, "command", sandbox.NotExist)
	})
}

func TestConcurrentCommandsQueueInOrder(t *testing.T) {
	each(t, shell.Options{Queue: 100, Commands: 200}, func(u *user) {
		u.do("n=0")
		var all sync.WaitGroup
		var mu sync.Mutex
		seen := make(map[string]bool)
		for range 8 {
			all.Go(func() {
				for range 12 {
					a, err := u.try(shell.Command{Text: "a=$n; n=$((n+1)); [ $((a+1)) = $n ] && echo $n"})
					if err != nil || a.errs != "" {
						u.Errorf("%+v, %v", a, err)
					}
					mu.Lock()
					seen[a.out] = true
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if len(seen) != 96 {
			u.Errorf("96 commands saw %d states", len(seen))
		}
		// In order: ids are given in the order of the queue.
		var ids []shell.ID
		for range 50 {
			id, err := u.Start(shell.Command{Text: "order=\"$order $((++k))\""})
			if !u.bash {
				id, err = u.Start(shell.Command{Text: "k=$((k+1)); order=\"$order $k\""})
			}
			if err != nil {
				u.Fatal(err)
			}
			ids = append(ids, id)
		}
		if r, err := u.Wait(u.Context(), ids[49], shell.WaitOptions{}); err != nil || r.Status != shell.Completed {
			u.Errorf("%+v, %v", r, err)
		}
		if got := strings.Fields(u.do("echo $order").out); len(got) < 50 {
			u.Errorf("ran %v", got)
		}
	})
}

func TestTheQueueIsBoundedAndCanBeLeft(t *testing.T) {
	u := sit(t, open(t), shell.Options{Queue: 2})
	first, err := u.Start(shell.Command{Text: "sleep 100"})
	if err != nil {
		t.Fatal(err)
	}
	u.eventually("the begin", func() bool { return u.Info().Running == first })
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := u.Run(ctx, shell.Command{Text: "touch left"})
		left <- err
	}()
	u.eventually("queueing", func() bool { return u.Info().Queued == 1 })
	second, err := u.Start(shell.Command{Text: "echo second"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = u.Start(shell.Command{Text: "echo third"})
	u.kind("one more", err, "", sandbox.Exhausted)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if r, err := u.Wait(t.Context(), second, shell.WaitOptions{Patience: shell.Patience{Total: time.Millisecond}}); err != nil || r.Status != shell.Queued || r.ExitCode != -1 {
		t.Errorf("%+v, %v", r, err)
	}
	if err := u.Kill(t.Context(), first); err != nil {
		t.Error(err)
	}
	if r, err := u.Wait(t.Context(), second, shell.WaitOptions{}); err != nil || r.Status != shell.Completed {
		t.Errorf("%+v, %v", r, err)
	}
	u.says("ls", "")
}

func TestPatienceEndsTheWaitAndNotTheCommand(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		fifo := filepath.Join(u.TempDir(), "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			u.Fatal(err)
		}
		var out bytes.Buffer
		r, err := u.Run(u.Context(), shell.Command{Text: "x=before; echo one; cat " + fifo + "; x=after; (exit 9)", Stdout: &out, Patience: shell.Patience{Quiet: 100 * time.Millisecond}})
		if err != nil || r.Status != shell.NoOutput || r.ExitCode != -1 || out.String() != "one\n" || r.Cursor != 4 {
			u.Fatalf("%+v, %v, %q", r, err, out.String())
		}
		r, err = u.Wait(u.Context(), r.ID, shell.WaitOptions{Patience: shell.Patience{Total: 50 * time.Millisecond}})
		if err != nil || r.Status != shell.Running || r.Duration < 100*time.Millisecond {
			u.Errorf("%+v, %v", r, err)
		}
		if o, err := u.Output(u.Context(), r.ID, 4, 100, time.Millisecond); err != nil || len(o.Chunks) != 0 || o.Exit != nil || o.Next != 4 {
			u.Errorf("%+v, %v", o, err)
		}
		if err := os.WriteFile(fifo, []byte("two\n"), 0); err != nil {
			u.Fatal(err)
		}
		var rest bytes.Buffer
		r, err = u.Wait(u.Context(), r.ID, shell.WaitOptions{Cursor: 4, Stdout: &rest})
		if err != nil || r.Status != shell.Completed || r.ExitCode != 9 || rest.String() != "two\n" || out.String() != "one\n" {
			u.Errorf("%+v, %v, %q, %q", r, err, rest.String(), out.String())
		}
		// Again, and from the start.
		rest.Reset()
		r, err = u.Wait(u.Context(), r.ID, shell.WaitOptions{Stdout: &rest})
		if err != nil || r.ExitCode != 9 || rest.String() != "one\ntwo\n" {
			u.Errorf("%+v, %v, %q", r, err, rest.String())
		}
		o, err := u.Output(u.Context(), r.ID, 2, 3, 0)
		if err != nil || o.Next != 5 || o.Exit != nil {
			u.Errorf("%+v, %v", o, err)
		}
		o, err = u.Output(u.Context(), r.ID, 5, 100, 0)
		if err != nil || o.Next != 8 || o.Exit == nil || o.Exit.Code != 9 {
			u.Errorf("%+v, %v", o, err)
		}
		u.says("echo $x $?", "after 9\n")
	})
}

func TestOutputKeepsACommandFromBeingQuiet(t *testing.T) {
	u := sit(t, open(t), shell.Options{})
	a, err := u.try(shell.Command{Text: "for i in 1 2 3 4 5 6 7 8; do sleep 0.1; echo $i; done", Patience: shell.Patience{Quiet: 600 * time.Millisecond}})
	if err != nil || a.Status != shell.Completed {
		t.Errorf("%+v, %v", a, err)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	u := sit(t, open(t), shell.Options{History: 1000, Commands: 3})
	first := u.do("i=0; while [ $i -lt 1000 ]; do echo $i; echo e >&2; i=$((i+1)); done")
	o, err := u.Output(t.Context(), first.ID, 0, 1<<20, 0)
	if err != nil || o.Dropped == 0 || o.Next != first.Cursor || o.Exit == nil {
		t.Errorf("%+v, %v", o, err)
	}
	for range 4 {
		u.do(":")
	}
	_, err = u.Output(t.Context(), first.ID, 0, 1, 0)
	u.kind("Output of a forgotten command", err, "command", sandbox.NotExist)
	_, err = u.Wait(t.Context(), first.ID, shell.WaitOptions{})
	u.kind("Wait for a forgotten command", err, "command", sandbox.NotExist)
}

func TestKillEndsTheChildrenAndKeepsTheShell(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := u.TempDir()
		old := u.do("cd " + dir + "; x=kept; f() { echo f; }; sleep 300 & echo $!").out
		pid := u.Info().PID
		id, err := u.Start(shell.Command{Text: "y=new; sleep 301 & echo $! >bg; sh -c 'echo $$ >tree; sleep 302; echo no >wrong' | cat; touch wrong"})
		if err != nil {
			u.Fatal(err)
		}
		tree := filepath.Join(dir, "tree")
		u.eventually("the tree", func() bool { b, _ := os.ReadFile(tree); return len(b) > 0 })
		if err := u.Kill(u.Context(), id); err != nil {
			u.Fatal(err)
		}
		r, err := u.Wait(u.Context(), id, shell.WaitOptions{})
		if err != nil || r.Status != shell.Killed || r.ExitCode != 137 || r.Stale || r.Dir != dir {
			u.Errorf("%+v, %v", r, err)
		}
		if r.Replaced || u.Info().PID != pid {
			u.Errorf("the shell was replaced: %+v", r)
		}
		for _, name := range []string{"tree", "bg"} {
			if b, _ := os.ReadFile(filepath.Join(dir, name)); alive(string(b)) {
				u.Errorf("%s %s lives", name, b)
			}
		}
		if !alive(old) {
			u.Error("what an earlier command left was killed")
		}
		u.says("echo $? $x $y; pwd; ls; f", "137 kept new\n"+dir+"\nbg\ntree\nf\n")
		if err := u.Kill(u.Context(), id); err != nil {
			u.Errorf("Kill of what has ended: %v", err)
		}
		if err := u.Close(); err != nil {
			u.Error(err)
		}
		u.eventually("the end of what an earlier command left", func() bool { return !alive(old) })
	})
}

func TestTheTimeoutKillsWhatRuns(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := u.TempDir()
		for _, text := range []string{
			"sleep 300; touch wrong",
			"while :; do :; done; touch wrong",
			"while :; do sleep 0.01; done; touch wrong",
			"f() { while :; do :; done; }; g() { f; touch wrong; }; g; touch wrong",
			"eval 'eval \"while :; do :; done\"; touch wrong'; touch wrong",
			"for i in 1 2 3; do sleep 300 & wait $!; done; touch wrong",
			"f() { for i in 1 2 3; do sleep 300; done; touch wrong; }; f; touch wrong",
			"(trap '' INT TERM HUP URG; sleep 300; sleep 300); touch wrong",
			"sleep 300 | cat; touch wrong",
			"sleep 300 || touch wrong",
			"y=$(sleep 300); touch wrong",
			"wait_() { sleep 300 & wait; }; wait_; touch wrong",
			"sleep 300 & wait; touch wrong",
			"trap '' URG; while :; do :; done; touch wrong",
			"exec sleep 300; touch wrong",
			"setsid sleep 300; touch wrong",
			"cat /dev/zero >/dev/null; touch wrong",
			"kill -STOP $$; touch wrong",
			"set -n\nsleep 0\ntouch wrong\nwhile :; do :; done",
		} {
			u.do("cd " + dir + "; x=kept; trap - URG 2>/dev/null; :")
			time.Sleep(40 * time.Millisecond)
			u.do("trap exit URG") // somebody else's trap does not matter
			deaf := strings.HasPrefix(text, "exec ") || strings.HasPrefix(text, "trap '' URG") || strings.HasPrefix(text, "set -n")
			a, err := u.try(shell.Command{Text: "echo $$; " + text, Timeout: 100 * time.Millisecond})
			if err != nil || a.Status != shell.TimedOut || a.ExitCode != 124 || a.Dir != dir || a.Stale != deaf {
				u.Errorf("%s: %+v, %v", text, a, err)
			}
			if a := u.do("echo $? $x; pwd; ls"); a.out != "124 kept\n"+dir+"\n" {
				u.Errorf("after %s: %q", text, a.out)
			}
		}
	})
}

func TestInterruptEndsTheCommandAsAPersonWould(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := u.TempDir()
		u.do("cd " + dir + "; x=kept")
		for _, text := range []string{"sleep 300; touch wrong", "sh -c 'trap \"echo int >got; exit 3\" INT; touch ready; sleep 300 & wait'; touch wrong", "while :; do :; done; touch wrong"} {
			id, err := u.Start(shell.Command{Text: "touch begun; " + text})
			if err != nil {
				u.Fatal(err)
			}
			name := "begun"
			if strings.Contains(text, "ready") {
				name = "ready"
			}
			u.eventually("the begin", func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
			time.Sleep(50 * time.Millisecond)
			if err := u.Interrupt(id); err != nil {
				u.Fatal(err)
			}
			r, err := u.Wait(u.Context(), id, shell.WaitOptions{Patience: shell.Patience{Total: 20 * time.Second}})
			if err != nil || r.Status != shell.Interrupted || r.ExitCode == 0 {
				u.Errorf("%s: %+v, %v", text, r, err)
			}
			if name == "ready" {
				if b, _ := os.ReadFile(filepath.Join(dir, "got")); string(b) != "int\n" {
					u.Errorf("the child got no INT: %q", b)
				}
			}
			u.says("echo $x; rm -f begun ready got; ls", "kept\n")
		}
	})
}

func TestTheEndOfAContextKillsTheCommand(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("x=kept")
		ctx, cancel := context.WithCancel(u.Context())
		out := &watched{got: make(chan struct{})}
		go func() {
			<-out.got
			cancel()
		}()
		r, err := u.Run(ctx, shell.Command{Text: "echo $$; sleep 300; echo never", Stdout: out})
		if !errors.Is(err, context.Canceled) || r.Status != shell.Killed {
			u.Errorf("%+v, %v", r, err)
		}
		u.says("echo $x", "kept\n")
		// A wait that ends leaves the command alone.
		id, err := u.Start(shell.Command{Text: "sleep 0.3; echo done"})
		if err != nil {
			u.Fatal(err)
		}
		ctx, cancel = context.WithCancel(u.Context())
		cancel()
		if _, err := u.Wait(ctx, id, shell.WaitOptions{}); !errors.Is(err, context.Canceled) {
			u.Error(err)
		}
		if r, err := u.Wait(u.Context(), id, shell.WaitOptions{}); err != nil || r.Status != shell.Completed {
			u.Errorf("%+v, %v", r, err)
		}
	})
}

// A watched Writer tells of its first Write.
type watched struct {
	once sync.Once
	got  chan struct{}
}

func (w *watched) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.got) })
	return len(p), nil
}

func TestBackgroundProcessesStayUntilClose(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		start := time.Now()
		one := u.do("sleep 300 & echo $!").out
		two := u.do("(setsid sleep 300 & echo $!)").out
		u.do("exit 1") // those of a shell that has ended too
		three := u.do("nohup sleep 300 >/dev/null 2>&1 & echo $!").out
		if time.Since(start) > 100*time.Second {
			u.Error("a command waited for its background process")
		}
		for _, pid := range []string{one, two, three} {
			if !alive(pid) {
				u.Errorf("%s is dead", pid)
			}
		}
		if err := u.Close(); err != nil {
			u.Error(err)
		}
		for _, pid := range []string{one, three} {
			u.eventually("the end of "+pid, func() bool { return !alive(pid) })
		}
	})
}

func TestAnIdleShellRests(t *testing.T) {
	u := sit(t, open(t), shell.Options{Rest: 30 * time.Millisecond})
	dir := t.TempDir()
	resting := func() bool { return u.Info().PID == 0 }
	u.do("cd " + dir + "; x=1; f() { echo f $x; }; alias hi='echo hi'; set -u; (exit 3)")
	u.eventually("rest", resting)
	if a := u.says("echo $?; f; hi; pwd; echo $unset; echo never", "3\nf 1\nhi\n"+dir+"\n"); a.ExitCode == 0 {
		t.Errorf("%+v", a)
	}
	u.eventually("rest", resting)
	pid := u.do("sleep 300 & echo $!").out
	time.Sleep(100 * time.Millisecond)
	if resting() || !alive(pid) {
		t.Error("a shell with a job rests")
	}
	u.do("kill $!; wait; trap 'echo bye' EXIT")
	time.Sleep(100 * time.Millisecond)
	if resting() {
		t.Error("a shell with a trap on EXIT rests")
	}
	u.do("trap - EXIT")
	time.Sleep(100 * time.Millisecond)
	u.says("f", "f 1\n")
}

func TestAKillThatComesLateHurtsNobodyElse(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		for i := range 40 {
			id, err := u.Start(shell.Command{Text: "sleep 0.0" + strconv.Itoa(i%4)})
			if err != nil {
				u.Fatal(err)
			}
			next, err := u.Start(shell.Command{Text: "n=$((n+1))"})
			if err != nil {
				u.Fatal(err)
			}
			time.Sleep(time.Duration(i%4) * 10 * time.Millisecond)
			if i%3 == 0 {
				u.Interrupt(id)
			} else if err := u.Kill(u.Context(), id); err != nil {
				u.Fatal(err)
			}
			killed, err := u.Wait(u.Context(), id, shell.WaitOptions{})
			if err != nil || killed.Stale {
				u.Errorf("the %dth: %+v, %v", i, killed, err)
			}
			if r, err := u.Wait(u.Context(), next, shell.WaitOptions{}); err != nil || r.Status != shell.Completed || r.ExitCode != 0 || r.Replaced {
				u.Fatalf("the next command: %+v, %v", r, err)
			}
			if a := u.do("echo $n"); a.out != fmt.Sprintln(i+1) {
				u.Fatalf("the %dth: %+v, then %+v", i, killed, a)
			}
		}
	})
}

func TestAShellWithStrictOptionsStandsIdle(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("set -euf; x=1; IFS=,")
		pid := u.Info().PID
		for range 3 {
			time.Sleep(60 * time.Millisecond) // it tells its state
			if a := u.says("echo $x", "1\n"); a.Replaced || u.Info().PID != pid {
				u.Errorf("%+v", a)
			}
		}
	})
}

func TestAnotherUsersShellWorksAlike(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can be another user")
	}
	each(t, shell.Options{User: "nobody", Dir: "/"}, func(u *user) {
		u.says("id -un; umask", "nobody\n0022\n")
		a, err := u.try(shell.Command{Text: "cat", Stdin: strings.NewReader("input")})
		if err != nil || a.out != "input" {
			u.Errorf("%+v, %v", a, err)
		}
		a, err = u.try(shell.Command{Text: "x=1; sleep 300 | sleep 301", Timeout: 100 * time.Millisecond})
		if err != nil || a.Status != shell.TimedOut || a.Stale {
			u.Errorf("%+v, %v", a, err)
		}
		u.says("echo $x; exit 3", "1\n")
		u.says("echo $x $?; id -un", "1 3\nnobody\n")
	})
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	p := open(t)
	count := func() int { return runtime.NumGoroutine() }
	before := count()
	for range 5 {
		u := sit(t, p, shell.Options{})
		u.do("sleep 300 & :")
		u.do("exit 3")
		if _, err := u.Start(shell.Command{Text: "cat; sleep 300", Input: true}); err != nil {
			t.Fatal(err)
		}
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}
	u := &user{T: t}
	u.eventually("the end of the goroutines", func() bool { return count() <= before })
}

func TestLateOutputBelongsToTheCommandBefore(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		fifo := filepath.Join(u.TempDir(), "fifo")
		if err := syscall.Mkfifo(fifo, 0o600); err != nil {
			u.Fatal(err)
		}
		a := u.do("{ read x <" + fifo + "; echo late $x; } & echo now")
		if a.out != "now\n" {
			u.Errorf("printed %q", a.out)
		}
		if err := os.WriteFile(fifo, []byte("1\n"), 0); err != nil {
			u.Fatal(err)
		}
		var all string
		u.eventually("late output", func() bool {
			o, err := u.Output(u.Context(), a.ID, 0, 100, 0)
			all = ""
			for _, c := range o.Chunks {
				all += string(c.Data)
			}
			return err == nil && all == "now\nlate 1\n"
		})
		u.says("echo next", "next\n")
	})
}

func TestAShellsNoiseIsNotACommandsOutput(t *testing.T) {
	// What background processes write at the same time goes between whole
	// pieces, and never hides an end.
	each(t, shell.Options{}, func(u *user) {
		u.do("while :; do echo noise; echo noise >&2; done &")
		for i := range 100 {
			a := u.do("echo mine" + strconv.Itoa(i))
			if !strings.Contains(a.out, "mine"+strconv.Itoa(i)+"\n") || strings.Trim(strings.ReplaceAll(a.out, "mine"+strconv.Itoa(i), ""), "nois\ne") != "" {
				u.Fatalf("printed %q", a.out)
			}
		}
	})
}

func TestAWritersErrorIsReportedAndTheCommandGoesOn(t *testing.T) {
	u := sit(t, open(t), shell.Options{})
	broken := errors.New("broken")
	r, err := u.Run(t.Context(), shell.Command{Text: "echo one; echo two; touch done", Stdout: failing{broken}})
	if !errors.Is(err, broken) || r.Status != shell.Completed {
		t.Errorf("%+v, %v", r, err)
	}
	u.says("ls", "done\n")
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestNobodyWritesAfterRunReturned(t *testing.T) {
	u := sit(t, open(t), shell.Options{})
	var out bytes.Buffer // a race, if somebody does
	for range 50 {
		r, err := u.Run(t.Context(), shell.Command{Text: "while :; do echo x; done", Stdout: &out, Patience: shell.Patience{Total: time.Millisecond}})
		if err != nil || r.Status.Ended() {
			t.Fatal(r, err)
		}
		n := out.Len()
		if err := u.Kill(t.Context(), r.ID); err != nil {
			t.Fatal(err)
		}
		if out.Len() != n {
			t.Fatal("somebody wrote later")
		}
		out.Reset()
	}
}

func TestTheSandboxesEndEndsItsCommands(t *testing.T) {
	p := open(t)
	u := sit(t, p, shell.Options{})
	out := &watched{got: make(chan struct{})}
	go func() {
		<-out.got
		p.cmd.Process.Kill()
	}()
	_, err := u.Run(t.Context(), shell.Command{Text: "echo; sleep 300", Stdout: out})
	u.kind("the command that ran", err, "", sandbox.NotExist)
	_, err = u.Run(t.Context(), shell.Command{Text: "echo"})
	u.kind("the next", err, "", sandbox.NotExist)
}

func TestCloseEndsWhatRunsAndWaits(t *testing.T) {
	u := sit(t, open(t), shell.Options{})
	out := &watched{got: make(chan struct{})}
	errs := make(chan error, 2)
	go func() {
		_, err := u.Run(t.Context(), shell.Command{Text: "echo; sleep 300", Stdout: out})
		errs <- err
	}()
	<-out.got
	go func() {
		_, err := u.Run(t.Context(), shell.Command{Text: "echo waiting"})
		errs <- err
	}()
	u.eventually("queueing", func() bool { return u.Info().Queued == 1 })
	if err := u.Close(); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := <-errs; !errors.Is(err, sandbox.Closed) {
			t.Errorf("a command ended with %v", err)
		}
	}
	if _, err := u.Run(t.Context(), shell.Command{Text: ":"}); !errors.Is(err, sandbox.Closed) {
		t.Errorf("after Close: %v", err)
	}
	if err := u.Close(); err != nil {
		t.Error(err)
	}
}

// What DeerFlow and AIO say of other servers, tried with what DeerFlow sends:
// see docs/protocols.

func TestExitDoesNotHangDeerFlow(t *testing.T) {
	// DeerFlow #5628: a bare exit hangs the session for good.
	each(t, shell.Options{}, func(u *user) {
		for range 5 {
			a := u.do("cd /usr; export A=b; exit 17")
			if a.Status != shell.Completed || a.ExitCode != 17 {
				u.Errorf("%+v", a)
			}
		}
		u.says("pwd; echo $A", "/usr\nb\n")
	})
}

func TestConcurrentCommandsDoNotCorruptDeerFlowsSession(t *testing.T) {
	// DeerFlow #1433: two at once gave "'ErrorObservation' object has no
	// attribute 'exit_code'" as output.
	each(t, shell.Options{}, func(u *user) {
		var all sync.WaitGroup
		for i := range 16 {
			all.Go(func() {
				want := strings.Repeat(fmt.Sprintf("line of %d\n", i), 50)
				a, err := u.try(shell.Command{Text: fmt.Sprintf("for i in $(seq 50); do echo line of %d; done", i), Merge: true})
				if err != nil || a.out != want || a.ExitCode != 0 {
					u.Errorf("%d: %+v, %v", i, a, err)
				}
			})
		}
		all.Wait()
	})
}

func TestASilentCommandIsNotKilledUnasked(t *testing.T) {
	// DeerFlow #2668: 120 s without output killed builds. Here silence ends a
	// wait that asked for it, and no command.
	u := sit(t, open(t), shell.Options{})
	a, err := u.try(shell.Command{Text: "sleep 0.5; echo built", Patience: shell.Patience{Quiet: 100 * time.Millisecond}})
	if err != nil || a.Status != shell.NoOutput {
		t.Errorf("%+v, %v", a, err)
	}
	var out bytes.Buffer
	r, err := u.Wait(t.Context(), a.ID, shell.WaitOptions{Stdout: &out})
	if err != nil || r.Status != shell.Completed || out.String() != "built\n" {
		t.Errorf("%+v, %v, %q", r, err, out.String())
	}
}

func TestDeerFlowTrustsASessionAfterAHardTimeout(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		u.do("cd /usr; v=1")
		a, err := u.try(shell.Command{Text: "echo partial; sleep 300", Timeout: 200 * time.Millisecond, Merge: true})
		if err != nil || a.Status != shell.TimedOut || a.ExitCode != 124 || !strings.HasPrefix(a.out, "partial\n") {
			u.Errorf("%+v, %v", a, err)
		}
		u.says("pwd; echo $v", "/usr\n1\n")
	})
}

func TestDeerFlowListsADirectory(t *testing.T) {
	each(t, shell.Options{}, func(u *user) {
		dir := u.TempDir()
		for _, name := range []string{"a", "b with space ", "\xff\xfe", ".hidden"} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				u.Fatal(err)
			}
		}
		u.do("set -e")
		q := quote(dir)
		a := u.do("set +e; ( if [ ! -e " + q + " ]; then printf '%s\\n' __DF_FIND_STATUS__:missing; exit 1; fi; _st=" + dir + "/../df_find_$$; { printf '%s\\n' " + q + "; find -H " + q + " -mindepth 1 -maxdepth 2 \\( -name .git \\) -prune -o \\( -type f -o -type d \\) -print 2>/dev/null; echo $? > \"$_st\"; } | head -n 500; st=$(cat \"$_st\" 2>/dev/null); printf '\\n%s\\n' __DF_FIND_STATUS__:$st; rm -f \"$_st\"; exit \"${st:-126}\" )")
		if a.ExitCode != 0 || !strings.HasSuffix(a.out, "\n__DF_FIND_STATUS__:0\n") || !strings.Contains(a.out, "/b with space \n") || !strings.Contains(a.out, "/\xff\xfe\n") {
			u.Errorf("%+v", a)
		}
	})
}

func TestPromptsMeanNothing(t *testing.T) {
	// AIO breaks when somebody changes PS1 or PROMPT_COMMAND.
	each(t, shell.Options{Env: map[string]string{"PS1": "> ", "PROMPT_COMMAND": "echo prompt"}}, func(u *user) {
		u.do("PS1='###PS1###'; PS2=; PS4='trace '; PROMPT_COMMAND='exit 3'")
		u.says("echo here", "here\n")
		u.says("echo '###PS1END###'; echo here", "###PS1END###\nhere\n")
	})
}

var _ io.Writer = failing{}
