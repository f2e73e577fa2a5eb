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
		most          api.Percent
		want          api.Bytes
		wantShare     api.Percent
		says          []string
	}{
		"nothing":              {want: shards},
		"less memory":          {memory: "3GiB", want: 3 << 30},
		"memory and a share":   {memory: "512MiB", share: "30%", want: 512 << 20, wantShare: 30},
		"all memory":           {memory: "8GiB", share: "100%", most: 100, want: shards, wantShare: 100},
		"more of the share":    {share: "80%", most: 21.33, want: shards, wantShare: 21.33, says: []string{"the job has the 21.33% that its shards are"}},
		"no bound":             {share: "1%", most: -1, want: shards, says: []string{"is not known"}},
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
		most := &c.most
		switch c.most {
		case 0:
			c.most = 30
		case -1:
			most = nil
		}
		ignored := TakeOptions(&q, !c.whole, most, func(name string) string { return env[name] })
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

// A job has as much of the share of its grant as its shards are of the grant's memory.
func TestMostShareOfAJob(t *testing.T) {
	t.Parallel()
	bytes := func(n api.Bytes) *api.Bytes { n <<= 30; return &n }
	share := func(p api.Percent, memory *api.Bytes) *api.ShareSpec {
		return &api.ShareSpec{Share: p, GPUMemory: memory}
	}
	status := &api.Status{Tenants: []api.TenantStatus{
		{Name: "other", Grants: []api.GrantStatus{{Name: "jobs", Kind: "timeslice", GPUs: []string{"GPU-0"}}}},
		{Name: "slurm", Grants: []api.GrantStatus{
			{Name: "jobs", Kind: "timeslice", GPUs: []string{"GPU-0"}},
			{Name: "more", Kind: "mps", GPUs: []string{"GPU-0"}},
			{Name: "far", Kind: "timeslice", GPUs: []string{"GPU-1"}},
		}},
	}}
	spec := func(jobs, more *api.ShareSpec) *api.Spec {
		return &api.Spec{Tenants: []api.TenantSpec{
			{Name: "other", Grants: []api.GrantSpec{{Name: "jobs", Timeslice: share(1, bytes(1))}}},
			{Name: "slurm", Grants: []api.GrantSpec{
				{Name: "jobs", Timeslice: jobs}, {Name: "more", MPS: more}, {Name: "far", Timeslice: share(1, bytes(1))},
			}},
		}}
	}
	for _, c := range []struct {
		name   string
		spec   *api.Spec
		grant  string
		memory *api.Bytes
		want   api.Percent // 0: it is not known
	}{
		{"a part", spec(share(80, bytes(30)), share(50, bytes(10))), "jobs", bytes(8), 21.33},
		{"all", spec(share(80, bytes(30)), share(50, bytes(10))), "jobs", bytes(30), 80},
		{"more than all", spec(share(80, bytes(30)), share(50, bytes(10))), "jobs", bytes(60), 80},
		{"the smallest of two", spec(share(80, bytes(30)), share(50, bytes(20))), "", bytes(8), 20},
		{"without shards", spec(share(80, bytes(30)), share(50, bytes(10))), "jobs", nil, 80},
		{"a grant without memory", spec(share(80, nil), share(50, bytes(10))), "jobs", bytes(8), 0},
		{"nothing of it", spec(share(0.1, bytes(100)), share(50, bytes(10))), "jobs", bytes(1), 0},
		{"another grant", spec(share(80, bytes(30)), share(50, bytes(10))), "none", bytes(8), 0},
		{"no spec", nil, "jobs", bytes(8), 0},
	} {
		got := MostShare(c.spec, status, Terms{Tenant: "slurm", Grant: c.grant}, "GPU-0", c.memory)
		if (got == nil) != (c.want == 0) || got != nil && *got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
