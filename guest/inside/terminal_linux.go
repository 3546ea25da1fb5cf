package inside

import (
	"golang.org/x/sys/unix"
)

// openTerminal makes a terminal that belongs to who. The slave is opened
// through its master (TIOCGPTPEER, Linux 4.13), not by a path.
func openTerminal(rows, cols int, who identity) (master, slave int, err error) {
	for _, name := range []string{"/dev/ptmx", "/dev/pts/ptmx"} {
		if master, err = unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0); err == nil {
			break
		}
	}
	if err != nil {
		e := failure(errno("terminal", err))
		e.Kind, e.Msg = kindUnsupported, "the sandbox has no terminals"
		if err == unix.ENOSPC || err == unix.EMFILE {
			e.Kind, e.Msg = kindExhausted, "the sandbox has no terminal left"
		}
		return -1, -1, e
	}
	if err = unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err == nil {
		slave, err = ptyPeer(master)
	}
	if err == nil {
		err = setSize(master, rows, cols)
	}
	if err != nil {
		unix.Close(master)
		return -1, -1, errno("terminal", err)
	}
	unix.Fchown(slave, who.uid, -1) // with one id it is right as it is
	return master, slave, nil
}

// ptyPeer opens the slave; the ioctl takes open's flags by value.
func ptyPeer(master int) (int, error) {
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if e != 0 {
		return -1, e
	}
	return int(fd), nil
}

// setSize sets a terminal's size; zero is the default, 24 by 80.
func setSize(fd, rows, cols int) error {
	if rows <= 0 {
		rows = 24
	}
	if cols <= 0 {
		cols = 80
	}
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: uint16(min(rows, 1<<16-1)), Col: uint16(min(cols, 1<<16-1))})
}

// resize sets the size of p's terminal.
func (p *process) resize(rows, cols int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.tty == nil {
		return fail(kindUnsupported, "", "the process has no terminal")
	}
	if p.over {
		return nil
	}
	var err error
	if c, e := p.tty.SyscallConn(); e != nil {
		return nil // closed
	} else {
		c.Control(func(fd uintptr) { err = setSize(int(fd), rows, cols) })
	}
	return errno("", err)
}
