package main

import (
	"strings"
	"testing"
)

func TestSummary(t *testing.T) {
	const p = `,"Package":"github.com/atoll-run/atoll/x"`
	for _, tc := range []struct {
		name   string
		events []string
		want   []string // lines, in order
		last   string
	}{
		{
			"leaves are counted",
			[]string{
				`{"Action":"run","Test":"TestA"` + p + `}`,
				`{"Action":"run","Test":"TestA/one"` + p + `}`,
				`{"Action":"run","Test":"TestA/two"` + p + `}`,
				`{"Action":"pass","Test":"TestA/one"` + p + `}`,
				`{"Action":"output","Test":"TestA/two","Output":"    x_test.go:7: no kernel here\n"` + p + `}`,
				`{"Action":"output","Test":"TestA/two","Output":"--- SKIP: TestA/two (0.00s)\n"` + p + `}`,
				`{"Action":"skip","Test":"TestA/two"` + p + `}`,
				`{"Action":"pass","Test":"TestA"` + p + `}`,
				`{"Action":"pass"` + p + `,"Elapsed":1.25}`,
			},
			[]string{"ok   x 1.2s, 1 skipped", "skipped:", "no kernel here", "x TestA/two"},
			"1 passed, 0 failed, 1 skipped",
		},
		{
			"a parent is not counted beside its child",
			[]string{
				`{"Action":"run","Test":"TestA"` + p + `}`,
				`{"Action":"run","Test":"TestA/one"` + p + `}`,
				`{"Action":"output","Test":"TestA/one","Output":"    x_test.go:9: got 1\n"` + p + `}`,
				`{"Action":"fail","Test":"TestA/one"` + p + `}`,
				`{"Action":"fail","Test":"TestA"` + p + `}`,
				`{"Action":"fail"` + p + `}`,
			},
			[]string{"x_test.go:9: got 1", "FAIL x"},
			"0 passed, 1 failed, 0 skipped",
		},
		{
			"a parent that fails by itself is",
			[]string{
				`{"Action":"run","Test":"TestA"` + p + `}`,
				`{"Action":"run","Test":"TestA/one"` + p + `}`,
				`{"Action":"pass","Test":"TestA/one"` + p + `}`,
				`{"Action":"fail","Test":"TestA"` + p + `}`,
				`{"Action":"fail"` + p + `}`,
			},
			[]string{"FAIL x"},
			"1 passed, 1 failed, 0 skipped",
		},
		{
			"a panic is a failure, and shown",
			[]string{
				`{"Action":"run","Test":"TestA"` + p + `}`,
				`{"Action":"output","Test":"TestA","Output":"panic: oh\n"` + p + `}`,
				`{"Action":"fail"` + p + `}`,
			},
			[]string{"panic: oh", "FAIL x"},
			"0 passed, 1 failed, 0 skipped",
		},
		{
			"what does not build is a failure, and shown",
			[]string{
				`{"Action":"build-output","ImportPath":"x","Output":"x.go:1: undefined: y\n"}`,
				`{"Action":"build-fail","ImportPath":"x"}`,
				`{"Action":"fail"` + p + `}`,
			},
			[]string{"undefined: y", "FAIL x"},
			"0 passed, 1 failed, 0 skipped",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			s := newSummary(&out)
			if err := s.read(strings.NewReader(strings.Join(tc.events, "\n"))); err != nil {
				t.Fatal(err)
			}
			s.close()
			left := out.String()
			for _, w := range tc.want {
				_, after, ok := strings.Cut(left, w)
				if !ok {
					t.Fatalf("no %q in its place in\n%s", w, out.String())
				}
				left = after
			}
			if !strings.HasSuffix(out.String(), "\n"+tc.last+"\n") && out.String() != tc.last+"\n" {
				t.Errorf("the last line of\n%s\nis not %q", out.String(), tc.last)
			}
		})
	}
}
