package body_test

import (
	"errors"
	"io"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/api/internal/body"
	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

type shape struct {
	Text    string            `json:"text"`
	Bytes   wire.Text         `json:"bytes"`
	Raw     []byte            `json:"raw"`
	Number  int64             `json:"number"`
	Small   uint16            `json:"small"`
	Float   float64           `json:"float"`
	Flag    bool              `json:"flag"`
	Seconds wire.Seconds      `json:"seconds"`
	Mode    wire.Mode         `json:"mode"`
	Time    time.Time         `json:"time"`
	Map     map[string]string `json:"map"`
	Inner   struct {
		Number int `json:"number"`
	} `json:"inner"`
	List []struct {
		Text string `json:"text"`
	} `json:"list"`
	Pointer *struct {
		Small uint16 `json:"small"`
	} `json:"pointer"`
}

func TestRefusesByName(t *testing.T) {
	for _, c := range []struct{ name, in, field, says string }{
		{"empty", "", "body", "empty"},
		{"blank", " \n", "body", "empty"},
		{"null", "null", "body", "not an object"},
		{"array", "[]", "body", "not an object"},
		{"string", `"x"`, "body", "not an object"},
		{"garbage", "hello", "body", "not JSON"},
		{"cut off", `{"text":"x"`, "body", "not JSON"},
		{"cut off in a string", `{"text":"x`, "text", "not JSON"},
		{"cut off in a name", `{"te`, "body", "not JSON"},
		{"trailing brace", `{}}`, "body", "follows"},
		{"trailing object", `{}{}`, "body", "follows"},
		{"trailing garbage", `{} x`, "body", "follows"},
		{"trailing comma", `{"text":"x",}`, "body", "not JSON"},
		{"comment", `{/*x*/}`, "body", "not JSON"},
		{"single quotes", `{'text':1}`, "body", "not JSON"},
		{"unknown", `{"nonsense":1}`, "nonsense", "no such field"},
		{"unknown inside", `{"inner":{"nonsense":1}}`, "inner.nonsense", "no such field"},
		{"unknown in a list", `{"list":[{"text":"x"},{"nonsense":1}]}`, "list.nonsense", "no such field"},
		{"unknown behind a pointer", `{"pointer":{"nonsense":1}}`, "pointer.nonsense", "no such field"},
		{"other letters", `{"TEXT":"x"}`, "TEXT", "no such field"},
		{"other letters inside", `{"inner":{"Number":1}}`, "inner.Number", "no such field"},
		{"empty name", `{"":1}`, "", "no such field"},
		{"twice", `{"text":"a","text":"b"}`, "text", "twice"},
		{"twice, escaped", `{"text":"a","te\u0078t":"b"}`, "text", "twice"},
		{"twice inside", `{"inner":{"number":1,"number":2}}`, "inner.number", "twice"},
		{"twice in a map", `{"map":{"a":"1","a":"2"}}`, "map.a", "twice"},
		{"twice in bytes", `{"bytes":{"base64":"","base64":"eA=="}}`, "bytes.base64", "twice"},
		{"NaN", `{"float":NaN}`, "float", "not JSON"},
		{"infinity", `{"float":Infinity}`, "float", "not JSON"},
		{"overflow of a float", `{"float":1e999}`, "float", "must be a number"},
		{"overflow", `{"number":9223372036854775808}`, "number", "whole number"},
		{"overflow inside", `{"inner":{"number":1e99}}`, "inner.number", "whole number"},
		{"fraction", `{"number":1.5}`, "number", "whole number"},
		{"exponent", `{"number":1e2}`, "number", "whole number"},
		{"small overflow", `{"small":65536}`, "small", "65535"},
		{"small negative", `{"pointer":{"small":-1}}`, "pointer.small", "65535"},
		{"hexadecimal", `{"number":0x10}`, "body", "not JSON"},
		{"leading zero", `{"number":010}`, "body", "not JSON"},
		{"string for a number", `{"number":"1"}`, "number", "whole number"},
		{"number for a string", `{"text":1}`, "text", "a string"},
		{"object for a string", `{"text":{}}`, "text", "a string"},
		{"string for a boolean", `{"flag":"true"}`, "flag", "true or false"},
		{"list for an object", `{"inner":[]}`, "inner", "an object"},
		{"object for a list", `{"list":{}}`, "list", "an array"},
		{"number in a map", `{"map":{"a":1}}`, "map", "a string"},
		{"number for bytes", `{"bytes":1}`, "bytes", "must be a string"},
		{"null for bytes", `{"bytes":null}`, "bytes", "must be a string"},
		{"other object for bytes", `{"bytes":{"base65":"eA=="}}`, "bytes", "must be a string"},
		{"bad base64 for bytes", `{"bytes":{"base64":"*"}}`, "bytes", "must be a string"},
		{"bad base64", `{"raw":"*"}`, "raw", "not base64"},
		{"number for base64", `{"raw":1}`, "raw", "must not be a number"},
		{"string for seconds", `{"seconds":"30s"}`, "seconds", "number of seconds"},
		{"too many seconds", `{"seconds":1e10}`, "seconds", "below 9223372036"},
		{"number for a mode", `{"mode":644}`, "mode", "must not be a number"},
		{"decimal mode", `{"mode":"0888"}`, "mode", "octal"},
		{"large mode", `{"mode":"10000"}`, "mode", "octal"},
		{"bad time", `{"time":"tomorrow"}`, "time", "not a time"},
		{"number for a time", `{"time":1}`, "time", "not a time"},
		{"not UTF-8", "{\"text\":\"\xff\"}", "body", "not UTF-8"},
		{"half a character", `{"text":"\ud800"}`, "body", "half a character"},
		{"half a character and another", `{"text":"\ud800\u0041"}`, "body", "half a character"},
		{"the other half", `{"text":"\uDC00"}`, "body", "half a character"},
		{"half a character at the end", `{"text":"\ud800`, "body", "half a character"},
		{"too deep", `{"map":` + strings.Repeat(`[`, 33) + strings.Repeat(`]`, 33) + `}`, "body", "deep"},
		{"much too deep", strings.Repeat(`{"inner":`, 10000), "body", "deep"},
		{"deep and closed", strings.Repeat(`[`, 10000) + strings.Repeat(`]`, 10000), "body", "deep"},
		{"long name", `{"` + strings.Repeat("x", 100000) + `":1}`, strings.Repeat("x", 125) + "...", "no such field"},
	} {
		var v shape
		err := body.Decode([]byte(c.in), &v)
		var e *sandbox.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: got %v", c.name, err)
			continue
		}
		if e.Kind != sandbox.Invalid || e.Field != c.field || !strings.Contains(e.Msg, c.says) {
			t.Errorf("%s: got %s, field %q, %q; want field %q, %q", c.name, e.Kind, e.Field, e.Msg, c.field, c.says)
		}
		if len(e.Public()) > 1000 {
			t.Errorf("%s: the answer has %d bytes", c.name, len(e.Public()))
		}
	}
}

func TestTakesWhatIsRight(t *testing.T) {
	var v shape
	err := body.Decode([]byte(` {"text":"\u00e4\"{[\ud83d\ude00\\ud800","bytes":{"base64":"/w=="},"raw":"eA==","number":-9223372036854775808,"small":65535,
		"float":1e3,"flag":true,"seconds":0.5,"mode":"4755","time":"2026-01-02T03:04:05.000000006Z",
		"map":{"a":"1","A":"2"},"inner":{"number":1},"list":[{"text":"x"},{}],"pointer":{"small":0}} `+"\n"), &v)
	if err != nil {
		t.Fatal(err)
	}
	if v.Text != `ä"{[😀\ud800` || v.Bytes != "\xff" || string(v.Raw) != "x" || v.Number != -1<<63 || v.Small != 65535 || v.Float != 1000 || !v.Flag ||
		time.Duration(v.Seconds) != 500*time.Millisecond || v.Mode.String() != "4755" || v.Time.Nanosecond() != 6 ||
		len(v.Map) != 2 || v.Inner.Number != 1 || len(v.List) != 2 || v.Pointer == nil {
		t.Errorf("got %+v", v)
	}
	if err := body.Decode([]byte(`{"inner":null,"list":null,"pointer":null,"map":null,"raw":null}`), &v); err != nil {
		t.Errorf("null: %v", err)
	}
}

// endless is a body of which n bytes were read.
type endless struct{ n int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	e.n += int64(len(p))
	return len(p), nil
}

func TestBoundsTheBody(t *testing.T) {
	for _, length := range []int64{100 << 20, -1} {
		src := &endless{}
		r := httptest.NewRequest("POST", "/", src)
		r.ContentLength = length
		r.Header.Set("Content-Type", "application/json")
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := body.Read(httptest.NewRecorder(), r, 1<<20, &shape{})
		runtime.ReadMemStats(&after)
		if !errors.Is(err, body.TooLarge) || !errors.Is(err, sandbox.Invalid) {
			t.Errorf("length %d: got %v", length, err)
		}
		if src.n > 4<<20 {
			t.Errorf("length %d: it read %d bytes", length, src.n)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 16<<20 {
			t.Errorf("length %d: it took %d bytes of memory", length, n)
		}
	}
}

func TestWantsJSON(t *testing.T) {
	for contentType, ok := range map[string]bool{
		"":                                  false,
		"text/plain":                        false,
		"application/x-www-form-urlencoded": false,
		"multipart/form-data; boundary=x":   false,
		"application/jsonp":                 false,
		"application/json; charset=latin1":  false,
		"application/json":                  true,
		"Application/JSON; charset=UTF-8":   true,
	} {
		r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
		r.Header.Set("Content-Type", contentType)
		err := body.Read(httptest.NewRecorder(), r, 1<<20, &shape{})
		if (err == nil) != ok || err != nil && !errors.Is(err, body.WrongType) {
			t.Errorf("%q: got %v", contentType, err)
		}
	}
	r := httptest.NewRequest("POST", "/", strings.NewReader("{}"))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Content-Encoding", "gzip")
	if err := body.Read(httptest.NewRecorder(), r, 1<<20, &shape{}); !errors.Is(err, body.WrongType) {
		t.Errorf("gzip: got %v", err)
	}
}

type cutOff struct{ io.Reader }

func (c cutOff) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestNoticesABodyThatIsCutOff(t *testing.T) {
	r := httptest.NewRequest("POST", "/", cutOff{strings.NewReader("{}")})
	r.Header.Set("Content-Type", "application/json")
	if err := body.Read(httptest.NewRecorder(), r, 1<<20, &shape{}); !errors.Is(err, sandbox.Invalid) {
		t.Errorf("got %v", err)
	}
}

// What Decode takes, it takes for the same thing as a decoder that was told
// everything twice: no panic, no error that is not typed.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"args":["sh","-c","echo"],"env":{"A":"b"},"timeout":1.5,"terminal":{"rows":1,"cols":2},"stdin":"eA=="}`))
	f.Add([]byte(`{"args":[{"base64":"/w=="}],"dir":{"base64":"/w==","base64":""}}`))
	f.Add([]byte(`{"args":["\ud800"],"Args":[]}`))
	f.Add([]byte(`{"limits":{"cpu":1e999}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, v := range []any{&wire.Exec{}, &wire.Spec{}, &wire.Mkdir{}, &sandbox.Size{}} {
			err := body.Decode(b, v)
			var e *sandbox.Error
			if err != nil && (!errors.As(err, &e) || e.Kind != sandbox.Invalid || len(e.Public()) > 4096) {
				t.Fatalf("%q: %v", b, err)
			}
		}
	})
}
