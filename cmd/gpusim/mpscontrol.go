package main

import (
	"context"
	"io"

	"github.com/gpushare/gpushare/gpusim/mpsd"
)

// mpsNames are the names under which this program is the MPS stand-in instead of gpusim: the host root links to it by the
// first, and the control daemon starts its server by the second.
var mpsNames = []string{mpsd.ControlName, mpsd.ServerName}

// mpsControl is the program for those names. args[0] is the name, as in os.Args.
func mpsControl(ctx context.Context, args []string, env []string, stdin io.Reader, stdout, stderr io.Writer) int {
	return mpsd.Main(ctx, args, env, stdin, stdout, stderr)
}
