package control

import (
	"context"
	"fmt"
	"os"

	"github.com/gpushare/gpushare/mps"
)

// Program identifies the control program. It runs it once for each installed file.
func (s *Supervisor) Program(ctx context.Context) mps.Program {
	r, err := s.release(ctx)
	if err != nil {
		return mps.Program{Missing: err.Error()}
	}
	p := mps.Program{Release: r}
	p.Abilities, p.Unknown = r.Abilities()
	return p
}

// release is probe of the program that is installed now; an upgraded package is identified again.
func (s *Supervisor) release(ctx context.Context) (mps.Release, error) {
	info, err := os.Stat(s.Control)
	if err != nil {
		return mps.Release{}, fmt.Errorf("cannot identify the MPS control program: %w", err)
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
	release mps.Release
}

// abilities are those of the control program that is installed now.
func (s *Supervisor) abilities(ctx context.Context) (mps.Abilities, error) {
	r, err := s.release(ctx)
	if err != nil {
		return mps.Abilities{}, err
	}
	can, unknown := r.Abilities()
	if unknown != "" {
		s.Log.Warn("the abilities of the MPS program are not known", "reason", unknown)
	}
	return can, nil
}
