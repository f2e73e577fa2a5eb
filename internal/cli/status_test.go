package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

// screenOf is a terminal of a width, without colours.
type screenOf struct {
	bytes.Buffer
	columns int
}

func (s *screenOf) Columns() int { return s.columns }

// onScreen runs a command whose output is a terminal of a width.
func onScreen(t *testing.T, r routes, columns int, args string) result {
	t.Helper()
	out, errs := &screenOf{columns: columns}, &bytes.Buffer{}
	code := cli.Run(
		t.Context(), strings.Fields(args), []string{"GPUSHARE_SOCKET=" + fakeDaemon(t, r), "TERM=xterm"},
		cli.Stdio{In: strings.NewReader(""), Out: out, Err: errs},
	)
	return result{code: code, out: out.String(), err: errs.String()}
}

// busyNode is labNode with readings of several ages, and with what needs much room.
func busyNode() *api.Status {
	s := labNode()
	for i := range s.GPUs {
		s.GPUs[i].ReadAt = ptr(noon.Add(-time.Duration(i) * 25 * time.Second))
		if s.GPUs[i].Utilization != nil {
			s.GPUs[i].UtilizationReadAt = ptr(noon.Add(-25 * time.Second))
		}
	}
	s.GPUs[0].UtilizationReadAt, s.GPUs[0].Utilization = ptr(noon.Add(-4*time.Second)), nil
	s.GPUs[1].UtilizationReadAt = ptr(noon.Add(-3 * time.Minute)) // older than its memory
	s.GPUs = append(s.GPUs, api.GPUStatus{
		Index:  11,
		UUID:   "GPU-11",
		Model:  "NVIDIA A100-SXM4-40GB",
		Mode:   "exclusive",
		State:  "lost",
		Reason: "the GPU has fallen off the bus",
		Memory: api.GPUMemory{Total: 40 << 30},
	})
	s.GPUs[0].MIG.Instances[0].Memory.Used = 3 << 30
	s.Leases[1].GPUMemory.LastKnown = ptr(noon.Add(-90 * time.Second))
	for i, uid := range []int{1001, 1002, 1003, 1004} {
		s.Leases[i].UID = uid
	}
	again := s.Leases[3]
	again.ID, again.User, again.UID = "vision-yyyy", "bob", 1002
	s.Leases = append(s.Leases, again)
	s.Leases[3].Position, s.Leases[4].Position = 0, 0
	return s
}

// What a terminal shows fits it, from 80 characters to 200; nothing that has a number is cut.
func TestStatusFits(t *testing.T) {
	for _, c := range []struct{ columns, within int }{{40, 80}, {80, 80}, {120, 120}, {200, 200}, {400, 200}} {
		t.Run(fmt.Sprint(c.columns), func(t *testing.T) {
			r := onScreen(t, routes{"GET /v1/status": busyNode()}, c.columns, "status")
			for n, l := range strings.Split(r.out, "\n") {
				if utf8.RuneCountInString(l) > c.within || strings.TrimRight(l, " ") != l {
					t.Errorf("line %d has %d characters: %q", n+1, utf8.RuneCountInString(l), l)
				}
			}
			for _, want := range []string{"1.4 GiB of 19.5 GiB", "31 GiB of 30 GiB", "0 3g.20gb@4", "its one lease is in use", "held"} {
				if !strings.Contains(r.out, want) {
					t.Errorf("%q is missing:\n%s", want, r.out)
				}
			}
			if c.columns == c.within {
				compare(t, map[int]string{80: "status-80", 120: "status-120", 200: "status-200"}[c.columns], r.out)
			}
		})
	}
}

// A sentence is printed once: the reason why a GPU is held is in its condition, and what several leases wait for is
// below the last of them.
func TestStatusSaysThingsOnce(t *testing.T) {
	reason := "cannot create 3g.20gb at 4: " + strings.Repeat("in use by pid 4711 (python) ", 7)
	s := busyNode()
	s.Node.Conditions[0].Message, s.GPUs[3].Reason = "held: "+reason, reason
	s.Leases[3].Waiting, s.Leases[4].Waiting = "it waits for "+reason+"to end", "it waits for "+reason+"to end"
	for _, columns := range []int{0, 80, 200} {
		r := onScreen(t, routes{"GET /v1/status": s}, columns, "status")
		text := strings.Join(strings.Fields(r.out), " ")
		if n := strings.Count(text, "held: "+strings.TrimSpace(reason)); n != 1 {
			t.Errorf("%d columns: the reason is printed %d times:\n%s", columns, n, r.out)
		}
		if n := strings.Count(text, strings.TrimSpace(reason)); n != 2 { // and what the leases wait for
			t.Errorf("%d columns: the sentence is printed %d times, want 2:\n%s", columns, n, r.out)
		}
	}
}

// What is used is never called free.
func TestUsedIsNotFree(t *testing.T) {
	r := onScreen(t, routes{"GET /v1/status": busyNode()}, 120, "status")
	for _, l := range strings.Split(r.out, "\n") {
		if strings.Contains(l, "free") && !strings.Contains(l, "free space") {
			t.Errorf("a row says free: %q", l)
		}
	}
	if !strings.Contains(r.out, "no lease, but 3 GiB in use") || !strings.Contains(r.out, "- / 40 GiB") {
		t.Errorf("an instance in use without a lease, or a GPU that was never read, is shown otherwise:\n%s", r.out)
	}
}

func TestStatusSelects(t *testing.T) {
	caller := api.Info{API: "v1", Caller: api.Caller{UID: 1002, User: "bob"}}
	for name, c := range map[string]struct{ args, leases, gpus string }{
		"tenant":         {"--tenant vision", "vision-3kq6 vision-k8qg vision-zzzz vision-yyyy", "0 2"},
		"GPU by index":   {"--gpu 2", "vision-k8qg", "2"},
		"GPU by UUID":    {"-g " + gpu0, "vision-3kq6", "0"},
		"user":           {"--user alice", "vision-3kq6", "0"},
		"user by number": {"--user 1001", "vision-3kq6", "0"},
		"mine":           {"--mine", "vision-k8qg vision-yyyy", "2"},
		"both":           {"--tenant speech --user alice", "", ""},
		"by memory":      {"--sort memory -t vision", "vision-k8qg vision-3kq6 vision-zzzz vision-yyyy", "0 2"},
		"by share":       {"--sort share -t vision", "vision-k8qg vision-3kq6 vision-zzzz vision-yyyy", "0 2"},
		"by GPU":         {"--sort gpu", "vision-3kq6 speech-serve-with-a-very-long-name-0042 vision-k8qg vision-zzzz vision-yyyy", "0 1 2 10 11"},
		"by id":          {"--sort lease -t vision", "vision-3kq6 vision-k8qg vision-yyyy vision-zzzz", "0 2"},
	} {
		t.Run(name, func(t *testing.T) {
			r := routes{"GET /v1/status": busyNode(), "GET /v1": caller}
			names := onScreen(t, r, 0, "status -o name "+c.args)
			if got := strings.Join(strings.Fields(names.out), " "); got != c.leases || names.code != 0 {
				t.Errorf("leases %q, want %q (exit code %d)", got, c.leases, names.code)
			}
			var s api.Status
			if err := json.Unmarshal([]byte(onScreen(t, r, 0, "status -o json "+c.args).out), &s); err != nil {
				t.Fatal(err)
			}
			var gpus []string
			for i := range s.GPUs {
				gpus = append(gpus, fmt.Sprint(s.GPUs[i].Index))
			}
			if got := strings.Join(gpus, " "); got != c.gpus {
				t.Errorf("GPUs %q, want %q", got, c.gpus)
			}
		})
	}
	for args, want := range map[string]int{"--gpu 7": api.KindNotFound.ExitCode(), "--tenant green": api.KindNotFound.ExitCode(), "--sort size": api.ExitUsage, "-o yaml": api.ExitUsage, "-o name --json": api.ExitUsage, "--mine --user bob": api.ExitUsage} {
		if r := onScreen(t, routes{"GET /v1/status": busyNode()}, 0, "status "+args); r.code != want || r.out != "" {
			t.Errorf("%s: exit code %d, want %d: %s%s", args, r.code, want, r.out, r.err)
		}
	}
	// A condition of another tenant's GPU is no reason for this exit code.
	s := busyNode()
	s.Node.Conditions = s.Node.Conditions[:1]
	for args, want := range map[string]int{"": api.ExitDegraded, " --gpu 10": api.ExitDegraded, " --tenant vision": 0} {
		if r := onScreen(t, routes{"GET /v1/status": s}, 0, "status --exit-code"+args); r.code != want {
			t.Errorf("status --exit-code%s gives %d, want %d", args, r.code, want)
		}
	}
}
