package enumeration

import (
	"fmt"
	"testing"
)

// Over as many numbers as there are parts each case runs once, of a sample and of a part, whatever the name of the list.
func TestEveryCaseRunsOnce(t *testing.T) {
	const cases, parts = 50, 12
	for name, each := range map[string]func() func(i int) bool{
		"sampled": func() func(int) bool { return func(i int) bool { return Runs(i, parts) } },
		"1/12":    func() func(int) bool { return func(i int) bool { return Runs(i, parts+5) } },
		"1/12 ": func() func(int) bool {
			first, stride := Part("one becomes four")
			return func(i int) bool { return i%stride == first }
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "sampled" || raceDetector || testing.Short() {
				t.Setenv("ENUMERATION", "sampled")
			} else {
				t.Setenv("ENUMERATION", "1/12")
			}
			if (raceDetector || testing.Short()) && name == "1/12" {
				t.Skip("with -short or the race detector the sample of the test counts")
			}
			if (raceDetector || testing.Short()) && name == "1/12 " {
				t.Setenv("ENUMERATION", "1/12") // Part does not depend on the detector.
			}
			ran := map[int]int{}
			for number := 20_000; number < 20_000+parts; number++ {
				t.Setenv("SAMPLE", fmt.Sprint(number))
				runs, today := each(), 0
				for i := range cases {
					if runs(i) {
						ran[i]++
						today++
					}
				}
				if today == 0 || today > cases/parts+1 {
					t.Errorf("number %d: %d cases run", number, today)
				}
			}
			for i := range cases {
				if ran[i] != 1 {
					t.Errorf("case %d runs %d times", i, ran[i])
				}
			}
		})
	}
}

// Without the environment everything runs, but in a sample, whose first cases are those of number 0.
func TestWhole(t *testing.T) {
	t.Setenv("ENUMERATION", "")
	t.Setenv("SAMPLE", "")
	if first, stride := Part("a"); first != 0 || stride != 1 {
		t.Errorf("a list begins at %d, with a stride of %d", first, stride)
	}
	for i := range 20 {
		if want := !Sampled() || i%7 == 0; Runs(i, 7) != want {
			t.Errorf("case %d runs: %t", i, !want)
		}
	}
}
