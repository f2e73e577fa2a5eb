package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gpushare/gpushare/gpu"
)

// TestFrames writes random requests and expects to read the same ones, however the bytes are split.
func TestFrames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOf(rapid.Custom(func(t *rapid.T) request {
			return request{
				ID:      rapid.Uint64().Draw(t, "id"),
				Op:      Op(rapid.String().Draw(t, "op")),
				GPU:     gpu.UUID(rapid.StringMatching("GPU-[0-9a-f]{1,8}").Draw(t, "gpu")),
				Timeout: time.Duration(rapid.Int64Min(0).Draw(t, "timeout")),
			}
		})).Draw(t, "requests")
		var wire bytes.Buffer
		for _, r := range want {
			if err := writeFrame(&wire, r); err != nil {
				t.Fatal(err)
			}
		}
		in := io.Reader(&wire)
		if rapid.Bool().Draw(t, "byte by byte") {
			in = oneByteReader{in}
		}
		for i := range want {
			var got request
			if err := readFrame(in, &got); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			if d := cmp.Diff(want[i], got); d != "" {
				t.Fatalf("request %d (-want +got):\n%s", i, d)
			}
		}
		if err := readFrame(in, &request{}); !errors.Is(err, io.EOF) {
			t.Fatalf("at the end: %v; want io.EOF", err)
		}
	})
}

// oneByteReader reads one byte at a time.
type oneByteReader struct{ r io.Reader }

func (o oneByteReader) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }

func TestBadFrames(t *testing.T) {
	tests := []struct {
		name, wire, want string
	}{
		{"cut in the length", "\x00\x00", "unexpected EOF"},
		{"cut after the length", "\x00\x00\x00\x05", "unexpected EOF"},
		{"cut in the body", "\x00\x00\x00\x05{\"id", "unexpected EOF"},
		{"too long", "\x7f\xff\xff\xff", "over the limit"},
		{"no JSON", "\x00\x00\x00\x02{{", "cannot decode message"},
		{"of another type", "\x00\x00\x00\x02[]", "cannot decode message"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := readFrame(strings.NewReader(tt.wire), &request{})
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v; want %q", err, tt.want)
			}
		})
	}
	if err := writeFrame(io.Discard, strings.Repeat("x", maxFrame)); err == nil {
		t.Error("a message over the limit was written")
	}
}

// FuzzFrame reads random bytes as messages, which must not panic.
func FuzzFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.NewReader(b)
		for {
			var r reply
			if readFrame(in, &r) != nil {
				return
			}
			if r.Error != nil {
				_ = r.Error.decode().Error()
			}
		}
	})
}

// TestSentinelsAreComplete fails when package gpu has an error without a name on the wire.
func TestSentinelsAreComplete(t *testing.T) {
	known := map[error]bool{}
	kinds := map[string]bool{}
	for _, s := range sentinels() {
		if known[s.err] || kinds[s.kind] {
			t.Errorf("%s occurs twice", s.kind)
		}
		known[s.err], kinds[s.kind] = true, true
	}
	all := []error{
		gpu.ErrNotLoaded, gpu.ErrNoLibrary, gpu.ErrVersionMismatch, gpu.ErrInvalid, gpu.ErrNotSupported, gpu.ErrDenied,
		gpu.ErrNotFound, gpu.ErrMissing, gpu.ErrLost, gpu.ErrResetRequired, gpu.ErrInUse, gpu.ErrInsufficientResources,
		gpu.ErrTimeout, gpu.ErrStuck, gpu.ErrUnknown,
	}
	for _, err := range all {
		if !known[err] {
			t.Errorf("%v has no name on the wire", err)
		}
	}
	if len(all) != len(known) {
		t.Errorf("%d names for %d errors", len(known), len(all))
	}
}

// TestErrorFromAnotherVersion decodes a kind that this version does not know.
func TestErrorFromAnotherVersion(t *testing.T) {
	var r reply
	if err := json.Unmarshal([]byte(`{"id":1,"error":{"kind":"novel","op":"x","code":77,"text":"what is new"}}`), &r); err != nil {
		t.Fatal(err)
	}
	err := r.Error.decode()
	if !errors.Is(err, gpu.ErrUnknown) || err.Error() != "cannot x: what is new (NVML code 77)" {
		t.Errorf("error = %v", err)
	}
}

// TestOutermostSentinelSent encodes errors with several sentinels.
func TestOutermostSentinelSent(t *testing.T) {
	err := &gpu.Error{Op: "x", Err: fmt.Errorf("%w: slot 4; cannot undo the creation: %w", gpu.ErrInsufficientResources, gpu.ErrInUse)}
	got := encodeError(err).decode()
	if !errors.Is(got, gpu.ErrInsufficientResources) || errors.Is(got, gpu.ErrInUse) || got.Error() != err.Error() {
		t.Errorf("%v was decoded as %v", err, got)
	}
	if w := encodeError(errors.New("odd")); w.Kind != "unknown" || w.Text != "odd" {
		t.Errorf("an error without a sentinel is sent as %+v", w)
	}
	if encodeError(nil) != nil {
		t.Error("nil is sent as an error")
	}
}

// TestOpsAreComplete checks that every method of the port except Close is an operation.
func TestOpsAreComplete(t *testing.T) {
	ops := []Op{
		OpNode,
		OpSnapshot,
		OpProfiles,
		OpMemory,
		OpProcesses,
		OpInstanceProcesses,
		OpUtilization,
		OpSeries,
		OpNVLinks,
		OpInstanceUse,
		OpMemoryLimit,
		OpSetMemoryLimit,
		OpHealth,
		OpSensors,
		OpSetPowerLimit,
		OpSetMIGMode,
		OpCreateInstance,
		OpCompleteInstance,
		OpDestroyInstance,
		OpSetComputeMode,
		OpEvents,
	}
	d := Deadlines{}.withDefaults()
	for _, op := range ops {
		info, ok := operations[op]
		if !ok || info.verb == "" {
			t.Errorf("%s is not described", op)
		}
		if (info.timeout(d) == 0) != (op == OpEvents) {
			t.Errorf("%s has the deadline %v", op, info.timeout(d))
		}
	}
	if methods := reflect.TypeFor[gpu.Driver]().NumMethod(); methods != len(ops)+1 {
		t.Errorf("the port has %d methods, of which %d are operations; want all but Close", methods, len(ops))
	}
	if _, ok := operations["no-such"]; ok {
		t.Error("an unknown operation is described")
	}
}
