package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gpushare/gpushare/test/harness"
)

// oneGPUMore is the virtual node with a GPU that the spec does not name.
const oneGPUMore = virtual + "  - {model: A100-SXM4-80GB, count: 1}\n"

func output(t *testing.T, n *harness.Node, args ...string) string {
	t.Helper()
	var out, failed bytes.Buffer
	if code := run(soon(t), append([]string{"--socket", n.Socket()}, args...), &out, &failed); code != 0 {
		t.Fatalf("%v exits with %d: %s", args, code, &failed)
	}
	return out.String()
}

// line is the one that begins with a device, or with "-" and the index of a GPU without one.
func line(t *testing.T, text, device string) string {
	t.Helper()
	for l := range strings.Lines(text) {
		if l = strings.Join(strings.Fields(l), " "); strings.HasPrefix(l, device+" ") {
			return l
		}
	}
	t.Fatalf("%s is not in:\n%s", device, text)
	return ""
}

// What is offered, and why not the rest, is printed from gpushared alone.
func TestOffers(t *testing.T) {
	t.Parallel()
	n := newNode(t, oneGPUMore, spec)
	if r := n.CLI(soon(t), "lease", "attach", "-t", "local", "--key", "slurm:1", "--gpu", "3", "--grant", "big"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	if r := n.CLI(soon(t), "gpu", "cordon", "2"); r.Code != 0 {
		t.Fatal(r.Err)
	}
	text := output(t, n, "offers")
	for device, want := range map[string]string{
		"DEVICE":                "DEVICE GPU TYPE GRANTS STATE",
		gpu0 + "-mig-3g-40gb-4": gpu0 + "-mig-3g-40gb-4 0 mig train offered",
		gpu1 + "-serve":         gpu1 + "-serve 1 timeslice serve offered",
		gpu2:                    gpu2 + " 2 gpu whole,pair offered, tainted: cordoned:NoSchedule",
		gpu3:                    gpu3 + " 3 gpu whole,pair not offered: lease local-big-",
		"- 4":                   "- 4 - - not offered: the spec does not name it",
	} {
		if got := line(t, text, device); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", device, got, want)
		}
	}
	var list struct {
		Devices []offered
	}
	if err := json.Unmarshal(
		[]byte(output(t, n, "--json", "offers")),
		&list,
	); err != nil ||
		len(list.Devices) != strings.Count(text, "\n")-1 {
		t.Errorf("as JSON there are %d devices, as text:\n%s%v", len(list.Devices), text, err)
	}
	if text := output(t, n, "--tenant", "other", "offers"); !strings.HasSuffix(line(t, text, "- 0"), "has no tenant for Kubernetes") {
		t.Errorf("without a tenant:\n%s", text)
	}
}

// Wrong usage ends with 2, and says what is wrong.
func TestUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"prepare":        `unexpected argument "prepare"`,
		"offers --json":  "flags are before offers",
		"--json":         "--json is of offers",
		"--nothing":      "-nothing",
		"--node= a b c":  `unexpected argument "a"`,
		"--json prepare": `unexpected argument "prepare"`,
	} {
		var out, failed bytes.Buffer
		if code := run(
			t.Context(),
			strings.Fields(args),
			&out,
			&failed,
		); code != 2 || !strings.Contains(failed.String(), want) ||
			out.Len() > 0 {
			t.Errorf("%s: exits with %d and says %q", args, code, &failed)
		}
	}
	var out, failed bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &out, &failed); code != 0 || !strings.Contains(failed.String(), "Examples:") {
		t.Errorf("--help exits with %d and prints %q", code, &failed)
	}
	missing := t.TempDir() + "/socket"
	if code := run(
		t.Context(),
		[]string{"--socket", missing, "offers"},
		&out,
		&failed,
	); code != 1 ||
		!strings.Contains(failed.String(), missing) {
		t.Errorf("without gpushared it exits with %d and says %q", code, &failed)
	}
}
