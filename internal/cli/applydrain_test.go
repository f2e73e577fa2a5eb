package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/test/enumeration"
	"github.com/gpushare/gpushare/test/programs"
)

// controller is a stand-in of scontrol with one node, which has a state and a reason, as files. update and show may each be answered in
// another way: refused, or never. Every call is a line of the log.
const controller = `#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>log
case $1 in
update)
	case $(cat update) in
	refuse) echo "slurm_update error: Access/permission denied" >&2; exit 1 ;;
	hang) exec sleep 1000 ;;
	slow) sleep 1 ;;
	late) set -- "$@" late ;;
	esac
	for word; do
		case $word in
		state=drain) echo MIXED+DRAIN >state ;;
		state=resume) echo IDLE >state; : >reason ;;
		reason=*) echo "${word#reason=}" >reason ;;
		late) exec sleep 1000 ;;
		esac
	done
	# What happens to the node from then on.
	[ ! -x then ] || ./then
	;;
*)
	[ "$(cat show)" != refuse ] || { echo "slurm_load_node error: Unable to contact slurm controller" >&2; exit 1; }
	[ "$(cat show)" != hang ] || exec sleep 1000
	[ "$(cat show)" != slow ] || sleep 1
	# From the drain on it has no answer.
	[ "$(cat show)" != mute ] || [ "$(cat state)" != MIXED+DRAIN ] || [ "$(grep -c show log)" -le 2 ] || {
		echo "slurm_load_node error: Unable to contact slurm controller" >&2
		exit 1
	}
	state=$(cat state) reason=$(cat reason)
	echo "NodeName=node1 Version=24.11.5 State=$state ThreadsPerCore=1 Reason=${reason:-none} [root@2026-11-26T21:45:07]"
	# Its job ends after it was seen three times.
	if [ "$state" = MIXED+DRAIN ] && ! [ -e endless ]; then
		echo x >>seen
		[ "$(wc -l <seen)" -lt 3 ] || echo IDLE+DRAIN >state
	fi
	;;
esac
`

// slurmSite is that stand-in with a fake daemon.
type slurmSite struct {
	*testing.T
	dir     string
	applied atomic.Int32 // specs that were put in force
	refuses *api.Error   // of an apply that is no check
	inUse   *api.Error   // of each apply that is not said to be drained
	onApply func()
	engines []string                         // of the plan
	leases  []api.Lease                      // of the status
	put     func(w http.ResponseWriter) bool // answers an apply in another way
	follow  func(w http.ResponseWriter)      // answers for the operation of an apply, which has one then
	verb    []string                         // the command; nil: apply
	resets  bool                             // an apply that has no permission to reset is refused
	stdio   *cli.Stdio
}

func newSlurmSite(t *testing.T) *slurmSite {
	t.Helper()
	s := &slurmSite{T: t, dir: t.TempDir(), engines: []string{"slurm"}, verb: []string{"apply", "-f", "-"}}
	s.program("scontrol", controller)
	s.program("squeue", "#!/bin/sh\necho 41\n")
	s.knows("slurmd: Gres Name=gpu Type=a30 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE")
	for name, text := range map[string]string{"state": "ALLOCATED", "reason": "", "update": "", "show": "", "log": ""} {
		s.file(name, text)
	}
	return s
}

func (s *slurmSite) program(name, text string) {
	s.Helper()
	if err := programs.Write(filepath.Join(s.dir, name), text); err != nil {
		s.Fatal(err)
	}
}

func (s *slurmSite) knows(text string) { s.program("slurmd", "#!/bin/sh\necho '"+text+"'\n") }

func (s *slurmSite) file(name, text string) {
	s.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text+"\n"), 0o600); err != nil {
		s.Fatal(err)
	}
}

func (s *slurmSite) read(name string) string {
	s.Helper()
	b, err := boundedread.Trusted(filepath.Join(s.dir, name), boundedread.Settings)
	if err != nil {
		s.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// apply runs the command line.
func (s *slurmSite) apply(ctx context.Context, args ...string) result {
	s.Helper()
	plan := api.Plan{
		SchemaVersion: 1, Generation: 2, Engines: s.engines,
		Steps: []api.PlanStep{{ID: 1, Kind: "mig.destroy", Text: "destroy it", Disruption: "idle"}},
	}
	status := slurmNode()
	status.Leases = s.leases
	// other is a change of another kind than a spec.
	other := func(answer any) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) {
			if s.inUse != nil && q.URL.Query().Get("drained") != "slurm" {
				w.WriteHeader(s.inUse.Kind.Status())
				_ = json.NewEncoder(w).Encode(map[string]any{"error": s.inUse})
				return
			}
			s.applied.Add(1)
			_ = json.NewEncoder(w).Encode(answer)
		}
	}
	ended := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	socket := fakeDaemon(s, routes{
		"GET /v1/status": status,
		"POST /v1/unmanage": other(
			api.ApplyResult{Generation: 2, Plan: api.Plan{SchemaVersion: 1, Empty: true}, Changed: true},
		),
		"POST /v1/gpus/" + gpu0 + "/retry": other(api.Operation{ID: "op-2", Kind: "retry", State: "done", Finished: &ended}),
		"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			refuse := func(e *api.Error) {
				w.WriteHeader(e.Kind.Status())
				_ = json.NewEncoder(w).Encode(map[string]any{"error": e})
			}
			check, drained := q.URL.Query().Get("check") != "", strings.Contains(q.URL.Query().Get("drained"), "slurm")
			switch {
			case s.resets && q.URL.Query().Get("reset") == "":
				refuse(&api.Error{Kind: api.KindNeedsPermission, Message: "this would reset GPU 0", Resets: []string{gpu0}, Plan: &plan})
			case s.inUse != nil && !drained:
				refuse(s.inUse)
			case !check && s.refuses != nil:
				refuse(s.refuses)
			default:
				if !check {
					s.applied.Add(1)
				}
				if s.onApply != nil && !check {
					s.onApply()
				}
				if !check && s.put != nil && s.put(w) {
					return
				}
				res := api.ApplyResult{Generation: 2, Plan: plan, Checked: check, Changed: true}
				if !check && s.follow != nil {
					res.Operation = &api.Operation{ID: "op-1", Kind: "apply", State: "running", Plan: plan}
				}
				_ = json.NewEncoder(w).Encode(res)
			}
		}),
		"GET /v1/operations/op-1": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { s.follow(w) }),
	})
	var out, errs bytes.Buffer
	stdio := cli.Stdio{In: strings.NewReader("version: v1\n"), Out: &out, Err: &errs}
	if s.stdio != nil {
		stdio = *s.stdio
	}
	code := cli.Run(
		ctx, slices.Concat(s.verb, args), []string{"GPUSHARE_SOCKET=" + socket, "PATH=" + s.dir + ":/usr/bin:/bin"}, stdio,
	)
	return result{code: code, out: out.String(), err: errs.String()}
}

// cut ends the connection without an answer.
func cut(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		conn.Close()
	}
}

// ends is the answer for an operation that has ended.
func ends(state string, e *api.Error) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		end := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		_ = json.NewEncoder(w).Encode(api.Operation{ID: "op-1", Kind: "apply", State: state, Error: e, Finished: &end})
	}
}

// answers is the refusal of a request.
func answers(e *api.Error) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(e.Kind.Status())
		_ = json.NewEncoder(w).Encode(map[string]any{"error": e})
	}
}

// refusedForJobs is the refusal of a daemon that sees no use of the GPUs of Slurm.
func refusedForJobs() *api.Error {
	return &api.Error{
		Kind:    api.KindInUse,
		Message: "this changes GPUs that slurm places on",
		Hint:    "'--drain' drains",
		Engines: []string{"slurm"},
	}
}

// With --drain the node is drained in Slurm, its jobs are waited for, and it is resumed; only by who drained it, and only where Slurm
// knows the GPUs as they are then. Whatever fails before the change leaves the node in service.
func TestApplyDrainsTheNodeInSlurm(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	const resumed = "node1 is resumed in Slurm"
	for _, c := range []struct {
		name    string
		prepare func(s *slurmSite)
		args    []string
		code    int
		applied int
		state   string // of the node at the end
		says    []string
		never   string // a call that is not made
	}{
		{
			name: "its job ends", prepare: func(*slurmSite) {}, applied: 1, state: "IDLE",
			says: []string{"node1 is drained in Slurm (gpushare-apply-", "waiting for the jobs of node1, up to 1h", "MIXED+DRAIN, jobs 41", resumed},
		},
		{
			name: "without a job", prepare: func(s *slurmSite) { s.file("state", "IDLE") }, applied: 1, state: "IDLE",
			says: []string{resumed},
		},
		{
			name: "slow answers", prepare: func(s *slurmSite) { s.file("show", "slow"); s.file("update", "slow") }, applied: 1, state: "IDLE",
			says: []string{resumed},
		},
		{
			name: "drained by another", prepare: func(s *slurmSite) { s.file("state", "IDLE+DRAIN"); s.file("reason", "bad fan") },
			applied: 1, state: "IDLE+DRAIN", says: []string{"drained in Slurm already (bad fan): it stays drained"}, never: "update",
		},
		{
			name:    "drained by another, with a job",
			prepare: func(s *slurmSite) { s.file("state", "MIXED+DRAIN"); s.file("reason", "bad fan") },
			applied: 1, state: "IDLE+DRAIN", says: []string{"waiting for the jobs of node1"}, never: "update",
		},
		{
			name:    "INVAL",
			prepare: func(s *slurmSite) { s.file("state", "IDLE+DRAIN+INVALID_REG"); s.file("reason", "gres/gpu count") },
			applied: 1, state: "IDLE+DRAIN+INVALID_REG", says: []string{"(gres/gpu count): it stays drained"}, never: "update",
		},
		{
			name: "the drain is refused", prepare: func(s *slurmSite) { s.file("update", "refuse") },
			code: api.ExitUnreachable, state: "ALLOCATED",
			says: []string{"cannot drain node1 in Slurm: ", "Access/permission denied", "nothing was changed"},
		},
		{
			name: "slurmctld does not say what the node is", prepare: func(s *slurmSite) { s.file("show", "refuse") },
			code: api.ExitUnreachable, state: "ALLOCATED", says: []string{"cannot drain node1 in Slurm"}, never: "update",
		},
		{
			name: "slurmctld hangs", prepare: func(s *slurmSite) { s.file("show", "hang") },
			code: api.ExitUnreachable, state: "ALLOCATED", says: []string{"scontrol did not answer within 5s"}, never: "update",
		},
		{
			name: "the drain hangs", prepare: func(s *slurmSite) { s.file("update", "hang") },
			code: api.ExitUnreachable, state: "ALLOCATED", says: []string{"scontrol did not answer within 5s", "nothing was changed"},
		},
		{
			name: "it drains, and does not answer", prepare: func(s *slurmSite) { s.file("update", "late") },
			code: api.ExitUnreachable, state: "IDLE",
			says: []string{"cannot drain node1 in Slurm: scontrol did not answer within 5s", "may still be drained", "state=resume'"},
		},
		{
			name:    "another sets its reason meanwhile",
			prepare: func(s *slurmSite) { s.program("then", "#!/bin/sh\necho 'bad fan' >reason\n") },
			code:    api.ExitUnreachable, state: "MIXED+DRAIN",
			says: []string{"(bad fan) afterwards", "stays drained: its reason is bad fan by now"}, never: "state=resume",
		},
		{
			name: "its jobs do not end", prepare: func(s *slurmSite) { s.file("endless", "") }, args: []string{"--drain-timeout", "1s"},
			code: api.ExitConflict, state: "IDLE", says: []string{"its jobs did not end within 1s: MIXED+DRAIN, jobs 41", resumed},
		},
		{
			// What began before the limit is waited for: the end says why.
			name: "its jobs do not end, and slurmctld is slower than the limit", prepare: func(s *slurmSite) { s.file("endless", ""); s.file("show", "slow") },
			args: []string{"--drain-timeout", "10ms"},
			code: api.ExitConflict, state: "IDLE", says: []string{"its jobs did not end within 10ms: MIXED+DRAIN, jobs 41", resumed},
		},
		{
			name: "whether its jobs have ended is not known", prepare: func(s *slurmSite) { s.file("endless", ""); s.file("show", "mute") },
			args: []string{"--drain-timeout", "10ms"},
			code: api.ExitConflict, state: "MIXED+DRAIN",
			says: []string{"its jobs did not end within 10ms: whether they have ended is not known: ", "cannot run scontrol", "may still be drained"},
		},
		{
			name: "the apply is refused",
			prepare: func(s *slurmSite) {
				s.refuses = &api.Error{Kind: api.KindConflict, Message: "another change is under way"}
			},
			code: api.ExitConflict, state: "IDLE", says: []string{"another change is under way", resumed},
		},
		{
			name: "another drains it during the change",
			prepare: func(s *slurmSite) {
				s.onApply = func() { s.file("reason", "bad fan") }
			},
			applied: 1, state: "IDLE+DRAIN", says: []string{"stays drained: its reason is bad fan by now"}, never: "state=resume",
		},
		{
			name: "slurmd knows other GPUs afterwards",
			prepare: func(s *slurmSite) {
				s.knows("slurmd: Gres Name=gpu Type=a30 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Links=(null) Flags=HAS_FILE")
			},
			code: api.ExitDegraded, applied: 1, state: "IDLE+DRAIN",
			says:  []string{"the spec is in force, and node1 stays drained in Slurm: slurmd does not know GPU 0", "slurm gres --node node1", "state=resume'"},
			never: "state=resume",
		},
		{
			name: "the change is done", prepare: func(s *slurmSite) { s.follow = ends("done", nil) }, applied: 1, state: "IDLE",
			says: []string{resumed},
		},
		{
			name: "the daemon does not answer for the operation",
			prepare: func(s *slurmSite) {
				s.follow = answers(&api.Error{Kind: api.KindUnavailable, Message: "it is being stopped"})
			},
			code: api.ExitUnreachable, applied: 1, state: "IDLE+DRAIN",
			says:  []string{"stays drained in Slurm: the change may still be carried out", "'scontrol update nodename=node1 state=resume'"},
			never: "state=resume",
		},
		{
			name: "the connection breaks during the change", prepare: func(s *slurmSite) { s.follow = cut },
			code: api.ExitUnreachable, applied: 1, state: "IDLE+DRAIN", says: []string{"may still be carried out"}, never: "state=resume",
		},
		{
			name: "the daemon is stopped during the change",
			prepare: func(s *slurmSite) {
				s.follow = ends("failed", &api.Error{Kind: api.KindUnavailable, Message: "the daemon was stopped during the change"})
			},
			code: api.ExitUnreachable, applied: 1, state: "IDLE+DRAIN", says: []string{"may still be carried out"}, never: "state=resume",
		},
		{
			name: "the answer to the apply is lost", prepare: func(s *slurmSite) { s.put = func(w http.ResponseWriter) bool { cut(w); return true } },
			code: api.ExitUnreachable, applied: 1, state: "IDLE+DRAIN", says: []string{"may still be carried out"}, never: "state=resume",
		},
		{
			name: "it went down during the change",
			prepare: func(s *slurmSite) {
				s.onApply = func() { s.file("state", "DOWN*+DRAIN") }
			},
			applied: 1, state: "DOWN*+DRAIN", says: []string{"stays as it is: it is DOWN+DRAIN+NOT_RESPONDING"}, never: "state=resume",
		},
		{
			name: "it goes down while its jobs are waited for",
			prepare: func(s *slurmSite) {
				s.program("squeue", "#!/bin/sh\necho DOWN+DRAIN >'"+s.dir+"/state'\n")
			},
			code: api.ExitUnreachable, state: "DOWN+DRAIN", says: []string{"cannot drain node1 in Slurm: it is DOWN+DRAIN"}, never: "state=resume",
		},
		{
			name: "Kubernetes places there too", prepare: func(s *slurmSite) { s.engines = []string{"kubernetes", "slurm"} },
			code: api.ExitConflict, state: "ALLOCATED",
			says:  []string{"cannot drain the node: this changes GPUs that kubernetes places on", "--drained kubernetes"},
			never: "update",
		},
		{
			name: "Kubernetes has no pods", prepare: func(s *slurmSite) { s.engines = []string{"kubernetes", "slurm"} },
			args: []string{"--drained", "kubernetes"}, applied: 1, state: "IDLE", says: []string{resumed},
		},
		{
			name: "said to be drained", prepare: func(*slurmSite) {}, args: []string{"--drained", "slurm"},
			code: api.ExitUsage, state: "ALLOCATED", says: []string{"leave out --drain"}, never: "update",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			c.prepare(s)
			r := s.apply(t.Context(), append([]string{"--drain"}, c.args...)...)
			all := r.out + r.err
			if r.code != c.code || int(s.applied.Load()) != c.applied {
				t.Errorf(
					"it exits with %d, want %d, and applied %d times, want %d: %s",
					r.code,
					c.code,
					int(s.applied.Load()),
					c.applied,
					all,
				)
			}
			for _, text := range c.says {
				if !strings.Contains(all, text) {
					t.Errorf("it does not say %q: %s", text, all)
				}
			}
			if state := s.read("state"); state != c.state {
				t.Errorf("the node is %s at the end, want %s: %s", state, c.state, s.read("log"))
			}
			if log := s.read("log"); c.never != "" && strings.Contains(log, c.never) {
				t.Errorf("it called %q: %s", c.never, log)
			}
		})
	}
}

// A node that is out of service for another reason than a drain is not drained, so that it is not resumed.
func TestApplyDrainsNoNodeOutOfService(t *testing.T) {
	t.Parallel()
	for _, state := range []string{
		"DOWN", "DOWN*", "DOWN+DRAIN", "FAIL", "IDLE+FAIL", "IDLE+MAINTENANCE", "MIXED$", "IDLE+REBOOT_REQUESTED", "MIXED@", "IDLE~",
		"IDLE+POWERED_DOWN", "IDLE+POWERING_UP", "UNKNOWN", "FUTURE", "IDLE+INVALID_REG",
	} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			s.file("state", state)
			s.file("reason", "bad fan")
			r := s.apply(t.Context(), "--drain")
			if r.code != api.ExitUnreachable || int(s.applied.Load()) != 0 ||
				!strings.Contains(r.err, "cannot drain node1 in Slurm: it is ") ||
				!strings.Contains(r.err, "(bad fan)") {
				t.Errorf("it exits with %d, applied %d times: %s%s", r.code, int(s.applied.Load()), r.out, r.err)
			}
			if now := s.read("state"); now != state || strings.Contains(s.read("log"), "update") {
				t.Errorf("the node is %s: %s", now, s.read("log"))
			}
		})
	}
}

// Ctrl-C while the spec is sent leaves the node drained: the daemon may have it.
func TestApplyDrainIsInterruptedLate(t *testing.T) {
	t.Parallel()
	s := newSlurmSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan struct{})
	t.Cleanup(func() { close(answered) })
	s.put = func(http.ResponseWriter) bool { cancel(); <-answered; return true }
	r := s.apply(ctx, "--drain")
	if r.code == 0 || s.read("state") != "IDLE+DRAIN" || !strings.Contains(r.err, "the change may still be carried out") {
		t.Errorf("it exits with %d, the node is %s: %s%s", r.code, s.read("state"), r.out, r.err)
	}
}

// So does the end of the terminal of the command.
func TestApplyDrainHangup(t *testing.T) { //nolint:paralleltest // The signal is one for the whole process.
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("needs SIGHUP, which this process was started to ignore, as by nohup")
	}
	s := newSlurmSite(t)
	s.file("endless", "")
	// The first job that is listed is the sign that it waits.
	s.program("squeue", fmt.Sprintf("#!/bin/sh\nkill -HUP %d\nexec sleep 1000\n", os.Getpid()))
	r := s.apply(t.Context(), "--drain")
	if r.code == 0 || int(s.applied.Load()) != 0 || s.read("state") != "IDLE" || !strings.Contains(r.err, "node1 is resumed in Slurm") {
		t.Errorf("it exits with %d, applied %d times, the node is %s: %s%s", r.code, int(s.applied.Load()), s.read("state"), r.out, r.err)
	}
}

// With --drain a terminal is asked for the permission to reset a GPU before the node is drained, and once.
func TestApplyDrainRequestsTheReset(t *testing.T) {
	t.Parallel()
	for answer, state := range map[string]string{"y\n": "IDLE", "n\n": "ALLOCATED"} {
		s := newSlurmSite(t)
		s.resets = true
		file := filepath.Join(s.dir, "node.yaml")
		s.file("node.yaml", "version: v1")
		s.verb = []string{"apply", "-f", file}
		screen, tty := terminal(t)
		seen := make(chan string, 1)
		go func() {
			b, _ := io.ReadAll(screen) // It ends with an error when the other side is closed.
			seen <- string(b)
		}()
		s.stdio = &cli.Stdio{In: iotest.OneByteReader(strings.NewReader(answer)), Out: tty, Err: tty}
		r := s.apply(t.Context(), "--drain")
		tty.Close()
		said := <-seen
		applied := 0
		if answer == "y\n" {
			applied = 1
		}
		if int(s.applied.Load()) != applied || s.read("state") != state || strings.Count(said, "Reset ") != 1 {
			t.Errorf(
				"%q: it exits with %d, applied %d times, the node is %s: %s",
				answer,
				r.code,
				int(s.applied.Load()),
				s.read("state"),
				said,
			)
		}
	}
}

// Ctrl-C while the jobs are waited for resumes the node.
func TestApplyDrainIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newSlurmSite(t)
	s.file("endless", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The first job that is listed is the sign that it waits.
	s.program("squeue", "#!/bin/sh\necho >'"+s.dir+"/waits'\nread x <'"+s.dir+"/go'\n")
	for _, name := range []string{"waits", "go"} {
		if err := syscall.Mkfifo(filepath.Join(s.dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		if f, err := os.Open(filepath.Join(s.dir, "waits")); err == nil {
			_, _ = f.Read(make([]byte, 1))
			f.Close()
		}
		cancel()
	}()
	r := s.apply(ctx, "--drain")
	if r.code == 0 || int(s.applied.Load()) != 0 || s.read("state") != "IDLE" || !strings.Contains(r.err, "node1 is resumed in Slurm") {
		t.Errorf("it exits with %d, applied %d times, the node is %s: %s%s", r.code, int(s.applied.Load()), s.read("state"), r.out, r.err)
	}
}

// Without --drain a change of GPUs that Slurm places on is refused, unless the node is drained and has no jobs: an idle one may have a job a
// moment later.
func TestApplyNextToJobsOfSlurm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, state, show string
		args              []string
		applied           int
		says              string
	}{
		{name: "jobs", state: "MIXED", says: "the node has jobs: Slurm says MIXED"},
		{name: "one that ends", state: "IDLE+COMPLETING", says: "the node has jobs: Slurm says IDLE+COMPLETING"},
		{name: "no job yet", state: "IDLE", says: "the node is not drained, so it may have a job at any moment: Slurm says IDLE"},
		{name: "drained by hand", state: "IDLE+DRAIN", applied: 1},
		{name: "drained, with a job", state: "MIXED+DRAIN", says: "the node has jobs"},
		{name: "drained, without an answer of slurmd", state: "IDLE*+DRAIN", says: "the node has jobs: Slurm says IDLE+DRAIN+NOT_RESPONDING"},
		{name: "down", state: "DOWN+DRAIN", says: "--drained slurm says that its jobs have ended"},
		{name: "down, with its state", state: "DOWN+DRAIN", says: "jobs may run on the node that slurmctld does not have: it says DOWN+DRAIN"},
		{name: "slurmctld does not answer", state: "IDLE+DRAIN", show: "refuse", says: "whether the node has jobs is not known"},
		{name: "said to be drained", state: "MIXED", args: []string{"--drained", "slurm"}, applied: 1},
		{name: "said of no engine", state: "IDLE+DRAIN", args: []string{"--drained", "slurmd"}, says: "an engine is slurm or kubernetes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			s.inUse = refusedForJobs()
			s.file("state", c.state)
			s.file("show", c.show)
			r := s.apply(t.Context(), c.args...)
			if (r.code == 0) != (c.applied > 0) || int(s.applied.Load()) != c.applied || !strings.Contains(r.err, c.says) {
				t.Errorf("it exits with %d, applied %d times: %s%s", r.code, int(s.applied.Load()), r.out, r.err)
			}
		})
	}
}

// What else changes GPUs asks Slurm in the same way.
func TestUnmanageAndRetryNextToJobsOfSlurm(t *testing.T) {
	t.Parallel()
	for _, verb := range [][]string{{"unmanage", "--all"}, {"gpu", "retry", gpu0}} {
		for _, c := range []struct {
			state   string
			args    []string
			applied int
			says    string
		}{
			{state: "MIXED", says: "the node has jobs: Slurm says MIXED"},
			{state: "IDLE", says: "the node is not drained"},
			{state: "IDLE+DRAIN", applied: 1},
			{state: "MIXED", args: []string{"--drained", "slurm"}, applied: 1},
		} {
			s := newSlurmSite(t)
			s.inUse, s.verb = refusedForJobs(), verb
			s.file("state", c.state)
			r := s.apply(t.Context(), c.args...)
			if (r.code == 0) != (c.applied > 0) || int(s.applied.Load()) != c.applied || !strings.Contains(r.err, c.says) {
				t.Errorf("%q, %s: it exits with %d, sent %d times: %s%s", verb, c.state, r.code, int(s.applied.Load()), r.out, r.err)
			}
		}
	}
}

// A change that is refused after the drain as well, for a lease of no job of Slurm, is refused before it.
func TestApplyDrainsNoNodeInVain(t *testing.T) {
	enumeration.Long(t)
	t.Parallel()
	ends := func(ids ...string) (out []api.LeaseEnd) {
		for _, id := range ids {
			out = append(out, api.LeaseEnd{Lease: id, Tenant: "vision", Grant: "dev", User: "alice", Ends: "it ends"})
		}
		return out
	}
	for _, c := range []struct {
		name   string
		leases []api.LeaseEnd
		users  []api.DeviceUser
		vain   bool
	}{
		{name: "no lease is known"},
		{name: "of a job", leases: ends("of-job")},
		{name: "of a user", leases: ends("of-job", "of-user"), vain: true},
		{name: "of another engine", leases: ends("of-pod"), vain: true},
		{name: "a GPU that a user uses", users: []api.DeviceUser{{GPU: gpu0, Lease: "of-user", PID: 7}}, vain: true},
		{name: "a GPU that a job uses too", users: []api.DeviceUser{{GPU: gpu0, Lease: "of-user", PID: 7}, {GPU: gpu0, Lease: "of-job"}}},
		{name: "a GPU that a process uses too", users: []api.DeviceUser{{GPU: gpu0, Lease: "of-user", PID: 7}, {GPU: gpu0, PID: 9}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			s.inUse = refusedForJobs()
			s.inUse.Leases, s.inUse.InUseBy = c.leases, c.users
			s.leases = []api.Lease{
				{ID: "of-job", Engine: &api.LeaseEngine{Key: "slurm:lab:1:0"}},
				{ID: "of-user"},
				{ID: "of-pod", Engine: &api.LeaseEngine{Key: "kubernetes:uid"}},
			}
			r := s.apply(t.Context(), "--drain")
			drained := strings.Contains(s.read("log"), "update")
			if drained == c.vain || (r.code == api.ExitConflict) != c.vain ||
				strings.Contains(r.err, "leases of no job of Slurm are in the way") != c.vain {
				t.Errorf("it exits with %d, the node was drained: %t: %s%s", r.code, drained, r.out, r.err)
			}
			if force := s.apply(t.Context(), "--drain", "--force"); strings.Contains(force.err, "are in the way") {
				t.Errorf("with --force: %s", force.err)
			}
		})
	}
}

// A host without scontrol has no jobs of Slurm only if slurmd does not run there either.
func TestApplyWithoutScontrol(t *testing.T) { //nolint:paralleltest // The processes of the host are those of all tests.
	if _, err := exec.LookPath("scontrol"); err == nil {
		t.Skip("needs a host without scontrol in PATH")
	}
	root := t.TempDir()
	cli.SetHostRoot(root)
	defer cli.SetHostRoot("/")
	proc := filepath.Join(root, "proc/41")
	if err := os.MkdirAll(proc, 0o700); err != nil {
		t.Fatal(err)
	}
	for process, applied := range map[string]int{"sshd": 1, "slurmd": 0} {
		if err := os.WriteFile(filepath.Join(proc, "comm"), []byte(process+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s := newSlurmSite(t)
		s.inUse = refusedForJobs()
		if err := os.Remove(filepath.Join(s.dir, "scontrol")); err != nil {
			t.Fatal(err)
		}
		r := s.apply(t.Context())
		if int(s.applied.Load()) != applied ||
			applied == 0 && (r.code != api.ExitConflict || !strings.Contains(r.err, "PATH has to have scontrol")) {
			t.Errorf("%s: it exits with %d, applied %d times: %s%s", process, r.code, int(s.applied.Load()), r.out, r.err)
		}
	}
}

// A plan asks Slurm for the node as apply does.
func TestPlanNamesTheNodeOfSlurm(t *testing.T) {
	t.Parallel()
	s := newSlurmSite(t)
	s.inUse, s.verb = refusedForJobs(), []string{"plan", "-f", "-"}
	s.file("state", "IDLE+DRAIN")
	if r := s.apply(
		t.Context(),
		"--slurm-node",
		"node2",
	); r.code != api.ExitConflict ||
		!strings.Contains(s.read("log"), "show node node2") {
		t.Errorf("it exits with %d: %s%s: %s", r.code, r.out, r.err, s.read("log"))
	}
	if r := s.apply(t.Context(), "--slurm-node", "node1"); r.code != 0 {
		t.Errorf("it exits with %d: %s%s", r.code, r.out, r.err)
	}
	if r := s.apply(t.Context(), "--slurm-node", "node2", "--drained", "slurm"); r.code != 0 {
		t.Errorf("said to be drained: it exits with %d: %s%s", r.code, r.out, r.err)
	}
}
