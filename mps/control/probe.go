package control

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/mps"
)

// maxProgram is the largest program file that is searched for its version, in bytes. The real ones have less than 1 MiB.
const maxProgram = 4 << 20

// driverIn returns the driver version that a program file contains; empty without one.
func driverIn(program string) (string, error) {
	info, err := os.Stat(program)
	if err != nil || info.Size() > maxProgram {
		return "", err
	}
	b, err := boundedread.Trusted(program, maxProgram)
	if err != nil {
		return "", err
	}
	return mps.DriverIn(b), nil
}

// probe identifies a control program. It starts no daemon and connects to none.
func probe(ctx context.Context, program string) (mps.Release, error) {
	var r mps.Release
	driver, err := driverIn(program)
	if err != nil {
		return r, fmt.Errorf("cannot identify the MPS control program: %w", err)
	}
	if driver != "" {
		number, _, _ := strings.Cut(driver, ".")
		if r.Branch, err = strconv.Atoi(number); err != nil {
			return r, fmt.Errorf("cannot identify the MPS control program: %w", err)
		}
		r.Driver = driver
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	// A directory without a daemon: early versions take -v for no option and look for one.
	out, stderr, err := run(ctx, program, []string{"-v"}, environment(program, "/nonexistent"), "")
	if err != nil {
		if _, ok := errors.AsType[*exec.ExitError](err); !ok {
			return mps.Release{}, fmt.Errorf("cannot run %s: %w", program, err)
		}
	}
	r.Early = bytes.Contains(stderr, noDaemon)
	if n, err := mps.ParseVersion(out); err == nil {
		r.CUDA = n
	}
	return r, nil
}
