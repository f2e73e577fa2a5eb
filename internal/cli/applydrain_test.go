package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/cli"
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
	applied int        // specs that were put in force
	refuses *api.Error // of an apply that is no check
	inUse   *api.Error // of each apply that is not said to be drained
	onApply func()
}

func newSlurmSite(t *testing.T) *slurmSite {
	t.Helper()
	s := &slurmSite{T: t, dir: t.TempDir()}
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
		SchemaVersion: 1, Generation: 2, Engines: []string{"slurm"},
		Steps: []api.PlanStep{{ID: 1, Kind: "mig.destroy", Text: "destroy it", Disruption: "idle"}},
	}
	socket := fakeDaemon(s, routes{
		"GET /v1/status": slurmNode(),
		"PUT /v1/spec": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			refuse := func(e *api.Error) {
				w.WriteHeader(e.Kind.Status())
				_ = json.NewEncoder(w).Encode(map[string]any{"error": e})
			}
			check, drained := q.URL.Query().Get("check") != "", q.URL.Query().Get("drained") == "slurm"
			switch {
			case s.inUse != nil && !drained:
				refuse(s.inUse)
			case !check && s.refuses != nil:
				refuse(s.refuses)
			default:
				if !check {
					s.applied++
				}
				if s.onApply != nil && !check {
					s.onApply()
				}
				_ = json.NewEncoder(w).Encode(api.ApplyResult{Generation: 2, Plan: plan, Checked: check, Changed: true})
			}
		}),
	})
	var out, errs bytes.Buffer
	code := cli.Run(
		ctx, append([]string{"apply", "-f", "-"}, args...), []string{"GPUSHARE_SOCKET=" + socket, "PATH=" + s.dir + ":/usr/bin:/bin"},
		cli.Stdio{In: strings.NewReader("version: v1\n"), Out: &out, Err: &errs},
	)
	return result{code: code, out: out.String(), err: errs.String()}
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
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			c.prepare(s)
			r := s.apply(t.Context(), append([]string{"--drain"}, c.args...)...)
			all := r.out + r.err
			if r.code != c.code || s.applied != c.applied {
				t.Errorf("it exits with %d, want %d, and applied %d times, want %d: %s", r.code, c.code, s.applied, c.applied, all)
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

// Ctrl-C while the jobs are waited for resumes the node.
func TestApplyDrainIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newSlurmSite(t)
	s.file("endless", "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	// The first job that is listed is the sign that it waits.
	s.program("squeue", "#!/bin/sh\necho >"+s.dir+"/waits\nread x <"+s.dir+"/go\n")
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
	if r.code == 0 || s.applied != 0 || s.read("state") != "IDLE" || !strings.Contains(r.err, "node1 is resumed in Slurm") {
		t.Errorf("it exits with %d, applied %d times, the node is %s: %s%s", r.code, s.applied, s.read("state"), r.out, r.err)
	}
}

// Without --drain a change of GPUs that Slurm places on is refused while the node has jobs, also such that do not use a GPU yet.
func TestApplyNextToJobsOfSlurm(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, state, show string
		remove            bool // Slurm is not installed here
		applied           int
		says              string
	}{
		{name: "jobs", state: "MIXED", says: "the node has jobs: Slurm says MIXED"},
		{name: "one that ends", state: "IDLE+COMPLETING", says: "the node has jobs: Slurm says IDLE+COMPLETING"},
		{name: "no job", state: "IDLE", applied: 1},
		{name: "drained by hand", state: "IDLE+DRAIN", applied: 1},
		{name: "slurmctld does not answer", state: "IDLE", show: "refuse", says: "whether the node has jobs is not known"},
		{name: "no Slurm", remove: true, applied: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSlurmSite(t)
			s.inUse = refusedForJobs()
			s.file("state", c.state)
			s.file("show", c.show)
			if c.remove {
				if _, err := exec.LookPath("scontrol"); err == nil {
					t.Skip("Slurm is installed on this host")
				}
				if err := os.Remove(filepath.Join(s.dir, "scontrol")); err != nil {
					t.Fatal(err)
				}
			}
			r := s.apply(t.Context())
			code := api.ExitConflict
			if c.applied > 0 {
				code = 0
			}
			if r.code != code || s.applied != c.applied || !strings.Contains(r.err, c.says) {
				t.Errorf("it exits with %d, applied %d times: %s%s", r.code, s.applied, r.out, r.err)
			}
		})
	}
}
