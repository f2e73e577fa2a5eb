package gpu

import "context"

// touchKey is the context key of WithTouch.
type touchKey struct{}

// WithTouch gives a context that makes a driver call f with each GPU that an operation on the whole node is about to
// touch. Whoever waits for the operation then knows which GPU it hangs on.
func WithTouch(ctx context.Context, f func(UUID)) context.Context {
	return context.WithValue(ctx, touchKey{}, f)
}

// Touch tells the caller of an operation on the whole node that id comes next. Drivers call it; it does nothing when
// nobody asked.
func Touch(ctx context.Context, id UUID) {
	if f, ok := ctx.Value(touchKey{}).(func(UUID)); ok {
		f(id)
	}
}
