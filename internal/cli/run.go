package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/text"
)

// Exit codes of run itself. Otherwise the exit code is that of the command.
const (
	exitRunRefused  = 125
	exitRunCannot   = 126
	exitRunNotFound = 127
	exitInterrupted = 130 // as a shell reports SIGINT
)

func (a *app) runCommand() *cobra.Command {
	var r api.LeaseRequest
	var silent, detach bool
	c := &cobra.Command{
		Use: "run [-t TENANT] [--grant NAME] [--detach] -- COMMAND [ARG…]", Short: "Run a command on a GPU that you are granted",
		Long: `Run requests a lease and then executes the command in it: same process, same terminal,
and the exit code is that of the command. 125 means that the lease was refused, 126 and
127 that the command could not be run.

With --time the lease ends after that time: its user is warned 10 minutes and 1 minute
before, then its processes are stopped with SIGTERM and, 10 s later, SIGKILL.

With --wait the request waits in the queue and shows its position and the reason.
Ctrl-C leaves the queue. If the daemon restarts meanwhile, the request keeps its
position.

With --detach the command runs as a service and continues after you log out. It has
your user, groups, resource limits, capability bounding set, audit login uid, directory,
umask and environment. It is not a login: no PAM session, no keyrings, no terminal, and
no nice value, CPU affinity or scheduling policy. If you are in namespaces of your own, in
a chroot, or have a seccomp filter, no_new_privs or a confining security label, it is
refused, because the service would not have them. The id of the lease is printed.
'gpushare lease logs ID' shows the output, 'gpushare lease show ID' how it ended, and
'gpushare lease stop ID' stops it.`,
		Example: `  gpushare run -- python train.py
  gpushare run -t vision --grant dev --wait 10m -- make train
  gpushare run --gpu 4 --time 2h -- python train.py
  gpushare run --kind mig:2g.10gb -- ./job
  id=$(gpushare run --detach -- python train.py) && gpushare lease logs -f "$id"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usageError{err: errors.New("no command given, as in: gpushare run -- python train.py")}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := lookPath(args[0])
			if err != nil {
				return err
			}
			r.Command = args
			if detach {
				return a.detach(cmd, path, r, silent)
			}
			// The daemon only shows it: this process executes the whole, which may be longer than a request.
			r.Command = text.ShortCommand(args, text.KeptCommand)
			return a.become(cmd, path, args, r, silent)
		},
	}
	f := c.Flags()
	f.SetInterspersed(false)
	f.StringVarP(&r.Tenant, "tenant", "t", "", "the tenant to run for (default: the one you are a member of)")
	f.StringVar(&r.Grant, "grant", "", "the grant to use (default: selected automatically)")
	f.StringVar(&r.Kind, "kind", "", "use a grant of this kind: mig:PROFILE, exclusive, timeslice or mps")
	placeFlags(c, &r.GPUs, &r.MaxTime)
	waitFlag(c, &r.Wait, "wait in the queue if nothing is free")
	f.BoolVarP(&detach, "detach", "d", false, "run it as a service in the background, and print the id of its lease")
	f.BoolVarP(&silent, "quiet", "q", false, "do not print which grant was selected")
	a.completeFlag(c, "tenant", func(s *api.Status) []string { return tenantsOf(s) })
	a.completeFlag(c, "grant", func(s *api.Status) []string { return grantsOf(s, r.Tenant) })
	a.completeFlag(c, "kind", kindsOf)
	a.completeFlag(c, "gpu", gpusOf)
	return c
}

// lookPath finds the program before a lease is requested: a typing mistake must not occupy a GPU.
func lookPath(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	code := exitRunCannot
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitRunNotFound
	}
	var why *exec.Error
	if errors.As(err, &why) {
		err = why.Err // Its text repeats the program's name, and so does the error that it wraps.
	}
	var where *fs.PathError
	if errors.As(err, &where) {
		err = where.Err
	}
	return "", &exitError{code: code, err: fmt.Errorf("cannot run %s: %w", name, err)}
}

// become turns this process into the command, in its lease.
func (a *app) become(cmd *cobra.Command, path string, argv []string, r api.LeaseRequest, silent bool) error {
	granted, err := a.granted(cmd, r, silent)
	if err != nil {
		return err
	}
	if err := cmd.Context().Err(); err != nil {
		return err // Interrupted at the last moment: the command would not receive the signal. The lease ends with this process.
	}
	env := (&api.Environment{Environment: granted.Environment, Unset: granted.Unset}).Over(a.env)
	err = os.NewSyscallError("execve", syscall.Exec(path, argv, env))
	if errors.Is(err, syscall.ENOEXEC) {
		return &exitError{code: exitRunCannot, err: &api.Error{
			Kind: api.KindInvalid, Message: "cannot run " + path + ": " + err.Error(),
			Hint: "a script needs a first line that names its interpreter, such as #!/bin/sh",
		}}
	}
	return &exitError{code: exitRunCannot, err: fmt.Errorf("cannot run %s: %w", path, err)}
}

// waiting prints the position of a request in the queue, once for each position.
func (a *app) waiting() func(*api.LeaseGrant) {
	last := ""
	return func(l *api.LeaseGrant) {
		for _, w := range l.Warnings {
			fmt.Fprintln(a.io.Err, "gpushare: "+sentence(w))
		}
		if l.Lease == nil || l.Lease.Position == 0 {
			return
		}
		if s := fmt.Sprintf("waiting, position %d: %s", l.Lease.Position, sentence(waitText(l.Lease)+inUseBy(l.Lease))); s != last {
			fmt.Fprintln(a.io.Err, "gpushare: "+s)
			last = s
			if why := l.Lease.PositionReason; why != "" {
				fmt.Fprintln(a.io.Err, "gpushare: its position: "+sentence(why))
			}
		}
	}
}

// granted requests a lease and prints its progress in the queue.
func (a *app) granted(cmd *cobra.Command, r api.LeaseRequest, silent bool) (*api.LeaseGrant, error) {
	gpus, err := a.gpuIDs(cmd.Context(), r.GPUs)
	if err != nil {
		return nil, &exitError{code: exitRunRefused, err: err}
	}
	r.GPUs = gpus
	granted, err := a.requested(cmd.Context(), r)
	if errors.Is(err, context.Canceled) {
		return nil, err // The user ended the wait: this is not a refusal.
	}
	if err != nil {
		code := exitRunRefused
		if granted != nil && granted.ExitCode != 0 {
			code = granted.ExitCode
		}
		return nil, &exitError{code: code, err: err}
	}
	for _, w := range granted.Warnings {
		fmt.Fprintln(a.io.Err, "gpushare: warning: "+w)
	}
	if !silent && granted.Selected != "" {
		fmt.Fprintln(a.io.Err, "gpushare: "+granted.Selected)
	}
	if l := granted.Lease; !silent && l != nil && l.GPUMemory.Qualifier() != "" {
		fmt.Fprintf(
			a.io.Err,
			"gpushare: %s of GPU memory%s: 'gpushare explain %s' says why\n",
			gib(l.GPUMemory.Limit),
			l.GPUMemory.Qualifier(),
			l.ID,
		)
	}
	return granted, nil
}

// requestSize is how long a request is when it is sent.
func requestSize(r *api.LeaseRequest) (int, error) {
	b, err := json.Marshal(r)
	return len(b), err
}

// sizeOf is how many bytes texts have, with the byte that ends each.
func sizeOf(list []string) uint64 {
	n := 0
	for _, s := range list {
		n += len(s) + 1
	}
	return uint64(n)
}

// detach starts the command as a service.
func (a *app) detach(cmd *cobra.Command, path string, r api.LeaseRequest, silent bool) error {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return &exitError{code: exitRunCannot, err: fmt.Errorf("cannot run %s: %w", path, err)}
	}
	dir, err := os.Getwd()
	if err != nil {
		return &exitError{code: exitRunCannot, err: fmt.Errorf("cannot run %s: the working directory is not known: %w", path, err)}
	}
	r.Detach = &api.Detach{Path: absolute, Dir: dir, Environment: a.env, UMask: umask()}
	if n, err := requestSize(&r); err == nil && n > api.MaxRequest {
		return &exitError{code: exitRunCannot, err: &api.Error{
			Kind: api.KindInvalid,
			Message: fmt.Sprintf(
				"cannot run %s in the background: its arguments have %s and its environment %s, and together they may have %s",
				text.Short(path, 200), text.Bytes(sizeOf(r.Command)), text.Bytes(sizeOf(a.env)), text.Bytes(api.MaxRequest),
			),
			Hint: "run it without --detach, pass long lists in a file, or remove variables: env -i PATH=\"$PATH\" HOME=\"$HOME\" gpushare run --detach -- …",
		}}
	}
	granted, err := a.granted(cmd, r, silent)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.Lease
		}{1, granted.Lease})
	}
	if !silent {
		fmt.Fprintf(a.io.Err, "gpushare: started; 'gpushare lease logs %s' shows its output\n", granted.Lease.ID)
	}
	fmt.Fprintln(a.io.Out, granted.Lease.ID)
	return nil
}

func (a *app) envCommand() *cobra.Command {
	var cdi, reserve, podman bool
	var tenant, grant string
	c := &cobra.Command{
		Use: "env", Short: "Print the environment of the current lease, for a shell", Args: noArgs,
		Long: `Env prints the environment of the lease that it runs in, for a shell. With --podman it
prints the options with which podman of a user, without root, runs a container in that
lease.

With --cdi it prints how root starts a container in a grant. A container of root does
not run below the process that starts it, so it is not in the lease of that process.
With --reserve the device is for one container alone: its place is kept free for it for
two minutes.`,
		Example: `  eval "$(gpushare env)"
  gpushare run --grant dev -- sh -c 'podman run --rm $(gpushare env --podman) IMAGE'
  gpushare env --cdi -t vision --grant dev
  gpushare env --cdi --reserve -t vision --grant dev`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cdi {
				return a.containerLine(cmd, tenant, grant, reserve)
			}
			if reserve {
				return usageError{err: errors.New("--reserve needs --cdi"), hint: "'gpushare run' gets a place of its own without it"}
			}
			if tenant != "" || grant != "" {
				return usageError{err: errors.New("--tenant and --grant need --cdi: the environment is always that of the current lease")}
			}
			read := a.client.Environment
			if podman {
				read = a.client.PodmanOptions
			}
			e, err := read(cmd.Context())
			if err != nil {
				return err
			}
			if podman {
				a.warnOfPause()
			}
			if a.json {
				return a.printJSON(struct {
					SchemaVersion int `json:"schema_version"`
					*api.Environment
				}{1, e})
			}
			if podman {
				fmt.Fprintln(a.io.Out, printable(strings.Join(e.Podman, " ")))
				return nil
			}
			a.export(e.Environment, e.Unset)
			return nil
		},
	}
	f := c.Flags()
	f.BoolVar(&podman, "podman", false, "print the options of podman for a container in this lease, without root")
	f.BoolVar(&cdi, "cdi", false, "print how root starts a container in a grant")
	f.BoolVar(&reserve, "reserve", false, "with --cdi: keep a place free for one container, with a device of its own")
	f.StringVarP(&tenant, "tenant", "t", "", "with --cdi: the tenant (default: the only one that you see)")
	f.StringVar(&grant, "grant", "", "with --cdi: the grant (default: the only one that takes containers)")
	a.completeFlag(c, "tenant", tenantsOf)
	a.completeFlag(c, "grant", func(s *api.Status) []string { return grantsOf(s, tenant) })
	c.MarkFlagsMutuallyExclusive("cdi", "podman")
	return c
}

// containerLine prints the one line that starts a container in a grant.
func (a *app) containerLine(cmd *cobra.Command, tenant, grant string, reserve bool) error {
	if err := a.mayUseCDI(cmd.Context(), tenant, grant); err != nil {
		return err
	}
	if reserve && tenant != "" && grant != "" { // The status shows only grants with free places for any container.
		return a.reserveContainer(cmd, tenant, grant)
	}
	s, err := a.client.Status(cmd.Context())
	if err != nil {
		return err
	}
	var found []*api.ContainerUse
	var names []string
	ofMPS := false
	for i := range s.Tenants {
		t := &s.Tenants[i]
		for j := range t.Grants {
			g := &t.Grants[j]
			if tenant != "" && t.Name != tenant || grant != "" && g.Name != grant {
				continue
			}
			if g.Container != nil {
				found, names = append(found, g.Container), append(names, t.Name+"/"+g.Name)
			}
			ofMPS = ofMPS || g.Kind == api.ModeMPS
		}
	}
	switch {
	case len(found) == 0 && ofMPS && grant != "":
		return &api.Error{
			Kind:    api.KindInvalid,
			Message: "cannot start a container there by CDI: " + api.NoCDIForMPS,
			Hint:    "without root and without CDI it runs inside of a lease: " + api.RootlessContainer(tenant, grant),
		}
	case len(found) == 0:
		return &api.Error{
			Kind:    api.KindNotFound,
			Message: "cannot start a container there: no such grant accepts containers now",
			Hint:    "'gpushare tenant show NAME' lists those that do; MPS grants do only inside of a lease ('gpushare env --podman'), and none does with 'enforce: observe'",
		}
	case len(found) > 1:
		return usageError{
			err:  errors.New("more than one grant accepts containers: " + strings.Join(names, ", ")),
			hint: "select one with -t and --grant",
		}
	case reserve:
		tenant, grant, _ := strings.Cut(names[0], "/")
		return a.reserveContainer(cmd, tenant, grant)
	}
	return a.printContainerUse(found[0])
}

func (a *app) reserveContainer(cmd *cobra.Command, tenant, grant string) error {
	u, err := a.client.ReserveContainer(cmd.Context(), api.ContainerRequest{Tenant: tenant, Grant: grant})
	if err != nil {
		return err
	}
	return a.printContainerUse(u)
}

func (a *app) printContainerUse(u *api.ContainerUse) error {
	if a.json {
		return a.printJSON(struct {
			SchemaVersion int `json:"schema_version"`
			*api.ContainerUse
		}{1, u})
	}
	fmt.Fprintln(a.io.Out, printable(u.Command))
	return nil
}

// export prints an environment as lines for a shell.
func (a *app) export(set map[string]string, unset []string) {
	for _, name := range unset {
		fmt.Fprintf(a.io.Out, "unset %s\n", name)
	}
	for _, kv := range (&api.Environment{Environment: set}).Over(nil) {
		k, v, _ := strings.Cut(kv, "=")
		fmt.Fprintf(a.io.Out, "export %s='%s'\n", k, strings.ReplaceAll(v, "'", `'\''`))
	}
}
