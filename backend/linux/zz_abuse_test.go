//go:build linux

package linux_test

import "testing"

func TestZZGuest(t *testing.T) {
	t.Setenv("ATOLL_TEST_ABUSE", abuseProgram(t))
	for range 3 {
		asUser(t, "^TestAbuse(Priv|Guest|OtherE)")
	}
}
