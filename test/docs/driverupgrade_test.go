package docs

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpushare/gpushare/test/harness"
)

// The commands of the page about an upgrade of the driver work, in order, on a virtual node, and print the lines that the page
// shows. Where the page replaces the driver of a real host, that of the virtual node is replaced.
func TestDriverUpgradeCommandsWork(t *testing.T) {
	bin, err := filepath.Abs(filepath.Join(root, "bin"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(bin, "gpushared")); err != nil {
		t.Skip("gpushared is missing: run 'make build' first")
	}
	n := &harness.Node{Bin: bin, File: filepath.Join(root, "testdata/nodes/dgx-a100.yaml")}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := n.Start(ctx); err != nil {
		t.Fatal(err)
	}
	// On the virtual node, by the first words of the command.
	driver := [][2]string{{"modprobe -r", "driver-unload"}, {"apt install", "driver-install 580.105.08"}, {"modprobe nvidia", "driver-load"}}
	ran, output := 0, ""
	for i, line := range strings.Split(read(t, "docs/driver-upgrade.md"), "\n") {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case line == "```":
			output = ""
		case isCommand && strings.HasPrefix(command, "gpushare "):
			r := n.CLI(ctx, splitCommand(command)[1:]...)
			if ran, output = ran+1, r.Out; r.Code != 0 {
				t.Fatalf("line %d: %s\nexited with %d:\n%s%s", i+1, command, r.Code, r.Out, r.Err)
			}
		case isCommand:
			known := false
			for _, d := range driver {
				if strings.HasPrefix(command, d[0]) {
					known = true
					if err := n.Ctl(ctx, nil, strings.Fields(d[1])...); err != nil {
						t.Fatalf("line %d: %s: %v", i+1, command, err)
					}
				}
			}
			if !known {
				t.Errorf("line %d: the test does not know %q", i+1, command)
			}
		case output != "" && !strings.Contains(output, line+"\n"):
			t.Errorf("line %d: %q is missing in\n%s", i+1, line, output)
		}
	}
	if ran < 5 {
		t.Errorf("only %d commands were found: the reading is broken", ran)
	}
	if r := n.CLI(ctx, "status"); !strings.Contains(r.Out, "driver 580.105.08") {
		t.Errorf("the driver is not the one of the page:\n%s", r.Out)
	}
}

// splitCommand splits a command as a shell does whose quotes contain no quotes.
func splitCommand(command string) []string {
	var out []string
	for i, part := range strings.Split(command, `"`) {
		if i%2 == 1 {
			out = append(out, part)
		} else {
			out = append(out, strings.Fields(part)...)
		}
	}
	return out
}
