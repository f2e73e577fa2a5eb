package mps

import (
	"context"
)

// Version is the CUDA version of the control program, "13.0"; empty when the program is too old to report it.
func (s *Supervisor) Version(ctx context.Context) (string, error) { return version(ctx, s.Control) }

// cachedVersion reads the version once: an upgraded package takes effect at the next start of gpushared.
func (s *Supervisor) cachedVersion(ctx context.Context) string {
	s.mu.Lock()
	known := s.version
	s.mu.Unlock()
	if known != nil {
		return *known
	}
	v, err := s.Version(ctx)
	if err != nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = &v
	return v
}
