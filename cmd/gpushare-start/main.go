// Command gpushare-start becomes a program of a tenant's, once it stands behind the walls of its lease and the daemon
// gives the word. With --keep it is, where no service manager is, the parent of such a one: it keeps the output and the
// exit code. Nobody but gpushared starts it.
package main

import (
	"fmt"
	"os"

	"github.com/gpushare/gpushare/internal/launch"
	"github.com/gpushare/gpushare/internal/version"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	switch {
	case len(args) == 0:
		return launch.Become()
	case args[0] == "--version":
		fmt.Println("gpushare-start " + version.Version)
		return 0
	case args[0] == "--keep" && (len(args) == 3 || len(args) == 4 && args[3] == "cgroup"):
		return launch.Keep(args[1], args[2], len(args) == 4)
	}
	fmt.Fprintln(os.Stderr, "gpushare-start: it is started by gpushared, with a connection to it; see gpushare run --detach")
	return 2
}
