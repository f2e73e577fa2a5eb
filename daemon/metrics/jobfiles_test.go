package metrics

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/loop"
)

// currentStatus is a status that a test replaces.
type currentStatus struct{ atomic.Pointer[api.Status] }

func (s *currentStatus) StatusFor(*server.Caller) *api.Status { return s.Load() }

func filesIn(t *testing.T, dir string) map[string]string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, f := range list {
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[f.Name()] = string(b)
	}
	return out
}

// The names are those that dcgm-exporter reads: the index of the GPU, and the id of the GPU instance.
func TestJobFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	s := &currentStatus{}
	s.Store(labNode().Status)
	j := &JobFiles{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Dir: dir, Status: s}
	check := func(what string, want map[string]string) {
		t.Helper()
		if err := j.sync(); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, filesIn(t, dir)); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	check("leases on an instance and on a GPU", map[string]string{"0.2": "vision-3kq6\n", "2": "vision-a\nvision-b\n"})
	file := filepath.Join(dir, "2")
	before, err := os.Stat(file)
	if err != nil || before.Mode().Perm() != 0o644 {
		t.Fatalf("dcgm-exporter may not read it: %v, %v", before, err)
	}
	for name, text := range map[string]string{"3": "old\n", "0.9": "old\n", "0.2": "other\n", ".jobs-77": "", "readme": "of the site\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("files of other leases", map[string]string{"0.2": "vision-3kq6\n", "2": "vision-a\nvision-b\n", "readme": "of the site\n"})
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file was written again: %v", err)
	}
	last := labNode().Status
	last.Leases = last.Leases[2:3] // vision-b
	s.Store(last)
	check("leases ended", map[string]string{"2": "vision-b\n", "readme": "of the site\n"})
	s.Store(&api.Status{})
	check("no lease", map[string]string{"readme": "of the site\n"})
}

// A lease that changed wakes the writer. A directory that cannot be written is a condition until it can.
func TestJobFilesFollowTheLeases(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "jobs")
	synctest.Test(t, func(t *testing.T) {
		s := &currentStatus{}
		s.Store(&api.Status{})
		j := &JobFiles{Reporter: report.NewReporter(slog.New(slog.DiscardHandler), time.Now), Dir: dir, Status: s, Wake: loop.NewWake()}
		ctx, stop := context.WithCancel(t.Context())
		go j.Run(ctx)
		synctest.Wait()
		s.Store(labNode().Status)
		j.Wake.Set()
		synctest.Wait()
		if got := filesIn(t, dir); len(got) != 2 {
			t.Errorf("after a change there are %v", got)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * jobFileInterval) // virtual: the timer of the loop
		synctest.Wait()
		if list := j.Conditions.List(); len(list) != 1 || list[0].Kind != "job-files" {
			t.Errorf("the conditions are %+v", list)
		}
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * jobFileInterval) // virtual, as above
		synctest.Wait()
		if list := j.Conditions.List(); len(list) > 0 || len(filesIn(t, dir)) != 2 {
			t.Errorf("then the conditions are %+v and the files %v", list, filesIn(t, dir))
		}
		stop()
		synctest.Wait()
	})
	if got := filesIn(t, dir); len(got) != 2 {
		t.Errorf("after the end of the daemon there are %v: the leases continue", got)
	}
}
