package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// An event is a line of go test -json, as cmd/test2json documents it.
type event struct {
	Action     string
	Package    string
	Test       string
	Output     string
	Elapsed    float64 // seconds
	ImportPath string  // of build-output and build-fail
}

// A summary adds up events.
type summary struct {
	to                      io.Writer
	passed, failed, skipped int

	output  map[string]*strings.Builder // by package and test, until its fate is known
	parents map[string]bool             // tests that have subtests
	ends    map[string]string           // by package: test → action, of the running packages
	order   map[string][]string         // by package: tests in the order in which they ended
	why     map[string][]string         // reason of a skip → who gave it
	faults  []string                    // what failed, with the end of its output
}

func newSummary(to io.Writer) *summary {
	return &summary{
		to:      to,
		output:  make(map[string]*strings.Builder),
		parents: make(map[string]bool),
		ends:    make(map[string]string),
		order:   make(map[string][]string),
		why:     make(map[string][]string),
	}
}

// read takes events from r until it ends.
func (s *summary) read(r io.Reader) error {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(s.to, "%s", line) // go test says some things plainly
			} else {
				s.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func key(pkg, test string) string { return pkg + " " + test }

func (s *summary) take(e event) {
	k := key(e.Package, e.Test)
	switch e.Action {
	case "build-output":
		fmt.Fprint(s.to, e.Output)
	case "run":
		if i := strings.LastIndexByte(e.Test, '/'); i > 0 {
			s.parents[key(e.Package, e.Test[:i])] = true
		}
	case "output":
		b := s.output[k]
		if b == nil {
			b = new(strings.Builder)
			s.output[k] = b
		}
		b.WriteString(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.finish(e)
			return
		}
		s.ends[k] = e.Action
		s.order[e.Package] = append(s.order[e.Package], e.Test)
	}
}

// finish counts the tests of a package that has ended and prints what there
// is to say.
func (s *summary) finish(e event) {
	var failed, skipped int
	for _, test := range s.order[e.Package] {
		k := key(e.Package, test)
		out := ""
		if b := s.output[k]; b != nil {
			out = b.String()
		}
		childFailed := slices.ContainsFunc(s.order[e.Package], func(t string) bool {
			return strings.HasPrefix(t, test+"/") && s.ends[key(e.Package, t)] == "fail"
		})
		switch {
		case s.ends[k] == "fail" && !childFailed:
			failed++
			fmt.Fprint(s.to, out)
			s.faults = append(s.faults, name(e.Package)+" "+test+"\n"+end(out))
		case s.ends[k] == "fail":
			fmt.Fprint(s.to, out) // its child is counted
		case s.parents[k]:
		case s.ends[k] == "skip":
			skipped++
			why := reason(out)
			s.why[why] = append(s.why[why], name(e.Package)+" "+test)
		default:
			s.passed++
		}
	}
	if e.Action == "fail" && failed == 0 {
		failed++
		// What a panic printed belongs to a test that never ended.
		for _, k := range slices.Sorted(maps.Keys(s.output)) {
			if strings.HasPrefix(k, e.Package+" ") && s.ends[k] == "" {
				fmt.Fprint(s.to, s.output[k].String())
			}
		}
	}
	s.failed += failed
	s.skipped += skipped
	word := map[string]string{"pass": "ok  ", "fail": "FAIL", "skip": "-   "}[e.Action]
	fmt.Fprintf(s.to, "%s %s %.1fs", word, name(e.Package), e.Elapsed)
	if skipped > 0 {
		fmt.Fprintf(s.to, ", %d skipped", skipped)
	}
	fmt.Fprintln(s.to)
	for k := range s.output {
		if strings.HasPrefix(k, e.Package+" ") {
			delete(s.output, k)
		}
	}
	delete(s.order, e.Package)
}

// close prints what was skipped, and the sum.
func (s *summary) close() {
	if len(s.why) > 0 {
		fmt.Fprintln(s.to, "\nskipped:")
	}
	for _, why := range slices.Sorted(maps.Keys(s.why)) {
		tests := s.why[why]
		fmt.Fprintf(s.to, "  %s\n    %s", why, tests[0])
		if len(tests) > 1 {
			fmt.Fprintf(s.to, " and %d more", len(tests)-1)
		}
		fmt.Fprintln(s.to)
	}
	// Again, where it is found: the end is all that some people see.
	for i, f := range s.faults {
		if i == 0 {
			fmt.Fprintln(s.to, "\nfailed:")
		}
		fmt.Fprintf(s.to, "  %s", f)
	}
	fmt.Fprintf(s.to, "%d passed, %d failed, %d skipped\n", s.passed, s.failed, s.skipped)
}

// maxEnd is how much of a failed test's output is shown again, in bytes.
const maxEnd = 3000

// end returns the last lines of out.
func end(out string) string {
	if len(out) <= maxEnd {
		return out
	}
	out = out[len(out)-maxEnd:]
	return "…\n" + out[strings.IndexByte(out, '\n')+1:]
}

// where is how testing begins a line of a test's log.
var where = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)

// reason returns what a skipped test gave as its reason: the last line of its
// log.
func reason(out string) string {
	lines := strings.Split(out, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		if at := where.FindString(lines[i]); at != "" {
			return strings.TrimSpace(strings.Join(append([]string{lines[i][len(at):]}, rest(lines[i+1:])...), " "))
		}
	}
	return "no reason given"
}

// rest returns the further lines of a log entry.
func rest(lines []string) []string {
	var more []string
	for _, l := range lines {
		t := strings.TrimSpace(l)
		if t == "" || strings.HasPrefix(t, "--- ") || strings.HasPrefix(t, "=== ") {
			break
		}
		more = append(more, t)
	}
	return more
}

// name returns a package's path without the module's.
func name(pkg string) string {
	short := strings.TrimPrefix(pkg, "github.com/atoll-run/atoll")
	if short == "" {
		return "."
	}
	return strings.TrimPrefix(short, "/")
}
