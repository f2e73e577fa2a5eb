package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/harness"
)

// lostFiles is the condition that says that files were removed, of one part of the daemon.
func lostFiles(t *testing.T, n *harness.Node, text string) {
	t.Helper()
	awaitStatus(t, n, "no condition says that "+text+" was removed", func(s *api.Status) bool {
		for _, c := range s.Node.Conditions {
			if c.Kind == "files" && strings.Contains(c.Message, text) && c.Hint != "" {
				return true
			}
		}
		return false
	})
	r := n.CLI(soon(t), "doctor")
	if r.Code == 0 || !strings.Contains(r.Out, text) {
		t.Errorf("doctor exits with %d and says:\n%s%s", r.Code, r.Out, r.Err)
	}
}

// The directory of the state is removed under the daemon. It says so, writes the state, the audit and the account again, refuses no apply,
// and a restart finds the spec that was acknowledged.
func TestStateDirectoryRemoved(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	for name, remove := range map[string]func(dir string) error{
		"the directory": os.RemoveAll,
		"what is in it": func(dir string) error {
			found, err := filepath.Glob(filepath.Join(dir, "*"))
			for _, f := range found {
				err = errors.Join(err, os.RemoveAll(f))
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := start(t, quick)
			apply(t, n, small)
			if r := n.CLI(soon(t), "run", "-q", "-t", "red", "--grant", "part", "--", "true"); r.Code != 0 {
				t.Fatal(r.Err)
			}
			dir := filepath.Join(n.Dir, "state")
			if err := remove(dir); err != nil {
				t.Fatal(err)
			}
			changed := replaced(t, small, "share: 30%", "share: 25%")
			apply(t, n, changed) // without a pass of the loop in between
			if err := n.Client().Reload(soon(t)); err != nil {
				t.Fatal(err)
			}
			lostFiles(t, n, filepath.Join(dir))
			lostFiles(t, n, "audit")
			lostFiles(t, n, "the account of usage")
			if r := n.CLI(soon(t), "audit"); r.Code != 0 || !strings.Contains(r.Out, "removed while gpushared ran") {
				t.Errorf("audit exits with %d and says:\n%s%s", r.Code, r.Out, r.Err)
			}
			if r := n.CLI(soon(t), "audit", "--verify"); r.Code == 0 {
				t.Errorf("audit --verify finds no line missing:\n%s", r.Out)
			}
			n.KillDaemon()
			if err := n.StartDaemon(soon(t)); err != nil {
				t.Fatal(err)
			}
			if r := n.CLIIn(soon(t), changed, "apply", "-f", "-"); r.Code != 0 || !strings.Contains(r.Out, "no changes") {
				t.Errorf("after a restart the spec is another: %d: %s%s", r.Code, r.Out, r.Err)
			}
		})
	}
}

// Each file that the daemon keeps is removed alone: the lock, the state, the socket, the record of the leases, the CDI files. It is there
// again after a pass of the loop.
func TestKeptFilesRemoved(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	n := start(t, quick)
	apply(t, n, small)
	_, id := begin(t, n, "red", "part", "sleep", "600")
	c := n.Client()
	if _, err := c.Status(soon(t)); err != nil { // Its connection outlives the name of the socket.
		t.Fatal(err)
	}
	pass := func() {
		t.Helper()
		if err := c.Reload(soon(t)); err != nil {
			t.Fatal(err)
		}
	}
	// Without a request: the connection of the one before may not be free yet, and another one has no socket to connect to.
	await := func(path string) {
		t.Helper()
		err := harness.Await(soon(t), 20*time.Millisecond, path+" is not there again", func() (bool, error) {
			_, err := os.Lstat(path)
			return err == nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"state/lock", "state/state.json", "run/lock", "run/leases.json", n.Socket(), "run"} {
		path := name
		if !filepath.IsAbs(name) {
			path = filepath.Join(n.Dir, name)
		}
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		pass()
		if path == n.Socket() || name == "run" {
			await(n.Socket())
		}
		lostFiles(t, n, path)
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s is not there again: %v", name, err)
		}
	}
	if r := n.CLI(soon(t), "status"); r.Code != 0 {
		t.Errorf("without the removed socket status exits with %d: %s", r.Code, r.Err)
	}
	cdi, err := filepath.Glob(filepath.Join(n.Dir, "cdi", "gpushare-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range cdi {
		if err := os.Remove(f); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	for _, f := range cdi {
		if _, err := os.Lstat(f); errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is not there again", f)
		}
	}
	n.KillDaemon()
	if err := n.StartDaemon(soon(t)); err != nil {
		t.Fatal(err)
	}
	if leaseByID(status(t, n), id) == nil {
		t.Error("a restarted daemon does not know the lease whose record was removed")
	}
}
