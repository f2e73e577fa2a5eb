package cli

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/hostlist"
	"github.com/gpushare/gpushare/internal/remote"
)

// Bounds of --host. A host that does not answer takes as long as the deadline.
const (
	defaultHostTimeout = api.Duration(30 * time.Second)
	hostFileLimit      = 1 << 20
	hostsAtOnce        = 100
)

// hostReader is a command that can read other hosts too. Every flag of it is in one of the lists.
type hostReader struct {
	pass    []string // flags that the command gets on each host
	here    []string // flags that are for the table here
	refused []string // flags that are for one host
	table   func(a *app, cmd *cobra.Command, hosts []hostAnswer) (*hostTable, error)
}

// hostReaders are the commands that --host is for: they change nothing.
func hostReaders() map[string]hostReader {
	return map[string]hostReader{
		"status": {
			pass:    []string{"tenant", "gpu", "user", "mine"},
			here:    []string{"output", "exit-code"},
			refused: []string{"sort"},
			table:   (*app).statusOfHosts,
		},
		"usage": {
			pass:    []string{"since", "until", "month", "by", "step"},
			here:    []string{"output"},
			refused: []string{"csv", "plot"},
			table:   (*app).usageOfHosts,
		},
		"idle": {here: []string{"for"}, table: (*app).idleOfHosts},
		"plan": {
			here:    []string{"exit-code"},
			refused: []string{"file", "diff", "force", "allow-reset", "drained", "slurm-node"},
			table:   (*app).planOfHosts,
		},
	}
}

func (a *app) hostFlag(root *cobra.Command) {
	root.PersistentFlags().StringArrayVar(
		&a.hosts, "host", nil,
		"status, usage, idle and plan: of these `hosts`, over ssh, as in gpu1,gpu2 or node[01-16]; @FILE has one in each line",
	)
	_ = root.RegisterFlagCompletionFunc("host", cobra.NoFileCompletions) // It fails only for a flag that does not exist.
}

// refuseHosts refuses --host for what is not read on other hosts.
func (a *app) refuseHosts(cmd *cobra.Command) error {
	if _, reads := hostReaders()[cmd.Name()]; len(a.hosts) == 0 || reads && cmd.Parent() == cmd.Root() {
		return nil
	}
	return usageError{
		err: fmt.Errorf(
			"cannot run '%s' on other hosts: --host is for status, usage, idle and plan, which change nothing",
			cmd.CommandPath(),
		),
		hint: "Ansible changes many hosts: 'ansible-playbook' with the role gpushare.node.node; 'ssh HOST " + cmd.CommandPath() +
			"' runs it on one",
	}
}

// onHosts lets a command that reads do that on other hosts.
func (a *app) onHosts(c *cobra.Command) *cobra.Command {
	reader, reads := hostReaders()[c.Name()]
	if !reads {
		return c
	}
	var timeout *api.Duration
	c.Flags().
		Var(duration{&timeout}, "host-timeout", "with --host: wait for each host, at most this long (default "+defaultHostTimeout.String()+")")
	local := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if len(a.hosts) == 0 {
			if timeout != nil {
				return usageError{err: errors.New("--host-timeout needs --host"), hint: "name the hosts, as in --host gpu1,gpu2"}
			}
			return local(cmd, args)
		}
		within := defaultHostTimeout
		if timeout != nil {
			within = *timeout
		}
		if time.Duration(within) < time.Second {
			return usageError{err: errors.New("--host-timeout is below 1s")}
		}
		return a.readHosts(cmd, &reader, time.Duration(within))
	}
	return c
}

// readHosts runs a command on the hosts and shows what they answer.
func (a *app) readHosts(cmd *cobra.Command, reader *hostReader, timeout time.Duration) error {
	words, err := hostCommand(cmd, reader)
	if err != nil {
		return err
	}
	if f := cmd.Flags().Lookup("output"); f != nil && f.Value.String() == "json" {
		a.json = true
	}
	hosts, err := a.hostNames(cmd.Context())
	if err != nil {
		return err
	}
	query := remote.Query{
		Dirs:     filepath.SplitList(a.getenv("PATH")),
		Env:      a.env,
		Command:  words,
		Timeout:  timeout,
		Parallel: hostsAtOnce,
	}
	got, err := query.All(cmd.Context(), hosts)
	switch {
	case errors.Is(err, remote.ErrNoProgram):
		return &api.Error{Kind: api.KindUnavailable, Message: err.Error(), Hint: "install openssh-client"}
	case err != nil:
		return err
	}
	read := make([]hostAnswer, len(got))
	for i := range got {
		read[i] = answerOf(&got[i])
	}
	return a.showHosts(cmd, reader, read)
}

// hostCommand is what each host runs.
func hostCommand(cmd *cobra.Command, reader *hostReader) ([]string, error) {
	words := []string{"gpushare", cmd.Name(), "--json"}
	for _, name := range append([]string{"socket"}, reader.pass...) {
		f := cmd.Flag(name)
		if f == nil || !f.Changed {
			continue
		}
		value := f.Value.String()
		if list, ok := f.Value.(interface{ GetSlice() []string }); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		words = append(words, "--"+name+"="+value)
	}
	for _, name := range reader.refused {
		if f := cmd.Flags().Lookup(name); f.Changed {
			return nil, usageError{
				err:  fmt.Errorf("cannot use --%s with --host", name),
				hint: "'ssh HOST " + cmd.CommandPath() + " --" + name + "' does it on one host",
			}
		}
	}
	if f := cmd.Flags().Lookup("output"); f != nil && f.Changed && f.Value.String() != "json" && f.Value.String() != "wide" {
		return nil, usageError{
			err:  fmt.Errorf("cannot use --output %s with --host", f.Value),
			hint: "--json has all that the hosts answered",
		}
	}
	if _, err := remote.Quote(words); err != nil {
		return nil, usageError{err: err}
	}
	return words, nil
}

// hostNames are the hosts that --host names, each once.
func (a *app) hostNames(ctx context.Context) ([]string, error) {
	var all []string
	for _, word := range a.hosts {
		names, err := a.hostsOf(ctx, word)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, usageError{
				err:  fmt.Errorf("cannot read --host %s: %w", word, err),
				hint: "write names with commas, ranges as in node[01-16], or @FILE with one in each line",
			}
		}
		for _, name := range names {
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	if len(all) > hostlist.MaxHosts {
		return nil, usageError{err: fmt.Errorf("--host names more than %d hosts", hostlist.MaxHosts)}
	}
	return all, nil
}

func (a *app) hostsOf(ctx context.Context, word string) ([]string, error) {
	file, isFile := strings.CutPrefix(word, "@")
	if !isFile {
		return hostlist.Parse(word)
	}
	f, err := openFile(ctx, file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := boundedread.All(f, hostFileLimit)
	if err != nil {
		return nil, err
	}
	return hostlist.ParseFile(string(b))
}
