package detached

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
)

// maxLog is the size in bytes at which a service's log is trimmed. That is the output of several days of probes.
const maxLog = 4 << 20

// lineLength is more bytes than most lines have: how much of the end of a log is read for each of its last lines.
const lineLength = 256

// keepLog keeps the log of the service's last run when it is started again.
func (d *Services) keepLog(name string) error {
	if err := os.Rename(d.logPath(name), d.logPath(name)+".1"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// LastLines returns the end of the service's log.
func (d *Services) LastLines(_ context.Context, name string, n int) []string {
	f, err := os.Open(d.logPath(name))
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil
	}
	tail := make([]byte, min(info.Size(), int64(n+32)*lineLength))
	read, err := f.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	if read == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(string(tail[:read]), "\n"), "\n")
	if int64(read) < info.Size() && len(lines) > 1 {
		lines = lines[1:] // It may have no beginning.
	}
	return lines[max(0, len(lines)-n):]
}

// trimLog keeps the end of a log that is too long. The service opened it for appending, so truncation loses at most what is
// written at that moment.
func (d *Services) trimLog(name string) {
	info, err := os.Stat(d.logPath(name))
	if err != nil || info.Size() < maxLog {
		return
	}
	f, err := os.OpenFile(d.logPath(name), os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	tail := make([]byte, maxLog/16)
	n, err := f.ReadAt(tail, info.Size()-int64(len(tail)))
	if err != nil && !errors.Is(err, io.EOF) {
		return
	}
	// Losing the log is better than filling the run directory.
	_ = os.WriteFile(d.logPath(name)+".1", tail[:n], 0o600)
	_ = f.Truncate(0)
}
