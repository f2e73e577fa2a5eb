package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/text"
	"github.com/gpushare/gpushare/internal/version"
)

// Stdio is where a command reads and writes.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what every command shares.
type app struct {
	env []string
	io  Stdio
	out *stdout // io.Out

	terminalIn io.Reader // what io.In reads
	client     client.Client
	hosts      []string // as --host names them
	json       bool
	color      bool
	begun      *begunRequest // nil: run requests its lease itself
}

// exitError carries an exit code that no error kind gives.
type exitError struct {
	code int
	err  error // nil: nothing to print
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usageError is a mistake on the command line.
type usageError struct {
	err  error
	hint string // empty: the help of the command that was meant
}

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

// interruptedError is a wait that the user ended, where there is more to say than that.
type interruptedError struct{ hint string }

func (*interruptedError) Error() string { return "interrupted" }
func (*interruptedError) Unwrap() error { return context.Canceled }

// Run is the command line. args are without the program's name.
func Run(ctx context.Context, args, env []string, stdio Stdio) int {
	terminalIn := stdio.In
	stdio.In = &input{ctx, stdio.In}
	out := &stdout{w: stdio.Out}
	stdio.Out = out
	a := &app{env: env, io: stdio, terminalIn: terminalIn, out: out}
	a.takeBegun()
	root := a.root(a.typed(args))
	root.SetArgs(joinValues(root, args))
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	cmd, err := root.ExecuteContextC(ctx)
	code := a.report(cmd, err)
	if err := out.failed(); err != nil && (code == api.ExitOK || code == api.ExitChanges || code == api.ExitIncomplete) {
		code = api.ExitFailed
		a.refusal(
			&api.Error{Kind: api.KindInternal, Message: "cannot write the output: " + err.Error(), Hint: "what was written is incomplete"},
			code,
		)
	}
	return code
}

// Root gives the command tree for documentation and completion.
func Root() *cobra.Command {
	return (&app{io: Stdio{os.Stdin, os.Stdout, os.Stderr}, out: &stdout{w: os.Stdout}}).root("")
}

// verb is a command that is made when it is typed.
type verb struct {
	name string
	make func() *cobra.Command
}

func (a *app) verbs() []verb {
	return []verb{
		{"status", a.statusCommand},
		{"ready", a.readyCommand},
		{"top", a.topCommand},
		{"apply", a.applyCommand},
		{"plan", a.planCommand},
		{"get", a.getCommand},
		{"unmanage", a.unmanageCommand},
		{"history", a.historyCommand},
		{"rollback", a.rollbackCommand},
		{"run", a.runCommand},
		{"env", a.envCommand},
		{"explain", a.explainCommand},
		{"events", a.eventsCommand},
		{"audit", a.auditCommand},
		{"usage", a.usageCommand},
		{"idle", a.idleCommand},
		{"metrics", a.metricsCommand},
		{"doctor", a.doctorCommand},
		{"version", a.versionCommand},
		{"gpu", a.gpuCommand},
		{"mig", a.migCommand},
		{"mps", a.mpsCommand},
		{"condition", a.conditionCommand},
		{"tenant", a.tenantCommand},
		{"lease", a.leaseCommand},
		{"spec", a.specCommand},
		{"config", a.configCommand},
		{"operation", a.operationCommand},
		{"maintenance", a.maintenanceCommand},
		{"slurm", a.slurmCommand},
	}
}

// typed is the command that the first word names; empty if it names none, as a flag does.
func (a *app) typed(args []string) string {
	if len(args) > 0 && slices.ContainsFunc(a.verbs(), func(c verb) bool { return c.name == args[0] }) {
		return args[0]
	}
	return ""
}

// root is the command tree. With only, it has no other command: to make them all takes longer than a request to the daemon.
func (a *app) root(only string) *cobra.Command {
	root := &cobra.Command{
		Use:   "gpushare",
		Short: "Share the GPUs of this host",
		Long: `gpushare shares the GPUs of one host between tenants: MIG partitions, CUDA MPS,
time slices and whole GPUs, with CPU, memory and device limits for each tenant.

It talks to gpushared over ` + api.SocketPath + `.

A lease, an operation or a condition is named by its id, a GPU by its index or UUID. The
beginning of an id or UUID is enough if it has four characters and begins nothing else.
A duration is written as in 30s, 10m, 2h, 1d or 1-12:00:00, and a wait of 0 has no limit.

With --host, status, usage, idle and plan run on other hosts, with ssh of this one and its
configuration, a hundred at once, and print one table. With --json it is one list, of what each
host answered or why it did not. Exit code 12: some of the hosts could not be read.`,
		Example: `  gpushare status                        # show GPUs, tenants and leases
  gpushare run -- python train.py        # run a command on a GPU that you are granted
  gpushare apply -f node.yaml --check    # show the plan, change nothing
  gpushare apply -f node.yaml            # put the spec in force`,
		SilenceErrors:         true,
		SilenceUsage:          true,
		Version:               version.Version,
		DisableFlagsInUseLine: true,
		DisableSuggestions:    true, // They are made here, as a hint like every other.
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if a.client.Socket == "" {
				a.client.Socket = a.getenv("GPUSHARE_SOCKET")
			}
			a.color = a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && isTerminal(a.io.Out)
			return a.refuseHosts(cmd)
		},
	}
	root.PersistentFlags().StringVar(
		&a.client.Socket, "socket", "", "the daemon's socket (default $GPUSHARE_SOCKET, then "+api.SocketPath+")",
	)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON with a schema_version instead of text")
	a.hostFlag(root)
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("gpushare {{.Version}}\n")
	root.SetHelpCommand(helpCommand(root))
	for _, c := range a.verbs() {
		if only == "" || c.name == only {
			root.AddCommand(a.onHosts(c.make()))
		}
	}
	root.CompletionOptions.DisableDefaultCmd = only != ""
	return root
}

func (a *app) getenv(name string) string {
	for i := len(a.env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(a.env[i], name+"="); ok {
			return v
		}
	}
	return ""
}

// report prints an error the one way and gives its exit code.
func (a *app) report(cmd *cobra.Command, err error) int {
	if err == nil {
		return api.ExitOK
	}
	var exit *exitError
	var refused *api.Error
	var usage usageError
	var stopped *interruptedError
	shown := &api.Error{Kind: api.KindInternal, Message: err.Error()}
	code := api.ExitFailed
	switch {
	case errors.As(err, &refused):
		shown, code = refused, refused.Kind.ExitCode()
		if client.Unreached(err) {
			shown = installedUnit.explain(a.client.Socket, refused)
		}
	case errors.Is(err, context.Canceled):
		shown, code = &api.Error{Kind: api.KindUnavailable, Message: "interrupted"}, exitInterrupted
		if errors.As(err, &stopped) {
			shown.Hint = stopped.hint
		}
	case errors.As(err, &usage):
		shown, code = &api.Error{Kind: api.KindInvalid, Message: usage.Error(), Hint: usage.hint}, api.ExitUsage
		if shown.Hint == "" {
			shown.Hint = fmt.Sprintf("'%s --help' shows the usage", cmd.CommandPath())
		}
	case strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "if any flags in the group"): // cobra's own
		shown, code = &api.Error{
			Kind:    api.KindInvalid,
			Message: err.Error(),
			Hint:    fmt.Sprintf("'%s --help' shows the usage", cmd.CommandPath()),
		}, api.ExitUsage
	}
	if errors.As(err, &exit) {
		code = exit.code
		if exit.err == nil {
			return code
		}
	}
	a.refusal(shown, code)
	return code
}

// refusal prints an error, every wrong place of a document, and the hint; with --json one object on standard error, so
// that standard output has only answers.
func (a *app) refusal(e *api.Error, code int) {
	if a.json {
		out := json.NewEncoder(a.io.Err)
		out.SetIndent("", "  ")
		_ = out.Encode(struct { // Standard error is closed: there is no other place to report to.
			SchemaVersion int        `json:"schema_version"`
			ExitCode      int        `json:"exit_code"`
			Error         *api.Error `json:"error"`
		}{1, code, e})
		return
	}
	message, fields := e.Message, e.Fields
	if len(fields) > 0 && strings.HasPrefix(message, fields[0].Error()) {
		// The message has the first place and the number of others, for readers who see only the message.
		message = mistakes(message, fields)
	}
	fmt.Fprintf(a.io.Err, "gpushare: %s\n", sentence(message))
	for _, f := range fields {
		if len(fields) > 1 || f.Error() != message {
			fmt.Fprintf(a.io.Err, "  %s\n", sentence(f.Error()))
		}
		if f.Hint != "" {
			fmt.Fprintf(a.io.Err, "    %s\n", sentence(f.Hint))
		}
	}
	if e.Stale != nil {
		for _, line := range e.Stale.Lost {
			fmt.Fprintf(a.io.Err, "  %s\n", printable(line))
		}
		if e.Stale.More > 0 {
			fmt.Fprintf(a.io.Err, "  and %s more\n", text.Count(e.Stale.More, "line"))
		}
	}
	for i := range e.Leases {
		fmt.Fprintf(a.io.Err, "  %s\n", printable(e.Leases[i].String()))
	}
	if e.Hint != "" {
		fmt.Fprintf(a.io.Err, "hint: %s\n", sentence(e.Hint))
	}
}

// mistakes is the headline of a list of wrong places; a single place is its own headline.
func mistakes(message string, fields []api.FieldError) string {
	first := fields[0].Error()
	if len(fields) == 1 {
		return first
	}
	file := fields[0].File
	if file == "" {
		file = "the spec"
	}
	if message != first && message != fmt.Sprintf("%s (and %d more mistakes)", first, len(fields)-1) &&
		message != first+" (and one more mistake)" {
		return fmt.Sprintf("%s has many mistakes, the first %d are:", file, len(fields))
	}
	return fmt.Sprintf("%s has %s:", file, text.Count(len(fields), "mistake"))
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the versions of the command line, the daemon and the driver", Args: noArgs,
		Example: "  gpushare version\n  gpushare version --json | jq -r .daemon.driver",
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := a.client.Info(cmd.Context())
			if a.json {
				out := struct {
					SchemaVersion int       `json:"schema_version"`
					Client        string    `json:"client"`
					Daemon        *api.Info `json:"daemon,omitempty"`
				}{1, version.Version, info}
				if e := a.printJSON(out); e != nil {
					return e
				}
				return err
			}
			fmt.Fprintf(a.io.Out, "gpushare  %s\n", version.Version)
			if err != nil {
				return err
			}
			fmt.Fprintf(a.io.Out, "gpushared %s\n", info.Version)
			if info.Driver != "" {
				fmt.Fprintf(a.io.Out, "driver    %s\n", info.Driver)
			}
			if info.Version != version.Version {
				fmt.Fprintln(
					a.io.Err, "warning: the command line and the daemon are of different versions: restart the daemon after an upgrade",
				)
			}
			return nil
		},
	}
}

// group is a noun: alone it shows its help, and it refuses an unknown verb.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		return cmd.Help()
	}}
	c.AddCommand(commands...)
	return c
}

// helpCommand refuses unknown commands. Cobra's own shows the help of another command instead.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND…]", Short: "Show the help of a command",
		ValidArgsFunction: func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
			var out []string
			if c, rest, err := root.Find(args); err == nil && len(rest) == 0 {
				for _, sub := range c.Commands() {
					if sub.IsAvailableCommand() && strings.HasPrefix(sub.Name(), typed) {
						out = append(out, sub.Name()+"\t"+sub.Short)
					}
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(_ *cobra.Command, args []string) error {
			c, rest, err := root.Find(args)
			if err != nil {
				return usageError{err: err}
			}
			if len(rest) > 0 {
				return unknownCommand(c, rest[0])
			}
			c.InitDefaultHelpFlag()
			return c.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, word string) error {
	e := usageError{err: fmt.Errorf("unknown command %q for '%s'", word, cmd.CommandPath())}
	var known []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			known = append(known, c.Name())
		}
	}
	if same := sameWord(cmd, word); same != "" {
		e.hint = same
	} else if near, ok := api.Nearest(word, known); ok {
		e.hint = fmt.Sprintf("did you mean '%s %s'?", cmd.CommandPath(), near)
	} else {
		e.hint = fmt.Sprintf("'%s --help' lists the commands", cmd.CommandPath())
		if show, _, err := cmd.Find([]string{"show"}); err == nil && show != cmd && plainWord(word) {
			e.hint = fmt.Sprintf("'%s %s' shows one; %s", show.CommandPath(), word, e.hint) // The verb was left out.
		}
	}
	return e
}

// flagName finds flags in a command's own help.
var flagName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`--([a-z][a-z-]+)`) })

// flagError is a usage error that suggests the flag of another name that was meant, or the most similar one. Before a flag of an
// unknown command is unknown, the command is.
func flagError(cmd *cobra.Command, err error) error {
	if words := cmd.Flags().Args(); len(words) > 0 && cmd.HasSubCommands() {
		return unknownCommand(cmd, words[0])
	}
	e := usageError{err: err}
	if wrong, ok := errors.AsType[wrongDuration](err); ok {
		return usageError{err: fmt.Errorf("%s: %w", flagName().FindString(err.Error()), wrong)}
	}
	if short, ok := strings.CutPrefix(err.Error(), "unknown shorthand flag: '"); ok {
		letter, _, _ := strings.Cut(short, "'")
		e.hint = sameFlag(cmd, letter)
		return e
	}
	word, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return e
	}
	if e.hint = sameFlag(cmd, word); e.hint != "" {
		return e
	}
	var known []string
	for _, m := range flagName().FindAllStringSubmatch(cmd.Flags().FlagUsages(), -1) {
		known = append(known, m[1])
	}
	if near, ok := api.Nearest(word, known); ok {
		e.hint = fmt.Sprintf("did you mean --%s?", near)
	}
	return e
}
