package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestDetect(t *testing.T) {
	systemd := t.TempDir()
	if err := os.MkdirAll(filepath.Join(systemd, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	bare, writable := t.TempDir(), t.TempDir()
	tests := []struct {
		name string
		opt  DetectOptions
		want Kind
	}{
		{"root under systemd", DetectOptions{Root: systemd, Mount: writable, UID: new(0)}, KindSystemd},
		{"root without systemd", DetectOptions{Root: bare, Mount: writable, UID: new(0)}, KindCgroupfs},
		{"root without a writable hierarchy", DetectOptions{Root: bare, Mount: filepath.Join(bare, "none"), UID: new(0)}, KindProcesses},
		{"a user under systemd", DetectOptions{Root: systemd, Mount: writable, UID: new(1000)}, KindProcesses},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, why := Detect(tt.opt)
			if got != tt.want || why == "" {
				t.Errorf("got %q because %q, want %q", got, why, tt.want)
			}
		})
	}
}
