package isolation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A node is missing when it does not exist, is no device, or has the numbers of an earlier load of the driver.
func TestMissingNodes(t *testing.T) {
	h := machine(t)
	rules, _, err := Rules(h, []Target{{GPU: "GPU-0", Instance: &h.GPUs[0].Instances[0].Placement}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	access := fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", h.Host.Caps["gpu3/gi2/access"])
	for _, tt := range []struct {
		name    string
		change  func(path string) error // to the node of the instance's capability
		uvm     bool
		missing string
	}{
		{name: "all are there", uvm: true},
		{name: "missing", uvm: true, change: os.Remove, missing: access + ": it does not exist: -f /proc/driver/nvidia/capabilities/gpu3/mig/gi2/access"},
		{name: "of an earlier load", uvm: true, missing: access + ": it is the device 1:3, and the driver has 236:", change: func(path string) error {
			return errors.Join(os.Remove(path), os.Symlink("/dev/null", path))
		}},
		{name: "a directory", uvm: true, missing: access + ": it is no device", change: func(path string) error {
			return errors.Join(os.Remove(path), os.Mkdir(path, 0o755))
		}},
		{name: "without the module", missing: "/dev/nvidia-uvm: the module nvidia-uvm is not loaded, and CUDA needs it: -u -c 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for _, r := range rules {
				path := filepath.Join(root, r.Name)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			if tt.change != nil {
				if err := tt.change(filepath.Join(root, access)); err != nil {
					t.Fatal(err)
				}
			}
			host := machine(t).Host
			if !tt.uvm {
				delete(host.Majors, "nvidia-uvm")
			}
			var got []string
			for _, m := range MissingNodes(&host, root, rules) {
				got = append(got, m.Name+": "+m.Reason+": "+strings.Join(m.Helper, " "))
				if !m.Unloaded && len(m.Commands) != 3 {
					t.Errorf("%s is made by %v", m.Name, m.Commands)
				}
			}
			if len(got) > 1 || !strings.HasPrefix(strings.Join(got, ""), tt.missing) || tt.missing == "" && len(got) > 0 {
				t.Errorf("missing are %q, want %q", got, tt.missing)
			}
		})
	}
	if got := MissingNodes(&h.Host, "/nonexistent", nil); len(got) > 0 {
		t.Errorf("without a GPU %v is missing", got)
	}
}

// A node gets the mode and the owner that the driver asks for, and no program makes it where the driver says so.
func TestModesOfMissingNodes(t *testing.T) {
	h := machine(t)
	rules, _, err := Rules(h, []Target{{GPU: "GPU-0", Instance: &h.GPUs[0].Instances[0].Placement}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	capability := "proc/driver/nvidia/capabilities/gpu3/mig/gi2/access"
	access := fmt.Sprintf("nvidia-caps/nvidia-cap%d", h.Host.Caps["gpu3/gi2/access"])
	for _, tt := range []struct {
		name, file, text, node string
		mode                   string // of mknod
		last                   string // the last command but for the path
		manual                 string // why no program makes it
		commands               int
	}{
		{name: "a GPU without parameters", node: "nvidia3", mode: "666", commands: 2},
		{
			name: "a GPU of a group", node: "nvidia3", mode: "660", last: "chown 0:44", commands: 3,
			file: paramsFile, text: "ResmanDebugLevel: 4294967295\nModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\nRegistryDwords: \"\"\nDeviceFileMode: 511\n",
		},
		{
			name: "a GPU of an administrator", node: "nvidia3", mode: "660", commands: 2, manual: paramsFile,
			file: paramsFile, text: "ModifyDeviceFiles: 0\nDeviceFileMode: 432\n",
		},
		{
			name: "unified memory has no parameters", node: "nvidia-uvm", mode: "666", commands: 2,
			file: paramsFile, text: "ModifyDeviceFiles: 0\nDeviceFileMode: 432\n",
		},
		{
			name: "nor has a capability", node: access, mode: "444", commands: 3,
			file: paramsFile, text: "ModifyDeviceFiles: 0\nDeviceFileMode: 432\n",
		},
		{
			name: "a capability has a mode of its own", node: access, mode: "400", commands: 3,
			file: capability, text: "DeviceFileMinor: 21\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
		},
		{
			name: "a capability of an administrator", node: access, mode: "400", commands: 3, manual: "/" + capability,
			file: capability, text: "DeviceFileMinor: 21\nDeviceFileMode: 256\nDeviceFileModify: 0\n",
		},
		{name: "a file that cannot be read", node: "nvidia3", file: filepath.Join(paramsFile, "x"), commands: 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			if tt.file != "" {
				path := filepath.Join(root, tt.file)
				if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(tt.text), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			all := MissingNodes(&h.Host, root, rules)
			i := slices.IndexFunc(all, func(m MissingNode) bool { return m.Name == "/dev/"+tt.node })
			if i < 0 {
				t.Fatalf("%s is not missing: %+v", tt.node, all)
			}
			m := &all[i]
			if len(m.Commands) != tt.commands {
				t.Fatalf("it is made by %q", m.Commands)
			}
			path := filepath.Join(root, m.Name)
			if m.Manual != (tt.manual != "") || !strings.Contains(m.Reason, tt.manual) {
				t.Errorf("it is missing because %s", m.Reason)
			}
			if tt.commands == 0 {
				return
			}
			if text := m.Command(); m.Manual != strings.Contains(text, "rm -f "+path+" && mknod -m "+tt.mode) ||
				m.Manual == strings.Contains(text, "nvidia-modprobe") {
				t.Errorf("people make it with %s", text)
			}
			at := slices.IndexFunc(m.Commands, func(argv []string) bool { return argv[0] == "mknod" })
			if at < 0 || m.Commands[at][2] != tt.mode {
				t.Errorf("it is made by %q, want the mode %s", m.Commands, tt.mode)
			}
			if last := strings.Join(m.Commands[len(m.Commands)-1], " "); tt.last != "" && last != tt.last+" "+path {
				t.Errorf("the last command is %s", last)
			}
		})
	}
}
