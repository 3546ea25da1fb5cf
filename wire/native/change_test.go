package native_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	wire "github.com/atoll-run/atoll/wire/native"
)

// What a Change leaves alone is absent, and what it takes away is there.
func TestChange(t *testing.T) {
	at := time.Unix(1, 2).UTC()
	whole := sandbox.Change{Expires: &at, Labels: map[string]string{"a": "b"}, Env: map[string]string{"A": "\xff"}, Idle: new(-time.Second), Name: new("n")}
	set(t, "Change", whole)
	for want, c := range map[string]sandbox.Change{
		`{}`:               {},
		`{"expires":null}`: {Expires: new(time.Time)},
		`{"expires":"1970-01-01T00:00:01.000000002Z"}`: {Expires: &at},
		`{"labels":{}}`: {Labels: map[string]string{}},
		`{"expires":"1970-01-01T00:00:01.000000002Z","labels":{"a":"b"},"env":{"A":{"base64":"/w=="}},"idle":-1,"name":"n"}`: whole,
		`{"idle":0.5}`: {Idle: new(500 * time.Millisecond)},
	} {
		w, err := wire.ChangeOf(c)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(w)
		if err != nil || string(b) != want {
			t.Errorf("%+v is %s, %v; want %s", c, b, err, want)
		}
		if got := again(t, w).Change(); !reflect.DeepEqual(got, c) {
			t.Errorf("%s came back as %+v, want %+v", b, got, c)
		}
	}
	for field, c := range map[string]sandbox.Change{
		"labels":  {Labels: map[string]string{"a": "\xff"}},
		"name":    {Name: new("\xff")},
		"env":     {Env: map[string]string{"\xff": ""}},
		"expires": {Expires: new(time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))},
	} {
		_, err := wire.ChangeOf(c)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Kind != sandbox.Invalid || e.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	for _, bad := range []string{`{"expires":7}`, `{"expires":"soon"}`, `{"expires":{}}`} {
		var w wire.Change
		if err := json.Unmarshal([]byte(bad), &w); err == nil {
			t.Errorf("%s is taken for %+v", bad, w)
		}
	}
}
