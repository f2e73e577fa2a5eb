package main

import (
	"errors"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// execute replaces this process with a program on the virtual node.
func execute(args, env []string, std stdio) int {
	f := flags("exec", std)
	root := f.String("root", lookup(env, "GPUSIM_ROOT"), "host root `directory` of the node")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return exitOK
		}
		return exitUsage
	}
	if *root == "" || f.NArg() == 0 {
		fmt.Fprintln(std.err, "gpusim exec: --root and a command are required")
		return exitUsage
	}
	dir, err := filepath.Abs(*root)
	if err != nil {
		return fail(std, fmt.Errorf("cannot use root: %w", err))
	}
	env = nodeEnvironment(env, dir)
	path, err := findProgram(f.Arg(0), lookup(env, "PATH"))
	if err != nil {
		return fail(std, err)
	}
	return fail(std, fmt.Errorf("cannot run %s: %w", path, syscall.Exec(path, f.Args(), env)))
}

// nodeEnvironment returns the environment of a program on the node: the node's library and tools are first in the paths.
func nodeEnvironment(env []string, root string) []string {
	first := func(key, dir string) string {
		if old := lookup(env, key); old != "" {
			dir += ":" + old
		}
		return key + "=" + dir
	}
	own := []string{"GPUSIM_ROOT=" + root, first("LD_LIBRARY_PATH", root+"/usr/lib"), first("PATH", root+"/usr/bin")}
	var out []string
	for _, kv := range env {
		key, _, _ := strings.Cut(kv, "=")
		if key != "GPUSIM_ROOT" && key != "LD_LIBRARY_PATH" && key != "PATH" {
			out = append(out, kv)
		}
	}
	return append(out, own...)
}

// findProgram finds a program in the PATH of its own environment.
func findProgram(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(path) {
		if p, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("cannot find program %s", name)
}

// burn replaces this process with gpusim-burn.
func burn(args, env []string, std stdio) int {
	path, err := findInstalled("gpusim-burn")
	if err != nil {
		return fail(std, err)
	}
	return fail(std, fmt.Errorf("cannot run %s: %w", path, syscall.Exec(path, append([]string{"gpusim-burn"}, args...), env)))
}
