package cli_test

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/cli"
)

const (
	noFiles     = ":4"
	anyFile     = ":0"
	certainFile = ":8"
)

// offered gives the words that the shell would offer, with what is said of each, and the directive.
func offered(r result) (words []string, directive string) {
	for _, line := range strings.Split(strings.TrimSuffix(r.out, "\n"), "\n") {
		if strings.HasPrefix(line, ":") {
			return words, line
		}
		words = append(words, line)
	}
	return words, ""
}

func TestCompletion(t *testing.T) {
	defer cli.SetNameTimeout(time.Minute)()
	for name, c := range map[string]struct {
		args      []string
		want      []string
		directive string
	}{
		"tenants":                 {[]string{"tenant", "show", ""}, []string{"vision", "speech", "geology"}, noFiles},
		"tenants that begin so":   {[]string{"tenant", "show", "s"}, []string{"speech"}, noFiles},
		"nothing after the first": {[]string{"tenant", "show", "vision", ""}, nil, noFiles},
		"leases": {[]string{"lease", "stop", "vision-"}, []string{
			"vision-3kq6\tpython train.py", "vision-k8qg\tsh -c echo \ufffd[31mred; printf '%s\ufffd' größer und gr…", "vision-zzzz\tmake train",
		}, noFiles},
		"GPUs by number":     {[]string{"gpu", "retry", "1"}, []string{"1\tA100-SXM4-40GB, ok", "10\tA100-SXM4-40GB, held: cannot create 3g.20gb at 4: in use"}, noFiles},
		"GPUs by UUID":       {[]string{"gpu", "retry", "GPU-f"}, []string{gpu2 + "\tRTX PRO 6000 Blackwell Server Edition, ok"}, noFiles},
		"run -t":             {[]string{"run", "-t", "v"}, []string{"vision"}, noFiles},
		"run --tenant=":      {[]string{"run", "--tenant=g"}, []string{"geology"}, noFiles},
		"grants of all":      {[]string{"run", "--grant", ""}, []string{"train\tvision: MIG 3g.20gb", "dev\tvision: 40% of the time, 30 GiB", "serve\tspeech: 30% of the threads (advisory), 16 GiB"}, noFiles},
		"grants of a tenant": {[]string{"run", "-t", "speech", "--grant", ""}, []string{"serve\tspeech: 30% of the threads (advisory), 16 GiB"}, noFiles},
		"GPUs with MPS":      {[]string{"mps", "restart", "1"}, []string{"1\tA100-SXM4-40GB, ok", "10\tA100-SXM4-40GB, held: cannot create 3g.20gb at 4: in use"}, noFiles},
		"kinds":              {[]string{"run", "--kind", ""}, []string{"mig:3g.20gb", "mps", "timeslice"}, noFiles},
		"spec files":         {[]string{"apply", "-f", ""}, []string{"yaml", "yml"}, certainFile},
		"spec arguments":     {[]string{"spec", "validate", ""}, []string{"yaml", "yml"}, certainFile},
		"a command to run":   {[]string{"run", "--", "tr"}, nil, anyFile},
		"boards":             {[]string{"mig", "plan", "--offline", "--model", "A"}, []string{"a100-40\tNVIDIA A100-SXM4-40GB", "a100-80\tNVIDIA A100-SXM4-80GB", "a30\tNVIDIA A30"}, noFiles},
		"profiles, the last of a list": {
			[]string{"mig", "plan", "--model", "a30", "--want", "4g.24gb,2g"},
			[]string{"4g.24gb,2g.12gb\t11.7 GiB, 28 SMs", "4g.24gb,2g.12gb+me\t11.7 GiB, 28 SMs"},
			":6",
		},
		"profiles with their starts": {[]string{"mig", "plan", "--model", "a30", "--have", "2g.12gb@"}, []string{"2g.12gb@0\t11.7 GiB, 28 SMs", "2g.12gb@2\t11.7 GiB, 28 SMs"}, ":6"},
		"profiles of no board":       {[]string{"mig", "plan", "--want", "2"}, nil, ":6"},
		"topics of help":             {[]string{"help", "gpu", "r"}, []string{"retry\tTry a held or stuck GPU again"}, noFiles},
	} {
		t.Run(name, func(t *testing.T) {
			words, directive := offered(run(t, routes{"GET /v1/status": labNode()}, "", append([]string{"__complete"}, c.args...)...))
			if diff := cmp.Diff(c.want, words); diff != "" || directive != c.directive {
				t.Errorf("directive %s, want %s (-want +got):\n%s", directive, c.directive, diff)
			}
		})
	}
}

// Completion says nothing when it knows nothing, and never keeps a finger waiting.
func TestCompletionIsSilent(t *testing.T) {
	silent := func(t *testing.T, r result) {
		t.Helper()
		if words, directive := offered(r); r.code != 0 || len(words) != 0 || directive != noFiles || strings.Contains(r.err, "cannot") {
			t.Errorf("exit code %d: %q, %s\n%s", r.code, words, directive, r.err)
		}
	}
	t.Run("no daemon", func(t *testing.T) {
		silent(t, runOn(t.Context(), filepath.Join(t.TempDir(), "s"), "", "__complete", "tenant", "show", ""))
	})
	t.Run("not allowed", func(t *testing.T) {
		silent(
			t,
			run(
				t, routes{"GET /v1/status": &api.Error{Kind: api.KindDenied, Message: "you may not"}}, "", "__complete", "lease",
				"stop", "",
			),
		)
	})
	t.Run("nothing there", func(t *testing.T) {
		silent(t, run(t, routes{"GET /v1/status": emptyNode()}, "", "__complete", "run", "--kind", ""))
	})
	t.Run("a daemon that hangs", func(t *testing.T) {
		began := time.Now()
		silent(
			t,
			run(
				t, routes{"GET /v1/status": http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() })},
				"", "__complete", "gpu", "retry", "",
			),
		)
		if duration := time.Since(began); duration < 900*time.Millisecond || duration > time.Minute {
			t.Errorf("it needed %v, the deadline is one second", duration)
		}
	})
}

// The request goes to the socket of the command line that is being typed.
func TestCompletionUsesTheSocketOfTheCommandLine(t *testing.T) {
	socket := fakeDaemon(t, routes{"GET /v1/status": labNode()})
	words, _ := offered(runOn(t.Context(), "/nowhere", "", "__complete", "--socket", socket, "tenant", "show", "g"))
	if diff := cmp.Diff([]string{"geology"}, words); diff != "" {
		t.Error(diff)
	}
}
