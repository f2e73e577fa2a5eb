// Command report reads a pipe from 'go test -json' or 'go test -v': it prints the packages and what failed, and adds to a file
// how long each test took. With -slowest it prints the slowest tests of that file.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/test/results"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errs io.Writer) int {
	f := flag.NewFlagSet("report", flag.ContinueOnError)
	f.SetOutput(errs)
	file := f.String("times", "", "the `file` of times")
	step := f.String("step", "", "the `name` of the run that is read")
	slowest := f.Int("slowest", 0, "print the slowest tests, this `many`, and read no input")
	if err := f.Parse(args); err != nil {
		return 2
	}
	if *file == "" || f.NArg() > 0 {
		f.Usage()
		return 2
	}
	var err error
	if *slowest > 0 {
		err = show(*file, *slowest, out)
	} else {
		err = add(*file, *step, in, out)
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}

// add reads results and adds their times to the file.
func add(file, step string, in io.Reader, out io.Writer) error {
	tests, err := results.Read(in, out)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("cannot open the times: %w", err)
	}
	defer f.Close()
	for _, t := range tests {
		if t.Name == "" {
			continue
		}
		if _, err := fmt.Fprintf(f, "%.2f\t%s\t%s\t%s\n", t.Seconds, step, t.Package, t.Name); err != nil {
			return fmt.Errorf("cannot write the times: %w", err)
		}
	}
	return nil
}

// show prints the slowest tests.
func show(file string, n int, out io.Writer) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("cannot open the times: %w", err)
	}
	defer f.Close()
	var tests []results.Test
	s := bufio.NewScanner(f)
	for s.Scan() {
		fields := strings.Split(s.Text(), "\t")
		if len(fields) != 4 {
			return fmt.Errorf("cannot read the times: %q", s.Text())
		}
		seconds, err := strconv.ParseFloat(fields[0], 64)
		if err != nil {
			return fmt.Errorf("cannot read the times: %w", err)
		}
		tests = append(tests, results.Test{Package: fields[1], Name: strings.TrimSpace(fields[2] + " " + fields[3]), Seconds: seconds})
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("cannot read the times: %w", err)
	}
	fmt.Fprintf(out, "the %d slowest of %d tests, in seconds with what they waited for others:\n", min(n, len(tests)), len(tests))
	for _, t := range results.Slowest(tests, n) {
		fmt.Fprintf(out, "%8.1f  %-24s %s\n", t.Seconds, t.Package, t.Name)
	}
	return nil
}
