package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/client"
	"github.com/gpushare/gpushare/internal/version"
)

// Stdio is where a command reads and writes.
type Stdio struct {
	In       io.Reader
	Out, Err io.Writer
}

// app is what every command shares.
type app struct {
	env    []string
	io     Stdio
	client client.Client
	json   bool
	color  bool
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
type usageError struct{ error }

// Run is the command line. args are without the program's name.
func Run(ctx context.Context, args, env []string, stdio Stdio) int {
	a := &app{env: env, io: stdio}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdio.In)
	root.SetOut(stdio.Out)
	root.SetErr(stdio.Err)
	return a.report(root.ExecuteContext(ctx))
}

// Root gives the command tree for documentation and completion.
func Root() *cobra.Command { return (&app{io: Stdio{os.Stdin, os.Stdout, os.Stderr}}).root() }

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "gpushare",
		Short: "Share the GPUs of this host",
		Long: `gpushare shares the GPUs of one host between tenants: MIG partitions, CUDA MPS,
time slices and whole GPUs, with CPU, memory and device limits for each tenant.

It talks to gpushared over ` + api.SocketPath + `.`,
		Example: `  gpushare status                        what the node looks like now
  gpushare run -- python train.py        run a command on the GPU that you are granted
  gpushare apply -f node.yaml --check    what would change, without changing it
  gpushare apply -f node.yaml            change it`,
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if a.client.Socket == "" {
				a.client.Socket = a.getenv("GPUSHARE_SOCKET")
			}
			a.color = a.getenv("NO_COLOR") == "" && isTerminal(a.io.Out)
		},
	}
	root.PersistentFlags().StringVar(&a.client.Socket, "socket", "", "the daemon's socket (default $GPUSHARE_SOCKET, then "+api.SocketPath+")")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON with a schema_version instead of text")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		a.statusCommand(), a.applyCommand(), a.planCommand(), a.getCommand(), a.runCommand(), a.envCommand(),
		a.eventsCommand(), a.doctorCommand(), a.versionCommand(),
		a.gpuCommand(), a.migCommand(), a.mpsCommand(), a.tenantCommand(), a.leaseCommand(), a.configCommand(),
	)
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
func (a *app) report(err error) int {
	if err == nil {
		return api.ExitOK
	}
	code := api.ExitFailed
	var exit *exitError
	if errors.As(err, &exit) {
		code = exit.code
		if exit.err == nil {
			return code
		}
		err = exit.err
	}
	var refused *api.Error
	var usage usageError
	switch {
	case errors.As(err, &refused):
		if exit == nil {
			code = refused.Kind.ExitCode()
		}
		a.refusal(refused)
		return code
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"), strings.HasPrefix(err.Error(), "unknown flag"):
		if exit == nil {
			code = api.ExitUsage
		}
		fmt.Fprintf(a.io.Err, "gpushare: %v\nhint: 'gpushare --help' lists the commands\n", err)
		return code
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(a.io.Err, "gpushare: interrupted")
		if exit == nil {
			code = 130
		}
		return code
	}
	fmt.Fprintf(a.io.Err, "gpushare: %v\n", err)
	return code
}

// refusal prints one sentence, every wrong place of a document, and the hint.
func (a *app) refusal(e *api.Error) {
	fmt.Fprintf(a.io.Err, "gpushare: %s\n", e.Message)
	for _, f := range e.Fields {
		fmt.Fprintf(a.io.Err, "  %s\n", f.Error())
		if f.Hint != "" {
			fmt.Fprintf(a.io.Err, "    %s\n", f.Hint)
		}
	}
	if e.Hint != "" {
		fmt.Fprintf(a.io.Err, "hint: %s\n", e.Hint)
	}
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Show the versions of the command line, the daemon and the driver", Args: noArgs,
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
				fmt.Fprintln(a.io.Err, "warning: the command line and the daemon are of different versions: restart the daemon after an upgrade")
			}
			return nil
		},
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("'%s' takes no arguments, got %q", cmd.CommandPath(), args[0])}
	}
	return nil
}

func exactArgs(n int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != n {
			return usageError{fmt.Errorf("'%s' needs %s", cmd.CommandPath(), what)}
		}
		return nil
	}
}

// group is a noun: alone it shows its help, with an unknown verb it refuses.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, RunE: func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usageError{fmt.Errorf("unknown command %q for '%s'", args[0], cmd.CommandPath())}
		}
		return cmd.Help()
	}}
	c.AddCommand(commands...)
	return c
}
