package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// System is a system that the lab boots: its results are for its systemd and its kernel.
type System struct {
	Name, suite string
}

// The systems for which there are images.
var (
	Debian12 = System{"debian12", "bookworm"} // systemd 252, Linux 6.1
	Debian13 = System{"debian13", "trixie"}   // systemd 257, Linux 6.12
)

// Image is a built guest.
type Image struct {
	root, kernel, initrd string
}

// Paths relative to the directory of a package of tests: where images and logs are kept, and what builds an image.
const (
	Builds = "../../build/vm"
	recipe = "../vm/image.sh"
)

// Need skips the test if the lab cannot run, and names what is missing.
func Need(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skipf("the guest is linux/amd64, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	if os.Geteuid() != 0 {
		t.Skip("building the guest's image needs root (mmdebstrap makes device nodes and foreign owners)")
	}
	for tool, pkg := range map[string]string{
		"qemu-system-x86_64": "qemu-system-x86", "qemu-img": "qemu-utils", "mmdebstrap": "mmdebstrap", "mke2fs": "e2fsprogs",
		"ssh-keygen": "openssh-client",
	} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is missing: apt-get install %s", tool, pkg)
		}
	}
}

// Base builds the image of the system unless one of this recipe exists.
func Base(t *testing.T, sys System) Image {
	t.Helper()
	script, err := os.ReadFile(recipe)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(script)
	dir, err := filepath.Abs(filepath.Join(Builds, "image-"+sys.suite+"-"+hex.EncodeToString(sum[:6])))
	if err != nil {
		t.Fatal(err)
	}
	img := Image{root: filepath.Join(dir, "root.img"), kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd")}
	if _, err := os.Stat(img.root); err == nil {
		return img
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(Builds, "image-"+sys.suite+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("building the guest's image into %s", dir)
	cmd := exec.CommandContext(t.Context(), recipe, dir, sys.suite)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the guest's image: %v\n%s", err, out)
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			t.Errorf("cannot remove an image of an older recipe: %v", err)
		}
	}
	return img
}

// NewDisk creates an empty overlay over the image. The boots of one test share what they write; other tests do not see it.
func NewDisk(t *testing.T, img Image) string {
	t.Helper()
	disk := filepath.Join(t.TempDir(), "root.qcow2")
	out, err := exec.CommandContext(
		t.Context(), "qemu-img", "create", "-q", "-f", "qcow2", "-b", img.root, "-F", "raw", disk,
	).CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("cannot create the guest's disk: %w\n%s", err, out))
	}
	return disk
}
