// Command gpushare-start executes a detached program of a tenant, inside the isolation of its lease, when the daemon sends
// the program. With --supervise it is the parent of such a process, on hosts without a service manager: it keeps the output
// and the exit code. With --signals it sends signals that a profile of AppArmor keeps the daemon from. Only gpushared starts it.
package main

import (
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/relay"
	"github.com/gpushare/gpushare/internal/version"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	switch {
	case len(args) == 0:
		return launch.Exec(false)
	case len(args) == 1 && args[0] == launch.SupervisedFlag:
		return launch.Exec(true)
	case len(args) == 1 && args[0] == relay.Flag:
		if err := relay.Serve(0); err != nil {
			fmt.Fprintf(stderr, "gpushare-start: cannot relay signals: %v\n", err)
			return 1
		}
		return 0
	case args[0] == "--version":
		fmt.Fprintln(stdout, "gpushare-start "+version.Version)
		return 0
	case args[0] == "--supervise" && (len(args) == 4 || len(args) == 5 && args[4] == "cgroup"):
		if kept, err := strconv.ParseInt(args[3], 10, 64); err == nil && kept > 0 {
			return launch.Supervise(args[1], args[2], kept, len(args) == 5)
		}
	}
	fmt.Fprintln(stderr, "gpushare-start: only gpushared starts this program; see gpushare run --detach")
	return 2
}
