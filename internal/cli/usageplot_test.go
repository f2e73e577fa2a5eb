package cli_test

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/chart"
	"github.com/gpushare/gpushare/internal/cli"
	"github.com/gpushare/gpushare/internal/plotimage"
)

// asPlotter in the environment makes the test binary draw, as gpushare-plot does.
const asPlotter = "GPUSHARE_TEST_PLOT"

func becomePlotter() (code int, set bool) {
	how := os.Getenv(asPlotter)
	if filepath.Base(os.Args[0]) != "gpushare-plot" || how == "" {
		return 0, false
	}
	if how == "fails" {
		_, _ = os.Stderr.WriteString("gpushare-plot: cannot draw the chart: a test\n")
		return 1, true
	}
	var c chart.Chart
	if json.NewDecoder(os.Stdin).Decode(&c) != nil || plotimage.Draw(os.Stdout, &c, os.Args[1], time.UTC) != nil {
		return 1, true
	}
	return 0, true
}

// plotting gives the command line a gpushare-plot, and its environment.
func plotting(t *testing.T, how string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "gpushare-plot")
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	cli.SetPlotter(program)
	t.Setenv(asPlotter, how)
	t.Cleanup(func() { cli.SetPlotter("/usr/libexec/gpushare/gpushare-plot") })
}

// labWeek is a week in hours: one tenant works by day, one has a batch at the end and waits for it, one uses MPS.
func labWeek() *api.Usage {
	const hour = 3_600_000
	u := &api.Usage{
		SchemaVersion: 1,
		Since:         noon.Add(-7 * 24 * time.Hour),
		Until:         noon,
		By:            []string{"tenant"},
		StepSeconds:   3600,
		LostRecords:   3,
	}
	for i := range 7 * 24 {
		s := api.UsageStep{Since: u.Since.Add(time.Duration(i) * time.Hour)}
		add := func(tenant string, charged, memory, waiting api.Thousandths) {
			r := api.UsageStepRow{WaitingSeconds: waiting}
			r.Tenant, r.HeldSeconds, r.OccupancySeconds, r.OccupancyMeasuredSeconds = tenant, hour, charged, hour
			r.GPUMemoryGiBSeconds, r.GPUMemoryMeasuredSeconds = memory, hour
			s.Rows = append(s.Rows, r)
			u.Total.HeldSeconds += hour
			u.Total.OccupancyMeasuredSeconds += hour
			u.Total.GPUMemoryMeasuredSeconds += hour
		}
		if at := s.Since.Hour(); at >= 8 && at < 18 {
			add("vision", api.Thousandths(at-7)*hour/4, 20*hour, 0)
		}
		if i >= 140 {
			add("a-tenant-with-a-very-long-name", 2*hour, 64*hour, 3*hour)
		}
		u.Steps = append(u.Steps, s)
	}
	return u
}

// unmeasuredDay is a lease of which nothing is known but that it had its GPU.
func unmeasuredDay() *api.Usage {
	u := &api.Usage{SchemaVersion: 1, Since: noon.Add(-24 * time.Hour), Until: noon, StepSeconds: 3600}
	for i := range 24 {
		r := api.UsageStepRow{}
		r.Tenant, r.HeldSeconds = "vision", 3_600_000
		u.Steps = append(u.Steps, api.UsageStep{Since: u.Since.Add(time.Duration(i) * time.Hour), Rows: []api.UsageStepRow{r}})
		u.Total.HeldSeconds += r.HeldSeconds
	}
	return u
}

func TestImages(t *testing.T) {
	plotting(t, "draws")
	dir := t.TempDir()
	socket := fakeDaemon(t, routes{"GET /v1/usage": labWeek()})
	environment := append(os.Environ(), "GPUSHARE_SOCKET="+socket)
	draw := func(args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := cli.Run(
			t.Context(), append([]string{"usage"}, args...), environment, cli.Stdio{In: strings.NewReader(""), Out: &out, Err: &errs},
		)
		return code, out.String(), errs.String()
	}
	for _, name := range []string{"week.svg", "week.png", "WEEK.PNG"} {
		file := filepath.Join(dir, name)
		if code, out, errs := draw("--plot", file); code != 0 || out != "" || errs != "" {
			t.Fatalf("%s: exit code %d: %s%s", name, code, out, errs)
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "svg") {
			texts := svgTexts(t, b)
			for _, want := range []string{"vision", "a-tenant…long-name", "GPU memory", "waiting requests", "3 records of this time were lost: the sums may be too low"} {
				if !slices.Contains(texts, want) {
					t.Errorf("%s lacks %q: %q", name, want, texts)
				}
			}
		} else if _, err := png.Decode(bytes.NewReader(b)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 3 {
		t.Errorf("left in the directory: %v, %v", list, err)
	}
	// A image that cannot be written is an error, and leaves the old one.
	if code, _, errs := draw("--plot=" + filepath.Join(dir, "no/week.svg")); code != api.ExitFailed ||
		!strings.Contains(errs, "cannot write") {
		t.Errorf("no directory: exit code %d: %s", code, errs)
	}
	full := filepath.Join(dir, "full.svg")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := draw("--plot", full); code != api.ExitFailed || !strings.Contains(errs, "it is a symbolic link") ||
		!strings.Contains(errs, "hint: 'ls -ld "+full) {
		t.Errorf("a link: exit code %d: %s", code, errs)
	}
	plotting(t, "fails")
	environment = append(os.Environ(), "GPUSHARE_SOCKET="+socket)
	before, err := os.ReadFile(filepath.Join(dir, "week.svg"))
	if err != nil {
		t.Fatal(err)
	}
	if code, _, errs := draw("--plot", filepath.Join(dir, "week.svg")); code != api.ExitFailed ||
		!strings.Contains(errs, "cannot draw the chart: a test") {
		t.Errorf("a program that fails: exit code %d: %s", code, errs)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "week.svg")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the old image is not as it was: %v", err)
	}
	cli.SetPlotter("/nonexistent/gpushare-plot")
	if code, _, errs := draw("--plot", full); code != api.ExitFailed || !strings.Contains(errs, "install gpushare with gpushare-plot") {
		t.Errorf("no program: exit code %d: %s", code, errs)
	}
}

func svgTexts(t *testing.T, b []byte) []string {
	t.Helper()
	var out []string
	for d := xml.NewDecoder(bytes.NewReader(b)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if text, ok := token.(xml.CharData); ok {
			out = append(out, strings.TrimSpace(string(text)))
		}
	}
}

// The length of a step follows from the time, and the file may be the next word.
func TestPlotRequests(t *testing.T) {
	for args, want := range map[string]string{
		"--plot":                                "by=tenant&since=7d&step=1h",
		"--plot -":                              "by=tenant&since=7d&step=1h",
		"--plot=-":                              "by=tenant&since=7d&step=1h",
		"--plot --since 30d":                    "by=tenant&since=30d&step=6h",
		"--plot - --since 30d --until 25d":      "by=tenant&since=30d&step=1h&until=25d",
		"--since 400d --plot":                   "by=tenant&since=400d&step=1d",
		"--since 400d --until 395d --plot":      "by=tenant&since=400d&step=1d&until=395d",
		"--since 2025-02-01 --plot":             "by=tenant&since=2025-02-01&step=6h",
		"--since 2025-02-27T00:00:00Z --plot -": "by=tenant&since=2025-02-27T00%3A00%3A00Z&step=1h",
		"--plot --step 12h":                     "by=tenant&since=7d&step=12h",
		"--step 2h --json":                      "by=tenant&since=7d&step=2h",
	} {
		t.Run(args, func(t *testing.T) {
			var got string
			r := run(t, routes{"GET /v1/usage": http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
				got = q.URL.RawQuery
				_, _ = w.Write([]byte("{}"))
			})}, "", append([]string{"usage"}, strings.Fields(args)...)...)
			if r.code != 0 || got != want {
				t.Errorf("exit code %d, requested %q, want %q: %s", r.code, got, want, r.err)
			}
		})
	}
}
