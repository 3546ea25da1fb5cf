package atoll

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestLint runs what make lint runs, so that it is counted with the tests.
func TestLint(t *testing.T) {
	if os.Getenv("ATOLL_LINT") == "" {
		t.Skip("make lint does this, and make test")
	}
	for _, check := range []string{"gofmt", "vet", "staticcheck", "govulncheck"} {
		t.Run(check, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "scripts/lint", check).CombinedOutput()
			text := strings.TrimSpace(string(out))
			var exit *exec.ExitError
			switch {
			case errors.As(err, &exit) && exit.ExitCode() == 77:
				t.Skip(text)
			case err != nil:
				t.Fatalf("%v\n%s", err, text)
			}
		})
	}
}
