package main

import (
	"context"
	"io"

	"github.com/gpushare/gpushare/gpusim/mpsd"
)

// mpsNames are the names with which this program replaces MPS: the host root has a link with the first, and the control
// daemon starts its server with the second.
var mpsNames = []string{mpsd.ControlName, mpsd.ServerName}

// mpsControl runs the program for those names. args[0] is the name, as in os.Args.
func mpsControl(ctx context.Context, args []string, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return mpsd.Main(ctx, args, env, stdin, stdout, stderr)
}
