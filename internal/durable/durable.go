// Package durable replaces small files. What it writes survives a power cut, and reaches no other file than the named one, whatever
// others have put into the directory.
package durable

import "path/filepath"

// Write replaces a file, which only its owner may read. When it returns without an error, the new content is on the disk; after
// an error or a power cut the file has the old content or the new one. Only one caller may write a path at a time.
func Write(path string, content []byte) error {
	return Replace(path, content, Options{Mode: 0o600, Any: true, Temp: filepath.Base(path) + ".new"})
}

// WriteUntilBoot is Write for a file that is needed only until the next boot: it does not wait for the disk.
func WriteUntilBoot(path string, content []byte) error {
	return Replace(path, content, Options{Mode: 0o600, Any: true, Temp: filepath.Base(path) + ".new", Volatile: true})
}
