package store

import (
	"log/slog"
	"os"
)

// verify looks at the file before bbolt does.
func verify(f *os.File, size int64, log *slog.Logger) error {
	return nil
}

// verifyValues looks at every value, and whether there are as many as there
// should be.
func verifyValues(t txn) error {
	count := func(b bucket, skip int) error {
		var n uint64
		err := t.each(b, func(_, v []byte) error {
			n++
			if len(v) < skip {
				return damage("a value of %s is cut short", b)
			}
			_, err := unseal(v[skip:])
			return err
		})
		if err == nil && n != t.number(b) {
			err = damage("there are %d %s, not %d", n, b, t.number(b))
		}
		return err
	}
	if err := count(records, 0); err != nil {
		return err
	}
	return count(tombs, 8)
}
