package slurm

import (
	"fmt"
	"path"
	"strings"
)

// Script is a file that Slurm runs on a node, as 'gpushare slurm install' writes it.
type Script struct {
	Setting string // of slurm.conf
	File    string // below the directory of the site
	Pattern string // what the setting names there: the file, or all of its directory, because Slurm runs several
	Missing string // what Slurm does if what the setting names is not there
}

// Scripts are the scripts of a node.
func Scripts() []Script {
	return []Script{
		{"Prolog", "prolog.d/gpushare", "prolog.d/*", "the first job drains the node"},
		{"Epilog", "epilog.d/gpushare", "epilog.d/*", "the first job drains the node"},
		{"TaskProlog", "gpushare-taskprolog", "gpushare-taskprolog", "no task starts"},
		{"HealthCheckProgram", "gpushare-health", "gpushare-health", "the health of the node is not checked"},
	}
}

// Directory is where Slurm's files are, unless the site says otherwise.
const Directory = "/etc/slurm"

const (
	headerBegin = "# Written by 'gpushare slurm install' of "
	headerEnd   = "; 'gpushare slurm uninstall' removes it. A change of it is lost."
)

// Headed is a script with the header of a version behind its first line, and the values of variables behind the header.
func Headed(script, version string, variables []string) string {
	first, rest, _ := strings.Cut(script, "\n")
	return first + "\n" + strings.Join(append([]string{headerBegin + version + headerEnd}, variables...), "\n") + "\n" + rest
}

// HeaderOf is the version that wrote a script; ok is false if gpushare did not.
func HeaderOf(script string) (version string, ok bool) {
	_, rest, _ := strings.Cut(script, "\n")
	line, _, _ := strings.Cut(rest, "\n")
	rest, begins := strings.CutPrefix(line, headerBegin)
	version, ends := strings.CutSuffix(rest, headerEnd)
	return version, begins && ends
}

// SiteLines are the lines of slurm.conf that run the scripts in a directory.
func SiteLines(dir string) []string {
	out := []string{"PrologFlags=Alloc,Contain,RunInJob"}
	for _, s := range Scripts() {
		out = append(out, s.Setting+"="+path.Join(dir, s.Pattern))
	}
	return append(out, "HealthCheckInterval=60")
}

// Variable is a line that sets a variable of a script. Only what is text without meaning for a shell is set.
func Variable(name, value string) (string, error) {
	if strings.ContainsFunc(value, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
	}) {
		return "", fmt.Errorf("%q has other characters than letters, digits and ._-", value)
	}
	return name + "=" + value, nil
}

// Settings are settings of slurm.conf by name, as 'scontrol show config' prints them. A setting with several values has all of them: 24.11
// writes Prolog[0] and Prolog[1].
func Settings(text string) map[string][]string {
	out := map[string][]string{}
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, " = ")
		key, _, _ = strings.Cut(strings.TrimSpace(key), "[")
		if value = none(strings.TrimSpace(value)); ok && value != "" {
			out[key] = append(out[key], value)
		}
	}
	return out
}

// PrologDirectories are the directories of the sites whose Prolog a slurm.conf in a directory may name: that above what it runs, in the
// order in which it names them.
func PrologDirectories(conf, dir string) (out []string) {
	prolog := Scripts()[0]
	for line := range strings.Lines(conf) {
		line, _, _ = strings.Cut(line, "#")
		key, value, ok := strings.Cut(line, "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(key), prolog.Setting) {
			continue
		}
		for _, pattern := range prolog.Patterns(map[string][]string{prolog.Setting: {strings.TrimSpace(value)}}, dir) {
			if at := path.Dir(pattern); path.Base(at) == path.Dir(prolog.File) {
				out = append(out, path.Dir(at))
			}
		}
	}
	return out
}

// Runs reports whether Slurm runs the script in a directory, with these settings.
func (s *Script) Runs(settings map[string][]string, dir string) bool {
	for _, word := range s.Patterns(settings, dir) {
		if ok, err := path.Match(word, path.Join(dir, s.File)); ok && err == nil {
			return true
		}
	}
	return false
}

// Patterns are what the setting of the script names: files, or patterns of them.
func (s *Script) Patterns(settings map[string][]string, dir string) (out []string) {
	for _, value := range settings[s.Setting] {
		for word := range strings.SplitSeq(value, ",") {
			if !path.IsAbs(word) {
				word = path.Join(dir, word)
			}
			out = append(out, word)
		}
	}
	return out
}
