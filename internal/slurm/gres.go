package slurm

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpushare/gpushare/api"
)

// Entry is what a job of Slurm can have: a GPU, a MIG instance, or shards of a GPU.
type Entry struct {
	GPU    int // its index
	Type   string
	Files  []string
	Shards uint64 // of 1 GiB each; 0: it is no shared GPU
}

// Gres is what Slurm should know of a node.
type Gres struct {
	Node    string
	Entries []Entry
	Notes   []string // what it cannot know, and why
}

// shared ends the type of a GPU that is shared: a job that asks for a GPU by its type gets no shared one.
const shared = "-shared"

// Of is what Slurm should know of the GPUs of a status. only are UUIDs of GPUs; none: all.
func Of(s *api.Status, node string, only []string) Gres {
	out := Gres{Node: node}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if len(only) > 0 && !slices.Contains(only, g.UUID) {
			out.note("GPU %d is left out: it is open to every job", g.Index)
			continue
		}
		out.add(g)
	}
	return out
}

func (o *Gres) note(format string, args ...any) {
	o.Notes = append(o.Notes, fmt.Sprintf(format, args...))
}

func (o *Gres) add(g *api.GPUStatus) {
	switch {
	case g.DeviceNode == "":
		o.note("GPU %d is left out: its device node is not known (%s)", g.Index, cmp.Or(g.Reason, g.State))
	case g.MIG != nil && g.MIG.Enabled:
		o.addInstances(g)
	case g.Mode == api.ModeTimeslice || g.Mode == api.ModeMPS:
		e := Entry{GPU: g.Index, Type: TypeOf(g.Model) + shared, Files: []string{g.DeviceNode}, Shards: g.Grantable >> 30}
		if e.Shards == 0 {
			o.note("GPU %d has no shards: how much memory its grants may have is not known", g.Index)
		}
		o.Entries = append(o.Entries, e)
	default:
		o.Entries = append(o.Entries, Entry{GPU: g.Index, Type: TypeOf(g.Model), Files: []string{g.DeviceNode}})
	}
}

func (o *Gres) addInstances(g *api.GPUStatus) {
	if g.MIG.Dynamic {
		o.note("GPU %d is left out: its instances are created on demand, and Slurm reads gres.conf once; it is open to every job", g.Index)
		return
	}
	if len(g.MIG.Instances) == 0 {
		o.note("GPU %d is left out: it is in MIG mode and has no instance; it is open to every job", g.Index)
	}
	add := func(profile string, nodes []string) {
		if len(nodes) == 0 {
			o.note("%s of GPU %d is left out: its device nodes are not known", profile, g.Index)
			return
		}
		o.Entries = append(o.Entries, Entry{GPU: g.Index, Type: profile, Files: nodes})
	}
	for i := range g.MIG.Instances {
		in := &g.MIG.Instances[i]
		for j := range in.Compute {
			add(in.Compute[j].Profile, in.Compute[j].DeviceNodes)
		}
		if len(in.Compute) == 0 {
			add(in.Profile, in.DeviceNodes)
		}
	}
}

// TypeOf is the type of a GPU for Slurm: the words of the driver's name of the board up to the first with a digit, as h100 of
// "NVIDIA H100 80GB HBM3".
func TypeOf(model string) string {
	var words []string
	for _, w := range strings.Fields(strings.ToLower(model)) {
		if w == "nvidia" || w == "tesla" {
			continue
		}
		w, _, _ = strings.Cut(w, "-")
		words = append(words, w)
		if strings.ContainsAny(w, "0123456789") {
			break
		}
	}
	return cmp.Or(strings.Join(words, "_"), "gpu")
}

// Conf are the lines of gres.conf.
func (o *Gres) Conf() []string {
	out := []string{"NodeName=" + o.Node + " AutoDetect=off"}
	for i := range o.Entries {
		out = append(out, o.gpuLine(&o.Entries[i]))
	}
	for i := range o.Entries {
		if e := &o.Entries[i]; e.Shards > 0 {
			out = append(out, o.shardLine(e))
		}
	}
	return out
}

func (o *Gres) gpuLine(e *Entry) string {
	key := "File"
	if len(e.Files) > 1 {
		key = "MultipleFiles"
	}
	return fmt.Sprintf("NodeName=%s Name=gpu Type=%s %s=%s", o.Node, e.Type, key, strings.Join(e.Files, ","))
}

// shardLine has the type: without it slurmd spreads the count over all GPUs of the node.
func (o *Gres) shardLine(e *Entry) string {
	return fmt.Sprintf("NodeName=%s Name=shard Type=%s Count=%d File=%s", o.Node, e.Type, e.Shards, strings.Join(e.Files, ","))
}

// NodeGres is Gres= of the node's line in slurm.conf. Its shards have no type: with one slurmctld refuses the node.
func (o *Gres) NodeGres() string {
	var types []string
	count, shards := map[string]int{}, uint64(0)
	for i := range o.Entries {
		e := &o.Entries[i]
		if count[e.Type] == 0 {
			types = append(types, e.Type)
		}
		count[e.Type]++
		shards += e.Shards
	}
	var out []string
	for _, t := range types {
		out = append(out, fmt.Sprintf("gpu:%s:%d", t, count[t]))
	}
	if shards > 0 {
		out = append(out, fmt.Sprintf("shard:%d", shards))
	}
	return strings.Join(out, ",")
}

// Types is GresTypes= of slurm.conf.
func (o *Gres) Types() string {
	if slices.ContainsFunc(o.Entries, func(e Entry) bool { return e.Shards > 0 }) {
		return "gpu,shard"
	}
	return "gpu"
}

// Text is a gres.conf, with what belongs into slurm.conf as comments.
func (o *Gres) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# gres.conf of %s, printed by 'gpushare slurm gres'. In slurm.conf:\n", o.Node)
	fmt.Fprintf(&b, "#   GresTypes=%s\n#   NodeName=%s ... Gres=%s\n", o.Types(), o.Node, o.NodeGres())
	for _, n := range o.Notes {
		fmt.Fprintf(&b, "# %s\n", n)
	}
	for _, line := range o.Conf() {
		b.WriteString(line + "\n")
	}
	return b.String()
}

// NodeName reports whether a name can be that of one node: it is written into files and given to programs.
func NodeName(s string) bool {
	return s != "" && len(s) <= 253 && s[0] != '-' && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_')
	})
}
