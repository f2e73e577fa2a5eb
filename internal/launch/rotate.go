package launch

import (
	"io"
	"os"
)

// MaxOutput is how many bytes of a program's output are kept at most, in two files.
const MaxOutput = 16 << 20

// rotatingFile is a file that is rotated at a size limit. One older file is kept, so that at least one limit of the last
// output is kept, at most two.
type rotatingFile struct {
	path  string
	limit int64
	f     *os.File
	size  int64
	buf   []byte // for reading what is written
}

func newRotatingFile(path string, limit int64) (*rotatingFile, error) {
	r := &rotatingFile{path: path, limit: limit, buf: make([]byte, 32<<10)}
	return r, r.open()
}

func (r *rotatingFile) open() error {
	// Appending: the daemon writes notices to the same file.
	f, err := os.OpenFile(r.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	if r.f != nil {
		r.f.Close()
	}
	r.f, r.size = f, 0
	return nil
}

// fill writes all that is read, until no process can write any more, or the reader fails.
func (r *rotatingFile) fill(from io.Reader) {
	for {
		n, err := from.Read(r.buf)
		r.write(r.buf[:n])
		if err != nil {
			return
		}
	}
}

// write appends, and rotates. When the disk is full, output is dropped: the program must not block on its output.
func (r *rotatingFile) write(b []byte) {
	if len(b) > 0 {
		_, _ = r.f.Write(b) // see above
		r.size += int64(len(b))
	}
	if r.size >= r.limit && os.Rename(r.path, older(r.path)) == nil {
		_ = r.open() // Without a new file the old one is used.
	}
}

// Close closes the file.
func (r *rotatingFile) Close() { r.f.Close() }

func older(path string) string { return path + ".1" }
