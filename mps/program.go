package mps

import (
	"context"
	"fmt"
	"os"
)

// Program is the control program that is installed now.
type Program struct {
	Release
	Abilities
	Missing string // why there is none; empty if there is one
	Unknown string // why little is known of it; empty if it is known
}

// Program identifies the control program. It runs it once for each installed file.
func (s *Supervisor) Program(ctx context.Context) Program {
	r, err := s.release(ctx)
	if err != nil {
		return Program{Missing: err.Error()}
	}
	p := Program{Release: r}
	p.Abilities, p.Unknown = r.Abilities()
	return p
}

// Differs returns how the program does not belong to the driver, whose CUDA version is 13000 for 13.0; empty if it does, as far
// as it is known. Client, server and driver must have one version: https://docs.nvidia.com/deploy/mps.
func (r Release) Differs(driver string, cuda int) string {
	switch {
	case r.Driver != "" && driver != "" && r.Driver != driver:
	case r.Driver == "" && r.CUDA != 0 && cuda != 0 && r.CUDA/10 != cuda/10:
	default:
		return ""
	}
	return fmt.Sprintf("the MPS control program is %s and the driver is %s (CUDA %s)", r, driver, Release{CUDA: cuda}.Version())
}

// release is probe of the program that is installed now; an upgraded package is identified again.
func (s *Supervisor) release(ctx context.Context) (Release, error) {
	info, err := os.Stat(s.Control)
	if err != nil {
		return Release{}, fmt.Errorf("cannot identify the MPS control program: %w", err)
	}
	s.mu.Lock()
	known := s.probed
	s.mu.Unlock()
	if known != nil && os.SameFile(known.file, info) && known.file.ModTime().Equal(info.ModTime()) && known.file.Size() == info.Size() {
		return known.release, nil
	}
	r, err := probe(ctx, s.Control)
	if err != nil {
		return r, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probed = &probed{file: info, release: r}
	return r, nil
}

// probed is an identified program file.
type probed struct {
	file    os.FileInfo
	release Release
}

// abilities are those of the control program that is installed now.
func (s *Supervisor) abilities(ctx context.Context) (Abilities, error) {
	r, err := s.release(ctx)
	if err != nil {
		return Abilities{}, err
	}
	can, unknown := r.Abilities()
	if unknown != "" {
		s.Log.Warn("the abilities of the MPS program are not known", "reason", unknown)
	}
	return can, nil
}
