package node

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/test/harness"
)

// longTexts returns texts of together about n bytes, each as long as the kernel lets one be (MAX_ARG_STRLEN).
func longTexts(n int) (texts []string) {
	const each = 120 << 10
	for ; n > 0; n -= each {
		texts = append(texts, strings.Repeat("x", min(n, each)))
	}
	return texts
}

// longRun runs gpushare, as a member or as the caller, with more environment.
func longRun(t *testing.T, n *harness.Node, asMember bool, env []string, args ...string) harness.Result {
	t.Helper()
	cmd := exec.CommandContext(soon(t), filepath.Join(n.Bin, "gpushare"), args...)
	cmd.Env, cmd.Dir = append(n.Environ(), env...), "/"
	if asMember {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return harness.Result{Code: cmd.ProcessState.ExitCode(), Out: out.String(), Err: errs.String()}
}

// A command runs with every argument and variable that the kernel lets a program have. What cannot run is refused as what it is, before it has a lease.
func TestLongCommandsAndEnvironments(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, shared)
	// The kernel takes 2 MiB with a stack of 8 MiB.
	var stack syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_STACK, &stack); err != nil || stack.Cur < 8<<20 {
		t.Skipf("the stack has %d bytes, %v: too little for these commands", stack.Cur, err)
	}
	const length = 1800 << 10
	long := longTexts(length)
	var env []string
	for i, text := range long {
		env = append(env, fmt.Sprintf("LONG_%d=%s", i, text))
	}
	count := []string{"sh", "-c", `echo $# "$(cat /proc/$$/environ | tr -d '\n' | wc -c)"; printf %s "$@" | wc -c`, "sh"}
	for name, member := range map[string]bool{"a member": true, "the user of the daemon": false} {
		if member && os.Geteuid() != 0 {
			continue // Becoming another user needs root.
		}
		run := func(env []string, options, command []string) harness.Result {
			t.Helper()
			return longRun(
				t,
				n,
				member,
				env,
				append(append([]string{"run", "-q", "-t", "blue", "--grant", "part"}, options...), command...)...)
		}
		r := run(nil, nil, append(append([]string{"--"}, count...), long...))
		if f := strings.Fields(r.Out); r.Code != 0 || len(f) != 3 || f[0] != fmt.Sprint(len(long)) || f[2] != fmt.Sprint(length) {
			t.Errorf("%s: a command of %d bytes: %d %q %q", name, length, r.Code, r.Out, short(r.Err))
		}
		const many = 100_000
		r = run(nil, nil, append(append([]string{"--"}, count...), strings.Split(strings.Repeat("y", many), "")...))
		if f := strings.Fields(r.Out); r.Code != 0 || len(f) != 3 || f[0] != fmt.Sprint(many) || f[2] != fmt.Sprint(many) {
			t.Errorf("%s: a command of %d arguments: %d %q %q", name, many, r.Code, r.Out, short(r.Err))
		}
		r = run(env, nil, append([]string{"--"}, count...))
		var args, size int
		if _, err := fmt.Sscan(r.Out, &args, &size); r.Code != 0 || err != nil || args != 0 || size < length {
			t.Errorf("%s: an environment of more than %d bytes: %d %q %q", name, length, r.Code, r.Out, short(r.Err))
		}
		for what, r := range map[string]harness.Result{
			"arguments":   run(nil, []string{"--detach"}, append([]string{"--", "true"}, long...)),
			"environment": run(env, []string{"--detach"}, []string{"--", "true"}),
		} {
			if r.Code != 126 || !strings.Contains(r.Err, "its arguments have") ||
				!strings.Contains(r.Err, "hint: run it without --detach") {
				t.Errorf("%s: in the background, with long %s: %d %q", name, what, r.Code, short(r.Err))
			}
		}
	}
	if s := status(t, n); len(s.Leases) != 0 {
		t.Errorf("what was refused or has ended has leases: %+v", s.Leases)
	}
}

func short(text string) string { return text[:min(len(text), 1000)] }
