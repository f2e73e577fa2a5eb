// Command standin is the stand-in of MPS as a program of its own, for tests that start it many times.
package main

import (
	"context"
	"os"

	"github.com/gpushare/gpushare/gpusim/mpsd"
)

func main() {
	os.Exit(mpsd.Main(context.Background(), os.Args, os.Environ(), os.Stdin, os.Stdout, os.Stderr))
}
