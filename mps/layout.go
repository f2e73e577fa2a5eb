package mps

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/gpu"
)

// layout is where the files of one GPU's control daemon are, below the run directory: they go with the boot, as it does.
type layout struct{ dir string }

func (l layout) pipe() string   { return filepath.Join(l.dir, "p") } // the daemon's own: the right to change lies in here
func (l layout) tenant() string { return filepath.Join(l.dir, "t") } // what tenants get: the client socket and nothing else
func (l layout) logs() string   { return filepath.Join(l.dir, "l") } // unused in the foreground, but it must not be the default
func (l layout) record() string { return filepath.Join(l.dir, "record.json") }

// maxSocketPath is what fits into a socket's address, which ends with a zero byte.
const maxSocketPath = 107

// create makes the directories. The control daemon would make its own writable for everybody; one that exists keeps its mode.
func (l layout) create() error {
	if long := filepath.Join(l.pipe(), "control_privileged"); len(long) > maxSocketPath {
		return fmt.Errorf("cannot make a socket at %s: its path has %d bytes and may have %d; choose a shorter run_dir", long, len(long), maxSocketPath)
	}
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{{l.dir, 0o711}, {l.pipe(), 0o711}, {l.tenant(), 0o711}, {l.logs(), 0o700}} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot make an MPS directory: %w", err)
		}
		// Against the umask, and for one that was left with another mode.
		if err := os.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("cannot set the mode of an MPS directory: %w", err)
		}
	}
	return nil
}

func (l layout) remove() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("cannot remove the MPS directory: %w", err)
	}
	return nil
}

// linkTenant gives tenants the client socket under a second name. The socket that a command came through decides what it may
// change, so that from this directory nobody, not even root in a container, can quit MPS or lift a limit.
func (l layout) linkTenant() error {
	if l.tenantLinked() {
		return nil
	}
	target, temporary := filepath.Join(l.tenant(), "control"), filepath.Join(l.tenant(), ".control")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot replace the tenants' MPS socket: %w", err)
	}
	if err := os.Link(filepath.Join(l.pipe(), "control"), temporary); err != nil {
		return fmt.Errorf("cannot link the tenants' MPS socket: %w", err)
	}
	if err := os.Rename(temporary, target); err != nil {
		return fmt.Errorf("cannot replace the tenants' MPS socket: %w", err)
	}
	return nil
}

// tenantLinked tells whether tenants reach the socket of the present daemon: one that was restarted has made a new one.
func (l layout) tenantLinked() bool {
	a, err := os.Stat(filepath.Join(l.pipe(), "control"))
	if err != nil {
		return false
	}
	b, err := os.Stat(filepath.Join(l.tenant(), "control"))
	return err == nil && os.SameFile(a, b)
}

// restrictLog takes the log FIFO away from everybody but its owner: a hundred bytes of garbage from anybody would silence the
// daemon's log for good, and anybody could forge lines. A server of the same user still writes there.
func (l layout) restrictLog() error {
	if err := os.Chmod(filepath.Join(l.pipe(), "log"), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot close the MPS log: %w", err)
	}
	return nil
}

// record is what a later life of our daemon must know of a control daemon. It is written before the start.
type record struct {
	Settings Settings `json:"settings"`
	// Previous is the compute mode to go back to, when Settings are strict.
	Previous gpu.ComputeMode `json:"previous,omitempty"`
}

// readRecord gives nil when there is none. One that cannot be read counts as none: the unit is then somebody else's.
func (l layout) readRecord() *record {
	b, err := os.ReadFile(l.record())
	if err != nil {
		return nil
	}
	var r record
	if json.Unmarshal(b, &r) != nil || r.Settings.GPU == "" {
		return nil
	}
	return &r
}

func (l layout) writeRecord(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write the MPS record: %w", err)
	}
	// No fsync: it need not outlive the boot.
	temporary := l.record() + ".new"
	if err := os.WriteFile(temporary, b, 0o600); err != nil {
		return fmt.Errorf("cannot write the MPS record: %w", err)
	}
	if err := os.Rename(temporary, l.record()); err != nil {
		return fmt.Errorf("cannot write the MPS record: %w", err)
	}
	return nil
}
