//go:build engines

package engines

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// builds is where programs and logs are kept.
const builds = "../../build/engines"

// module is a Go module below this directory, which only names programs of others.
type module struct {
	name string
	path string // the module whose version it is called by
	tags string
	// variable is set to the version as it is, and the others to what they say: without it the programs do not know their version.
	variable string
	others   string
}

var modules = []module{
	{name: "etcd", path: "go.etcd.io/etcd/server/v3"},
	{
		name:     "containerd",
		path:     "github.com/containerd/containerd/v2",
		tags:     "no_btrfs no_devmapper no_zfs",
		variable: "github.com/containerd/containerd/v2/version.Version",
	},
	{
		name:     "kubernetes",
		path:     "k8s.io/kubernetes",
		variable: "k8s.io/component-base/version.gitVersion",
		others:   "-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37",
	},
}

// The programs are built one module after the other, so that they need the memory of one.
func TestPrograms(t *testing.T) {
	for _, m := range modules {
		t.Run(m.name, func(t *testing.T) { t.Logf("%s %s", m.name, m.version(t)); m.programs(t) })
	}
}

// programsOf a module, by its name: a directory with them. They are built unless they are there.
func programsOf(t *testing.T, name string) string {
	t.Helper()
	for _, m := range modules {
		if m.name == name {
			return m.programs(t)
		}
	}
	t.Fatalf("there is no module %s", name)
	return ""
}

func (m module) programs(t *testing.T) string {
	t.Helper()
	key := sha256.New()
	for _, part := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(m.name, part))
		if err != nil {
			t.Fatal(err)
		}
		key.Write(b)
	}
	arguments := []string{"build", "-tags", m.tags, "-ldflags", m.linker(t)}
	for _, a := range arguments {
		key.Write([]byte(a + "\n"))
	}
	cache, err := filepath.Abs(builds)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, m.name+"-"+m.version(t)+"-"+hex.EncodeToString(key.Sum(nil)[:6]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	} else if !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	old, err := filepath.Glob(filepath.Join(cache, m.name+"-v*"))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("building the programs of %s %s into %s", m.name, m.version(t), dir)
	unfinished := filepath.Join(cache, m.name+".new")
	if err := os.MkdirAll(unfinished, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", append(arguments, "-o", unfinished+"/", "tool")...)
	cmd.Dir = m.name
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -mod=readonly -buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the programs of %s: %v\n%s", m.name, err, out)
	}
	if err := os.Rename(unfinished, dir); err != nil {
		t.Fatal(err)
	}
	for _, o := range old {
		if err := os.RemoveAll(o); err != nil {
			t.Errorf("cannot remove programs of another version: %v", err)
		}
	}
	return dir
}

// version of the module that the programs are called by.
func (m module) version(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(m.name, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^(?:\t|require )` + regexp.QuoteMeta(m.path) + ` (v\S+)`).FindSubmatch(b)
	if found == nil {
		t.Fatalf("%s/go.mod does not require %s", m.name, m.path)
	}
	return string(found[1])
}

func (m module) linker(t *testing.T) string {
	t.Helper()
	flags := "-s -w"
	if m.variable != "" {
		flags += " -X " + m.variable + "=" + m.version(t)
	}
	if m.others != "" {
		flags += " " + m.others
	}
	return flags
}
