package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/board"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/mig"
)

// question is a request for a plan from one layout to another on a board, without a GPU.
type question struct {
	Model string    `json:"model"`
	Have  instances `json:"have"`
	Want  instances `json:"want"`
	Force bool      `json:"force,omitempty"`
}

// instances are written as "3g.20gb@4!,1g.5gb@0", or as a JSON list of such words and of objects.
type instances []json.RawMessage

// UnmarshalJSON takes a string or a list.
func (l *instances) UnmarshalJSON(raw []byte) error {
	var text string
	if json.Unmarshal(raw, &text) == nil {
		var err error
		*l, err = readInstances(text)
		return err
	}
	var list []json.RawMessage
	if err := json.Unmarshal(raw, &list); err != nil {
		return errors.New(`instances are a string such as "3g.20gb@4,1g.5gb@0", or a list of them`)
	}
	if len(list) > maxDesired {
		return tooMany(len(list))
	}
	*l = list
	return nil
}

// readInstances reads them from the command line, where a list may be JSON too.
func readInstances(text string) (instances, error) {
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(text, "["):
		var l instances
		err := json.Unmarshal([]byte(text), &l)
		return l, err
	case strings.HasPrefix(text, "{"):
		return instances{json.RawMessage(text)}, nil
	case text == "":
		return instances{}, nil
	}
	if n := strings.Count(text, ",") + 1; n > maxDesired {
		return nil, tooMany(n)
	}
	var out instances
	for _, word := range strings.Split(text, ",") {
		item := strings.TrimSpace(word)
		if item == "" {
			return nil, fmt.Errorf("cannot read item %d of the list: it is empty; remove a comma", len(out)+1)
		}
		raw, err := json.Marshal(item)
		if err != nil {
			return nil, fmt.Errorf("cannot read %q: %w", text, err)
		}
		out = append(out, raw)
	}
	return out, nil
}

// tooMany is the error for a list of more instances than a GPU could have.
func tooMany(n int) error {
	return fmt.Errorf("cannot plan %d instances: a list has at most %d, and a GPU far fewer; shorten the list", n, maxDesired)
}

// haveObject is an existing instance, written as an object.
type haveObject struct {
	Profile string `json:"profile"`
	Start   uint32 `json:"start"`
	InUse   bool   `json:"in_use"`
	Pinned  bool   `json:"pinned"`
	Foreign bool   `json:"foreign"`
}

func (l instances) have(p gpu.Profiles) ([]mig.Present, error) {
	var out []mig.Present
	for _, raw := range l {
		var word string
		if json.Unmarshal(raw, &word) == nil {
			more, err := mig.ParsePresent(p, out, word)
			if err != nil {
				return nil, err
			}
			out = more
			continue
		}
		var o haveObject
		if err := strict(raw, &o, haveKeys); err != nil {
			return nil, err
		}
		more, err := mig.AddPresent(p, out, o.Profile, o.Start, o.InUse)
		if err != nil {
			return nil, err
		}
		out = more
		b := &out[slices.IndexFunc(out, func(b mig.Present) bool { return b.Placement.Start == o.Start })]
		b.Pinned, b.Foreign = b.Pinned || o.Pinned, b.Foreign || o.Foreign
	}
	return out, nil
}

// wantObject is a desired instance, written as an object: by name, or by properties as in a grant.
type wantObject struct {
	Profile    string   `json:"profile"`
	Start      *uint32  `json:"start"`
	Slices     uint32   `json:"slices"`
	Memory     string   `json:"gpu_memory"`
	Attributes []string `json:"attributes"`
}

func (l instances) want() ([]mig.Request, error) {
	var out []mig.Request
	for _, raw := range l {
		var word string
		if json.Unmarshal(raw, &word) == nil {
			more, err := mig.ParseRequest(word)
			if err != nil {
				return nil, err
			}
			if out = append(out, more...); len(out) > maxDesired {
				return nil, tooMany(len(out))
			}
			continue
		}
		var o wantObject
		if err := strict(raw, &o, wantKeys); err != nil {
			return nil, err
		}
		w, err := o.want()
		if err != nil {
			return nil, fmt.Errorf("cannot read %s: %w", text.Short(string(raw), maxShown), err)
		}
		out = append(out, w)
	}
	return out, nil
}

func (o *wantObject) want() (mig.Request, error) {
	w := mig.Request{Name: o.Profile, Slices: o.Slices, Attributes: o.Attributes}
	switch named := o.Profile != ""; {
	case named && (o.Slices != 0 || o.Memory != "" || len(o.Attributes) != 0):
		return w, errors.New("it has a profile: remove slices, gpu_memory and attributes")
	case !named && o.Slices == 0:
		return w, errors.New("it has neither a profile nor slices")
	}
	if o.Memory != "" {
		least, err := api.ParseBytes(strings.TrimSpace(strings.TrimPrefix(o.Memory, ">=")))
		if err != nil {
			return w, fmt.Errorf("gpu_memory is written like \">=38GiB\": %w", err)
		}
		w.Memory = uint64(least)
	}
	if o.Start != nil {
		w.At = &gpu.Placement{Start: *o.Start}
	}
	return w, nil
}

const (
	haveKeys     = "profile, start, in_use, pinned and foreign"
	wantKeys     = "profile, start, slices, gpu_memory and attributes"
	questionKeys = "model, have and want"
)

// strict reads one object. It refuses unknown keys, and anything that follows the object.
func strict(raw []byte, into any, keys string) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		if key, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok { // No type of error has it.
			return fmt.Errorf("cannot read %s: %s is not one of its keys, which are %s", text.Short(string(raw), maxShown), key, keys)
		}
		return fmt.Errorf("cannot read %s: %w", text.Short(string(raw), maxShown), err)
	}
	end := int(d.InputOffset())
	if rest := bytes.TrimSpace(raw[end:]); len(rest) > 0 {
		return fmt.Errorf(
			"cannot read %s: %q follows the object, at byte %d; a list is written in brackets, as in [{\"slices\": 1}, \"1g.5gb*3\"]",
			text.Short(string(raw[:end]), maxShown), text.Short(string(rest), maxShown), end+1,
		)
	}
	return nil
}

const (
	// maxDesired is the most instances of one question. A GPU has a few dozen, and the answer is to come within a second.
	maxDesired = 4096
	// maxShown is how much of a wrong text an error shows, in bytes.
	maxShown = 120
)

// trial is a valid question with the answer of the planner.
type trial struct {
	*migDevice
	plan    mig.Result
	refused *refusedPlan // nil: it is feasible
}

// refusedPlan is the reason why a layout is infeasible, and the nearest feasible one.
type refusedPlan struct {
	message string // a whole sentence
	reason  string
	force   bool          // --force would make it feasible
	blocked []mig.Present // the instances in the way that it would destroy
	nearest *mig.Result   // nil: no layout is feasible, or it is not known
	stopped int           // steps after which the search for the nearest layout was stopped; 0: it was not
}

// try answers a question. An error is about the question itself: an unknown board, impossible instances, an unknown
// profile.
func (q *question) try(ctx context.Context) (*trial, error) {
	d, err := boardDevice(q.Model, q.Have)
	if err != nil {
		return nil, err
	}
	return d.try(ctx, q.Want, q.Force)
}

// try plans the desired layout.
func (d *migDevice) try(ctx context.Context, desired instances, force bool) (*trial, error) {
	want, err := desired.want()
	if err != nil {
		return nil, d.misread(err)
	}
	t := &trial{migDevice: d}
	t.plan, t.refused, err = tryPlan(d.grid, d.present, want, mig.Options{Force: force, Done: ctx.Done()})
	if err == nil && t.refused == nil && !force {
		t.refuseOneWay()
	}
	return t, err
}

// tryPlan plans a layout, or the nearest one if this is infeasible.
func tryPlan(p gpu.Profiles, present []mig.Present, want []mig.Request, o mig.Options) (mig.Result, *refusedPlan, error) {
	plan, err := mig.Plan(p, present, want, o)
	var none *mig.NoProfile
	var not *mig.Infeasible
	switch {
	case err == nil:
		return plan, nil, nil
	case errors.As(err, &none):
		r := &refusedPlan{message: err.Error(), reason: err.Error()}
		// Profiles that the board lacks are replaced by similar ones, and the result may have a nearest layout of its own.
		var rest []mig.Request
		likes := map[string]*mig.Request{} // A question may have many thousands of requests, most of them equal.
		for _, w := range want {
			name := w.String()
			like, known := likes[name]
			if !known {
				if _, err := mig.Match(p, w); err == nil {
					like = &w
				} else if other, ok := mig.Similar(p, w); ok {
					like = &other
				}
				likes[name] = like
			}
			if like != nil {
				rest = append(rest, *like)
			}
		}
		if near, inner, err := tryPlan(p, present, rest, o); err == nil && inner == nil {
			r.nearest = &near
		} else if err == nil {
			r.nearest, r.stopped = inner.nearest, inner.stopped
		} else if errors.Is(err, context.Canceled) {
			return plan, nil, err
		}
		return plan, r, nil
	case !errors.As(err, &not):
		return plan, nil, err
	}
	alone := mig.Infeasible{Requested: not.Requested, Reason: not.Reason}
	r := &refusedPlan{
		message: alone.Error(),
		reason:  not.Reason,
		force:   len(not.Blocked) != 0,
		blocked: not.Blocked,
		stopped: not.StoppedAfter,
	}
	near, err := mig.Plan(p, present, not.Nearest, o)
	switch {
	case errors.Is(err, context.Canceled):
		return plan, nil, err
	case err == nil && r.stopped == 0:
		r.nearest = &near
	}
	return plan, r, nil
}

// findBoard finds a board by name. Its error suggests the most similar name.
func findBoard(name string) (*board.Board, error) {
	if name == "" {
		return nil, usageError{
			err:  errors.New("no board is named"),
			hint: "write --model a100-40; 'gpushare mig profiles --offline' lists the known ones",
		}
	}
	if strings.Contains(name, "/") { // No name of a board has one.
		b, err := board.ReadFile(name)
		if err != nil {
			return nil, usageError{err: err, hint: "'gpushare mig profiles --from' writes such a file"}
		}
		return b, nil
	}
	b, err := board.Find(name)
	var unknown *board.Unknown
	if errors.As(err, &unknown) {
		e := usageError{err: err, hint: "'gpushare mig profiles --offline' describes each"}
		if near, ok := api.Nearest(strings.ToLower(name), unknown.Known); ok {
			e.hint = fmt.Sprintf("did you mean --model %s?", near)
		}
		return nil, e
	}
	return b, err
}
