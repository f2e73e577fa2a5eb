// Package before keeps what GPUs had before gpushare changed it, one file for each GPU. It restores nothing: its user does, and knows
// whether what is recorded still applies.
package before

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
)

// Records are the records of one setting. Set the fields before the first use. Keep and Forget for one GPU must not be called at the
// same time.
type Records[T comparable] struct {
	Dir  string
	Name func(id gpu.UUID) string // of the file, without its extension
	What string                   // "the power limit from before"
	// Damaged says what an administrator does about a damaged record.
	Damaged string
	// Valid reports whether a record has what it must have.
	Valid func(T) bool
}

// Path is the file of a GPU.
func (r *Records[T]) Path(id gpu.UUID) string { return filepath.Join(r.Dir, r.Name(id)+".json") }

// Get returns what is recorded; nil when nothing is. A damaged record is an error, because what was before is not guessed.
func (r *Records[T]) Get(id gpu.UUID) (*T, error) {
	b, err := boundedread.Trusted(r.Path(id), boundedread.Record)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", r.What, err)
	}
	var out T
	if err := json.Unmarshal(b, &out); err != nil || !r.Valid(out) {
		return nil, fmt.Errorf("cannot read %s: %s is damaged; %s", r.What, r.Path(id), r.Damaged)
	}
	return &out, nil
}

// Keep records, durably, what a GPU has: it is on disk before the GPU is changed.
func (r *Records[T]) Keep(id gpu.UUID, was T) error {
	if is, err := r.Get(id); err == nil && is != nil && *is == was {
		return nil
	}
	b, err := json.Marshal(was)
	if err == nil {
		err = os.MkdirAll(r.Dir, 0o700)
	}
	if err == nil {
		err = durable.Write(r.Path(id), b)
	}
	if err != nil {
		return fmt.Errorf("cannot record %s: %w", r.What, err)
	}
	return nil
}

// Forget removes a record after what it has was restored.
func (r *Records[T]) Forget(id gpu.UUID) error {
	if err := os.Remove(r.Path(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot remove the record of %s: %w", r.What, err)
	}
	return nil
}
