// Package body reads the JSON bodies of requests, and trusts them less than
// encoding/json does. A body is refused, by the name of the member at fault,
// if it is too long, not UTF-8, nested too deep, or followed by something; if
// a member is unknown, written twice, spelt in other letters (encoding/json
// takes "IMAGE" for "image", and the last of two), or of the wrong type.
package body

import (
	"bytes"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// MaxDepth is how deep objects and arrays may be nested.
const MaxDepth = 32

// Timeout is how long a body may take to arrive.
const Timeout = 30 * time.Second

// Errors of Read wrap these where a protocol may want a status of its own.
var (
	TooLarge  = errors.New("body too large")         // 413
	WrongType = errors.New("body of the wrong type") // 415
)

// Read reads the body of r, of at most max bytes of JSON, into the struct to
// which v points. Its errors are Invalid with the member's name as Field, or
// "body", or "content-type". It holds at most twice max bytes.
func Read(w http.ResponseWriter, r *http.Request, max int64, v any) error {
	if t, params, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" ||
		params["charset"] != "" && !strings.EqualFold(params["charset"], "utf-8") {
		e := sandbox.Errorf(sandbox.Invalid, "content-type", "%q is not JSON", r.Header.Get("Content-Type")).WithHint("send Content-Type: application/json")
		e.Err = WrongType
		return e
	}
	if c := r.Header.Get("Content-Encoding"); c != "" && c != "identity" {
		e := sandbox.Errorf(sandbox.Invalid, "content-encoding", "%q is not taken", c).WithHint("send the body as it is")
		e.Err = WrongType
		return e
	}
	b, err := read(w, r, max)
	if err != nil {
		return err
	}
	return Decode(b, v)
}

func read(w http.ResponseWriter, r *http.Request, max int64) ([]byte, error) {
	tooLarge := func() error {
		e := sandbox.Errorf(sandbox.Invalid, "body", "the body has more than %d bytes", max).WithHint("send less; file contents go to the files endpoint")
		e.Err = TooLarge
		return e
	}
	if r.ContentLength > max {
		w.Header().Set("Connection", "close")
		return nil, tooLarge()
	}
	rc := http.NewResponseController(w)
	rc.SetReadDeadline(time.Now().Add(Timeout))
	defer rc.SetReadDeadline(time.Time{}) // also that of the wait for the client's hanging up
	var buf bytes.Buffer
	buf.Grow(int(r.ContentLength) + bytes.MinRead) // ContentLength may be -1
	_, err := buf.ReadFrom(http.MaxBytesReader(w, r.Body, max))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge()
	case err != nil:
		return nil, &sandbox.Error{Kind: sandbox.Invalid, Field: "body", Msg: "the body did not arrive whole", Err: err}
	}
	return buf.Bytes(), nil
}

// Decode decodes b into the struct to which v points.
func Decode(b []byte, v any) error {
	if !utf8.Valid(b) {
		return sandbox.Errorf(sandbox.Invalid, "body", "the body is not UTF-8").WithHint(`write bytes as {"base64": "..."} where that is allowed`)
	}
	if err := scan(b); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	tok, err := dec.Token()
	if err == io.EOF {
		return sandbox.Errorf(sandbox.Invalid, "body", "the body is empty").WithHint("send a JSON object, such as {}")
	}
	if err == nil && tok != json.Delim('{') {
		return sandbox.Errorf(sandbox.Invalid, "body", "the body is not an object").WithHint("send a JSON object, such as {}")
	}
	if err != nil {
		return syntax("", err)
	}
	if err := object(dec, reflect.TypeOf(v).Elem(), ""); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return sandbox.Errorf(sandbox.Invalid, "body", "something follows the object").WithHint("send one JSON object and no more")
	}
	if err := json.Unmarshal(b, v); err != nil {
		return typeError(err, reflect.TypeOf(v).Elem())
	}
	return nil
}

// scan refuses, supposing that b is JSON, what is nested too deep and what
// encoding/json would take for another text than it is: an escaped half of a
// surrogate pair, which it replaces.
func scan(b []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted && c == '\\':
			i++
			if r := escaped(b[i-1:]); utf16.IsSurrogate(r) {
				i += 4
				if utf16.DecodeRune(r, escaped(b[min(i+1, len(b)):])) == utf8.RuneError {
					return sandbox.Errorf(sandbox.Invalid, "body", "the body has half a character, \\u%04x", r).WithHint("write both halves of the surrogate pair")
				}
				i += 6
			}
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return sandbox.Errorf(sandbox.Invalid, "body", "the body is nested more than %d deep", MaxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// escaped returns the number that an escape such as \u00e4 at the beginning of
// b has, or 0.
func escaped(b []byte) rune {
	if len(b) < 6 || b[0] != '\\' || b[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(b[2:6]), 16, 16)
	if err != nil {
		return 0
	}
	return rune(n)
}

// value checks the next value of dec against t, which is nil where anything
// goes. path names the value.
func value(dec *json.Decoder, t reflect.Type, path string) error {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && decodesItself(t) {
		return itself(dec, t, path)
	}
	tok, err := dec.Token()
	if err != nil {
		return syntax(path, err)
	}
	switch tok {
	case json.Delim('{'):
		return object(dec, t, path)
	case json.Delim('['):
		var elem reflect.Type
		if t != nil && t.Kind() == reflect.Slice {
			elem = t.Elem()
		}
		for dec.More() {
			if err := value(dec, elem, path); err != nil {
				return err
			}
		}
		if _, err := dec.Token(); err != nil {
			return syntax(path, err)
		}
	}
	return nil
}

// object checks the members of an object whose { was read.
func object(dec *json.Decoder, t reflect.Type, path string) error {
	var known map[string]reflect.Type
	var elem reflect.Type
	if t != nil {
		switch t.Kind() {
		case reflect.Struct:
			known = members(t)
		case reflect.Map:
			elem = t.Elem()
		}
	}
	seen := make(map[string]bool)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return syntax(path, err)
		}
		name, ok := tok.(string)
		if !ok {
			return syntax(path, fmt.Errorf("%v is no name of a member", tok))
		}
		at := name
		if path != "" {
			at = path + "." + name
		}
		if seen[name] {
			return sandbox.Errorf(sandbox.Invalid, clip(at), "it is there twice").WithHint("write it once")
		}
		seen[name] = true
		mt := elem
		if known != nil {
			if mt, ok = known[name]; !ok {
				return sandbox.Errorf(sandbox.Invalid, clip(at), "there is no such field").WithHint("known ones: %s", names(known))
			}
		} else if elem != nil {
			at = path // the keys of a map are not fields: "env", whichever variable it is
		}
		if err := value(dec, mt, at); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return syntax(path, err)
	}
	return nil
}

var bytesType = reflect.TypeFor[[]byte]()

// decodesItself reports whether t's decoding is its own affair, so that the
// errors of json.Unmarshal would not say where they are.
func decodesItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t == bytesType || p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

func itself(dec *json.Decoder, t reflect.Type, path string) error {
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		return syntax(path, err)
	}
	if string(raw) == "null" && t == bytesType {
		return nil
	}
	if len(raw) > 0 && raw[0] == '{' { // a Text, perhaps; its members are checked there but for those that are there twice
		in := json.NewDecoder(bytes.NewReader(raw))
		in.UseNumber()
		if err := value(in, nil, path); err != nil {
			return err
		}
	}
	err := json.Unmarshal(raw, reflect.New(t).Interface())
	if err == nil {
		return nil
	}
	e := sandbox.Errorf(sandbox.Invalid, clip(path), "%s", err)
	var corrupt base64.CorruptInputError
	var mistyped *json.UnmarshalTypeError
	switch {
	case t == reflect.TypeFor[time.Time]():
		e.Msg, e.Hint = "it is not a time", "write it as 2026-01-02T15:04:05Z"
	case t == bytesType && errors.As(err, &corrupt):
		e.Msg, e.Hint = "it is not base64", "use the standard alphabet, with padding"
	case errors.As(err, &mistyped):
		e.Msg = "must not be a " + mistyped.Value
	}
	return e
}

// typeError names the member of a t that json.Unmarshal stumbled on.
func typeError(err error, t reflect.Type) error {
	var e *json.UnmarshalTypeError
	if !errors.As(err, &e) {
		return syntax("", err)
	}
	field := member(t, e.Field)
	if field == "" {
		field = "body"
	}
	what := "an object"
	switch k := e.Type.Kind(); k {
	case reflect.Int, reflect.Int64:
		what = "a whole number from -9223372036854775808 to 9223372036854775807"
	case reflect.Uint16:
		what = "a whole number from 0 to 65535"
	case reflect.Float64:
		what = "a number"
	case reflect.String:
		what = "a string"
	case reflect.Bool:
		what = "true or false"
	case reflect.Slice:
		what = "an array"
	}
	return sandbox.Errorf(sandbox.Invalid, clip(field), "must be %s, not %s", what, clip(e.Value))
}

// member returns path, which leads from t to what encoding/json stumbled on,
// without the names of embedded structs, which JSON does not know.
func member(t reflect.Type, path string) string {
	var known []string
	for name := range strings.SplitSeq(path, ".") {
		for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
			t = t.Elem()
		}
		if t == nil || t.Kind() != reflect.Struct {
			break // the keys of a map are not fields
		}
		if mt, ok := members(t)[name]; ok {
			known, t = append(known, name), mt
		}
	}
	return strings.Join(known, ".")
}

// syntax says where b is not JSON.
func syntax(path string, err error) error {
	field := "body"
	if path != "" {
		field = clip(path)
	}
	msg := "this is not JSON"
	var s *json.SyntaxError
	if errors.As(err, &s) {
		msg = fmt.Sprintf("this is not JSON: %s", s)
	} else if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		msg = "this is not JSON: it ends too early"
	}
	return &sandbox.Error{Kind: sandbox.Invalid, Field: field, Msg: msg, Err: err}
}

var cache sync.Map // of reflect.Type to map[string]reflect.Type

// members returns the members that t has in JSON, and their types.
func members(t reflect.Type) map[string]reflect.Type {
	if m, ok := cache.Load(t); ok {
		return m.(map[string]reflect.Type)
	}
	m := make(map[string]reflect.Type)
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			for n, ft := range members(f.Type) {
				m[n] = ft
			}
		case name != "" && name != "-":
			m[name] = f.Type
		}
	}
	cache.Store(t, m)
	return m
}

func names(m map[string]reflect.Type) string {
	var s []string
	for n := range m {
		s = append(s, n)
	}
	slices.Sort(s)
	return strings.Join(s, ", ")
}

// clip keeps what a caller wrote from making answers long.
func clip(s string) string {
	if len(s) <= 128 {
		return s
	}
	return strings.ToValidUTF8(s[:125], "") + "..."
}
