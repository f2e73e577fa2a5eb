package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gpushare/gpushare/api"
)

// The file is replaced as a whole: a failure leaves the old one, and nothing else is left in the directory.
func TestTextfile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "gpushare.prom")
	check := func(what, want string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil || string(b) != want {
			t.Errorf("%s: the file has %q: %v", what, b, err)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
			t.Errorf("%s: the directory has %v: %v", what, list, err)
		}
	}
	for _, text := range []string{"a 1\n", "a 2\n"} {
		if r := run(t, routes{"GET /metrics": printing(text)}, "", "metrics", "--textfile", file); r.code != 0 || r.all != "" {
			t.Fatalf("it ends with %d: %s", r.code, r.all)
		}
		check("a writing", text)
	}
	if i, err := os.Stat(file); err != nil || i.Mode().Perm() != 0o644 {
		t.Errorf("node_exporter may not read it: %v, %v", i, err)
	}
	refused := routes{"GET /metrics": &api.Error{Kind: api.KindDenied, Message: "you may not read the metrics"}}
	if r := run(t, refused, "", "metrics", "--textfile", file); r.code != api.ExitDenied {
		t.Errorf("a refusal ends with %d: %s", r.code, r.all)
	}
	check("a refusal", "a 2\n")
	if r := run(t, routes{"GET /metrics": printing("a 3\n")}, "", "metrics", "--textfile", filepath.Join(dir, "none", "gpushare.prom")); r.code != api.ExitFailed {
		t.Errorf("without the directory it ends with %d: %s", r.code, r.all)
	}
}
