// Package programs writes the programs that tests execute.
package programs

import (
	"os"
	"syscall"
)

// Write writes a program that everybody may execute. No program is started by this process meanwhile: between its fork and its exec a
// child has the file open for writing, and to execute it fails with ETXTBSY then (go.dev/issue/22315).
func Write[T ~string | ~[]byte](path string, text T) error {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return os.WriteFile(path, []byte(text), 0o755) //nolint:gosec // it is executed, also by other users
}
