// pod is the only program of the images of the tests. As "wait" it waits until it is ended. As "show PATH... -- COMMAND..." it prints what a
// container has, how an open of each path ends, and becomes the command, or waits without one.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

func main() {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	if len(os.Args) > 1 && os.Args[1] == "show" {
		paths, command := os.Args[2:], []string(nil)
		if i := slices.Index(paths, "--"); i >= 0 {
			paths, command = paths[:i], paths[i+1:]
		}
		show(paths)
		if len(command) > 0 {
			err := syscall.Exec(command[0], command, os.Environ())
			fmt.Fprintf(os.Stderr, "pod: cannot start %s: %v\n", command[0], err)
			os.Exit(1)
		}
	}
	<-end
}

// show prints the environment, the cgroup, how opens end, and at last "shown".
func show(paths []string) {
	environment := os.Environ()
	slices.Sort(environment)
	for _, e := range environment {
		fmt.Println("env", e)
	}
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		fmt.Print("cgroup ", string(b))
	}
	entries, err := os.ReadDir("/dev")
	if err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "nvidia") {
			fmt.Println("device /dev/" + e.Name())
		}
	}
	for _, p := range paths {
		fmt.Println("open", p, opened(p))
	}
	fmt.Println("shown")
}

// opened is how an open ends. The nodes of the virtual GPUs have no driver: an open that the kernel allows gets through to that.
func opened(path string) string {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	switch {
	case errors.Is(err, syscall.ENXIO):
		return "through"
	case errors.Is(err, syscall.EPERM):
		return "denied"
	case err != nil:
		return err.Error()
	}
	f.Close()
	return "through"
}
