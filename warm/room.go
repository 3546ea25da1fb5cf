package warm

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Room is the default of [Config]: it says that there is no room when less
// than a sixteenth of the machine's memory is available, or less than 256 MiB,
// or when on the average of the last minute more than four processes for each
// processor wanted to run. It reads MemAvailable and MemTotal in /proc/meminfo
// (since Linux 3.14) and the first figure of /proc/loadavg (proc_loadavg(5)).
// What cannot be read is no reason against it: elsewhere there is always room.
func Room(context.Context) error {
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		if err := enoughMemory(b); err != nil {
			return err
		}
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		return littleLoad(b, runtime.NumCPU())
	}
	return nil
}

// enoughMemory reads /proc/meminfo.
func enoughMemory(meminfo []byte) error {
	total, ok := kilobytes(meminfo, "MemTotal:")
	available, too := kilobytes(meminfo, "MemAvailable:")
	if !ok || !too {
		return nil
	}
	if floor := max(total/16, 256<<10); available < floor {
		return sandbox.Errorf(sandbox.Exhausted, "", "the machine has %d MiB of memory available, less than %d", available>>10, floor>>10).WithHint("remove sandboxes")
	}
	return nil
}

func kilobytes(meminfo []byte, name string) (int64, bool) {
	for s := bufio.NewScanner(bytes.NewReader(meminfo)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) == 3 && f[0] == name && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			return n, err == nil && n >= 0
		}
	}
	return 0, false
}

// littleLoad reads /proc/loadavg.
func littleLoad(loadavg []byte, cpus int) error {
	first, _, _ := strings.Cut(string(loadavg), " ")
	load, err := strconv.ParseFloat(first, 64)
	if most := 4 * float64(cpus); err == nil && load > most {
		return sandbox.Errorf(sandbox.Exhausted, "", "the machine's load is %.1f, more than %.0f", load, most).WithHint("wait, or run less")
	}
	return nil
}
