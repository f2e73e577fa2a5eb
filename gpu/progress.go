package gpu

import "context"

// progressKey is the context key of WithProgress.
type progressKey struct{}

// WithProgress gives a context that makes a driver call f with each GPU that an operation on the whole node is about to
// touch. Whoever waits for the operation then knows which GPU it hangs on.
func WithProgress(ctx context.Context, f func(UUID)) context.Context {
	return context.WithValue(ctx, progressKey{}, f)
}

// ReportProgress tells the caller of an operation on the whole node that id comes next. Drivers call it; it does nothing when
// nobody asked.
func ReportProgress(ctx context.Context, id UUID) {
	if f, ok := ctx.Value(progressKey{}).(func(UUID)); ok {
		f(id)
	}
}
