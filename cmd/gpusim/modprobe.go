package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/gpusim"
	"github.com/gpushare/gpushare/gpusim/hostroot"
	"github.com/gpushare/gpushare/gpusim/server"
)

// modprobe replaces nvidia-modprobe for -u (load nvidia-uvm), -m (load nvidia-modeset), -c MINOR (with -u a node of nvidia-uvm, else of a
// GPU) and -f FILE (the node of a capability). As the vendor's program it reads what it makes from /proc, is silent, and exits with 1
// when it could not do it.
func modprobe(ctx context.Context, args, env []string, std stdio) int {
	f := flags("nvidia-modprobe", std)
	var uvm, modeset bool
	var minors, files []string
	f.BoolVar(&uvm, "u", false, "")
	f.BoolVar(&modeset, "m", false, "")
	list := func(to *[]string) func(string) error {
		return func(s string) error { *to = append(*to, s); return nil }
	}
	f.Func("c", "", list(&minors))
	f.Func("f", "", list(&files))
	if err := f.Parse(args); err != nil {
		return exitFailed
	}
	root, err := nodeOf(env)
	if err != nil {
		return fail(std, err)
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	load := func(name string) bool {
		_, err := server.Control(ctx, root, server.Command{Do: server.DoModule, Name: name})
		return err == nil
	}
	if uvm && !load(gpusim.ModuleUVM) || modeset && !load(gpusim.ModuleModeset) {
		return exitFailed
	}
	for _, minor := range minors {
		if !makeMinor(root, minor, uvm) {
			return exitFailed
		}
	}
	for _, file := range files {
		minor, mode, modify, err := deviceFile(root, file)
		if err != nil ||
			modify && makeNode(root, fmt.Sprintf("nvidia-caps/nvidia-cap%d", minor), "nvidia-caps", minor, os.FileMode(mode)) != nil {
			return exitFailed
		}
	}
	return exitOK
}

// deviceFile reads what the driver asks for of a node. Without modify nothing makes it, and that is a success.
func deviceFile(root, path string) (minor, mode uint32, modify bool, err error) {
	b, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		return 0, 0, false, err
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil {
			break
		}
		switch name {
		case "DeviceFileMinor":
			minor = uint32(n)
		case "DeviceFileMode":
			mode = uint32(n)
		case "ModifyDeviceFiles", "DeviceFileModify":
			modify = n == 1
		}
	}
	return minor, mode, modify, nil
}

// makeNode makes a node with the major of its driver in /proc/devices, real if the others are.
func makeNode(root, name, driver string, minor uint32, mode os.FileMode) error {
	b, err := os.ReadFile(filepath.Join(root, "proc/devices"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) != 2 || words[1] != driver {
			continue
		}
		major, err := strconv.ParseUint(words[0], 10, 12)
		if err != nil {
			return err
		}
		st, err := os.Stat(filepath.Join(root, "dev/nvidiactl"))
		return hostroot.MakeNode(root, name, uint32(major), minor, mode, err == nil && st.Mode()&os.ModeCharDevice != 0)
	}
	return fmt.Errorf("no driver %s", driver)
}

// makeMinor makes the node of a minor, of a GPU or of unified memory.
func makeMinor(root, minor string, uvm bool) bool {
	n, err := strconv.ParseUint(minor, 10, 20)
	if err != nil {
		return false
	}
	name, driver := "nvidia"+minor, "nvidia"
	switch {
	case uvm && n == 0:
		name, driver = "nvidia-uvm", "nvidia-uvm"
	case uvm:
		name, driver = "nvidia-uvm-tools", "nvidia-uvm"
	case n == 255:
		name = "nvidiactl"
	}
	mode, modify := uint32(0o666), true // The nodes of unified memory have no parameters.
	if driver == "nvidia" {
		_, mode, modify, err = deviceFile(root, "proc/driver/nvidia/params")
	}
	return err == nil && (!modify || makeNode(root, name, driver, uint32(n), os.FileMode(mode)) == nil)
}
