package leftover

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/internal/kernel/procfs"
)

// ends is how long a process may take that a test has let end.
const ends = 20 * time.Second

// Main runs the tests of a package and returns the exit code. It is 1 too if a process is left that they started. Their temporary
// directories are in a directory of this process, whose name many of their programs have in the command line.
func Main(m *testing.M) int {
	// Short, because a socket path has at most 107 bytes.
	dir, err := os.MkdirTemp("", "t")
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), os.Setenv("TMPDIR", dir), Keep(Place{Dir: dir, Remove: true}))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), ends)
	defer cancel()
	if left := awaitNothing(ctx, dir); left != "" {
		fmt.Printf("FAIL: the tests leave %s; each ends what it starts\n", left)
		return max(code, 1)
	}
	return code
}

// awaitNothing waits until nothing is left that this process has started, and describes what is.
func awaitNothing(ctx context.Context, dir string) string {
	pid, start, _ := strings.Cut(os.Getenv(tokenEnv), ":")
	s := started{token: []byte(tokenEnv + "=" + pid + ":" + start), first: os.Getpid(), places: []Place{{Dir: dir}}}
	s.since, _ = strconv.ParseUint(start, 10, 64) // Start wrote it.
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		found, err := s.find()
		if err == nil && len(found) == 0 {
			return ""
		}
		select {
		case <-again.C:
			continue
		case <-ctx.Done():
		}
		if err != nil {
			return err.Error()
		}
		var left []string
		for _, p := range found {
			left = append(left, fmt.Sprintf("pid %d (%s): %s", p.PID, p.Name, procfs.Command(context.Background(), p.PID)))
		}
		return strings.Join(left, ", ")
	}
}
