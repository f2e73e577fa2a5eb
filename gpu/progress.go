package gpu

import "context"

// progressKey is the context key of WithProgress.
type progressKey struct{}

// WithProgress returns a context with which a driver calls f before an operation on the whole node accesses a GPU. The
// caller then knows which GPU the operation hangs on.
func WithProgress(ctx context.Context, f func(UUID)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// ReportProgress reports the GPU that an operation on the whole node accesses next. Drivers call it. It does nothing if
// the context is not from WithProgress.
func ReportProgress(ctx context.Context, id UUID) {
	if f, ok := ctx.Value(progressKey{}).(func(UUID)); ok {
		f(id)
	}
}
