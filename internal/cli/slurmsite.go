package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/version"
)

// compareSite adds to a comparison whether the scripts of 'gpushare slurm install' are there, are of this version, and are run, and whether
// what Slurm runs is there. Where no script of gpushare is there it is a note: a site may have scripts of its own.
func (a *app) compareSite(ctx context.Context, dir string, out *api.SlurmCheck) {
	var written []slurm.Script
	for _, s := range slurm.Scripts() {
		path := filepath.Join(dir, s.File)
		have, was, err := siteScript(path)
		switch {
		case err != nil:
			out.Unknown = append(out.Unknown, err.Error())
		case have == "":
			continue
		case was == "":
			out.Notes = append(out.Notes, path+" is not of gpushare")
			continue
		case was != version.Version:
			differs(out, "'gpushare slurm install'", "%s is of gpushare %s, and this is %s", path, was, version.Version)
		}
		if problem := scriptProblem(path); problem != "" {
			differs(out, "'gpushare slurm install'", "%s: %s", path, problem)
		}
		written = append(written, s)
	}
	if len(written) == 0 {
		out.Notes = append(out.Notes, "no script of gpushare is in "+dir+": 'gpushare slurm install' writes what gives jobs a lease")
	}
	settings, err := a.slurmSettings(ctx)
	if err != nil {
		if len(written) > 0 {
			out.Unknown = append(out.Unknown, "which scripts Slurm runs: "+err.Error())
		}
		return
	}
	compareMissing(dir, settings, out)
	if len(written) > 0 {
		compareSettings(dir, written, settings, out)
	}
}

// slurmSettings are the settings of slurm.conf that slurmctld has.
func (a *app) slurmSettings(ctx context.Context) (map[string][]string, error) {
	text, err := a.slurmProgram(ctx, "scontrol", "show", "config")
	settings := slurm.Settings(text)
	if len(settings) == 0 {
		return nil, errors.New(why(err, "'scontrol show config' names no setting"))
	}
	return settings, nil
}

// compareMissing reports what Slurm runs and is not there, of gpushare or not: Slurm takes a pattern that matches nothing for a failure.
func compareMissing(dir string, settings map[string][]string, out *api.SlurmCheck) {
	for _, s := range slurm.Scripts() {
		for _, pattern := range s.Patterns(settings, dir) {
			if found, err := filepath.Glob(pattern); err != nil || len(found) > 0 {
				continue
			}
			differs(
				out, fmt.Sprintf("'gpushare slurm install', or remove %s from slurm.conf", s.Setting),
				"slurm.conf runs %s, which is not there: %s", pattern, s.Missing,
			)
		}
	}
}

func differs(out *api.SlurmCheck, remedy, format string, args ...any) {
	out.Differences = append(out.Differences, api.SlurmDifference{Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

// compareSettings compares what Slurm runs with the scripts that are there.
func compareSettings(dir string, written []slurm.Script, settings map[string][]string, out *api.SlurmCheck) {
	for _, s := range slurm.Scripts() {
		path := filepath.Join(dir, s.File)
		there := slices.ContainsFunc(written, func(o slurm.Script) bool { return o.File == s.File })
		runs := s.Runs(settings, dir)
		leases := s.Setting == "Prolog" || s.Setting == "Epilog"
		switch {
		case !there && leases:
			differs(out, "'gpushare slurm install'", "%s is not there", path)
		case there && !runs && leases:
			differs(out, "slurm.conf: "+s.Setting+"="+filepath.Join(dir, s.Pattern), "slurm.conf does not run %s", path)
		case there && !runs:
			out.Notes = append(out.Notes, fmt.Sprintf("slurm.conf does not run %s: %s=%s", path, s.Setting, filepath.Join(dir, s.Pattern)))
		}
	}
	comparePlugins(settings, out)
	flags := strings.Split(strings.Join(settings["PrologFlags"], ","), ",")
	for _, flag := range []string{"Alloc", "Contain"} {
		if !slices.Contains(flags, flag) {
			differs(
				out,
				"slurm.conf: add Alloc,Contain,RunInJob to PrologFlags, without RunInJob before 24.05",
				"PrologFlags of slurm.conf lacks %s",
				flag,
			)
		}
	}
}

// comparePlugins reports what leases need of Slurm besides the scripts. A setting that is not printed is not known.
func comparePlugins(settings map[string][]string, out *api.SlurmCheck) {
	has := func(name, value string) bool {
		list := strings.Split(strings.ToLower(strings.Join(settings[name], ",")), ",")
		return len(settings[name]) == 0 || slices.Contains(list, value)
	}
	if !has("ProctrackType", "proctrack/cgroup") {
		differs(
			out, "slurm.conf: ProctrackType=proctrack/cgroup, then restart slurmd",
			"jobs have no cgroup that a lease is bound to: ProctrackType is %s", strings.Join(settings["ProctrackType"], ","),
		)
	}
	if !has("TaskPlugin", "task/cgroup") {
		out.Notes = append(out.Notes, "each job may open the GPUs of others: add task/cgroup to TaskPlugin of slurm.conf")
	}
	if !has("ConstrainDevices", "yes") {
		out.Notes = append(out.Notes, "each job may open the GPUs of others: ConstrainDevices=yes is not in cgroup.conf")
	}
}
