package enforce

// noteExits reports to the quota that those which got SIGTERM have ended. The lease may have other processes by now, as a container that
// is started again.
func (s *sampler) noteExits() {
	if a := s.attempt; !s.sending && a != nil && a.processes != nil && a.processes.Ended() {
		s.control.Escalation.Exited(a.lease)
		s.forgetAttempt()
	}
}
