//go:build tools

package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// fetchWithin bounds the download of the clients.
const fetchWithin = 3 * time.Minute

// clients are the independent NVML clients and the paths that they need.
type clients struct {
	python, nvtop string
	modules       string   // the path of pynvml
	libraries     []string // of nvtop, if the host lacks them
	versions      string
}

var fetched = sync.OnceValues(fetch)

// fetchedClients returns the clients or fails the test, which is never skipped.
func fetchedClients(t *testing.T) *clients {
	t.Helper()
	c, err := fetched()
	if err != nil {
		t.Fatalf("cannot get the NVML clients: %v", err)
	}
	return c
}

// fetch returns the clients of this version of clients.sh, and downloads them if necessary.
func fetch() (*clients, error) {
	// Debian's pynvml is for Debian's Python.
	c := &clients{python: "/usr/bin/python3"}
	var err error
	if _, missing := os.Stat(c.python); missing != nil {
		if c.python, err = exec.LookPath("python3"); err != nil {
			return nil, fmt.Errorf("%w: apt-get install python3", err)
		}
	}
	recipe, err := os.ReadFile("clients.sh")
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(recipe)
	const directories = "../../build/clients-"
	dir, err := filepath.Abs(directories + hex.EncodeToString(sum[:6]))
	if err != nil {
		return nil, err
	}
	versions := filepath.Join(dir, "versions")
	if _, err := os.Stat(versions); errors.Is(err, fs.ErrNotExist) {
		old, err := filepath.Glob(directories + "*")
		if err != nil {
			return nil, err
		}
		for _, o := range old {
			if err := os.RemoveAll(o); err != nil {
				return nil, err
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), fetchWithin)
		defer cancel()
		if out, err := exec.CommandContext(ctx, "sh", "clients.sh", dir, c.python).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, out)
		}
	}
	b, err := os.ReadFile(versions)
	if err != nil {
		return nil, err
	}
	c.versions = strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", ", ")
	c.modules = filepath.Join(dir, "usr/lib/python3/dist-packages")
	c.nvtop = filepath.Join(dir, "usr/bin/nvtop")
	if _, missing := os.Stat(c.nvtop); missing != nil {
		if c.nvtop, err = exec.LookPath("nvtop"); err != nil {
			return nil, err
		}
	}
	for _, libs := range []string{"usr/lib/*-linux-gnu", "lib/*-linux-gnu"} {
		found, err := filepath.Glob(filepath.Join(dir, libs))
		if err != nil {
			return nil, err
		}
		c.libraries = append(c.libraries, found...)
	}
	return c, nil
}

// environ returns the environment of a client on a node: the node's library is first in the path.
func (c *clients) environ(n *harness.Node, more ...string) []string {
	libraries := append([]string{filepath.Join(n.Root(), "usr/lib")}, c.libraries...)
	return append(append(n.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"), "PYTHONPATH="+c.modules, "PYTHONDONTWRITEBYTECODE=1"), more...)
}
