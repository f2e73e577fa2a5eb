package host

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"

	"github.com/gpushare/gpushare/daemon/fronting"
	"github.com/gpushare/gpushare/systemd"
)

// frontUser is the user that the packages create for gpushare-front. Without it the front has the uid of files that belong to no user.
const (
	frontUser = "gpushare-front"
	noUser    = 65534
)

// FrontUser returns the uid and gid of gpushare-front, from the files of this host: the directory may hang.
func FrontUser() (uid, gid int) {
	u, err := user.Lookup(frontUser)
	if err != nil {
		return noUser, noUser
	}
	uid, errUID := strconv.Atoi(u.Uid)
	gid, errGID := strconv.Atoi(u.Gid)
	if errUID != nil || errGID != nil || uid == 0 || gid == 0 {
		return noUser, noUser
	}
	return uid, gid
}

// frontEnv is the whole environment of the front. A crash must not print what the memory of callers has.
// It must not look for the limits of its cgroup, whose files it would keep open.
func frontEnv() []string {
	return []string{"GOTRACEBACK=single", "GOMAXPROCS=2", "GODEBUG=containermaxprocs=0"}
}

// childFront starts the front as a child of the daemon. It may be killed with it at any time.
type childFront struct{ program string }

// StartFront starts the front as another user, without capabilities and groups.
func (c childFront) StartFront(_ context.Context, control *os.File) (fronting.Process, error) {
	uid, gid := FrontUser()
	// The user of the front may not be able to reach the directory of the program: one in a home, or of a test. Its descriptor is
	// enough, and the front closes it.
	program, err := os.Open(c.program)
	if err != nil {
		return nil, fmt.Errorf("cannot start gpushare-front: %w", err)
	}
	defer program.Close()
	cmd := exec.Command("/proc/self/fd/3")
	cmd.Args, cmd.ExtraFiles = []string{c.program}, []*os.File{program}
	cmd.Env, cmd.Dir = frontEnv(), "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = control, os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start gpushare-front: %w", err)
	}
	p := &child{cmd: cmd, done: make(chan struct{})}
	go func() { // ends with the process
		defer close(p.done)
		_ = cmd.Wait() // only its end matters
	}()
	return p, nil
}

// child is a process that the daemon started.
type child struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func (p *child) PID() int              { return p.cmd.Process.Pid }
func (p *child) Done() <-chan struct{} { return p.done }
func (p *child) Kill() error           { return p.cmd.Process.Kill() }

// unitFront starts the front as a unit: the daemon's own may not change its user.
type unitFront struct {
	a       *systemd.Adapter
	program string
}

// StartFront starts the unit, and returns when it runs.
func (u unitFront) StartFront(ctx context.Context, control *os.File) (fronting.Process, error) {
	uid, gid := FrontUser()
	name := "gpushare-front-" + rand.Text()[:8]
	state, err := u.a.StartConfined(ctx, systemd.Confined{
		Name:        name,
		Description: "gpushare, reader of requests",
		Argv:        []string{u.program},
		Env:         frontEnv(),
		Slice:       "gpushared.slice",
		Stdin:       control,
		UID:         uid,
		GID:         gid,
		Memory:      frontMemory,
		Tasks:       frontTasks,
	})
	if err != nil {
		return nil, err
	}
	p, err := openMain(state.MainPID, state.Cgroup)
	if err != nil {
		return nil, fmt.Errorf("cannot start gpushare-front: %w", err)
	}
	return p, nil
}

// The limits of the unit.
const (
	frontMemory = 256 << 20
	frontTasks  = 64
)
