package cli

import (
	"encoding"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
)

// engineFlags are the flags of attach that need a key.
type engineFlags struct {
	key, user, account, instance string
	memory                       *api.Bytes
	share                        *api.Percent
	bind                         *api.Duration
	keep                         bool
}

func (e *engineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&e.key, "key", "", "the engine's key of the job, ENGINE:NAME as in slurm:CLUSTER:JOB:RESTART; twice is one lease")
	f.StringVar(&e.user, "user", "", "with --key: the user whom the lease is for, by name or uid")
	f.StringVar(&e.account, "account", "", "with --key: the engine's account of the job")
	f.StringVar(
		&e.instance,
		"instance",
		"",
		"with --key: the MIG instance that the engine chose, by its UUID, or with one --gpu by its first memory slice",
	)
	f.Var(optional[api.Bytes]{&e.memory, "size"}, "gpu-memory", "with --key: this much of the grant's GPU memory, for this lease alone")
	f.Var(optional[api.Percent]{&e.share, "share"}, "share", "with --key: this much of the grant's share, for this lease alone")
	f.Var(
		duration{&e.bind}, "bind-timeout",
		"with --key: end the lease if its cgroup has no process by then (default "+api.DefaultBindTimeout.String()+")",
	)
	f.BoolVar(&e.keep, "keep", false, "with --key: keep the lease until it is released, also without processes and without its cgroup")
}

// optional is a flag whose value is nil until it is given.
type optional[T fmt.Stringer] struct {
	value **T
	kind  string
}

func (o optional[T]) Type() string { return o.kind }

func (o optional[T]) String() string {
	if o.value == nil || *o.value == nil {
		return ""
	}
	return (**o.value).String()
}

func (o optional[T]) Set(text string) error {
	v := new(T)
	if err := any(v).(encoding.TextUnmarshaler).UnmarshalText([]byte(text)); err != nil { //nolint:forcetypeassert // amounts of api are
		return err
	}
	*o.value = v
	return nil
}

// check refuses what is only for keyed leases, and what they do not have.
func (e *engineFlags) check(r *api.AttachRequest) error {
	switch only := e.user != "" || e.account != "" || e.instance != "" || e.memory != nil || e.share != nil || e.bind != nil || e.keep; {
	case e.key == "" && only:
		return usageError{
			err:  errors.New("--user, --account, --instance, --gpu-memory, --share, --bind-timeout and --keep are of keyed leases"),
			hint: "add --key ENGINE:NAME",
		}
	case e.key == "":
		return nil
	case r.PID != 0 || r.Unit != "":
		return usageError{err: errors.New("a keyed lease has its processes by --cgroup"), hint: "leave --pid and --unit out"}
	case r.Wait != nil:
		return usageError{err: errors.New("a keyed lease does not wait: its engine has chosen the place"), hint: "leave --wait out"}
	}
	if why := api.EngineKeyProblem(e.key); why != "" {
		return usageError{err: fmt.Errorf("invalid --key %q: %s", e.key, why), hint: "write ENGINE:NAME, as in slurm:CLUSTER:JOB:RESTART"}
	}
	return nil
}

// attachEngine registers a keyed lease, and prints it.
func (a *app) attachEngine(cmd *cobra.Command, e *engineFlags, r *api.AttachRequest, export bool) error {
	granted, err := a.client.AttachEngine(cmd.Context(), api.EngineRequest{
		Key:         e.key,
		Tenant:      r.Tenant,
		Grant:       r.Grant,
		Kind:        r.Kind,
		User:        e.user,
		Account:     e.account,
		GPUs:        r.GPUs,
		Instance:    e.instance,
		GPUMemory:   e.memory,
		Share:       e.share,
		Cgroup:      r.Cgroup,
		BindTimeout: e.bind,
		Keep:        e.keep,
		Name:        r.Name,
		MaxTime:     r.MaxTime,
	})
	if err != nil {
		return err
	}
	return a.attached(granted, export)
}

// releaseKey ends the lease of a key.
func (a *app) releaseKey(cmd *cobra.Command, key string, missing bool) error {
	released, err := a.client.ReleaseEngine(cmd.Context(), key)
	if missing && isNotFound(err) {
		released, err = key, nil
	}
	if err != nil {
		return err
	}
	return a.released(released)
}

// leaseEngine prints what an engine said of a lease.
func leaseEngine(l *api.Lease, line func(name, value string)) {
	e := l.Engine
	if e == nil {
		return
	}
	line("key", e.Key)
	if e.Account != "" {
		line("account", e.Account)
	}
	if len(e.Cgroups) > 1 {
		line("cgroups", strings.Join(e.Cgroups, " "))
	}
	switch {
	case l.Ended != nil:
	case e.BindBy != nil:
		line("waits", "for a process in its cgroup, until "+e.BindBy.Local().Format(time.DateTime))
	case e.EmptySince != nil:
		line("waits", "for a process in its cgroup, since "+e.EmptySince.Local().Format(time.DateTime)+"; it is kept until it is released")
	case e.Kept:
		line("kept", "until it is released, also without processes")
	}
}

// emptyText says of a kept lease without processes since when it has none; empty: it is none.
func emptyText(l *api.Lease) string {
	if l.Engine == nil || l.Engine.EmptySince == nil || l.Ended != nil {
		return ""
	}
	return "no process since " + l.Engine.EmptySince.Local().Format(time.DateTime) + ", kept until it is released"
}
