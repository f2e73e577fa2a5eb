package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

func TestInUse(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  InUse
		bad   bool
	}{
		{name: "no controllers"},
		{
			name: "everything",
			files: map[string]string{
				"memory.current": "1000000\n",
				"memory.stat":    "anon 500000\nfile 400000\nactive_file 100000\ninactive_file 200000\nslab_reclaimable 50000\n",
				"pids.current":   "12\n",
				"cpu.stat":       "usage_usec 2500000\nuser_usec 1\n",
			},
			want: InUse{Memory: new(uint64(650000)), Tasks: new(uint64(12)), CPU: new(2500 * time.Millisecond)},
		},
		{
			// The files are read one after the other, so the sum of the parts may exceed memory.current.
			name:  "more cache than memory",
			files: map[string]string{"memory.current": "100\n", "memory.stat": "inactive_file 200\n"},
			want:  InUse{Memory: new(uint64(0))},
		},
		{
			name:  "only memory",
			files: map[string]string{"memory.current": "4096\n", "memory.stat": "anon 4096\n"},
			want:  InUse{Memory: new(uint64(4096))},
		},
		{name: "half of what is needed for memory", files: map[string]string{"memory.current": "4096\n"}},
		{name: "no number", files: map[string]string{"pids.current": "max\n"}, bad: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Hierarchy{Mount: t.TempDir()}
			if err := os.Mkdir(h.Dir("/a"), 0o755); err != nil {
				t.Fatal(err)
			}
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(h.Dir("/a"), name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := h.InUse("/a")
			if (err != nil) != tt.bad {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && !tt.bad {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	h := Hierarchy{Mount: t.TempDir()}
	for name, text := range map[string]string{"memory.current": "4096\n", "memory.stat": "anon 4096\n", "pids.current": "12\n"} {
		if err := os.WriteFile(filepath.Join(h.Mount, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(h.Mount, "cpu.stat"), 0o755); err != nil {
		t.Fatal(err)
	}
	part, err := h.InUse("/")
	if diff := cmp.Diff(InUse{Memory: new(uint64(4096)), Tasks: new(uint64(12))}, part); err == nil || diff != "" {
		t.Errorf("when one file cannot be read: %v (-want +got):\n%s", err, diff)
	}
	if _, err := (Hierarchy{Mount: t.TempDir()}).InUse("/none"); !errors.Is(err, ErrNotFound) {
		t.Errorf("a missing cgroup: %v", err)
	}
}

func TestOpenDevices(t *testing.T) {
	self := os.Getpid()
	start, err := procfs.Start(self)
	if err != nil {
		t.Fatal(err)
	}
	opened := func() []DeviceRule {
		rules, err := OpenDevices([]Process{{PID: self, Start: start}, {PID: 1 << 30}})
		if err != nil {
			t.Fatal(err)
		}
		return rules
	}
	full := func(r DeviceRule) bool { return r.Type == 'c' && r.Major == 1 && r.Minor == 7 }
	if i := slices.IndexFunc(opened(), full); i >= 0 {
		t.Skip("needs a test process without an open /dev/full")
	}
	for range 2 { // opened twice is one device
		f, err := os.Open("/dev/full")
		if err != nil {
			t.Skipf("needs /dev/full: %v", err)
		}
		defer f.Close()
	}
	rules := opened()
	i := slices.IndexFunc(rules, full)
	if i < 0 || rules[i].Name != "/dev/full" || rules[i].Access != "rw" {
		t.Fatalf("open are %v", rules)
	}
	if slices.ContainsFunc(rules[i+1:], full) {
		t.Errorf("it is listed twice: %v", rules)
	}
}
