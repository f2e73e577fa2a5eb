package slurm

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
)

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestJobOfTheEnvironment(t *testing.T) {
	t.Parallel()
	base := []string{"SLURM_JOB_ID", "42", "SLURM_JOB_UID", "1000", "SLURM_CLUSTER_NAME", "lab"}
	for _, c := range []struct {
		name, key, account, fails string
		env                       []string
	}{
		{"a job", "slurm:lab:42:0", "", "", base},
		{"its second run", "slurm:lab:42:1", "physics", "", append([]string{"SLURM_JOB_RESTART_COUNT", "1", "SLURM_JOB_ACCOUNT", "physics"}, base...)},
		{"an account that is any text", "slurm:lab:42:0", "", "", append([]string{"SLURM_JOB_ACCOUNT", "a b\nSLURM_JOB_UID=0"}, base...)},
		{"no id", "", "", "SLURM_JOB_ID is", base[2:]},
		{"a negative user", "", "", "SLURM_JOB_UID is", append([]string{"SLURM_JOB_UID", "-1"}, base...)},
		{"a cluster that is no text of a key", "", "", "cannot make a key", append([]string{"SLURM_CLUSTER_NAME", "a/b"}, base...)},
	} {
		j, err := JobOf(env(c.env...))
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %+v, %v", c.name, j, err)
			}
			continue
		}
		if err != nil || j.Key() != c.key || j.Account != c.account || j.UID != 1000 {
			t.Errorf("%s: %+v, %v", c.name, j, err)
		}
	}
}

// What squeue prints is of both versions: 22.05 writes gres: and 24.11 gres/.
func TestShardsOfARequest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text  string
		n     uint64
		fails string
	}{
		{"42|gres/shard:12|N/A|N/A|N/A|\n", 12, ""},
		{"42|gres:shard:12|N/A|N/A|N/A|\n", 12, ""},
		{"42|gres/shard|N/A|N/A|N/A|\n", 1, ""},
		{"42|gres/gpu:a100:1,gres/shard:h100-shared:3|N/A|N/A|N/A|\n", 3, ""},
		{"42|gres/gpu:shard:3|N/A|N/A|N/A|\n", 0, ""},
		{"42|gres/shard=12|N/A|N/A|N/A|\n", 12, ""},
		{"42|gres/shard:h100-shared=3|N/A|N/A|N/A|\n", 3, ""},
		{"42|shard:3|N/A|N/A|N/A|\n", 3, ""},
		{"42|gres/gpu=1|N/A|N/A|N/A|\n", 0, ""},
		{"42|N/A|N/A|gres/gpu:1|N/A|\n", 0, ""},
		{"42|N/A|N/A|N/A|N/A|\n", 0, "neither shards nor a GPU"},
		{"42|gres/shard:1,gres/shard=9|N/A|N/A|N/A|\n", 0, "two types"},
		{"42|gres/gpu:1,gres/shards:9|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|gres/gpu:1,gres/shard(9)|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|gres:shard:a:b:9|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|N/A|gres/shard=2|N/A|N/A|\n", 0, "by node"},
		{"42|N/A|gres/shards=2|N/A|N/A|\n", 0, "by node"},
		{"41|gres/shard:9|N/A|N/A|N/A|\n42|gres/shard:2|N/A|N/A|N/A|\n", 2, ""},
		{"421|gres/shard:9|N/A|N/A|N/A|\n", 0, "squeue did not say"},
		{"", 0, "squeue did not say"},
		{"42|gres/shard\n", 0, "squeue did not say"},
		{"42|gres/shard:1K|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|gres/shard:0|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|gres/shard:-1|N/A|N/A|N/A|\n", 0, "not a number"},
		{"42|gres/shard:a:1,gres/shard:b:2|N/A|N/A|N/A|\n", 0, "two types"},
		{"42|N/A|gres/shard:4|N/A|N/A|\n", 0, "by node"},
		{"42|N/A|N/A|N/A|gres/shard:4|\n", 0, "by node"},
	} {
		n, err := (&Job{ID: 42}).Shards(c.text)
		if _, ok := errors.AsType[*AmountError](err); ok != (c.fails != "" && c.fails != "squeue did not say") {
			t.Errorf("%q: %v is an AmountError: %v", c.text, err, ok)
		}
		if n != c.n || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q: %d, %v; want %d, %q", c.text, n, err, c.n, c.fails)
		}
	}
}

func TestCgroupOfAJob(t *testing.T) {
	t.Parallel()
	there := func(dirs ...string) func(string) bool {
		return func(s string) bool { return strings.Contains(" "+strings.Join(dirs, " ")+" ", " "+s+" ") }
	}
	j := &Job{ID: 42, Node: "node1"}
	for _, c := range []struct {
		name, own, want string
		dirs            []string
	}{
		{"24.11 in the job", "/system.slice/node1_slurmstepd.scope/job_42/step_extern/slurm", "/system.slice/node1_slurmstepd.scope/job_42", nil},
		{"24.11 before the job", "/system.slice/slurmd.service", "/system.slice/node1_slurmstepd.scope/job_42", []string{"/system.slice/node1_slurmstepd.scope"}},
		{"22.05", "/system.slice/slurmd.service", "/system.slice/slurmstepd.scope/job_42", []string{"/system.slice/slurmstepd.scope"}},
		{"in another job", "/system.slice/slurmstepd.scope/job_421/step_extern", "", nil},
		{"without cgroup/v2", "/system.slice/slurmd.service", "", nil},
	} {
		got, err := j.Cgroup(c.own, there(c.dirs...))
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}

// site is the node of the files with a tenant whose grants are of each kind.
func site() *api.Status {
	s := node()
	s.GPUs[1].Owner, s.GPUs[3].Owner = api.OwnerSlurm, api.OwnerSlurm
	grant := func(name, kind string, gpu int) api.GrantStatus {
		return api.GrantStatus{Name: name, Kind: kind, GPUs: []string{s.GPUs[gpu].UUID}}
	}
	s.Tenants = []api.TenantStatus{
		{Name: "slurm", Grants: []api.GrantStatus{grant("a", "timeslice", 1), grant("b", "mps", 3), grant("c", "mig", 0)}},
		{Name: "other", Grants: []api.GrantStatus{grant("w", "exclusive", 2)}},
	}
	return s
}

// SLURM_JOB_GPUS counts in the order of 'slurmd -G', which is that of the types: what it names is found by its files.
func TestPlacesAreThoseOfSlurmd(t *testing.T) {
	t.Parallel()
	report := ParseReport(read(t, "slurmd-G-24.11-shared.txt"))
	s := site()
	for _, c := range []struct{ list, want, fails string }{
		{"0", s.GPUs[0].MIG.Instances[0].UUIDs[0], ""},
		{"1", s.GPUs[0].MIG.Instances[1].UUIDs[0], ""},
		{"3", s.GPUs[2].UUID, ""},
		{"4", s.GPUs[1].UUID, ""},
		{"5", s.GPUs[3].UUID, ""},
		{"4,5", s.GPUs[1].UUID + "," + s.GPUs[3].UUID, ""},
		{"6", "", "counts 6 GPUs"},
		{"-1", "", "counts 6 GPUs"},
		{"4,4", "", "twice"},
		{"4 5", "", "counts 6 GPUs"},
		{"", "", "counts 6 GPUs"},
	} {
		places, err := Places(c.list, &report, s)
		var got []string
		for i := range places {
			got = append(got, places[i].Device())
		}
		if strings.Join(got, ",") != c.want || (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) {
			t.Errorf("%q: %v, %v; want %q, %q", c.list, got, err, c.want, c.fails)
		}
	}
	// 22.05 splits the files of an instance where there are shards.
	split := ParseReport(read(t, "slurmd-G-22.05-split.txt"))
	for list, says := range map[string]string{"0": "GPU 0 is partitioned", "1": "gpushare has no GPU or instance with the files"} {
		if places, err := Places(list, &split, s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("split, %q: %+v, %v", list, places, err)
		}
	}
}

// A job has one lease of what it has, or none: never one that says less.
func TestRequestOfAJob(t *testing.T) {
	t.Parallel()
	report := ParseReport(read(t, "slurmd-G-24.11-shared.txt"))
	s := site()
	bytes := func(n api.Bytes) *api.Bytes { return &n }
	base := api.EngineRequest{Key: "slurm:lab:42:0", Tenant: "slurm", User: "1000", Account: "physics"}
	with := func(f func(*api.EngineRequest)) api.EngineRequest { q := base; f(&q); return q }
	for _, c := range []struct {
		name, list string
		shards     uint64
		terms      Terms
		want       api.EngineRequest
		fails      string
		silent     bool
	}{
		{"shards", "5", 12, Terms{Tenant: "slurm"}, with(func(q *api.EngineRequest) {
			q.GPUs, q.GPUMemory = []string{s.GPUs[3].UUID}, bytes(12<<30)
		}), "", false},
		{"a shared GPU without shards", "4", 0, Terms{Tenant: "slurm", Grant: "a"}, with(func(q *api.EngineRequest) {
			q.Grant, q.GPUs = "a", []string{s.GPUs[1].UUID}
		}), "", false},
		{"an instance", "1", 0, Terms{Tenant: "slurm"}, with(func(q *api.EngineRequest) {
			q.Instance = s.GPUs[0].MIG.Instances[1].UUIDs[0]
		}), "", false},
		{"a whole GPU", "3", 0, Terms{Tenant: "other"}, with(func(q *api.EngineRequest) {
			q.Tenant, q.Kind, q.GPUs = "other", "exclusive", []string{s.GPUs[2].UUID}
		}), "", false},
		{"a whole GPU without a grant", "3", 0, Terms{Tenant: "slurm"}, base, "no grant is of it", true},
		{"shards without a grant", "4", 1, Terms{Tenant: "slurm", Grant: "b"}, base, "no grant that shares GPU 1", false},
		{"two shared GPUs", "4,5", 12, Terms{Tenant: "slurm"}, base, "shards of 2 GPUs", false},
		{"two instances", "0,1", 0, Terms{Tenant: "slurm"}, base, "2 instances", false},
		{"two kinds", "3,4", 0, Terms{Tenant: "slurm"}, base, "one kind", false},
	} {
		places, err := Places(c.list, &report, s)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		q, err := (&Job{ID: 42, Cluster: "lab", UID: 1000, Account: "physics"}).Request(places, c.shards, c.terms, s)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) || errors.Is(err, ErrNoGrant) != c.silent {
				t.Errorf("%s: %+v, %v", c.name, q, err)
			}
			continue
		}
		if diff := cmp.Diff(c.want, q); diff != "" || err != nil {
			t.Errorf("%s: %v, %s", c.name, err, diff)
		}
	}
	s.GPUs[1].Mode = api.ModeExternal
	if places, err := Places("4", &report, s); err != nil {
		t.Error(err)
	} else if _, err := new(Job).Request(places, 0, Terms{Tenant: "slurm"}, s); !errors.Is(err, ErrNoGrant) {
		t.Errorf("a GPU at which gpushare only looks: %v", err)
	}
}

// Only the GPUs that Slurm places on are a reason to drain its node, and only one that no job can use.
func TestUnusableGPUs(t *testing.T) {
	t.Parallel()
	s := site()
	for _, state := range []string{"ok", "cordoned", "held", "changing", "drained", "missing", "no-driver", "parked", "mps-down"} {
		s.GPUs[1].State = state
		if got := UnusableGPUs(s); len(got) > 0 {
			t.Errorf("%s: %q", state, got)
		}
	}
	s.GPUs[1].State, s.GPUs[1].Reason, s.GPUs[2].State = "lost", "Xid 79", "lost"
	if got := UnusableGPUs(s); len(got) != 1 || got[0] != "GPU 1 is lost: Xid 79" {
		t.Errorf("%q", got)
	}
	s.GPUs[1].Owner, s.GPUs[3].Owner = "", ""
	if got := UnusableGPUs(s); len(got) != 2 {
		t.Errorf("without an owner: %q", got)
	}
}

func TestNoteOfAJob(t *testing.T) {
	t.Parallel()
	places := []Place{{Slurm: "4", GPU: "GPU-a"}, {Slurm: "5", GPU: "GPU-b"}}
	grant := &api.LeaseGrant{
		Environment: map[string]string{visible: "GPU-a,GPU-b", "GPUSHARE_LEASE": "slurm-a-1", "BAD": "a\nexport X=y"},
		Unset:       []string{"CUDA_MPS_PIPE_DIRECTORY"},
	}
	text, err := NoteOf(places, grant).Text()
	if err != nil {
		t.Fatal(err)
	}
	n, err := ParseNote(text)
	if err != nil {
		t.Fatal(err)
	}
	lease := []string{"unset CUDA_MPS_PIPE_DIRECTORY", "export GPUSHARE_LEASE=slurm-a-1"}
	for _, c := range []struct {
		name string
		env  []string
		want []string
	}{
		{"all of the job", []string{"SLURM_JOB_GPUS", "4,5", visible, "0,1"}, append(lease[:2:2], "export "+visible+"=GPU-a,GPU-b")},
		{"what its step has", []string{"SLURM_JOB_GPUS", "4,5", "SLURM_STEP_GPUS", "5", visible, "0"}, append(lease[:2:2], "export "+visible+"=GPU-b")},
		{"a part of the step", []string{"SLURM_JOB_GPUS", "4,5", visible, "1"}, lease},
		{"another GPU", []string{"SLURM_JOB_GPUS", "7", visible, "0"}, lease},
		{"none", nil, lease},
	} {
		if diff := cmp.Diff(c.want, n.ForTask(env(c.env...))); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	n = &Note{Refused: "no\nplace"}
	if got := n.ForTask(env("SLURM_LOCALID", "0")); len(got) != 1 || got[0] != "print gpushare: this job has no lease: no place" {
		t.Errorf("%q", got)
	}
	n.Refused, n.Notice = "", "this job has\n1 GiB"
	if got := n.ForTask(env("SLURM_LOCALID", "0")); len(got) != 1 || got[0] != "print gpushare: this job has 1 GiB" {
		t.Errorf("%q", got)
	}
	if got := n.ForTask(env("SLURM_LOCALID", "1")); len(got) != 0 {
		t.Errorf("another task: %q", got)
	}
}

func TestHeaderOfAScript(t *testing.T) {
	t.Parallel()
	script := Headed("#!/bin/sh\n# Text.\n", "v1.2.3", []string{"A=b"})
	if v, ok := HeaderOf(
		script,
	); v != "v1.2.3" || !ok || !strings.HasPrefix(script, "#!/bin/sh\n# W") ||
		!strings.HasSuffix(script, "\nA=b\n# Text.\n") {
		t.Errorf("%q, %v of %s", v, ok, script)
	}
	for _, other := range []string{"", "\n", "#!/bin/sh\n", "#!/bin/sh\n# Written by hand\n", strings.Replace(script, "removes it", "keeps it", 1)} {
		if v, ok := HeaderOf(other); ok {
			t.Errorf("%q is of %q", other, v)
		}
	}
	for _, bad := range []string{"a b", "$(x)", "a\nb", "'"} {
		if line, err := Variable("A", bad); err == nil {
			t.Errorf("%q", line)
		}
	}
}

func TestWhatSlurmRuns(t *testing.T) {
	t.Parallel()
	settings := Settings("Configuration data as of x\nProlog[0]               = /etc/slurm/prolog.d/*\nProlog[1] = /opt/mine\n" +
		"Epilog                  = (null)\nTaskProlog = gpushare-taskprolog\n\nSlurmctld(primary) at x is UP\n")
	want := map[string]bool{"Prolog": true, "TaskProlog": true}
	for _, s := range Scripts() {
		if got := s.Runs(settings, "/etc/slurm"); got != want[s.Setting] {
			t.Errorf("%s: %v", s.Setting, got)
		}
	}
}
