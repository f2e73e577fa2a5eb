// attacker is a process of a user that is hard to read or to end, in the guests: one of the programs of the test packages hostile,
// silentfs and tracing, which its environment names. With the argument "list" it lists the clients of hostile that run in a guest.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpushare/gpushare/test/hostile"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "list" {
		fmt.Print(strings.Join(hostile.Lines(), ""))
		return
	}
	tracing.Main()
	hostile.Main()
	silentfs.Main()
	fmt.Fprintln(os.Stderr, "attacker: the environment names no program")
	os.Exit(2)
}
