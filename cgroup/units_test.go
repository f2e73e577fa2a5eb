package cgroup

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFindUnits(t *testing.T) {
	h := Hierarchy{Mount: t.TempDir()}
	for _, dir := range []string{
		"/system.slice/cron.service/sub", "/system.slice/docker-1.scope/system.slice/atd.service", "/user.slice/user-1000.slice/atd.service",
		"/batch.slice/batch-night.slice/jobs.service", "/top.service", "/logins/x.slice/jobs.service", "/plain/atd.service",
	} {
		if err := os.MkdirAll(h.Dir(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"cron.service", "atd.service", "jobs.service", "top.service", "batch.slice", "sub"}
	got, err := h.FindUnits(names, "/logins")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"cron.service": "/system.slice/cron.service", "jobs.service": "/batch.slice/batch-night.slice/jobs.service",
		"top.service": "/top.service", "batch.slice": "/batch.slice",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got, err := h.FindUnits(nil, ""); err != nil || len(got) != 0 {
		t.Errorf("without names: %v, %v", got, err)
	}
}
