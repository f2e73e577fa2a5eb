package launch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Result is how a program ended.
type Result struct {
	Exited bool      `json:"exited"` // by itself; else by a signal
	Code   int       `json:"code"`   // its exit code, or the signal's number
	At     time.Time `json:"at"`
}

// String describes it.
func (r Result) String() string {
	if r.Exited {
		return fmt.Sprintf("exited with %d", r.Code)
	}
	if name := unix.SignalName(unix.Signal(r.Code)); name != "" {
		return "killed by " + name
	}
	return fmt.Sprintf("killed by signal %d", r.Code)
}

// ExitCode is the exit code as a shell reports it.
func (r Result) ExitCode() int {
	if r.Exited {
		return r.Code
	}
	return 128 + r.Code
}

// record is what a supervisor records of its program. It is written before the program starts, so that an interrupted start
// can be recovered.
type record struct {
	Boot       string  `json:"boot"`
	Supervisor Process `json:"supervisor"`
	Main       Process `json:"main"`
	Result     *Result `json:"result,omitempty"`
}

func recordPath(dir, id string) string { return filepath.Join(dir, id+".json") }
func outputPath(dir, id string) string { return filepath.Join(dir, id+".log") }

func readRecord(dir, id string) (*record, error) {
	b, err := boundedread.Trusted(recordPath(dir, id), boundedread.Record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the record of %s: %w", id, err)
	}
	r := new(record)
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("cannot read the record of %s: %w", id, err)
	}
	return r, nil
}

// write replaces the record atomically. It is not synced, because it is only used until the next boot.
func (r *record) write(dir, id string) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(recordPath(dir, id)+".new", b, 0o600); err != nil {
		return err
	}
	return os.Rename(recordPath(dir, id)+".new", recordPath(dir, id))
}
