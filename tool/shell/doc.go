// Package shell keeps a shell alive in a sandbox: its directory, variables and
// functions last from one command to the next. It needs nothing but
// [sandbox.Sandbox], and runs over every backend whose processes can have
// [sandbox.Cmd.Control].
//
// One process, bash if it is there, else sh (dash and BusyBox's ash are
// tried), reads commands from its standard input. What belongs to a command
// is told from what belongs to the shell by descriptors, never by prompts:
//
//   - A command's text travels as one quoted word that eval gets, so that no
//     text, however broken, can reach beyond itself.
//   - After a command the shell writes a random word to standard output and
//     standard error, which it got with the command. What came before it is the
//     command's, all of it; what comes later is of processes that it left in
//     the background.
//   - That the command has ended, with which status and in which directory,
//     comes on a descriptor of its own ([sandbox.Cmd.Control]), which commands
//     do not have. Nothing that a command prints looks like its end; one that
//     searches its shell's memory can fake it, and deceives nobody but its owner.
//   - Commands have an empty standard input unless they are given another, so
//     that none of them eats the next.
//
// Commands run one after the other. One that takes too long for its caller
// goes on, and is waited for or read later; its output is in a ring that is
// read by cursor. One that is killed takes its children with it, those it put
// into the background included; processes that earlier commands left behind
// live until Close.
//
// A live shell is a process that somebody waits for, so that its sandbox is in
// use. Options.Rest lets bash do without one between commands.
//
// # What is kept when the shell itself ends
//
// A shell ends by exit, by set -e or an unset variable under set -u, by exec,
// or because somebody killed it. The next command then has a new one. It goes
// on in the same directory, and with
//
//   - variables (arrays and attributes in bash), those that are not exported
//     included; aliases, umask, traps and options;
//   - functions, in bash. Others cannot list theirs: they are lost.
//
// They are as they were at the end, where the shell could still tell: after
// exit, set -e, set -u and most kills. After exec, kill -9, or where the
// command had a trap of its own on EXIT, they are as the shell was when it last
// stood idle for 20 ms, and Result.Stale says so. Lost in any case are what
// belongs to a process: its pid, open descriptors, limits (ulimit), and the
// table of its jobs, which go on running but whose output goes nowhere.
//
// A command that is killed or interrupted leaves its shell as it is, with what
// the command did to it. Only bash ends, and is replaced with all of the above,
// if a function or a sourced file was running. A shell that does not react is
// killed.
//
// # What commands can notice
//
// The shell uses functions that begin with __atoll_, traps on EXIT and URG, and
// descriptors 61 to 63 (bash) or 7 to 9: what exec opens there does not last
// from one command to the next. A command that does exec >file has it for
// itself alone. set -n leaves the shell deaf until it is killed.
package shell
