package sandboxtest

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// pauser makes a sandbox that can stand still, or ends the claim.
func (t *T) pauser() (sandbox.Sandbox, sandbox.Pauser) {
	t.t.Helper()
	sb := t.create(nil)
	p, ok := sb.(sandbox.Pauser)
	if !ok {
		t.lack()
	}
	err := p.Resume(t.ctx)
	if errors.Is(err, sandbox.Unsupported) {
		t.lack()
	}
	t.ok("Resume of what runs", err)
	return sb, p
}

var abilityClaims = []claim{
	{name: "PauseStopsProcesses", says: "Pause stops every process of the sandbox where it is. Resume lets them go on.", shell: true, check: func(t *T) {
		sb, p := t.pauser()
		proc, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"sh", "-c", "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i > n; sleep 0.01; done"}, Dir: "/workspace"})
		t.ok("Start", err)
		n := func() string {
			b, err := sandbox.ReadFile(t.ctx, sb, "/workspace/n", 100)
			if err != nil && !errors.Is(err, sandbox.NotExist) {
				t.fatalf("Open in a paused sandbox: %v", err)
			}
			return string(b)
		}
		t.until("it to count", func() bool { return n() != "" })
		t.ok("Pause", p.Pause(t.ctx))
		t.ok("Pause again", p.Pause(t.ctx))
		was := n()
		t.never("a paused process goes on", func() bool { return n() != was })
		i, err := sb.Info(t.ctx)
		if t.ok("Info", err); i.State != sandbox.Paused {
			t.errorf("State is %q", i.State)
		}
		t.ok("Resume", p.Resume(t.ctx))
		t.ok("Resume again", p.Resume(t.ctx))
		t.until("it to count on", func() bool { return n() != was })
		i, err = sb.Info(t.ctx)
		if t.ok("Info", err); i.State != sandbox.Running {
			t.errorf("State is %q", i.State)
		}
		t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/workspace/stop", nil))
		if exit, err := t.wait(proc); err != nil || !exit.Success() {
			t.errorf("it ended with %+v, %v", exit, err)
		}
	}},
	{name: "PausedRefusesProcesses", says: "A process started meanwhile is refused with Unavailable and the hint to resume; files may still be reached.", check: func(t *T) {
		sb, p := t.pauser()
		t.ok("Pause", p.Pause(t.ctx))
		proc, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"true"}})
		t.kind("Start", err, "", sandbox.Unavailable)
		var e *sandbox.Error
		if errors.As(err, &e) && e.Hint == "" {
			t.errorf("there is no hint: %v", err)
		}
		if err == nil {
			t.wait(proc)
		}
		if d, ok := sb.(sandbox.Detacher); ok {
			_, err := d.StartDetached(t.ctx, sandbox.Cmd{Args: []string{"true"}}, sandbox.DetachOptions{})
			t.kind("StartDetached", err, "", sandbox.Unavailable, sandbox.Unsupported)
		}
		t.ok("Write", sandbox.WriteFile(t.ctx, sb, "/tmp/f", []byte("x")))
		b, err := sandbox.ReadFile(t.ctx, sb, "/tmp/f", 10)
		if err != nil || string(b) != "x" {
			t.errorf("Open: %q, %v", b, err)
		}
		t.ok("Resume", p.Resume(t.ctx))
		if r := t.capture(sb, sandbox.Cmd{Args: []string{"true"}}); !r.Success() {
			t.errorf("true ended with %+v", r.Exit)
		}
	}},
	{name: "PausedCanBeRemovedAndCancelled", says: "A Timeout goes on counting while the sandbox is paused; ctx ends the process, and Remove the sandbox.", check: func(t *T) {
		sb, p := t.pauser()
		ctx, cancel := context.WithCancel(t.ctx)
		defer cancel()
		proc, err := sb.Start(ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.ok("Start", err)
		other, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}})
		t.ok("Start", err)
		timed, err := sb.Start(t.ctx, sandbox.Cmd{Args: []string{"sleep", "3600"}, Timeout: time.Second})
		t.ok("Start", err)
		t.ok("Pause", p.Pause(t.ctx))
		if exit, err := t.wait(timed); err != nil || exit.Reason != sandbox.TimedOut {
			t.errorf("in a paused sandbox the time ran out with %+v, %v", exit, err)
		}
		cancel()
		_, err = t.wait(proc)
		t.canceled("Wait in a paused sandbox", err)
		t.ok("Remove of a paused sandbox", sb.Remove(t.ctx))
		_, err = t.wait(other)
		t.kind("Wait", err, "", sandbox.NotExist)
		t.kind("Pause of what is gone", p.Pause(t.ctx), "", sandbox.NotExist)
		t.kind("Resume of what is gone", p.Resume(t.ctx), "", sandbox.NotExist)
	}},
	{name: "DialOfNobodyIsUnavailable", says: "Nobody listening is Unavailable; a port outside 1 to 65535 is Invalid.", check: func(t *T) {
		d, ok := t.sb.(sandbox.Dialer)
		if !ok {
			t.lack()
		}
		c, err := d.Dial(t.ctx, 61999)
		if errors.Is(err, sandbox.Unsupported) {
			t.lack()
		}
		t.kind("Dial", err, "", sandbox.Unavailable)
		if err == nil {
			c.Close()
		}
		for _, port := range []int{0, -1, 65536, 1 << 20} {
			c, err := d.Dial(t.ctx, port)
			t.kind("Dial", err, "", sandbox.Invalid)
			if err == nil {
				c.Close()
			}
		}
	}},
	{name: "DialReachesAServer", says: "Dial connects to a TCP port on the sandbox's own loopback.", check: func(t *T) {
		d, ok := t.sb.(sandbox.Dialer)
		if !ok || t.Listen == nil {
			t.lack()
		}
		const port = 61998
		t.start(sandbox.Cmd{Args: t.Listen(port)})
		var c net.Conn
		t.until("the server to listen", func() bool {
			var err error
			c, err = d.Dial(t.ctx, port)
			if errors.Is(err, sandbox.Unsupported) {
				t.lack()
			}
			if err != nil && !errors.Is(err, sandbox.Unavailable) {
				t.fatalf("Dial: %v", err)
			}
			return err == nil
		})
		defer c.Close()
		go io.WriteString(c, "echo me")
		b := make([]byte, 7)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "echo me" {
			t.errorf("it answered %q, %v", b, err)
		}
	}},
	{name: "UsageIsPlausible", says: "A Meter knows what the sandbox uses; a figure that is not known is zero.", check: func(t *T) {
		m, ok := t.sb.(sandbox.Meter)
		if !ok {
			t.lack()
		}
		u, err := m.Usage(t.ctx)
		if errors.Is(err, sandbox.Unsupported) {
			t.lack()
		}
		t.ok("Usage", err)
		t.start(sandbox.Cmd{Args: []string{"sleep", "3600"}})
		v, err := m.Usage(t.ctx)
		t.ok("Usage", err)
		if u.CPU < 0 || u.Memory < 0 || u.PIDs < 0 || u.Disk < 0 || u.PeakMemory < 0 || v.CPU < u.CPU {
			t.errorf("Usage was %+v, is %+v", u, v)
		}
		if u.PIDs+v.PIDs > 0 && v.PIDs < 1 {
			t.errorf("with a process running Usage is %+v", v)
		}
		sb := t.create(nil)
		t.ok("Remove", sb.Remove(t.ctx))
		_, err = sb.(sandbox.Meter).Usage(t.ctx)
		t.kind("Usage of what is gone", err, "", sandbox.NotExist)
	}},
}
