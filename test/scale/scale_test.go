package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/leftover"
)

func TestMain(m *testing.M) { os.Exit(leftover.Main(m)) }

// The simulation runs, small: each line of figures is there, and more leases have more series.
func TestScale(t *testing.T) {
	if _, err := os.Stat("../../bin/gpushared"); err != nil {
		t.Skipf("the programs are not built: %v", err)
	}
	t.Chdir("../..")
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-nodes", "100", "-leases", "0,3", "-readings", "2"}, &out, &errs); code != 0 {
		t.Fatalf("it exits with %d: %s%s", code, out.String(), errs.String())
	}
	rows := regexp.MustCompile(`(?m)^ +([03]) +(\d+) +(\d+) +(\d+) +[\d.]+[mµ]?s +[\d.]+[mµ]?s$`).FindAllStringSubmatch(out.String(), -1)
	if len(rows) != 2 || rows[0][2] >= rows[1][2] || len(rows[0][2]) < 3 {
		t.Errorf("the rows are %q of:\n%s", rows, out.String())
	}
	for _, line := range []string{
		`\n100 nodes with 3 leases each, scraped every 30s: \d+ series, \d+ samples/s, [\d.]+ MB/s`,
		`\nPrometheus was not measured: -prometheus `,
		`\nAn apply on the node with 3 leases: without a change median [\d.]+m?s, longest [\d.]+m?s; a limit of 8 tenants changed median [\d.]+m?s`,
		`\nAnsible was not measured: -ansible `,
	} {
		if !regexp.MustCompile(line).MatchString(out.String()) {
			t.Errorf("%q is not in:\n%s", line, out.String())
		}
	}
}

func TestScaleRefuses(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"-leases x", "-leases 1000", "-nodes 0", "-interval 0s", "more", "-unknown"} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), strings.Fields(args), &out, &errs); code != 2 || errs.String() == "" || out.String() != "" {
			t.Errorf("%q exits with %d: %s%s", args, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"-bin", filepath.Join(t.TempDir(), "bin")}, &out, &errs); code != 1 || errs.String() == "" {
		t.Errorf("without programs it exits with %d: %s%s", code, out.String(), errs.String())
	}
}

func TestSeries(t *testing.T) {
	t.Parallel()
	if n := seriesOf([]byte("# HELP a\n# TYPE a gauge\na 1\nb{c=\"#\"} 2\n\n")); n != 2 {
		t.Errorf("%d series", n)
	}
}
