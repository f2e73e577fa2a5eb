package cli_test

import (
	"time"

	"github.com/gpushare/gpushare/api"
)

// repeatedEvents are what a change of one GPU emits: an event once, many times, and again after another one.
func repeatedEvents() []any {
	var out []any
	emit := func(times int, kind, message string) {
		for range times {
			out = append(out, api.Event{
				Seq:     uint64(len(out) + 1),
				At:      noon.Add(time.Duration(len(out)) * time.Second),
				Kind:    kind,
				GPU:     gpu0,
				Message: message,
			})
		}
	}
	emit(1, "spec.accepted", "generation 8, by root")
	emit(32, "drift", "GPU 0 is not as the spec says")
	emit(2, "gpu.changed", "3 instances")
	emit(1, "drift", "GPU 0 is not as the spec says")
	return out
}
