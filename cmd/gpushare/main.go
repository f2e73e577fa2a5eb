// Command gpushare requests leases for gpushare run, and leaves all else to the command line, gpushare-cli. It is wiring only: see
// internal/enter.
package main

import (
	"os"

	"github.com/gpushare/gpushare/internal/enter"
)

func main() { os.Exit(enter.Run(os.Args, os.Environ(), os.Stderr)) }
