package cgroup

import "context"

// InnerFreezer is the freezer of an adapter: the kernel's, on the inner cgroup of each scope.
type InnerFreezer struct {
	freezer KernelFreezer
	leaf    func(id string) (string, error)
}

// NewInnerFreezer returns the freezer of the scopes in a hierarchy. leaf returns the inner cgroup of a scope, or an error when there is
// no such scope.
func NewInnerFreezer(mount string, leaf func(id string) (string, error)) InnerFreezer {
	return InnerFreezer{freezer: NewKernelFreezer(mount), leaf: leaf}
}

// Freeze stops the scope's processes.
func (f InnerFreezer) Freeze(ctx context.Context, id string) error {
	leaf, err := f.leaf(id)
	if err != nil {
		return err
	}
	return f.freezer.Freeze(ctx, leaf)
}

// Thaw continues the scope's processes.
func (f InnerFreezer) Thaw(ctx context.Context, id string) error {
	leaf, err := f.leaf(id)
	if err != nil {
		return nil //nolint:nilerr // a missing scope has no frozen process
	}
	return f.freezer.Thaw(ctx, leaf)
}

// Frozen reads back whether the scope's processes are stopped.
func (f InnerFreezer) Frozen(id string) (bool, error) {
	leaf, err := f.leaf(id)
	if err != nil {
		return false, err
	}
	return f.freezer.Frozen(leaf)
}

// ForgetFiles closes the files of a scope that was removed.
func (f InnerFreezer) ForgetFiles(id string) {
	if leaf, err := f.leaf(id); err == nil {
		f.freezer.Forget(leaf)
	}
}
