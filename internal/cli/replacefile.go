package cli

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/durable"
)

// replaceFile is how every command writes a file: as a new one, so that a failure leaves the old one, and so that nothing that another
// user has put there is followed, written to or changed. Until it is complete, its name begins with a prefix. mode is that of a new
// file; 0: as the umask says.
func replaceFile(path, prefix string, content []byte, mode fs.FileMode) error {
	err := durable.Replace(path, content, durable.Options{Mode: mode, Keep: true, Prefix: prefix})
	switch {
	case errors.Is(err, durable.ErrRefused):
		return &api.Error{
			Kind:    api.KindInternal,
			Message: fmt.Sprintf("cannot write %s: %v", path, err),
			Hint:    fmt.Sprintf("'ls -ld %s' shows it: remove it, or write to another name", path),
		}
	case err != nil:
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}
