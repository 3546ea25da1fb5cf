package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(tests{m}, map[string]func(){"atoll": main})
}

// tests runs the tests and removes what they share.
type tests struct{ *testing.M }

func (m tests) Run() int {
	defer removeGuest()
	return m.M.Run()
}

// TestScripts runs the files of testdata/script: each is a session in a shell
// of its own, with its own state folder. Besides the usual commands of
// testscript there are
//
//	daemon [FLAG...]    starts atoll serve on a free port, waits until it is ready, and sets ATOLL_HOST
//	halt [SIGNAL]       sends it a signal (TERM) and waits; fails unless it ends well
//	status N CMD...     runs a command that must end with the status N
//	capture VAR         puts the standard output of the last command into a variable, without the newline
func TestScripts(t *testing.T) {
	runScripts(t, "testdata/script", write(t, "atoll.toml", "backend = ['memory']\n"))
}

// runScripts runs the scripts in dir, whose programs have the configuration
// file config at first.
func runScripts(t *testing.T, dir, config string) {
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("ATOLL_STATE", filepath.Join(env.WorkDir, "state"))
			env.Setenv("ATOLL_CONFIG", filepath.Join(env.WorkDir, "atoll.toml"))
			env.Setenv("HOME", env.WorkDir)
			return os.WriteFile(filepath.Join(env.WorkDir, "atoll.toml"), text, 0o600)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"daemon":  startDaemon,
			"halt":    stopDaemon,
			"capture": capture,
			"status":  wantStatus,
		},
	})
}

// A testDaemon is the daemon of one script.
type testDaemon struct{ cmd *exec.Cmd }

// running holds the daemon of each script, by its working folder. Scripts run
// beside each other.
var running sync.Map

// startDaemon implements the command daemon.
func startDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("use exec for a daemon that shall not start")
	}
	stderr, err := os.Create(ts.MkAbs("daemon.log"))
	ts.Check(err)
	program, err := exec.LookPath("atoll") // testscript.Main has put it there
	ts.Check(err)
	cmd := exec.Command(program, append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), "ATOLL_STATE="+ts.Getenv("ATOLL_STATE"), "ATOLL_CONFIG="+ts.Getenv("ATOLL_CONFIG"), "HOME="+ts.Getenv("HOME"))
	cmd.Stderr = stderr
	out, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	ts.Defer(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
		stderr.Close()
		// A script that failed may have left sandboxes.
		if left, _ := os.ReadDir(ts.MkAbs("state/linux/sandboxes")); len(left) > 0 {
			last := exec.Command(program, "serve", "--listen", "127.0.0.1:0", "--remove-on-exit")
			last.Env = cmd.Env
			if out, err := last.StdoutPipe(); err == nil && last.Start() == nil {
				bufio.NewReader(out).ReadString('\n')
				last.Process.Signal(syscall.SIGTERM)
				last.Wait()
			}
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "atoll: ready on ")
	if err != nil || !ok {
		ts.Fatalf("the daemon said %q: %v\n%s", line, err, ts.ReadFile("daemon.log"))
	}
	ts.Setenv("ATOLL_HOST", at)
	ts.Setenv("DAEMON_PID", fmt.Sprint(cmd.Process.Pid))
	running.Store(ts.Getenv("WORK"), &testDaemon{cmd})
}

// stopDaemon implements the command halt. (The name stop is taken: it ends a script.)
func stopDaemon(ts *testscript.TestScript, neg bool, args []string) {
	v, ok := running.LoadAndDelete(ts.Getenv("WORK"))
	if !ok {
		ts.Fatalf("no daemon runs")
	}
	d := v.(*testDaemon)
	sig := syscall.SIGTERM
	if len(args) > 0 && args[0] == "KILL" {
		sig = syscall.SIGKILL
	}
	ts.Check(d.cmd.Process.Signal(sig))
	err := d.cmd.Wait()
	if sig == syscall.SIGTERM && (err != nil) != neg {
		ts.Fatalf("the daemon ended with %v\n%s", err, ts.ReadFile("daemon.log"))
	}
}

// wantStatus implements the command status.
func wantStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N CMD...")
	}
	err := ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("got status %d, want %s", got, args[0])
	}
}

// capture implements the command capture.
func capture(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: capture VAR")
	}
	ts.Setenv(args[0], strings.TrimSuffix(ts.ReadFile("stdout"), "\n"))
}
