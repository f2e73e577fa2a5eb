package packages

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What a test skips without is installed where the tests run: a skipped test shows nothing.
func TestCIInstallsWhatTestsNeed(t *testing.T) {
	t.Parallel()
	run := readAll(t, "../../.ci/run")
	_, list, _ := strings.Cut(run, "apt-get install")
	list, _, _ = strings.Cut(list, ">")
	// Of every Debian, and of gcc and dbus.
	installed := map[string]bool{"passwd": true, "binutils": true, "dpkg": true, "dbus-daemon": true}
	for _, name := range strings.Fields(list) {
		installed[name] = true
	}
	hint, found := regexp.MustCompile(`is missing: apt-get install ([a-z0-9 -]+)"`), 0
	err := filepath.WalkDir("..", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range hint.FindAllStringSubmatch(readAll(t, path), -1) {
			for _, name := range strings.Fields(m[1]) {
				found++
				if !installed[name] {
					t.Errorf("%s skips without %s, which .ci/run does not install", path, name)
				}
			}
		}
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("%d packages are named, %v: the reading is broken", found, err)
	}
}
