package enter

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
)

// Program is the command line.
const Program = "gpushare-cli"

// installed is where packages install it.
const installed = "/usr/libexec/gpushare/" + Program

// BegunVariable is in the environment of the command line if its request was sent: the descriptor of the connection, a colon, and the key.
const BegunVariable = "GPUSHARE_BEGUN"

// Run becomes the command of a run, or the command line. It returns the exit code if it can become neither.
func Run(argv, env []string, errs io.Writer) int {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, BegunVariable+"=") })
	args, begun := argv[1:], ""
	if r, command, silent, ok := parse(args); ok {
		args, begun = start(r, command, silent, args, env, errs)
	}
	if begun != "" {
		env = append(env, BegunVariable+"="+begun)
	}
	err := becomeProgram(append([]string{argv[0]}, args...), env)
	_, _ = io.WriteString(errs, "gpushare: cannot start "+Program+": "+err.Error()+
		"\nhint: install gpushare again: packages have it in /usr/libexec/gpushare\n")
	return api.ExitFailed
}

// start requests the lease and becomes the command. Where it returns, the command line continues, with these arguments and, if the
// request was sent, with that as the value of BegunVariable.
func start(r api.LeaseRequest, command []string, silent bool, args, env []string, errs io.Writer) (rest []string, begun string) {
	path, found := search(command[0], env)
	key, err := newKey()
	if !found || err != nil {
		return args, ""
	}
	r.Key = key
	socket, _ := lookup(env, "GPUSHARE_SOCKET")
	if socket == "" {
		socket = api.SocketPath
	}
	fd, err := send(socket, &r)
	if fd < 0 {
		return args, ""
	}
	if err == nil {
		var g *grant
		if g, err = peek(fd); err == nil && g.plain(silent) {
			if !silent && g.Selected != "" {
				_, _ = io.WriteString(errs, "gpushare: "+g.Selected+"\n")
				args = append([]string{"run", "-q"}, args[1:]...) // It is said once.
			}
			_ = unix.Exec(path, command, (&api.Environment{Environment: g.Environment, Unset: g.Unset}).Over(env))
			// The command line says why it cannot be executed.
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return args, "" // The lease ends with the connection, or with this process.
	}
	return args, strconv.Itoa(fd) + ":" + key
}

// becomeProgram executes the command line: next to this program, as in a build directory, or where it is installed.
func becomeProgram(argv, env []string) error {
	places := []string{installed}
	if self, err := os.Readlink("/proc/self/exe"); err == nil {
		if i := strings.LastIndexByte(self, '/'); i >= 0 {
			places = []string{self[:i+1] + Program, self[:i+1] + "../libexec/gpushare/" + Program, installed}
		}
	}
	var err error
	for _, path := range places {
		if err = unix.Exec(path, argv, env); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	return err
}
