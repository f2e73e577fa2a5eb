package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// What the package puts on a host, and what the daemon adds while it runs, is in the list of what other programs see.
func TestWhatTheHostSeesIsListed(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root, "docs/install.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(b), "<!-- visible -->")
	table, _, ok := strings.Cut(after, "<!-- end of visible -->")
	if !ok {
		t.Fatal("docs/install.md has no list of what the host sees")
	}
	names := map[string]string{}
	for _, dir := range []string{"systemd", "apparmor", "generator"} {
		entries, err := os.ReadDir(filepath.Join(root, "packaging", dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if !e.IsDir() {
				names[e.Name()] = "packaging/" + dir
			}
		}
	}
	for _, from := range []struct{ file, expr, as string }{
		{"packaging/sysusers.d/gpushare.conf", `(?m)^[ugm] +(\S+)`, "%s"},
		{"packaging/tmpfiles.d/gpushare.conf", `(?m)^[a-zA-Z] +(\S+)`, "%s"},
		{"packaging/scripts/postinst", `(?m)^\s*(?:added|disabled)=\$root(/etc\S+)`, "%s"},
		{"packaging/systemd/gpushared.socket", `(?m)^ListenStream=(\S+)`, "%s"},
		{"packaging/systemd/gpushared.service", `(?m)^ReadWritePaths=-(/sys\S+)`, "%s"},
		{"packaging/apparmor/gpushared", `(?m)^  (/(?:var/lib|run)/\w+)/\{`, "%s"},
		{"internal/kernel/descent/record.go", `attach\("(gpushare_\w+)"`, "%s"},
		{"systemd/policy.go", `policyName = "(\S+\.conf)"`, "/etc/dbus-1/system.d/%s"},
		{"systemd/readback.go", `"(/(?:etc|run)/systemd/system\.control)"`, "%s"},
		{"systemd/names.go", `escape\(prefix\) \+ "(-)" \+ id \+ "\.scope"`, "gpushare%s….scope"},
		{"systemd/programs.go", `escape\(prefix\) \+ "(-\w+-)" \+ id \+ "\.service"`, "gpushare%s….service"},
		{"daemon/host/front.go", `name := "(gpushare-\S+-)"`, "%s….service"},
		{"daemon/host/relay.go", `Name:\s+"(gpushare-\S+-)"`, "%s….service"},
		{"daemon/host/helper.go", `helperService = "(\S+)"`, "%s.service"},
		{"gpu/worker/supervise.go", `Launch\(ctx, "(gpushare-\S+-)"`, "%s….service"},
		{"mps/state.go", `"(gpushare-\S+-)" \+ d\.Name\(\) \+ "\.service"`, "%s….service"},
		// The module and the nodes that the vendor's program is asked for.
		{"isolation/nodes.go", `uvmDriver = "(\S+)"`, "%s"},
		{"isolation/nodes.go", `Name:\s+"(/dev/\S+)"`, "%s"},
		{"isolation/rules.go", `fmt\.Sprintf\("(/dev/nvidia)%d"`, "%sN"},
		{"isolation/rules.go", `fmt\.Sprintf\("(/dev/nvidia-caps/nvidia-cap)%d"`, "%sN"},
		{"isolation/steps.go", `"(/dev/nvidiactl)"`, "%s"},
	} {
		b, err := os.ReadFile(filepath.Join(root, from.file))
		if err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(from.expr).FindAllStringSubmatch(string(b), -1)
		if len(found) == 0 {
			t.Errorf("%s has nothing like %s: where is it now?", from.file, from.expr)
		}
		for _, m := range found {
			names[fmt.Sprintf(from.as, m[1])] = from.file
		}
	}
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(table, -1) {
		listed[m[1]] = true
	}
	if len(names) < 20 {
		t.Errorf("only %d names were found: %v", len(names), names)
	}
	for name, from := range names {
		if strings.HasSuffix(name, ".mount") {
			t.Errorf("%s: every program of the host sees a mount, and Slurm does not start next to one of cgroups", name)
		}
		if !listed[name] {
			t.Errorf("%s of %s is not in the list of docs/install.md of what the host sees", name, from)
		}
	}
}
