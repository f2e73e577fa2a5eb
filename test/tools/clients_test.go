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

// fetchWithin bounds one download.
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

// fetch returns the clients.
func fetch() (*clients, error) {
	// Debian's pynvml is for Debian's Python.
	c := &clients{python: "/usr/bin/python3"}
	var err error
	if _, missing := os.Stat(c.python); missing != nil {
		if c.python, err = exec.LookPath("python3"); err != nil {
			return nil, fmt.Errorf("%w: apt-get install python3", err)
		}
	}
	dir, err := unpack("clients", c.python)
	if err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "versions"))
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

// unpack returns the directory with what this version of NAME.sh gets, and runs the script if there is none.
func unpack(name string, args ...string) (string, error) {
	sum := sha256.New()
	for _, file := range []string{name + ".sh", "apt.sh"} {
		recipe, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(recipe)
	}
	directories := "../../build/" + name + "-"
	dir, err := filepath.Abs(directories + hex.EncodeToString(sum.Sum(nil)[:6]))
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	old, err := filepath.Glob(directories + "*")
	if err != nil {
		return "", err
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			return "", err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), fetchWithin)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "sh", append([]string{name + ".sh", dir}, args...)...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return dir, nil
}

// environ returns the environment of a client on a node: the node's library is first in the path.
func (c *clients) environ(n *harness.Node, more ...string) []string {
	libraries := append([]string{filepath.Join(n.Root(), "usr/lib")}, c.libraries...)
	return append(
		append(n.Environ(), "LD_LIBRARY_PATH="+strings.Join(libraries, ":"), "PYTHONPATH="+c.modules, "PYTHONDONTWRITEBYTECODE=1"),
		more...)
}
