package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

func TestOneDaemonPerState(t *testing.T) {
	dir := t.TempDir()
	first, err := lockDaemon(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockDaemon(dir)
	msg, hints := phrase(err)
	if want := "another daemon (process " + strconv.Itoa(os.Getpid()) + ") uses the state folder " + dir; msg != want || len(hints) != 1 {
		t.Errorf("got %q with hints %q, want %q", msg, hints, want)
	}
	first.release()
	second, err := lockDaemon(dir)
	if err != nil {
		t.Fatal("after the first has gone:", err)
	}
	second.release()
}

func TestToken(t *testing.T) {
	dir := t.TempDir()
	tok, made, err := makeToken(dir)
	if err != nil || !made {
		t.Fatalf("got %v, %v", made, err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(tok.Reveal()) {
		t.Errorf("the token has another form")
	}
	info, err := os.Stat(tokenFile(dir))
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("its file has the mode %v, %v", info.Mode(), err)
	}
	again, made, err := makeToken(dir)
	if err != nil || made || again != tok {
		t.Errorf("the second time: made %v, %v, the same: %v", made, err, again == tok)
	}
	// One that others can read is refused, and so are those that are none.
	if err := os.Chmod(tokenFile(dir), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := makeToken(dir); err == nil {
		t.Error("a token that others can read is taken")
	}
	if _, err := readToken(tokenFile(dir), false); err != nil {
		t.Errorf("a file that others can read, as secrets are mounted in containers: %v", err)
	}
	if err := os.Chmod(tokenFile(dir), 0o664); err != nil {
		t.Fatal(err)
	}
	if _, err := readToken(tokenFile(dir), false); err == nil {
		t.Error("a token that others can change is taken")
	}
	for name, text := range map[string]string{"empty": "", "spaces": "a b\n", "lines": "a\nb\n", "binary": "\x00\x01"} {
		if _, err := readToken(write(t, name, text), true); err == nil {
			t.Errorf("%s is taken as a token", name)
		}
	}
}

func TestTokenIsNotLeftHalf(t *testing.T) {
	dir := t.TempDir()
	// As if a daemon had been killed between making the file and writing it.
	if err := os.WriteFile(tokenFile(dir)+".new", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tok, made, err := makeToken(dir)
	if err != nil || !made || tok == "" {
		t.Errorf("got %v, %v", made, err)
	}
}

// TestSweep leaves one scratch folder of a program that lives, and removes
// that of one that does not.
func TestSweep(t *testing.T) {
	state := t.TempDir()
	live, err := makeScratch(state)
	if err != nil {
		t.Fatal(err)
	}
	dead, err := makeScratch(state)
	if err != nil {
		t.Fatal(err)
	}
	dead.lock.release() // as the kernel does when a program dies

	var cleaned []string
	clean := func(_ context.Context, dir string) error {
		cleaned = append(cleaned, dir)
		return nil
	}
	failing := errors.New("busy")
	if err := sweep(t.Context(), state, func(context.Context, string) error { return failing }); !errors.Is(err, failing) {
		t.Errorf("got %v, want the error of cleaning up", err)
	}
	if _, err := os.Stat(dead.dir); err != nil {
		t.Errorf("what could not be cleaned up is forgotten: %v", err)
	}
	if err := sweep(t.Context(), state, clean); err != nil {
		t.Fatal(err)
	}
	if len(cleaned) != 1 || cleaned[0] != dead.dir {
		t.Errorf("cleaned %q, want %s", cleaned, dead.dir)
	}
	left, _ := filepath.Glob(filepath.Join(state, "run", "*"))
	if len(left) != 2 {
		t.Errorf("left %q, want those of %s", left, live.dir)
	}
	if err := live.remove(); err != nil {
		t.Fatal(err)
	}
	left, _ = filepath.Glob(filepath.Join(state, "run", "*"))
	if len(left) != 0 {
		t.Errorf("left %q at the end", left)
	}
}
