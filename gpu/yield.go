package gpu

import "context"

// yieldKey is the context key of WithYield.
type yieldKey struct{}

// WithYield returns a context with which a driver calls f between two process lists of one reading of a partitioned GPU. A reading of all
// instances takes ten times as long as one of a single instance, for which the start of a lease waits: f may read that first. f runs
// on the goroutine of the reading, which holds no lock of the GPU meanwhile.
func WithYield(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, yieldKey{}, f)
}

// Yields returns the function of WithYield, or nil. Drivers call it.
func Yields(ctx context.Context) func() {
	f, _ := ctx.Value(yieldKey{}).(func())
	return f
}
