package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/daemon/report"
	"github.com/gpushare/gpushare/daemon/server"
	"github.com/gpushare/gpushare/internal/boundedread"
	"github.com/gpushare/gpushare/internal/durable"
	"github.com/gpushare/gpushare/internal/loop"
)

// JobFiles writes which leases use which GPU where dcgm-exporter reads it (--hpc-job-mapping-dir), so that its metrics have the
// label hpc_job.
type JobFiles struct {
	*report.Reporter
	Dir    string // nothing else writes there; empty: no files
	Status interface {
		StatusFor(c *server.Caller) *api.Status
	}
	Wake loop.Wake // a lease changed
}

// jobFileInterval is how often the files are compared with the leases without an event: an instance may have been replaced, and
// a file may have been changed by another program.
const jobFileInterval = 30 * time.Second

// jobFile is the name of a file that dcgm-exporter reads: the index of a GPU, or with ".ID" that of a GPU instance of it.
var jobFile = regexp.MustCompile(`^\d+(\.\d+)?$`)

// Run writes the files until ctx ends. Then they stay, because the leases continue.
func (j *JobFiles) Run(ctx context.Context) {
	if j.Dir == "" {
		return
	}
	failed := false
	for ok := true; ok; _, ok = j.Wake.Sleep(ctx, jobFileInterval) {
		switch err := j.sync(); {
		case err != nil:
			failed = true
			j.Log.Warn("the job files of dcgm-exporter cannot be written", "error", err)
			j.Conditions.Set("job-files", "dir", err.Error(), "correct the cause; they are written again within "+jobFileInterval.String())
			j.Invalidate()
		case failed:
			failed = false
			j.Conditions.Clear("job-files", "dir")
			j.Invalidate()
		}
	}
}

// sync makes the files those of the leases.
func (j *JobFiles) sync() error {
	refuse := func(err error) error { return fmt.Errorf("cannot write the job files of dcgm-exporter: %w", err) }
	// dcgm-exporter may run as another user.
	if err := durable.MakeDirectory(j.Dir, 0o755); err != nil {
		return refuse(err)
	}
	there, _, err := boundedread.Entries(j.Dir, boundedread.Files)
	if err != nil {
		return refuse(err)
	}
	desired := jobsOf(j.Status.StatusFor(&server.Caller{Peer: &server.Peer{}, Admin: true}))
	var failed error
	for name, leases := range desired {
		failed = errors.Join(failed, writeJobs(filepath.Join(j.Dir, name), strings.Join(leases, "\n")+"\n"))
	}
	for _, f := range there {
		if _, ok := desired[f.Name()]; ok || !jobFile.MatchString(f.Name()) && !strings.HasPrefix(f.Name(), unfinishedJobs) {
			continue
		}
		if err := os.Remove(filepath.Join(j.Dir, f.Name())); !errors.Is(err, fs.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	if failed != nil {
		return refuse(failed)
	}
	return nil
}

// unfinishedJobs begins the name of a file that is being written. dcgm-exporter reads no such name.
const unfinishedJobs = ".jobs-"

// writeJobs replaces a file at once if its content differs. Whatever another program has put there is neither read nor followed
// if it is no regular file.
func writeJobs(path, content string) error {
	if hasContent(path, content) {
		return nil
	}
	return durable.Replace(path, []byte(content), durable.Options{Mode: 0o644, Any: true, Prefix: unfinishedJobs, Volatile: true})
}

// hasContent reports whether a file has a content.
func hasContent(path, content string) bool {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if i, err := f.Stat(); err != nil || !i.Mode().IsRegular() || i.Size() != int64(len(content)) {
		return false
	}
	old := make([]byte, len(content))
	_, err = io.ReadFull(f, old)
	return err == nil && string(old) == content
}

// jobsOf returns the ids of the leases that have a GPU or a MIG instance, by the name of the file. Devices without a lease are
// left out.
func jobsOf(s *api.Status) map[string][]string {
	out := map[string][]string{}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		index := indexLabel(g)
		if index == "" {
			continue // dcgm-exporter knows GPUs by their index.
		}
		var instances []api.InstanceStatus
		if g.MIG != nil && g.MIG.Enabled {
			instances = g.MIG.Instances
		}
		for j := range s.Leases {
			l := &s.Leases[j]
			if l.State == api.LeaseQueued || l.State == api.LeaseEnded {
				continue
			}
			if slices.Contains(l.Devices, g.UUID) {
				out[index] = append(out[index], l.ID)
			}
			for k := range instances {
				in := &instances[k]
				if slices.ContainsFunc(in.UUIDs, func(id string) bool { return slices.Contains(l.Devices, id) }) {
					name := index + "." + strconv.FormatUint(uint64(in.ID), 10)
					out[name] = append(out[name], l.ID)
				}
			}
		}
	}
	for _, ids := range out {
		slices.Sort(ids)
	}
	return out
}
