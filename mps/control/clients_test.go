package control

import (
	"errors"
	"slices"
	"testing"

	"github.com/gpushare/gpushare/mps"
)

// A process that joined is a client on every version, and one without the environment is none. While they cannot be
// read there is an error, not an empty list.
func TestClients(t *testing.T) {
	t.Parallel()
	for _, driver := range onEveryBranch(t) {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			f := newFixtureOf(t, driver)
			f.start(t, mps.Settings{GPU: gpuA})
			env := f.environment(t, mps.Limits{})
			f.burn(t, nil, "--hold")
			if got, err := f.Clients(t.Context(), deviceA); err != nil || len(got) != 0 {
				t.Errorf("without a server: %v, %v", got, err)
			}
			client := f.burn(t, env, "--hold").cmd.Process.Pid
			if got, err := f.Clients(t.Context(), deviceA); err != nil || !slices.Equal(got, []int{client}) {
				t.Errorf("the clients are %v, %v; want pid %d", got, err, client)
			}
			f.duringAChange(func() {
				if got, err := f.Clients(t.Context(), deviceA); !errors.Is(err, errBusy) || got != nil {
					t.Errorf("during a change: %v, %v", got, err)
				}
			})
			if err := f.Stop(t.Context(), deviceA); err != nil {
				t.Fatal(err)
			}
			if got, err := f.Clients(t.Context(), deviceA); err == nil {
				t.Errorf("without a control daemon the clients are %v", got)
			}
		})
	}
}
