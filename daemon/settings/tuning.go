package settings

import "time"

// Tuning is the settings that change while the daemon runs.
type Tuning struct {
	Converge, Sample time.Duration
}

// Tuning returns them. The log level too changes while the daemon runs.
func (s *Settings) Tuning() *Tuning {
	return &Tuning{Converge: time.Duration(s.ConvergeInterval), Sample: time.Duration(s.SampleInterval)}
}

// NeedRestart names the settings that differ in loaded and need a restart of the daemon.
func (s *Settings) NeedRestart(loaded *Settings) []string {
	waiting := []string{}
	for _, f := range []struct{ name, is, loaded string }{
		{"host_root", s.HostRoot, loaded.HostRoot},
		{"library", s.Library, loaded.Library},
		{"state_dir", s.StateDir, loaded.StateDir},
		{"run_dir", s.RunDir, loaded.RunDir},
		{"cdi_dir", s.CDIDir, loaded.CDIDir},
		{"socket", s.Socket, loaded.Socket},
		{"spec_file", s.SpecFile, loaded.SpecFile},
		{"worker", s.Worker, loaded.Worker},
		{"thaw", s.Thaw, loaded.Thaw},
		{"start", s.Start, loaded.Start},
		{"front", s.Front, loaded.Front},
		{"mps_control", s.MPSControl, loaded.MPSControl},
		{"getent", s.Getent, loaded.Getent},
		{"systemd", s.Systemd, loaded.Systemd},
		{"cgroup_root", s.CgroupRoot, loaded.CgroupRoot},
		{"logins_cgroup", s.LoginsCgroup, loaded.LoginsCgroup},
		{"metrics_address", s.MetricsAddress, loaded.MetricsAddress},
		{"metrics_web_config", s.MetricsWebConfig, loaded.MetricsWebConfig},
		{"job_files_dir", s.JobFilesDir, loaded.JobFilesDir},
		{"driver_read_timeout", s.DriverReadTimeout.String(), loaded.DriverReadTimeout.String()},
		{"driver_change_timeout", s.DriverChangeTimeout.String(), loaded.DriverChangeTimeout.String()},
	} {
		if f.is != f.loaded {
			waiting = append(waiting, f.name)
		}
	}
	return waiting
}
