package slurm

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Compare says how what slurmd knows differs from what it should know, and the remedy of each difference. node is nil if it is not known.
func Compare(want *Gres, have *Report, node *Node) []api.SlurmDifference {
	c := comparison{want: want, have: have}
	for _, p := range have.Problems {
		c.say(remedyOfFiles(want), "slurmd reports: %s", p)
	}
	for _, s := range have.Surplus {
		c.say(
			"in slurm.conf: Gres="+want.NodeGres(),
			"slurm.conf has fewer %s than gres.conf: slurmd ignores the others, and they are open to every job",
			s,
		)
	}
	for i := range want.Entries {
		c.entry(&want.Entries[i])
	}
	for i := range have.Known {
		c.surplus(&have.Known[i])
	}
	if node != nil {
		c.node(node)
	}
	return c.out
}

// Comparable reports whether slurmd printed anything that can be compared.
func (r *Report) Comparable() bool { return len(r.Known) > 0 }

type comparison struct {
	want *Gres
	have *Report
	out  []api.SlurmDifference
}

func (c *comparison) say(remedy, format string, args ...any) {
	c.out = append(c.out, api.SlurmDifference{Message: fmt.Sprintf(format, args...), Remedy: remedy})
}

func remedyOfFiles(want *Gres) string {
	return fmt.Sprintf(
		"'gpushare slurm gres --node %s' prints gres.conf and what slurm.conf needs; then 'scontrol reconfigure', or restart slurmd",
		want.Node,
	)
}

// name is what a job gets.
func (e *Entry) name() string {
	if len(e.Files) > 1 {
		return fmt.Sprintf("instance %s of GPU %d (%s)", e.Type, e.GPU, e.Files[len(e.Files)-1])
	}
	return fmt.Sprintf("GPU %d (%s)", e.GPU, e.Files[0])
}

func sameFiles(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// split reports whether slurmd knows each file of an instance as a GPU.
func (c *comparison) split(e *Entry) bool {
	return len(e.Files) > 1 && !slices.ContainsFunc(e.Files, func(file string) bool {
		return !slices.ContainsFunc(c.have.Known, func(k Known) bool { return k.Name == "gpu" && slices.Equal(k.Files, []string{file}) })
	})
}

// entry compares what a job should be able to have with what it can have.
func (c *comparison) entry(e *Entry) {
	lines := "gres.conf: " + c.want.gpuLine(e) + "; slurm.conf: Gres=" + c.want.NodeGres()
	known := slices.ContainsFunc(c.have.Known, func(k Known) bool { return k.Name == "gpu" && sameFiles(k.Files, e.Files) })
	whole := slices.ContainsFunc(c.have.Known, func(k Known) bool { return k.Name == "gpu" && sameFiles(k.Files, e.Files[:1]) })
	switch {
	case !known && c.split(e):
		c.say(
			"leave the shards out of gres.conf and slurm.conf (GresTypes=gpu), or update Slurm: 22.05 does so where shard is a type",
			"slurmd takes each file of %s for a GPU",
			e.name(),
		)
		return
	case !known && whole:
		c.say(lines, "GPU %d is partitioned, and slurmd gives it whole: %s", e.GPU, e.name())
		return
	case !known && c.have.Comparable():
		c.say(lines, "slurmd does not know %s: with ConstrainDevices too it is open to every job", e.name())
		return
	case !known:
		return // slurmd said why it knows none.
	}
	shards := uint64(0)
	for i := range c.have.Known {
		if k := &c.have.Known[i]; k.Name == "shard" && sameFiles(k.Files, e.Files) {
			shards += k.Count
		}
	}
	switch {
	case shards > e.Shards && e.Shards > 0:
		c.say(
			"gres.conf: "+c.want.shardLine(
				e,
			),
			"%s has %d shards of 1 GiB, and its grants may have %d GiB: the shards do not hold",
			e.name(),
			shards,
			e.Shards,
		)
	case shards > 0 && e.Shards == 0:
		c.say(
			"remove its line Name=shard from gres.conf",
			"%s has %d shards, and gpushare does not share it: they do not hold",
			e.name(),
			shards,
		)
	case shards == 0 && e.Shards > 0:
		c.say("gres.conf: "+c.want.shardLine(e), "%s is shared, and slurmd has no shards of it: each job gets it whole", e.name())
	}
}

// surplus reports what slurmd knows and the node does not have.
func (c *comparison) surplus(k *Known) {
	isKnown := func(e Entry) bool {
		return sameFiles(k.Files, e.Files) || len(k.Files) == 1 && slices.Contains(e.Files, k.Files[0]) // whole, or split
	}
	if k.Name != "gpu" || len(k.Files) == 0 || slices.ContainsFunc(c.want.Entries, isKnown) {
		return
	}
	c.say(
		remedyOfFiles(
			c.want,
		),
		"slurmd knows gpu:%s of %s, and gpushare has no such GPU or instance for it",
		k.Type,
		strings.Join(k.Files, ","),
	)
}

// node reports why the node takes no jobs.
func (c *comparison) node(n *Node) {
	resume := fmt.Sprintf("'scontrol update nodename=%s state=resume'", n.Name)
	has := func(state string) bool { return slices.Contains(n.States, state) }
	switch {
	case has("INVALID_REG"):
		c.say(
			remedyOfFiles(c.want)+", and at the end "+resume+": it stays drained until then",
			"slurmctld refuses what slurmd of %s reports (INVAL): %s", n.Name, n.Reason,
		)
	case has("DRAIN"):
		c.say(resume, "%s is drained: %s", n.Name, n.Reason)
	case has("DOWN"):
		c.say("start slurmd, then "+resume, "%s is down: %s", n.Name, n.Reason)
	case has("UNKNOWN"):
		c.say("'systemctl status slurmd' shows why", "slurmd of %s has not registered with slurmctld", n.Name)
	}
}
