package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/gpushare/gpushare/gpu"
)

// protocol is the version of the messages. Daemon and worker are from the same package, so another version is refused.
const protocol = 1

// hello is the worker's first message.
type hello struct {
	Protocol int    `json:"protocol"`
	Token    string `json:"token"`
}

// request is one operation.
type request struct {
	ID      uint64          `json:"id"`
	Op      Op              `json:"op"`
	GPU     gpu.UUID        `json:"gpu,omitempty"`
	Timeout time.Duration   `json:"timeout,omitempty"` // remaining ns; 0 for no limit
	Args    json.RawMessage `json:"args,omitempty"`
}

// reply answers one request. Replies come in any order. With Event or Progress set, more replies to the request follow.
type reply struct {
	ID       uint64          `json:"id"`
	Duration time.Duration   `json:"took,omitempty"` // ns inside the driver
	Result   json.RawMessage `json:"result,omitempty"`
	Error    *wireError      `json:"error,omitempty"`
	Event    *gpu.Event      `json:"event,omitempty"`
	// Progress is the GPU that an operation on the node accesses next, which may hang.
	Progress gpu.UUID `json:"touching,omitempty"`
}

type (
	utilizationArgs struct {
		Since uint64 `json:"since"`
	}
	utilizationResult struct {
		Samples []gpu.UtilSample `json:"samples"`
		Newest  uint64           `json:"newest"`
	}
	memoryLimitArgs struct {
		Cgroup string  `json:"cgroup"`
		Hard   *uint64 `json:"hard,omitempty"`
	}
	powerLimitArgs struct {
		Milliwatts uint64 `json:"milliwatts"`
	}
	migModeArgs struct {
		On bool `json:"on"`
	}
	instanceArgs struct {
		GI      uint32           `json:"gi"`
		Compute []gpu.NewCompute `json:"compute,omitempty"`
	}
	instanceProcessesArgs struct {
		GI uint32 `json:"gi"`
	}
	instanceUseArgs struct {
		Instances []uint32 `json:"instances"`
	}
	computeModeArgs struct {
		Mode gpu.ComputeMode `json:"mode"`
	}
	// modeChange adds the field that gpu.ModeChange omits from JSON.
	modeChange struct {
		gpu.ModeChange
		Activation *wireError `json:"activation,omitempty"`
	}
)

// wireError is a driver error with the name of its sentinel.
type wireError struct {
	Kind string   `json:"kind"`
	Op   string   `json:"op,omitempty"`
	GPU  gpu.UUID `json:"gpu,omitempty"`
	Code int      `json:"code,omitempty"`
	Text string   `json:"text,omitempty"` // the error text, if it differs from that of the sentinel
}

// sentinel is a sentinel error with its name on the wire.
type sentinel struct {
	kind string
	err  error
}

// sentinels is the table of the driver's errors. ErrUnknown is last: it is used for all other errors.
func sentinels() []sentinel {
	return []sentinel{
		{"not-loaded", gpu.ErrNotLoaded},
		{"no-library", gpu.ErrNoLibrary},
		{"version-mismatch", gpu.ErrVersionMismatch},
		{"invalid", gpu.ErrInvalid},
		{"not-supported", gpu.ErrNotSupported},
		{"denied", gpu.ErrDenied},
		{"not-found", gpu.ErrNotFound},
		{"missing", gpu.ErrMissing},
		{"lost", gpu.ErrLost},
		{"reset-required", gpu.ErrResetRequired},
		{"in-use", gpu.ErrInUse},
		{"insufficient-resources", gpu.ErrInsufficientResources},
		{"timeout", gpu.ErrTimeout},
		{"stuck", gpu.ErrStuck},
		{"unknown", gpu.ErrUnknown},
	}
}

// encodeError converts err for the wire; nil stays nil. Of several sentinels in one error, the outermost is sent.
func encodeError(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Kind: "unknown"}
	inner, base := err, gpu.ErrUnknown
	if s, ok := firstSentinel(err); ok {
		w.Kind, base = s.kind, s.err
	}
	var e *gpu.Error
	if errors.As(err, &e) {
		w.Op, w.GPU, w.Code = e.Op, e.GPU, e.Code
		inner = e.Err
	}
	if inner != base { //nolint:errorlint // identity is meant: a wrapped sentinel has text of its own
		w.Text = inner.Error()
	}
	return w
}

// firstSentinel unwraps err as errors.Is does and returns the first sentinel.
func firstSentinel(err error) (sentinel, bool) {
	for _, s := range sentinels() {
		if err == s.err { //nolint:errorlint // this function unwraps
			return s, true
		}
	}
	switch u := err.(type) { //nolint:errorlint // this function unwraps
	case interface{ Unwrap() error }:
		if inner := u.Unwrap(); inner != nil {
			return firstSentinel(inner)
		}
	case interface{ Unwrap() []error }:
		for _, inner := range u.Unwrap() {
			if s, ok := firstSentinel(inner); ok {
				return s, true
			}
		}
	}
	return sentinel{}, false
}

// sentinel returns the sentinel of w, wrapped with w's text.
func (w *wireError) sentinel() error {
	base := gpu.ErrUnknown
	for _, s := range sentinels() {
		if s.kind == w.Kind {
			base = s.err
			break
		}
	}
	if w.Text == "" {
		return base
	}
	return &textError{text: w.Text, err: base}
}

// decode returns the error as the driver returned it.
func (w *wireError) decode() error {
	return &gpu.Error{Op: w.Op, GPU: w.GPU, Code: w.Code, Err: w.sentinel()}
}

// textError is a sentinel whose text came over the wire.
type textError struct {
	text string
	err  error
}

func (e *textError) Error() string { return e.text }
func (e *textError) Unwrap() error { return e.err }

// encodeModeChange converts m for the wire.
func encodeModeChange(m gpu.ModeChange) modeChange {
	return modeChange{ModeChange: m, Activation: encodeError(m.Activation)}
}

// decode returns the result as the driver returned it.
func (m modeChange) decode() gpu.ModeChange {
	out := m.ModeChange
	if m.Activation != nil {
		out.Activation = m.Activation.sentinel()
	}
	return out
}

// decodeArgs reads the arguments of r.
func decodeArgs[T any](r request) (T, error) {
	var v T
	if err := json.Unmarshal(r.Args, &v); err != nil {
		return v, &gpu.Error{Op: string(r.Op), GPU: r.GPU, Err: fmt.Errorf("%w: %w", gpu.ErrInvalid, err)}
	}
	return v, nil
}
