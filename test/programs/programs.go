// Package programs writes the programs that tests execute.
package programs

import (
	"errors"
	"os"
	"syscall"
)

const mode = 0o755

// Write writes a program that everybody may execute, whatever the umask. No program is started by this process meanwhile: between its
// fork and its exec a child has the file open for writing, and to execute it fails with ETXTBSY then (go.dev/issue/22315).
func Write[T ~string | ~[]byte](path string, text T) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	// It is executed, also by other users.
	return errors.Join(os.WriteFile(path, []byte(text), mode), os.Chmod(path, mode)) //nolint:gosec // as above
}
