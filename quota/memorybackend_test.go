package quota

import (
	"strings"
	"testing"
)

func TestChooseMemoryBackend(t *testing.T) {
	readBack := DriverLimit{ReadBack: true}
	together := DriverLimit{ReadBack: true, Together: true}
	none := DriverLimit{Reason: "the driver is older than R615"}
	for _, c := range []struct {
		name string
		in   MemoryBackendInput
		want MemoryBackend
		hard bool
		says []string
	}{
		{"a MIG instance", MemoryBackendInput{MIG: true, Enforcing: true, Driver: none}, BackendMIG, true, []string{"MIG instance"}},
		{"a MIG instance of a node that observes", MemoryBackendInput{MIG: true}, BackendMIG, true, nil},
		{"the driver", MemoryBackendInput{Enforcing: true, Driver: readBack, MPS: true, Overuse: OveruseKill}, BackendDriver, true, []string{"read back", "managed memory"}},
		{"the driver, several leases together", MemoryBackendInput{Enforcing: true, Driver: together, Others: 3}, BackendDriver, true, nil},
		{"the driver, several leases alone", MemoryBackendInput{Enforcing: true, Driver: readBack, Others: 2, Overuse: OveruseKill}, BackendDriver, false, []string{"each of the grant's 3 leases alone", "stopped"}},
		{"MPS", MemoryBackendInput{Enforcing: true, Driver: none, MPS: true, Overuse: OveruseKill}, BackendMPS, false, []string{"each process asks the MPS server", "stopped", "older than R615"}},
		{"kill", MemoryBackendInput{Enforcing: true, Driver: none, Overuse: OveruseKill}, BackendReactive, false, []string{"stopped", "no limit by the driver: the driver is older than R615"}},
		{"freeze", MemoryBackendInput{Enforcing: true, Driver: none, Overuse: OveruseFreeze, CanFreeze: true}, BackendReactive, false, []string{"frozen"}},
		{"freeze where nothing can be frozen", MemoryBackendInput{Enforcing: true, Driver: none, Overuse: OveruseFreeze}, BackendObserve, false, []string{"cannot be frozen"}},
		{"notify", MemoryBackendInput{Enforcing: true, Driver: none, Overuse: OveruseNotify}, BackendObserve, false, []string{"only sampled and reported"}},
		{"a node that observes", MemoryBackendInput{Driver: DriverLimit{Reason: "x"}, Overuse: OveruseObserve}, BackendObserve, false, []string{"enforce: observe"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ChooseMemoryBackend(c.in)
			if got.Backend != c.want || got.Hard != c.hard || got.Reason == "" {
				t.Errorf("%+v, want %s, hard %v", got, c.want, c.hard)
			}
			for _, text := range c.says {
				if !strings.Contains(got.Reason, text) {
					t.Errorf("the reason %q lacks %q", got.Reason, text)
				}
			}
		})
	}
}

// TestHardNeedsAReadBack checks over all inputs that a limit is called hard only for an instance or a limit that was read back,
// and that a limit for each client or each lease is never called a limit of the grant.
func TestHardNeedsAReadBack(t *testing.T) {
	bools := []bool{false, true}
	for _, mig := range bools {
		for _, read := range bools {
			for _, together := range bools {
				for others := range 2 {
					for _, mps := range bools {
						for _, p := range []OverusePolicy{OveruseObserve, OveruseNotify, OveruseFreeze, OveruseKill} {
							in := MemoryBackendInput{
								MIG:       mig,
								Enforcing: true,
								Driver:    DriverLimit{ReadBack: read, Together: together},
								Others:    others,
								MPS:       mps,
								Overuse:   p,
							}
							got := ChooseMemoryBackend(in)
							if want := mig || read && (together || others == 0); got.Hard != want {
								t.Errorf("%+v: hard is %v", in, got.Hard)
							}
							if got.Hard && got.Backend != BackendMIG && got.Backend != BackendDriver {
								t.Errorf("%+v: %s is called hard", in, got.Backend)
							}
							if want := mig || read || p == OveruseKill; got.Enforced != want { // Nothing can be frozen here.
								t.Errorf("%+v: enforced is %v", in, got.Enforced)
							}
						}
					}
				}
			}
		}
	}
}
