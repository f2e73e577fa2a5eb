package node

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// The lines for Slurm are of the GPUs as they are, and their device nodes are there: slurmd does not start with one that is not.
func TestSlurmLinesOfTheNode(t *testing.T) {
	t.Parallel()
	n := start(t, quick)
	apply(t, n, engineSpec)
	r := n.CLI(soon(t), "slurm", "gres", "--node", "node1", "--json")
	var g api.SlurmGres
	if err := json.Unmarshal([]byte(r.Out), &g); err != nil || r.Code != 0 {
		t.Fatalf("gres exits with %d, %v: %s%s", r.Code, err, r.Out, r.Err)
	}
	kinds := map[string]int{}
	for _, line := range g.GresConf {
		_, files, _ := strings.Cut(line, "iles=")
		kind := "instance"
		if files == "" {
			_, files, _ = strings.Cut(line, "File=")
			kind = "whole"
		}
		if strings.Contains(line, "Name=shard") {
			kind = "shard"
		}
		if files == "" {
			continue
		}
		kinds[kind]++
		for file := range strings.SplitSeq(files, ",") {
			if _, err := os.Stat(file); err != nil || !strings.HasPrefix(file, n.Root()) {
				t.Errorf("%s names %s: %v", line, file, err)
			}
		}
	}
	s := status(t, n)
	whole := 0
	for i := range s.GPUs {
		if s.GPUs[i].MIG == nil {
			whole++
		}
	}
	if kinds["instance"] != len(s.GPUs[0].MIG.Instances) || kinds["whole"] != whole || kinds["shard"] != 1 ||
		whole+len(g.Notes) != len(s.GPUs)-1 {
		t.Errorf("there are %v in %q", kinds, g.GresConf)
	}
	shared := s.GPUs[2]
	if g.GresTypes != "gpu,shard" || shared.Grantable == 0 || shared.Grantable > shared.Memory.Total || s.GPUs[3].Grantable != 0 {
		t.Errorf("types %s, %d of %d bytes may be granted", g.GresTypes, shared.Grantable, shared.Memory.Total)
	}
}
