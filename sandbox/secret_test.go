package sandbox_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestSecretPrintsAsAsterisks(t *testing.T) {
	const plain = "e2b_0123456789"
	c := struct{ Token sandbox.Secret }{plain}
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10s"} {
		fmt.Fprintf(&out, verb+"\n", c.Token)
		fmt.Fprintf(&out, verb+"\n", c)
		fmt.Fprintf(&out, verb+"\n", &c)
	}
	fmt.Fprintln(&out, c.Token, c)
	slog.New(slog.NewTextHandler(&out, nil)).Info("hello", "token", c.Token, "config", c)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("hello", "token", c.Token, "config", c)
	if err := json.NewEncoder(&out).Encode(c); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{plain, fmt.Sprintf("%x", plain), fmt.Sprintf("%X", plain)} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the secret shows:\n%s", out.String())
		}
	}
	if got := c.Token.Reveal(); got != plain {
		t.Errorf("Reveal returned %q", got)
	}
}
