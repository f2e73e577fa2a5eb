package status

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/state"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/external"
	"github.com/gpushare/gpushare/internal/slurm"
	"github.com/gpushare/gpushare/internal/version"
)

// checkSlurmScripts says whether Slurm's Prolog and Epilog of gpushare are there and of this version, where Slurm places on a GPU: without
// them its jobs have no lease. Whether slurm.conf runs them only Slurm knows.
func checkSlurmScripts(
	root string, o *external.Host, want *state.Desired, ok func(name, message string), warn func(name, message, hint string),
) {
	places := false
	for _, g := range want.GPUs {
		places = places || g.Engine() == api.OwnerSlurm
	}
	if o.Slurmd == 0 || !places {
		return
	}
	const name, hint = "slurm scripts", "'gpushare slurm install' writes them; 'gpushare slurm check' says whether Slurm runs them"
	dir := slurmDirectory(root, o.Slurmd)
	if dir == "" {
		ok(name, "Slurm's files are in no usual directory: 'gpushare slurm check --dir DIR' says whether Prolog and Epilog are there")
		return
	}
	for _, s := range slurm.Scripts() {
		if s.Setting != "Prolog" && s.Setting != "Epilog" {
			continue
		}
		path := filepath.Join(dir, s.File)
		text, err := boundedread.Trusted(filepath.Join(root, path), boundedread.Settings)
		was, known := slurm.HeaderOf(string(text))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			warn(name, fmt.Sprintf("%s is not there: unless the site has an own %s, jobs get no lease", path, s.Setting), hint)
			return
		case err != nil:
			warn(name, err.Error(), hint)
			return
		case !known:
			warn(name, path+" is not of gpushare", hint)
			return
		case was != version.Version:
			warn(name, fmt.Sprintf("%s is of gpushare %s, and gpushared is %s", path, was, version.Version), hint)
			return
		}
	}
	ok(name, "Prolog and Epilog of this version are in "+dir+"; 'gpushare slurm check' says whether Slurm runs them")
}
