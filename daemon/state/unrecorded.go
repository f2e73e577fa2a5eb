package state

import (
	"errors"
	"io/fs"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/store"
)

// Record writes what a request changes. An error says that nothing was changed, and what helps. what is "the maintenance", or "which
// GPUs are cordoned".
func (x *State) Record(what string, f func(*store.State)) error {
	err := x.Store.Update(func(s *store.State) error {
		f(s)
		return nil
	})
	if err != nil {
		return Unrecorded(what, x.Store.Path(), err)
	}
	return nil
}

// Unrecorded is the refusal of a request that cannot be recorded in a directory.
func Unrecorded(what, dir string, err error) *api.Error {
	return &api.Error{
		Kind:    api.KindInternal,
		Message: "cannot record " + what + ": " + err.Error(),
		Hint:    "nothing was changed; " + helps(dir, err),
	}
}

// NotBegun is the refusal of a change that cannot be recorded in a directory. do is what to do again.
func NotBegun(what, do, dir string, err error) *api.Error {
	return &api.Error{
		Kind:    api.KindUnavailable,
		Message: what + ": " + err.Error(),
		Hint:    "nothing was changed; " + helps(dir, err) + ", and " + do + " again",
	}
}

// helps is what helps when a record could not be written to a directory.
func helps(dir string, err error) string {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, store.ErrRemoved) || errors.Is(err, store.ErrReplaced) {
		return dir + " was removed or replaced while gpushared ran: see 'gpushare doctor'"
	}
	return FreeSpace(dir)
}

// FreeSpace is what helps when a directory cannot be written to.
func FreeSpace(dir string) string { return "free space in " + dir }
