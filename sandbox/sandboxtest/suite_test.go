package sandboxtest_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// TestClaimsAreNamedAndSaid: a claim without its sentence is a test without a
// reason.
func TestClaimsAreNamedAndSaid(t *testing.T) {
	seen := make(map[string]bool)
	for _, c := range sandboxtest.Claims() {
		if c.Name == "" || !unicode.IsUpper(rune(c.Name[0])) || strings.ContainsAny(c.Name, " /_") {
			t.Errorf("%q is no name of a claim", c.Name)
		}
		if seen[c.Name] {
			t.Errorf("two claims have the name %s", c.Name)
		}
		seen[c.Name] = true
		if !strings.HasSuffix(c.Says, ".") {
			t.Errorf("%s says %q, want a sentence", c.Name, c.Says)
		}
	}
}

// TestCannot: what cannot be carried is skipped, with its reason, and counted;
// a name that is no claim fails. Like TestDefect it looks at a process of its
// own.
func TestCannot(t *testing.T) {
	if os.Getenv("SUITE_CANNOT") != "" {
		sandboxtest.Run(t, sandboxtest.Config{
			New: func(t *testing.T) sandbox.Runtime { return memory.New(memory.Config{}) },
			Cannot: map[string]string{
				"FailureIsAResult": "the protocol has no exit codes",
				"NoSuchClaim":      "it is not there",
				"BytesAreBytes":    "",
			},
			NoShell: "this image has no shell",
		})
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-test.run=^TestCannot$/^(FailureIsAResult|ExitCodesArrive|ArgumentsArriveUnchanged|DialReachesAServer)$", "-test.v")
	cmd.Env = append(os.Environ(), "SUITE_CANNOT=1")
	out, err := cmd.CombinedOutput()
	if err == nil {
		t.Errorf("it passes, though Cannot is wrong")
	}
	for _, want := range []string{
		"Cannot names NoSuchClaim, which is no claim",
		"Cannot gives no reason for BytesAreBytes",
		"--- SKIP: TestCannot/FailureIsAResult",
		"cannot be carried: the protocol has no exit codes",
		"--- SKIP: TestCannot/ExitCodesArrive",
		"cannot be carried: this image has no shell",
		"--- PASS: TestCannot/ArgumentsArriveUnchanged",
		"--- SKIP: TestCannot/DialReachesAServer",
		"1 claims hold, 0 fail, 2 cannot be carried, 1 concern abilities that it lacks",
	} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}
