package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A value is eight hexadecimal digits, the CRC-32C of what follows, a space,
// and a JSON object whose "v" is the version that wrote it. bbolt itself has
// no checksums of what it keeps.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type versioned struct {
	V int `json:"v"`
}

func seal(v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Internal, Msg: "it cannot be written as JSON", Err: err}
	}
	if replaced(body) {
		return nil, sandbox.Errorf(sandbox.Invalid, "", "it has text that is not UTF-8").WithHint("use UTF-8 in names, paths and labels")
	}
	return append(fmt.Appendf(nil, "%08x ", crc32.Checksum(body, castagnoli)), body...), nil
}

// replaced reports whether body has the escape that stands for what was not
// UTF-8. The character itself is not written as an escape.
func replaced(body []byte) bool {
	escape := []byte(`\ufffd`)
	for i := 0; ; {
		n := bytes.Index(body[i:], escape)
		if n < 0 {
			return false
		}
		i += n
		before := len(body[:i]) - len(bytes.TrimRight(body[:i], `\`))
		if before%2 == 0 {
			return true
		}
		i++
	}
}

// unseal returns the JSON in b, or says what is wrong with b.
func unseal(b []byte) ([]byte, error) {
	if len(b) < 9 || b[8] != ' ' {
		return nil, damage("a value is cut short")
	}
	sum, err := strconv.ParseUint(string(b[:8]), 16, 32)
	if err != nil || uint32(sum) != crc32.Checksum(b[9:], castagnoli) {
		return nil, damage("a value does not have its checksum")
	}
	return b[9:], nil
}

func decode(b []byte, into any, version *int) error {
	body, err := unseal(b)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return damage("a value cannot be read: %v", err)
	}
	if *version > Version {
		return newer(*version)
	}
	return nil
}

func checkID(id sandbox.ID) error {
	if !id.Valid() {
		return &sandbox.Error{Kind: sandbox.Internal, Field: "id", Msg: fmt.Sprintf("%.64q is not an id", string(id))}
	}
	return nil
}

type storedRecord struct {
	versioned
	Record
}

func encodeRecord(r Record) (k, v []byte, err error) {
	if err := checkID(r.ID); err != nil {
		return nil, nil, err
	}
	if len(r.Spec.Env) > 0 {
		return nil, nil, &sandbox.Error{Kind: sandbox.Internal, Field: "env", Msg: "an environment is not kept"}
	}
	r.Spec.Env = nil
	for _, t := range []*time.Time{&r.Created, &r.Used, &r.Expires, &r.Spec.Expires} {
		*t = t.UTC()
	}
	v, err = seal(storedRecord{versioned{Version}, r})
	return []byte(r.ID), v, err
}

func decodeRecord(k, v []byte) (Record, error) {
	var r storedRecord
	if err := decode(v, &r, &r.V); err != nil {
		return Record{}, err
	}
	if string(r.ID) != string(k) {
		return Record{}, damage("a record has the id of another")
	}
	return r.Record, nil
}

type storedTombstone struct {
	versioned
	Tombstone
}

func encodeTombstone(d Tombstone) (k, v []byte, err error) {
	if err := checkID(d.ID); err != nil {
		return nil, nil, err
	}
	d.At = d.At.UTC()
	v, err = seal(storedTombstone{versioned{Version}, d})
	return []byte(d.ID), v, err
}

// decodeTombstone decodes what stands in its bucket, the number before it
// included.
func decodeTombstone(k, v []byte) (Tombstone, error) {
	if len(v) < 8 {
		return Tombstone{}, damage("a tombstone has no number")
	}
	var d storedTombstone
	if err := decode(v[8:], &d, &d.V); err != nil {
		return Tombstone{}, err
	}
	if string(d.ID) != string(k) {
		return Tombstone{}, damage("a tombstone has the id of another")
	}
	return d.Tombstone, nil
}

func putMeta(t txn, m Meta) error {
	v, err := seal(m)
	if err != nil {
		return err
	}
	return t.put(about, []byte("meta"), v)
}

func getMeta(t txn) (m Meta, err error) {
	v := t.get(about, []byte("meta"))
	if v == nil {
		return m, damage("it does not say what it is")
	}
	return m, decode(v, &m, &m.Version)
}

func encodeNumber(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// encodeTime writes t as seconds since 1970 and nanoseconds, eight bytes: the
// 34 bits of the seconds reach the year 2514, and stop there.
func encodeTime(t time.Time) []byte {
	s := min(max(t.Unix(), 0), 1<<34-1)
	return encodeNumber(uint64(s)<<30 | uint64(t.Nanosecond()))
}

func decodeTime(b []byte) (time.Time, error) {
	if len(b) != 8 {
		return time.Time{}, damage("a time has %d bytes", len(b))
	}
	n := binary.BigEndian.Uint64(b)
	return time.Unix(int64(n>>30), int64(n&(1<<30-1))).UTC(), nil
}
