// Command gpushare-plot draws a chart that it reads as JSON from standard input, and writes the image to standard output. It is what
// 'gpushare usage --plot FILE' executes. It opens no file and no socket.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpushare/gpushare/internal/chart"
	"github.com/gpushare/gpushare/internal/plotimage"
	"github.com/gpushare/gpushare/internal/version"
)

// mostInput bounds what is read: the chart of the longest answer of the daemon has less than 1 MiB.
const mostInput = 16 << 20

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run expects the format. It returns 0, 1 after a failure, 2 for wrong usage.
func run(args []string, in io.Reader, out, errs io.Writer) int {
	if len(args) == 1 && args[0] == "--version" {
		fmt.Fprintln(out, "gpushare-plot "+version.Version)
		return 0
	}
	if len(args) != 1 || (args[0] != plotimage.SVG && args[0] != plotimage.PNG) {
		fmt.Fprintln(errs, "gpushare-plot: usage: gpushare-plot svg|png < CHART.json > IMAGE")
		return 2
	}
	var c chart.Chart
	err := json.NewDecoder(io.LimitReader(in, mostInput)).Decode(&c)
	if err == nil {
		err = plotimage.Draw(out, &c, args[0], time.Local)
	}
	if err != nil {
		fmt.Fprintf(errs, "gpushare-plot: cannot draw the chart: %v\n", err)
		return 1
	}
	return 0
}
