package slurm

import (
	"strings"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// What an option says is less than the shards have, or it is ignored and said; no text of a user becomes anything else.
func TestOptionsOfAJob(t *testing.T) {
	t.Parallel()
	const shards = api.Bytes(8 << 30)
	for name, c := range map[string]struct {
		memory, share string
		whole         bool // the job has no shared GPU
		want          api.Bytes
		wantShare     api.Percent
		says          []string
	}{
		"nothing":              {want: shards},
		"less memory":          {memory: "3GiB", want: 3 << 30},
		"memory and a share":   {memory: "512MiB", share: "30%", want: 512 << 20, wantShare: 30},
		"all memory":           {memory: "8GiB", share: "100%", want: shards, wantShare: 100},
		"more memory":          {memory: "9GiB", want: shards, says: []string{"9GiB is more than the 8GiB of its shards"}},
		"no amount":            {memory: "0GiB", want: shards, says: []string{`"0GiB" is an invalid amount`}},
		"another form":         {memory: "3.5GiB", share: "30", want: shards, says: []string{"invalid amount", "invalid share"}},
		"another flag":         {memory: "--user root", share: "0%", want: shards, says: []string{"invalid amount", "invalid share"}},
		"a line":               {memory: "3GiB\nx", share: "101%", want: shards, says: []string{"invalid amount", "invalid share"}},
		"a long one":           {memory: strings.Repeat("9", 4096) + "GiB", want: shards, says: []string{"invalid amount"}},
		"without a shared GPU": {memory: "3GiB", share: "30%", whole: true, want: shards, says: []string{"no shared GPU", "no shared GPU"}},
	} {
		memory := shards
		q := api.EngineRequest{GPUMemory: &memory}
		env := map[string]string{"SPANK_GPUSHARE_MEMORY": c.memory, "SPANK_GPUSHARE_SHARE": c.share}
		ignored := TakeOptions(&q, !c.whole, func(name string) string { return env[name] })
		if *q.GPUMemory != c.want || (q.Share == nil) != (c.wantShare == 0) || q.Share != nil && *q.Share != c.wantShare {
			t.Errorf("%s: %+v", name, q)
		}
		if len(ignored) != len(c.says) {
			t.Errorf("%s: %q", name, ignored)
			continue
		}
		for i, says := range c.says {
			if !strings.Contains(ignored[i], says) || len(ignored[i]) > 120 {
				t.Errorf("%s: %q, want %q", name, ignored[i], says)
			}
		}
	}
}
