package slurm

import (
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Job is a job as Slurm's Prolog, Epilog and TaskProlog have it in their environment. Account is text of the user
// where Slurm does not know the accounts.
type Job struct {
	ID      uint64
	Cluster string
	Restart uint64 // how often it was requeued
	UID     uint32
	Account string // empty: none, or one that no lease can have
	GPUs    string // the places of its GPUs on this node, as slurmd counts them; empty: it has none
	Node    string // NodeName
}

// JobOf reads the job from the environment of a Prolog or an Epilog.
func JobOf(getenv func(string) string) (*Job, error) {
	j := &Job{Cluster: getenv("SLURM_CLUSTER_NAME"), GPUs: getenv("SLURM_JOB_GPUS"), Node: getenv("SLURMD_NODENAME")}
	var err error
	if j.ID, err = strconv.ParseUint(getenv("SLURM_JOB_ID"), 10, 32); err != nil || j.ID == 0 {
		return nil, fmt.Errorf("cannot read which job it is: SLURM_JOB_ID is %q", getenv("SLURM_JOB_ID"))
	}
	uid, err := strconv.ParseUint(getenv("SLURM_JOB_UID"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("cannot read whose job %d is: SLURM_JOB_UID is %q", j.ID, getenv("SLURM_JOB_UID"))
	}
	j.UID = uint32(uid)
	if n := getenv("SLURM_JOB_RESTART_COUNT"); n != "" {
		if j.Restart, err = strconv.ParseUint(n, 10, 32); err != nil {
			return nil, fmt.Errorf("cannot read which run of job %d it is: SLURM_JOB_RESTART_COUNT is %q", j.ID, n)
		}
	}
	// Where Slurm does not know the accounts, a user may write any text for one.
	if account := getenv("SLURM_JOB_ACCOUNT"); api.EngineAccountProblem(account) == "" {
		j.Account = account
	}
	if why := api.EngineKeyProblem(j.Key()); why != "" {
		return nil, fmt.Errorf("cannot make a key of job %d: %s: %q", j.ID, why, j.Key())
	}
	return j, nil
}

// Key is the key of its lease. A requeued job has another one in each run.
func (j *Job) Key() string { return fmt.Sprintf("slurm:%s:%d:%d", j.Cluster, j.ID, j.Restart) }

// Cgroup is the cgroup of the job: own is that of the Prolog. With RunInJob, from Slurm 24.05 on, the Prolog runs in it. Else it comes
// after the Prolog, in the scope that slurmd keeps for its jobs next to its own unit: with the name of the node before it in 24.11,
// without in 22.05. exists reports whether a cgroup is there.
func (j *Job) Cgroup(own string, exists func(string) bool) (string, error) {
	name := fmt.Sprintf("job_%d", j.ID)
	if before, _, ok := strings.Cut(own+"/", "/"+name+"/"); ok {
		return before + "/" + name, nil
	}
	for _, scope := range []string{j.Node + "_slurmstepd.scope", "slurmstepd.scope"} {
		if dir := path.Join(path.Dir(own), scope); exists(dir) {
			return dir + "/" + name, nil
		}
	}
	return "", fmt.Errorf("the cgroups of jobs are not found next to %q: it is for Slurm with cgroup/v2", own)
}

// RequestFields is what squeue is given with -O: what a job requests on each node. No text of the user is in it, as the name and the
// comment of a job are in what 'scontrol show job' prints: a name may have lines of its own there, and look like what Slurm says.
const RequestFields = "JobId:|,tres-per-node:|,tres-per-task:|,tres-per-job:|,tres-per-socket:|"

// LeastShards is what a job has whose amount cannot be read: the smallest amount, so that no form of a request is without a limit.
const LeastShards = 1

// AmountError is why the amount of a job cannot be read from what it requests.
type AmountError struct{ why string }

func (e *AmountError) Error() string { return e.why }

func noAmount(format string, args ...any) error {
	return &AmountError{fmt.Sprintf(format, args...) + ": submit it with --gres=shard:N"}
}

// Shards is how many shards a job requests on each node; 0: it requests GPUs, and no shards. text is what 'squeue -h -j ID -O' printed for
// RequestFields. An AmountError means that the job requests something else.
func (j *Job) Shards(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimRight(line, "\n"), "|")
		if len(fields) < 5 || fields[0] != strconv.FormatUint(j.ID, 10) {
			continue // another part of a heterogeneous job
		}
		others := requestOf(strings.Join(fields[2:5], ","))
		if others.has {
			return 0, noAmount("it does not request its shards by node")
		}
		q := requestOf(fields[1])
		switch {
		case q.err != nil:
			return 0, q.err
		case !q.has && !q.gpu && !others.gpu:
			return 0, noAmount("it requests neither shards nor a GPU")
		}
		return q.shards, nil
	}
	return 0, errors.New("squeue did not say what it requests")
}

// requested is what a list requests of GPUs.
type requested struct {
	gpu, has bool // GPUs, shards
	shards   uint64
	err      error // why the shards are not known
}

// requestOf reads a list such as gres/gpu:h100:1,gres/shard:12 (before 23.11: gres:shard:12; 24.11 takes shard=12 too).
func requestOf(list string) (q requested) {
	for item := range strings.SplitSeq(list, ",") {
		name := strings.ToLower(strings.TrimSpace(item))
		name = strings.TrimPrefix(strings.TrimPrefix(name, "gres/"), "gres:")
		words := strings.FieldsFunc(name, func(r rune) bool { return r == ':' || r == '=' })
		if len(words) == 0 || !strings.HasPrefix(words[0], "shard") {
			q.gpu = q.gpu || len(words) > 0 && words[0] == "gpu"
			continue
		}
		count, err := uint64(1), error(nil)
		if len(words) > 1 {
			count, err = strconv.ParseUint(words[len(words)-1], 10, 32)
		}
		switch {
		case q.has:
			q.err = noAmount("it requests shards of two types: %q", list)
		case words[0] != "shard" || len(words) > 3 || err != nil || count == 0:
			q.err = noAmount("its shards are not a number: %q", item)
		}
		q.has, q.shards = true, count
	}
	return q
}
