//go:build tools

package tools

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The profiles that are installed compile, and each is for a program that is installed.
func TestProfilesCompile(t *testing.T) {
	root, err := unpack("apparmor")
	if err != nil {
		t.Fatalf("cannot get AppArmor's tools: %v", err)
	}
	var parser string
	for _, dir := range []string{"sbin", "usr/sbin"} {
		if p := filepath.Join(root, dir, "apparmor_parser"); parser == "" {
			if _, err := os.Stat(p); err == nil {
				parser = p
			}
		}
	}
	if parser == "" {
		t.Fatal("the package has no apparmor_parser")
	}
	compile := func(profile string) (string, error) {
		base := filepath.Join(root, "etc/apparmor.d")
		cmd := exec.CommandContext(t.Context(), parser, "--base", base, "--skip-kernel-load", "--skip-cache", profile)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		lines := strings.Split(out.String(), "\n")
		var rest []string
		for _, l := range lines {
			if l != "" && !strings.HasPrefix(l, "Cache read/write disabled") { // Its host has no AppArmor.
				rest = append(rest, l)
			}
		}
		return strings.Join(rest, "\n"), err
	}
	installed := t.TempDir()
	output(t, nil, "packaging/install.sh", installed, "/opt/gpushare", "bin")
	profiles, err := filepath.Glob(filepath.Join(installed, "etc/apparmor.d/gpushare*"))
	if err != nil || len(profiles) != 3 {
		t.Fatalf("%d profiles are installed: %v", len(profiles), err)
	}
	for _, profile := range profiles {
		if out, err := compile(profile); err != nil || out != "" {
			t.Errorf("%s: %v\n%s", filepath.Base(profile), err, out)
		}
		text := string(read(t, profile))
		program, err := filepath.Glob(filepath.Join(installed, "opt/gpushare/*/", filepath.Base(profile)))
		if len(program) == 0 {
			program, err = filepath.Glob(filepath.Join(installed, "opt/gpushare/libexec/gpushare", filepath.Base(profile)))
		}
		if err != nil || len(program) != 1 || !strings.Contains(text, "profile "+filepath.Base(profile)+" /opt/gpushare/") {
			t.Errorf("%s is for no installed program: %q", filepath.Base(profile), program)
		}
		if strings.Contains(text, "/usr/libexec/gpushare") {
			t.Errorf("%s names a program below another prefix", filepath.Base(profile))
		}
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("profile wrong /usr/bin/wrong {\n  capability no_such,\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := compile(wrong); err == nil {
		t.Errorf("a wrong profile compiles: %s", out)
	}
}
