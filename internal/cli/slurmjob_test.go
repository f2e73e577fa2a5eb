package cli_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/internal/version"
	"github.com/gpushare/gpushare/test/programs"
)

// jobNode is slurmNode with its GPU shared, and a grant of it.
func jobNode() api.Status {
	s := slurmNode()
	s.GPUs[0].Mode, s.GPUs[0].Owner = api.ModeTimeslice, api.OwnerSlurm
	s.Tenants = []api.TenantStatus{{Name: "slurm", Grants: []api.GrantStatus{{Name: "jobs", Kind: "timeslice", GPUs: []string{gpu0}}}}}
	return s
}

// jobRun is a script of Slurm with stand-ins of what it asks.
type jobRun struct {
	*testing.T
	bin, notes string
	env        []string
}

// ofJob are stand-ins of Slurm's programs and of logger, for a job with the GPU of jobNode.
func ofJob(t *testing.T, texts map[string]string) *jobRun {
	t.Helper()
	all := map[string]string{
		"slurmd": "slurmd: Gres Name=gpu Type=a30-shared Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE",
		"squeue": "42|gres/shard:4|N/A|N/A|N/A|",
	}
	for name, text := range texts {
		all[name] = text
	}
	j := &jobRun{T: t, bin: ofSlurm(t, all), notes: filepath.Join(t.TempDir(), "notes")}
	j.program("logger", `echo "$*" >>`+j.bin+"/journal")
	j.env = []string{
		"SLURM_JOB_ID=42", "SLURM_CLUSTER_NAME=lab", "SLURMD_NODENAME=node1", "SLURM_JOB_GPUS=0",
		"SLURM_JOB_UID=" + strconv.Itoa(os.Getuid()), "GPUSHARE_SLURM_NOTES=" + j.notes, "PATH=" + j.bin,
	}
	return j
}

func (j *jobRun) program(name, body string) {
	j.Helper()
	if err := programs.Write(filepath.Join(j.bin, name), "#!/bin/sh\n"+body+"\n"); err != nil {
		j.Fatal(err)
	}
}

// run runs a command of gpushare slurm, and returns what it did and said in the journal.
func (j *jobRun) run(r routes, args ...string) (result, string) {
	j.Helper()
	var out, errs bytes.Buffer
	env := append([]string{"GPUSHARE_SOCKET=" + fakeDaemon(j.T, r)}, j.env...)
	code := cli.Run(j.Context(), append([]string{"slurm"}, args...), env, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs})
	b, err := os.ReadFile(filepath.Join(j.bin, "journal"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		j.Fatal(err)
	}
	return result{code: code, out: out.String(), err: errs.String()}, string(b)
}

// The Prolog fails for a GPU that no job can use, and for nothing else: a failure drains the node.
func TestSlurmPrologFailsForAnUnusableGPUAlone(t *testing.T) {
	t.Parallel()
	unusable := jobNode()
	unusable.GPUs[0].State, unusable.GPUs[0].Reason = "lost", "Xid 79"
	external := jobNode()
	external.GPUs[0].Mode = api.ModeExternal
	hangs := "GET /v1/status"
	for _, c := range []struct {
		name     string
		routes   routes
		programs map[string]string
		env      []string
		code     int
		says     string // in the journal
		refused  string // in the output of the job
	}{
		{"an unusable GPU", routes{"GET /v1/status": unusable}, nil, nil, api.ExitDegraded, "job 42: GPU 0 is lost: Xid 79", ""},
		{"no GPU", routes{}, nil, []string{"SLURM_JOB_GPUS="}, 0, "", ""},
		{"no job", routes{}, nil, []string{"SLURM_JOB_ID=x"}, 0, "SLURM_JOB_ID is", ""},
		{
			"gpushared refuses",
			routes{"GET /v1/status": &api.Error{Kind: api.KindUnavailable, Message: "it ends"}},
			nil, nil, 0,
			"job 42 has no lease: it ends", "it ends",
		},
		{
			"gpushared hangs",
			routes{hangs: http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })},
			nil,
			[]string{"GPUSHARE_PROLOG_SECONDS=1"},
			0, "job 42 has no lease", "deadline",
		},
		{"slurmd does not answer", routes{}, map[string]string{"slurmd": "slurmd: fatal: can't stat gres.conf file"}, nil, 0, "cannot read how slurmd counts", "slurmd"},
		{"another order", routes{"GET /v1/status": jobNode()}, nil, []string{"SLURM_JOB_GPUS=3"}, 0, "slurmd counts 1 GPUs", "slurmd counts 1 GPUs"},
		{"squeue says nothing", routes{"GET /v1/status": jobNode()}, map[string]string{"squeue": ""}, nil, 0, "squeue did not say", "squeue did not say"},
		{"a GPU that is only looked at", routes{"GET /v1/status": external}, nil, nil, 0, "gpushare only looks at it", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := ofJob(t, c.programs)
			j.env = append(j.env, c.env...)
			r, said := j.run(c.routes, "prolog")
			if r.code != c.code || !strings.Contains(said, c.says) || c.says == "" && said != "" {
				t.Errorf("it exits with %d and says %q: %s%s", r.code, said, r.out, r.err)
			}
			r, _ = j.run(routes{}, "task-prolog")
			if r.code != 0 || !strings.Contains(r.out, c.refused) || c.refused == "" && strings.Contains(r.out, "print ") {
				t.Errorf("the task prints %q, exit code %d", r.out, r.code)
			}
		})
	}
}

// An option that gpushared refuses leaves no job without a lease, because one without a lease has no limit.
func TestSlurmPrologRequestsWithoutRefusedOptions(t *testing.T) {
	t.Parallel()
	memory, less, share := api.Bytes(8<<30), api.Bytes(3<<30), api.Percent(100)
	plain := api.EngineRequest{Key: "slurm:lab:42:0", GPUMemory: &memory}
	withShare, withLess := plain, plain
	withShare.Share, withLess.GPUMemory = &share, &less
	for _, c := range []struct {
		name     string
		q        api.EngineRequest
		kind     api.Kind
		requests int
		fails    bool
	}{
		{"a share", withShare, api.KindDenied, 2, false},
		{"less memory", withLess, api.KindConflict, 2, false},
		{"no option", plain, api.KindDenied, 1, true},
		{"no answer", withShare, api.KindUnavailable, 2, true},
	} {
		j, n := ofJob(t, nil), 0
		socket := fakeDaemon(t, routes{"POST /v1/engine/leases": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n++
			var q api.EngineRequest
			if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.BindTimeout == nil || *q.BindTimeout < api.Duration(time.Hour) {
				t.Errorf("%s: %+v, %v", c.name, q, err)
			}
			if q.Share == nil && *q.GPUMemory == memory && c.name != "no option" {
				_ = json.NewEncoder(w).Encode(api.LeaseGrant{})
				return
			}
			w.WriteHeader(c.kind.Status())
			_ = json.NewEncoder(w).Encode(map[string]any{"error": &api.Error{Kind: c.kind, Message: "no"}})
		})})
		granted, err := cli.AttachJob(t.Context(), socket, j.env, c.q, plain)
		if n != c.requests || (err != nil) != c.fails || !c.fails && granted == nil {
			t.Errorf("%s: %d requests, %v, %v", c.name, n, granted, err)
		}
		said, _ := os.ReadFile(filepath.Join(j.bin, "journal"))
		if strings.Contains(string(said), "slurm:lab:42:0 is requested without its options") != !c.fails {
			t.Errorf("%s: the journal has %q", c.name, said)
		}
	}
}

// A job whose amount cannot be read gets the smallest one, and not none: its user chooses the form.
func TestSlurmPrologOfAnUnreadableAmount(t *testing.T) {
	t.Parallel()
	for _, q := range []string{"42|gres/shard:1K|N/A|N/A|N/A|", "42|gres/shard:a:1,gres/shard:b:1|N/A|N/A|N/A|", "42|N/A|gres/shard=2|N/A|N/A|"} {
		j := ofJob(t, map[string]string{"squeue": q})
		_, said := j.run(routes{"GET /v1/status": jobNode()}, "prolog")
		if !strings.Contains(said, "job 42: this job has 1 GiB of GPU memory: ") ||
			!strings.Contains(said, "the cgroups of jobs are not found") {
			t.Errorf("%s: it says %q", q, said) // It got as far as the cgroup.
		}
	}
}

// A request that was not answered is made once more, as gpushared ends and starts again; one that was refused is not.
func TestSlurmPrologRequestsAgain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind     api.Kind
		requests int
		says     string
	}{
		{api.KindUnavailable, 2, "the cgroups of jobs are not found"}, // It got further.
		{api.KindDenied, 1, "no role"},
	} {
		j, n := ofJob(t, nil), 0
		_, said := j.run(routes{"GET /v1/status": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if n++; n > 1 {
				_ = json.NewEncoder(w).Encode(jobNode())
				return
			}
			w.WriteHeader(c.kind.Status())
			_ = json.NewEncoder(w).Encode(map[string]any{"error": &api.Error{Kind: c.kind, Message: "no role"}})
		})}, "prolog")
		if n != c.requests || !strings.Contains(said, c.says) {
			t.Errorf("%s: it requests %d times, and says %q", c.kind, n, said)
		}
	}
}

// The Epilog releases the lease of the run that ends: Slurm gives it the number of the next one if the job is requeued. Without a note it
// has no other number.
func TestSlurmEpilogReleasesTheRunThatEnds(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{true, false} {
		j := ofJob(t, map[string]string{"squeue": ""})
		if noted {
			j.env = append(j.env, "SLURM_JOB_RESTART_COUNT=1")
			if r, said := j.run(routes{"GET /v1/status": jobNode()}, "prolog"); r.code != 0 {
				t.Fatalf("it exits with %d: %s", r.code, said)
			}
		}
		j.program("gpushare", `echo "$*" >>`+j.bin+"/requests")
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "../../examples/slurm/epilog.sh")
		cmd.Env = append(j.env, "SLURM_JOB_RESTART_COUNT=2", "PATH="+j.bin+":/usr/bin:/bin")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		requests, err := os.ReadFile(filepath.Join(j.bin, "requests"))
		key := map[bool]string{true: "slurm:lab:42:1", false: "slurm:lab:42:2"}[noted]
		if err != nil || string(requests) != "lease show --key "+key+"\nlease release --missing-ok --key "+key+"\n" {
			t.Errorf("noted %v: it requests %q, %v", noted, requests, err)
		}
		if _, err := os.Stat(filepath.Join(j.notes, "job_42")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("noted %v: the note is left: %v", noted, err)
		}
	}
}

// The notes of jobs are in a directory of root, each for its user alone. A directory that others write in is not used.
func TestNotesOfJobsAreOfTheirUser(t *testing.T) {
	t.Parallel()
	j := ofJob(t, map[string]string{"squeue": ""})
	if r, said := j.run(routes{"GET /v1/status": jobNode()}, "prolog"); r.code != 0 || !strings.Contains(said, "squeue") {
		t.Fatalf("it exits with %d: %s", r.code, said)
	}
	info, err := os.Stat(filepath.Join(j.notes, "job_42"))
	if err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("the note is %v, %v", info, err)
	}
	// That of another user stays root's: its owner could let it grow.
	other := uint32(65534)
	if os.Geteuid() == int(other) {
		other--
	}
	k := ofJob(t, map[string]string{"squeue": ""})
	k.env = append(
		[]string{fmt.Sprintf("SLURM_JOB_UID=%d", other)},
		slices.DeleteFunc(k.env, func(v string) bool { return strings.HasPrefix(v, "SLURM_JOB_UID=") })...)
	if r, said := k.run(routes{"GET /v1/status": jobNode()}, "prolog"); r.code != 0 || strings.Contains(said, "do not read") {
		t.Fatalf("it exits with %d: %s", r.code, said)
	}
	note := filepath.Join(k.notes, "job_42")
	info, err = os.Stat(note)
	text, failed := os.ReadFile(note)
	if err := errors.Join(err, failed); err != nil {
		t.Fatal(err)
	}
	list := make([]byte, 64)
	_, err = unix.Getxattr(note, "system.posix_acl_access", list)
	secret, mode := strings.Contains(string(text), "squeue"), info.Mode().Perm()
	switch uid := info.Sys().(*syscall.Stat_t).Uid; {
	case int(uid) != os.Geteuid():
		t.Errorf("the note belongs to %d", uid)
	case err == nil && (mode != 0o440 || !secret || !bytes.Contains(list, binary.LittleEndian.AppendUint32([]byte{2, 0, 4, 0}, other))):
		t.Errorf("the note has mode %s and the list %x: %s", mode, list, text)
	case err != nil && (mode != 0o444 || secret):
		t.Errorf("the note has mode %s and no list (%v): %s", mode, err, text)
	}
	for _, c := range []struct {
		name string
		make func(dir string) error
	}{
		{"others write there", func(dir string) error { return errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777)) }},
		{"a link", func(dir string) error { return os.Symlink(j.bin, dir) }},
		{"a file", func(dir string) error { return os.WriteFile(dir, nil, 0o600) }},
	} {
		k := ofJob(t, map[string]string{"squeue": ""})
		if err := c.make(k.notes); err != nil {
			t.Fatal(err)
		}
		r, said := k.run(routes{"GET /v1/status": jobNode()}, "prolog")
		if _, err := os.Stat(
			filepath.Join(k.notes, "job_42"),
		); err == nil || r.code != 0 ||
			!strings.Contains(said, "its tasks do not read") {
			t.Errorf("%s: it exits with %d, %v, and says %q", c.name, r.code, err, said)
		}
	}
}

// The node is drained for a GPU that Slurm places on and no job can use, once, and for nothing else.
func TestSlurmHealthDrainsForAnUnusableGPUAlone(t *testing.T) {
	t.Parallel()
	unusable, cordoned, local := jobNode(), jobNode(), jobNode()
	unusable.GPUs[0].State, unusable.GPUs[0].Reason = "lost", "Xid 79"
	cordoned.GPUs[0].State = "cordoned"
	local.GPUs = append(local.GPUs, api.GPUStatus{Index: 1, State: "lost"})
	const idle, drained = "NodeName=node1 State=IDLE", "NodeName=node1 State=IDLE+DRAIN Reason=disk [root@now]"
	for _, c := range []struct {
		name    string
		status  any
		node    string // what scontrol says
		code    int
		request string // the last command of scontrol; empty: none
	}{
		{"well", jobNode(), idle, 0, ""},
		{"an unusable GPU", unusable, idle, 0, "update nodename=node1 state=drain reason=gpushare: GPU 0 is lost: Xid 79"},
		{"drained already", unusable, drained, 0, "-o show node node1"},
		{"cordoned", cordoned, idle, 0, ""},
		{"a GPU of others", local, idle, 0, ""},
		{"gpushared does not answer", &api.Error{Kind: api.KindUnavailable, Message: "it ends"}, idle, 0, ""},
		{"slurmctld does not answer", unusable, "", api.ExitDegraded, "update nodename=node1 state=drain reason=gpushare: GPU 0 is lost: Xid 79"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			j := ofJob(t, nil)
			body := "echo \"$*\" >" + j.bin + "/requests\n"
			if c.node == "" {
				body += "exit 1"
			} else {
				body += "echo '" + c.node + "'"
			}
			j.program("scontrol", body)
			r, said := j.run(routes{"GET /v1/status": c.status}, "health")
			requested, _ := os.ReadFile(filepath.Join(j.bin, "requests"))
			if r.code != c.code || strings.TrimSpace(string(requested)) != c.request {
				t.Errorf("it exits with %d, requests %q and says %q: %s", r.code, requested, said, r.err)
			}
		})
	}
}

// siteDir is a new directory of slurm.conf. Whatever the umask, none but its owner writes to it.
func siteDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// siteCommand runs install, uninstall and check in a directory, where Slurm runs no script.
func siteCommand(t *testing.T, args ...string) result {
	t.Helper()
	return runSlurm(t, ofSlurm(t, map[string]string{"slurmd": "", "scontrol": "ClusterName = lab\nProlog = (null)"}), args...)
}

// A script that Slurm runs, or may run, is not removed: without it the node is drained. Then none is.
func TestSlurmUninstallRefuses(t *testing.T) {
	t.Parallel()
	dir := siteDir(t)
	if r := siteCommand(t, "install", "--dir", dir); r.code != 0 || !strings.Contains(r.out, "Slurm drains a node that lacks its Prolog") {
		t.Fatalf("%d: %s%s", r.code, r.out, r.err)
	}
	for _, c := range []struct{ name, config, says string }{
		{"a pattern", "Prolog[0] = " + dir + "/prolog.d/*", "the first job drains the node"},
		{"a file", "ClusterName = lab\nEpilog = " + dir + "/epilog.d/gpushare", "the first job drains the node"},
		{"TaskProlog", "TaskProlog = " + dir + "/gpushare-taskprolog", "no task starts"},
		{"no answer", "", "whether Slurm runs them is not known"},
	} {
		for _, more := range []string{"", "--dry-run"} {
			args := []string{"uninstall", "--dir", dir}
			if more != "" {
				args = append(args, more)
			}
			r := runSlurm(t, ofSlurm(t, map[string]string{"scontrol": c.config}), args...)
			if r.code != api.ExitConflict || !strings.Contains(r.err, c.says) || !strings.Contains(r.err, "--force") {
				t.Errorf("%s: it exits with %d: %s%s", c.name, r.code, r.out, r.err)
			}
			for _, f := range siteFiles {
				if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
					t.Errorf("%s: %v", c.name, err)
				}
			}
		}
	}
	r := runSlurm(t, ofSlurm(t, map[string]string{"scontrol": ""}), "uninstall", "--dir", dir, "--force")
	if r.code != 0 || strings.Count(r.out, " removed\n") != 4 {
		t.Errorf("--force: %d: %s%s", r.code, r.out, r.err)
	}
}

var siteFiles = []string{"prolog.d/gpushare", "epilog.d/gpushare", "gpushare-taskprolog", "gpushare-health"}

// Install writes what is not there or is of another version, a second time nothing, and uninstall removes exactly that.
func TestSlurmInstall(t *testing.T) {
	t.Parallel()
	dir := siteDir(t)
	there := func() (out []string) {
		for _, f := range siteFiles {
			if _, err := os.Stat(filepath.Join(dir, f)); err == nil {
				out = append(out, f)
			}
		}
		return out
	}
	install := func() result { return siteCommand(t, "install", "--dir", dir, "--tenant", "vision", "--grant", "jobs") }
	r := siteCommand(t, "install", "--dir", dir, "--dry-run")
	if r.code != 0 || len(there()) > 0 || strings.Count(r.out, "would be written") != 4 ||
		!strings.Contains(r.out, "Prolog="+dir+"/prolog.d/*\n") {
		t.Errorf("dry: %d, %v, %s%s", r.code, there(), r.out, r.err)
	}
	r = install()
	b, err := os.ReadFile(filepath.Join(dir, siteFiles[0]))
	if r.code != 0 || len(there()) != 4 || err != nil || !strings.Contains(string(b), "\nGPUSHARE_TENANT=vision\nGPUSHARE_GRANT=jobs\n") {
		t.Errorf("it exits with %d, %v, %v: %s%s\n%s", r.code, there(), err, r.out, r.err, b)
	}
	if info, err := os.Stat(filepath.Join(dir, siteFiles[0])); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if r = install(); r.code != 0 ||
		strings.Count(r.out, " is there\n") != 4 {
		t.Errorf("a second time: %d, %s", r.code, r.out)
	}
	// Another mode, and another owner where the test may set one.
	for _, change := range []func() error{
		func() error { return os.Chmod(filepath.Join(dir, siteFiles[0]), 0o777) },
		func() error { return os.Chmod(filepath.Join(dir, siteFiles[0]), 0o644) },
		func() error {
			if os.Geteuid() != 0 {
				return os.Chmod(filepath.Join(dir, siteFiles[0]), 0o700)
			}
			return os.Lchown(filepath.Join(dir, siteFiles[0]), 65534, -1)
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if r = siteCommand(t, "check", "--dir", dir); !strings.Contains(r.out, siteFiles[0]+": it") {
			t.Errorf("check says %s", r.out)
		}
		r = install()
		info, err := os.Stat(filepath.Join(dir, siteFiles[0]))
		if err != nil || info.Mode() != 0o755 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() ||
			strings.Count(r.out, " is there\n") != 3 {
			t.Errorf("%v, %v: %s%s", info, err, r.out, r.err)
		}
	}
	// Another version wrote this one.
	old := strings.Replace(string(b), version.Version, "v0.0.1", 1)
	if err := programs.Write(filepath.Join(dir, siteFiles[0]), []byte(old)); err != nil {
		t.Fatal(err)
	}
	if r = install(); r.code != 0 ||
		!strings.Contains(r.out, "replaced: v0.0.1 had") {
		t.Errorf("over another version: %d, %s", r.code, r.out)
	}
	var j api.SlurmInstall
	r = siteCommand(t, "uninstall", "--dir", dir, "--dry-run", "--json")
	if err := json.Unmarshal([]byte(r.out), &j); err != nil || len(j.Files) != 4 || j.Files[3].Done != "removed" || len(there()) != 4 {
		t.Errorf("--json: %v, %+v, %v", err, j, there())
	}
	if err := programs.Write(filepath.Join(dir, "prolog.d/mine"), []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	if err := programs.Write(filepath.Join(dir, siteFiles[3]), []byte("#!/bin/sh\n")); err != nil {
		t.Fatal(err)
	}
	if r = siteCommand(t, "uninstall", "--dir", dir); r.code != 0 || strings.Join(there(), " ") != siteFiles[3] ||
		!strings.Contains(r.out, "gpushare-health stays") {
		t.Errorf("uninstall: %d, %v: %s%s", r.code, there(), r.out, r.err)
	}
	if _, err := os.Stat(filepath.Join(dir, "prolog.d/mine")); err != nil {
		t.Error(err)
	}
	if r = siteCommand(t, "uninstall", "--dir", dir); r.code != 0 || strings.Count(r.out, "is not there") != 3 {
		t.Errorf("a second time: %d, %s", r.code, r.out)
	}
}

// What gpushare did not write is not replaced, and then nothing is written; nor is anything in a directory where another user writes.
func TestSlurmInstallRefuses(t *testing.T) {
	t.Parallel()
	write := func(path, text string) error {
		return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), programs.Write(path, []byte(text)))
	}
	for _, c := range []struct {
		name string
		make func(dir string) error
		says string
		args []string
		code int
	}{
		{"a script of the site", func(dir string) error { return write(dir+"/epilog.d/gpushare", "#!/bin/sh\n") }, "gpushare did not write", nil, api.ExitConflict},
		{"an empty file", func(dir string) error { return write(dir+"/gpushare-health", "") }, "gpushare did not write", nil, api.ExitConflict},
		{"a link", func(dir string) error { return os.Symlink("/etc/passwd", dir+"/gpushare-health") }, "no regular file", nil, api.ExitConflict},
		{"a directory", func(dir string) error { return os.Mkdir(dir+"/gpushare-health", 0o755) }, "no regular file", nil, api.ExitConflict},
		{"a directory that is a link", func(dir string) error { return os.Symlink("/", dir+"/prolog.d") }, "or a link", nil, api.ExitConflict},
		{"others write there", func(dir string) error { return os.Chmod(dir, 0o777) }, "other users may write there", nil, api.ExitConflict},
		{"a tenant that is a command", func(string) error { return nil }, "other characters", []string{"--tenant", "$(reboot)"}, api.ExitUsage},
	} {
		dir := filepath.Join(t.TempDir(), "etc")
		if err := errors.Join(os.Mkdir(dir, 0o755), c.make(dir)); err != nil {
			t.Fatal(err)
		}
		r := siteCommand(t, append([]string{"install", "--dir", dir}, c.args...)...)
		if r.code != c.code || !strings.Contains(r.err, c.says) {
			t.Errorf("%s: it exits with %d: %s%s", c.name, r.code, r.out, r.err)
		}
		if _, err := os.Lstat(dir + "/prolog.d/gpushare"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: the Prolog is there: %v", c.name, err)
		}
	}
	if r := siteCommand(t, "install", "--dir", filepath.Join(t.TempDir(), "none")); r.code != api.ExitConflict {
		t.Errorf("no directory: it exits with %d: %s", r.code, r.err)
	}
}

// Check says whether the scripts are there, of this version, and run.
func TestSlurmCheckOfTheScripts(t *testing.T) {
	t.Parallel()
	const gpu = "slurmd: Gres Name=gpu Type=a30 Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE"
	dir := siteDir(t)
	config := func(more string) map[string]string {
		return map[string]string{
			"slurmd":   gpu,
			"scontrol": "NodeName=node1 Version=24.11.5 State=IDLE\nPrologFlags = Alloc,Contain,RunInJob\n" + more,
		}
	}
	whole := "Prolog[0] = " + dir + "/prolog.d/*\nEpilog[0] = " + dir + "/epilog.d/gpushare\nTaskProlog = " + dir + "/gpushare-taskprolog\nHealthCheckProgram = " + dir + "/gpushare-health"
	check := func(text map[string]string) result { return runSlurm(t, ofSlurm(t, text), "check", "--dir", dir) }
	// Without a script of gpushare what Slurm runs is a difference if it is not there.
	r := check(config(whole))
	for _, says := range []string{
		"no script of gpushare is in " + dir,
		dir + "/prolog.d/*, which is not there: the first job drains the node",
		dir + "/epilog.d/gpushare, which is not there: the first job drains the node",
		dir + "/gpushare-taskprolog, which is not there: no task starts",
		dir + "/gpushare-health, which is not there",
	} {
		if r.code != api.ExitDegraded || !strings.Contains(r.out, says) {
			t.Errorf("none: %d, not %q: %s", r.code, says, r.out)
		}
	}
	if r := check(config("")); r.code != 0 || !strings.Contains(r.out, "no script of gpushare is in "+dir) {
		t.Errorf("none, and Slurm runs none: %d, %s", r.code, r.out)
	}
	own := filepath.Join(dir, "prolog.d/site")
	if err := errors.Join(os.Mkdir(filepath.Dir(own), 0o755), programs.Write(own, []byte("#!/bin/sh\n"))); err != nil {
		t.Fatal(err)
	}
	if r := check(config("Prolog = " + dir + "/prolog.d/*")); r.code != 0 {
		t.Errorf("a Prolog of the site: %d, %s", r.code, r.out)
	}
	if r := siteCommand(t, "install", "--dir", dir); r.code != 0 {
		t.Fatal(r.err)
	}
	for _, c := range []struct {
		name, config string
		code         int
		says         string
	}{
		{"whole", whole, 0, "knows the GPUs of node1 as they are"},
		{"without the Prolog", strings.Replace(whole, "prolog.d/*", "prolog.d/other", 1), api.ExitDegraded, "does not run " + dir + "/prolog.d/gpushare"},
		{"without TaskProlog", strings.Replace(whole, "TaskProlog", "X", 1), 0, "note: slurm.conf does not run " + dir + "/gpushare-taskprolog"},
		{"without cgroups", whole + "\nProctrackType = proctrack/linuxproc", api.ExitDegraded, "ProctrackType is proctrack/linuxproc"},
		{"with cgroups", whole + "\nProctrackType = proctrack/cgroup\nTaskPlugin = task/affinity,task/cgroup\nConstrainDevices = yes", 0, "as they are"},
		{"without task/cgroup", whole + "\nTaskPlugin = task/affinity", 0, "note: each job may open the GPUs of others: add task/cgroup"},
		{"open devices", whole + "\nConstrainDevices = no", 0, "note: each job may open the GPUs of others: ConstrainDevices"},
		{"without Contain", whole + "\nPrologFlags = (null)", 0, "as they are"},
	} {
		if r := check(config(c.config)); r.code != c.code || !strings.Contains(r.out, c.says) {
			t.Errorf("%s: it exits with %d: %s%s", c.name, r.code, r.out, r.err)
		}
	}
	text := config(whole)
	text["scontrol"] = strings.Replace(text["scontrol"], "Alloc,Contain,RunInJob", "X11", 1)
	if r := check(text); r.code != api.ExitDegraded || !strings.Contains(r.out, "PrologFlags of slurm.conf lacks Alloc") {
		t.Errorf("flags: it exits with %d: %s", r.code, r.out)
	}
	path := filepath.Join(dir, siteFiles[1])
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := programs.Write(path, []byte(strings.Replace(string(b), version.Version, "v0.0.1", 1))); err != nil {
		t.Fatal(err)
	}
	if r := check(config(whole)); r.code != api.ExitDegraded || !strings.Contains(r.out, path+" is of gpushare v0.0.1") {
		t.Errorf("another version: it exits with %d: %s", r.code, r.out)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r := check(config(whole)); r.code != api.ExitDegraded || !strings.Contains(r.out, path+" is not there") {
		t.Errorf("without the Epilog: it exits with %d: %s", r.code, r.out)
	}
}

// A Prolog ends whatever hangs: each of these programs would run for an hour.
func TestSlurmPrologIsBounded(t *testing.T) {
	t.Parallel()
	j := ofJob(t, nil)
	j.env = append(j.env, "GPUSHARE_PROLOG_SECONDS=1")
	for _, name := range []string{"slurmd", "squeue", "logger"} {
		j.program(name, "exec sleep 3600")
	}
	if r, _ := j.run(routes{"GET /v1/status": jobNode()}, "prolog"); r.code != 0 {
		t.Errorf("it exits with %d: %s", r.code, r.err)
	}
}
