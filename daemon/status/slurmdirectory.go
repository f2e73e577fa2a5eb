package status

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/slurm"
)

// usualSlurm are the directories of packages and of usual builds.
var usualSlurm = []string{slurm.Directory, "/usr/local/etc/slurm", "/opt/slurm/etc", "/etc/slurm-llnl", "/usr/local/etc"}

// cachedSlurm are where a slurmd has slurm.conf that gets it from slurmctld. The scripts are elsewhere.
var cachedSlurm = []string{"/run/slurm/conf", "/var/spool/slurmd/conf-cache"}

// slurmDirectory is where the scripts of 'gpushare slurm install' are: what slurm.conf names as Prolog, else next to slurm.conf, which is
// what slurmd has as an argument, what it was built for, or in a usual directory. Empty: in none of them.
func slurmDirectory(root string, slurmd int) string {
	dirs := slices.Concat(slurmdDirectories(root, slurmd), usualSlurm)
	var named []string
	for _, dir := range slices.Concat(dirs, cachedSlurm) {
		text, err := boundedread.Trusted(filepath.Join(root, dir, "slurm.conf"), boundedread.Settings)
		if err == nil {
			named = append(named, slurm.PrologDirectories(string(text), dir)...)
		}
	}
	dirs = slices.Concat(named, dirs)
	for _, file := range []string{slurm.Scripts()[0].File, "slurm.conf"} {
		for _, dir := range dirs {
			if _, err := os.Stat(filepath.Join(root, dir, file)); err == nil {
				return dir
			}
		}
	}
	if _, err := os.Stat(filepath.Join(root, slurm.Directory)); err == nil {
		return slurm.Directory // It may have other files.
	}
	return ""
}

// slurmdDirectories are the directories in which a slurmd that runs may have slurm.conf: by its arguments or its environment, and by where
// its program is. What cannot be read is left out.
func slurmdDirectories(root string, pid int) (dirs []string) {
	proc := filepath.Join(root, "proc", fmt.Sprint(pid))
	read := func(name string) []string {
		b, err := boundedread.Trusted(filepath.Join(proc, name), boundedread.Settings)
		if err != nil {
			return nil
		}
		return strings.Split(string(b), "\x00")
	}
	add := func(conf string) {
		if path.IsAbs(conf) {
			dirs = append(dirs, path.Dir(conf))
		}
	}
	args := read("cmdline")
	for i, arg := range args {
		if arg == "-f" && i+1 < len(args) {
			add(args[i+1])
		} else if conf, ok := strings.CutPrefix(arg, "-f"); ok {
			add(conf)
		}
	}
	for _, variable := range read("environ") {
		if conf, ok := strings.CutPrefix(variable, "SLURM_CONF="); ok {
			add(conf)
		}
	}
	// A build has it below its prefix: PREFIX/sbin/slurmd, PREFIX/etc/slurm.conf.
	if exe, err := os.Readlink(filepath.Join(proc, "exe")); err == nil && path.Base(path.Dir(exe)) == "sbin" {
		if prefix := path.Dir(path.Dir(exe)); prefix != "/usr" && prefix != "/" {
			dirs = append(dirs, path.Join(prefix, "etc"), path.Join(prefix, "etc/slurm"))
		}
	}
	return dirs
}
