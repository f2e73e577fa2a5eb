package enter

import (
	"strings"

	"golang.org/x/sys/unix"
)

// search finds a program in PATH, as a shell does. It finds none where the command line may have something to say: a directory that is
// not absolute, or a program that is not executable.
func search(name string, env []string) (path string, ok bool) {
	if strings.Contains(name, "/") {
		return name, executable(name)
	}
	dirs, _ := lookup(env, "PATH")
	for dir := range strings.SplitSeq(dirs, ":") {
		if !strings.HasPrefix(dir, "/") {
			return "", false
		}
		if path = strings.TrimSuffix(dir, "/") + "/" + name; executable(path) {
			return path, true
		}
	}
	return "", false
}

func executable(path string) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG &&
		unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, 0) == nil
}

// lookup is the last value of a variable, as the command line reads it.
func lookup(env []string, name string) (value string, ok bool) {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v, true
		}
	}
	return "", false
}
