package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/mps"
)

// layout is the paths of one control daemon in the run directory: they last until the next boot, as the daemon does.
type layout struct{ dir string }

func (l layout) pipe() string   { return filepath.Join(l.dir, "p") } // for the daemon and gpushared: its sockets allow all commands
func (l layout) tenant() string { return filepath.Join(l.dir, "t") } // for tenants: only the client socket
func (l layout) logs() string   { return filepath.Join(l.dir, "l") } // not used in the foreground, but it must not be the default directory
func (l layout) record() string { return filepath.Join(l.dir, recordName) }

// recordName is the name of the record in the directory of a control daemon.
const recordName = "record.json"

// directoryMode lets tenants reach their socket and list nothing.
const directoryMode = 0o711

// maxSocketPath is the longest path in a socket address, without its final zero byte.
const maxSocketPath = 107

// create creates the directories, because the control daemon would make its own world-writable; it keeps the mode of one that
// exists. Restrict opens the tenants' directory.
func (l layout) create() error {
	if long := filepath.Join(l.pipe(), "control_privileged"); len(long) > maxSocketPath {
		return fmt.Errorf(
			"cannot create a socket at %s: the path has %d bytes and may have %d; set a shorter run_dir", long, len(long),
			maxSocketPath,
		)
	}
	if err := os.MkdirAll(l.dir, directoryMode); err != nil {
		return fmt.Errorf("cannot create an MPS directory: %w", err)
	}
	// The umask may have removed bits.
	for _, dir := range []string{filepath.Dir(l.dir), l.dir} {
		if err := os.Chmod(dir, directoryMode); err != nil {
			return fmt.Errorf("cannot set the mode of an MPS directory: %w", err)
		}
	}
	for _, dir := range []string{l.pipe(), l.tenant(), l.logs()} {
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("cannot create an MPS directory: %w", err)
		}
	}
	return nil
}

// closePipe closes the privileged directory before a control daemon starts, which opens its files to all for a moment.
func (l layout) closePipe() error {
	if err := os.Chmod(l.pipe(), 0o700); err != nil {
		return fmt.Errorf("cannot close an MPS directory: %w", err)
	}
	return nil
}

func (l layout) remove() error {
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("cannot remove the MPS directory: %w", err)
	}
	return nil
}

// linkTenant links the client socket into the tenants' directory. The daemon permits commands by the socket that they come
// from, so through this directory no process, not even root in a container, can quit MPS or raise a limit.
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

// tenantLinked reports whether the tenants' link is the socket of the current daemon: a restarted one has a new socket.
func (l layout) tenantLinked() bool {
	a, err := os.Stat(filepath.Join(l.pipe(), "control"))
	if err != nil {
		return false
	}
	b, err := os.Stat(filepath.Join(l.tenant(), "control"))
	return err == nil && os.SameFile(a, b)
}

// record is what the next run of gpushared must know of a control daemon. It is written before the start.
type record struct {
	Settings mps.Settings `json:"settings"`
	// SingleUser: it was started without a server for all users, so only one user at a time has clients.
	SingleUser bool `json:"single_user,omitempty"`
	// AnyoneSets: every process that reaches its tenants' socket may change its defaults.
	AnyoneSets bool `json:"anyone_sets,omitempty"`
	// AnyoneSetsServers is the same for the limits of its servers.
	AnyoneSetsServers bool `json:"anyone_sets_servers,omitempty"`
}

// readRecord returns nil when there is no record or it cannot be read: the unit is then not managed by gpushare.
func (l layout) readRecord() *record {
	b, err := boundedread.Trusted(l.record(), boundedread.Record)
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
	if err := durable.WriteUntilBoot(l.record(), b); err != nil {
		return fmt.Errorf("cannot write the MPS record: %w", err)
	}
	return nil
}
