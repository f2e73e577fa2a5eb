package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRun(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		args   []string
		code   int
		stderr string
	}{
		{"a cancelled context", []string{"--cgroup-mount", t.TempDir(), "--run-dir", t.TempDir()}, 0, ""},
		{"help", []string{"-h"}, 0, "run-dir"},
		{"unknown flag", []string{"--nonsense"}, 2, "nonsense"},
		{"argument", []string{"now"}, 2, `unexpected argument "now"`},
		{"no directory", []string{"--cgroup-mount", t.TempDir(), "--run-dir", file}, 1, "cannot create " + file},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stderr bytes.Buffer
			if code := run(over, tt.args, io.Discard, &stderr); code != tt.code || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("exit %d, want %d; stderr %q, want %q in it", code, tt.code, stderr.String(), tt.stderr)
			}
		})
	}
}
