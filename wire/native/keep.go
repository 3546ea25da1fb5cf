package native

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Beat is how long at most a stream of [News] is silent: then there is a line
// that says nothing else. Who hears nothing for several times as long may take
// the other side for dead.
const Beat = 15 * time.Second

// Acquired is the answer to an acquire request.
type Acquired struct {
	Made    bool         `json:"made"` // it was not there before
	Sandbox sandbox.Info `json:"sandbox"`
}

// Prune is the body of a prune request, a [sandbox.Prune]. [Sandboxes] is the
// answer.
type Prune struct {
	Unused   Seconds           `json:"unused,omitempty"`
	Released bool              `json:"released,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	DryRun   bool              `json:"dry_run,omitempty"`
}

// News is one line of the stream of events. One member is set.
type News struct {
	Event *sandbox.Event `json:"event,omitempty"`
	Beat  bool           `json:"beat,omitempty"`  // nothing happened for a while
	Error *Error         `json:"error,omitempty"` // the last line
}

// PruneOf returns p as it goes over the wire, or an Invalid error if something
// in it that must be text is not UTF-8.
func PruneOf(p sandbox.Prune) (Prune, error) {
	for k, v := range p.Labels {
		for _, s := range []string{k, v} {
			if err := checkUTF8("labels", s); err != nil {
				return Prune{}, err
			}
		}
	}
	return Prune{Seconds(p.Unused), p.Released, p.Labels, p.DryRun}, nil
}

// Prune returns what w says.
func (w Prune) Prune() sandbox.Prune {
	return sandbox.Prune{Unused: time.Duration(w.Unused), Released: w.Released, Labels: w.Labels, DryRun: w.DryRun}
}
