package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// Program is the program to start, with its credentials. It does not pass through a service manager or a command line, where
// other users could read it.
type Program struct {
	Path        string      `json:"path"` // absolute
	Argv        []string    `json:"argv"`
	Env         []string    `json:"env,omitempty"` // the whole environment
	Dir         string      `json:"dir"`           // working directory, absolute
	UMask       int         `json:"umask"`
	Credentials Credentials `json:"credentials"`
}

// Credentials are the attributes of the calling process that the program gets.
type Credentials struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups,omitempty"` // supplementary
	// Limits are the resource limits by number, those that could be read.
	Limits      map[int]Limit `json:"limits,omitempty"`
	OOMScore    int           `json:"oom_score,omitempty"` // oom_score_adj
	Login       *uint32       `json:"login,omitempty"`     // the audit login uid; nil where the kernel has none
	Confinement Confinement   `json:"confinement"`
}

// Limit is a resource limit as in getrlimit(2); unix.RLIM_INFINITY is no limit.
type Limit struct {
	Cur uint64 `json:"cur"`
	Max uint64 `json:"max"`
}

// Limits of arguments and environment: execve(2) accepts 2 MiB or a quarter of the stack.
const (
	maxArguments = 16 << 10
	maxBytes     = 1 << 20
)

// Check refuses what cannot be executed, before a lease is started for it.
func (p *Program) Check() error {
	switch {
	case len(p.Argv) == 0 || p.Argv[0] == "":
		return errors.New("cannot start a program: there is no command")
	case !filepath.IsAbs(p.Path):
		return fmt.Errorf("cannot start %q: the program's path is not absolute", p.Path)
	case !filepath.IsAbs(p.Dir):
		return fmt.Errorf("cannot start in %q: the path of the directory is not absolute", p.Dir)
	case p.UMask < 0 || p.UMask > 0o777:
		return fmt.Errorf("cannot start with umask %o: it has bits beyond 777", p.UMask)
	case len(p.Argv)+len(p.Env) > maxArguments:
		return fmt.Errorf(
			"cannot start %s: its arguments and environment have %d entries, at most %d are allowed", p.Path, len(p.Argv)+len(p.Env),
			maxArguments,
		)
	}
	size := 0
	for _, message := range append([]string{p.Path, p.Dir}, p.Argv...) {
		size += len(message)
		if strings.ContainsRune(message, 0) {
			return errors.New("cannot start a program with a zero byte in its arguments")
		}
	}
	for _, kv := range p.Env {
		size += len(kv)
		if name, _, ok := strings.Cut(kv, "="); !ok || name == "" || strings.ContainsRune(kv, 0) {
			return fmt.Errorf("cannot start a program with the environment entry %.40q: write NAME=value", kv)
		}
	}
	if size > maxBytes {
		return fmt.Errorf("cannot start %s: its arguments and environment are %d bytes, at most %d are allowed", p.Path, size, maxBytes)
	}
	return nil
}

// CredentialsOf reads what the kernel reports of a process in addition to its socket credentials, which have the uid. A program that
// changes its user on execution (setuid), as sudo, has the limits and the confinement of that user: they are not the caller's.
func CredentialsOf(p Process, uid int) (Credentials, error) {
	before := runsAs(p.PID, uid)
	o, err := readCredentials(strconv.Itoa(p.PID))
	o.Login = loginOf(p.PID)
	after := runsAs(p.PID, uid)
	// All of it was read by pid. It is of this process if that has the pid afterwards.
	if start, serr := procfs.Start(p.PID); serr != nil || start != p.Start {
		return Credentials{}, fmt.Errorf("cannot start a program for pid %d: %w", p.PID, procfs.ErrNoProcess)
	}
	if err != nil {
		return Credentials{}, fmt.Errorf("cannot start a program for pid %d: its attributes cannot be read: %w", p.PID, err)
	}
	if !before || !after {
		return Credentials{}, fmt.Errorf("cannot start a program for pid %d: it does not run as uid %d alone, which connected", p.PID, uid)
	}
	return o, nil
}

// runsAs reports whether a process has the ids of one user, also those that it could take again.
func runsAs(pid, uid int) bool {
	ids, err := procfs.UIDs(pid)
	return err == nil && !slices.ContainsFunc(ids, func(id int) bool { return id != uid })
}

func readCredentials(pid string) (o Credentials, err error) {
	dir := filepath.Join("/proc", pid)
	limits, err := boundedread.Trusted(filepath.Join(dir, "limits"), boundedread.Value)
	if err != nil {
		return o, err
	}
	o.Limits = parseLimits(string(limits))
	score, err := boundedread.Trusted(filepath.Join(dir, "oom_score_adj"), boundedread.Value)
	if err != nil {
		return o, err
	}
	o.OOMScore, _ = strconv.Atoi(strings.TrimSpace(string(score))) // The kernel writes numbers.
	o.Confinement, err = confinementOf(pid)
	return o, err
}

// parseLimits reads /proc/PID/limits (proc_pid_limits(5)).
func parseLimits(text string) map[int]Limit {
	names := map[string]int{
		"cpu time":          unix.RLIMIT_CPU,
		"file size":         unix.RLIMIT_FSIZE,
		"data size":         unix.RLIMIT_DATA,
		"stack size":        unix.RLIMIT_STACK,
		"core file size":    unix.RLIMIT_CORE,
		"resident set":      unix.RLIMIT_RSS,
		"processes":         unix.RLIMIT_NPROC,
		"open files":        unix.RLIMIT_NOFILE,
		"locked memory":     unix.RLIMIT_MEMLOCK,
		"address space":     unix.RLIMIT_AS,
		"file locks":        unix.RLIMIT_LOCKS,
		"pending signals":   unix.RLIMIT_SIGPENDING,
		"msgqueue size":     unix.RLIMIT_MSGQUEUE,
		"nice priority":     unix.RLIMIT_NICE,
		"realtime priority": unix.RLIMIT_RTPRIO,
		"realtime timeout":  unix.RLIMIT_RTTIME,
	}
	const wide = 26 // width of the column of names
	out := map[int]Limit{}
	for line := range strings.Lines(text) {
		if len(line) <= wide {
			continue
		}
		number, ok := names[strings.TrimPrefix(strings.TrimSpace(line[:wide]), "Max ")]
		f := strings.Fields(line[wide:])
		if !ok || len(f) < 2 {
			continue
		}
		cur, err1 := parseLimit(f[0])
		ceiling, err2 := parseLimit(f[1])
		if err1 == nil && err2 == nil {
			out[number] = Limit{cur, ceiling}
		}
	}
	return out
}

func parseLimit(s string) (uint64, error) {
	if s == "unlimited" {
		return unix.RLIM_INFINITY, nil
	}
	return strconv.ParseUint(s, 10, 64)
}

// Process identifies one process: a pid with its start time.
type Process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// self is this process.
func self() (Process, error) {
	start, err := procfs.Start(os.Getpid())
	return Process{os.Getpid(), start}, err
}
