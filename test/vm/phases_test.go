package vm

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func phasesOf(boots []boot) (all []string) {
	for _, b := range boots {
		all = append(all, b.phases...)
	}
	return all
}

// A sample runs phases of one system, and four of them all phases of both. What other phases build upon runs each time.
func TestASampleRunsEachPhase(t *testing.T) {
	t.Setenv("VM_PHASES", "")
	t.Setenv("ENUMERATION", "sampled")
	all := phasesOf(boots())
	for _, p := range slices.Concat(halves[0], halves[1]) {
		if !slices.Contains(all, p) {
			t.Errorf("there is no phase %s", p)
		}
	}
	ran := map[string]int{}
	for number := range 4 {
		t.Setenv("SAMPLE", fmt.Sprint(20_783+number))
		systems := 0
		for system := range 2 {
			some, others := chosen(boots(), system)
			phases := phasesOf(some)
			if len(phases)+len(others) != len(all) {
				t.Errorf("%d phases run and %d do not, of %d", len(phases), len(others), len(all))
			}
			for _, p := range phases {
				ran[fmt.Sprintf("%s on system %d", p, system)]++
			}
			if len(phases) > 0 {
				systems++
				for _, p := range all {
					if half(p) < 0 && !slices.Contains(phases, p) {
						t.Errorf("sample %d: %s does not run", number, p)
					}
				}
			}
		}
		if systems != 1 {
			t.Errorf("sample %d runs on %d systems, want 1", number, systems)
		}
	}
	if len(ran) != 2*len(all) {
		t.Errorf("%d of %d phases run on their system within four numbers", len(ran), 2*len(all))
	}
	t.Setenv("VM_PHASES", "install detach")
	if some, _ := chosen(boots(), 0); !slices.Equal(phasesOf(some), []string{"install", "detach"}) {
		t.Errorf("VM_PHASES runs %v", some)
	}
}

var stateFile = regexp.MustCompile(`\$state/([a-z_.-]+[a-z])`)

// What a phase leaves in a file, no phase reads that may run without it.
func TestNoPhaseBuildsUponAHalf(t *testing.T) {
	names := map[string][]string{} // the phases that name a file
	for _, p := range phasesOf(boots()) {
		b, err := os.ReadFile("guest/phases/" + p + ".sh")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range stateFile.FindAllStringSubmatch(string(b), -1) {
			if !slices.Contains(names[m[1]], p) {
				names[m[1]] = append(names[m[1]], p)
			}
		}
	}
	if len(names) < 5 {
		t.Fatalf("only %v are found", names)
	}
	for file, phases := range names {
		if len(phases) > 1 && slices.ContainsFunc(phases, func(p string) bool { return half(p) >= 0 }) {
			t.Errorf("%s: %s use $state/%s, but one of them runs on one system only", file, strings.Join(phases, ", "), file)
		}
	}
}
