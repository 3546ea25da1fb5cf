package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	atoll "github.com/atoll-run/atoll/client"
	"github.com/atoll-run/atoll/sandbox"
)

// A figure is what atoll top shows of a sandbox.
type figure struct {
	ID         sandbox.ID     `json:"id"`
	Names      []string       `json:"names,omitempty"`
	Owner      sandbox.Owner  `json:"owner,omitempty"`
	State      sandbox.State  `json:"state"`
	CPUPercent float64        `json:"cpu_percent"` // of one processor
	Usage      *sandbox.Usage `json:"usage"`       // null if it is not known
	Busy       int            `json:"busy"`
	Released   bool           `json:"released"`
	IdleFor    float64        `json:"idle_seconds"` // since something used it last

	info sandbox.Info
}

func (a *app) topCommand() *cobra.Command {
	var asJSON, once bool
	every := 2 * time.Second
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "show what the sandboxes use",
		Long: `Top shows what each sandbox uses, those with the most processor time first:
processor time in percent of one processor, memory, processes and threads, bytes
written, how many things use it now, and for how long nothing has.

On a terminal it begins anew every --interval until it is ended. Elsewhere, or
with --once or --json, it shows what was used during one --interval. To look is
not to use: it keeps no sandbox from being removed for being idle.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if every < 100*time.Millisecond {
				return sandbox.Errorf(sandbox.Invalid, "--interval", "%v is too short", every).WithHint("give 100ms at least")
			}
			rt, err := a.daemon(cmd)
			if err != nil {
				return err
			}
			defer rt.Close()
			ctx := cmd.Context()
			m := meter{rt: rt, was: make(map[sandbox.ID]reading)}
			if _, err := m.read(ctx); err != nil {
				return err
			}
			live := !once && !asJSON && isTerminal(a.stdout)
			tick := time.NewTicker(every)
			defer tick.Stop()
			// The first look is soon, so that there is something to see.
			wait := time.NewTimer(min(every, 500*time.Millisecond))
			defer wait.Stop()
			if !live {
				wait.Reset(every)
			}
			for {
				select {
				case <-ctx.Done():
					if live {
						fmt.Fprintln(a.stdout) // so that what follows begins a line
					}
					return ctx.Err()
				case <-wait.C:
				case <-tick.C:
				}
				all, err := m.read(ctx)
				if err != nil {
					return err
				}
				switch {
				case asJSON:
					return a.printJSON(all)
				case !live:
					return a.printTable(topRows(all, time.Now()))
				}
				width, height, err := term.GetSize(int(a.stdout.Fd()))
				if err != nil || width < 1 || height < 2 { // some terminals do not know
					width, height = 80, 24
				}
				if err := drawTop(a.stdout, topRows(all, time.Now()), width, height); err != nil {
					return err
				}
			}
		},
	}
	client(cmd)
	fs := cmd.Flags()
	fs.DurationVar(&every, "interval", every, "how long each look lasts")
	fs.BoolVar(&once, "once", false, "show it once")
	fs.BoolVar(&asJSON, "json", false, "print an array of objects, once")
	return cmd
}

// A meter reads what sandboxes use.
type meter struct {
	rt  *atoll.Client
	was map[sandbox.ID]reading // the last time
}

// A reading is what a sandbox had used at a time.
type reading struct {
	cpu time.Duration
	at  time.Time
}

// meterSlots is how many sandboxes are asked at a time.
const meterSlots = 16

// read returns the figures of all sandboxes since the last time.
func (m *meter) read(ctx context.Context) ([]figure, error) {
	all := []figure{}
	for info, err := range m.rt.List(ctx) {
		if err != nil {
			return nil, err
		}
		f := figure{ID: info.ID, Names: info.Names, Owner: info.Owner, State: info.State, Busy: info.Busy, Released: info.Released, info: info}
		if !info.Used.IsZero() && info.Busy == 0 {
			f.IdleFor = time.Since(info.Used).Seconds()
		}
		all = append(all, f)
	}
	now := make([]reading, len(all))
	errs := make([]error, len(all))
	var asking sync.WaitGroup
	slots := make(chan struct{}, meterSlots)
	for i := range all {
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			u, err := m.rt.Sandbox(all[i].ID).Usage(ctx)
			switch {
			case err == nil:
				all[i].Usage, now[i] = &u, reading{u.CPU, time.Now()}
			case !errors.Is(err, sandbox.NotExist) && !errors.Is(err, sandbox.Unsupported):
				errs[i] = err
			}
		})
	}
	asking.Wait()
	if err := cmp.Or(errs...); err != nil {
		return nil, err
	}
	last := m.was
	m.was = make(map[sandbox.ID]reading)
	for i := range all {
		if all[i].Usage == nil {
			continue
		}
		m.was[all[i].ID] = now[i]
		if was, ok := last[all[i].ID]; ok {
			all[i].CPUPercent = percent(was, now[i])
		}
	}
	slices.SortFunc(all, func(x, y figure) int {
		return cmp.Or(cmp.Compare(y.CPUPercent, x.CPUPercent), cmp.Compare(memoryOf(y), memoryOf(x)), cmp.Compare(x.ID, y.ID))
	})
	return all, nil
}

// percent returns the processor time used between two readings, in percent of
// one processor.
func percent(was, now reading) float64 {
	past := now.at.Sub(was.at)
	if past <= 0 || now.cpu < was.cpu {
		return 0
	}
	return 100 * float64(now.cpu-was.cpu) / float64(past)
}

func memoryOf(f figure) int64 {
	if f.Usage == nil {
		return 0
	}
	return f.Usage.Memory
}

// topRows returns the table.
func topRows(all []figure, now time.Time) [][]string {
	infos := make([]sandbox.Info, len(all))
	for i := range all {
		infos[i] = all[i].info
	}
	whose := severalOwners(infos)
	rows := [][]string{{"ID", "NAME", "CPU%", "MEMORY", "PIDS", "DISK", "BUSY", "IDLE", "STATE"}}
	if whose {
		rows[0] = slices.Insert(rows[0], 2, "OWNER")
	}
	for i, f := range all {
		cpu, memory, pids, disk := "-", "-", "-", "-"
		if u := f.Usage; u != nil {
			cpu, memory, pids, disk = fmt.Sprintf("%.1f", f.CPUPercent), formatSize(u.Memory), fmt.Sprint(u.PIDs), formatSize(u.Disk)
		}
		row := []string{string(f.ID), names(infos[i]), cpu, memory, pids, disk, fmt.Sprint(f.Busy), idleOf(infos[i], now), stateOf(infos[i])}
		if whose {
			row = slices.Insert(row, 2, dash(string(f.Owner)))
		}
		rows = append(rows, row)
	}
	return rows
}

// drawTop draws rows over what it drew before: as many as there is room for,
// each cut at the terminal's width.
func drawTop(w io.Writer, rows [][]string, width, height int) error {
	var table bytes.Buffer
	t := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	t.Flush()
	var frame bytes.Buffer
	frame.WriteString("\x1b[H") // to the first place
	lines := strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")
	for i, line := range lines {
		if i == height-1 && len(lines) > height {
			line = fmt.Sprintf("and %d more", len(lines)-i)
		} else if i >= height {
			break
		}
		if i > 0 {
			frame.WriteString("\r\n")
		}
		frame.WriteString(cutTo(line, width))
		frame.WriteString("\x1b[K") // nothing else on this line
	}
	frame.WriteString("\x1b[J") // and nothing below
	_, err := w.Write(frame.Bytes())
	return err
}

// cutTo returns the beginning of s that has at most n characters.
func cutTo(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i]
		}
		n--
	}
	return s
}
