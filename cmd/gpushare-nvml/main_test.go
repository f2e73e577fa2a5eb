//go:build cgo

package main

import (
	"bytes"
	"context"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/internal/version"
)

func TestUsage(t *testing.T) {
	tests := []struct {
		name string
		args []string
		code int
		says string
	}{
		{"nothing", nil, 2, "gpushared starts this command"},
		{"no token", []string{"--connect", "/x"}, 2, "--token"},
		{"unknown flag", []string{"--no-such"}, 2, "flag provided but not defined"},
		{"empty GPU", []string{"--exclude", ""}, 2, "empty"},
		{"argument", []string{"--connect", "/x", "--token", "y", "more"}, 2, "gpushared starts this command"},
		{"help", []string{"--help"}, 0, "-host-root"},
		{"version", []string{"--version"}, 0, "gpushare-nvml " + version.Version},
		{"no daemon", []string{"--connect", filepath.Join(t.TempDir(), "none.sock"), "--token", "y"}, 1, "cannot connect to the daemon"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run(context.Background(), tt.args, stdio{out: &out, err: &errs}); code != tt.code {
				t.Errorf("exit code %d; want %d", code, tt.code)
			}
			if said := out.String() + errs.String(); !strings.Contains(said, tt.says) {
				t.Errorf("output %q; want %q", said, tt.says)
			}
		})
	}
}

// TestLazyBinding checks the linker flags of this binary: with immediate binding the worker would not start if the
// library lacks one of the hundreds of functions that go-nvml refers to.
func TestLazyBinding(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(exe)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tag, bit := range map[elf.DynTag]uint64{elf.DT_FLAGS: uint64(elf.DF_BIND_NOW), elf.DT_FLAGS_1: uint64(elf.DF_1_NOW), elf.DT_BIND_NOW: ^uint64(0)} {
		values, err := f.DynValue(tag)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range values {
			if tag == elf.DT_BIND_NOW || v&bit != 0 {
				t.Errorf("linked with -z now (%v)", tag)
			}
		}
	}
}
