// attacker is a process of a user that is hard to read or to end, in the guests: one of the programs of the test packages hostile,
// silentfs and tracing, which its environment names.
package main

import (
	"fmt"
	"os"

	"github.com/gpushare/gpushare/test/hostile"
	"github.com/gpushare/gpushare/test/silentfs"
	"github.com/gpushare/gpushare/test/tracing"
)

func main() {
	tracing.Main()
	hostile.Main()
	silentfs.Main()
	fmt.Fprintln(os.Stderr, "attacker: the environment names no program")
	os.Exit(2)
}
