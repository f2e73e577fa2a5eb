//go:build faultpoint

package faultpoint

import (
	"fmt"
	"os"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// hits counts the matching places that this process passed.
var hits atomic.Int64

// Hit marks the named place. GPUSHARE_FAULT=pattern:kill[@n] sends the process SIGKILL at the nth place (default the first)
// whose name matches the pattern, in which * matches any text; with pattern:stop it sends SIGSTOP, and the process continues
// there after SIGCONT; GPUSHARE_FAULT=pattern:trace only reports the place on standard error. GPUSHARE_FAULT_STAMP names a file that is created before the kill and prevents a second one, so that the
// restarted process passes the place.
func Hit(name string) {
	fault := os.Getenv("GPUSHARE_FAULT")
	pattern, action, ok := strings.Cut(fault, ":")
	if !ok {
		return
	}
	if matches, err := path.Match(pattern, name); err != nil || !matches {
		return
	}
	n := hits.Add(1)
	action, nth, _ := strings.Cut(action, "@")
	if at, err := strconv.ParseInt(nth, 10, 64); err == nil && n != at || nth == "" && n != 1 && action != "trace" {
		return
	}
	fmt.Fprintf(os.Stderr, "fault point %s, passed %d times\n", name, n)
	if action != "kill" && action != "stop" {
		return
	}
	if stamp := os.Getenv("GPUSHARE_FAULT_STAMP"); stamp != "" {
		f, err := os.OpenFile(stamp, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return
		}
		fmt.Fprintln(f, name)
		f.Close()
	}
	if action == "stop" {
		if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
			panic("internal error: cannot stop this process: " + err.Error())
		}
		return
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
		panic("internal error: cannot kill this process: " + err.Error())
	}
	select {} // until the signal arrives
}
