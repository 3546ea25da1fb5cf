package sandbox

import (
	"fmt"
	"io"
	"log/slog"
)

// A Secret prints as asterisks wherever it is printed, whatever the verb, and
// so does not get into logs, error texts or JSON by accident. A field that
// holds one is exported: fmt does not call methods on unexported fields.
type Secret string

// Reveal returns the secret itself.
func (s Secret) Reveal() string { return string(s) }

// String returns asterisks.
func (Secret) String() string { return "***" }

// Format writes asterisks.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, "***") }

// LogValue returns asterisks.
func (Secret) LogValue() slog.Value { return slog.StringValue("***") }

// MarshalText returns asterisks.
func (Secret) MarshalText() ([]byte, error) { return []byte("***"), nil }
