package cli

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/remote"
)

// SetNow sets the clock of the ages that are shown.
func SetNow(f func() time.Time) { now = f }

// SetZone sets the zone of the times of usage, and returns what resets it. time.Local is read by servers of the tests all the time.
func SetZone(z *time.Location) (reset func()) {
	before := zone
	zone = func() *time.Location { return z }
	return func() { zone = before }
}

// SetNameTimeout sets how long names for a completion are waited for, and returns what resets it.
func SetNameTimeout(d time.Duration) (reset func()) {
	before := nameTimeout
	nameTimeout = d
	return func() { nameTimeout = before }
}

// ForgetSlurm lets tests find the programs of Slurm by PATH alone.
func ForgetSlurm() { installedSlurm = nil }

// AttachJob is attachJob with a daemon behind a socket.
func AttachJob(ctx context.Context, socket string, env []string, q, plain api.EngineRequest) (*api.LeaseGrant, error) {
	a := &app{env: env, client: client.Client{Socket: socket}}
	return a.attachJob(ctx, a.prologLimit(), q, plain)
}

// SetHostRoot sets where the processes of the host are found.
func SetHostRoot(dir string) { hostRoot = dir }

// SetPlotter sets the program that draws images.
func SetPlotter(path string) { installedPlotter = path }

// UnreadyGPUs is unreadyGPUs.
var UnreadyGPUs = unreadyGPUs

// OtherWords and NounWords are words of other tools and their hints.
var (
	OtherWords = otherWords
	NounWords  = nounWords
)

// SetUnit sets the unit of the daemon, the directory that shows that systemd runs, and systemctl and journalctl.
func SetUnit(socket, booted, show, log string) (restore func()) {
	was := installedUnit
	installedUnit = daemonUnit{was.name, socket, booted, show, log}
	return func() { installedUnit = was }
}

// HostText is what is shown of the answer of one host.
func HostText(command string, json bool, output, errs []byte, code int) (string, error) {
	var b bytes.Buffer
	out := &stdout{w: &b}
	a := &app{io: Stdio{Out: out, Err: &b}, out: out, json: json}
	reader := hostReaders()[command]
	c, _, err := a.root(command).Find([]string{command})
	if err != nil {
		return "", err
	}
	err = a.showHosts(c, &reader, []hostAnswer{answerOf(&remote.Answer{Host: "gpu1", Output: output, Errors: errs, Code: code})})
	return b.String(), err
}

// HostFlags are the flags of which is decided what they do with --host; nil for a command that does not take it.
func HostFlags(command string) []string {
	r, reads := hostReaders()[command]
	if !reads {
		return nil
	}
	return append(slices.Concat(r.pass, r.here, r.refused), "host-timeout")
}
