package mps

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
)

// Release identifies a control program, as far as it says.
type Release struct {
	Driver string // "550.163.01", from the program file; empty when it has none
	Branch int    // 550; 0 when Driver is empty
	CUDA   int    // 13000 is CUDA 13.0; 0 when it reports none
	Early  bool   // it takes no options: 550 or older
}

// Text is the most exact version that the program has: of the driver, or of CUDA. Empty when it has neither.
func (r Release) Text() string { return cmp.Or(r.Driver, r.Version()) }

func (r Release) String() string {
	switch {
	case r.Driver != "":
		return r.Driver
	case r.CUDA != 0:
		return "of CUDA " + r.Version()
	case r.Early:
		return "of 550 or older"
	}
	return "of no known version"
}

// Version is the CUDA version, "13.0"; empty when the program does not report it.
func (r Release) Version() string {
	if r.CUDA == 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", r.CUDA/1000, r.CUDA%1000/10)
}

// maxProgram is the largest program file that is searched for its version, in bytes. The real ones have less than 1 MiB.
const maxProgram = 4 << 20

// driverText is a driver version, and maxDriverText the length of the longest in bytes.
var driverText = regexp.MustCompile(`^[4-9][0-9]{2}\.[0-9]{2,3}(?:\.[0-9]{2})?$`)

const maxDriverText = len("595.999.02")

// driverIn returns the driver version that a program file contains as a string of its own. Empty without one, and with more than one,
// because then it is not known which is its own.
func driverIn(program string) (string, error) {
	info, err := os.Stat(program)
	if err != nil || info.Size() > maxProgram {
		return "", err
	}
	b, err := boundedread.Trusted(program, maxProgram)
	if err != nil {
		return "", err
	}
	found := ""
	for text := range bytes.SplitSeq(b, []byte{0}) {
		if len(text) > maxDriverText || !driverText.Match(text) {
			continue
		}
		if found != "" {
			return "", nil
		}
		found = string(text)
	}
	return found, nil
}

// probe identifies a control program. It starts no daemon and connects to none.
func probe(ctx context.Context, program string) (Release, error) {
	var r Release
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
			return Release{}, fmt.Errorf("cannot run %s: %w", program, err)
		}
	}
	r.Early = bytes.Contains(stderr, noDaemon)
	if n, err := parseVersion(out); err == nil {
		r.CUDA = n
	}
	return r, nil
}
