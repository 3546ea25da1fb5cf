package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
)

// The plain handlers are what one would write in ten minutes: they run
// programs and reach files of the host itself, with net/http and os/exec and
// nothing between. They live in a process of their own, as the daemon does,
// and end with their standard input.

// A plainAnswer is what a command left.
type plainAnswer struct {
	Code   int    `json:"code"`
	Stdout []byte `json:"stdout"`
	Stderr []byte `json:"stderr"`
}

// plainHandlers returns the handlers.
func plainHandlers() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /exec", func(w http.ResponseWriter, r *http.Request) {
		cmd, ok := plainCommand(w, r)
		if !ok {
			return
		}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		code, err := ended(cmd.Run())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(plainAnswer{code, stdout.Bytes(), stderr.Bytes()})
	})
	mux.HandleFunc("POST /stream", func(w http.ResponseWriter, r *http.Request) {
		cmd, ok := plainCommand(w, r)
		if !ok {
			return
		}
		w.Header().Set("Trailer", "Exit-Code")
		cmd.Stdout = w
		code, err := ended(cmd.Run())
		if err != nil {
			code = -1
		}
		w.Header().Set("Exit-Code", strconv.Itoa(code))
	})
	mux.HandleFunc("PUT /file", func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Create(r.URL.Query().Get("path"))
		if err == nil {
			_, err = io.Copy(f, r.Body)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("GET /file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, r.URL.Query().Get("path"))
	})

	return mux
}

// servePlain serves the plain handlers on a free port of the loopback and
// prints its address.
func servePlain() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		l.Close()
	}()
	if err := http.Serve(l, plainHandlers()); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// plainCommand decodes {"args": […]}; if it cannot, it answers and says false.
func plainCommand(w http.ResponseWriter, r *http.Request) (*exec.Cmd, bool) {
	var body struct {
		Args []string `json:"args"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || len(body.Args) == 0 {
		http.Error(w, "no command", http.StatusBadRequest)
		return nil, false
	}
	return exec.CommandContext(r.Context(), body.Args[0], body.Args[1:]...), true
}

// ended turns what Cmd.Run returns into an exit code.
func ended(err error) (int, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
