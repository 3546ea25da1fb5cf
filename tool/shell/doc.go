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
//   - That it has ended, with which status and in which directory, comes on a
//     descriptor of its own ([sandbox.Cmd.Control]), which commands do not have.
//   - Then the shell writes a fresh random word to standard output and standard
//     error. What came before it is the command's, all of it; what comes later is
//     of processes that it left in the background.
//   - Commands have an empty standard input unless they are given another, so
//     that none of them eats the next.
//
// Commands run one after the other. One that takes too long for its caller
// goes on, and is waited for or read later; its output is in a ring that is
// read by cursor. One that is killed takes its children with it, those it put
// into the background included; processes that earlier commands left behind
// live until Close.
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
// A command that is killed or interrupted ends its shell too, with all of the
// above, in shells other than bash, and in bash if a function or a sourced
// file was running. A shell that does not react is killed.
//
// # What commands can notice
//
// The shell uses functions that begin with __atoll_, traps on EXIT and URG, and
// descriptors 61 to 63 (bash) or 7 to 9: what exec opens there does not last
// from one command to the next. A command that does exec >file has it for
// itself alone. set -n leaves the shell deaf until it is killed.
package shell
