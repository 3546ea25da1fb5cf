// Abuse tries, from inside a sandbox, what the processes of one might try. The
// tests of backend/linux build it, put it into sandboxes, and judge what it
// says: lines of a name, a tab and a verdict, which is the name of an error
// ("EPERM"), "ok", or what was found.
//
//	abuse NONCE PROBE [ARGUMENTS]
//
// What it tries could do harm where nothing stops it, so it runs only where it
// is told a nonce that stands in /workspace/.nonce, as a descendant of a guest,
// in a user namespace that is not the host's. It judges nothing itself.
//
// It is no part of any program that is installed.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// probes are what can be tried. Each returns when it has said all that it
// found, or never, where its purpose is to go on.
var probes = map[string]func(args []string) error{
	"calls":      calls,
	"sockets":    sockets,
	"clone3":     clone3,
	"int80":      int80,
	"x32":        x32,
	"status":     status,
	"gain":       gain,
	"whoami":     whoami,
	"fds":        descriptors,
	"open":       open,
	"write":      write,
	"link":       link,
	"attack":     attack,
	"terminal":   terminal,
	"nodes":      nodes,
	"ipc-make":   ipcMake,
	"ipc-look":   ipcLook,
	"listen":     listen,
	"connect":    connect,
	"mountinfo":  mountinfo,
	"sched":      schedule,
	"burn":       burn,
	"forks":      forks,
	"memory":     memory,
	"fill":       fill,
	"exhaust":    exhaust,
	"zombies":    zombies,
	"daemon":     daemon,
	"stubborn":   stubborn,
	"stop":       stop,
	"closed":     closed,
	"flood":      flood,
	"drip":       drip,
	"vforkstop":  vforkStop,
	"descendant": descendant,
	"swap":       swap,
	"fsyncs":     fsyncs,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "abuse:", err)
		os.Exit(99)
	}
}

func run(args []string) error {
	if len(args) < 2 || probes[args[1]] == nil {
		var names []string
		for name := range probes {
			names = append(names, name)
		}
		sort.Strings(names)
		return fmt.Errorf("usage: abuse NONCE PROBE [ARGUMENTS]; probes: %s", strings.Join(names, " "))
	}
	if err := inside(args[0]); err != nil {
		return fmt.Errorf("this is no sandbox, and nothing was tried: %w", err)
	}
	return probes[args[1]](args[2:])
}

// inside fails unless the process is in a sandbox that was made for it.
func inside(nonce string) error {
	b, err := os.ReadFile("/workspace/.nonce")
	if err != nil {
		return err
	}
	if len(nonce) < 16 || string(bytes.TrimSpace(b)) != nonce {
		return errors.New("the nonce is not the one that stands in /workspace")
	}
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return err
	}
	if f := strings.Fields(string(m)); len(f) < 3 || f[2] == "4294967295" {
		return errors.New("these are the host's user ids")
	}
	init, err := os.ReadFile("/proc/1/cmdline")
	if err != nil {
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	if string(init) != "atoll-guest\x00"+host+"\x00" {
		return errors.New("process 1 is not a guest")
	}
	return nil
}

// say prints a verdict.
func say(name, verdict string) {
	fmt.Printf("%s\t%s\n", name, strings.NewReplacer("\n", " ", "\t", " ").Replace(verdict))
}

// sayErr prints what came of something: "ok" or the error's name.
func sayErr(name string, err error) { say(name, verdict(err)) }

func verdict(err error) string {
	var errno syscall.Errno
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
		return fmt.Sprintf("errno %d", int(errno))
	}
	return "error: " + err.Error()
}
