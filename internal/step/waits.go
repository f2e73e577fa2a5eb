package step

import "context"

// waitsKey is the context key of WithWaits.
type waitsKey struct{}

// WithWaits returns a context with which what carries out a step calls f with what it waits for, as a text.
func WithWaits(ctx context.Context, f func(text string)) context.Context {
	return context.WithValue(ctx, waitsKey{}, f)
}

// ReportWait reports what a step waits for. It does nothing if the context is not from WithWaits.
func ReportWait(ctx context.Context, text string) {
	if f, ok := ctx.Value(waitsKey{}).(func(string)); ok {
		f(text)
	}
}
