package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/test/programs"
)

// sites is a directory with a stand-in of ssh, which gives the command to a shell as sshd does, and a stand-in of gpushare on the hosts:
// it prints HOST.json or COMMAND.json, or does what HOST.sh says.
type sites struct{ dir string }

func newSites(t testing.TB, answers map[string]any) *sites {
	t.Helper()
	s := &sites{t.TempDir()}
	write := func(name, text string) {
		if err := programs.Write(filepath.Join(s.dir, name), text); err != nil {
			t.Fatal(err)
		}
	}
	there := filepath.Join(s.dir, "there")
	if err := os.Mkdir(there, 0o755); err != nil {
		t.Fatal(err)
	}
	head := "#!/bin/sh\ndir='" + s.dir + "'\n"
	write("ssh", head+`while [ $# -gt 2 ]; do shift; done
host=$1
echo "$host" >>"$dir/ssh.log"
[ ! -f "$dir/$host.ssh" ] || . "$dir/$host.ssh"
HOST=$host PATH=$dir/there:$PATH exec sh -c "$2"
`)
	write("there/gpushare", head+`printf '%s\n' "$@" >"$dir/$HOST.words"
[ ! -f "$dir/$HOST.sh" ] || . "$dir/$HOST.sh"
[ -f "$dir/$HOST.json" ] || exec cat "$dir/$1.json"
exec cat "$dir/$HOST.json"
`)
	for host, v := range answers {
		switch v := v.(type) {
		case string:
			write(host, v) // HOST.sh or HOST.ssh
		case []byte:
			write(host+".json", string(v))
		default:
			b, err := json.MarshalIndent(v, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			write(host+".json", string(b)+"\n")
		}
	}
	return s
}

func (s *sites) run(ctx context.Context, args ...string) result {
	var out, errs, all bytes.Buffer
	code := cli.Run(ctx, args, []string{"PATH=" + s.dir + ":" + os.Getenv("PATH"), "TERM=xterm"},
		cli.Stdio{In: strings.NewReader(""), Out: both{&out, &all}, Err: both{&errs, &all}})
	return result{code, out.String(), errs.String(), all.String()}
}

// words are what gpushare got on a host.
func (s *sites) words(t testing.TB, host string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, host+".words"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSuffix(string(b), "\n"), "\n", " ")
}

// failing are hosts that do not answer with what was requested, each in its way.
func failing() map[string]any {
	refused, err := json.MarshalIndent(map[string]any{
		"schema_version": 1, "exit_code": 3,
		"error": api.Error{Kind: api.KindUnavailable, Message: "cannot reach gpushared: no such file", Hint: "'systemctl start gpushared'"},
	}, "", "  ")
	if err != nil {
		panic(err)
	}
	return map[string]any{
		"nokey.ssh":     "echo 'nokey: Permission denied (publickey).' >&2; exit 255\n",
		"silent.ssh":    "exit 255\n",
		"without.ssh":   "echo 'sh: 1: gpushare: not found' >&2; exit 127\n",
		"stopped.sh":    "echo '*** Welcome ***' >&2; cat >&2 <<'E'\n" + string(refused) + "\nE\nexit 3\n",
		"older.sh":      "echo 'gpushare: unknown flag: --json' >&2; exit 2\n",
		"greets.ssh":    "echo Welcome\n",
		"greets":        labNode(),
		"empty.sh":      "exit 0\n",
		"text.sh":       "echo 'GPU MODEL'; exit 0\n",
		"list.sh":       "echo '[1, 2]'; exit 0\n",
		"unlike.sh":     `echo '{"schema_version": 1, "gpus": "none", "rows": "none", "uses": 7, "steps": 7}'; exit 0` + "\n",
		"unversion.sh":  "echo '{}'; exit 0\n",
		"endless.sh":    "exec yes\n",
		"ended.ssh":     "kill -9 $$\n",
		"hangs.ssh":     "exec sleep 600\n",
		"halfway.sh":    "echo '{\"schema_version\": 1,'; exit 0\n",
		"unknownerr.sh": "printf '{\\n\"error\": {\"kind\": \"new\", \"message\": \"of a newer version\"}}\\n' >&2; exit 77\n",
	}
}

// TestHostTexts compares what a person sees of several hosts with testdata/NAME.txt.
func TestHostTexts(t *testing.T) {
	well := labNode()
	well.Node.Conditions = nil
	other := labNode()
	other.Node.Host, other.GPUs = "gpu2", other.GPUs[:2]
	for i := range 8 {
		other.Node.Conditions = append(
			other.Node.Conditions,
			api.Condition{Kind: "unknown-member", Message: fmt.Sprintf("this host does not know user u%d", i)},
		)
	}
	nothing := api.Plan{SchemaVersion: 1, Generation: 7, Empty: true}
	held := nothing
	held.Held = []api.HeldGPU{{GPU: gpu1, Index: 1, Reason: "the GPU is lost", Command: "gpushare gpu retry 1"}}
	for name, c := range map[string]struct {
		answers map[string]any
		args    string
	}{
		"hosts-status":        {map[string]any{"gpu1": well, "gpu2": other, "gpu3": emptyNode()}, "--host gpu[1-3] status --exit-code"},
		"hosts-status-wide":   {map[string]any{"gpu1": well}, "--host gpu1 status -o wide"},
		"hosts-status-fail":   {failing(), "status --host nokey,silent,without,stopped,older,greets,empty,text,list,unlike,unversion,endless,ended,halfway,unknownerr"},
		"hosts-usage":         {map[string]any{"gpu1": labUsage(), "gpu2": labUsage()}, "usage --host gpu1,gpu2 --by user,tenant"},
		"hosts-idle":          {map[string]any{"gpu1": labIdle(), "gpu2": api.Idle{SchemaVersion: 1, At: noon}}, "idle --host gpu1,gpu2"},
		"hosts-idle-none":     {map[string]any{"gpu2": api.Idle{SchemaVersion: 1, At: noon}}, "idle --host gpu2 --for 2h"},
		"hosts-plan":          {map[string]any{"gpu1": labPlan(), "gpu2": nothing, "gpu3": held}, "plan --host gpu1,gpu2,gpu3 --exit-code"},
		"hosts-plan-changes":  {map[string]any{"gpu1": labPlan(), "gpu2": nothing}, "plan --host gpu1,gpu2 --exit-code"},
		"hosts-plan-none":     {map[string]any{"gpu2": nothing}, "plan --host gpu2 --exit-code"},
		"hosts-refused":       {nil, "gpu cordon 3 --host gpu1"},
		"hosts-refused-flag":  {nil, "plan --host gpu1 -f node.yaml"},
		"hosts-refused-names": {nil, "status --host gpu[1-3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newSites(t, c.answers).run(t.Context(), strings.Fields(c.args)...)
			got := fmt.Sprintf("$ gpushare %s\n%s", c.args, r.out)
			if r.err != "" {
				got += "── standard error\n" + r.err
			}
			compare(t, name, got+fmt.Sprintf("── exit code %d\n", r.code))
		})
	}
}

// A part of the hosts that fails is named, with another exit code than all and none, and with --json each host has its own.
func TestSomeHostsFail(t *testing.T) {
	t.Parallel()
	all := failing()
	all["gpu1"] = labNode()
	s := newSites(t, all)
	r := s.run(t.Context(), "status", "--host", "gpu1,nokey")
	if r.code != api.ExitSomeHosts || !strings.Contains(r.out, "gpu1 ") || strings.Contains(r.out, "nokey") ||
		!strings.Contains(r.err, "cannot read 1 of 2 hosts:\n  nokey: ssh: nokey: Permission denied (publickey).\n") {
		t.Errorf("one of two: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := s.run(t.Context(), "status", "--host", "nokey,silent"); r.code != api.ExitUnreachable || r.out != "" {
		t.Errorf("none of two: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := s.run(t.Context(), "status", "--host", "gpu1"); r.code != 0 || r.err != "" {
		t.Errorf("all: exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := s.run(t.Context(), "status", "--host", "gpu1,nokey", "--exit-code"); r.code != api.ExitSomeHosts {
		t.Errorf("a condition is shown and a host is missing: exit code %d", r.code)
	}
	r = s.run(t.Context(), "status", "--host", "gpu1,nokey,stopped,ended", "--json")
	var out api.HostResults
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != api.ExitSomeHosts || r.err != "" || out.SchemaVersion != 1 ||
		len(out.Hosts) != 4 {
		t.Fatalf("--json: %v, exit code %d\n%s%s", err, r.code, r.out, r.err)
	}
	var st api.Status
	if h := out.Hosts[0]; h.Host != "gpu1" || !h.OK || h.Error != nil || json.Unmarshal(h.Result, &st) != nil ||
		len(st.GPUs) != len(labNode().GPUs) {
		t.Errorf("gpu1 has %+v", h)
	}
	for i, want := range []api.HostResult{
		{Host: "nokey", ExitCode: ptr(255), Error: &api.Error{Kind: api.KindUnavailable, Message: "ssh: nokey: Permission denied (publickey)."}},
		{Host: "stopped", ExitCode: ptr(3), Error: &api.Error{Kind: api.KindUnavailable, Message: "cannot reach gpushared: no such file", Hint: "'systemctl start gpushared'"}},
		{Host: "ended", Error: &api.Error{Kind: api.KindUnavailable, Message: "cannot run ssh: signal: killed"}},
	} {
		got, _ := json.Marshal(out.Hosts[i+1])
		if want, _ := json.Marshal(want); string(got) != string(want) {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// A host that hangs has a deadline, which is said, and the others are shown.
func TestAHostThatHangs(t *testing.T) {
	t.Parallel()
	s := newSites(t, map[string]any{"gpu1": labNode(), "hangs.ssh": failing()["hangs.ssh"]})
	// The deadline is that of each host, so the one that answers may take as long on a busy host.
	r := s.run(t.Context(), "status", "--host", "hangs", "--host-timeout", "1s")
	if r.code != api.ExitUnreachable || !strings.Contains(r.err, "  hangs: it did not answer within 1s\n") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	for _, args := range [][]string{{"status", "--host-timeout", "5s"}, {"status", "--host", "gpu1", "--host-timeout", "0s"}} {
		if r := s.run(t.Context(), args...); r.code != api.ExitUsage || r.out != "" {
			t.Errorf("%q exits with %d: %s%s", args, r.code, r.out, r.err)
		}
	}
}

// An interrupt ends what runs: nothing is shown of the hosts that had answered.
func TestHostsAreInterrupted(t *testing.T) {
	t.Parallel()
	s := newSites(t, map[string]any{"hangs.ssh": `echo begun >"$dir/begun"; exec sleep 600` + "\n"})
	begun := filepath.Join(s.dir, "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan result, 1)
	go func() { done <- s.run(ctx, "status", "--host", "hangs", "--host-timeout", "10m") }()
	if b, err := os.ReadFile(begun); err != nil || string(b) != "begun\n" { // It waits for the other end of the pipe.
		t.Fatalf("%q, %v", b, err)
	}
	interrupt()
	select {
	case r := <-done:
		if r.code != 130 || r.out != "" || !strings.Contains(r.err, "interrupted") {
			t.Errorf("it exits with %d: %s%s", r.code, r.out, r.err)
		}
	case <-time.After(5 * time.Minute):
		t.Fatal("it waits for the host")
	}
}

// What the command on the hosts gets: the flags that select, as one word each whatever they contain, and the socket only if it is named.
func TestWordsOnHosts(t *testing.T) {
	t.Parallel()
	s := newSites(t, map[string]any{"gpu1": labNode(), "gpu2": labUsage(), "gpu3": labIdle(), "gpu4": labPlan()})
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"status", "--host", "gpu1"}, "status --json"},
		{[]string{"status", "--host", "gpu1", "-t", "$(id) 'x'", "--mine", "-o", "wide"}, "status --json --tenant=$(id) 'x' --mine=true"},
		{[]string{"--socket", "/run/other", "status", "--host", "gpu1"}, "status --json --socket=/run/other"},
		{[]string{"usage", "--host", "gpu2", "--since", "30d", "--by", "tenant,user"}, "usage --json --since=30d --by=tenant,user"},
		{[]string{"idle", "--host", "gpu3", "--for", "2h"}, "idle --json"},
		{[]string{"plan", "--host", "gpu4", "--exit-code"}, "plan --json"},
	} {
		host := c.args[slices.Index(c.args, "--host")+1]
		if r := s.run(t.Context(), c.args...); strings.Contains(r.err, "cannot") {
			t.Errorf("%q exits with %d: %s%s", c.args, r.code, r.out, r.err)
		}
		if got := s.words(t, host); got != c.want {
			t.Errorf("%q: the host got %q, want %q", c.args, got, c.want)
		}
	}
	if r := s.run(t.Context(), "status", "--host", "gpu1", "-t", "a\nb"); r.code != api.ExitUsage || r.out != "" {
		t.Errorf("a line break exits with %d: %s%s", r.code, r.out, r.err)
	}
}

// A host of another version: fields that this one does not know are in the JSON, fields that it lacks are not shown.
func TestHostsOfOtherVersions(t *testing.T) {
	t.Parallel()
	s := newSites(t, map[string]any{
		"newer": []byte(
			`{"schema_version": 2, "node": {"host": "newer", "orbit": 7}, "gpus": [{"index": 0, "uuid": "GPU-1", "mode": "quantum", "state": "ok", "flavour": {"x": [1.50]}}], "comets": []}`,
		),
		"older": []byte(`{"schema_version": 1, "gpus": [{"index": 3}]}`),
	})
	r := s.run(t.Context(), "status", "--host", "newer,older")
	if r.code != 0 || !strings.Contains(r.out, "quantum") || !strings.Contains(r.out, "older") {
		t.Errorf("exit code %d: %s%s", r.code, r.out, r.err)
	}
	r = s.run(t.Context(), "status", "--host", "newer,older", "--json")
	var out bytes.Buffer
	if err := json.Compact(&out, []byte(r.out)); err != nil || r.code != 0 ||
		!strings.Contains(out.String(), `"flavour":{"x":[1.50]}`) || !strings.Contains(out.String(), `"orbit":7`) ||
		!strings.Contains(out.String(), `"comets":[]`) {
		t.Errorf("exit code %d, %v: %s%s", r.code, err, r.out, r.err)
	}
}

// hostile has what controls a terminal in each text of a value.
const hostile = "\x1b[2J\x07\u0085\u202e\u2028\x7fevil"

// What a host answers reaches no terminal as control characters, in tables, errors and JSON, is short in tables, and no command that is
// shown is its text.
func TestHostileHosts(t *testing.T) {
	t.Parallel()
	st := emptyNode()
	st.Node.Host = hostile
	st.Node.Conditions = []api.Condition{{Kind: hostile, Message: hostile + strings.Repeat("x", 1<<20), Hint: hostile, GPU: hostile}}
	for i := range 3000 {
		st.GPUs = append(
			st.GPUs,
			api.GPUStatus{Index: i - 7, UUID: hostile, Model: hostile, Mode: hostile, State: hostile, Reason: hostile},
		)
	}
	idle := api.Idle{SchemaVersion: 1, At: noon}
	for _, lease := range []string{hostile, "-x", "a;id", "$(id)", "a b", "vision-3kq6"} {
		idle.Uses = append(idle.Uses, api.IdleUse{
			Lease: lease, Tenant: hostile, User: hostile, Job: hostile, Account: hostile, State: api.UseIdle, IdleSeconds: ptr(3600.0),
			Stop: "rm -rf / # " + hostile,
		})
	}
	idle.Uses = append(idle.Uses, api.IdleUse{Lease: "x", State: api.UseIdle, IdleSeconds: ptr(1e300)})
	plan := api.Plan{
		SchemaVersion: 1,
		Warnings:      []string{hostile},
		Steps:         []api.PlanStep{{GPU: hostile, Text: hostile, Reason: hostile, Disturbs: []string{hostile}}},
	}
	usage := labUsage()
	usage.Rows = append(usage.Rows, api.UsageRow{Tenant: hostile, ExitCodes: map[string]int64{hostile: 3}})
	long, err := json.Marshal(map[string]any{"error": api.Error{Kind: "x", Message: hostile + strings.Repeat("x", 10000), Hint: hostile}})
	if err != nil {
		t.Fatal(err)
	}
	s := newSites(t, map[string]any{
		"gpu1": st, "gpu2": idle, "gpu3": plan, "gpu4": usage,
		"gpu5.sh":  "printf '" + `\033]0;x\007\302\205\377` + "evil\\n' >&2; exit 255\n",
		"gpu6.sh":  "printf '{\\n' >&2; cat >&2 <<'E'\n" + string(long[1:]) + "\nE\nexit 1\n",
		"gpu7":     []byte("{\"schema_version\": 1, \"x\": \"\u0085\u202e\x7f\xff\u2028\"}"),
		"gpu8.ssh": "printf '\\033[2J'\n",
		"gpu8":     labNode(),
	})
	for _, command := range []string{"status", "usage", "idle", "plan"} {
		for i := range 8 {
			for _, more := range [][]string{nil, {"--json"}} {
				r := s.run(t.Context(), append([]string{command, "--host", "gpu" + strconv.Itoa(i+1)}, more...)...)
				if at := strings.IndexFunc(r.all, func(c rune) bool {
					return c != '\n' && c < ' ' || c >= 0x7f && c < 0xa0 || c == '\u202e' || c == '\u2028'
				}); at >= 0 {
					t.Errorf("%s of gpu%d %q prints %q", command, i+1, more, r.all[max(0, at-40):min(len(r.all), at+40)])
				}
				if more != nil {
					if r.out != "" && !json.Valid([]byte(r.out)) {
						t.Errorf("%s of gpu%d prints no JSON", command, i+1)
					}
					continue
				}
				if strings.Contains(r.all, "rm -rf") {
					t.Errorf("%s of gpu%d shows the command of the host", command, i+1)
				}
				if lines := strings.Count(r.all, "\n"); lines > 1100 || len(r.all) > 1<<20 {
					t.Errorf("%s of gpu%d prints %d lines, %d bytes", command, i+1, lines, len(r.all))
				}
			}
		}
	}
	r := s.run(t.Context(), "idle", "--host", "gpu2")
	if n := strings.Count(r.out, "  ssh gpu2 gpushare lease stop "); n != 1 || !strings.Contains(r.out, "lease stop vision-3kq6\n") {
		t.Errorf("idle shows %d commands:\n%s", n, r.out)
	}
}

// Of each flag of a command that takes --host is decided what it does there: a new one is not ignored.
func TestFlagsOfHosts(t *testing.T) {
	t.Parallel()
	name := regexp.MustCompile(`(?m)^ +(?:-\w, )?    ?--([a-z-]+)|^ +-\w, --([a-z-]+)`)
	for _, c := range verbs(t) {
		decided := cli.HostFlags(c.Name())
		if decided == nil || c.Parent() != c.Root() {
			continue
		}
		var flags []string
		for _, m := range name.FindAllStringSubmatch(c.LocalNonPersistentFlags().FlagUsages(), -1) {
			if f := m[1] + m[2]; f != "help" {
				flags = append(flags, f)
			}
		}
		slices.Sort(flags)
		slices.Sort(decided)
		if !slices.Equal(flags, decided) {
			t.Errorf("%s has the flags %q, and decided are %q", c.CommandPath(), flags, decided)
		}
	}
}

// No other command takes --host, and no host is reached then.
func TestHostIsForReaders(t *testing.T) {
	t.Parallel()
	readers := []string{"gpushare status", "gpushare usage", "gpushare idle", "gpushare plan"}
	s := newSites(t, nil)
	refused := 0
	for _, c := range verbs(t) {
		path := c.CommandPath()
		if slices.Contains(readers, path) || strings.HasPrefix(path, "gpushare completion") || path == "gpushare help" {
			continue
		}
		for _, args := range [][]string{
			append(strings.Fields(path)[1:], "--host", "gpu1"),
			append([]string{"--host", "gpu1"}, strings.Fields(path)[1:]...),
		} {
			args = append(args, argumentsFor(c)...)
			if r := s.run(
				t.Context(),
				args...); r.code != api.ExitUsage || r.out != "" ||
				!strings.Contains(r.err, "cannot run '"+path+"' on other hosts") {
				t.Errorf("%q exits with %d: %s%s", args, r.code, r.out, r.err)
			}
			refused++
		}
	}
	if _, err := os.Stat(filepath.Join(s.dir, "ssh.log")); err == nil || refused < 80 {
		t.Errorf("%d commands were refused; a host was reached: %v", refused, err == nil)
	}
}

// argumentsFor are as many words as a command needs.
func argumentsFor(c *cobra.Command) []string {
	for n := range 4 {
		if words := strings.Fields(strings.Repeat("x ", n)); c.ValidateArgs(words) == nil {
			return words
		}
	}
	return nil
}

// Hosts of a file and of the command line, each once.
func TestHostFile(t *testing.T) {
	t.Parallel()
	s := newSites(t, map[string]any{"gpu1": labNode(), "gpu2": labNode(), "gpu3": labNode()})
	file := filepath.Join(s.dir, "hosts")
	if err := os.WriteFile(file, []byte("# lab\ngpu[1-2]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := s.run(t.Context(), "status", "--host", "@"+file, "--host", "gpu2,gpu3", "--json")
	var out api.HostResults
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || r.code != 0 {
		t.Fatalf("%v, exit code %d: %s%s", err, r.code, r.out, r.err)
	}
	var names []string
	for _, h := range out.Hosts {
		names = append(names, h.Host)
	}
	if strings.Join(names, " ") != "gpu1 gpu2 gpu3" {
		t.Errorf("the hosts are %q", names)
	}
	if err := os.WriteFile(file, bytes.Repeat([]byte("# a comment\n"), 100000), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"no file":    {"status", "--host", "@/nonexistent/hosts"},
		"a long one": {"status", "--host", "@" + file},
		"an option":  {"status", "--host=-oProxyCommand=id"},
		"nothing":    {"status", "--host="},
	} {
		if r := s.run(t.Context(), args...); r.code != api.ExitUsage || r.out != "" || !strings.Contains(r.err, "cannot read --host") {
			t.Errorf("%s: exit code %d: %s%s", name, r.code, r.out, r.err)
		}
	}
}

// The commands of docs/many-nodes.md are accepted, and read the hosts that they name.
func TestDocumentOfManyNodes(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("../../docs/many-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	byAccount := labUsage()
	byAccount.By = []string{api.ByAccount}
	s := newSites(t, map[string]any{
		"status": emptyNode(), "usage": byAccount, "idle": labIdle(), "plan": api.Plan{SchemaVersion: 1, Empty: true},
	})
	file := filepath.Join(s.dir, "hosts")
	if err := os.WriteFile(file, []byte("gpu[1-3]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := 0
	for line := range strings.Lines(string(b)) {
		command, ok := strings.CutPrefix(line, "$ gpushare ")
		if !ok {
			continue
		}
		read++
		args := strings.Fields(strings.ReplaceAll(command, "/etc/gpushare/hosts", file))
		if r := s.run(t.Context(), args...); r.code != 0 || r.err != "" || r.out == "" {
			t.Errorf("%q exits with %d: %s%s", args, r.code, r.out, r.err)
		}
	}
	if log, err := os.ReadFile(
		filepath.Join(s.dir, "ssh.log"),
	); err != nil || strings.Count(string(log), "\n") != 2+16+3+16+3 ||
		read != 5 {
		t.Errorf("%d commands were read, and the hosts are %q, %v", read, log, err)
	}
}

func TestHostsWithoutSSH(t *testing.T) {
	t.Parallel()
	var out, errs bytes.Buffer
	code := cli.Run(t.Context(), []string{"status", "--host", "gpu1"}, []string{"PATH=" + t.TempDir()},
		cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != api.ExitUnreachable || out.String() != "" || !strings.Contains(errs.String(), "cannot run ssh: it is not installed") {
		t.Errorf("exit code %d: %s%s", code, out.String(), errs.String())
	}
}

// FuzzHostAnswers: whatever a host answers, every table and the JSON are made, end, and have no character that controls a terminal.
func FuzzHostAnswers(f *testing.F) {
	for _, v := range []any{labNode(), labUsage(), labIdle(), labPlan()} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, []byte("\n{\n\"error\": {\"message\": \"x\"}}"), 0)
	}
	f.Add([]byte("{\"schema_version\":1,\"x\":\"\u0085\xff\"}"), []byte("\x1b[2J"), 255)
	f.Add([]byte("x"), []byte("{\n\"error\": {\"kind\": \"\u001b\", \"message\": \"a\\nb\"}}"), 2)
	f.Fuzz(func(t *testing.T, output, errs []byte, code int) {
		for _, command := range []string{"status", "usage", "idle", "plan"} {
			for _, json := range []bool{false, true} {
				text, err := cli.HostText(command, json, output, errs, code&0xff)
				text += fmt.Sprint(err)
				if strings.ContainsFunc(text, func(c rune) bool { return c != '\n' && c < ' ' || c >= 0x7f && c < 0xa0 }) {
					t.Fatalf("%s: %q", command, text)
				}
			}
		}
	})
}
