package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"github.com/gpushare/gpushare/test/results"
)

// pkg is a package that has tests.
type pkg struct {
	name string // as a person writes it in the root of the module
	cgo  bool   // it has C
	left left   // what 'make test' leaves of it
}

// packages are all packages of the module that have tests.
func packages(ctx context.Context) ([]pkg, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-json=Dir,ImportPath,CgoFiles,TestGoFiles,XTestGoFiles", "./...")
	cmd.Env = append(os.Environ(), withCgo...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w", err)
	}
	var out []pkg
	for d := json.NewDecoder(pipe); err == nil; {
		var p struct {
			Dir, ImportPath                     string
			CgoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err = d.Decode(&p); err != nil {
			break
		}
		files := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if len(files) == 0 {
			continue
		}
		var l left
		if l, err = readLeft(p.Dir, files); err == nil {
			out = append(out, pkg{results.Short(p.ImportPath), len(p.CgoFiles) > 0, l})
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return nil, fmt.Errorf("cannot list the packages: %w", err)
	}
	return out, nil
}
