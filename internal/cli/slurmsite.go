package cli

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/version"
)

// compareSite adds to a comparison whether the scripts of 'gpushare slurm install' are there, are of this version, and are run. Where none
// is there it is a note: a site may have scripts of its own.
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
		written = append(written, s)
	}
	if len(written) == 0 {
		out.Notes = append(out.Notes, "no script of gpushare is in "+dir+": 'gpushare slurm install' writes what gives jobs a lease")
		return
	}
	text, err := a.slurmProgram(ctx, "scontrol", "show", "config")
	settings := slurm.Settings(text)
	if len(settings) == 0 {
		out.Unknown = append(out.Unknown, "which scripts Slurm runs: "+why(err, "'scontrol show config' names no setting"))
		return
	}
	a.compareSettings(dir, written, settings, out)
}

func differs(out *api.SlurmCheck, remedy, format string, args ...any) {
	out.Differences = append(out.Differences, api.SlurmDifference{Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

// compareSettings compares what Slurm runs with the scripts that are there.
func (a *app) compareSettings(dir string, written []slurm.Script, settings map[string][]string, out *api.SlurmCheck) {
	for _, s := range slurm.Scripts() {
		path := filepath.Join(dir, s.File)
		there := slices.ContainsFunc(written, func(o slurm.Script) bool { return o.File == s.File })
		runs := s.Runs(settings, dir)
		leases := s.Setting == "Prolog" || s.Setting == "Epilog"
		switch {
		case !there && s.Setting == "TaskProlog" && runs:
			differs(out, "'gpushare slurm install', or remove TaskProlog", "slurm.conf runs %s, which is not there: no task starts", path)
		case !there && leases:
			differs(out, "'gpushare slurm install'", "%s is not there", path)
		case there && !runs && leases:
			differs(out, "slurm.conf: "+s.Setting+"="+filepath.Join(dir, s.Pattern), "slurm.conf does not run %s", path)
		case there && !runs:
			out.Notes = append(out.Notes, fmt.Sprintf("slurm.conf does not run %s: %s=%s", path, s.Setting, filepath.Join(dir, s.Pattern)))
		}
	}
	flags := strings.Split(strings.Join(settings["PrologFlags"], ","), ",")
	for _, flag := range []string{"Alloc", "Contain"} {
		if !slices.Contains(flags, flag) {
			differs(
				out,
				"slurm.conf: PrologFlags=Alloc,Contain,RunInJob, without RunInJob before 24.05",
				"PrologFlags of slurm.conf lacks %s",
				flag,
			)
		}
	}
}
