package store

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// A value is eight hexadecimal digits, the CRC-32C of its key and of what
// follows, a space, and a JSON object whose "v" is the version that wrote it.
// bbolt itself has no checksums of what it keeps.

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

type versioned struct {
	V int `json:"v"`
}

func sum(key, body []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, body)
}

func seal(key []byte, v any) ([]byte, error) {
	body, err := json.Marshal(v)
	if err != nil {
		return nil, &sandbox.Error{Kind: sandbox.Internal, Msg: "it cannot be written as JSON", Err: err}
	}
	if replaced(body) {
		return nil, sandbox.Errorf(sandbox.Invalid, "", "it has text that is not UTF-8").WithHint("use UTF-8 in names, paths and labels")
	}
	return append(fmt.Appendf(nil, "%08x ", sum(key, body)), body...), nil
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
func unseal(key, b []byte) ([]byte, error) {
	if len(b) < 9 || b[8] != ' ' {
		return nil, damage("a value is cut short")
	}
	want, err := strconv.ParseUint(string(b[:8]), 16, 32)
	if err != nil || uint32(want) != sum(key, b[9:]) {
		return nil, damage("a value does not have its checksum")
	}
	return b[9:], nil
}

func decode(key, b []byte, into any, version *int) error {
	body, err := unseal(key, b)
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

	// Within is that of each mount, if any has one: JSON on the wire leaves it
	// out.
	Within []string `json:"within,omitempty"`
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
	k = []byte(r.ID)
	stored := storedRecord{versioned: versioned{Version}, Record: r}
	if slices.ContainsFunc(r.Spec.Mounts, func(m sandbox.Mount) bool { return m.Within != "" }) {
		for _, m := range r.Spec.Mounts {
			stored.Within = append(stored.Within, m.Within)
		}
	}
	v, err = seal(k, stored)
	return k, v, err
}

func decodeRecord(k, v []byte) (Record, error) {
	var r storedRecord
	if err := decode(k, v, &r, &r.V); err != nil {
		return Record{}, err
	}
	if string(r.ID) != string(k) {
		return Record{}, damage("a record has the id of another")
	}
	if n := len(r.Within); n > 0 && n != len(r.Spec.Mounts) {
		return Record{}, damage("a record has %d mounts in %d folders", len(r.Spec.Mounts), n)
	}
	for i, w := range r.Within {
		r.Spec.Mounts[i].Within = w
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
	k = []byte(d.ID)
	v, err = seal(k, storedTombstone{versioned{Version}, d})
	return k, v, err
}

// decodeTombstone decodes what stands in its bucket, the number before it
// included.
func decodeTombstone(k, v []byte) (Tombstone, error) {
	_, body, err := splitTombstone(v)
	if err != nil {
		return Tombstone{}, err
	}
	var d storedTombstone
	if err := decode(k, body, &d, &d.V); err != nil {
		return Tombstone{}, err
	}
	if string(d.ID) != string(k) {
		return Tombstone{}, damage("a tombstone has the id of another")
	}
	return d.Tombstone, nil
}

// splitTombstone splits what stands in the bucket of tombstones.
func splitTombstone(v []byte) (number, body []byte, err error) {
	if len(v) < 8 {
		return nil, nil, damage("a tombstone has no number")
	}
	return v[:8], v[8:], nil
}

var metaKey = []byte("meta")

func putMeta(t txn, m Meta) error {
	v, err := seal(metaKey, m)
	if err != nil {
		return err
	}
	return t.put(about, metaKey, v)
}

func getMeta(t txn) (m Meta, err error) {
	v := t.get(about, metaKey)
	if v == nil {
		return m, damage("it does not say what it is")
	}
	err = decode(metaKey, v, &m, &m.Version)
	return m, err
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

// sealTime writes t with a checksum.
func sealTime(key []byte, t time.Time) []byte {
	b := encodeTime(t)
	return binary.BigEndian.AppendUint32(b, sum(key, b))
}

func unsealTime(key, b []byte) (time.Time, error) {
	if len(b) != 12 || binary.BigEndian.Uint32(b[8:]) != sum(key, b[:8]) {
		return time.Time{}, damage("a time does not have its checksum")
	}
	return decodeTime(b[:8])
}
