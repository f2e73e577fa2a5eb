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

// A sample runs each phase on a system, and with the next number on the other one. What other phases build upon runs on both.
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
	for number := range 2 {
		t.Setenv("SAMPLE", fmt.Sprint(20_783+number))
		together := map[string]int{}
		for system := range 2 {
			some, other := chosen(boots(), system)
			phases := phasesOf(some)
			if len(phases)+len(other) != len(all) {
				t.Errorf("%d phases run and %d are of the other system, of %d", len(phases), len(other), len(all))
			}
			for _, p := range phases {
				ran[fmt.Sprintf("%s on system %d", p, system)]++
				together[p]++
			}
		}
		for _, p := range all {
			want := 2
			if half(p) >= 0 { // documents too, which one system runs each second time
				want = 1
			}
			if together[p] != want {
				t.Errorf("%s runs on %d systems, want %d", p, together[p], want)
			}
		}
	}
	if len(ran) != 2*len(all) {
		t.Errorf("%d of %d phases run on their system within two numbers", len(ran), 2*len(all))
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
