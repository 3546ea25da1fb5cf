//go:build linux

package linux_test

import (
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/sandboxtest"
)

// TestRuntime is the whole contract, as whoever runs it.
func TestRuntime(t *testing.T) {
	// The suite closes what it gets, which leaves sandboxes running; they are
	// removed when it has ended.
	t.Run("suite", func(suite *testing.T) {
		sandboxtest.Run(suite, sandboxtest.Config{
			New:    func(*testing.T) sandbox.Runtime { return newRuntime(t) },
			Listen: listener,
			Source: func(t *testing.T) string { return t.TempDir() },
		})
	})
}

// TestRuntimeAsUser is the whole contract as an ordinary user, who has one id
// and no cgroup.
func TestRuntimeAsUser(t *testing.T) { asUser(t, "^TestRuntime$") }

// TestRuntimeAsUserWithRange is the same for a user who was given a range of
// ids.
func TestRuntimeAsUserWithRange(t *testing.T) { asUserWithRange(t, "^TestRuntime$") }

// listener is a server that needs nothing but the host's Perl, which every
// Debian has.
func listener(port int) []string {
	return []string{"perl", "-MIO::Socket::INET", "-e", `
		my $l = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 8, ReuseAddr => 1) or die $!;
		while (my $c = $l->accept) { while (sysread($c, my $b, 65536)) { syswrite($c, $b) } close $c }`, strconv.Itoa(port)}
}
